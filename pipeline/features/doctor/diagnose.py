"""Diagnoses models on a device: the checklist's remedies measured in rounds with the start, then the best together."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from device_runner.errors import RunnerError
from pipeline.campaign.plan import PlannedRun
from pipeline.campaign.statistics.compare import LOOKS
from pipeline.campaign.store import Store
from pipeline.core.errors import ExitCode, MissingError, PipelineError
from pipeline.core.progress import Progress
from pipeline.features.doctor.checks import CHECKS
from pipeline.features.doctor.diagnosis import (
    Diagnosis,
    DoctorReport,
    MeasuredRemedy,
    RemediesTogether,
    finding_of_check,
    start_of,
    typical,
    winners,
)
from pipeline.features.doctor.files import DoctorModel, DoctorOrder, checked
from pipeline.features.doctor.rounds import FEWEST, DoctorBench, OutputsOfStart, Rounds, first_look, tried_on
from pipeline.features.doctor.subject import together
from pipeline.job.bench import bench, opened_alone
from pipeline.job.record import host

FOR_CHECKS = 0.7
"""The share of the time for the checklist; the rest is for the best together."""


def diagnose(order: DoctorOrder, progress: Progress) -> DoctorReport:
    """Diagnose every model; one that fails costs no other. Raises the error of a model that is the only one.

    Raises the first error where no model can be read, and what opening the device raises.
    """
    ready, failed = _usable(order.models)
    with bench(opened_alone(order.device, order.wait_seconds, order.library), order.folder, progress) as here:
        ((name, device),) = here.devices.items()
        facts = here.facts[name]
        if facts.readiness.value != "ready":
            raise MissingError(
                "the device is not ready", where=facts.name, why=facts.readiness.value, remedy=facts.advice
            )
        diagnoses = []
        deadline = time.monotonic() + 60 * order.minutes
        for number, model in enumerate(ready):
            folder = here.work / str(number)
            folder.mkdir()
            seconds = max(0.0, deadline - time.monotonic()) / (len(ready) - number)
            subject = DoctorBench(order=order, model=model, device=device, facts=facts, work=folder, progress=progress)
            try:
                diagnoses.append(_diagnosed(subject, here.store, seconds))
            except RunnerError as error:
                if len(order.models) == 1:
                    raise
                diagnoses.append(_failed(model, order.device, error))
    return DoctorReport(
        host=host(),
        device=facts,
        margin=order.measure.margin_percent / 100,
        minutes=order.minutes,
        diagnoses=(*diagnoses, *failed),
    )


def exit_code(report: DoctorReport) -> ExitCode:
    """1 where a model could not be diagnosed."""
    return ExitCode.SOME_FAILED if any(diagnosis.failure for diagnosis in report.diagnoses) else ExitCode.DONE


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


def _diagnosed(subject: DoctorBench, store: Store, seconds: float) -> Diagnosis:
    began = time.monotonic()
    look = first_look(subject)
    if look.model is None or look.start is None or look.inputs is None:
        return Diagnosis(model=str(subject.model.path), device=subject.device.name, failure=look.failure)
    proposals = [check.propose(look.model) for check in CHECKS]
    tried = tried_on(subject, [remedy for proposal in proposals for remedy in proposal.remedies])
    rounds = Rounds(subject, store, look.inputs, OutputsOfStart(look.start, look.precision))
    rule = replace(subject.rule, looks=LOOKS)
    seconds_before = time.monotonic() - began
    results = rounds.measured(look.start, tried, began + FOR_CHECKS * seconds, "checks", rule, least=1)
    start = start_of(look.start.options, rounds.of_start)
    known = replace(look.model, usual=typical(look.model.usual, start))  # of all rounds, where the first look had one
    findings = tuple(
        finding_of_check(
            check, proposal if proposal.remedies else check.propose(known), [results[r.name] for r in proposal.remedies]
        )
        for check, proposal in zip(CHECKS, proposals, strict=True)
    )
    note = f"the device was left: {rounds.reason}" if rounds.reason else ""
    if not note and rounds.number < FEWEST:
        needed = (seconds_before + rounds.seconds_needed) / FOR_CHECKS
        note = f"the time was too short for {FEWEST} rounds: give --minutes {math.ceil(needed / 60)} or more"
    best = [] if rounds.reason else winners(findings)
    return Diagnosis(
        model=str(subject.model.path),
        device=subject.device.name,
        release=look.model.usual.ort_version,
        start=start,
        findings=findings,
        together=_together(rounds, subject, look.start, best, began + seconds),
        notes=(note,) if note else (),
        seconds=time.monotonic() - began + rounds.seconds_stored,
    )


def _together(
    rounds: Rounds, subject: DoctorBench, start: PlannedRun, best: Sequence[MeasuredRemedy], until: float
) -> RemediesTogether | None:
    """The winners together, and the best alone, in fresh rounds; None where none won."""
    if not best:
        return None
    alone = best[-1].remedy
    both = together([winner.remedy for winner in best])
    wanted = [both] if len(best) == 1 else [both, alone]
    results = rounds.measured(start, tried_on(subject, wanted), until, "together", subject.rule, least=FEWEST)
    return RemediesTogether(together=results[both.name], alone=results[alone.name] if len(best) > 1 else None)
