"""Half precision for GPUs: what their sums in 16 bits do to a model is computed here, and parts of it stay float.

A CPU adds up in 32 bits what a GPU adds up in 16, so no session here shows a GPU's error. It is modelled: a node in
half precision rounds what it reads and gives, and the terms of its sums by chance. The figures below are fitted to
models of tests/ground_truth in Android's library 1.29.0 (docs/gpu.md): an estimate; outputs are compared all the same.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.check import compare as output_compare
from pipeline.check import reference as check_reference
from pipeline.check import result as check_result
from pipeline.core import errors as core_errors
from pipeline.core.errors import Finding, ModelError, Severity
from pipeline.core.variant import Level
from pipeline.model import edit as onnx_edit
from pipeline.model import session as model_session
from pipeline.model import types as onnx_types
from pipeline.model.onnx_model import LeanModel
from pipeline.partition import types as partition_types
from pipeline.passes.base import Effect, Feeds, Model, NotApplicable, Pass, PassContext
from pipeline.passes.edit import whole
from pipeline.passes.optimize import name_nodes
from pipeline.passes.quantize import SUMS_OF_SQUARES, HalfOptions, fp16, written_out
from pipeline.passes.surgery import constants_fixed

if TYPE_CHECKING:
    import numpy as np
    import onnx

PARTS = 8
"""Runs of nodes that are kept float or not, each as a whole."""
GOAL = 1 / 3
"""The share of the tolerance that a modelled error may have: a GPU's may be larger."""
SAMPLES = 4
"""Of the calibration data."""
STEP = 2.0**-11
"""Half the distance between two numbers of half precision, relative to them: what one rounding changes at most."""
ROUNDING = 0.4
"""By how many steps a sum of n terms is off, times the root of n: each partial sum rounds, and they grow to the sum."""
PRODUCTS = {"Conv": 1, "ConvTranspose": 1, "MatMul": 4, "Gemm": 4}
"""Operators that add up products, with the terms that WebGPU's kernels add up before they round (measured)."""


class GpuHalfOptions(HalfOptions, frozen=True, kw_only=True):
    """Options of fp16-gpu."""

    goal: float = GOAL
    """The share of fp16's tolerance that the modelled error may have."""


def fp16_gpu(model: Model, options: GpuHalfOptions, context: PassContext) -> Model:
    """The model in half precision, with the parts float whose rounding on a GPU would show in the outputs.

    NotApplicable where fp16 is, and where no part of the model may be in half precision.
    """
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST

    ready = written_out(whole(constants_fixed(model, context)), context.where)
    name_nodes(ready.graph)
    named = LeanModel(proto=ready, folder=model.folder, weights={})
    half = fp16(named, options, context)
    blocked = {*DEFAULT_OP_BLOCK_LIST, *SUMS_OF_SQUARES, *options.block}
    try:
        types = partition_types.infer(ready)
        names = tuple(
            node.name
            for node in ready.graph.node
            if node.op_type not in blocked and node.name not in options.exclude and _gives(node, types, "f32")
        )
        feeds = list(islice(context.samples(), SAMPLES)) if context.samples else [context.usual()]
        bench = _Bench(ready, types, names, feeds, context.where)
        halved, loss = chosen_parts(bench.parts, bench.loss, options.goal)
    except ModelError as error:
        context.warn(f"what half precision does to it on a GPU could not be computed: {error.reason}")
        return half
    exclude = tuple(name for part in bench.parts if part not in halved for name in part)
    if not exclude:
        return half
    if not halved:
        why = f"{bench.worst} is off by {loss:.1g} times what passes, whatever stays float"
        raise NotApplicable(
            "half precision changes the model's outputs too much on a GPU",
            where=context.where,
            why=why,
            remedy="ship the float model, or give test data: random inputs may mean nothing to it",
        )
    context.warn(
        f"{len(bench.parts) - len(halved)} of {len(bench.parts)} parts stay float, as half precision on a GPU would "
        f"change the outputs too much"
    )
    return fp16(named, msgspec.structs.replace(options, exclude=(*options.exclude, *exclude)), context)


Part = tuple[str, ...]
"""Nodes by name, in the graph's order."""


def chosen_parts(
    parts: Sequence[Part], loss: Callable[[Collection[Part]], float], goal: float
) -> tuple[tuple[Part, ...], float]:
    """The parts that may be in half precision together, and the loss of all: those that lose least alone.

    Losses of parts add up as chance does, by their squares; what was chosen is measured, and its worst part left out
    until it is at the goal.
    """
    if (total := loss(parts)) <= goal:
        return tuple(parts), total
    alone = {part: loss([part]) for part in parts}
    chosen: list[Part] = []
    for part in sorted(alone, key=alone.__getitem__):
        if math.hypot(*(alone[kept] for kept in chosen), alone[part]) <= goal:
            chosen.append(part)
    while chosen and loss(chosen) > goal:
        chosen.pop()
    return tuple(chosen), min(total, *alone.values())


