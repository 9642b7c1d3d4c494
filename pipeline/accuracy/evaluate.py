"""Runs model files and their original over data on this computer: each sample once, one in memory at a time.

Everything of a request and a result is plain data: models run in worker processes, where a crash costs one of them.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from device_runner import files as runner_files
from device_runner import providers as runner_providers
from pipeline import config as configs
from pipeline import dataset as datasets
from pipeline.accuracy.result import AccuracyResult
from pipeline.accuracy.score import Answer, check_outputs, score, worse_of
from pipeline.check import reference as check_reference
from pipeline.core import providers as provider_rules
from pipeline.core import workers
from pipeline.core.errors import Finding, ModelError, Severity
from pipeline.core.progress import Progress
from pipeline.dataset import Array, Dataset, TensorInfo
from pipeline.dataset import states as stream_states
from pipeline.model import onnx_model, random_numbers, signature
from pipeline.model import session as model_session
from pipeline.model import sources as model_sources
from pipeline.model.sources import SourceModel

TIMEOUT_SECONDS = 6 * 3600.0
"""How long the comparison of two data sets may take: they have no common size, and a hang must end some time."""
FLOATS = {"tensor(float16)": "float16", "tensor(float)": "float32", "tensor(double)": "float64"}
"""Types that inputs of another precision are converted to: files of half precision may take half inputs."""


class AccuracyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A model file (.onnx or .ort), its original, and the data that both are run on.

    `session_options` are config entries that the file needs, `app` is the session that a run asks for. With a `chip`
    the model runs in the simulator of its NPU. Where `calibration` is given, samples that it shares with `data` are
    reported. A model with `states` (output to input; None: those that are found in the graph) is judged in a stream of
    so many `steps`, beside its original.
    """

    model: str
    reference: SourceModel
    data: Dataset
    dimensions: dict[str, int] = {}
    session_options: dict[str, str] = {}
    app: model_session.AppSession = model_session.DEFAULT
    chip: str = ""
    accuracy: configs.AccuracyConfig = configs.AccuracyConfig()
    calibration: Dataset | None = None
    states: dict[str, str] | None = None
    steps: int = 100
    work_folder: str = ""
    prepacked: bool = True
    """Whether memory allows the session that apps have."""


def measure_accuracy(
    requests: Sequence[AccuracyRequest], progress: Progress
) -> list[workers.TaskOutcome[AccuracyResult]]:
    """The accuracy of each model in a worker process, in the order of the requests: a result or an error each.

    Two data sets are searched for samples in common once, however many models are measured on them.
    """
    outcomes = {}
    with runner_files.scratch_folder() as work, progress.stage("accuracy", len(requests)) as stage:
        # Warnings by what the samples in common depend on, both data sets and the inputs of the original; what is wrong
        # with the data is for the measurement to report
        keys = [msgspec.json.encode((r.reference.path, r.dimensions, r.data, r.calibration)) for r in requests]
        distinct = {key: request for key, request in zip(keys, requests, strict=True) if request.calibration}
        searches = {
            workers.Task(
                label=request.model,
                call=partial(shared_samples, msgspec.structs.replace(request, work_folder=str(work))),
            ): k
            for k, request in distinct.items()
        }
        shared = {
            searches[outcome.task]: outcome.value or ()
            for outcome in workers.run_tasks(searches, timeout_seconds=TIMEOUT_SECONDS)
        }
        tasks = []
        for request in requests:
            room = model_session.room_for(_size(request.model) + _size(request.reference.path))
            whole = msgspec.structs.replace(request, work_folder=str(work), prepacked=room.prepacked)
            needed = room.memory_bytes + request.data.file_bytes
            tasks.append(workers.Task(label=request.model, call=partial(evaluate_model, whole), memory_bytes=needed))
        places = {task: index for index, task in enumerate(tasks)}
        limit = workers.time_limit(
            _size(path) for request in requests for path in (request.model, request.reference.path)
        )
        if any(request.chip for request in requests):
            limit = TIMEOUT_SECONDS  # the simulator has limits of its own
        part = stage.part("this computer", len(tasks))  # after its first step it says how long the others take
        for outcome in workers.run_tasks(tasks, memory_bytes=workers.memory_budget(), timeout_seconds=limit):
            index = places[outcome.task]
            if result := outcome.value:
                findings = (*result.findings, *shared.get(keys[index], ()))
                outcome = dataclasses.replace(outcome, value=msgspec.structs.replace(result, findings=findings))
            outcomes[index] = outcome
            part.done()
    return [outcomes[index] for index in range(len(tasks))]


