"""Base and candidate measured in alternating rounds on the same devices: the gate, and the search for a first step."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from device_runner.errors import RunnerError
from device_runner.files import sha256
from device_runner.result import utc_now
from pipeline.campaign.measure import CampaignPlan, UnfinishedDevice, runs_left
from pipeline.campaign.plan import Inputs, PlannedRun, denied_here, known_denied, planned_id
from pipeline.campaign.provenance import SYSTEM, changes, facts_of_place, facts_of_run
from pipeline.campaign.record import CampaignRecord, Host, RunRecord, rounds_of
from pipeline.campaign.statistics import describe, ranks, ratio_interval
from pipeline.campaign.statistics.groups import paired_log_ratios
from pipeline.config import ConditionsConfig, MeasureConfig
from pipeline.core.errors import ConfigError
from pipeline.core.progress import Progress
from pipeline.features.pairs.comparison import ALARMS
from pipeline.features.pairs.history import History
from pipeline.features.pairs.report import (
    BisectionEnd,
    BisectionReport,
    BisectionRow,
    GatedRun,
    GateOutcome,
    GateReport,
    PositionStanding,
)
from pipeline.features.pairs.sources import Pair, PairSource, paired, require_unchanged, suspected_pairs
from pipeline.job.bench import Bench, bench, libraries_by_device, opened, require_library


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOrder:
    """How pairs are measured; `least` is the share by which a candidate must be slower at least."""

    measure: MeasureConfig
    least: float = 0.01
    conditions: ConditionsConfig | None = field(default_factory=ConditionsConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPair:
    """The two runs of a pair on a device, and its row as it is before any round: with a note where none is run."""

    row: GatedRun
    base: PlannedRun
    candidate: PlannedRun


def gate(
    base: PairSource, candidate: PairSource, histories: Sequence[History] | None, order: PairOrder, *, folder: Path,
    devices: Sequence[str], progress: Progress, wait_seconds: float = 0.0,
) -> GateReport:  # fmt: skip
    """Measure in pairs what histories suspect, without them everything, and judge.

    Without devices on `local`, or with histories on those that they suspect. `folder` has the store of paired runs.
    Raises what opening devices, stores and sources raises.
    """
    report = GateReport(
        base=str(base.path), candidate=str(candidate.path), least=order.least, confidence=1 - ALARMS,
        histories=tuple(histories or ()),
    )  # fmt: skip
    quiet = [row for row in report.histories if not row.suspicion]
    if histories is None:
        pairs, only_base, only_candidate = paired(base, candidate)
        placed, devices = [("", pair) for pair in pairs], devices or ("local",)
    else:
        suspected = [row for row in histories if row.suspicion]
        placed, only_base, only_candidate = suspected_pairs(suspected, base, candidate)
        devices = devices or tuple(dict.fromkeys(device for device, _ in placed))
    not_suspected = tuple(
        GatedRun(
            device=row.device, model=row.model, base=row.run, candidate=row.run, outcome=GateOutcome.NOT_SUSPECTED,
            note=row.note,
        )
        for row in quiet
    )  # fmt: skip
    report = msgspec.structs.replace(report, rows=not_suspected, only_base=only_base, only_candidate=only_candidate)
    if not placed:
        return report
    require_unchanged(run for _, pair in placed for run in (pair.base, pair.candidate))
    with bench(opened(devices, wait_seconds), folder, progress) as here:
        # A pair of no device is meant for each.
        placed = [(name, pair) for device, pair in placed for name in ([device] if device else here.devices)]
        ready = [(device, pair) for device, pair in placed if device in here.devices]
        rows, measured_at, left = measure_pairs(list(planned_pairs(ready, here)), order, here)
    reasons = {skipped.device: skipped.text for skipped in here.unusable}
    # A suspicion on a device that is not ready is neither confirmed nor refuted.
    away = tuple(
        _unmeasured(device, pair, reasons.get(device, "the device was not asked for"))
        for device, pair in placed
        if device not in here.devices
    )
    warnings = (
        *(f"{skipped.device}: {skipped.text}" for skipped in here.unusable),
        *(f"{device.device} was left before the end: {device.reason}" for device in left),
    )
    return msgspec.structs.replace(
        report, rows=(*rows, *away, *report.rows), measured_at=measured_at, warnings=warnings
    )


def _unmeasured(device: str, pair: Pair, note: str = "", outcome: GateOutcome = GateOutcome.NOT_COMPARED) -> GatedRun:
    return GatedRun(
        device=device, model=pair.model, base=pair.base.run_name, candidate=pair.candidate.run_name, outcome=outcome,
        note=note,
    )  # fmt: skip


def planned_pairs(pairs: Iterable[tuple[str, Pair]], here: Bench) -> Iterator[PlannedPair]:
    """Pairs as runs of the devices named with them: the same inputs for both, each with its own options and library."""
    entries = known_denied()
    for number, (device, pair) in enumerate(pairs):
        facts = here.facts[device]
        runs = []
        for role, run, source in (
            ("base", pair.base, pair.base_source),
            ("candidate", pair.candidate, pair.candidate_source),
        ):
            runs.append(
                replace(
                    run,
                    device=device,
                    model=pair.model,
                    variant=f"{role}:{run.variant}",
                    source=f"{pair.model}#{number}",
                    options=run.run_options,
                    session_options={},
                    library=libraries_by_device({device: facts}, source.targets, source.library)[device],
                    inputs=pair.candidate.inputs or pair.base.inputs or Inputs(),
                )
            )
        base, candidate = runs
        same = (base.sha256, base.options, base.library) == (candidate.sha256, candidate.options, candidate.library)
        denied = next(
            (failure.message for run in runs if (failure := denied_here(run.options, facts, entries, run.sha256))), ""
        )
        row = (
            _unmeasured(device, pair, "the same file, options and library", GateOutcome.UNCHANGED)
            if same
            else _unmeasured(device, pair, denied)
        )
        yield PlannedPair(row=row, base=base, candidate=candidate)


def plan_pairs(pairs: Sequence[PlannedPair], order: PairOrder, here: Bench) -> CampaignPlan:
    """The campaign of the pairs that are to be run; raises as `require_library`.

    Its id follows from the files, options, libraries, devices and settings: what differs in any of these is measured
    anew, everything else is stored once.
    """
    runs = [run for pair in pairs if not pair.row.note for run in (pair.base, pair.candidate)]
    for library in dict.fromkeys(run.library for run in runs):
        require_library([here.devices[run.device] for run in runs if run.library == library], library)
    what = []
    for run in sorted(runs, key=lambda run: run.key):
        try:
            library = here.devices[run.device].library_for(run.library).sha256
        except RunnerError:  # its runs say why
            library = run.library or ""
        system = facts_of_place(run.device, here.facts[run.device], Host()).get(SYSTEM, "")
        inputs = run.inputs or Inputs()
        data = [sha256(Path(tensor.file)) for tensor in inputs.tensors]
        what.append((run.key, run.sha256, library, system, inputs.dimensions, data))
    measure = msgspec.structs.replace(order.measure, rounds=1)  # more rounds go on with the campaign
    digest = hashlib.sha256(msgspec.json.encode((what, measure), order="sorted")).hexdigest()
    return CampaignPlan(
        campaign=f"gate-{digest[:24]}", planned_runs=runs, measure=order.measure, conditions=order.conditions
    )


def measure_pairs(
    pairs: Sequence[PlannedPair], order: PairOrder, here: Bench
) -> tuple[tuple[GatedRun, ...], str, Sequence[UnfinishedDevice]]:
    """Run what of some pairs is not stored yet: a row for each, when they were measured, and devices that were left."""
    plan = plan_pairs(pairs, order, here)
    records, left = here.measure(CampaignRecord(id=plan.campaign, name="gate", created_at=utc_now()), plan)
    confidence = 1 - ALARMS / max(1, len(plan.planned_runs) // 2)
    rows = []
    for pair in pairs:
        base, candidate = (records.get(planned_id(run), []) for run in (pair.base, pair.candidate))
        rows.append(pair.row if pair.row.note else judged(pair.row, base, candidate, order.least, confidence))
    return tuple(rows), here.store.campaign(plan.campaign).created_at if plan.planned_runs else "", left


def judged(
    row: GatedRun, base: Sequence[RunRecord], candidate: Sequence[RunRecord], least: float, confidence: float
) -> GatedRun:
    """Slower where the interval of the ratio lies above 1 by more than `least`, over the rounds that both have; where
    they are too few, or times are not a phone's, it is not compared.
    """
    groups = [rounds_of(records) for records in (base, candidate)]
    statistics = [describe(group) for group in groups]
    row = msgspec.structs.replace(
        row,
        base_median_ns=statistics[0].median_ns if statistics[0] else None,
        candidate_median_ns=statistics[1].median_ns if statistics[1] else None,
        changes=changes(facts_of_run(base[0]), facts_of_run(candidate[0])) if base and candidate else (),
    )
    if not all(map(ranks, groups)):
        return msgspec.structs.replace(row, note="a phone's library ran on another machine: its times rank nothing")
    failures = (
        f"{role}: {record.result.failure.kind.value}: {record.result.failure.message}"
        for role, records in (("base", base), ("candidate", candidate))
        for record in records
        if record.result.failure
    )
    failure = next(failures, "")
    logs = paired_log_ratios(groups[1], groups[0]).logs
    interval = ratio_interval(logs, confidence)
    if interval is None:
        outcome = GateOutcome.FAILED if failure else GateOutcome.NOT_COMPARED
        note = failure or f"{len(logs)} rounds are too few for an interval"
        return msgspec.structs.replace(row, outcome=outcome, rounds=len(logs), note=note)
    slower, faster = interval.low > 1 + least, interval.high < 1 - least
    outcome = GateOutcome.REGRESSION if slower else GateOutcome.FASTER if faster else GateOutcome.NOT_SHOWN
    notes = [] if slower or faster else [f"at most {max(0.0, interval.high - 1):.1%} slower"]
    notes += [f"some rounds failed: {failure}"] if failure else []
    return msgspec.structs.replace(
        row, outcome=outcome, rounds=len(logs), ratio=interval.ratio, low=interval.low, high=interval.high,
        note="; ".join(notes),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectionStep:
    """What to do: measure `measure` next, or stop for the reason `end`; `good` and `slower` are the bounds so far."""

    good: int
    slower: int
    measure: int | None = None
    end: BisectionEnd | None = None


def next_step(known: Mapping[int, PositionStanding], count: int) -> BisectionStep:
    """The next position to compare with the first, from those that are known of `count` in order.

    The last is compared first: without a difference there is nothing to look for. Then the middle one between the last
    good and the first slower position, or of those the nearest to it that is not known yet.
    """
    last = count - 1
    if last not in known:
        return BisectionStep(good=0, slower=last, measure=last)
    if known[last] is not PositionStanding.SLOWER:
        measurable = known[last] is not PositionStanding.SKIPPED
        end = BisectionEnd.NO_DIFFERENCE if measurable else BisectionEnd.NOT_MEASURABLE
        return BisectionStep(good=0, slower=last, end=end)
    slower = min(place for place, standing in known.items() if standing is PositionStanding.SLOWER)
    goods = [0, *(place for place, standing in known.items() if standing is PositionStanding.GOOD)]
    if max(goods) > slower:
        return BisectionStep(good=max(goods), slower=slower, end=BisectionEnd.NOT_MONOTONE)
    good = max(goods)
    open_places = [place for place in range(good + 1, slower) if place not in known]
    if open_places:
        middle = (good + slower) / 2
        return BisectionStep(good=good, slower=slower, measure=min(open_places, key=lambda at: abs(at - middle)))
    end = BisectionEnd.FOUND if slower == good + 1 else BisectionEnd.RANGE
    return BisectionStep(good=good, slower=slower, end=end)


def bisect(
    sources: Sequence[PairSource], libraries: Sequence[str | None], order: PairOrder, *, device: str, folder: Path,
    progress: Progress, model: str = "",
) -> BisectionReport:  # fmt: skip
    """Compare artifacts with the first, in pairs, until `next_step` says why it ends; the step that it found is then
    measured alone. What earlier bisections stored is known from the beginning.

    The way goes from the first artifact with the first library to the last with the last: artifacts first. Raises
    ConfigError for a source without the model or with several, for a list of one, and for several devices.
    """
    ways = [replace(source, library=libraries[0]) for source in sources]
    ways += [replace(sources[-1], library=library) for library in libraries[1:]]
    if len(ways) < 2:
        raise ConfigError(
            "there is nothing to bisect", where=str(sources[0].path), why="it needs a good end and a slower one",
            remedy="name two or more artifacts, or two or more libraries with --library, in their order",
        )  # fmt: skip
    names = tuple(" with ".join(filter(None, (str(way.path), way.library))) for way in ways)
    runs = [_only_run(way, model) for way in ways]
    require_unchanged(runs)
    with bench(opened((device,)), folder, progress) as here:
        if len(here.devices) > 1:
            raise ConfigError(
                f"{len(here.devices)} devices are meant", where=device, why="a bisection runs on one",
                remedy=f"name one of them with --device: {', '.join(here.devices)}",
            )  # fmt: skip
        (device,) = here.devices

        def plan(base: int, candidate: int) -> list[PlannedPair]:
            pair = Pair(
                base=runs[base], candidate=runs[candidate], base_source=ways[base], candidate_source=ways[candidate]
            )
            return list(planned_pairs([(device, pair)], here))

        def is_stored(place: int) -> bool:
            campaign = plan_pairs(plan(0, place), order, here)
            return not campaign.planned_runs or not runs_left(campaign, here.store).total()

        rows: dict[int, GatedRun] = {}
        known: dict[int, PositionStanding] = {}
        while (step := next_step(known, len(ways))).measure is not None:
            stored = [] if known else [place for place in range(1, step.measure) if is_stored(place)]
            for place in dict.fromkeys([step.measure, *stored]):
                ((rows[place],), _, _) = measure_pairs(plan(0, place), order, here)
                known[place] = _standing(rows[place], rows[len(ways) - 1], order.least)
        direct = rows.get(step.slower) if step.good == 0 else None
        if step.end is BisectionEnd.FOUND and step.good:
            ((direct,), _, _) = measure_pairs(plan(step.good, step.slower), order, here)
    return BisectionReport(
        device=device,
        positions=names,
        end=step.end or BisectionEnd.NOT_MEASURABLE,
        good=names[step.good],
        slower=names[step.slower],
        rows=tuple(
            BisectionRow(position=place, name=names[place], standing=known[place], ratio=row.ratio, low=row.low,
                         high=row.high, rounds=row.rounds, note=row.note)
            for place, row in sorted(rows.items())
        ),
        step=direct,
    )  # fmt: skip


def _only_run(source: PairSource, model: str) -> PlannedRun:
    """The only run of a source, or that of the model: what ships first, else the first planned run."""
    runs = [run for run in (source.shipped or source.planned).values() if model in ("", run.model)]
    if len({run.model for run in runs}) != 1:
        raise ConfigError(
            f"there is no model {model!r}" if model else "there are several models", where=str(source.path),
            why=f"it has {', '.join(dict.fromkeys(run.model for run in source.by_run.values())) or 'none'}",
            remedy="name one of them with --model",
        )  # fmt: skip
    return runs[0]


def _standing(row: GatedRun, end: GatedRun, least: float) -> PositionStanding:
    """Slower as a gate says it; good where at most half of the whole slowdown is possible, for the end none."""
    if row.outcome is GateOutcome.REGRESSION:
        return PositionStanding.SLOWER
    if row.outcome is GateOutcome.UNCHANGED:
        return PositionStanding.GOOD
    if row.ratio is None or row.high is None:
        return PositionStanding.SKIPPED
    limit = 1 + least if row is end else (end.ratio or 1.0) ** 0.5
    return PositionStanding.GOOD if row.high < limit else PositionStanding.UNDECIDED
