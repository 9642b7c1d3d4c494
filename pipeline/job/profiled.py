"""Runs with the profiler on: where the time goes."""

from pathlib import Path

import msgspec

from device_runner import files as runner_files
from device_runner import profile as ort_profile
from device_runner.device import Device, DeviceFacts
from device_runner.result import RunResult
from device_runner.spec import RunOptions, RunSpec
from pipeline.campaign import planned as campaign_planned
from pipeline.campaign import record as campaign_record
from pipeline.campaign import run_options
from pipeline.core import file_names
from pipeline.core import files as storage
from pipeline.job.predicted import finding, settings_of, summarized
from pipeline.model.sources import SourceModel
from pipeline.partition import judge
from pipeline.report import profiles as report_profiles


def profiled(
    model: str, variant: str, options: RunOptions, result: RunResult, prediction: campaign_record.Prediction | None
) -> report_profiles.Profiled:
    """What one profile run says."""
    # Nodes as the provider saw the model, partitions as it was asked last. Providers that want NHWC are asked
    # again when Transposes were put in, which are no nodes of the model.
    first, last = ort_profile.measured_coverage(result.log), ort_profile.measured_coverage(reversed(result.log))
    return report_profiles.Profiled(
        name=variant if model == campaign_planned.ALL_FILES else f"{model} / {variant}",
        model=model,
        variant=variant,
        run=run_options.options_name(options),
        provider=options.provider,
        device=result.device,
        file=result.profile_file or "",
        profile=result.profile,
        coverage=msgspec.structs.replace(first, partitions=last.partitions) if first and last else None,
        prediction=prediction,
        finding=finding(prediction, [result]),
        failure=result.failure.what if result.failure else "",
    )


def profile_run(device: Device, facts: DeviceFacts, name: str, spec: RunSpec, folder: Path) -> report_profiles.Profiled:
    """Run a spec once more with the profiler on; its trace lies in `folder`. Raises PipelineError for a bad folder."""
    trace = f"{file_names.safe_name(f'{name}-{run_options.options_name(spec.options)}')}.json.gz"
    storage.make_folder(folder)
    with runner_files.scratch_folder(".run.", folder) as work:
        result = device.run(ort_profile.with_profiler(spec, str(work)))
        result = ort_profile.with_profile(result, folder / trace)
    # What the rules of the library's release say of the file; nothing where they have no word for the provider.
    settings = settings_of(spec.options, facts, ".".join(result.ort_version.split(".")[:2]))
    request = settings and judge.PartitionRequest(source=SourceModel(path=spec.model), settings=settings)
    return profiled(
        campaign_planned.ALL_FILES, name, spec.options, result, summarized(judge.judge(request)) if request else None
    )