def shared_samples(request: AccuracyRequest) -> tuple[Finding, ...]:
    """A warning where a sample is in both data sets of a request; errors as `samples` raises them."""
    loaded = onnx_model.load_model(request.reference, Path(request.work_folder))
    takes = signature.own_inputs(onnx_model.prepare_model(loaded, request.dimensions).proto)
    finding = datasets.overlap(request.calibration, request.data, takes) if request.calibration else None
    return (finding,) if finding else ()


def _size(path: str) -> int:
    return model_sources.source_bytes(SourceModel(path=path))


def evaluate_model(request: AccuracyRequest) -> AccuracyResult:
    """Run a model and its original over the data, on this computer's CPU, the model in a chip's simulator if asked.

    ConfigError for the first wrong sample and for a metric that does not suit the data; ModelError for a model that
    does not run, or has other inputs or outputs than the original.
    """
    loaded = onnx_model.load_model(request.reference, Path(request.work_folder))
    original = onnx_model.prepare_model(loaded, request.dimensions)
    takes = signature.own_inputs(original.proto)
    # The session of an app, beside the original as it is defined
    config = request.session_options | request.app.config
    settings = model_session.CpuSettings(level=request.app.level, config=config, prepacked=request.prepacked)
    if Path(request.model).suffix.lower() == ".ort":
        ours = model_session.open_session(Path(request.model), settings)
    else:
        loaded = onnx_model.load_model(SourceModel(path=request.model), Path(request.work_folder))
        ours = model_session.open_session(onnx_model.prepare_model(loaded, request.dimensions), settings, request.model)
    reference = model_session.open_session(
        original, dataclasses.replace(model_session.ORIGINAL, prepacked=request.prepacked)
    )
    # It takes and gives what its original does, by name
    for kind, mine, originals in (
        ("inputs", ours.get_inputs(), reference.get_inputs()),
        ("outputs", ours.get_outputs(), reference.get_outputs()),
    ):
        lacking = {value.name for value in originals} ^ {value.name for value in mine}
        names = [", ".join(value.name for value in values) for values in (mine, originals)]
        if lacking and (kind == "inputs" or {value.name for value in originals} & lacking):
            raise ModelError(
                f"the model has other {kind} than its original",
                where=request.model,
                why=f"{names[0]} instead of {names[1]}",
                remedy="name the model that it was made from (--reference)",
            )
    _require_alike(ours.get_outputs(), reference.get_outputs(), request.model)
    outputs = [value.name for value in reference.get_outputs()]
    check_outputs(request.accuracy, outputs, request.reference.name)
    drawn = random_numbers.random_outputs(original.proto)
    spans = check_reference.output_spans(original.proto.graph)
    states = stream_states.states_of(original.proto, takes) if request.states is None else request.states
    result = None
    if states and not request.chip:
        signature.check_states(states, [info.name for info in takes], outputs, request.reference.name)
        result = _stream_result(
            msgspec.structs.replace(request, states=states),
            takes,
            (ours, reference),
            drawn,
            found=request.states is None,
        )
    if result is None or next(datasets.samples(request.data, takes)).label is not None:
        answers = (_simulated if request.chip else _answers)(request, takes, ours, reference)
        of_samples = score(
            _repeatable(answers, drawn), request.model, request.accuracy, request.data.source, spans=spans
        )
        result = worse_of(of_samples, result) if result else of_samples
    compared = {drift.output for drift in result.outputs}
    left_out = (f"{name} ({drawn.get(name, 'no tensor')})" for name in outputs if name not in compared)
    result = msgspec.structs.replace(result, unjudged=(*result.unjudged, *left_out))
    if request.chip:
        return msgspec.structs.replace(result, chip=request.chip)
    if not request.prepacked:
        result = msgspec.structs.replace(
            result, findings=(*result.findings, model_session.not_prepacked(request.model))
        )
    if check_reference.saturates_here(file := Path(request.model)):
        saturated = Finding(
            severity=Severity.WARNING,
            what="8-bit sums saturate on this computer's processor, which has no VNNI",
            where=str(file),
            why="phones and newer processors compute the file exactly, so its accuracy there may be better",
            remedy="measure on a phone, on a computer with VNNI, or the .onnx file that it was made from",
        )
        return msgspec.structs.replace(result, findings=(*result.findings, saturated))
    return result


