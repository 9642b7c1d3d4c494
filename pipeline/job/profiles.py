"""Runs with the profiler on, and what they show beside what was predicted."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from device_runner.device import Device, DeviceFacts
from device_runner.files import scratch_folder
from device_runner.profile import Coverage, measured_coverage, with_profile, with_profiler
from device_runner.result import RunResult
from device_runner.spec import RunOptions, RunSpec
from pipeline.campaign.options import options_name
from pipeline.campaign.plan import ALL_FILES
from pipeline.campaign.record import Prediction, RecordedRun, RunRecord, place
from pipeline.core.errors import Finding, warning
from pipeline.core.files import make_folder, safe_name
from pipeline.job.predict import settings_of, summarized
from pipeline.model.sources import SourceModel
from pipeline.partition.judge import PartitionRequest, judge
from pipeline.report.profile_view import Profiled
from pipeline.report.rows import MeasuredRow

AFTER_LOAD = frozenset({"inputs", "first_run", "run", "outputs", "release", "done"})
"""The probe's stages after a session was created. A refused session has a `load_ns`, too: the time until it failed."""


def finding(prediction: Prediction | None, results: Sequence[RunResult]) -> str:
    """Where what was measured is not what was predicted, in words; "" where they agree or nothing can be compared."""
    if not prediction:
        return ""
    loaded = any(
        result.load_ns and (result.failure is None or result.failure.stage in AFTER_LOAD) for result in results
    )
    if prediction.error:
        return f"a failure was predicted, but the session was created: {prediction.error}" if loaded else ""
    measured = next((found for result in results if (found := measured_partitions(result)) is not None), None)
    if measured is None or measured == prediction.partitions:
        return ""
    sure = "estimated" if prediction.estimate else "predicted"
    return f"{measured} partitions were measured where {prediction.partitions} were {sure}"


def unexpected(measured: Iterable[MeasuredRow], profiles: Iterable[Profiled]) -> Iterator[Finding]:
    """Runs that were not as predicted; profile runs log most, and tell what others leave out."""
    for one in measured:
        prediction = next((run.prediction for run in one.runs if run.prediction is not None), None)
        told = finding(prediction, [run.result for run in one.runs])
        if told:
            yield warning(told, place(one.device, one.model, one.variant, one.run))
    yield from (warning(one.finding, place(one.device, one.name, one.run)) for one in profiles if one.finding)


def measured_partitions(result: RunResult) -> int | None:
    """Partitions that the provider logged when it was asked last (NHWC providers are asked twice); None for no log."""
    coverage = measured_coverage(reversed(result.log))
    return coverage.partitions if coverage else None


def profiled(
    model: str, variant: str, options: RunOptions, result: RunResult, prediction: Prediction | None
) -> Profiled:
    """What one profile run says."""
    return Profiled(
        name=variant if model == ALL_FILES else f"{model} / {variant}",
        model=model,
        variant=variant,
        run=options_name(options),
        provider=options.provider,
        device=result.device,
        file=result.profile_file or "",
        profile=result.profile,
        coverage=_coverage(result),
        prediction=prediction,
        finding=finding(prediction, [result]),
        failure=result.failure.message if result.failure else "",
    )


def _coverage(result: RunResult) -> Coverage | None:
    """Nodes as the provider saw the model, partitions as it was asked last.

    Providers that want NHWC are asked again when Transposes were put in, which are no nodes of the model.
    """
    first, last = measured_coverage(result.log), measured_coverage(reversed(result.log))
    return msgspec.structs.replace(first, partitions=last.partitions) if first and last else None


def profiles_of(planned: Iterable[RecordedRun], runs: Sequence[RunRecord]) -> Iterator[Profiled]:
    """The profile runs of planned ones, in the order of the plan."""
    profiles = [record for record in runs if record.spec.profile]
    for one in planned:
        for record in profiles:
            if record.planned == one.id:
                yield profiled(one.model, one.variant, one.options, record.result, record.prediction)


def profile_run(device: Device, facts: DeviceFacts, name: str, spec: RunSpec, folder: Path) -> Profiled:
    """Run a spec once more with the profiler on; its trace lies in `folder`. Raises PipelineError for a bad folder."""
    trace = f"{safe_name(f'{name}-{options_name(spec.options)}')}.json.gz"
    make_folder(folder)
    with scratch_folder(".run.", folder) as work:
        result = device.run(with_profiler(spec, str(work)))
        result = with_profile(result, folder / trace)
    return profiled(
        ALL_FILES, name, spec.options, result, _predicted(spec.model, spec.options, facts, result.ort_version)
    )


def _predicted(model: str, options: RunOptions, facts: DeviceFacts, ort_version: str) -> Prediction | None:
    """What the rules say of the file with the library's release; None where they have no word for the provider."""
    settings = settings_of(options, facts, ".".join(ort_version.split(".")[:2]))
    return summarized(judge(PartitionRequest(source=SourceModel(path=model), settings=settings))) if settings else None
