"""Diagnoses models on a device: the checklist's remedies measured in rounds with the start, then the best together."""

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from device_runner.errors import RunnerError
from pipeline.campaign.doctor.checks import CHECKS
from pipeline.campaign.doctor.diagnosis import (
    Diagnosis,
    DoctorReport,
    MeasuredRemedy,
    RemediesTogether,
    finding_of_check,
    start_of,
    winners,
)
from pipeline.campaign.doctor.subject import together
from pipeline.campaign.plan import PlannedRun
from pipeline.campaign.statistics.compare import LOOKS
from pipeline.campaign.store import Store
from pipeline.core.errors import ExitCode, MissingError, PipelineError
from pipeline.core.progress import Progress
from pipeline.job.devices import open_patiently
from pipeline.job.doctor.bench import Bench, OutputsOfStart, tried_on
from pipeline.job.doctor.first_look import first_look
from pipeline.job.doctor.order import DoctorModel, DoctorOrder, checked, kept_in
from pipeline.job.doctor.rounds import FEWEST, Rounds
from pipeline.job.record import host

FOR_CHECKS = 0.7
"""The share of the time for the checklist; the rest is for the best together."""


def diagnose(order: DoctorOrder, progress: Progress) -> DoctorReport:
    """Diagnose every model; one that fails costs no other. Raises the error of a model that is the only one.

    Raises the first error where no model can be read, and what opening the device raises.
    """
    ready, failed = _usable(order.models)
    with (
        open_patiently(order.device, order.wait_seconds) as device,
        tempfile.TemporaryDirectory() as work,
        kept_in(order.folder, Path(work)) as store,
    ):
        facts = device.facts()
        if facts.readiness.value != "ready":
            raise MissingError(
                "the device is not ready", where=facts.name, why=facts.readiness.value, remedy=facts.advice
            )
        found = []
        deadline = time.monotonic() + 60 * order.minutes
        for number, model in enumerate(ready):
            folder = Path(work) / str(number)
            folder.mkdir()
            seconds = max(0.0, deadline - time.monotonic()) / (len(ready) - number)
            bench = Bench(order=order, model=model, device=device, facts=facts, work=folder, progress=progress)
            try:
                found.append(_diagnosed(bench, store, seconds))
            except RunnerError as error:
                if len(order.models) == 1:
                    raise
                found.append(_failed(model, order.device, error))
    return DoctorReport(
        host=host(),
        device=facts,
        margin=order.measure.margin_percent / 100,
        minutes=order.minutes,
        diagnoses=(*found, *failed),
    )


def exit_code(report: DoctorReport) -> ExitCode:
    """1 where a model could not be diagnosed."""
    return ExitCode.SOME_FAILED if any(one.failure for one in report.diagnoses) else ExitCode.DONE


def _usable(models: Sequence[DoctorModel]) -> tuple[list[DoctorModel], list[Diagnosis]]:
    ready, failed, errors = [], [], []
    for model in models:
        try:
            ready.append(checked(model))
        except PipelineError as error:
            errors.append(error)
            failed.append(_failed(model, "", error))
    if errors and not ready:
        raise errors[0]
    return ready, failed


def _failed(model: DoctorModel, device: str, error: RunnerError) -> Diagnosis:
    return Diagnosis(model=str(model.path), device=device, failure=(error.text,))


def _diagnosed(bench: Bench, store: Store, seconds: float) -> Diagnosis:
    began = time.monotonic()
    look = first_look(bench)
    if look.model is None or look.start is None or look.inputs is None:
        return Diagnosis(model=str(bench.model.path), device=bench.device.name, failure=look.failure)
    proposals = [check.propose(look.model) for check in CHECKS]
    tried = tried_on(bench, [remedy for proposal in proposals for remedy in proposal.remedies])
    rounds = Rounds(bench, store, look.inputs, OutputsOfStart(look.start, look.precision))
    rule = replace(bench.rule, looks=LOOKS)
    seconds_before = time.monotonic() - began
    results = rounds.measured(look.start, tried, began + FOR_CHECKS * seconds, "checks", rule, least=1)
    findings = tuple(
        finding_of_check(check, proposal, [results[remedy.name] for remedy in proposal.remedies])
        for check, proposal in zip(CHECKS, proposals, strict=True)
    )
    start = start_of(look.start.options, rounds.of_start)
    note = f"the device was left: {rounds.reason}" if rounds.reason else ""
    if not note and rounds.number < FEWEST:
        needed = (seconds_before + rounds.seconds_needed) / FOR_CHECKS
        note = f"the time was too short for {FEWEST} rounds: give --minutes {math.ceil(needed / 60)} or more"
    best = [] if rounds.reason else winners(findings)
    return Diagnosis(
        model=str(bench.model.path),
        device=bench.device.name,
        release=look.model.usual.ort_version,
        start=start,
        findings=findings,
        together=_together(rounds, bench, look.start, best, began + seconds),
        notes=(note,) if note else (),
        seconds=time.monotonic() - began + rounds.seconds_stored,
    )


def _together(
    rounds: Rounds, bench: Bench, start: PlannedRun, best: Sequence[MeasuredRemedy], until: float
) -> RemediesTogether | None:
    """The winners together, and the best alone, in fresh rounds; None where none won."""
    if not best:
        return None
    alone = best[-1].remedy
    both = together([one.remedy for one in best])
    wanted = [both] if len(best) == 1 else [both, alone]
    results = rounds.measured(start, tried_on(bench, wanted), until, "together", bench.rule, least=FEWEST)
    return RemediesTogether(together=results[both.name], alone=results[alone.name] if len(best) > 1 else None)
