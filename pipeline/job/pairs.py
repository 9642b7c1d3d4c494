"""Pairs of base and candidate measured in alternating rounds on the same devices, and the verdict on each."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from device_runner.errors import RunnerError
from device_runner.files import sha256
from device_runner.result import utc_now
from pipeline.campaign.deny_list import denied_here, known_denied
from pipeline.campaign.measure import CampaignPlan, UnfinishedDevice, runs_left
from pipeline.campaign.plan import Inputs, PlannedRun, planned_id
from pipeline.campaign.provenance import SYSTEM, facts_of_place
from pipeline.campaign.record import CampaignRecord, Host, RunRecord
from pipeline.campaign.store import Store
from pipeline.config import ConditionsConfig, MeasureConfig
from pipeline.core.progress import Progress
from pipeline.job.devices import OpenDevices, libraries_by_device, measure_all
from pipeline.job.subjects import Subject, SubjectPair
from pipeline.report.paired import gated_run
from pipeline.report.regression import ALARMS, GatedRun, GateOutcome

ROUNDS = 20
"""Paired rounds: they find a slowdown of 5 % and alarm in none of 1,000 quiet histories (docs/numbers.md)."""
BASE, CANDIDATE = "base", "candidate"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOrder:
    """How pairs are measured; `least` is the share by which a candidate must be slower at least."""

    measure: MeasureConfig
    least: float = 0.01
    conditions: ConditionsConfig | None = field(default_factory=ConditionsConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPair:
    """A pair on a device; `reason` says why it is not measured there, "" where it is."""

    pair: SubjectPair
    base: PlannedRun
    candidate: PlannedRun
    reason: str = ""

    @property
    def unchanged(self) -> bool:
        """Whether there is nothing to measure: the same file runs in the same way."""
        return (self.base.sha256, self.base.options, self.base.library) == (
            self.candidate.sha256, self.candidate.options, self.candidate.library,
        )  # fmt: skip

    @property
    def measured(self) -> bool:
        """Whether it is to be measured."""
        return not self.unchanged and not self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPairs:
    """What came of pairs: a row for each, when it was measured, and devices that could not finish."""

    rows: tuple[GatedRun, ...]
    measured_at: str
    left: tuple[UnfinishedDevice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsPlan:
    """Pairs on devices with the campaign that measures them.

    The campaign's id follows from the files, options, libraries, devices and settings: what differs in any of these is
    measured anew, everything else is stored once.
    """

    pairs: tuple[PlannedPair, ...]
    campaign: CampaignPlan

    def is_stored(self, store: Store) -> bool:
        """Whether nothing of it is left to be run."""
        return not self.campaign.planned_runs or not runs_left(self.campaign, store).total()


def plan_pairs(pairs: Iterable[tuple[str, SubjectPair]], order: PairOrder, field: OpenDevices) -> PairsPlan:
    """What is to be run for pairs, each on the device named with it."""
    planned = tuple(_planned(pairs, field))
    runs = [run for one in planned if one.measured for run in (one.base, one.candidate)]
    inputs = {one.base.source: one.pair.candidate.inputs or Inputs(dimensions={}) for one in planned}
    campaign = CampaignPlan(
        campaign=_campaign_id(runs, inputs, order, field),
        planned_runs=runs,
        measure=order.measure,
        conditions=order.conditions,
        artifacts=Path(),
        inputs=inputs,
        libraries={},
        judge=None,
    )
    return PairsPlan(pairs=planned, campaign=campaign)


def measure_pairs(
    plan: PairsPlan, order: PairOrder, field: OpenDevices, store: Store, work: Path, progress: Progress
) -> MeasuredPairs:
    """Run by the campaign engine what of a plan is not stored yet, and judge each pair."""
    runs, campaign = plan.campaign.planned_runs, plan.campaign.campaign
    store.start(CampaignRecord(id=campaign, name="gate", created_at=utc_now()), field.facts.values())
    known = next(one for one in store.campaigns() if one.id == campaign)
    left = measure_all(plan.campaign, field.devices, store, work, progress) if runs else []
    records: dict[str, list[RunRecord]] = {}
    for record in store.runs(campaign):
        records.setdefault(record.planned, []).append(record)
    number = max(1, sum(one.measured for one in plan.pairs))
    rows = tuple(_row(one, records, order.least, 1 - ALARMS / number) for one in plan.pairs)
    return MeasuredPairs(rows=rows, measured_at=known.created_at if runs else "", left=tuple(left))


def _planned(pairs: Iterable[tuple[str, SubjectPair]], field: OpenDevices) -> Iterator[PlannedPair]:
    entries = known_denied()
    for number, (device, pair) in enumerate(pairs):
        facts = field.facts[device]
        base, candidate = (
            _run(role, subject, f"{pair.model}#{number}", device, pair.model, field)
            for role, subject in ((BASE, pair.base), (CANDIDATE, pair.candidate))
        )
        denied = (denied_here(run.options, facts, entries, run.sha256) for run in (base, candidate))
        reason = next((failure.message for failure in denied if failure), "")
        yield PlannedPair(pair=pair, base=base, candidate=candidate, reason=reason)


def _run(role: str, subject: Subject, source: str, device: str, model: str, field: OpenDevices) -> PlannedRun:
    library = libraries_by_device({device: field.facts[device]}, subject.targets, subject.library)[device]
    return PlannedRun(
        device=device,
        model=model,
        variant=f"{role}:{subject.run.partition('/')[0]}",
        source=source,
        file=str(subject.file),
        sha256=subject.sha256,
        size_bytes=subject.file.stat().st_size,
        options=subject.options,
        library=library,
    )


def _campaign_id(runs: Iterable[PlannedRun], inputs: Mapping[str, Inputs], order: PairOrder, field: OpenDevices) -> str:
    """A digest of all that decides what is measured."""
    what = []
    for run in sorted(runs, key=lambda run: run.key):
        try:
            library = field.devices[run.device].library_for(run.library).sha256
        except RunnerError:  # its runs say why
            library = run.library or ""
        system = facts_of_place(run.device, field.facts[run.device], Host()).get(SYSTEM, "")
        given = inputs[run.source]
        data = [sha256(Path(tensor.file)) for tensor in given.tensors]
        what.append((run.key, run.sha256, library, system, given.dimensions, data))
    measure = msgspec.structs.replace(order.measure, rounds=1)  # more rounds go on with the campaign
    digest = hashlib.sha256(msgspec.json.encode((what, measure), order="sorted")).hexdigest()
    return f"gate-{digest[:24]}"


def _row(one: PlannedPair, records: Mapping[str, Sequence[RunRecord]], least: float, confidence: float) -> GatedRun:
    base, candidate = (records.get(planned_id(run), ()) for run in (one.base, one.candidate))
    row = gated_run(one.base.device, one.pair.model, base, candidate, least=least, confidence=confidence)
    row = msgspec.structs.replace(row, base=one.pair.base.run, candidate=one.pair.candidate.run)
    if one.unchanged:
        return msgspec.structs.replace(row, outcome=GateOutcome.UNCHANGED, note="the same file, options and library")
    return msgspec.structs.replace(row, outcome=GateOutcome.NOT_COMPARED, note=one.reason) if one.reason else row
