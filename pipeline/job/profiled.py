"""Runs with the profiler on: where the time goes."""

from pathlib import Path

import msgspec

from device_runner.device import Device, DeviceFacts
from device_runner.files import scratch_folder
from device_runner.profile import measured_coverage, with_profile, with_profiler
from device_runner.result import RunResult
from device_runner.spec import RunOptions, RunSpec
from pipeline.campaign.planned import ALL_FILES
from pipeline.campaign.record import Prediction
from pipeline.campaign.run_options import options_name
from pipeline.core.files import make_folder, safe_name
from pipeline.job.predicted import finding, settings_of, summarized
from pipeline.model.sources import SourceModel
from pipeline.partition.judge import PartitionRequest, judge
from pipeline.report.profiles import Profiled


def profiled(
    model: str, variant: str, options: RunOptions, result: RunResult, prediction: Prediction | None
) -> Profiled:
    """What one profile run says."""
    # Nodes as the provider saw the model, partitions as it was asked last. Providers that want NHWC are asked
    # again when Transposes were put in, which are no nodes of the model.
    first, last = measured_coverage(result.log), measured_coverage(reversed(result.log))
    return Profiled(
        name=variant if model == ALL_FILES else f"{model} / {variant}",
        model=model,
        variant=variant,
        run=options_name(options),
        provider=options.provider,
        device=result.device,
        file=result.profile_file or "",
        profile=result.profile,
        coverage=msgspec.structs.replace(first, partitions=last.partitions) if first and last else None,
        prediction=prediction,
        finding=finding(prediction, [result]),
        failure=result.failure.message if result.failure else "",
    )


def profile_run(device: Device, facts: DeviceFacts, name: str, spec: RunSpec, folder: Path) -> Profiled:
    """Run a spec once more with the profiler on; its trace lies in `folder`. Raises PipelineError for a bad folder."""
    trace = f"{safe_name(f'{name}-{options_name(spec.options)}')}.json.gz"
    make_folder(folder)
    with scratch_folder(".run.", folder) as work:
        result = device.run(with_profiler(spec, str(work)))
        result = with_profile(result, folder / trace)
    # What the rules of the library's release say of the file; nothing where they have no word for the provider.
    settings = settings_of(spec.options, facts, ".".join(result.ort_version.split(".")[:2]))
    request = settings and PartitionRequest(source=SourceModel(path=spec.model), settings=settings)
    return profiled(ALL_FILES, name, spec.options, result, summarized(judge(request)) if request else None)
