"""What rules say of runs before they are measured, and where what came is something else."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from device_runner import device as runner_device
from device_runner import profile as ort_profile
from device_runner.device import DeviceFacts
from device_runner.result import RunResult
from device_runner.spec import RunOptions
from pipeline import config as configs
from pipeline.campaign import planned as campaign_planned
from pipeline.campaign import record as campaign_record
from pipeline.core import errors as core_errors
from pipeline.core import providers as provider_rules
from pipeline.core import workers
from pipeline.core.errors import ConfigError, Finding
from pipeline.core.progress import Progress
from pipeline.job.targets import oldest_release
from pipeline.model.sources import SourceModel
from pipeline.partition import answer as claim_answer
from pipeline.partition import judge
from pipeline.partition import placement as node_placement
from pipeline.report import model as report_model
from pipeline.report import profiles as report_profiles


def predict(
    planned_runs: Sequence[campaign_planned.PlannedRun],
    facts: Mapping[str, DeviceFacts],
    targets: Sequence[configs.Target],
    folder: Path,
    progress: Progress,
) -> tuple[dict[str, campaign_record.Prediction], tuple[node_placement.Placement, ...]]:
    """What is expected of runs with providers whose rules are known, by their ids; equal questions are asked once.

    And of each model and provider the graph that it claims most of.
    """
    release = oldest_release(targets)  # its rules say what is expected of runs
    asked: dict[str, tuple[judge.PartitionRequest, int, list[campaign_planned.PlannedRun]]] = {}
    for planned in planned_runs:
        settings = settings_of(planned.options, facts[planned.device], release)
        if settings:
            request = judge.PartitionRequest(source=SourceModel(path=str(folder / planned.file)), settings=settings)
            key = f"{planned.sha256} {settings}"
            asked.setdefault(key, (request, planned.size_bytes, []))[2].append(planned)
    predictions: dict[str, campaign_record.Prediction] = {}
    most_claimed: dict[tuple[str, str], node_placement.Placement] = {}
    if not asked:
        return predictions, ()

    tasks = [
        workers.Task(label=key, call=partial(judge.judge, request), memory_bytes=workers.needed_bytes(size))
        for key, (request, size, _) in asked.items()
    ]
    with progress.stage("predict", len(tasks)) as stage:
        limit = workers.time_limit(size for _, size, _ in asked.values())
        for outcome in workers.run_tasks(tasks, memory_bytes=workers.memory_budget(), timeout_seconds=limit):
            runs, answer = asked[outcome.task.label][2], outcome.value
            prediction = summarized(answer) if answer else campaign_record.Prediction(error=str(outcome.error))
            predictions |= {planned.id: prediction for planned in runs}
            if answer and answer.decisions:
                placement = node_placement.placement_of(
                    answer, model=runs[0].model, variant=runs[0].variant, device=runs[0].device
                )
                graph = placement.model, placement.provider
                # Most nodes by share, then fewest partitions, then the first by name: tasks end in any order
                most_claimed[graph] = min(
                    placement,
                    most_claimed.get(graph, placement),
                    key=lambda candidate: (
                        -candidate.claimed / len(candidate.nodes),
                        candidate.partitions,
                        candidate.variant,
                        candidate.device,
                    ),
                )
            stage.done()
    return predictions, tuple(most_claimed[graph] for graph in sorted(most_claimed))


def settings_of(options: RunOptions, facts: DeviceFacts, release: str) -> claim_answer.Settings | None:
    """What a run's options mean to the rules; None where there are none: provider, release or processor unknown."""
    rules = provider_rules.rules_of_run(options.provider, options.provider_options)
    if rules is None:
        return None
    level = min(facts.api_level, 31) if facts.api_level >= 27 else None
    given = [f"{key}={value}" for key, value in options.provider_options.items()]
    try:
        return claim_answer.make_settings(
            rules.name,
            release=release,
            abi=facts.abis[0] if facts.abis else "",
            android=facts.platform == "android",
            api_level=level,
            options={rules.provider: given},
            plugin=facts.platform != "android",
            nnapi_flags=[flag.value for flag in options.flags],
            stop_ops=options.session_config.get("ep.nnapi.partitioning_stop_ops"),
        )
    except ConfigError:
        return None


