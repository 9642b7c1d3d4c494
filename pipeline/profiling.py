"""Profile runs of files: one more run with ONNX Runtime's profiler on, read, and held against the prediction."""

from pathlib import Path

import msgspec

from device_runner.coverage import measured_coverage
from device_runner.device import Device, DeviceFacts
from device_runner.errors import RunnerError
from device_runner.profile import read_profile
from device_runner.spec import LogLevel, RunOptions, RunSpec
from pipeline.files import safe_name
from pipeline.job.predict import finding, settings_of, summarized
from pipeline.model_sources import SourceModel
from pipeline.partition.judge import PartitionRequest, judge
from pipeline.report.profile import Profiled
from pipeline.run_options import options_name


def profile_run(device: Device, facts: DeviceFacts, name: str, spec: RunSpec, folder: Path) -> Profiled:
    """Run a spec once more with the profiler on; everything of it lies in a folder below `folder`."""
    run = options_name(spec.options)
    place = folder / safe_name(f"{name}-{run}")
    spec = msgspec.structs.replace(spec, profile=True, outputs_folder=str(place), log_level=LogLevel.INFO)
    result = device.run(spec)
    if result.failure or not result.profile_file:
        why = result.failure.message if result.failure else "the run left no profile"
        return Profiled(name=name, run=run, failure=why)
    try:
        profile = read_profile(Path(result.profile_file))
    except RunnerError as error:
        return Profiled(name=name, run=run, file=result.profile_file, failure=str(error))
    prediction = _predicted(spec.model, spec.options, facts, result.ort_version)
    return Profiled(
        name=name,
        run=run,
        file=result.profile_file,
        profile=profile,
        coverage=measured_coverage(reversed(result.log)),
        prediction=prediction,
        finding=finding(prediction, [result]),
    )


def _predicted(model: str, options: RunOptions, facts: DeviceFacts, ort_version: str) -> dict[str, object] | None:
    """What the rules say of the file with the library's release; None where they have no word for the provider."""
    settings = settings_of(options, facts, ".".join(ort_version.split(".")[:2]))
    return summarized(judge(PartitionRequest(source=SourceModel(path=model), settings=settings))) if settings else None
