"""Profile runs of files: one more run with ONNX Runtime's profiler on, read, and checked against the prediction."""

import tempfile
from pathlib import Path

from device_runner.device import Device, DeviceFacts
from device_runner.profile import with_profile, with_profiler
from device_runner.spec import RunOptions, RunSpec
from pipeline.campaign.options import options_name
from pipeline.core.files import make_folder, safe_name
from pipeline.job.predict import Prediction, settings_of, summarized
from pipeline.job.profiles import profiled
from pipeline.model.sources import SourceModel
from pipeline.partition.judge import PartitionRequest, judge
from pipeline.report.profiled import Profiled


def profile_run(device: Device, facts: DeviceFacts, name: str, spec: RunSpec, folder: Path) -> Profiled:
    """Run a spec once more with the profiler on; its trace lies in `folder`. Raises PipelineError for a bad folder."""
    run = options_name(spec.options)
    make_folder(folder)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".run.") as work:
        result = device.run(with_profiler(spec, work))
        result = with_profile(result, folder / f"{safe_name(f'{name}-{run}')}.json")
    return profiled(name, run, result, _predicted(spec.model, spec.options, facts, result.ort_version))


def _predicted(model: str, options: RunOptions, facts: DeviceFacts, ort_version: str) -> Prediction | None:
    """What the rules say of the file with the library's release; None where they have no word for the provider."""
    settings = settings_of(options, facts, ".".join(ort_version.split(".")[:2]))
    return summarized(judge(PartitionRequest(source=SourceModel(path=model), settings=settings))) if settings else None
