"""Chooses what ships to each target: the fastest that was measured there and checked, or what is advised."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from device_runner.device import DeviceFacts
from device_runner.spec import RunOptions
from pipeline.campaign import Lane
from pipeline.config import Target
from pipeline.run_options import options_name
from pipeline.summary import RunGroup, Verdict, compare, describe, ranks
from pipeline.variant import Artifact, Level, Style

ADVISED_LEVELS = (Level.ALL, Level.LAYOUT, Level.EXTENDED, Level.BASIC, Level.NONE)
"""For the CPU: the most optimized graph (ONNX Runtime's documentation of the ORT format, all releases)."""

ARCHITECTURES = {"amd64": "x86_64", "aarch64": "arm64-v8a", "arm64": "arm64-v8a", "armv7l": "armeabi-v7a"}
"""Names that machines give themselves to the ABI names that configs use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What ships to a target for a model, and why."""

    target: Target
    artifact: Artifact
    options: RunOptions
    reason: str
    measured: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A lane with its rounds; only lanes that ran without failure and passed their check are handed in."""

    lane: Lane
    group: RunGroup


def choose(
    target: Target,
    artifacts: Sequence[Artifact],
    measured: Sequence[Measured],
    devices: Mapping[str, DeviceFacts],
    margin: float,
) -> Choice | None:
    """The choice for one model and target; None where no artifact may ship at all.

    Among what was measured on devices like the target the fastest wins; of those that are not surely slower than it,
    the simplest to ship (see `plainness`). Nothing measured there: the documentation's advice for the CPU.
    """
    fitting = [m for m in measured if suits(target, devices[m.lane.device]) and ranks(m.group) and describe(m.group)]
    if fitting:
        return _fastest(target, fitting, margin)
    return _advised(target, artifacts)


def suits(target: Target, facts: DeviceFacts) -> bool:
    """Whether a device stands for a target: the platform, one of its ABIs, at least its lowest API level."""
    abis = {ARCHITECTURES.get(abi, abi) for abi in facts.abis}
    wanted = {ARCHITECTURES.get(abi, abi) for abi in target.abis}
    return (
        facts.platform == target.platform
        and (not wanted or bool(abis & wanted))
        and not (target.min_api_level and 0 < facts.api_level < target.min_api_level)
    )


def plainness(artifact: Artifact, options: RunOptions) -> tuple[int, int, int, str]:
    """Orders what is equally fast: fewer settings in the app, fewer bytes, then by name, so that choices are stable."""
    settings = len(artifact.session_options) + len(options.session_config) + len(options.provider_options)
    return settings + (options.provider != "cpu"), artifact.size_bytes, len(options.flags), artifact.variant.name


def _median(measured: Measured) -> float:
    statistics = describe(measured.group)
    return statistics.median_ns if statistics else float("inf")


def _fastest(target: Target, fitting: list[Measured], margin: float) -> Choice:
    best = min(fitting, key=_median)
    rivals = [m for m in fitting if m is best or not _surely_slower(m, best, margin)]
    chosen = min(rivals, key=lambda m: plainness(m.lane.artifact, m.lane.options))
    others = len(rivals) - 1
    reason = f"the fastest of {len(fitting)} measured on {chosen.lane.device}" if not others else (
        f"measured on {chosen.lane.device}: {others} more of {len(fitting)} cannot be told from the fastest, "
        "and this is the plainest to ship"
    )  # fmt: skip
    return Choice(
        target=target, artifact=chosen.lane.artifact, options=chosen.lane.options, reason=reason, measured=True
    )


def _surely_slower(one: Measured, best: Measured, margin: float) -> bool:
    comparison = compare(one.group, best.group, margin)
    return comparison is not None and comparison.verdict is Verdict.SLOWER


def _advised(target: Target, artifacts: Sequence[Artifact]) -> Choice | None:
    plain = [a for a in artifacts if a.variant.style is Style.FIXED and not a.variant.providers]
    candidates = plain or list(artifacts)
    if not candidates:
        return None
    chosen = min(candidates, key=lambda a: (ADVISED_LEVELS.index(a.variant.level), a.variant.name))
    options = RunOptions()
    where = f"{target.platform.value} {'/'.join(target.abis)}".strip()
    reason = (
        f"not measured on {_a(where)}: ONNX Runtime's documentation advises {chosen.variant.level.value} "
        f"for {options_name(options)}"
    )
    return Choice(target=target, artifact=chosen, options=options, reason=reason, measured=False)


def _a(text: str) -> str:
    return f"an {text} device" if text[:1] in "aeiou" else f"a {text} device"
