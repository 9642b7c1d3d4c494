"""Whether a device of a lab is what it was: a golden model is run before and after each batch of runs.

The lab's operator names the golden model, which is stored as a campaign: files, session options and expected outputs
are fixed with it. The value of a check is the lowest 10th percentile of its processes: what the device can do, where
other work makes single processes slower. A check is out where that lies beyond what is usual for the device at that
moment (before or after a batch), in every one of several groups of processes; two of three in one direction are a
drift (lab G). A device that drifts, or that fails or computes otherwise twice, is quarantined with the reason.
"""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from device_runner import device as runner_device
from device_runner import files as runner_files
from device_runner import result as run_result
from device_runner import safe_text, untrusted_files
from device_runner.device import Device, DeviceFacts
from device_runner.result import RunResult, Status
from pipeline.campaign import measure as campaign_measure
from pipeline.campaign import plan as planning
from pipeline.campaign.statistics import level as statistics_level
from pipeline.campaign.store import tables as store_tables
from pipeline.core.errors import PipelineError
from pipeline.features.lab import checks as lab_checks
from pipeline.features.lab import queue as lab_queue
from pipeline.features.lab import tables as lab_tables
from pipeline.features.lab.campaigns import lab_versions
from pipeline.job import carrying
from pipeline.report import wording

log = logging.getLogger(__name__)

Moment = Literal["before", "after"]

FEWEST, WINDOW = 8, 40
"""Good checks of a device at a moment that say what is usual there: at least, and the newest at most."""

DEVIATIONS, LEAST = 4.45, 0.04
"""How far from the usual value a check is out: 3 standard deviations by the median absolute deviation; at least 4 %."""

PROCESSES, GROUPS, LEARNING = 6, 6, 2
"""Processes of a group; groups that must all lie beyond until a check is out; and groups while nothing is usual yet."""

OUT, AMONG = 2, 3
"""So many checks among the newest, out in the same direction, are a drift."""

RECENT_SECONDS = 300.0
"""A good check of so long ago is that before the next batch, too: campaigns take turns on a device."""

PAUSE_SECONDS = 5.0
"""Between two groups: what else a device does may end."""


class GoldenError(PipelineError):
    """The golden model says nothing of a device: it cannot be run there."""


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """What a check came to: `failed` says why the device fails, "" where its outputs are as they should be."""

    values_ns: tuple[int, ...] = ()
    nearest_ns: int | None = None
    """Of its values the one that is nearest to what is usual; None where nothing was timed."""
    ratio: float | None = None
    """Of that to what is usual; None where that is not known yet."""
    is_out: bool = False
    failed: str = ""


def usual(values_ns: Sequence[float]) -> statistics_level.UsualLevel | None:
    """What is usual at a moment, by the newest good checks; None where they are too few."""
    newest = values_ns[-WINDOW:]
    return statistics_level.level_of(newest, DEVIATIONS, LEAST) if len(newest) >= FEWEST else None


def judged(group: Callable[[], int], level: statistics_level.UsualLevel | None) -> CheckOutcome:
    """Measure groups until one lies within what is usual, at most GROUPS; without a level the faster of LEARNING."""
    if level is None:
        values = [group() for _ in range(LEARNING)]
        return CheckOutcome(values_ns=tuple(values), nearest_ns=min(values))
    values = [group()]

    def beyond(value: int) -> int:
        """1 where a value is slower than usual, -1 where it is faster, 0 within."""
        off = value - level.median
        return 0 if abs(off) <= level.reach else 1 if off > 0 else -1

    while beyond(values[0]) and beyond(values[-1]) == beyond(values[0]) and len(values) < GROUPS:
        values.append(group())
    sides = {beyond(value) for value in values}
    nearest = min(values, key=lambda value: abs(value - level.median))
    is_out = 0 not in sides and len(sides) == 1
    return CheckOutcome(values_ns=tuple(values), nearest_ns=nearest, ratio=nearest / level.median, is_out=is_out)


def is_drift(newest: CheckOutcome, before: Iterable[float | None]) -> bool:
    """Whether a check that is out, and those before it (their ratios where they were out, else None, the newest first),
    are a drift.
    """
    if not newest.is_out or newest.ratio is None:
        return False
    alike = [ratio for ratio in itertools.islice(before, AMONG - 1) if ratio and (ratio > 1) == (newest.ratio > 1)]
    return len(alike) >= OUT - 1


