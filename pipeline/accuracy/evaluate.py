"""Runs model files and their original over data on this computer: each sample once, one in memory at a time.

Everything of a request and a result is plain data: models run in worker processes, where a crash costs one of them.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from device_runner.files import scratch_folder
from device_runner.providers import CHIPS
from pipeline.accuracy.result import AccuracyResult
from pipeline.accuracy.score import Answer, score
from pipeline.check.many import open_artifact
from pipeline.check.reference import saturates_here, saturation_finding
from pipeline.config import AccuracyConfig
from pipeline.core.errors import Finding, ModelError
from pipeline.core.progress import Progress
from pipeline.core.providers import QNN
from pipeline.core.workers import Task, TaskOutcome, memory_budget, needed_bytes, run_tasks, still_at_work, time_limit
from pipeline.dataset import Array, Dataset, Sample, TensorInfo, overlap, samples
from pipeline.dataset.candidates import open_session, run_session
from pipeline.model.onnx_model import load_model, prepare_model
from pipeline.model.signature import own_inputs
from pipeline.model.sources import SourceModel, source_bytes

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
    for kind, mine, wanted in (
        ("inputs", ours.get_inputs(), reference.get_inputs()),
        ("outputs", ours.get_outputs(), reference.get_outputs()),
    ):
        lacking = {value.name for value in wanted} ^ {value.name for value in mine}
        if lacking and (kind == "inputs" or {value.name for value in wanted} & lacking):
            raise ModelError(
                f"the model has other {kind} than its original", where=where,
                why=f"{', '.join(value.name for value in mine)} instead of {', '.join(value.name for value in wanted)}",
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
        wanted = FLOATS.get(value.type)
        if info.dtype and wanted and info.dtype.value in FLOATS.values():
            types[value.name] = wanted
        elif info.dtype and (wanted or info.dtype.value in FLOATS.values()):
            raise ModelError(
                f"the model takes another type as {value.name!r}", where=where,
                why=f"it takes {value.type}, the original {info}", remedy="keep the original's inputs",
            )  # fmt: skip
    return lambda feeds: {
        name: array.astype(types[name], copy=False) if name in types else array for name, array in feeds.items()
    }