def summarized(answer: claim_answer.ModelAnswer) -> campaign_record.Prediction:
    """The part of an answer that a report shows and a run is compared with."""
    load = answer.load
    refused: dict[tuple[str, str], list[str]] = {}
    for decision in answer.decisions:
        if not decision.claimed:
            refused.setdefault((decision.op_type, decision.reason or ""), []).append(decision.name)
    return campaign_record.Prediction(
        nodes=answer.nodes,
        claimed=answer.claimed,
        partitions=load.compiled if load else len(answer.partitions),
        estimate=bool(load and load.estimate),
        rules=answer.rules_release if answer.rules_release != answer.ort_release else "",
        error=answer.error or (load.error if load and not load.at_run else None),
        refused=tuple(
            campaign_record.RefusedNodes(operator=key[0], reason=key[1], nodes=tuple(names))
            for key, names in refused.items()
        ),
    )


AFTER_LOAD = frozenset({"inputs", "first_run", "run", "outputs", "release", "done"})
"""The probe's stages after a session was created. A refused session has a `load_ns`, too: the time until it failed."""


def finding(prediction: campaign_record.Prediction | None, results: Sequence[RunResult]) -> str:
    """Where what was measured is not what was predicted, in words; "" where they agree or nothing can be compared."""
    if not prediction:
        return ""
    loaded = any(
        result.load_ns and (result.failure is None or result.failure.stage in AFTER_LOAD) for result in results
    )
    if prediction.error:
        return f"a failure was predicted, but the session was created: {prediction.error}" if loaded else ""
    measured = next((partitions for result in results if (partitions := measured_partitions(result)) is not None), None)
    if measured is None or measured == prediction.partitions:
        return ""
    sure = "estimated" if prediction.estimate else "predicted"
    return f"{measured} partitions were measured where {prediction.partitions} were {sure}"


def unexpected(
    measured: Iterable[report_model.MeasuredRun], profiles: Iterable[report_profiles.Profiled]
) -> Iterator[Finding]:
    """Runs that were not as predicted; profile runs log most, and tell what others leave out."""
    for planned, runs in measured:
        prediction = next((run.prediction for run in runs if run.prediction is not None), None)
        if text := finding(prediction, [run.result for run in runs]):
            yield core_errors.warning(text, planned.place)
    yield from (
        core_errors.warning(profile.finding, campaign_record.place(profile.device, profile.name, profile.run))
        for profile in profiles
        if profile.finding
    )


def crowded_text(threads: int, cores: int) -> str:
    """That some threads wait for a core."""
    return f"{threads} threads on {cores} cores: more threads than cores"


def crowded(
    runs: Iterable[campaign_planned.PlannedRun] | Iterable[campaign_record.RecordedRun],
    devices: Iterable[DeviceFacts],
    host: campaign_record.Host,
) -> Iterator[Finding]:
    """Runs with more threads than the device has cores, once for each number."""
    cores = {facts.name: runner_device.core_count(facts, host.cores) for facts in devices}
    for device, threads in dict.fromkeys((run.device, run.options.intra_op_threads) for run in runs):
        if 0 < cores.get(device, 0) < threads:
            told = f"{crowded_text(threads, cores[device])}, which stalls single inferences: see mean and p90"
            yield core_errors.warning(told, device)


def measured_partitions(result: RunResult) -> int | None:
    """Partitions that the provider logged when it was asked last (NHWC providers are asked twice); None for no log."""
    coverage = ort_profile.measured_coverage(reversed(result.log))
    return coverage.partitions if coverage else None
