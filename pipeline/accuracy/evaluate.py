"""Runs model files and their original over data on this computer: each sample once, one in memory at a time.

Everything of a request and a result is plain data: models run in worker processes, where a crash costs one of them.
`score` makes of the outputs the metric, the interval of the drop and its verdict.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from device_runner.files import scratch_folder
from device_runner.providers import CHIPS
from device_runner.spec import TensorFile
from pipeline.accuracy.metrics import (
    METRICS,
    DropInterval,
    Metric,
    Needs,
    Outputs,
    bootstrap_interval,
    class_scores,
    drop_of,
    find_metric,
    finite,
    looks_like_classes,
    mcnemar,
    paired_interval,
    paired_samples_needed,
    samples_needed,
    verdict_of,
)
from pipeline.accuracy.result import AccuracyResult, DropVerdict, OutputDrift
from pipeline.check.compare import read_tensor
from pipeline.check.many import open_artifact
from pipeline.check.reference import saturates_here, saturation_finding
from pipeline.config import AccuracyConfig, MetricName
from pipeline.core.errors import ConfigError, Finding, ModelError, Severity
from pipeline.core.progress import Progress
from pipeline.core.providers import QNN
from pipeline.core.workers import Task, TaskOutcome, memory_budget, needed_bytes, run_tasks, still_at_work, time_limit
from pipeline.dataset import Array, Dataset, Sample, TensorInfo, overlap, samples
from pipeline.dataset.guess import open_session, run_session
from pipeline.model.onnx_model import load_model, prepare_model
from pipeline.model.signature import own_inputs
from pipeline.model.sources import SourceModel, source_bytes

NO_BUDGET = AccuracyConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a model and its original made of one sample."""

    sample: str
    outputs: Outputs
    expected: Outputs
    label: Any = None


def score(answers: Iterable[Answer], model: str, config: AccuracyConfig, data: str) -> AccuracyResult:
    """The result of all answers, of which one is in memory at a time; only contributions are kept.

    The first answer decides whether there are labels. ConfigError names the sample that does not fit the metric.
    """
    metric: Metric | None = None
    ours: list[Any] = []
    references: list[Any] = []
    drifts: dict[str, tuple[list[Any], list[Any]]] = {}
    labelled, not_finite = False, 0
    for answer in answers:
        if metric is None:
            labelled = answer.label is not None
            metric = _suited(config, answer, labelled=labelled)
        ours.append(_measured(metric, config, answer, answer.outputs))
        if metric.needs is Needs.LABELS:
            references.append(_measured(metric, config, answer, answer.expected))
        not_finite += any(_lost(expected, answer.outputs.get(name)) for name, expected in answer.expected.items())
        for name, expected in answer.expected.items():
            if expected.dtype.kind not in "fiub" or name not in answer.outputs:
                continue
            powers, same = drifts.setdefault(name, ([], []))
            pair = {name: answer.outputs[name]}, {name: expected}
            powers.append(METRICS[MetricName.SQNR].measure(*pair))
            if class_scores(expected) is not None and class_scores(answer.outputs[name]) is not None:
                same.append(METRICS[MetricName.AGREEMENT].measure(*pair))
    if metric is None:
        raise ConfigError("the evaluation data have no samples", where=data, remedy="give test data")
    result = AccuracyResult(
        model=model,
        metric=metric.name,
        labelled=metric.needs is Needs.LABELS,
        samples=len(ours),
        data=data,
        value=finite(metric.value(metric.pack(ours), np.ones(len(ours), np.int64))),
        max_drop=config.max_drop,
        not_finite=not_finite,
        outputs=tuple(_drift(name, *parts) for name, parts in drifts.items()),
        findings=tuple(
            _not_finite(name, powers) for name, (powers, _) in drifts.items() if not np.isfinite(powers).all()
        ),
    )
    judged = [drifts[name][0] for name in _chosen(metric, config, answer.expected) if name in drifts]
    sound = not judged or any(np.isfinite(np.asarray(powers)[:, 2]).any() for powers in judged)
    return _with_drop(result, metric, ours, references, sound=sound)


