"""What is expected of each run before it is measured, and profile runs checked against it."""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from device_runner.device import Device, DeviceFacts
from device_runner.profile import Coverage, measured_coverage, with_profile, with_profiler
from device_runner.result import RunResult
from device_runner.spec import RunOptions, RunSpec
from pipeline.campaign.options import options_name
from pipeline.campaign.plan import ALL_FILES, PlannedRun, planned_id
from pipeline.campaign.record import Prediction, RecordedRun, RefusedNodes, RunRecord
from pipeline.core.errors import ConfigError
from pipeline.core.files import make_folder, safe_name
from pipeline.core.progress import Progress
from pipeline.core.providers import rules_of_run
from pipeline.core.workers import Task, memory_budget, needed_bytes, run_tasks, time_limit
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import ModelAnswer, Settings, make_settings
from pipeline.partition.judge import PartitionRequest, judge
from pipeline.report.profile_view import Profiled


def predict(
    planned_runs: Sequence[PlannedRun], facts: Mapping[str, DeviceFacts], release: str, folder: Path, progress: Progress
) -> dict[str, Prediction]:
    """Predictions by the id of planned runs, for providers whose rules are known; equal questions are asked once."""
    asked: dict[str, tuple[PartitionRequest, int, list[str]]] = {}
    for planned in planned_runs:
        settings = settings_of(planned.options, facts[planned.device], release)
        if settings:
            file = str(folder / planned.file)
            request = PartitionRequest(source=SourceModel(path=file), settings=settings)
            key = f"{planned.sha256} {settings}"
            asked.setdefault(key, (request, planned.size_bytes, []))[2].append(planned_id(planned))
    return _answers(asked, progress) if asked else {}


def _answers(asked: Mapping[str, tuple[PartitionRequest, int, list[str]]], progress: Progress) -> dict[str, Prediction]:
    tasks = [
        Task(label=key, request=request, memory_bytes=needed_bytes(size)) for key, (request, size, _) in asked.items()
    ]
    found = {}
    with progress.stage("predict", len(tasks)) as stage:
        limit = time_limit(size for _, size, _ in asked.values())
        for outcome in run_tasks(judge, ModelAnswer, tasks, memory_bytes=memory_budget(), timeout_seconds=limit):
            for planned in asked[outcome.task.label][2]:
                found[planned] = summarized(outcome.value) if outcome.value else Prediction(error=str(outcome.error))
            stage.done()
    return found


def settings_of(options: RunOptions, facts: DeviceFacts, release: str) -> Settings | None:
    """What a run's options mean to the rules; None where there are none: provider, release or processor unknown."""
    rules = rules_of_run(options.provider, options.provider_options)
    if rules is None:
        return None
    level = min(facts.api_level, 31) if facts.api_level >= 27 else None
    try:
        return make_settings(
            rules.name,
            release=release,
            abi=facts.abis[0] if facts.abis else "",
            api_level=level,
            coreml_options=[f"{key}={value}" for key, value in options.provider_options.items()],
            nnapi_flags=[flag.value for flag in options.flags],
            stop_ops=options.session_config.get("ep.nnapi.partitioning_stop_ops"),
        )
    except ConfigError:
        return None


def summarized(answer: ModelAnswer) -> Prediction:
    """The part of an answer that a report shows and a run is compared with."""
    load = answer.load
    return Prediction(
        nodes=answer.nodes,
        claimed=answer.claimed,
        partitions=load.partitions if load else len(answer.partitions),
        estimate=bool(load and load.estimate),
        rules=answer.rules_release if answer.rules_release != answer.ort_release else "",
        error=answer.error or (load.error if load else None),
        refused=_refused(answer) or msgspec.UNSET,
    )


def _refused(answer: ModelAnswer) -> tuple[RefusedNodes, ...]:
    found: dict[tuple[str, str], list[str]] = {}
    for one in answer.decisions:
        if not one.claimed:
            found.setdefault((one.op_type, one.reason or ""), []).append(one.name)
    return tuple(RefusedNodes(operator=key[0], reason=key[1], nodes=tuple(names)) for key, names in found.items())


def finding(prediction: Prediction | None, results: Sequence[RunResult]) -> str:
    """Where what was measured is not what was predicted, in words; "" where they agree or nothing can be compared."""
    if not prediction:
        return ""
    loaded = any(result.load_ns for result in results)
    if prediction.error:
        return f"a failure was predicted, but the session was created: {prediction.error}" if loaded else ""
    measured = next((found for result in results if (found := measured_partitions(result)) is not None), None)
    if measured is None or measured == prediction.partitions:
        return ""
    sure = "estimated" if prediction.estimate else "predicted"
    return f"{measured} partitions were measured where {prediction.partitions} were {sure}"


def measured_partitions(result: RunResult) -> int | None:
    """Partitions that the provider logged when it was asked last (NHWC providers are asked twice); None for no log."""
    coverage = measured_coverage(reversed(result.log))
    return coverage.partitions if coverage else None


PROFILES = "profiles"
"""The folder of traces in a job's output folder."""


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
    trace = f"{safe_name(f'{name}-{options_name(spec.options)}')}.json"
    make_folder(folder)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".run.") as work:
        result = device.run(with_profiler(spec, work))
        result = with_profile(result, folder / trace)
    return profiled(
        ALL_FILES, name, spec.options, result, _predicted(spec.model, spec.options, facts, result.ort_version)
    )


def _predicted(model: str, options: RunOptions, facts: DeviceFacts, ort_version: str) -> Prediction | None:
    """What the rules say of the file with the library's release; None where they have no word for the provider."""
    settings = settings_of(options, facts, ".".join(ort_version.split(".")[:2]))
    return summarized(judge(PartitionRequest(source=SourceModel(path=model), settings=settings))) if settings else None
