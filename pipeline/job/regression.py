"""The regression gate: what history suspects, or everything, measured again in pairs of base and candidate."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pipeline.campaign.history import History
from pipeline.campaign.store import open_store
from pipeline.core.errors import ExitCode
from pipeline.core.files import scratch
from pipeline.core.progress import Progress
from pipeline.job.histories import read_histories
from pipeline.job.stored import DATABASE
from pipeline.report.regression import ALARMS, GatedRun, GateOutcome, GateReport

if TYPE_CHECKING:  # what measures is imported where that is done: a history alone is read in less time than its imports
    from pipeline.job.devices import OpenDevices
    from pipeline.job.pairs import PairOrder
    from pipeline.job.subjects import SubjectPair, SubjectSource


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOrder:
    """What a gate is asked: two sources, perhaps with a history that says what of them; and how pairs are measured.

    `devices` are () for `local`, or with a history for those that it suspects. `folder` has the store of paired runs.
    Devices that other processes have are waited for `wait_seconds`.
    """

    folder: Path
    pairs: "PairOrder"
    base: "SubjectSource"
    candidate: "SubjectSource"
    history: str = ""
    devices: tuple[str, ...] = ()
    wait_seconds: float = 0.0


def history_report(history: str, least: float) -> GateReport:
    """What the campaigns of a history, as `read_histories` finds it, suspect; nothing is measured."""
    histories = read_histories(history) if history else ()
    return GateReport(least=least, confidence=1 - ALARMS, histories=histories)


def run_gate(order: GateOrder, progress: Progress) -> GateReport:
    """Read the history, measure in pairs what it suspects (without one, everything), and judge.

    Raises what opening devices, stores and sources raises.
    """
    from pipeline.job.subjects import paired, suspected_pairs

    report = history_report(order.history, order.pairs.least)
    report = msgspec.structs.replace(report, base=str(order.base.path), candidate=str(order.candidate.path))
    if not order.history:
        found = paired(order.base, order.candidate)
        report = msgspec.structs.replace(report, only_base=found.only_base, only_candidate=found.only_candidate)
        return _measured(order, report, [("", pair) for pair in found.pairs], order.devices or ("local",), progress)
    suspected = [one for one in report.histories if one.suspicion]
    wanted, no_base, no_candidate = suspected_pairs(suspected, order.base, order.candidate)
    report = msgspec.structs.replace(
        report,
        rows=tuple(_not_suspected(one) for one in report.histories if not one.suspicion),
        only_base=no_candidate,
        only_candidate=no_base,
    )
    devices = order.devices or tuple(dict.fromkeys(device for device, _ in wanted))
    return _measured(order, report, wanted, devices, progress) if wanted else report


def _not_suspected(one: History) -> GatedRun:
    return GatedRun(
        device=one.device, model=one.model, base=one.run, candidate=one.run, outcome=GateOutcome.NOT_SUSPECTED,
        note=one.note,
    )  # fmt: skip


def _measured(
    order: GateOrder,
    report: GateReport,
    wanted: "Sequence[tuple[str, SubjectPair]]",
    devices: Sequence[str],
    progress: Progress,
) -> GateReport:
    """The report with the wanted pairs measured; a pair of no device is meant for each."""
    from pipeline.job.devices import opened
    from pipeline.job.folder import locked
    from pipeline.job.pairs import measure_pairs, plan_pairs
    from pipeline.job.subjects import require_unchanged

    require_unchanged(pair for _, pair in wanted)
    with (
        locked(order.folder),
        scratch(order.folder) as work,
        open_store(f"sqlite:///{order.folder / DATABASE}") as store,
        opened(devices, order.wait_seconds) as field,
    ):
        here = [(name, pair) for own, pair in wanted for name in ([own] if own else field.devices)]
        plan = plan_pairs([one for one in here if one[0] in field.devices], order.pairs, field)
        found = measure_pairs(plan, order.pairs, field, store, work, progress)
    away = tuple(_away(name, pair, field) for name, pair in here if name not in field.devices)
    warnings = (
        *(f"{one.device}: {one.text}" for one in field.unusable),
        *(f"{one.device} was left before the end: {one.reason}" for one in found.left),
    )
    return msgspec.structs.replace(
        report, rows=(*found.rows, *away, *report.rows), measured_at=found.measured_at, warnings=warnings
    )


def _away(device: str, pair: "SubjectPair", field: "OpenDevices") -> GatedRun:
    """The row of a device that is not ready: a suspicion there is neither confirmed nor refuted."""
    reasons = {one.device: one.text for one in field.unusable}
    return GatedRun(
        device=device, model=pair.model, base=pair.base.run, candidate=pair.candidate.run,
        outcome=GateOutcome.NOT_COMPARED, note=reasons.get(device, "the device was not asked for"),
    )  # fmt: skip


def exit_code(report: GateReport) -> ExitCode:
    """4 for a confirmed regression, 1 where anything that was to be measured has no verdict, else 0."""
    if report.having(GateOutcome.REGRESSION):
        return ExitCode.CHECK_FAILED
    without = report.having(GateOutcome.FAILED, GateOutcome.NOT_COMPARED)
    return ExitCode.SOME_FAILED if without or report.warnings else ExitCode.DONE
