"""What is expected of each run before it is measured, and profile runs checked against it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from device_runner.device import DeviceFacts
from device_runner.spec import RunOptions
from pipeline.campaign.plan import PlannedRun, planned_id
from pipeline.campaign.record import Prediction, RefusedNodes
from pipeline.core.errors import ConfigError
from pipeline.core.progress import Progress
from pipeline.core.providers import rules_of_run
from pipeline.core.workers import Task, memory_budget, needed_bytes, run_tasks, time_limit
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import ModelAnswer, Settings, make_settings
from pipeline.partition.judge import PartitionRequest, judge
from pipeline.partition.placement import Placement, placement_of


@dataclass(frozen=True, slots=True)
class Predicted:
    """Predictions by the id of planned runs, and of each model and provider the graph that it claims most of."""

    by_run: Mapping[str, Prediction] = field(default_factory=dict)
    placements: tuple[Placement, ...] = ()


def predict(
    planned_runs: Sequence[PlannedRun], facts: Mapping[str, DeviceFacts], release: str, folder: Path, progress: Progress
) -> Predicted:
    """What is expected of runs with providers whose rules are known; equal questions are asked once."""
    asked: dict[str, tuple[PartitionRequest, int, list[PlannedRun]]] = {}
    for planned in planned_runs:
        settings = settings_of(planned.options, facts[planned.device], release)
        if settings:
            file = str(folder / planned.file)
            request = PartitionRequest(source=SourceModel(path=file), settings=settings)
            key = f"{planned.sha256} {settings}"
            asked.setdefault(key, (request, planned.size_bytes, []))[2].append(planned)
    return _answers(asked, progress) if asked else Predicted()


def _answers(asked: Mapping[str, tuple[PartitionRequest, int, list[PlannedRun]]], progress: Progress) -> Predicted:
    tasks = [
        Task(label=key, request=request, memory_bytes=needed_bytes(size)) for key, (request, size, _) in asked.items()
    ]
    found: dict[str, Prediction] = {}
    placed: dict[tuple[str, str], Placement] = {}
    with progress.stage("predict", len(tasks)) as stage:
        limit = time_limit(size for _, size, _ in asked.values())
        for outcome in run_tasks(judge, ModelAnswer, tasks, memory_bytes=memory_budget(), timeout_seconds=limit):
            runs, answer = asked[outcome.task.label][2], outcome.value
            prediction = summarized(answer) if answer else Prediction(error=str(outcome.error))
            found |= {planned_id(planned): prediction for planned in runs}
            if answer and answer.decisions:
                one = placement_of(answer, model=runs[0].model, variant=runs[0].variant, device=runs[0].device)
                key = one.model, one.provider
                placed[key] = min(one, placed.get(key, one), key=_rank)
            stage.done()
    return Predicted(found, tuple(placed[key] for key in sorted(placed)))


def _rank(one: Placement) -> tuple[float, int, str, str]:
    """Most nodes by share, then fewest partitions, then the first by name: tasks end in any order."""
    return -one.claimed / len(one.nodes), one.partitions, one.variant, one.device


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
            android=facts.platform == "android",
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
        partitions=load.compiled if load else len(answer.partitions),
        estimate=bool(load and load.estimate),
        rules=answer.rules_release if answer.rules_release != answer.ort_release else "",
        error=answer.error or (load.error if load else None),
        refused=_refused(answer),
    )


def _refused(answer: ModelAnswer) -> tuple[RefusedNodes, ...]:
    found: dict[tuple[str, str], list[str]] = {}
    for one in answer.decisions:
        if not one.claimed:
            found.setdefault((one.op_type, one.reason or ""), []).append(one.name)
    return tuple(RefusedNodes(operator=key[0], reason=key[1], nodes=tuple(names)) for key, names in found.items())
