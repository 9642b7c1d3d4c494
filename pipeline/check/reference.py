"""What a model computes without any optimization: the outputs that artifacts must match, and how wide they can be."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from device_runner.spec import TensorFile
from pipeline.check.compare import Array, OutputCheck, OutputPrecision, Tolerance, compare_outputs, usual_tolerance
from pipeline.check.labelled import labelled_set
from pipeline.check.overflow import refuted_outputs
from pipeline.check.result import Reference
from pipeline.core.errors import ModelError, PipelineError
from pipeline.core.files import make_folder
from pipeline.dataset import Dataset, Sample, first_sample
from pipeline.dataset.candidates import open_session, run_session
from pipeline.dataset.files import write_tensor
from pipeline.dataset.guess import blame_dimensions, complete_data
from pipeline.model.onnx_model import PreparedModel, load_model, prepare_model
from pipeline.model.signature import own_inputs
from pipeline.model.sources import SourceModel

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto


SPANS = {
    "Sigmoid": 1.0, "HardSigmoid": 1.0, "Softmax": 1.0, "Hardmax": 1.0,
    "Tanh": 2.0, "Softsign": 2.0, "Erf": 2.0, "Sin": 2.0, "Cos": 2.0,
}  # fmt: skip
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
    known = _Known(graph)
    found = {value.name: known.span(value.name) for value in graph.output}
    return {name: span for name, span in found.items() if span}


class _Known:
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
            return _widest(self.span(part, hops // len(node.input)) for part in node.input)
        return SPANS.get(node.op_type) or (RULES[node.op_type](node, self) if node.op_type in RULES else None)

    def number(self, node: "NodeProto", slot: int) -> float | None:
        """A constant scalar input; None for any other."""
        name = node.input[slot] if slot < len(node.input) else ""
        tensor = self.tensors.get(name)
        if tensor is None and (maker := self.makers.get(name)) is not None and maker.op_type == "Constant":
            tensor = next((a.t for a in maker.attribute if a.name == "value"), None)
        return _scalar(tensor)


def _scalar(tensor: Any) -> float | None:
    import math

    import onnx

    if tensor is None or math.prod(tensor.dims) != 1 or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return None
    try:
        value = float(onnx.numpy_helper.to_array(tensor).reshape(-1)[0])
    except (ValueError, TypeError):
        return None
    return value if math.isfinite(value) else None


def _widest(spans: Iterator[float | None]) -> float | None:
    found = list(spans)
    return max((span for span in found if span), default=None) if all(found) else None


def _clip(node: "NodeProto", known: _Known) -> float | None:
    """Between its bounds: attributes before opset 11, inputs from then on."""
    given = {a.name: a.f for a in node.attribute}
    low, high = given.get("min", known.number(node, 1)), given.get("max", known.number(node, 2))
    return high - low if low is not None and high is not None and high > low else None


def _dequantize(node: "NodeProto", known: _Known) -> float | None:
    """So many steps of one scale; what is per channel, or of more than 8 bits, counts as if it were not bounded."""
    scale = known.number(node, 1)
    return abs(scale) * QUANTIZED_STEPS if scale else None


RULES: dict[str, Callable[["NodeProto", _Known], float | None]] = {"Clip": _clip, "DequantizeLinear": _dequantize}


QUANTIZED = re.compile(r"QLinear|QuantizeLinear|Integer$|MatMulNBits|QGemm|QAttention")
NUDGES = {"float16": 1, "float32": 4, "float64": 4}
"""By how many units in the last place inputs are changed to see whether a model repeats itself: what a fusion or two
changes in single precision, the least that there is in half.
"""


class ReferenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One model, the inputs to run it with, and where raw tensors go.

    The model runs on the first sample of `data`, and on those of `labelled` that devices answer, too. `original` is the
    float model that it was made from, where it is in another precision.
    """

    source: SourceModel
    original: SourceModel | None = None
    fixed_dimensions: dict[str, int] = {}
    data: Dataset = Dataset()
    labelled: Dataset | None = None
    folder: str
    work_folder: str


def make_reference(request: ReferenceRequest) -> Reference:
    """Run the original model without optimizations on the CPU and keep inputs and outputs as raw files.

    ModelError when the model cannot run here or its labelled set does not fit it; ConfigError when its test data does
    not.
    """
    loaded = load_model(request.source, Path(request.work_folder))
    data = complete_data(loaded, request.fixed_dimensions, request.data)
    try:
        return _computed(prepare_model(loaded, request.fixed_dimensions), data, request)
    except ModelError as error:
        raise blame_dimensions(loaded, request.fixed_dimensions, request.data, error) from error


