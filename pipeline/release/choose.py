"""Chooses what ships to each target: the fastest that was measured there and checked, or what is advised."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from device_runner import safe_text
from device_runner.device import DeviceFacts
from device_runner.spec import RunOptions
from pipeline import config as configs
from pipeline.campaign import record as campaign_record
from pipeline.campaign import run_options
from pipeline.campaign import tuned as campaign_tuned
from pipeline.campaign.statistics import compare as run_compare
from pipeline.campaign.statistics import groups as run_groups
from pipeline.core import abis as core_abis
from pipeline.core import variant as core_variant
from pipeline.core.variant import Artifact, Level, Style

ADVISED_LEVELS = (Level.ALL, Level.LAYOUT, Level.EXTENDED, Level.BASIC, Level.NONE)
"""For the CPU: the most optimized graph. `all` is what ONNX Runtime's own converter makes by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What ships to a target for a model, and why."""

    target: configs.Target
    artifact: Artifact
    options: RunOptions
    reason: str
    measured: bool
    device: str = ""
    """Where it was measured: of several devices the one on which it loses most, else takes longest."""
    classes: tuple[campaign_tuned.TunedClass, ...] = ()
    """The classes of devices that it was found to be best for; () where no search told them apart."""
    undecided: tuple[str, ...] = ()
    """VARIANT/RUN of others that were shown neither slower than the best nor the same: more rounds may decide."""
    slower: Mapping[str, run_compare.Comparison] = field(default_factory=dict)
    """By device, the worst first: how much longer it takes than what is fastest there."""

    @property
    def run(self) -> str:
        """The name of its run options."""
        return run_options.options_name(self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A variant that may not ship, and why, as in "failed the numeric check"; `error` is its largest relative one.

    `level` is None where it is not known any more.
    """

    variant: str
    level: Level | None
    why: str
    error: float | None = None


class Contender(NamedTuple):
    """What was run on a device, its artifact and its rounds; those that failed a run or check are not handed in."""

    run: campaign_record.RecordedRun
    artifact: Artifact
    group: run_groups.RunGroup


def choose(
    target: configs.Target,
    artifacts: Sequence[Artifact],
    measured: Sequence[Contender],
    devices: Mapping[str, DeviceFacts],
    rule: run_compare.DecisionRule,
    rejected: Sequence[Rejected] = (),
) -> Choice | None:
    """The choice for one model and target; None where no artifact may ship at all.

    On each device like the target, a candidate's median is divided by the smallest one there; the candidate wins whose
    largest ratio is smallest, among those that ran on the most devices. Of those that are on no device surely slower
    than it, and everywhere within the margin of its median, the simplest ships (see `plainness`). Nothing measured
    there: the most optimized one, on the CPU. `rejected` are the model's other variants, for the reason.
    """
    fastest: dict[str, run_groups.RunGroup] = {}
    by_name: dict[str, list[Contender]] = {}
    for contender in _contenders(target, measured, devices):
        run, group = contender.run, contender.group
        fastest[run.device] = min(fastest.get(run.device, group), group, key=_median)
        name = f"{contender.artifact.variant.name}/{run_options.options_name(run.options)}"
        by_name.setdefault(name, []).append(contender)
    if by_name:
        # The candidate whose worst ratio to the fastest of a device is smallest, the simplest where several are tied
        candidates = [_Candidate(name, contenders, fastest) for name, contenders in by_name.items()]
        best = min(candidates, key=lambda candidate: (len(candidate.missing), candidate.ratios[candidate.worst]))
        verdicts = _verdicts(candidates, best, rule)
        # One whose medians are as good, and whose mean or 90th percentile is shown to be better
        steadier = [
            candidate
            for candidate in candidates
            if run_compare.Verdict.FASTER in verdicts[candidate.name]
            and verdicts[candidate.name] <= NO_WORSE
            and candidate.within(best, rule.margin)
        ]
        if steadier:
            best = min(steadier, key=lambda candidate: (len(candidate.missing), candidate.ratios[candidate.worst]))
            verdicts = _verdicts(candidates, best, rule)
        rivals = [candidate for candidate in candidates if candidate is best or not verdicts[candidate.name] & WORSE]
        tied = [rival for rival in rivals if rival.within(best, rule.margin)]
        chosen = min(tied, key=lambda candidate: plainness(candidate.artifact, candidate.options))
        open_ = {
            rival.name for rival in rivals if rival is not best and verdicts[rival.name] != {run_compare.Verdict.SAME}
        }
        undecided = [
            rival
            for rival in rivals
            if rival is not chosen and (rival.name in open_ or (rival is best and chosen.name in open_))
        ]
        slower = _slower(chosen, fastest, rule)
        where, several, number = _listed(tuple(fastest)), len(fastest) > 1, len(candidates)
        if len(tied) > 1:
            reason = f"measured on {where}: statistically tied with the {'best' if several else 'fastest'}; "
            reason += f"simplest of the {len(tied)} tied ones of {number}"
            reason += f"; worst device {chosen.worst}" if several else ""
        elif not several:
            reason = f"the fastest of {number} measured on {where}"
        elif chosen.ratios[chosen.worst] == 1 and not chosen.missing:
            reason = f"the fastest of {number} on each of {where}"
        else:
            reason = f"of {number} measured on {where} it loses least on its worst device, {chosen.worst}"
        if slower:
            texts = [slower_text(device, comparison) for device, comparison in slower.items()]
            more = f" and on {len(texts) - MOST_NAMED} more devices" if len(texts) > MOST_NAMED else ""
            reason += f"; slower than another: {', '.join(texts[:MOST_NAMED])}{more}"
        if chosen.missing:
            reason += f"; without a sound run on {_listed(chosen.missing)}"
        if more_open := sum(candidate not in tied for candidate in undecided):
            reason += f"; not decidable: {more_open} more cannot be told from it, measure again with more rounds"
        return Choice(
            target=target,
            artifact=chosen.artifact,
            options=chosen.options,
            reason=reason,
            measured=True,
            device=chosen.worst,
            undecided=tuple(candidate.name for candidate in undecided),
            slower=slower,
        )
    return _advised(target, artifacts, rejected)


WORSE = frozenset({run_compare.Verdict.SLOWER, run_compare.Verdict.MIXED})
"""Verdicts by which a run is shown to be slower, be it by its median, mean or 90th percentile."""
NO_WORSE = frozenset({run_compare.Verdict.FASTER, run_compare.Verdict.SAME, run_compare.Verdict.NOT_SHOWN, None})


def _slower(
    chosen: "_Candidate", fastest: Mapping[str, run_groups.RunGroup], rule: run_compare.DecisionRule
) -> dict[str, run_compare.Comparison]:
    """The devices where another was shown to be faster, or is so by more than the margin, the worst first."""
    slower: dict[str, run_compare.Comparison] = {}
    for device in sorted(chosen.groups, key=lambda device: -chosen.ratios[device]):
        group, beside, ratio = chosen.groups[device], fastest[device], chosen.ratios[device]
        comparison = run_compare.compare(group, beside, rule) or run_compare.Comparison(
            baseline=beside.key,
            ratio=ratio,
            low=None,
            high=None,
            rounds=1,
            margin=rule.margin,
            verdict=run_compare.Verdict.NOT_SHOWN,
        )
        if group is not beside and (comparison.verdict in WORSE or ratio > 1 + rule.margin):
            slower[device] = comparison
    return slower


def _verdicts(
    candidates: "Sequence[_Candidate]", best: "_Candidate", rule: run_compare.DecisionRule
) -> dict[str, set[run_compare.Verdict | None]]:
    """What pairs of rounds say of each candidate beside the best, on all devices where both ran; None without pairs."""
    verdicts: dict[str, set[run_compare.Verdict | None]] = {}
    for other in candidates:
        pairs = ((group, best.groups.get(device)) for device, group in other.groups.items() if other is not best)
        compared = [run_compare.compare(group, beside, rule) for group, beside in pairs if beside]
        verdicts[other.name] = {comparison.verdict if comparison else None for comparison in compared}
    return verdicts


def suits(target: configs.Target, facts: DeviceFacts) -> bool:
    """Whether a device stands for a target: the platform, one of its ABIs, at least its lowest API level."""
    abis = {core_abis.abi_of(abi) for abi in facts.abis}
    target_abis = {core_abis.abi_of(abi) for abi in target.abis}
    return (
        facts.platform == target.platform
        and (not target_abis or bool(abis & target_abis))
        and not (target.min_api_level and 0 < facts.api_level < target.min_api_level)
    )


def plainness(artifact: Artifact, options: RunOptions) -> tuple[int, int, int, str]:
    """Orders what is equally fast: fewer settings in the app, fewer bytes, then by name, so that choices are stable."""
    settings = len(artifact.session_options) + len(options.session_config) + len(options.provider_options)
    return settings + (not options.on_cpu), artifact.total_bytes, len(options.flags), artifact.variant.name


def _contenders(
    target: configs.Target, measured: Iterable[Contender], devices: Mapping[str, DeviceFacts]
) -> Iterator[Contender]:
    """Those from devices like the target whose times may be compared."""
    for contender in measured:
        group = contender.group
        if suits(target, devices[contender.run.device]) and run_groups.comparable(group) and run_groups.describe(group):
            yield contender


def _median(group: run_groups.RunGroup) -> float:
    statistics = run_groups.describe(group)
    return statistics.median_ns if statistics else math.inf


class _Candidate:
    """An artifact with run options on every device of a target where it was measured.

    `ratios` are its medians relative to the smallest of the same device: latencies of two devices never meet.
    """

    def __init__(
        self,
        name: str,
        contenders: Sequence[Contender],
        fastest: Mapping[str, run_groups.RunGroup],
    ) -> None:
        self.name = name
        self.artifact = contenders[0].artifact
        self.options = contenders[0].run.options
        self.groups = groups = {contender.run.device: contender.group for contender in contenders}
        self.ratios = {device: _median(group) / _median(fastest[device]) for device, group in groups.items()}
        self.missing = [device for device in fastest if device not in groups]
        self.worst = max(groups, key=lambda device: (self.ratios[device], _median(groups[device])))

    def within(self, other: "_Candidate", margin: float) -> bool:
        """Whether it takes at most a margin longer than another, wherever that was measured."""
        both = [(self.groups.get(device), group) for device, group in other.groups.items()]
        return all(group and _median(group) <= (1 + margin) * _median(beside) for group, beside in both)


def slower_text(device: str, comparison: run_compare.Comparison) -> str:
    """How a choice does on a device where another is faster: on adb:1 1.09 times all-fixed/cpu (1.08 to 1.10)."""
    tail = comparison.decisive
    low, high = (tail.low, tail.high) if tail else (comparison.low, comparison.high)
    bounds = f" ({low:.2f} to {high:.2f})" if low is not None and high is not None else ""
    by = f" by the {tail.of.value}" if tail else ""
    return f"on {safe_text.visible(device)} {comparison.deciding_ratio:.2f} times {comparison.baseline}{by}{bounds}"


MOST_NAMED = 3
"""Devices that a reason names: the evidence has them all."""


def _listed(devices: Sequence[str]) -> str:
    if len(devices) > MOST_NAMED:
        return f"{len(devices)} devices"
    *first, last = devices
    return f"{', '.join(first)} and {last}" if first else last


def _advised(target: configs.Target, artifacts: Sequence[Artifact], rejected: Sequence[Rejected]) -> Choice | None:
    plain = [a for a in artifacts if a.variant.style is Style.FIXED and not a.variant.providers]
    candidates = plain or list(artifacts)
    if not candidates:
        return None
    chosen = min(candidates, key=lambda candidate: _advice(candidate, candidates))
    # Why it and no other: what was better and may not ship, else what speaks for its level
    rank = ADVISED_LEVELS.index(chosen.variant.level)
    better = [other for other in rejected if other.level and ADVISED_LEVELS.index(other.level) < rank]
    above = [candidate for candidate in candidates if ADVISED_LEVELS.index(candidate.variant.level) < rank]
    larger = [candidate for candidate in above if _fused_alike(candidate, chosen)]
    expanded = [candidate for candidate in above if candidate.variant.precision == chosen.variant.precision]
    expanded = [candidate for candidate in expanded if _expanded(candidate, candidates)]
    if expanded:
        ratio = expanded[0].total_bytes / chosen.total_bytes
        why = (
            f"level {expanded[0].variant.level} makes it {ratio:.1f} times as large, because it writes constants out "
            "that are stored in fewer bits: measure on a device to learn whether that is faster"
        )
    elif better:
        why = f"the most optimized that may ship: {rejections(better)}"
    elif larger:
        ratio = larger[0].total_bytes / chosen.total_bytes
        why = f"with the same fusions level {larger[0].variant.level} makes it {ratio:.1f} times as large"
    elif chosen.variant.level is Level.ALL:
        why = "level all is the default of ONNX Runtime's own converter"
    elif len(candidates) == 1:
        why = "the only one that the config asks for and that may ship"
    else:
        why = "the most optimized that the config asks for"
    where = f"{target.platform.value} {'/'.join(target.abis)}".strip()
    reason = f"not measured on {'an' if where[0] in 'aeiou' else 'a'} {where} device; {why}"
    return Choice(target=target, artifact=chosen, options=RunOptions(), reason=reason, measured=False)


SAME_FUSIONS = frozenset({Level.ALL, Level.LAYOUT, Level.EXTENDED})
"""What these levels fuse is the same; they differ in layouts, and in half weights that one of them widens to float."""
MUCH_LARGER = 1.25
"""So many times the bytes are no longer equal."""
TOO_LARGE = 1.5
"""So many times the bytes, of constants stored in 8 or 16 bits, are too many for a gain that nobody measured."""


def _advice(artifact: Artifact, candidates: Sequence[Artifact]) -> tuple[bool, bool, bool, int, str]:
    """The best advised first: a model in its own precision, because nobody knows here what another one costs it."""
    variant = artifact.variant
    alike = (candidate.total_bytes for candidate in candidates if _fused_alike(candidate, artifact))
    larger = artifact.total_bytes > MUCH_LARGER * min(alike, default=artifact.total_bytes)
    rank = ADVISED_LEVELS.index(variant.level)
    return bool(variant.precision), _expanded(artifact, candidates), larger, rank, variant.name


def _expanded(artifact: Artifact, candidates: Sequence[Artifact]) -> bool:
    """Whether it has far more bytes than the smallest in its precision."""
    alike = (
        candidate.total_bytes for candidate in candidates if candidate.variant.precision == artifact.variant.precision
    )
    least = min(alike, default=artifact.total_bytes)
    return artifact.total_bytes > max(TOO_LARGE * least, least + core_variant.GREW_BYTES)


def _fused_alike(artifact: Artifact, other: Artifact) -> bool:
    levels = {artifact.variant.level, other.variant.level}
    return artifact.variant.precision == other.variant.precision and levels <= SAME_FUSIONS


def rejections(rejected: Sequence[Rejected]) -> str:
    """Why variants may not ship, in one line: those of one reason together, with the largest error among them."""
    groups: dict[str, list[Rejected]] = {}
    for rejection in rejected:
        groups.setdefault(rejection.why, []).append(rejection)
    parts = []
    for why, group in groups.items():
        errors = [rejection.error for rejection in group if rejection.error is not None]
        number = f" (largest relative error {max(errors):.2g})" if errors else ""
        parts.append(f"{', '.join(rejection.variant for rejection in group)} {why}{number}")
    return "; ".join(parts)
