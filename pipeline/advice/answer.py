"""What advice is asked and what it answers: verdicts, what each fix gains, and the best combination."""

from enum import StrEnum

import msgspec

from pipeline.core.providers import PROVIDER_RULES
from pipeline.dataset import Dataset
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import ModelAnswer, Optimize, Settings


class FixChoice(StrEnum):
    """What the guidance says of a model and a provider."""

    USE = "use the provider"
    MEASURE = "measure both"
    CPU = "use the CPU"


class ProviderSupport(msgspec.Struct, frozen=True, kw_only=True):
    """How far a provider takes a model. `load_error` says that a session fails on the phone all the same."""

    nodes: int
    claimed: int
    partitions: int
    load_error: str | None = None

    @property
    def coverage(self) -> float:
        """The claimed share of the nodes, 0 to 1."""
        return self.claimed / self.nodes if self.nodes else 0.0

    @property
    def left(self) -> int:
        """The nodes that stay on the CPU."""
        return self.nodes - self.claimed


class AdviceVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A choice with its reason in words."""

    choice: FixChoice
    reason: str


class FixOutcome(StrEnum):
    """What became of a fix."""

    GAINS = "gains"
    NO_GAIN = "no gain"
    NOT_APPLICABLE = "not applicable"
    REJECTED = "rejected"


class FixResult(msgspec.Struct, frozen=True, kw_only=True):
    """One fix applied alone. `why` explains what is not a gain; `after` is there when the fixed model was judged.

    `error` is the largest difference of an output relative to its largest number, against the original without any
    optimization on the CPU; up to `tolerance` passes, 0 means equal numbers. `absolute_error` is that of the output
    that is nearest to its `limit`, which is above its share where these inputs give small numbers only. All are None
    where nothing was compared: a change of settings leaves the model as it is, and what gains nothing is not run.
    """

    name: str
    title: str
    outcome: FixOutcome
    gain: str = ""
    why: str = ""
    after: ProviderSupport | None = None
    error: float | None = None
    tolerance: float | None = None
    absolute_error: float | None = None
    limit: float | None = None


class Combination(msgspec.Struct, frozen=True, kw_only=True):
    """Fixes that together give the best standing, in the order of their application.

    `settings` says what to set beside the model, in words of the command line.
    """

    fixes: tuple[str, ...]
    gain: str
    after: ProviderSupport
    verdict: AdviceVerdict
    error: float | None = None
    tolerance: float | None = None
    absolute_error: float | None = None
    limit: float | None = None
    settings: tuple[str, ...] = ()
    written: str | None = None


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """All that was tried for one model and provider; with `error` set, nothing was.

    `checked_on` says on what inputs outputs were compared, or why they could not be. `copied` is where the model was
    written unchanged, because no fix of it gains anything.
    """

    verdict: AdviceVerdict | None = None
    before: ProviderSupport | None = None
    fixes: tuple[FixResult, ...] = ()
    best: Combination | None = None
    checked_on: str = ""
    error: str | None = None
    copied: str | None = None
    precision: str | msgspec.UnsetType = msgspec.UNSET
    """Which precision the provider wants, where nodes are refused for the model's own; unset for no such node."""

    @property
    def wrote(self) -> bool:
        """Whether the model was written: fixed, or unchanged where no fix of it gains anything."""
        return bool(self.copied or (self.best and self.best.written))


class AdvisedAnswer(ModelAnswer, frozen=True, kw_only=True):
    """A model's answer with advice."""

    advice: Advice


class AdviceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A model, a provider with its settings, wanted sizes of open dimensions, and where the fixed model goes.

    Outputs are compared on the first sample of `data`, whose shapes also give sizes that are not asked for.
    """

    source: SourceModel
    settings: Settings
    optimize: Optimize = Optimize.NONE
    sizes: dict[str, int] = {}
    data: Dataset = Dataset()
    write_to: str = ""


def standing_of(answer: ModelAnswer) -> ProviderSupport:
    """What counts of an answer."""
    return ProviderSupport(
        nodes=answer.nodes,
        claimed=answer.claimed,
        partitions=len(answer.partitions),
        load_error=answer.load.error if answer.load else None,
    )


def gain_of(before: ProviderSupport, after: ProviderSupport, provider: str) -> str:
    """What changed, in words; partitions count where borders cost anything."""
    coverage = f"coverage {before.coverage:.0%} → {after.coverage:.0%}".replace("% →", " →").replace("%", " %")
    parts = [] if PROVIDER_RULES[provider].on_cpu else [f"partitions {before.partitions} → {after.partitions}"]
    parts.append(coverage)
    if f"{before.coverage:.0%}" == f"{after.coverage:.0%}" and before.left != after.left:
        parts.append(f"nodes on the CPU {before.left} → {after.left}")
    if before.load_error and not after.load_error:
        parts.append("loads on the phone")
    return ", ".join(parts)