def _suited(config: AccuracyConfig, answer: Answer, *, labelled: bool) -> Metric:
    """The metric; without a name for it and without classes the cosine of outputs."""
    metric = find_metric(config, labelled=labelled)
    if config.metric is None and metric.name == MetricName.AGREEMENT:
        ((name, array),) = _chosen(metric, config, answer.expected).items()
        return metric if looks_like_classes(name, array) else METRICS[MetricName.COSINE]
    return metric


def _chosen(metric: Metric, config: AccuracyConfig, outputs: Outputs) -> Outputs:
    """The outputs that a metric gets: all, or the one that the config names, or the first."""
    if metric.every_output:
        return outputs
    name = config.output or next(iter(outputs), "")
    if name not in outputs:
        raise ConfigError(
            f"the model has no output {name!r}", where="accuracy.output",
            why=f"outputs: {', '.join(outputs) or 'none'}", remedy="name one of them",
        )  # fmt: skip
    return {name: outputs[name]}


def _measured(metric: Metric, config: AccuracyConfig, answer: Answer, outputs: Outputs) -> Any:
    """The contribution of one answer; ConfigError with the sample's name."""
    if metric.needs is Needs.LABELS and answer.label is None:
        raise ConfigError(
            "no label for this sample", where=answer.sample, why="others before it have one",
            remedy="give every sample a label, or none",
        )  # fmt: skip
    truth = answer.label if metric.needs is Needs.LABELS else _chosen(metric, config, answer.expected)
    try:
        return metric.measure(_chosen(metric, config, outputs), truth)
    except ConfigError as error:
        where = f"{error.where}, {answer.sample}"
        raise ConfigError(error.what, where=where, why=error.why, remedy=error.remedy) from error


def _lost(original: Any, output: Any) -> bool:
    """Whether an output is not finite where the original's is."""
    if output is None or original.shape != output.shape or not {original.dtype.kind, output.dtype.kind} <= {"f"}:
        return False
    return bool((np.isfinite(original) & ~np.isfinite(output)).any())


def _not_finite(name: str, powers: list[Any]) -> Finding:
    """A warning about NaN and infinity, or outputs of another shape: no measure of error holds there."""
    rows = np.asarray(powers)
    of_original = int((~np.isfinite(rows[:, 2])).sum())
    whose, count = (
        ("the original's", of_original) if of_original else ("the", int((~np.isfinite(rows)).any(axis=1).sum()))
    )
    return Finding(
        severity=Severity.WARNING,
        what=f"{whose} output {name!r} has NaN or infinity, or another shape, on {count} of {len(rows)} samples",
        why="no measure of error can be computed there, and such answers count as wrong",
        remedy="look for NaN in these samples first, then leave the layers that overflow in float",
    )


def _drift(name: str, powers: list[Any], same: list[Any]) -> OutputDrift:
    def value(metric: MetricName, contributions: list[Any]) -> float | None:
        row = METRICS[metric]
        return finite(row.value(row.pack(contributions), np.ones(len(contributions), np.int64)))

    return OutputDrift(
        output=name,
        sqnr_db=value(MetricName.SQNR, powers),
        psnr_db=value(MetricName.PSNR, powers),
        cosine=value(MetricName.COSINE, powers),
        max_error=value(MetricName.MAX_ERROR, powers),
        agreement=value(MetricName.AGREEMENT, same) if len(same) == len(powers) else None,
    )


def _with_drop(
    result: AccuracyResult, metric: Metric, ours: list[Any], references: list[Any], *, sound: bool
) -> AccuracyResult:
    """The result with the drop from the original, its interval, and the verdict on a budget.

    Where the original gives NaN on every sample (not `sound`), no drop from it says anything: no interval. A value that
    could not be computed keeps no budget.
    """
    if result.value is None or not metric.share:
        return result if result.max_drop is None else msgspec.structs.replace(result, verdict=DropVerdict.CANNOT_TELL)
    count, better = result.samples, metric.higher_is_better
    mine, original = metric.pack(ours), metric.pack(references) if references else None

    def reference(weights: Any) -> float:
        return float(metric.perfect or 0) if original is None else metric.value(original, weights)

    def drop(weights: Any) -> float:
        return drop_of(metric.value(mine, weights), reference(weights), higher_is_better=better)

    every = np.ones(count, np.int64)
    lost = gained = 0
    if metric.paired:
        right = every if original is None else original
        lost, gained = int((right > mine).sum()), int((right < mine).sum())
        interval: DropInterval | None = paired_interval(lost, gained, count)
    else:
        # One sample can change a metric with a name by 1 at most; a user's function has a scale of its own.
        span = 1.0 if metric.name in list(MetricName) else max(1.0, float(np.abs(mine).max()))
        interval = bootstrap_interval(drop, count, span, metric.resamples)
    interval = interval if sound else None
    if interval and metric.perfect is not None:  # nothing agrees better with the original than it does itself
        interval = max(0.0, interval[0]), interval[1]
    result = msgspec.structs.replace(
        result,
        reference_value=reference(every),
        drop=drop(every),
        drop_low=interval[0] if interval else None,
        drop_high=interval[1] if interval else None,
        p_value=mcnemar(lost, gained) if metric.paired and references else None,
    )
    return _judged(result, interval, (lost, gained) if metric.paired and sound else None)