def _stream_result(
    request: AccuracyRequest,
    takes: Sequence[TensorInfo],
    sessions: tuple[Any, Any],
    drawn: Mapping[str, str],
    *,
    found: bool,
) -> AccuracyResult | None:
    """The result of a model's stream; None where states that were `found` are none, since they change their shape."""
    answers = _repeatable(_streamed(request, takes, *sessions), drawn)
    try:
        result = score(answers, request.model, request.accuracy, request.data.source, steps=request.steps)
    except ModelError:
        if found:
            return None
        raise
    if not found:
        return result
    pairs = ", ".join(f"{output} to {name}" for output, name in (request.states or {}).items())
    looks = Finding(
        severity=Severity.WARNING,
        what=f"judged as a stream of {request.steps} steps: outputs look like states ({pairs})",
        where=request.reference.name,
        why="apps give such outputs to the next inference, where errors add up",
        remedy="write `state` of the model in the config, with `stream_steps`",
    )
    return msgspec.structs.replace(result, findings=(*result.findings, looks))


def _streamed(request: AccuracyRequest, takes: Sequence[TensorInfo], ours: Any, reference: Any) -> Iterator[Answer]:
    """The steps of both models on the samples in their order, each with the states that it made itself.

    The first begins with zeros, or the values that the data declare for these inputs.
    """
    convert, states = _conversion(ours, takes, request.model), request.states or {}
    mine, theirs = model_session.StreamStates(states), model_session.StreamStates(states)
    for step, sample in enumerate(itertools.islice(check_reference.repeated(request.data, takes), request.steps), 1):
        workers.still_at_work()
        inputs = check_reference.zero_states(sample.inputs, states, request.data.inputs) if step == 1 else sample.inputs
        name, feeds, ours_feeds = f"step {step}, {sample.name}", theirs.feeds(inputs), convert(mine.feeds(inputs))
        expected = model_session.run_session(reference, feeds, f"{request.reference.name}, {name}")
        outputs = model_session.run_session(ours, ours_feeds, f"{request.model}, {name}", model_session.Role.MODEL)
        if changed := theirs.take(feeds, expected) or mine.take(ours_feeds, outputs):
            raise ModelError(
                "the state changes its size",
                where=f"{request.model}, {name}",
                why=f"{', '.join(changed)} gives it",
                remedy="export the model with a state of one size, as with a cache of fixed length",
            )
        yield dataclasses.replace(sample, name=name, label=None, expected=list(expected.items())), outputs


def _repeatable(answers: Iterator[Answer], drawn: Mapping[str, str]) -> Iterator[Answer]:
    """The same without the original's outputs that depend on random numbers: nothing could be compared with those."""
    for sample, outputs in answers:
        kept = [(name, array) for name, array in sample.expected if name not in drawn]
        yield dataclasses.replace(sample, expected=kept), outputs


def _answers(request: AccuracyRequest, takes: Sequence[TensorInfo], ours: Any, reference: Any) -> Iterator[Answer]:
    convert = _conversion(ours, takes, request.model)
    for sample in datasets.samples(request.data, takes):
        workers.still_at_work()
        expected = model_session.run_session(reference, sample.inputs, request.reference.name)
        where = f"{request.model}, {sample.name}"
        try:
            outputs = model_session.run_session(ours, convert(sample.inputs), where, model_session.Role.MODEL)
        except ModelError as error:
            what = "the model fails on this sample"
            raise ModelError(what, where=where, why=error.why, remedy=error.remedy) from error
        yield dataclasses.replace(sample, expected=list(expected.items())), outputs