def value_of(results: Iterable[RunResult]) -> int:
    """The lowest 10th percentile of latencies of several processes, in nanoseconds."""
    return min(sorted(result.latencies_ns)[len(result.latencies_ns) // 10] for result in results)


@dataclass(slots=True)
class Examiner:
    """Checks one device, whose lease this host has, with the golden model of its lab."""

    session: lab_queue.LabSession
    golden: carrying.Carried
    device: Device
    facts: DeviceFacts
    stop: threading.Event

    @property
    def setting(self) -> str:
        """What values depend on besides the device."""
        versions = lab_versions()
        build = self.facts.fingerprint or self.facts.os_release
        return "; ".join((build, f"onnxruntime {versions['onnxruntime']}", f"probe {versions['probe']}"))

    def examine(self, moment: Moment) -> str:
        """Check the device; why it may not be measured on, or "". One that has drifted or fails is quarantined."""
        begun, plan = time.monotonic(), golden_plan(self.golden, self.facts)
        known = self.session.ask(self._known)
        if moment == "before" and known and known[-1].good and known[-1].age_seconds < RECENT_SECONDS:
            return ""
        good = [check for check in known if check.good and check.value_ns]
        of_moment = [check for check in good if check.moment == moment]
        levels = (usual([check.value_ns for check in newest]) for newest in (of_moment, good))
        level = next(filter(None, levels), None)  # where one moment has too few, both together
        try:
            outcome = judged(lambda: self._group(plan), level)
        except _GoldenFailure as error:
            outcome = CheckOutcome(failed=str(error))
            if not error.is_of_device and not any(check.good for check in known):
                raise GoldenError(
                    "the golden model does not run on this device",
                    where=self.facts.name,
                    why=str(error),
                    remedy="name one that does: `ort-mobile lab golden CONFIG`",
                ) from error
        heat = (
            self.device.conditions() if isinstance(self.device, runner_device.Conditioned) else run_result.Conditions()
        )
        note = lab_checks.CheckNote(
            groups_ns=outcome.values_ns,
            ratio=outcome.ratio,
            seconds=round(time.monotonic() - begun, 1),
            thermal_status=heat.thermal_status,
            celsius=heat.battery_celsius,
        )
        reason = outcome.failed or (_drift_text(outcome, heat) if outcome.is_out else "")
        self.session.call(
            "lab_checked",
            self.facts.name,
            self.golden.campaign.id,
            moment,
            self.setting,
            outcome.nearest_ns,
            not reason,
            reason[: lab_queue.MOST_REASON],
            msgspec.json.encode(note).decode(),
        )
        earlier = (_ratio(check) for check in reversed(known))
        if not reason or not (outcome.failed or is_drift(outcome, earlier)):
            return ""
        self.session.call("lab_quarantine", self.facts.name, safe_text.visible(reason)[: lab_queue.MOST_REASON])
        log.warning("%s: in quarantine: %s", self.facts.name, reason)
        return f"in quarantine: {reason}"

    def _known(self, connection: Connection) -> list[sa.Row[Any]]:
        """The checks that count, the oldest first: of this model and setting, since the device was given back last."""
        since = sa.select(sa.func.max(store_tables.quarantines.c.released)).where(
            store_tables.quarantines.c.device == self.facts.name, sa.not_(store_tables.quarantines.c.sound)
        )
        age = sa.extract("epoch", sa.func.now() - lab_tables.checks.c.at).label("age_seconds")
        query = (
            sa.select(lab_tables.checks, age)
            .where(
                lab_tables.checks.c.device == self.facts.name,
                lab_tables.checks.c.golden == self.golden.campaign.id,
                lab_tables.checks.c.setting == self.setting,
                lab_tables.checks.c.at > sa.func.coalesce(since.scalar_subquery(), sa.text("'-infinity'::timestamptz")),
            )
            .order_by(lab_tables.checks.c.id.desc())
            .limit(4 * WINDOW)
        )
        return list(connection.execute(query))[::-1]

    def _group(self, plan: campaign_measure.CampaignPlan) -> int:
        """The value of a group of processes; raises _GoldenFailure where one fails twice or computes otherwise."""
        results: list[RunResult] = []
        while len(results) < PROCESSES:
            for pause in (PAUSE_SECONDS, None):
                result, why = self._process(plan, len(results))
                if not why:
                    results.append(result)
                    break
                if pause is None:
                    raise _GoldenFailure(why, is_of_device=result.status is Status.OK)
                log.warning("%s: golden model: %s; once more", self.facts.name, why)
                self.stop.wait(pause)
        return value_of(results)

    def _process(self, plan: campaign_measure.CampaignPlan, number: int) -> tuple[RunResult, str]:
        """One process of the golden model, and what is wrong with it, "" for nothing.

        Raises PipelineError where the device cannot be asked, or the agent is to stop.
        """
        planned = plan.planned_runs[0]
        reason = ""
        if plan.conditions and isinstance(self.device, runner_device.Conditioned):
            reason = campaign_measure.wait_until_fit(self.device, plan.conditions, self.stop)
        if self.stop.is_set():
            reason = "interrupted"
        if reason:
            raise PipelineError("no check of the device's health", where=self.facts.name, why=reason)
        with runner_files.scratch_folder("ort-mobile-check-") as folder:
            spec = msgspec.structs.replace(plan.spec(planned, number), outputs_folder=str(folder))
            result = self.device.run(spec)
            failure = result.failure
            if failure and failure.code in campaign_measure.TRIED_AGAIN:
                raise PipelineError("no check of the device's health", where=self.facts.name, why=failure.what)
            if failure or result.status is not Status.OK:
                text = f"{failure.what}{f': {failure.why}' * bool(failure.why)}" if failure else result.status
                return result, f"the golden model fails: {text}"
            verdicts = plan.check(planned, result) if plan.check else ()
        wrong = next((verdict for verdict in verdicts if verdict.failed), None)
        if wrong:
            return result, f"the golden model gives other outputs: {wrong.output}: {wrong.reason or 'out of tolerance'}"
        if not verdicts or any(verdict.unknown for verdict in verdicts) or not result.latencies_ns:
            return result, "the golden model's outputs cannot be judged here, or nothing was timed"
        return result, ""


def _drift_text(outcome: CheckOutcome, heat: run_result.Conditions) -> str:
    value, ratio = outcome.nearest_ns or 0, outcome.ratio or 1.0
    off = f"{abs(ratio - 1):.1%} {'slower' if ratio > 1 else 'faster'} than usual"
    parts = [f"the golden model is {off}: {wording.duration(value)}, not {wording.duration(value / ratio)}"]
    parts += [] if heat.thermal_status is None else [f"thermal status {heat.thermal_status}"]
    parts += [] if heat.battery_celsius is None else [f"battery at {heat.battery_celsius:g} °C"]
    return ", ".join(parts)


class _GoldenFailure(Exception):
    """A device fails the golden model, or computes something else; `is_of_device`: it ran, whatever it gave."""

    def __init__(self, why: str, *, is_of_device: bool) -> None:
        super().__init__(why)
        self.is_of_device = is_of_device


def _ratio(check: "sa.Row[Any]") -> float | None:
    """How many times the usual value a check is that was out; None for one that was not."""
    if check.good:
        return None
    try:
        return untrusted_files.decode_json(check.note, lab_checks.CheckNote).ratio
    except msgspec.DecodeError:
        return None


def golden_plan(golden: carrying.Carried, facts: DeviceFacts) -> campaign_measure.CampaignPlan:
    """The first run of the golden model that a device can do; raises GoldenError where there is none."""
    record = golden.record
    measurable = [artifact for artifact in golden.artifacts if artifact.source in record.references]
    legal, skipped = planning.plan_runs(
        record.config.runs, measurable, [facts], contexts=record.contexts, advised=False
    )
    if not legal:
        why = skipped[0].text if skipped else "its config has no run"
        raise GoldenError(
            "the golden model has no run for this device",
            where=facts.name,
            why=why,
            remedy="name one that has: `ort-mobile lab golden CONFIG`",
        )
    return carrying.plan_here(golden, legal[:1], facts)