def _computed(model: PreparedModel, data: Dataset, request: ReferenceRequest) -> Reference:
    session = open_session(model)
    takes = own_inputs(model.proto)
    sample = first_sample(data, takes)
    start = time.perf_counter()
    outputs = run_session(session, sample.inputs, request.source.name)
    run_seconds = time.perf_counter() - start
    precision = _precision(model, outputs)
    random, spans = request.data.is_random(takes), output_spans(model.proto.graph)
    tolerance = msgspec.structs.replace(usual_tolerance(precision), spans=spans)
    folder = Path(request.folder)
    make_folder(folder)
    labelled, notes = (
        labelled_set(session, takes, request.labelled, folder, request.source.name) if request.labelled else (None, ())
    )
    original, refuted, unknown = _beside_original(model, request, sample, outputs, precision)
    return Reference(
        inputs=tuple(
            write_tensor(folder / f"input_{n}.bin", name, array)
            for n, (name, array) in enumerate(sample.inputs.items())
        ),
        outputs=_written(folder, "output", outputs),
        original=_written(folder, "original", original),
        refuted=tuple(msgspec.structs.replace(check, random_inputs=random) for check in refuted),
        precision=precision,
        labelled=labelled,
        input_names=tuple(sample.inputs),
        notes=(*_notes(sample, outputs), *notes, *unknown),
        data=data,
        sample=sample.name,
        random_inputs=random,
        run_seconds=run_seconds,
        spans=spans,
        unsteady=_unsteady(session, sample.inputs, outputs, tolerance) if random else (),
    )


def _written(folder: Path, stem: str, outputs: Mapping[str, Array]) -> tuple[TensorFile, ...]:
    """Outputs of numbers as raw files."""
    return tuple(
        write_tensor(folder / f"{stem}_{n}.bin", name, array)
        for n, (name, array) in enumerate(outputs.items())
        if array.dtype.kind in "fiub"
    )


def _beside_original(
    model: PreparedModel,
    request: ReferenceRequest,
    sample: Sample,
    outputs: Mapping[str, Array],
    precision: OutputPrecision,
) -> tuple[dict[str, Array], list[OutputCheck], tuple[str, ...]]:
    """The float original's outputs on the same sample, checks that these refute, and why there are none."""
    if request.original is None:
        return {}, [], ()
    try:
        loaded = load_model(request.original, Path(request.work_folder))
        original = prepare_model(loaded, request.fixed_dimensions)
        expected = run_session(open_session(original), sample.inputs, request.original.name)
        both = (outputs, expected)
        return expected, list(refuted_outputs(model, original, sample.inputs, both, precision)), ()
    except PipelineError as error:
        return {}, [], (f"outputs were not compared with the float original's: {error}",)


def _unsteady(
    session: Any, feeds: Mapping[str, Array], outputs: Mapping[str, Array], tolerance: Tolerance
) -> tuple[str, ...]:
    """The outputs that fail their own check when every floating-point input is nudged.

    Random inputs may lie where a model rounds, sorts or divides by nothing: no optimized file could repeat it there.
    """
    nudged = {name: _nudged(array) if array.dtype.kind == "f" else array for name, array in feeds.items()}
    try:
        names = list(outputs)
        again = dict(zip(names, session.run(names, nudged), strict=True))
    except Exception:  # noqa: BLE001 - onnxruntime raises types of its own; a model that fails so close by is unsteady
        return tuple(outputs)
    return tuple(check.output for check in compare_outputs(outputs, again, tolerance) if check.failed)


def _nudged(array: Array) -> Array:
    """Every number larger by `NUDGES` in its last place."""
    import numpy as np

    step = NUDGES[array.dtype.name] * float(np.finfo(array.dtype.name).eps)
    return (array.astype(np.float64) * (1 + step)).astype(array.dtype)


def _notes(sample: Sample, outputs: Mapping[str, Array]) -> Iterator[str]:
    """Where the test data's own outputs are not what this computer computes."""
    import numpy as np

    for (_, theirs), (name, ours) in zip(sample.expected, outputs.items(), strict=False):
        if theirs.shape != ours.shape or not np.allclose(
            theirs.astype(np.float64), ours.astype(np.float64), rtol=1e-3, atol=1e-3
        ):
            yield f"output {name!r} of the test data is not what the model computes on this computer"


def _precision(model: PreparedModel, outputs: Mapping[str, Array]) -> OutputPrecision:
    """What the model computes in, from its operators and initializer types."""
    import onnx

    if any(QUANTIZED.search(node.op_type) for node in model.proto.graph.node):
        return OutputPrecision.QUANTIZED
    half = any(
        t.data_type in (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16) for t in model.proto.graph.initializer
    )
    half = half or any(array.dtype.name == "float16" for array in outputs.values())
    return OutputPrecision.FLOAT16 if half else OutputPrecision.FLOAT32