def _require_alike(mine: Sequence[Any], originals: Sequence[Any], where: str) -> None:
    """ModelError for an output that declares another type or shape than the original's: an app would read it wrongly.

    Floats may have another width, as in half precision. Open axes fit any size: how many boxes a detector finds in a
    sample is no part of its signature.
    """
    by_name = {value.name: value for value in originals}
    for value in mine:
        original = by_name.get(value.name, value)
        floats = value.type in FLOATS and original.type in FLOATS
        ranks_differ = bool(value.shape and original.shape) and len(value.shape) != len(original.shape)
        sizes = zip(value.shape, original.shape, strict=False)
        sizes_differ = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes)
        if (value.type != original.type and not floats) or ranks_differ or sizes_differ:
            raise ModelError(
                f"the output {value.name!r} is another tensor than the original's",
                where=where,
                why=f"{value.type} {value.shape} instead of {original.type} {original.shape}",
                remedy="keep the original's outputs, or name the model that it was made from (--reference)",
            )


AT_A_TIME = 64
"""Samples of one process of the simulator, of so many bytes at most: making its session takes as long as some."""
AT_A_TIME_BYTES = 64 << 20


def _simulated(request: AccuracyRequest, takes: Sequence[TensorInfo], ours: Any, reference: Any) -> Iterator[Answer]:
    """As `_answers`; ModelError where the chip takes nothing of the model or its simulator crashes.

    MissingError without the compiler.
    """
    from pipeline.partition import answer as claim_answer
    from pipeline.partition import claiming as partition_claiming
    from pipeline.partition import judge

    settings = claim_answer.Settings(provider=provider_rules.QNN, chip=request.chip)
    source = SourceModel(path=request.model)
    claim = judge.judge(judge.PartitionRequest(source=source, settings=settings, sizes=request.dimensions))
    if claim.error or not claim.claimed or (claim.load and claim.load.error):
        why, remedy = (claim.load.error, claim.load.remedy) if claim.load and claim.load.error else (claim.error, "")
        raise ModelError(
            f"no NPU numbers of {request.chip}",
            where=request.model,
            why=why or "it takes no node",
            remedy=remedy or "see `ort-mobile partition --ep qnn`",
        )
    model = onnx_model.prepare_model(
        onnx_model.load_model(SourceModel(path=request.model), Path(request.work_folder)), request.dimensions
    )
    convert = _conversion(ours, takes, request.model)
    waiting, simulator = datasets.samples(request.data, takes), partition_claiming.compiler_of(settings).simulator
    while chunk := _chunk(waiting):
        workers.still_at_work()
        with runner_files.scratch_folder() as folder:
            feeds = [convert(sample.inputs) for sample in chunk]
            outputs = simulator.run_samples(model, runner_providers.CHIPS[request.chip], feeds, folder / "model.onnx")
        if isinstance(outputs, claim_answer.Refusal):
            raise ModelError(
                f"the model does not run on {request.chip}",
                where=request.model,
                why=outputs.what,
                remedy=outputs.remedy or "see `ort-mobile partition --ep qnn --simulate`",
            )
        for sample, values in zip(chunk, outputs, strict=True):
            expected = model_session.run_session(reference, sample.inputs, request.reference.name)
            yield dataclasses.replace(sample, expected=list(expected.items())), values


def _chunk(waiting: Iterator[datasets.Sample]) -> list[datasets.Sample]:
    """The next samples that one process of the simulator runs; none at the end."""
    chunk, size = list[datasets.Sample](), 0
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
                f"the model takes another type as {value.name!r}",
                where=where,
                why=f"it takes {value.type}, the original {info}",
                remedy="keep the original's inputs",
            )
    return lambda feeds: {
        name: array.astype(types[name], copy=False) if name in types else array for name, array in feeds.items()
    }