class _Bench:
    """A float model with its inputs and outputs, ready to be computed as a GPU does with some nodes in half."""

    def __init__(
        self,
        proto: "onnx.ModelProto",
        types: Mapping[str, partition_types.Value],
        names: Part,
        feeds: Sequence[Feeds],
        where: str,
    ) -> None:
        self.proto, self.types, self.feeds, self.where = proto, types, feeds, where
        size = max(1, -(-len(names) // PARTS))
        self.parts = [tuple(names[start : start + size]) for start in range(0, len(names), size)]
        self.expected = self._outputs(proto)
        self.worst, self.error = "an output", 0.0

    def loss(self, parts: Collection[Part], unsteady: Collection[str] = ()) -> float:
        """The error of the worst output with these parts in half precision, in units of what passes.

        `unsteady` outputs show nothing.
        """
        half = {name for part in parts for name in part}
        tolerance = msgspec.structs.replace(
            output_compare.usual_tolerance(output_compare.OutputPrecision.FLOAT16),
            spans=check_reference.output_spans(self.proto.graph),
        )
        largest = 0.0
        outputs = self._outputs(as_gpus_compute(self.proto, self.types, half))
        for expected, actual in zip(self.expected, outputs, strict=True):
            for check in output_compare.compare_outputs(expected, actual, tolerance):
                error = math.inf if check.failed else 0.0
                if check.max_abs_error is not None and check.limit:
                    error = check.max_abs_error / check.limit
                if error > largest and check.output not in unsteady:
                    largest, self.worst, self.error = error, repr(check.output), check.max_rel_error or error
        return largest

    def _outputs(self, proto: "onnx.ModelProto") -> "list[dict[str, np.ndarray]]":
        model = LeanModel(proto=proto, folder=Path(), weights={})
        session = model_session.open_session(model, model_session.CpuSettings(level=Level.BASIC), self.where)
        return [
            model_session.run_session(session, sample, self.where, model_session.Role.MODEL) for sample in self.feeds
        ]


def gpu_loss(model: Model, reference: check_result.Reference, where: str) -> Finding | None:
    """What a GPU's sums do to a model that is in half precision itself, as a warning where that is more than passes.

    The model is run on the reference's inputs with and without a GPU's rounding; where its outputs are wrong, once more
    for each halving of the nodes that add up, to name the one that loses most.
    """
    import numpy as np

    proto = whole(model)
    name_nodes(proto.graph)
    feeds = {tensor.name: output_compare.read_tensor(tensor) for tensor in reference.inputs}
    wide = {name: array.astype(np.float32) if array.dtype == np.float16 else array for name, array in feeds.items()}
    try:
        types, widened = partition_types.infer(proto), _widened(proto, feeds)
        nodes = {node.name: node for node in proto.graph.node if _gives(node, types, "f16")}
        half = tuple(nodes)
        bench = _Bench(widened, partition_types.infer(widened), half, [wide], where)
        if not 1 < bench.loss([half], reference.unsteady) < math.inf:  # what is not finite is no matter of sums
            return None
        output, error = bench.worst, bench.error
        suspects = tuple(name for name, node in nodes.items() if node.op_type in PRODUCTS) or half
        left = bench.loss([suspects], reference.unsteady)
        while len(suspects) > 1:
            first, second = suspects[: len(suspects) // 2], suspects[len(suspects) // 2 :]
            lost = bench.loss([first], reference.unsteady)
            rest = math.sqrt(max(0.0, left**2 - lost**2))  # as in `chosen_parts`
            suspects, left = (first, lost) if lost >= rest else (second, rest)
    except ModelError as failure:
        return core_errors.warning(
            f"what half precision does to it on a GPU could not be computed: {failure.reason}", where
        )
    node = nodes[suspects[0]]
    share = output_compare.MAX_RELATIVE_ERROR[output_compare.OutputPrecision.FLOAT16]
    return Finding(
        severity=Severity.WARNING,
        where=where,
        code="webgpu-sums",
        what=f"on a GPU output {output} would be off by about {error:.2g} of its largest value, where {share:g} passes",
        why=f"GPUs add up halves in 16 bits, CPUs in 32; most is lost at {node.op_type} {node.name!r} (estimated)",
        remedy="convert the float model with the precision `gpu`, which keeps such nodes in float",
    )


def _widened(proto: "onnx.ModelProto", feeds: Feeds) -> "onnx.ModelProto":
    """The same model in single precision for inputs of these sizes, with the weights that it has: without rounding."""
    result = onnx_edit.copied(proto)
    for value in (value for value in result.graph.input if value.name in feeds):
        for dim, size in zip(value.type.tensor_type.shape.dim, feeds[value.name].shape, strict=False):
            dim.dim_value = size
    for graph in onnx_edit.subgraphs(result.graph):
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type == onnx_types.FLOAT16:
                value.type.tensor_type.elem_type = onnx_types.FLOAT
        attributes = [attribute for node in graph.node for attribute in node.attribute]
        for tensor in (*graph.initializer, *(attribute.t for attribute in attributes if attribute.HasField("t"))):
            if tensor.data_type == onnx_types.FLOAT16:
                tensor.CopyFrom(_rounded(tensor, tensor.name))
        for attribute in attributes:
            if attribute.name in ("to", "dtype") and attribute.i == onnx_types.FLOAT16:
                attribute.i = onnx_types.FLOAT
        del graph.value_info[:]
    return result


def as_gpus_compute(
    proto: "onnx.ModelProto", types: Mapping[str, partition_types.Value], half: Collection[str]
) -> "onnx.ModelProto":
    """The float model with the rounding of some nodes in half precision, as a GPU's sums in 16 bits have it."""
    import numpy as np
    import onnx
    from onnx import numpy_helper

    result = onnx.ModelProto()
    result.CopyFrom(proto)
    constants = {tensor.name: tensor for tensor in result.graph.initializer}
    rounded: dict[str, str] = {}
    nodes: list[onnx.NodeProto] = []

    def add(op_type: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        nodes.append(onnx.helper.make_node(op_type, inputs, [output], name=f"gpu/{len(nodes)}", **attributes))
        return output

    def round_value(name: str, target: str) -> None:
        add("Cast", [add("Cast", [name], f"{target}/half", to=onnx_types.FLOAT16)], target, to=onnx_types.FLOAT)

    floats = {value.name for value in proto.graph.input if value.type.tensor_type.elem_type == onnx_types.FLOAT}
    floats = {*(floats - types.keys()), *(name for name, value in types.items() if value.dtype == "f32")}
    for node in result.graph.node:
        chosen = node.name in half
        terms = _terms(node, types, constants) / PRODUCTS.get(node.op_type, 1)
        for slot, name in enumerate(node.input if chosen else ()):
            is_float = constants[name].data_type == onnx_types.FLOAT if name in constants else False
            if is_float and name not in rounded:
                tensor = result.graph.initializer.add()
                tensor.CopyFrom(_rounded(constants[name], f"{name}/half"))
                rounded[name] = tensor.name
            elif name not in constants and name not in rounded and name in floats:
                round_value(name, f"{name}/read")
                rounded[name] = f"{name}/read"
            node.input[slot] = rounded.get(name, name)
        nodes.append(node)
        if not chosen:
            continue
        for slot, name in enumerate(node.output):
            if types.get(name, partition_types.Value()).dtype != "f32":
                continue
            node.output[slot] = exact = f"{name}/exact"
            if terms:
                square = add("ReduceMean", [add("Mul", [exact, exact], f"{name}/square")], f"{name}/mean", keepdims=0)
                scale = result.graph.initializer.add()
                steps = np.array(ROUNDING * STEP * math.sqrt(terms), np.float32)
                scale.CopyFrom(numpy_helper.from_array(steps, f"{name}/scale"))
                size = add("Mul", [add("Sqrt", [square], f"{name}/root"), scale.name], f"{name}/size")
                chance = add(
                    "RandomNormalLike", [exact], f"{name}/chance", seed=float(len(nodes)), dtype=onnx_types.FLOAT
                )
                exact = add("Add", [exact, add("Mul", [chance, size], f"{name}/noise")], f"{name}/summed")
            round_value(exact, name)
            rounded[name] = name
    onnx_edit.set_nodes(result.graph, nodes)
    del result.graph.value_info[:]
    return result


def _rounded(tensor: "onnx.TensorProto", name: str) -> "onnx.TensorProto":
    """A constant as half precision holds it, as one in single precision."""
    import numpy as np
    from onnx import numpy_helper

    largest = float(np.finfo(np.float16).max)
    numbers = numpy_helper.to_array(tensor).clip(-largest, largest).astype(np.float16).astype(np.float32)
    return numpy_helper.from_array(numbers, name)


def _gives(node: "onnx.NodeProto", types: Mapping[str, partition_types.Value], dtype: str) -> bool:
    return any(types.get(name, partition_types.Value()).dtype == dtype for name in node.output)


def _terms(
    node: "onnx.NodeProto", types: Mapping[str, partition_types.Value], constants: "Mapping[str, onnx.TensorProto]"
) -> int:
    """How many products each number that a node gives is the sum of; 0 where that is none, or not known."""
    if node.op_type not in PRODUCTS:
        return 0
    name = node.input[1]
    dims = tuple(constants[name].dims) if name in constants else types.get(name, partition_types.Value()).shape or ()
    if not dims or None in dims:
        return 0
    sizes = [int(size or 0) for size in dims]
    if node.op_type == "Conv":
        return math.prod(sizes[1:])
    if node.op_type == "ConvTranspose":
        return math.prod(sizes) // max(1, sizes[1])
    turned = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    return sizes[-1] if turned or len(sizes) == 1 else sizes[-2]


FP16_GPU = Pass(
    name="fp16-gpu",
    title="As fp16, with the parts float whose sums in 16 bits on a GPU would change the outputs.",
    apply=fp16_gpu,
    effect=Effect.LOSSY,
    options=GpuHalfOptions,
    measures=True,
)
