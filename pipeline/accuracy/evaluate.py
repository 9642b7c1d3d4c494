"""Runs model files and their original over data on this computer: each sample once, one in memory at a time.

Everything of a request and a result is plain data: models run in worker processes, where a crash costs one of them.
`score` makes of the outputs the metric, the interval of the drop and its verdict.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

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
from pipeline.check.reference import saturates_here
from pipeline.config import AccuracyConfig, MetricName
from pipeline.core.errors import ConfigError, Finding, ModelError, Severity
from pipeline.core.progress import Progress
from pipeline.core.providers import QNN
from pipeline.core.workers import Task, TaskOutcome, memory_budget, run_tasks, still_at_work, time_limit
from pipeline.dataset import Array, Dataset, Sample, TensorInfo, overlap, samples
from pipeline.model.onnx_model import load_model, prepare_model
from pipeline.model.session import ORIGINAL, CpuSettings, Role, not_prepacked, open_session, room_for, run_session
from pipeline.model.signature import own_inputs
from pipeline.model.sources import SourceModel, source_bytes

NO_BUDGET = AccuracyConfig()


Answer: TypeAlias = tuple[Sample, Outputs]
"""What a model made of one sample; its `expected` are the outputs of the original."""


def score(answers: Iterable[Answer], model: str, config: AccuracyConfig, data: str) -> AccuracyResult:
    """The result of all answers, of which one is in memory at a time; only contributions are kept.

    The first answer decides whether there are labels. ConfigError names the sample that does not fit the metric.
    """
    metric: Metric | None = None
    ours: list[Any] = []
    references: list[Any] = []
    drifts: dict[str, tuple[list[Any], list[Any]]] = {}
    not_finite = 0
    for sample, outputs in answers:
        if metric is None:
            metric = find_metric(config, labelled=sample.label is not None)
            if config.metric is None and metric.name == MetricName.AGREEMENT:  # nobody named a metric
                ((name, array),) = _chosen(metric, config, dict(sample.expected)).items()
                metric = metric if looks_like_classes(name, array) else METRICS[MetricName.COSINE]
        ours.append(_measured(metric, config, sample, outputs))
        if metric.needs is Needs.LABELS:
            references.append(_measured(metric, config, sample, dict(sample.expected)))
        lost = False  # whether an output is not finite where the original's is
        for name, expected in sample.expected:
            output = outputs.get(name)
            if output is None or expected.dtype.kind not in "fiub":
                continue
            if expected.shape == output.shape and expected.dtype.kind == output.dtype.kind == "f":
                lost |= bool((np.isfinite(expected) & ~np.isfinite(output)).any())
            powers, same = drifts.setdefault(name, ([], []))
            pair = {name: output}, {name: expected}
            powers.append(METRICS[MetricName.SQNR].measure(*pair))
            if class_scores(expected) is not None and class_scores(output) is not None:
                same.append(METRICS[MetricName.AGREEMENT].measure(*pair))
        not_finite += lost
    if metric is None:
        raise ConfigError("the evaluation data have no samples", where=data, remedy="give test data")
    findings = []
    for name, (powers, _) in drifts.items():
        sound = np.isfinite(rows := np.asarray(powers))
        if not sound.all():
            of_original = int((~sound[:, 2]).sum())
            whose, count = "the original's" if of_original else "the", of_original or int((~sound).any(axis=1).sum())
            what = f"{whose} output {name!r} has NaN or infinity, or another shape, on {count} of {len(rows)} samples"
            findings.append(Finding(
                severity=Severity.WARNING, what=what,
                why="no measure of error can be computed there, and such answers count as wrong",
                remedy="look for NaN in these samples first, then leave the layers that overflow in float",
            ))  # fmt: skip
    result = AccuracyResult(
        model=model,
        metric=metric.name,
        labelled=metric.needs is Needs.LABELS,
        samples=len(ours),
        data=data,
        value=_value(metric, ours),
        max_drop=config.max_drop,
        not_finite=not_finite,
        outputs=tuple(
            OutputDrift(
                output=name,
                sqnr_db=_value(METRICS[MetricName.SQNR], powers),
                psnr_db=_value(METRICS[MetricName.PSNR], powers),
                cosine=_value(METRICS[MetricName.COSINE], powers),
                max_error=_value(METRICS[MetricName.MAX_ERROR], powers),
                agreement=_value(METRICS[MetricName.AGREEMENT], same) if len(same) == len(powers) else None,
            )
            for name, (powers, same) in drifts.items()
        ),
        findings=tuple(findings),
    )
    judged = [drifts[name][0] for name in _chosen(metric, config, dict(sample.expected)) if name in drifts]
    finite_original = not judged or any(np.isfinite(np.asarray(powers)[:, 2]).any() for powers in judged)
    return _with_drop(result, metric, ours, references, sound=finite_original)


def _value(metric: Metric, contributions: list[Any]) -> float | None:
    return finite(metric.value(metric.pack(contributions), np.ones(len(contributions), np.int64)))


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


def _measured(metric: Metric, config: AccuracyConfig, sample: Sample, outputs: Outputs) -> Any:
    """The contribution of one sample; ConfigError with its name."""
    if metric.needs is Needs.LABELS and sample.label is None:
        raise ConfigError(
            "no label for this sample", where=sample.name, why="others before it have one",
            remedy="give every sample a label, or none",
        )  # fmt: skip
    truth = sample.label if metric.needs is Needs.LABELS else _chosen(metric, config, dict(sample.expected))
    try:
        return metric.measure(_chosen(metric, config, outputs), truth)
    except ConfigError as error:
        where = f"{error.where}, {sample.name}"
        raise ConfigError(error.what, where=where, why=error.why, remedy=error.remedy) from error


def _with_drop(
    result: AccuracyResult, metric: Metric, ours: list[Any], references: list[Any], *, sound: bool
) -> AccuracyResult:
    """The result with the drop from the original, its interval, and the verdict on a budget.

    Where the original gives NaN on every sample (not `sound`), no drop from it says anything: no interval. A value that
    could not be computed keeps no budget.
    """
    if result.value is None or not metric.share:
        return result if result.max_drop is None else msgspec.structs.replace(result, verdict=DropVerdict.CANNOT_TELL)
    count = result.samples
    mine, original = metric.pack(ours), metric.pack(references) if references else None

    def reference(weights: Any) -> float:
        return float(metric.perfect or 0) if original is None else metric.value(original, weights)

    def drop(weights: Any) -> float:
        worse = reference(weights) - metric.value(mine, weights)
        return worse if metric.higher_is_better else -worse

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
    if result.max_drop is None or result.drop is None:
        return result
    verdict, needed = verdict_of(interval, result.max_drop), None
    if verdict is DropVerdict.CANNOT_TELL and metric.paired and sound:
        needed = paired_samples_needed(lost, gained, count, result.max_drop)
    elif verdict is DropVerdict.CANNOT_TELL:
        needed = samples_needed(result.drop, interval, count, result.max_drop)
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
        (
            Sample(
                name=f"sample {number}", inputs={}, label=labels[number] if labels else None,
                expected=[(name, array[number]) for name, array in expected.items()],
            ),
            {name: array[number] for name, array in ours.items()},
        )
        for number in range(counts.pop())
    )  # fmt: skip
    return score(answers, model, accuracy, "")


TIMEOUT_SECONDS = 6 * 3600.0
"""How long the comparison of two data sets may take: they have no common size, and a hang must end some time."""
FLOATS = {"tensor(float16)": "float16", "tensor(float)": "float32", "tensor(double)": "float64"}
"""Types that inputs of another precision are converted to: files of half precision may take half inputs."""


class AccuracyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A model file (.onnx or .ort), its original, and the data that both are run on.

    `session_options` are config entries that the file needs. With a `chip` the model runs in the simulator of its NPU.
    Where `calibration` is given, samples that it shares with `data` are reported.
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
    prepacked: bool = True
    """Whether memory allows the session that apps have."""


def measure_accuracy(requests: Sequence[AccuracyRequest], progress: Progress) -> list[TaskOutcome[AccuracyResult]]:
    """The accuracy of each model in a worker process, in the order of the requests: a result or an error each.

    Two data sets are searched for samples in common once, however many models are measured on them.
    """
    outcomes = {}
    with scratch_folder() as work, progress.stage("accuracy", len(requests)) as stage:
        # Warnings by what the samples in common depend on, both data sets and the inputs of the original; what is wrong
        # with the data is for the measurement to report
        keys = [msgspec.json.encode((r.reference.path, r.dimensions, r.data, r.calibration)) for r in requests]
        distinct = {key: request for key, request in zip(keys, requests, strict=True) if request.calibration}
        searches = {
            Task(label=row.model, call=partial(shared_samples, msgspec.structs.replace(row, work_folder=str(work)))): k
            for k, row in distinct.items()
        }
        shared = {
            searches[outcome.task]: outcome.value or ()
            for outcome in run_tasks(searches, timeout_seconds=TIMEOUT_SECONDS)
        }
        tasks = []
        for request in requests:
            room = room_for(_size(request.model) + _size(request.reference.path))
            whole = msgspec.structs.replace(request, work_folder=str(work), prepacked=room.prepacked)
            needed = room.memory_bytes + request.data.file_bytes
            tasks.append(Task(label=request.model, call=partial(evaluate_model, whole), memory_bytes=needed))
        places = {task: place for place, task in enumerate(tasks)}
        limit = time_limit(_size(path) for request in requests for path in (request.model, request.reference.path))
        if any(request.chip for request in requests):
            limit = TIMEOUT_SECONDS  # the simulator has limits of its own
        for outcome in run_tasks(tasks, memory_bytes=memory_budget(), timeout_seconds=limit):
            place = places[outcome.task]
            if result := outcome.value:
                findings = (*result.findings, *shared.get(keys[place], ()))
                outcome = dataclasses.replace(outcome, value=msgspec.structs.replace(result, findings=findings))
            outcomes[place] = outcome
            stage.done()
    return [outcomes[place] for place in range(len(tasks))]


def shared_samples(request: AccuracyRequest) -> tuple[Finding, ...]:
    """A warning where a sample is in both data sets of a request; errors as `samples` raises them."""
    loaded = load_model(request.reference, Path(request.work_folder))
    takes = own_inputs(prepare_model(loaded, request.dimensions).proto)
    finding = overlap(request.calibration, request.data, takes) if request.calibration else None
    return (finding,) if finding else ()


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
    # The session of an app, beside the original as it is defined
    settings = CpuSettings(config=request.session_options, prepacked=request.prepacked)
    if Path(request.model).suffix.lower() == ".ort":
        ours = open_session(Path(request.model), settings)
    else:
        loaded = load_model(SourceModel(path=request.model), Path(request.work_folder))
        ours = open_session(prepare_model(loaded, request.dimensions), settings, request.model)
    reference = open_session(original, dataclasses.replace(ORIGINAL, prepacked=request.prepacked))
    # It takes and gives what its original does, by name
    for kind, mine, originals in (
        ("inputs", ours.get_inputs(), reference.get_inputs()),
        ("outputs", ours.get_outputs(), reference.get_outputs()),
    ):
        lacking = {value.name for value in originals} ^ {value.name for value in mine}
        if lacking and (kind == "inputs" or {value.name for value in originals} & lacking):
            raise ModelError(
                f"the model has other {kind} than its original", where=request.model,
                why=f"{', '.join(value.name for value in mine)} instead of {', '.join(row.name for row in originals)}",
                remedy="name the model that it was made from (--reference)",
            )  # fmt: skip
    answers = (_simulated if request.chip else _answers)(request, takes, ours, reference)
    result = score(answers, request.model, request.accuracy, request.data.source)
    if request.chip:
        return msgspec.structs.replace(result, chip=request.chip)
    if not request.prepacked:
        result = msgspec.structs.replace(result, findings=(*result.findings, not_prepacked(request.model)))
    if saturates_here(file := Path(request.model)):
        saturated = Finding(
            severity=Severity.WARNING,
            what="8-bit sums saturate on this computer's processor, which has no VNNI",
            where=str(file),
            why="phones and newer processors compute the file exactly, so its accuracy there may be better",
            remedy="measure on a phone, on a computer with VNNI, or the .onnx file that it was made from",
        )
        return msgspec.structs.replace(result, findings=(*result.findings, saturated))
    return result


def _answers(request: AccuracyRequest, takes: Sequence[TensorInfo], ours: Any, reference: Any) -> Iterator[Answer]:
    convert = _conversion(ours, takes, request.model)
    for sample in samples(request.data, takes):
        still_at_work()
        expected = run_session(reference, sample.inputs, request.reference.name)
        where = f"{request.model}, {sample.name}"
        try:
            outputs = run_session(ours, convert(sample.inputs), where, Role.MODEL)
        except ModelError as error:
            what = "the model fails on this sample"
            raise ModelError(what, where=where, why=error.why, remedy=error.remedy) from error
        yield dataclasses.replace(sample, expected=list(expected.items())), outputs


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
            yield dataclasses.replace(sample, expected=list(expected.items())), values


def _chunk(waiting: Iterator[Sample]) -> list[Sample]:
    """The next samples that one process of the simulator runs; none at the end."""
    chunk, size = list[Sample](), 0
    for sample in waiting:
        chunk.append(sample)
        size += sum(array.nbytes for array in sample.inputs.values())
        if len(chunk) == AT_A_TIME or size >= AT_A_TIME_BYTES:
            break
    return chunk


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
