"""The first runs of a diagnosis: whether the start works, where its time goes, and what the checks decide by."""

import logging
import tempfile
from dataclasses import dataclass

from device_runner.profile import with_profile, with_profiler
from device_runner.providers import PROVIDERS
from device_runner.result import RunResult
from device_runner.spec import RunOptions
from pipeline.campaign.plan import Inputs, PlannedRun
from pipeline.check.compare import OutputPrecision
from pipeline.core.workers import Task, run_tasks
from pipeline.features.doctor.bench import DoctorBench
from pipeline.features.doctor.subject import Examination, ExaminedModel, ExamineRequest, examine
from pipeline.job.perf_files import inputs_of_files, planned_files, preflight
from pipeline.job.predict import settings_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLook:
    """The start as it is planned, its inputs, and the model examined; or `failure`: what was said, why, what to do."""

    start: PlannedRun | None = None
    inputs: Inputs | None = None
    model: ExaminedModel | None = None
    failure: tuple[str, ...] = ()

    @property
    def precision(self) -> OutputPrecision:
        """What the model computes in."""
        if self.model and self.model.traits.quantized:
            return OutputPrecision.QUANTIZED
        return OutputPrecision.FLOAT16 if self.model and self.model.traits.half else OutputPrecision.FLOAT32


def first_look(bench: DoctorBench) -> FirstLook:
    """Run the start once as it is and once with the profiler, and read the model's graph."""
    perf = bench.perf_order([bench.model.path], [bench.model.start])
    inputs = inputs_of_files(perf, bench.work)[str(bench.model.path)]
    runs, skipped = planned_files(perf, bench.device.name, bench.facts, preflight(perf, bench.device))
    if not runs:
        return FirstLook(failure=(skipped[0].what,))
    usual = bench.device.run(bench.plan("first", runs, inputs).spec(runs[0], 0))
    if usual.failure:
        texts = (usual.failure.message, usual.failure.cause, usual.failure.remedy)
        return FirstLook(failure=tuple(text for text in texts if text))
    with tempfile.TemporaryDirectory(dir=bench.work) as folder:
        spec = with_profiler(bench.plan("profile", runs, inputs).spec(runs[0], 0), folder)
        profiled = with_profile(bench.device.run(spec), bench.work / "profile.json.gz")
    return FirstLook(start=runs[0], inputs=inputs, model=_examined(bench, usual, profiled))


def _examined(bench: DoctorBench, usual: RunResult, profiled: RunResult) -> ExaminedModel:
    """The model with its graph and claims; where the graph cannot be read, checks that need it do not apply."""
    release = ".".join(usual.ort_version.split(".")[:2])
    there = [name for name, row in PROVIDERS.items() if row.ort_name in usual.available_providers]
    options = (RunOptions(provider=name) for name in there)
    wanted = tuple(settings for run_options in options if (settings := settings_of(run_options, bench.facts, release)))
    request = ExamineRequest(path=str(bench.model.path), settings=wanted)
    (outcome,) = run_tasks(examine, Examination, [Task(label=str(bench.model.path), request=request)])
    if outcome.error:
        log.warning("%s: its graph cannot be read: %s", bench.model.path, outcome.error)
    read = outcome.value or Examination()
    return ExaminedModel(
        suffix=bench.model.path.suffix.lower(), start=bench.model.start, facts=bench.facts, usual=usual,
        profiled=profiled, traits=read.traits, answers=read.answers, sizes=bench.model.dimensions,
    )  # fmt: skip
