"""What a model computes without any optimization: the outputs that artifacts must match, and how wide they can be.

Beside them: the labelled samples that devices answer, stacked in one raw file with the original's answers; and where a
model in another precision stops being finite, which it and the float original show with every inner value.

x86-64 processors with AVX2 and without VNNI add products of u8 and s8 in 16 bits, which saturate; ARM and VNNI add them
in 32 bits (quantization Q.5). ONNX models have a session entry against it, files in ORT format have none: what such a
file gives here cannot show that it is wrong.
"""

import itertools
import math
import platform
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from device_runner import spec as run_spec
from device_runner.spec import ElementType, TensorFile
from pipeline import dataset as datasets
from pipeline.check import random_steps
from pipeline.check.categorical import categorical_of, sorted_by_score
from pipeline.check.compare import (
    Array,
    OutputCheck,
    OutputPrecision,
    Tolerance,
    compare_outputs,
    is_categorical_by_type,
    usual_tolerance,
)
from pipeline.check.result import LabelledSet, Reference, StreamReference
from pipeline.core import files as storage
from pipeline.core import ort_session, workers
from pipeline.core.errors import ConfigError, ModelError, PipelineError
from pipeline.dataset import Dataset, TensorInfo
from pipeline.dataset import files as data_files
from pipeline.dataset import guess as data_guess
from pipeline.dataset import states as stream_states
from pipeline.model import edit as onnx_edit
from pipeline.model import onnx_model, ort_format, random_numbers, signature
from pipeline.model import session as model_session
from pipeline.model import types as onnx_types
from pipeline.model.sources import SourceModel
from pipeline.passes import optimize

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

SEED = 0
SEQUENCES_BYTES = 2 << 30
"""The most that the inputs of all steps have together: they go to the device as files."""
TRACKED_BYTES = 64 << 20
"""The most that outputs have together of which each step is compared: they are held in memory."""


def zero_states(feeds: Mapping[str, Array], states: Mapping[str, str], given: Mapping[str, object]) -> dict[str, Array]:
    """The inputs with states of zeros where no value is given for them."""
    import numpy as np

    zeros = {name: np.zeros_like(feeds[name]) for name in states.values() if name not in given}
    return {**feeds, **zeros}


def make_stream(
    session: Any,
    feeds: Mapping[str, Array],
    stream: run_spec.Stream,
    folder: Path,
    given: Iterator[datasets.Sample] | None,
    declared: random_steps.Declared,
) -> StreamReference:
    """What the original computes in the stream, from a session of it and the inputs of the first step.

    Inputs that are no states are those of the samples `given`, one a step; without these, they are random or stay, as
    `random_steps` says. Raises ConfigError where the states or samples do not fit, what onnxruntime raises where the
    model fails.
    """
    import numpy as np

    random = np.random.default_rng(SEED)
    moving = random_steps.moving(feeds, stream.states, declared, given=given is not None)
    if (step_bytes := sum(array.nbytes for array in moving.values())) * stream.steps > SEQUENCES_BYTES:
        raise ConfigError(
            f"{stream.steps} steps are too many for inputs of {step_bytes} bytes a step",
            where="stream",
            why=f"the inputs of all steps may have {SEQUENCES_BYTES} bytes together",
            remedy=f"ask for at most {SEQUENCES_BYTES // step_bytes} steps, or for smaller inputs",
        )
    sequences = []
    for number, (name, array) in enumerate(moving.items()):
        shape, path = (stream.steps, *array.shape), folder / f"steps_{number}.bin"
        sequences.append(TensorFile(name=name, dtype=ElementType(array.dtype.name), shape=shape, file=str(path)))
    with ExitStack() as stack:  # step by step: the whole may be larger than memory
        opened = [stack.enter_context(Path(tensor.file).open("wb")) for tensor in sequences]
        if given is None:
            for file, (name, array) in zip(opened, moving.items(), strict=True):
                steps = random_steps.values(random, array, declared.get(name), stream.steps)
                file.writelines(values.tobytes() for values in steps)
        for step, sample in enumerate(itertools.islice(given or (), stream.steps)):
            for file, (name, first) in zip(opened, moving.items(), strict=True):
                array = sample.inputs[name] if step else first  # a stream begins with `feeds`
                if array.shape != first.shape:
                    raise ConfigError(
                        f"the input {name!r} has several sizes",
                        where=sample.name,
                        why=f"{list(array.shape)} after {list(first.shape)}, and a stream has one",
                        remedy="give test data of one size, or leave `state` out",
                    )
                file.write(array.astype(array.dtype.newbyteorder("<")).tobytes())
    whole = msgspec.structs.replace(stream, sequences=tuple(sequences))
    outputs, tracked = run_steps(session, feeds, whole)
    files = (data_files.write_tensor(folder / f"streamed_{n}.bin", *output) for n, output in enumerate(outputs.items()))
    return StreamReference(stream=msgspec.structs.replace(whole, tracked=tracked), outputs=tuple(files))


