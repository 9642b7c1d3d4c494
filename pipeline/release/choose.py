"""Chooses what ships to each target: the fastest that was measured there and checked, or what is advised."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from device_runner.device import DeviceFacts
from device_runner.spec import RunOptions
from pipeline.campaign.options import options_name
from pipeline.campaign.statistics import DecisionRule, RunGroup, Verdict, compare, describe, ranks
from pipeline.campaign.tuned import TunedClass
from pipeline.config import Target
from pipeline.core.abis import abi_of
from pipeline.core.variant import Artifact, Level, Style

ADVISED_LEVELS = (Level.ALL, Level.LAYOUT, Level.EXTENDED, Level.BASIC, Level.NONE)
"""For the CPU: the most optimized graph. `all` is what ONNX Runtime's own converter makes by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What ships to a target for a model, and why."""

    target: Target
    artifact: Artifact
    options: RunOptions
    reason: str
    measured: bool
    device: str = ""
    """Where it was measured."""
    classes: tuple[TunedClass, ...] = ()
    """The classes of devices that it was found to be best for; () where no search told them apart."""
    undecided: tuple[str, ...] = ()
    """VARIANT/RUN of others that were shown neither slower than the fastest nor the same: more rounds may decide."""

    @property
    def run(self) -> str:
        """The name of its run options."""
        return options_name(self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A variant that may not ship, and why, as in "failed the numeric check"; `error` is its largest relative one.

    `level` is None where it is not known any more.
    """

    variant: str
    level: Level | None
    why: str
    error: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredVariant:
    """An artifact with run options on a device and its rounds; those that failed a run or check are not handed in."""

    device: str
    artifact: Artifact
    options: RunOptions
    group: RunGroup


def choose(
    target: Target,
    artifacts: Sequence[Artifact],
    measured: Sequence[MeasuredVariant],
    devices: Mapping[str, DeviceFacts],
    rule: DecisionRule,
    rejected: Sequence[Rejected] = (),
) -> Choice | None:
    """The choice for one model and target; None where no artifact may ship at all.

    Among what was measured on devices like the target the fastest wins; of those that are not surely slower than it
    and whose median is within the margin of its own, the simplest to ship (see `plainness`). Nothing measured there:
    the most optimized one, on the CPU. `rejected` are the model's other variants, for the reason.
    """
    fitting = [m for m in measured if suits(target, devices[m.device]) and ranks(m.group) and describe(m.group)]
    if fitting:
        return _fastest(target, fitting, rule)
    return _advised(target, artifacts, rejected)


def suits(target: Target, facts: DeviceFacts) -> bool:
    """Whether a device stands for a target: the platform, one of its ABIs, at least its lowest API level."""
    abis = {abi_of(abi) for abi in facts.abis}
    wanted = {abi_of(abi) for abi in target.abis}
    return (
        facts.platform == target.platform
        and (not wanted or bool(abis & wanted))
        and not (target.min_api_level and 0 < facts.api_level < target.min_api_level)
    )


def plainness(artifact: Artifact, options: RunOptions) -> tuple[int, int, int, str]:
    """Orders what is equally fast: fewer settings in the app, fewer bytes, then by name, so that choices are stable."""
    settings = len(artifact.session_options) + len(options.session_config) + len(options.provider_options)
    return settings + (options.provider != "cpu"), artifact.size_bytes, len(options.flags), artifact.variant.name


def _median(measured: MeasuredVariant) -> float:
    statistics = describe(measured.group)
    return statistics.median_ns if statistics else float("inf")


def _fastest(target: Target, fitting: list[MeasuredVariant], rule: DecisionRule) -> Choice:
    best = min(fitting, key=_median)
    compared = {id(m): compare(m.group, best.group, rule) for m in fitting if m is not best}
    verdicts = {key: found.verdict if found else None for key, found in compared.items()}
    rivals = [m for m in fitting if m is best or verdicts[id(m)] is not Verdict.SLOWER]
    tied = [m for m in rivals if _median(m) <= (1 + rule.margin) * _median(best)]
    chosen = min(tied, key=lambda m: plainness(m.artifact, m.options))
    open_ = {id(m) for m in rivals if m is not best and verdicts[id(m)] is not Verdict.SAME}
    undecided = [m for m in rivals if m is not chosen and (id(m) in open_ or (m is best and id(chosen) in open_))]
    reason = f"the fastest of {len(fitting)} measured on {chosen.device}"
    if len(tied) > 1:
        reason = (
            f"measured on {chosen.device}: statistically tied with the fastest; simplest of the {len(tied)} tied "
            f"ones of {len(fitting)}"
        )
    if more := sum(all(m is not one for one in tied) for m in undecided):
        reason += f"; not decidable: {more} more cannot be told from it, measure again with more rounds"
    names = tuple(f"{m.artifact.variant.name}/{options_name(m.options)}" for m in undecided)
    return Choice(target=target, artifact=chosen.artifact, options=chosen.options, reason=reason, measured=True,
                  device=chosen.device, undecided=names)  # fmt: skip


def _advised(target: Target, artifacts: Sequence[Artifact], rejected: Sequence[Rejected]) -> Choice | None:
    plain = [a for a in artifacts if a.variant.style is Style.FIXED and not a.variant.providers]
    candidates = plain or list(artifacts)
    if not candidates:
        return None
    chosen = min(candidates, key=_advice)
    where = f"{target.platform.value} {'/'.join(target.abis)}".strip()
    reason = f"not measured on {_a(where)}; {_why_this(chosen, candidates, rejected)}"
    return Choice(target=target, artifact=chosen, options=RunOptions(), reason=reason, measured=False)


def _advice(artifact: Artifact) -> tuple[bool, int, str]:
    """The best advised first: a model in its own precision, because nobody knows here what another one costs it."""
    variant = artifact.variant
    return bool(variant.precision), ADVISED_LEVELS.index(variant.level), variant.name


def _why_this(chosen: Artifact, candidates: Sequence[Artifact], rejected: Sequence[Rejected]) -> str:
    """Why an unmeasured artifact and no other: what was better and may not ship, else what speaks for its level."""
    rank = ADVISED_LEVELS.index(chosen.variant.level)
    better = [one for one in rejected if one.level and ADVISED_LEVELS.index(one.level) < rank]
    if better:
        return f"the most optimized that may ship: {rejections(better)}"
    if chosen.variant.level is Level.ALL:
        return "level all is the default of ONNX Runtime's own converter"
    if len(candidates) == 1:
        return "the only one that the config asks for and that may ship"
    return "the most optimized that the config asks for"


def rejections(rejected: Sequence[Rejected]) -> str:
    """Why variants may not ship, in one line: those of one reason together, with the largest error among them."""
    groups: dict[str, list[Rejected]] = {}
    for one in rejected:
        groups.setdefault(one.why, []).append(one)
    parts = []
    for why, group in groups.items():
        errors = [one.error for one in group if one.error is not None]
        number = f" (largest relative error {max(errors):.2g})" if errors else ""
        parts.append(f"{', '.join(one.variant for one in group)} {why}{number}")
    return "; ".join(parts)


def _a(text: str) -> str:
    return f"an {text} device" if text[:1] in "aeiou" else f"a {text} device"
