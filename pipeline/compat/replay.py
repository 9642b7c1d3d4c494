"""Runtime optimizations: from which release on they are recorded and replayed, and which never are."""

from collections.abc import Iterable

from pipeline.core.releases import Release

RUNTIME_STYLE_SINCE = Release(1, 11)


REPLAY_NEEDS_KEY_SINCE = Release(1, 30)


UNREPLAYABLE = frozenset({"MatMul", "dropSplitQDQ"})
"""Actions of QDQ records that ONNX Runtime writes without the operators they produce, and then refuses to replay.

"Not enough produced nodes in the runtime optimization record": measured with 1.21.0, 1.23.2, 1.28.0 (by default) and
1.31.1 (with the key).
"""


YOUNG_ACTIONS = {"1DQ_CPU": Release(1, 24)}
"""Actions of records that not every release has: an older one refuses the file ("Missing action 1DQ_CPU for transformer
QDQSelectorActionTransformer"; 1.20.1 to 1.23.2 do, 1.24.4 to 1.31.1 do not). Quantized Softmax and LeakyRelu have it.
"""


UNCOUNTED = frozenset({"com.microsoft:QLinearConcat"})
"""Operators that records produce and that then fail when they run in an extended build: "Each input must be (tensor,
scale, zero_point) tuple!". Their kernels ask how many variadic inputs a node has, which a build without schemas does
not count. Measured with an extended build of 1.21.0 (all of 3 artifacts); the full build runs them.
"""


def unreplayable(actions: Iterable[tuple[str, bool]]) -> tuple[str, ...]:
    """The actions among (action, whether it names what it produces) that fail when they are replayed."""
    return tuple(sorted({action for action, produces in actions if action in UNREPLAYABLE and not produces}))