def run_steps(
    session: Any, feeds: Mapping[str, Array], stream: run_spec.Stream
) -> tuple[dict[str, Array], tuple[str, ...]]:
    """The outputs, those that are tracked with a first axis of all steps, others after the last; names of the tracked.

    Where the stream names none to track, those of numbers that keep their shape are, as far as `TRACKED_BYTES` hold
    them, the smallest first. Raises as `make_stream`.
    """
    import numpy as np

    names = [output.name for output in session.get_outputs()]
    moving = {
        tensor.name: np.memmap(tensor.file, np.dtype(tensor.dtype.value).newbyteorder("<"), "r", shape=tensor.shape)
        for tensor in stream.sequences
    }
    states, outputs = model_session.StreamStates(stream.states), dict[str, Array]()
    rows: dict[str, list[Array]] = {}
    for step in range(stream.steps):
        # of a scalar, an element is no array
        now = states.feeds({**feeds, **{name: np.asarray(array[step]) for name, array in moving.items()}})
        outputs = dict(zip(names, session.run(names, now), strict=True))
        rows = rows or {name: [] for name in stream.tracked or _smallest(outputs, stream.steps)}
        for name, row in rows.items():
            row.append(outputs[name])
        for name in states.take(now, outputs):
            raise ConfigError(
                "the state changes its shape",
                where="state",
                why=f"{name!r} goes from {list(now[stream.states[name]].shape)} to {list(outputs[name].shape)}",
                remedy="export the model with a state of one size, as with a cache of fixed length",
            )
        if step % 10 == 0:
            workers.still_at_work()
    stacked = {name: np.stack(row) for name, row in rows.items() if len({array.shape for array in row}) == 1}
    return {**outputs, **stacked}, tuple(stacked)


def _smallest(outputs: Mapping[str, Array], steps: int) -> Iterator[str]:
    """The outputs of numbers whose values in all steps fit into `TRACKED_BYTES`."""
    total = 0
    for name, array in sorted(outputs.items(), key=lambda pair: getattr(pair[1], "nbytes", 0)):
        if getattr(array, "dtype", None) is not None and array.dtype.kind in "fiub":
            total += array.nbytes * steps
            if total <= TRACKED_BYTES:
                yield name


STREAM_SECONDS = 10.0
"""A stream of states that nobody declared takes so long at most."""
FOUND_STEPS, FOUND_STEPS_IN_PRECISION = 4, 50
"""Steps of such a stream: errors of another precision add up, a fusion that breaks a state shows at once."""


def _stream_of(
    session: Any,
    sample: datasets.Sample,
    wanted: tuple[run_spec.Stream, bool],
    data: tuple[Dataset, Sequence[TensorInfo]],
    folder: Path,
) -> StreamReference | None:
    """The stream of a model, of its test data where there are several samples; `wanted`: and whether it is declared.

    ModelError and ConfigError where a declared one does not run; None where one does not that was found.
    """
    stream, declared = wanted
    given = repeated(*data) if data[0].test_data else None
    try:
        return msgspec.structs.replace(
            make_stream(session, sample.inputs, stream, folder, given, data[0].inputs), declared=declared
        )
    except ort_session.ort_errors() as error:
        if not declared:
            return None
        raise ModelError(
            "the model's stream does not run",
            where=sample.name,
            why=ort_session.first_line(error),
            remedy="correct `state` of the model in the config",
        ) from error
    except ConfigError:
        if not declared:
            return None
        raise