def _judged(result: AccuracyResult, interval: DropInterval | None, pairs: tuple[int, int] | None) -> AccuracyResult:
    if result.max_drop is None or result.drop is None:
        return result
    verdict = verdict_of(interval, result.max_drop)
    needed = None
    if verdict is DropVerdict.CANNOT_TELL and pairs:
        needed = paired_samples_needed(*pairs, result.samples, result.max_drop)
    elif verdict is DropVerdict.CANNOT_TELL:
        needed = samples_needed(result.drop, interval, result.samples, result.max_drop)
    return msgspec.structs.replace(result, verdict=verdict, samples_needed=needed)


def measure_outputs(
    model: str,
    outputs: Iterable[TensorFile],
    originals: Iterable[TensorFile],
    labels: Sequence[int | str] = (),
    accuracy: AccuracyConfig = NO_BUDGET,
) -> AccuracyResult:
    """The same metric on outputs that a device computed; ModelError for tensors that have other samples than these.

    Both are raw tensors of stacked samples, as in pipeline.check.result.LabelledSet; a label for each, or none at all.
    """
    ours = {tensor.name: read_tensor(tensor) for tensor in outputs}
    expected = {tensor.name: read_tensor(tensor) for tensor in originals}
    counts = {len(array) for array in (*ours.values(), *expected.values())}
    counts |= {len(labels)} if labels else set()
    if set(expected) - set(ours) or len(counts) != 1:
        raise ModelError(
            "the device's outputs are not those of the original", where=model,
            why=f"outputs {', '.join(ours)} instead of {', '.join(expected)}, samples and labels {sorted(counts)}",
            remedy="run the labelled samples on the device again",
        )  # fmt: skip
    answers = (
        Answer(
            sample=f"sample {number}",
            outputs={name: array[number] for name, array in ours.items()},
            expected={name: array[number] for name, array in expected.items()},
            label=labels[number] if labels else None,
        )
        for number in range(counts.pop())
    )
    return score(answers, model, accuracy, "")


TIMEOUT_SECONDS = 6 * 3600.0
"""How long the comparison of two data sets may take: they have no common size, and a hang must end some time."""
FLOATS = {"tensor(float16)": "float16", "tensor(float)": "float32", "tensor(double)": "float64"}
"""Types that inputs of another precision are converted to: files of half precision may take half inputs."""


class AccuracyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A model file (.onnx or .ort), its original, and the data that both are run on.

    `session_options` are config entries that the file needs. With a `chip` the model runs in the simulator of its NPU.
    Where `calibration` is given, samples that it shares with
    `data` are reported.
    """

    model: str
    reference: SourceModel
    data: Dataset
    dimensions: dict[str, int] = {}
    session_options: dict[str, str] = {}
    chip: str = ""
    accuracy: AccuracyConfig = AccuracyConfig()
    calibration: Dataset | None = None
    work_folder: str = ""


def measure_accuracy(requests: Sequence[AccuracyRequest], progress: Progress) -> list[TaskOutcome[AccuracyResult]]:
    """The accuracy of each model in a worker process, in the order of the requests: a result or an error each.

    Two data sets are searched for samples in common once, however many models are measured on them.
    """
    outcomes = {}
    with scratch_folder() as work, progress.stage("accuracy", len(requests)) as stage:
        shared = _shared_samples(requests, work)
        tasks = [
            Task(
                label=request.model,
                call=partial(evaluate_model, msgspec.structs.replace(request, work_folder=str(work))),
                memory_bytes=needed_bytes(2 * (_size(request.model) + _size(request.reference.path)))
                + request.data.file_bytes,
            )
            for request in requests
        ]
        places = {task: place for place, task in enumerate(tasks)}
        limit = time_limit(_size(path) for request in requests for path in (request.model, request.reference.path))
        if any(request.chip for request in requests):
            limit = TIMEOUT_SECONDS  # the simulator has limits of its own
        for outcome in run_tasks(tasks, memory_bytes=memory_budget(), timeout_seconds=limit):
            place = places[outcome.task]
            value = outcome.value and _with_finding(outcome.value, shared.get(_data_key(requests[place])))
            outcomes[place] = dataclasses.replace(outcome, value=value)
            stage.done()
    return [outcomes[place] for place in range(len(tasks))]


def _data_key(request: AccuracyRequest) -> bytes:
    """What the samples in common depend on: both data sets, and the inputs of the original."""
    return msgspec.json.encode((request.reference.path, request.dimensions, request.data, request.calibration))


def _shared_samples(requests: Sequence[AccuracyRequest], work: Path) -> dict[bytes, Finding]:
    """Warnings by data; what is wrong with the data is for the measurement to report."""
    distinct = {_data_key(request): request for request in requests if request.calibration}
    keys = {
        Task(label=row.model, call=partial(shared_samples, msgspec.structs.replace(row, work_folder=str(work)))): key
        for key, row in distinct.items()
    }
    outcomes = run_tasks(keys, timeout_seconds=TIMEOUT_SECONDS)
    return {keys[outcome.task]: finding for outcome in outcomes for finding in outcome.value or ()}


def shared_samples(request: AccuracyRequest) -> tuple[Finding, ...]:
    """A warning where a sample is in both data sets of a request; errors as `samples` raises them."""
    loaded = load_model(request.reference, Path(request.work_folder))
    takes = own_inputs(prepare_model(loaded, request.dimensions).proto)
    finding = overlap(request.calibration, request.data, takes) if request.calibration else None
    return (finding,) if finding else ()


def _with_finding(result: AccuracyResult, finding: Finding | None) -> AccuracyResult:
    return msgspec.structs.replace(result, findings=(*result.findings, finding)) if finding else result


def _size(path: str) -> int:
    return source_bytes(SourceModel(path=path))


def evaluate_model(request: AccuracyRequest) -> AccuracyResult:
    """Run a model and its original over the data, on this computer's CPU, the model in a chip's simulator if asked.

    ConfigError for the first wrong sample and for a metric that does not suit the data; ModelError for a model that
    does not run, or has other inputs or outputs than the original.
    """
    loaded = load_model(request.reference, Path(request.work_folder))
    original = prepare_model(loaded, request.dimensions)
    takes = own_inputs(original.proto)
    ours = _open(request)
    reference = open_session(original, optimized=True)
    _check_interface(ours, reference, request.model)
    answers = (_simulated if request.chip else _answers)(request, takes, ours, reference)
    result = score(answers, request.model, request.accuracy, request.data.source)
    if request.chip:
        return msgspec.structs.replace(result, chip=request.chip)
    return _with_finding(result, saturation_finding(file) if saturates_here(file := Path(request.model)) else None)


def _open(request: AccuracyRequest) -> Any:
    """A session of the model that is measured; ModelError when it does not load."""
    if Path(request.model).suffix.lower() == ".ort":
        return open_artifact(request.model, request.session_options)
    prepared = prepare_model(load_model(SourceModel(path=request.model), Path(request.work_folder)), request.dimensions)
    try:
        return open_session(prepared, optimized=True)
    except ModelError as error:
        raise ModelError(
            "the model does not run on this computer's CPU", where=request.model, why=error.why,
            remedy="leave it out, or try another onnxruntime",
        ) from error  # fmt: skip


def _check_interface(ours: Any, reference: Any, where: str) -> None:
    """ModelError unless the model takes and gives what its original does, by name."""
    for kind, mine, originals in (
        ("inputs", ours.get_inputs(), reference.get_inputs()),
        ("outputs", ours.get_outputs(), reference.get_outputs()),
    ):
        lacking = {value.name for value in originals} ^ {value.name for value in mine}
        if lacking and (kind == "inputs" or {value.name for value in originals} & lacking):
            raise ModelError(
                f"the model has other {kind} than its original", where=where,
                why=f"{', '.join(value.name for value in mine)} instead of {', '.join(row.name for row in originals)}",
                remedy="name the model that it was made from (--reference)",
            )  # fmt: skip


def _answers(request: AccuracyRequest, takes: Sequence[TensorInfo], ours: Any, reference: Any) -> Iterator[Answer]:
    convert = _conversion(ours, takes, request.model)
    for sample in samples(request.data, takes):
        still_at_work()
        expected = run_session(reference, sample.inputs, request.reference.name)
        yield Answer(
            sample=sample.name,
            outputs=_run(ours, convert(sample.inputs), f"{request.model}, {sample.name}"),
            expected=expected,
            label=sample.label,
        )


AT_A_TIME = 64
"""Samples of one process of the simulator, of so many bytes at most: making its session takes as long as some."""
AT_A_TIME_BYTES = 64 << 20


def _simulated(request: AccuracyRequest, takes: Sequence[TensorInfo], ours: Any, reference: Any) -> Iterator[Answer]:
    """As `_answers`; ModelError where the chip takes nothing of the model or its simulator crashes.

    MissingError without the compiler.
    """
    from pipeline.partition.answer import Refusal, Settings
    from pipeline.partition.judge import PartitionRequest, judge
    from pipeline.partition.qnn.simulate import run_samples

    settings = Settings(provider=QNN, chip=request.chip)
    source = SourceModel(path=request.model)
    claim = judge(PartitionRequest(source=source, settings=settings, sizes=request.dimensions))
    if claim.error or not claim.claimed or (claim.load and claim.load.error):
        why, remedy = (claim.load.error, claim.load.remedy) if claim.load and claim.load.error else (claim.error, "")
        raise ModelError(f"no NPU numbers of {request.chip}", where=request.model, why=why or "it takes no node",
                         remedy=remedy or "see `ort-mobile partition --ep qnn`")  # fmt: skip
    model = prepare_model(load_model(SourceModel(path=request.model), Path(request.work_folder)), request.dimensions)
    convert = _conversion(ours, takes, request.model)
    waiting = samples(request.data, takes)
    while chunk := _chunk(waiting):
        still_at_work()
        with scratch_folder() as folder:
            feeds = [convert(sample.inputs) for sample in chunk]
            outputs = run_samples(model, CHIPS[request.chip], feeds, folder / "model.onnx")
        if isinstance(outputs, Refusal):
            raise ModelError(f"the model does not run on {request.chip}", where=request.model, why=outputs.text,
                             remedy=outputs.remedy or "see `ort-mobile partition --ep qnn --simulate`")  # fmt: skip
        for sample, values in zip(chunk, outputs, strict=True):
            expected = run_session(reference, sample.inputs, request.reference.name)
            yield Answer(sample=sample.name, outputs=values, expected=expected, label=sample.label)


def _chunk(waiting: Iterator[Sample]) -> list[Sample]:
    """The next samples that one process of the simulator runs; none at the end."""
    chunk, size = list[Sample](), 0
    for sample in waiting:
        chunk.append(sample)
        size += sum(array.nbytes for array in sample.inputs.values())
        if len(chunk) == AT_A_TIME or size >= AT_A_TIME_BYTES:
            break
    return chunk


def _run(session: Any, feeds: Mapping[str, Array], where: str) -> dict[str, Array]:
    try:
        return run_session(session, feeds, where)
    except ModelError as error:
        raise ModelError("the model fails on this sample", where=where, why=error.why, remedy=error.remedy) from error


def _conversion(
    session: Any, takes: Sequence[TensorInfo], where: str
) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """Inputs of the original as those of the model: floats of another width where it takes such."""
    types = {}
    for value in session.get_inputs():
        info = next(info for info in takes if info.name == value.name)
        element_type = FLOATS.get(value.type)
        if info.dtype and element_type and info.dtype.value in FLOATS.values():
            types[value.name] = element_type
        elif info.dtype and (element_type or info.dtype.value in FLOATS.values()):
            raise ModelError(
                f"the model takes another type as {value.name!r}", where=where,
                why=f"it takes {value.type}, the original {info}", remedy="keep the original's inputs",
            )  # fmt: skip
    return lambda feeds: {
        name: array.astype(types[name], copy=False) if name in types else array for name, array in feeds.items()
    }
