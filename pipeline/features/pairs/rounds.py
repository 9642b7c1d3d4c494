"""Pairs as runs in alternating rounds: one campaign whose id follows from what is run, and a verdict for each pair."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from device_runner import files as runner_files
from device_runner import result as run_result
from device_runner.errors import RunnerError
from device_runner.spec import RunOptions
from pipeline import config as configs
from pipeline.campaign import changed_facts
from pipeline.campaign import denied as campaign_denied
from pipeline.campaign import measure as campaign_measure
from pipeline.campaign import planned as campaign_planned
from pipeline.campaign import record as campaign_record
from pipeline.campaign.record import CampaignRecord, RunRecord
from pipeline.campaign.statistics import compare as run_compare
from pipeline.campaign.statistics import groups as run_groups
from pipeline.campaign.statistics import sustained as sustained_load
from pipeline.features.pairs.pairing import Asked
from pipeline.features.pairs.report import ALARMS, GatedRun, GateOutcome, failure_text, note_of
from pipeline.job import bench as job_bench


@dataclass(frozen=True, slots=True)
class PairPlan:
    """A pair on a device before any round: its row, and what is run; nothing where the row says all."""

    row: GatedRun
    base: campaign_planned.PlannedRun
    candidate: campaign_planned.PlannedRun
    decided: bool = False

    @property
    def runs(self) -> tuple[campaign_planned.PlannedRun, ...]:
        """Base and candidate, where they are to be measured."""
        return () if self.decided else (self.base, self.candidate)


@dataclass(frozen=True, slots=True)
class MeasuredPairs:
    """The rows of pairs in their order, when their rounds began ("" without any), and why devices were left."""

    rows: tuple[GatedRun, ...]
    measured_at: str
    left: dict[str, str]


class RunContent(NamedTuple):
    """What is run, wherever its files lie: two runs of the same are no pair."""

    sha256: str
    options: RunOptions
    library: str | None


def unmeasured_row(asked: Asked, note: str = "", outcome: GateOutcome = GateOutcome.NOT_COMPARED) -> GatedRun:
    """The row of a pair before its rounds, and for good where the pair is not run, for the reason in the note."""
    pair = asked.pair
    return GatedRun(
        device=asked.device,
        model=pair.model,
        base=pair.base.run.way,
        candidate=pair.candidate.run.way,
        outcome=outcome,
        note=note,
    )


def planned_pairs(
    pairs: Iterable[Asked], settings: configs.MeasureConfig, bench: campaign_measure.Bench
) -> Iterator[PairPlan]:
    """Pairs as runs of their devices, by mode: the same inputs for both, each with its own options and library."""
    entries = campaign_denied.known_denied()
    for asked in pairs:
        pair, device, facts = asked.pair, asked.device, bench.facts[asked.device]
        inputs = pair.candidate.run.inputs or pair.base.run.inputs  # the candidate's first, as its app is to come
        base, candidate = (
            replace(
                side.run,
                device=device,
                model=pair.model,
                variant=f"{role}:{side.run.variant}",
                options=side.run.run_options,
                session_options={},
                library=job_bench.libraries_by_device({device: facts}, side.source.targets, side.source.library)[
                    device
                ],
                inputs=inputs or campaign_planned.Inputs(),
            )
            for role, side in (("base", pair.base), ("candidate", pair.candidate))
        )
        if _content(base) == _content(candidate):
            row = unmeasured_row(asked, "the same file, options and library", GateOutcome.UNCHANGED)
            yield PairPlan(row, base, candidate, decided=True)
            continue
        denials = (campaign_denied.denied_here(run.options, facts, entries, run.sha256) for run in (base, candidate))
        if denied := next(filter(None, denials), None):
            yield PairPlan(unmeasured_row(asked, denied.what), base, candidate, decided=True)
            continue
        for mode in settings.modes:
            row = msgspec.structs.replace(unmeasured_row(asked), mode=mode)
            yield PairPlan(row, replace(base, mode=mode), replace(candidate, mode=mode))


def _content(run: campaign_planned.PlannedRun) -> RunContent:
    """What is run, with custom operators by their digests: each bundle has a file of them."""
    custom_ops = tuple(map(runner_files.sha256, map(Path, run.options.custom_ops)))
    return RunContent(run.sha256, msgspec.structs.replace(run.options, custom_ops=custom_ops), run.library)


def campaign_of(
    pairs: Sequence[PairPlan], settings: configs.MeasureConfig, bench: campaign_measure.Bench
) -> campaign_measure.CampaignPlan:
    """The campaign of the pairs that are to be run; raises as `require_library`.

    Its id follows from the files, options, libraries, devices and settings: what differs in any of these is measured
    anew, everything else is stored once.
    """
    runs = [run for pair in pairs for run in pair.runs]
    for library in dict.fromkeys(run.library for run in runs):
        job_bench.require_library([bench.devices[run.device] for run in runs if run.library == library], library)
    contents = []
    for run in sorted(runs, key=lambda run: run.text):
        try:
            library = bench.devices[run.device].library_for(run.library).sha256
        except RunnerError:  # its runs say why
            library = run.library or ""
        system = changed_facts.facts_of_place(run.device, bench.facts[run.device], campaign_record.Host()).get(
            changed_facts.SYSTEM, ""
        )
        inputs = run.inputs or campaign_planned.Inputs()
        data = [runner_files.sha256(Path(tensor.file)) for tensor in inputs.tensors]
        content = _content(run)
        contents.append((run.text, content.sha256, content.options, library, system, inputs.dimensions, data))
    one_round = msgspec.structs.replace(settings, rounds=1, sustained_rounds=1)  # more rounds go on with the campaign
    digest = hashlib.sha256(msgspec.json.encode((contents, one_round), order="sorted")).hexdigest()
    return campaign_measure.CampaignPlan(
        campaign=f"gate-{digest[:24]}", planned_runs=runs, measure=settings, conditions=configs.ConditionsConfig()
    )


def measure_pairs(
    pairs: Sequence[PairPlan], settings: configs.MeasureConfig, least: float, bench: campaign_measure.Bench
) -> MeasuredPairs:
    """Run what of some pairs is not stored yet, and judge each."""
    plan = campaign_of(pairs, settings, bench)
    campaign = CampaignRecord(id=plan.campaign, name="gate", created_at=run_result.utc_now())
    measured = bench.measure(campaign, plan)
    confidence = 1 - ALARMS / max(1, len(plan.planned_runs) // 2)  # Bonferroni: false alarms in all pairs together
    rows = []
    for pair in pairs:
        base, candidate = (measured.records.get(run.id, []) for run in (pair.base, pair.candidate))
        rows.append(pair.row if pair.decided else with_verdict(pair.row, base, candidate, least, confidence))
    measured_at = bench.store.campaign(plan.campaign).created_at if plan.planned_runs else ""
    return MeasuredPairs(tuple(rows), measured_at, measured.left)


def _groups(row: GatedRun, base: Sequence[RunRecord], candidate: Sequence[RunRecord]) -> list[run_groups.RunGroup]:
    """The latencies of base and candidate by round; of runs of minutes what is late in those that began as warm."""
    if not row.is_late:
        return [campaign_record.rounds_of(records) for records in (base, candidate)]
    usual = sustained_load.usual_start(record.result for record in (*base, *candidate))
    return [
        campaign_record.rounds_of(
            [record for record in records if sustained_load.began_as_usual(record.result, usual)],
            latencies_ns=sustained_load.late_ns,
        )
        for records in (base, candidate)
    ]


def with_verdict(
    row: GatedRun, base: Sequence[RunRecord], candidate: Sequence[RunRecord], least: float, confidence: float
) -> GatedRun:
    """Slower where the interval of the ratio of medians lies above 1 by more than `least`, over the rounds that both
    have, or where means or 90th percentiles are shown to be slower; where rounds are too few, or times rank nothing
    (`why_unranked`), it is not compared.
    """
    groups = _groups(row, base, candidate)
    statistics = [run_groups.describe(group) for group in groups]
    row = msgspec.structs.replace(
        row,
        base_median_ns=statistics[0].median_ns if statistics[0] else None,
        candidate_median_ns=statistics[1].median_ns if statistics[1] else None,
        changes=changed_facts.changes(changed_facts.facts_of_run(base[0]), changed_facts.facts_of_run(candidate[0]))
        if base and candidate
        else (),
        outcome=GateOutcome.NOT_COMPARED,  # until an interval says more
    )
    failures = (
        failure_text(role, record.result.failure)
        for role, records in (("base", base), ("candidate", candidate))
        for record in records
        if record.result.failure
    )
    failure, unranked = next(failures, ""), next(filter(None, map(run_groups.why_unranked, groups)), "")
    row = _judged(row, groups[0], groups[1], least, confidence) if not unranked else row
    if row.ratio is None and failure and not unranked:
        row = msgspec.structs.replace(row, outcome=GateOutcome.FAILED)
    return msgspec.structs.replace(row, note=note_of(row, failure, unranked))


def _judged(
    row: GatedRun, base: run_groups.RunGroup, candidate: run_groups.RunGroup, least: float, confidence: float
) -> GatedRun:
    """The row with what its rounds say; without a ratio where they are too few for an interval."""
    ratios = run_groups.paired_log_ratios(candidate, base)
    interval = run_groups.ratio_interval(ratios.logs, confidence)
    if interval is None:
        return msgspec.structs.replace(row, rounds=len(ratios.logs))
    row = msgspec.structs.replace(
        row,
        rounds=len(ratios.logs),
        ratio=interval.ratio,
        low=interval.low,
        high=interval.high,
        tails=tuple(run_compare.tail_ratios(ratios.tails, 1 - confidence)),
    )
    slower, faster = interval.low > 1 + least or row.stalls, interval.high < 1 - least
    outcome = GateOutcome.REGRESSION if slower else GateOutcome.FASTER if faster else GateOutcome.NOT_SHOWN
    is_open = row.is_late and interval.high > 1 + run_compare.DEFAULT_MARGIN
    if is_open and outcome is GateOutcome.NOT_SHOWN:  # so few rounds are no pass where a regression has room in them
        outcome = GateOutcome.NOT_COMPARED
    return msgspec.structs.replace(row, outcome=outcome)
