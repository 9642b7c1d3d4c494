"""Files of single sizes that ship although the model that takes every size would do."""

from collections.abc import Iterator, Mapping, Sequence

from device_runner import providers as runner_providers
from pipeline.core import groups as counting
from pipeline.core.errors import Finding, Severity
from pipeline.release import choose
from pipeline.report import wording

RULE = "sizes"


def needless_sizes(choices: Sequence[choose.Choice], sizes: Mapping[str, str]) -> Iterator[Finding]:
    """A warning for each target and open model of which files of single sizes ship to be run as the open one is.

    `sizes` has, by the names of models of one size, the open model that they are of. Providers that want fixed shapes
    need those files; the CPU needs none of them.
    """
    opened = {(choice.target.name, choice.artifact.model): choice for choice in choices}
    sized = counting.grouped(
        ((choice.target.name, sizes[choice.artifact.model]), choice)
        for choice in choices
        if choice.artifact.model in sizes and not runner_providers.provider_named(choice.options.provider).fixed_shapes
    )
    for dimension, needless in sized.items():
        if dimension not in opened:
            continue
        target, model = dimension
        names = ", ".join(choice.artifact.model for choice in needless)
        more = wording.size(sum(choice.artifact.total_bytes for choice in needless))
        provider = ", ".join(dict.fromkeys(choice.options.provider for choice in needless))
        yield Finding(
            severity=Severity.WARNING,
            code=RULE,
            what=f"{model} ships once for each size to be run on {provider}, which needs none of them: {names}, {more}",
            where=f"target {target}",
            why=f"{opened[dimension].artifact.file} takes every size there",
            remedy="leave the list out of `dimensions`, unless a provider with fixed shapes, as NNAPI, is to run it",
        )
