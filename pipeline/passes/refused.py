"""Nodes that a library refuses: which they are, and that they were left as they are."""

from collections.abc import Callable, Sequence

from pipeline.core import workers
from pipeline.core.errors import ModelError
from pipeline.passes.base import PassContext

MOST_ATTEMPTS = 80
"""Times that a quantizer is asked which nodes it cannot take: some seconds for a phone's model."""


def refused_nodes(names: Sequence[str], attempt: Callable[[Sequence[str]], object], error: ModelError) -> list[str]:
    """Those of the nodes that a quantizer cannot take, found by halving, as its complaint names none.

    `attempt` quantizes some and raises ModelError; that it does for all is known, by `error`, which is raised where no
    nodes alone are to blame, all are, or too many.
    """
    left = MOST_ATTEMPTS

    def found(part: Sequence[str]) -> list[str]:
        nonlocal left
        left -= 1
        if left < 0:
            raise error
        workers.still_at_work()
        try:
            attempt(part)
        except ModelError:
            middle = len(part) // 2
            return [*found(part[:middle]), *found(part[middle:])] if middle else list(part)
        return []

    middle = len(names) // 2
    refused = [*found(names[:middle]), *found(names[middle:])] if middle else []
    if not refused or len(refused) == len(names):
        raise error
    return refused


def warn_of_refused(refused: Sequence[str], error: ModelError, context: PassContext) -> None:
    """Say which nodes stay float because a quantizer cannot take them."""
    others = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
    context.warn(f"the quantizer cannot take {refused[0]}{others}, which stay{'s' * (not others)} float: {error.why}")