def repeated(data: Dataset, takes: Sequence[TensorInfo]) -> Iterator[datasets.Sample]:
    """The samples in their order, from the beginning again after the last."""
    while True:
        yield from datasets.samples(data, takes)


SPANS = {
    "Sigmoid": 1.0,
    "HardSigmoid": 1.0,
    "Softmax": 1.0,
    "Hardmax": 1.0,
    "Tanh": 2.0,
    "Softsign": 2.0,
    "Erf": 2.0,
    "Sin": 2.0,
    "Cos": 2.0,
}
"""Operators of ONNX whose definition bounds their output, with upper minus lower bound."""

KEEPING = frozenset({
    "Identity", "Dropout", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Split",
    "Gather", "GatherElements", "GatherND", "Expand", "Tile", "DepthToSpace", "SpaceToDepth", "MaxPool", "TopK",
    "GlobalMaxPool", "AveragePool", "GlobalAveragePool", "ReduceMax", "ReduceMin", "ReduceMean", "Resize", "Upsample",
})  # fmt: skip
"""Operators whose output is no wider than their first input."""

QUANTIZED_STEPS = 255
MOST_HOPS = 1000


def output_spans(graph: "GraphProto") -> dict[str, float]:
    """Upper minus lower bound by output name, for the outputs of a graph that its operators bound."""
    bounds = _Bounds(graph)
    spans = {value.name: bounds.span(value.name) for value in graph.output}
    return {name: span for name, span in spans.items() if span}


class _Bounds:
    """Who makes each value of a graph, and its small constants."""

    def __init__(self, graph: "GraphProto") -> None:
        self.makers = {name: node for node in graph.node for name in node.output}
        self.tensors = {tensor.name: tensor for tensor in graph.initializer}

    def span(self, name: str, hops: int = MOST_HOPS) -> float | None:
        """None where nothing bounds the value, or it is too far away to find out."""
        node = self.makers.get(name)
        if node is None or node.domain not in ("", "ai.onnx") or not hops:
            return None
        if node.op_type in KEEPING:
            return self.span(node.input[0], hops - 1)
        if node.op_type == "Concat":
            spans = [self.span(part, hops // len(node.input)) for part in node.input]
            return max((span for span in spans if span), default=None) if all(spans) else None
        if node.op_type == "Clip":  # between its bounds: attributes before opset 11, inputs from then on
            given = {a.name: a.f for a in node.attribute}
            low, high = given.get("min", self.number(node, 1)), given.get("max", self.number(node, 2))
            return high - low if low is not None and high is not None and high > low else None
        if node.op_type == "DequantizeLinear":  # per channel, and of more than 8 bits, counts as if it were not bounded
            scale = self.number(node, 1)
            return abs(scale) * QUANTIZED_STEPS if scale else None
        return SPANS.get(node.op_type)

    def number(self, node: "NodeProto", slot: int) -> float | None:
        """A constant scalar input; None for any other."""
        from onnx import numpy_helper

        name = node.input[slot] if slot < len(node.input) else ""
        tensor = self.tensors.get(name)
        if tensor is None and (maker := self.makers.get(name)) is not None and maker.op_type == "Constant":
            tensor = next((a.t for a in maker.attribute if a.name == "value"), None)
        if tensor is None or math.prod(tensor.dims) != 1 or tensor.data_location == tensor.EXTERNAL:
            return None
        try:
            value = float(numpy_helper.to_array(tensor).reshape(-1)[0])
        except (ValueError, TypeError):
            return None
        return value if math.isfinite(value) else None


QUANTIZED = re.compile(r"QLinear|QuantizeLinear|Integer$|MatMulNBits|QGemm|QAttention")
"""What makes a model quantized by its name. Weights in blocks do too: of their product a level makes MatMulNBits, which
computes in 8 bits.
"""
NUDGES = {"float16": 1, "float32": 4, "float64": 4}
"""By how many units in the last place inputs are changed to see whether a model repeats itself: what a fusion or two
changes in single precision, the least that there is in half. A model that computes in half gets that of half, whatever
its inputs are, up or down by chance, as rounding goes.
"""


MAX_LABELLED = 10_000
LABELLED_BYTES = 128 << 20
"""Up to so many samples, and bytes of them, are copied to a phone and run there in the first round."""


def labelled_set(
    session: Any, takes: Sequence[TensorInfo], data: Dataset, folder: Path, where: str
) -> tuple[LabelledSet | None, tuple[str, ...]]:
    """Run the original over labelled samples, one in memory at a time; or none, with notes on what devices do not run.

    The model's first output gives the answers. ConfigError for the first wrong sample, ModelError where the model
    fails.
    """
    import numpy as np

    if len(takes) != 1:
        return None, ("labelled samples are not run on devices: that needs a model of one input",)
    (info,) = takes
    output = session.get_outputs()[0].name
    file = folder / "labelled_inputs.bin"
    labels: list[int | str] = []
    answers: list[Array] = []
    shape, size, why = None, 0, ""
    with file.open("wb") as raw:
        for sample in datasets.samples(data, [info]):
            if sample.label is None and not labels:  # data without labels
                break
            array, label = sample.inputs[info.name], np.asarray(sample.label)
            size += array.nbytes
            shape = shape or array.shape
            if sample.label is None or label.size != 1 or label.dtype.kind not in "iuU":
                why = f"{sample.name} has no label that is a number or a text"
                break
            answer = model_session.run_session(session, sample.inputs, where)[output]
            if array.shape != shape or (answers and answer.shape != answers[0].shape):
                why = f"{sample.name} has another size than those before it"
                break
            if len(labels) == MAX_LABELLED or (size > LABELLED_BYTES and labels):
                why = f"these are {MAX_LABELLED} samples or {LABELLED_BYTES >> 20} MiB"
                break
            raw.write(array.astype(array.dtype.newbyteorder("<")).tobytes())
            text = str(label.reshape(-1)[0])  # as JSON has it
            labels.append(int(text) if re.fullmatch(r"0|-?[1-9][0-9]{0,17}", text) else text)
            answers.append(answer)
    if not labels:
        return None, (f"labelled samples are not run on devices: {why}",) if why else ()
    outputs, count = np.stack(answers), len(labels)
    right = [a == label for a, label in zip(outputs.reshape(count, -1).argmax(axis=1).tolist(), labels, strict=True)]
    kind = info.dtype or ElementType.FLOAT32  # samples of an input that is no tensor are refused before
    labelled = LabelledSet(
        samples=count,
        inputs=TensorFile(name=info.name, dtype=kind, shape=(count, *(shape or ())), file=str(file)),
        outputs=data_files.write_tensor(folder / "labelled_outputs.bin", output, outputs),
        accuracy=None if any(isinstance(label, str) for label in labels) else right.count(True) / count,
        labels=tuple(labels),
    )
    return labelled, (f"devices run the first {count} labelled samples: {why}",) if why else ()


def make_reference(
    source: SourceModel,
    sizes: dict[str, int],
    data: Dataset,
    folder: str,
    work_folder: str,
    *,
    labelled: Dataset | None = None,
    original: SourceModel | None = None,
    stream: run_spec.Stream | None = None,
    prepacked: bool = True,
) -> Reference:
    """Run a model as it is defined on the CPU and keep inputs and outputs as raw files in `folder`.

    It runs on the first sample of `data`, and on those of `labelled` that devices answer, too. `original` is the float
    model that it was made from, where it is in another precision. With a `stream` it runs its steps as well.

    ModelError when the model cannot run here or its labelled set does not fit it; ConfigError when its test data does
    not.
    """
    loaded, target = onnx_model.load_model(source, Path(work_folder)), Path(folder)
    settings = replace(
        model_session.ORIGINAL,
        role=model_session.Role.FORM if original else model_session.Role.ORIGINAL,
        prepacked=prepacked,
    )
    try:
        model = onnx_model.prepare_model(loaded, sizes)
        session = model_session.open_session(model, replace(settings, brief=labelled is None))
        whole = data_guess.complete_data(loaded, sizes, data, session)
        takes = signature.own_inputs(model.proto)
        sample = datasets.first_sample(whole, takes)
        if stream:
            sample = replace(sample, inputs=zero_states(sample.inputs, stream.states, data.inputs))
        start = time.perf_counter()
        outputs = model_session.run_session(session, sample.inputs, source.name, settings.role)
        run_seconds = time.perf_counter() - start
        storage.make_folder(target)
        answered, notes = labelled_set(session, takes, labelled, target, source.name) if labelled else (None, ())
        wanted = stream
        if stream is None and (states := stream_states.states_of(model.proto, takes)):
            most = FOUND_STEPS_IN_PRECISION if original else FOUND_STEPS
            steps = min(most, int(STREAM_SECONDS / max(run_seconds, 1e-6)))
            wanted = run_spec.Stream(steps=steps, states=states) if steps > 1 else None
        of_data, declared = (whole, takes), stream is not None
        streamed = _stream_of(session, sample, (wanted, declared), of_data, target) if wanted else None
    except ModelError as error:
        raise data_guess.blame_dimensions(loaded, sizes, data, error) from error
    precision = precision_of(model.proto, outputs.values())
    random, spans = whole.is_random(takes), output_spans(model.proto.graph)
    categorical = categorical_of(model.proto.graph, outputs, precision, partial(_inner, model, sample.inputs))
    scales = tuple(name for name, array in outputs.items() if is_categorical_by_type(array) and name not in categorical)
    sorted_rows = tuple(sorted(sorted_by_score(model.proto.graph)))
    tolerance = msgspec.structs.replace(
        usual_tolerance(precision), spans=spans, categorical=categorical, scales=scales, sorted_rows=sorted_rows
    )
    expected: dict[str, Array] = {}
    refuted: list[OutputCheck] = []
    if original:  # its outputs on the same sample, and what they refute
        try:
            floats = onnx_model.prepare_model(onnx_model.load_model(original, Path(work_folder)), sizes)
            on_floats = model_session.outputs_of(
                floats, sample.inputs, replace(settings, role=model_session.Role.ORIGINAL)
            )
            refuted = list(refuted_outputs(model, floats, sample.inputs, (outputs, on_floats), precision))
            expected = on_floats
            if streamed:
                in_float, _ = run_steps(model_session.open_session(floats, settings), sample.inputs, streamed.stream)
                streamed = msgspec.structs.replace(streamed, original=_written(target, "streamed_float", in_float))
        except PipelineError as error:
            notes = (*notes, f"outputs were not compared with the float original's: {error}")
        except ort_session.ort_errors() as error:
            notes = (*notes, f"the stream was not compared with the float original's: {ort_session.first_line(error)}")
    return Reference(
        inputs=tuple(
            data_files.write_tensor(target / f"input_{n}.bin", name, array)
            for n, (name, array) in enumerate(sample.inputs.items())
        ),
        outputs=_written(target, "output", outputs),
        original=_written(target, "original", expected),
        refuted=tuple(msgspec.structs.replace(check, random_inputs=random) for check in refuted),
        precision=precision,
        labelled=answered,
        input_names=tuple(sample.inputs),
        notes=(*_notes(sample, outputs), *notes),
        data=whole,
        sample=sample.name,
        random_inputs=random,
        constants=whole.constants(takes),
        run_seconds=run_seconds,
        spans=spans,
        drawn=random_numbers.random_outputs(model.proto),
        categorical=categorical,
        scales=scales,
        sorted_rows=sorted_rows,
        unsteady=_unsteady(session, sample.inputs, outputs, tolerance, precision) if not data.test_data else (),
        stream=streamed,
    )


def _inner(model: onnx_model.LoadedModel, feeds: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
    """Inner values by name as far as they can be computed: without, fewer ties are known."""
    try:
        return _values(model, names, feeds)
    except PipelineError:
        return {}


def _written(folder: Path, stem: str, outputs: Mapping[str, Array]) -> tuple[TensorFile, ...]:
    """Outputs of numbers, and of strings that devices bring back, as raw files: without NULs, and not too many."""
    files = []
    for number, (name, array) in enumerate(outputs.items()):
        brought = array.dtype.kind in "fiub"
        if not brought:
            texts = array.ravel().tolist()
            brought = all(isinstance(text, str) and "\0" not in text for text in texts)
            brought = brought and sum(len(text.encode()) + 1 for text in texts) <= run_spec.MOST_STRING_BYTES
        if brought:
            files.append(data_files.write_tensor(folder / f"{stem}_{number}.bin", name, array))
    return tuple(files)


def _unsteady(
    session: Any,
    feeds: Mapping[str, Array],
    outputs: Mapping[str, Array],
    tolerance: Tolerance,
    precision: OutputPrecision,
) -> tuple[str, ...]:
    """The outputs that fail their own check when every floating-point input is nudged.

    Random inputs may lie where a model rounds, sorts or divides by nothing: no optimized file could repeat it there.
    """
    import numpy as np

    nudged = {}
    for name, array in feeds.items():
        if array.dtype.kind == "f":
            kind = "float16" if precision is OutputPrecision.FLOAT16 else array.dtype.name
            step = np.full(array.shape, NUDGES[kind] * float(np.finfo(kind).eps))
            if kind == "float16":
                step *= np.random.default_rng(0).choice((-1, 1), array.shape)
            nudged[name] = (array.astype(np.float64) * (1 + step)).astype(array.dtype)
        else:
            nudged[name] = array
    try:
        names = list(outputs)
        again = dict(zip(names, session.run(names, nudged), strict=True))
    except Exception:  # noqa: BLE001 - onnxruntime raises types of its own; a model that fails so close by is unsteady
        return tuple(outputs)
    return tuple(check.output for check in compare_outputs(outputs, again, tolerance) if check.failed)


def _notes(sample: datasets.Sample, outputs: Mapping[str, Array]) -> Iterator[str]:
    """Where the test data's own outputs are not what this computer computes."""
    import numpy as np

    for (_, expected), (name, array) in zip(sample.expected, outputs.items(), strict=False):
        near = expected.shape == array.shape and (
            np.allclose(expected.astype(np.float64), array.astype(np.float64), rtol=1e-3, atol=1e-3)
            if array.dtype.kind in "fiub"
            else np.array_equal(expected, array)
        )
        if not near:
            yield f"output {name!r} of the test data is not what the model computes on this computer"


def precision_of(model: "ModelProto", outputs: Iterable[Array] = ()) -> OutputPrecision:
    """What the model computes in, from its operators and the types of its initializers and outputs."""
    if any(QUANTIZED.search(node.op_type) or onnx_edit.attribute(node, "block_size") for node in model.graph.node):
        return OutputPrecision.QUANTIZED
    half = any(tensor.data_type in (onnx_types.FLOAT16, onnx_types.BFLOAT16) for tensor in model.graph.initializer)
    half = half or any(array.dtype.name == "float16" for array in outputs)
    return OutputPrecision.FLOAT16 if half else OutputPrecision.FLOAT32


def precision_of_file(file: Path) -> OutputPrecision:
    """What the numbers of a file in either format are: of 8-bit weights, too. ModelError when it cannot be read."""
    graphs = list(ort_format.read_artifact(file).graph.walk())
    operators = {node.op_type for graph in graphs for node in graph.nodes}
    if "DequantizeLinear" in operators or any(map(QUANTIZED.search, operators)):
        return OutputPrecision.QUANTIZED
    types = {tensor.data_type for graph in graphs for tensor in graph.initializers.values()}
    # A level may widen half weights, and leave the values between that they are cast to
    types |= {getattr(kind, "elem_type", 0) for graph in graphs for kind in graph.node_args.values()}
    return OutputPrecision.FLOAT16 if types & {onnx_types.FLOAT16, onnx_types.BFLOAT16} else OutputPrecision.FLOAT32


VALUES_AT_ONCE = 64
"""So many inner values are in memory at a time, each from both models."""
ROOM = 2.0
"""Nodes whose values come so near to the largest half-precision number stay float, too: other samples have others."""
LARGEST_HALF = 65504.0
MOST_NAMED = 40
"""Nodes that a remedy names: of more, the precision suits the model as a whole too little."""

NAMES = {
    OutputPrecision.FLOAT32: "the model in its precision",
    OutputPrecision.FLOAT16: "half precision",
    OutputPrecision.QUANTIZED: "the quantized model",
}


def refuted_outputs(
    form: onnx_model.LoadedModel,
    original: onnx_model.LoadedModel,
    feeds: Mapping[str, Array],
    outputs: tuple[Mapping[str, Array], Mapping[str, Array]],
    precision: OutputPrecision,
) -> Iterator[OutputCheck]:
    """A failed check for each output of `form` that is not finite where the float original's is; nothing where all are.

    `outputs` are those of both models on `feeds`. The reason names the first node that stops being finite.
    """
    lost = {
        name: _lost(output, outputs[0][name])
        for name, output in outputs[1].items()
        if name in outputs[0] and _lost(output, outputs[0][name])
    }
    if not lost:
        return
    try:
        cause, remedy = _explained(form, original, feeds, precision)
    except (PipelineError, MemoryError) as error:  # the outputs are as wrong without the name of the node
        cause, remedy = f"the first node that is not finite could not be found: {error}", ""
    for name, share in lost.items():
        largest = f"the float original's largest is {_largest(outputs[1][name]):.4g}"
        reason = f"{cause}; {share:.3g} % of this output is not finite, {largest}"
        yield OutputCheck(output=name, passed=False, reason=reason, remedy=remedy)


def _lost(original: Array, actual: Array) -> float:
    """Per cent of the elements that are finite in the original alone; 0 for outputs that cannot be compared."""
    import numpy as np

    if original.shape != actual.shape or original.dtype.kind != "f" or actual.dtype.kind != "f" or not original.size:
        return 0.0
    return float((np.isfinite(original) & ~np.isfinite(actual)).mean() * 100)


def _largest(array: Array) -> float:
    import numpy as np

    finite = np.abs(array[np.isfinite(array)].astype(np.float64))
    return float(finite.max()) if finite.size else 0.0


def _explained(
    form: onnx_model.LoadedModel,
    original: onnx_model.LoadedModel,
    feeds: Mapping[str, Array],
    precision: OutputPrecision,
) -> tuple[str, str]:
    """The cause and the remedy in words.

    Both models run once for every VALUES_AT_ONCE values that they share by name, in the form's order.
    """
    import numpy as np

    original_values = {name for node in original.proto.graph.node for name in node.output}
    makers = {name: node for node in form.proto.graph.node for name in node.output if name in original_values}
    names = list(makers)
    largest: dict[str, float] = {}  # the original's largest numbers
    first, share, verb = None, 0.0, ""  # the first node of the form that is not finite
    for start in range(0, len(names), VALUES_AT_ONCE):
        chunk = names[start : start + VALUES_AT_ONCE]
        expected, given = _values(original, chunk, feeds), _values(form, chunk, feeds)
        for name in chunk:
            if name in expected and expected[name].dtype.kind == "f":
                largest[name] = _largest(expected[name])
                lost = _lost(expected[name], given[name])
                if lost and first is None:
                    first, share = makers[name], lost
                    verb = "overflows" if np.isinf(given[name]).any() else "gives NaN"
    if first is None:
        return f"{NAMES[precision]} is not finite where the float original is", ""
    value = next(name for name in first.output if name in largest)
    limit = f"; half precision ends at {LARGEST_HALF:g}" if precision is OutputPrecision.FLOAT16 else ""
    cause = (
        f"{NAMES[precision]} {verb} at {first.op_type} {first.name or value!r}: {share:.3g} % of its elements are "
        f"not finite, the float original's largest there is {largest[value]:.4g}{limit}"
    )
    # The nodes that read or give values too large for half precision, as passes name them. Where none is, a value too
    # small for it became 0 or a ratio of two: the first node and those that it reads from
    proto = onnx_edit.copied(original.proto)
    optimize.name_nodes(proto.graph)
    large = {name for name, number in largest.items() if number * ROOM > LARGEST_HALF}
    nodes = [node for node in proto.graph.node if node.op_type != "Constant"]
    listed = [node.name for node in nodes if not large.isdisjoint((*node.input, *node.output))]
    beside = {*first.input, *first.output}
    if large.isdisjoint(beside):
        listed += [node.name for node in nodes if not beside.isdisjoint(node.output)]
    listed = list(dict.fromkeys(listed))
    if len(listed) > MOST_NAMED:
        return cause, f"ship the model in float: {len(listed)} of its nodes would have to stay float"
    return cause, (
        f"leave these nodes float: `--keep-float '{','.join(listed)}'` of convert and `run --model`, keep_float of the "
        "model in the config; or ship the model in float"
    )


def _values(model: onnx_model.LoadedModel, names: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Inner values of a model by name; what is no tensor is left out."""
    import onnx

    proto = onnx_edit.copied(model.proto)
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return model_session.outputs_of(replace(model, proto=proto), feeds)


PROCESSOR = Path("/proc/cpuinfo")
VNNI = frozenset({"avx_vnni", "avx512_vnni", "avx512vnni", "amx_int8"})
X86_64 = frozenset({"x86_64", "amd64"})
INTEGER_OPS = frozenset(
    {
        "QLinearConv",
        "QLinearMatMul",
        "QGemm",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "ConvInteger",
        "DynamicQuantizeMatMul",
        "DynamicQuantizeLSTM",
        "QAttention",
    }
)
"""Operators that add products of 8-bit numbers."""
INT8 = 3
"""TensorProto.INT8."""


@lru_cache
def processor_saturates(facts: Path) -> bool:
    """Whether the processor that a file such as /proc/cpuinfo describes saturates; without one, x86-64 does."""
    if platform.machine().lower() not in X86_64:
        return False
    try:
        lines = facts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return True
    flags = next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), {"avx2"})
    return "avx2" in flags and not flags & VNNI


def saturates_here(file: Path) -> bool:
    """Whether this computer may compute other 8-bit sums for an ORT format file than a phone; False for other files."""
    try:
        return (
            file.suffix.lower() == ".ort"
            and processor_saturates(PROCESSOR)
            and adds_products(ort_format.read_artifact(file))
        )
    except PipelineError:
        return False


def adds_products(model: ort_format.OrtModel) -> bool:
    """Whether a file has s8 weights and operators that multiply them as integers, or makes such ones when it is loaded.

    Of u8 with u8 no sum saturates: the kernel is another one.
    """
    weights = any(tensor.data_type == INT8 and len(tensor.dims) > 1 for tensor in model.graph.initializers.values())
    integer = any(node.op_type in INTEGER_OPS for node in model.graph.nodes)
    return weights and (integer or bool(model.graph.runtime_optimizations))


def excused(checks: Iterable[OutputCheck], file: Path, cpu: str = "") -> tuple[OutputCheck, ...]:
    """The checks of a file that ran here, those that failed as unknown where this computer cannot show that.

    `cpu` is the one that an emulator played, "" where this computer's own ran: an emulated one adds as a phone does.
    NaN and infinity come of no saturation: such outputs have no error in numbers, and stay failed.
    """
    checks = tuple(checks)
    if cpu or not any(check.failed for check in checks) or not saturates_here(file):
        return checks
    why = "cannot judge on this computer: its processor has no VNNI and saturates 8-bit sums, phones do not"
    excuse = {
        "unknown": True,
        "sqnr_db": msgspec.UNSET,
        "remedy": "measure on a phone, or check on a computer with VNNI",
    }
    return tuple(
        msgspec.structs.replace(check, **excuse, reason=f"{why}; {check.reason}")
        if check.failed and (check.max_abs_error is not None or check.unequal)
        else check
        for check in checks
    )
