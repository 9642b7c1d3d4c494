"""Quantization without calibration data: dynamic, of weights alone, and half precision."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from pipeline.core import errors as core_errors
from pipeline.core import groups as counting
from pipeline.core.errors import ModelError
from pipeline.model import edit as onnx_edit
from pipeline.model import types as onnx_types
from pipeline.model.onnx_model import LeanModel
from pipeline.passes.base import Effect, Model, NotApplicable, Options, Pass, PassContext
from pipeline.passes.edit import check_names, finished, library_call, quantized_operators, whole
from pipeline.passes.optimize import PreprocessOptions, declare_types, name_nodes, preprocess
from pipeline.passes.refused import refused_nodes, warn_of_refused
from pipeline.passes.surgery import constants_fixed

if TYPE_CHECKING:
    import onnx


OPERATORS = frozenset({"MatMul", "Gemm", "Conv", "LSTM", "Attention"})
"""Operators whose dynamically quantized form has weights in 8 bits."""


class DynamicOptions(Options, frozen=True, kw_only=True):
    """Options of dynamic-int8."""

    weights: Literal["s8", "u8"] = "s8"
    """Type of weights: s8 or u8. Conv needs u8: the CPU has no kernel for others."""
    per_channel: bool = False
    """One scale for each output column of a weight instead of one for all."""
    op_types: tuple[str, ...] = ("MatMul", "Gemm", "LSTM", "Attention")
    """Operator types to quantize: MatMul, Gemm, LSTM, Attention, Conv. Conv is slower than float on most processors."""
    exclude: tuple[str, ...] = ()
    """Names of nodes that stay float."""
    reduce_range: bool = False
    """Weights in 7 bits, for x86-64 processors without VNNI."""


def dynamic_int8(model: Model, options: DynamicOptions, context: PassContext) -> Model:
    """The model with dynamically quantized matrix products and recurrences.

    NotApplicable for a quantized model and where no wanted operator has a constant float weight, before any work.
    """
    ready = preprocess(model, PreprocessOptions(), context)
    check_names(ready.proto, options.exclude, context.where)
    types = set(options.op_types) & OPERATORS
    constants = {tensor.name for tensor in ready.proto.graph.initializer if tensor.data_type == 1}
    chosen = {
        node.name
        for node in ready.proto.graph.node
        if node.op_type in types and node.name not in options.exclude and not constants.isdisjoint(node.input[1:2])
    }
    if not chosen:
        raise NotApplicable(
            "there is nothing to quantize",
            where=context.where,
            why=f"no {', '.join(sorted(types)) or 'such operator'} has a constant float weight",
            remedy="Conv is quantized when op_types names it, or by static-qdq",
        )
    names = [node.name for node in ready.proto.graph.node if node.name in chosen]
    attempt = partial(_dynamic, ready, options, where=context.where)
    quantized = by_most(names, attempt, context)
    onnx_edit.sort_nodes(quantized.graph)
    if not quantized_operators(quantized):
        raise NotApplicable("nothing was quantized", where=context.where, remedy="name other operator types")
    return finished(quantized, context)


def _dynamic(ready: Model, options: DynamicOptions, names: Collection[str], *, where: str) -> "onnx.ModelProto":
    """A prepared model with these nodes quantized; ModelError where the quantizer fails."""
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer
    from onnxruntime.quantization.quant_utils import QuantizationMode

    proto, chosen = whole(ready), set(names)
    gemm_to_matmul(proto.graph, chosen)
    excluded = sorted({node.name for node in proto.graph.node if node.name not in chosen})
    kind = QuantType.QInt8 if options.weights == "s8" else QuantType.QUInt8
    with library_call(
        "onnxruntime.quantization cannot quantize the model",
        where,
        "name operator types, or leave nodes out by exclude",
    ):
        quantizer = ONNXQuantizer(
            proto,
            options.per_channel,
            options.reduce_range,
            QuantizationMode.IntegerOps,
            False,
            kind,
            QuantType.QUInt8,
            None,
            [],
            excluded,
            sorted(OPERATORS),
            {"MatMulConstBOnly": True},
        )
        quantizer.quantize_model()
    quantized: onnx.ModelProto = quantizer.model.model
    return quantized


def by_most(
    names: Sequence[str], attempt: "Callable[[Collection[str]], onnx.ModelProto]", context: PassContext
) -> "onnx.ModelProto":
    """What a quantizer makes of the nodes but those that it cannot take, which stay float, with a warning."""
    try:
        return attempt(names)
    except ModelError as error:
        refused = refused_nodes(names, attempt, error)
        warn_of_refused(refused, error, context)
    return attempt([name for name in names if name not in refused])


def gemm_to_matmul(graph: "onnx.GraphProto", chosen: set[str]) -> None:
    """Write the chosen Gemm nodes as MatMul and Add, in place; the MatMul keeps the name.

    All weights are in the message. What multiplies by other factors than 1, or transposes its first input, stays and
    leaves `chosen`. ONNX Runtime's tools do the same, but transpose a weight that two nodes share twice (quantization
    Q.3).
    """
    import onnx
    from onnx import numpy_helper

    constants = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type != "Gemm" or node.name not in chosen:
            nodes.append(node)
            continue
        values = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        if values.get("transA") or values.get("alpha", 1.0) != 1.0 or values.get("beta", 1.0) != 1.0:
            chosen.discard(node.name)
            nodes.append(node)
            continue
        weight = node.input[1]
        if values.get("transB"):
            weight = f"{node.input[1]}/transposed"
            if weight not in constants:  # made once
                turned = numpy_helper.to_array(constants[node.input[1]]).T.copy()
                constants[weight] = graph.initializer.add()
                constants[weight].CopyFrom(numpy_helper.from_array(turned, weight))
        biased = len(node.input) > 2 and bool(node.input[2])
        product = f"{node.output[0]}/product" if biased else node.output[0]
        nodes.append(onnx.helper.make_node("MatMul", [node.input[0], weight], [product], name=node.name))
        if biased:
            name = f"{node.name}/bias"
            nodes.append(onnx.helper.make_node("Add", [product, node.input[2]], list(node.output), name=name))
    onnx_edit.set_nodes(graph, nodes)
    onnx_edit.drop_unread(graph)


DYNAMIC = Pass(
    name="dynamic-int8",
    title="Quantize weights to 8 bits, activations while the model runs: no data needed, CPU only.",
    apply=dynamic_int8,
    effect=Effect.LOSSY,
    options=DynamicOptions,
)

EXTRA = "quantization"


class WeightOnlyOptions(Options, frozen=True, kw_only=True):
    """Options of weight-only."""

    bits: Literal[4, 8] = 4
    """Bits of a weight: 4 or 8."""
    block: Literal[16, 32, 64, 128, 256] = 32
    """Numbers of a column that share a scale: 16, 32, 64, 128 or 256."""
    symmetric: bool = True
    """Without zero points."""
    accuracy_level: Literal[0, 1, 2, 3, 4] = 0
    """What the CPU computes in: 0 as the release likes, 1 float, 4 in 8-bit integers (faster, less exact)."""
    exclude: tuple[str, ...] = ()
    """Names of nodes that stay float."""


def weight_only(model: Model, options: WeightOnlyOptions, context: PassContext) -> Model:
    """The model with MatMulNBits for matrix products with a constant matrix, those of Gemm too.

    NotApplicable where there is none, and for releases without the form; MissingError without the extra.

    The QDQ form is not made: it leaves 4-bit tensors, which no ORT format file can hold (quantization Q.7).
    """
    import importlib

    import onnxruntime

    ready = preprocess(model, PreprocessOptions(), context)
    check_names(ready.proto, options.exclude, context.where)
    graph = ready.proto.graph
    matrices = {
        t.name
        for t in graph.initializer
        if t.data_type == 1 and len(t.dims) >= 2 and all(dim == 1 for dim in t.dims[:-2])
    }
    products = [n for n in graph.node if n.op_type in {"MatMul", "Gemm"} and n.input[1] in matrices]
    chosen = {node.name for node in products} - set(options.exclude)
    if not chosen:
        have = ", ".join(sorted({node.op_type for node in graph.node})[:12])
        raise NotApplicable(
            "there is nothing to quantize",
            where=context.where,
            why=f"no MatMul or Gemm has a constant matrix; the model's operators: {have}",
            remedy="use static-qdq or fp16 for this model",
        )
    try:
        tools = importlib.import_module("onnxruntime.quantization.matmul_nbits_quantizer")
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("onnx_ir"):
            raise core_errors.missing_extra("quantization", "onnx-ir", context.where, error) from error
        release = onnxruntime.__version__
        raise NotApplicable(
            f"onnxruntime {release} has no tool for weights of {options.bits} bits",
            where=context.where,
            remedy="install onnxruntime 1.22 or newer to quantize with",
        ) from error

    def attempt(names: Collection[str]) -> "onnx.ModelProto":
        proto, wanted = whole(ready), set(names)
        gemm_to_matmul(proto.graph, wanted)
        excluded = [node.name for node in proto.graph.node if node.name not in wanted]
        with library_call(
            "onnxruntime.quantization cannot quantize the weights", context.where, "leave nodes out by exclude"
        ):
            config = tools.DefaultWeightOnlyQuantConfig(
                bits=options.bits,
                block_size=options.block,
                is_symmetric=options.symmetric,
                accuracy_level=options.accuracy_level or None,
                op_types_to_quantize=("MatMul",),
            )
            tool = tools.MatMulNBitsQuantizer(proto, algo_config=config, nodes_to_exclude=excluded)
            tool.process()
        answer: onnx.ModelProto = tool.model.model
        return answer

    quantized = by_most([node.name for node in graph.node if node.name in chosen], attempt, context)
    onnx_edit.sort_nodes(quantized.graph)
    if not any(node.op_type == "MatMulNBits" for node in quantized.graph.node):
        raise NotApplicable(
            "no weight was quantized",
            where=context.where,
            why="no Gemm or MatMul could be written in this form",
            remedy="use static-qdq or fp16 for this model",
        )
    return finished(quantized, context)


WEIGHT_ONLY = Pass(
    name="weight-only",
    title="Store matrices in 4 or 8 bits and compute in float: smaller files, CPU only.",
    apply=weight_only,
    effect=Effect.LOSSY,
    options=WeightOnlyOptions,
    extra=EXTRA,
)

SMALLEST, LARGEST = 5.96e-08, 65504.0
"""The least and greatest positive number of a 16-bit float."""


class HalfOptions(Options, frozen=True, kw_only=True):
    """Options of fp16."""

    keep_io: bool = True
    """Inputs and outputs stay 32-bit floats, so that the app needs no change."""
    block: tuple[str, ...] = ()
    """Operator types that stay in 32 bits, beside those that have no 16-bit form."""
    exclude: tuple[str, ...] = ()
    """Names of nodes that stay in 32 bits."""


def fp16(model: Model, options: HalfOptions, context: PassContext) -> Model:
    """The model in half precision but for what computes sizes and positions.

    NotApplicable for a quantized model and one without float weights.
    """
    if operators := quantized_operators(model.proto):
        raise NotApplicable(
            "a quantized model has no half precision",
            where=context.where,
            why=f"it has {', '.join(sorted(operators))}, whose scales must stay float",
            remedy="apply fp16 to the float model that it was made from",
        )
    if onnx_types.FLOAT not in float_types(model.proto):
        raise NotApplicable(
            "the model has no 32-bit float weights",
            where=context.where,
            remedy="nothing is to be done" if onnx_types.FLOAT16 in float_types(model.proto) else "",
        )
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

    from pipeline.passes.size_arithmetic import own_constants, size_arithmetic  # which no other precision needs

    proto = written_out(whole(constants_fixed(model, context)), context.where)
    name_nodes(proto.graph)
    check_names(proto, options.exclude, context.where)
    exact = size_arithmetic(proto)
    own_constants(proto, exact)
    declare_types(LeanModel(proto=proto, folder=model.folder, weights={}), context.where)
    before, risky = {node.name for node in proto.graph.node}, list(_not_held(proto.graph))
    bodies = sum(1 for _ in onnx_edit.subgraphs(proto.graph)) > 1
    with library_call(
        "onnxruntime.transformers cannot convert the model to half precision",
        context.where,
        "block the operator that it names",
    ):
        halved: onnx.ModelProto = convert_float_to_float16(
            proto,
            SMALLEST,
            LARGEST,
            keep_io_types=options.keep_io,
            disable_shape_infer=not bodies,
            op_block_list=[*DEFAULT_OP_BLOCK_LIST, *SUMS_OF_SQUARES, *options.block],
            node_block_list=[*options.exclude, *exact, *_without_half_kernel(proto.graph)],
        )
    _keep_between(halved.graph, before)
    onnx_edit.sort_nodes(halved.graph)

    if onnx_types.FLOAT16 not in float_types(halved):
        raise NotApplicable(
            "no weight became a 16-bit float",
            where=context.where,
            why="all operators with weights are blocked or excluded",
            remedy="block or exclude fewer",
        )
    halves = {
        name for name, tensor in onnx_edit.constant_tensors(halved.graph) if tensor.data_type == onnx_types.FLOAT16
    }
    if lost := [constant for constant in risky if constant.name in halves]:
        more = f" and {len(lost) - MOST_LOST} more" if len(lost) > MOST_LOST else ""
        readers = ",".join(dict.fromkeys(name for constant in lost for name in constant.readers[:MOST_LOST]))
        context.warn(
            f"half precision cannot hold {', '.join(constant.text for constant in lost[:MOST_LOST])}{more}: leave what "
            f"reads them float (--keep-float '{readers}', keep_float of the model in the config)"
        )
    return finished(halved, context)


MOST_LOST = 5
"""Constants that a warning names."""
HELD_FROM = 2.0**-20
"""Numbers below are 16 steps of half precision or fewer, whose rounding is three per cent of them and more."""
EPSILON_OF = frozenset({"Add", "Max", "Clip"})
"""Operators to which a small number keeps another away from 0."""
NO_NUMBER = 1e30
"""Constants so large stand for infinity, as of Clip and masks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Risky:
    """A constant of a float graph that half precision does not hold, what becomes of it, and the nodes that read it."""

    name: str
    text: str
    readers: tuple[str, ...]


def _not_held(graph: "onnx.GraphProto") -> Iterator[_Risky]:
    """Constants of a float graph whose numbers half precision cuts, or rounds by percents.

    One negative number for all that is cut is a mask, and a number that is added, or a bound, may be any small one.
    """
    import numpy as np
    from onnx import numpy_helper

    readers = counting.grouped((name, node) for node in onnx_edit.all_nodes(graph) for name in node.input)
    for name, tensor in onnx_edit.constant_tensors(graph):
        if tensor.data_type != onnx_types.FLOAT:
            continue
        values = numpy_helper.to_array(tensor)
        sizes = np.abs(values)
        cut = values[(sizes > LARGEST) & (sizes < NO_NUMBER)]
        largest = float(sizes[sizes < NO_NUMBER].max(initial=0.0))
        of, text = readers.get(name, []), ""
        if cut.size and not (cut.max() < 0 and cut.min() == cut.max()):
            text = (
                f"{name!r} ({cut.size} of its {values.size} numbers, up to {np.abs(cut).max():.3g}, become {LARGEST:g})"
            )
        elif 0 < largest < HELD_FROM and not (values.size == 1 and all(node.op_type in EPSILON_OF for node in of)):
            held = max(float(np.float16(largest)), SMALLEST)
            text = f"{name!r} (its largest number, {largest:.3g}, becomes {held:.3g})"
        if text:
            yield _Risky(name=name, text=text, readers=tuple(node.name for node in of))


def written_out(proto: "onnx.ModelProto", where: str) -> "onnx.ModelProto":
    """The message, which is changed, with functions as nodes and numbers of Constant nodes as tensors.

    The converter looks neither into functions nor at value_float and its like, and leaves them as they are.
    """
    import numpy as np
    from onnx import helper, inliner, numpy_helper

    if proto.functions:
        with library_call("ONNX cannot inline the model's functions", where, "export the model without functions"):
            proto = inliner.inline_local_functions(proto)
    for node in onnx_edit.all_nodes(proto.graph):
        constants = node.attribute if node.op_type == "Constant" else ()
        given = next((constant for constant in constants if constant.name in NUMBERS), None)
        if given is not None:
            values = numpy_helper.from_array(np.array(helper.get_attribute_value(given), NUMBERS[given.name]))
            node.attribute.remove(given)
            node.attribute.append(helper.make_attribute("value", values))
    return proto


NUMBERS = {
    "value_float": "float32",
    "value_floats": "float32",
    "value_int": "int64",
    "value_ints": "int64",
    "value_string": "object",
    "value_strings": "object",
}
"""Attributes of Constant beside `value`, with the type of their elements (ONNX, Constant-12)."""
REDUCING = frozenset({"ScatterND", "ScatterElements"})
"""Operators that the CPU cannot compute in 16 bits where they reduce: it says so when they run."""


def _without_half_kernel(graph: "onnx.GraphProto") -> list[str]:
    nodes = (node for node in onnx_edit.all_nodes(graph) if node.op_type in REDUCING and node.name)
    return [node.name for node in nodes if onnx_edit.attribute(node, "reduction", "none") != "none"]


def float_types(proto: "onnx.ModelProto") -> set[int]:
    """Element types of all constants, those of Constant nodes and bodies too."""
    types = {tensor.data_type for graph in onnx_edit.subgraphs(proto.graph) for tensor in graph.initializer}
    for graph in onnx_edit.subgraphs(proto.graph):
        for node in graph.node:
            types |= {attribute.t.data_type for attribute in node.attribute if attribute.HasField("t")}
    return types


SUMS_OF_SQUARES = ("ReduceL2", "ReduceSumSquare", "ReduceLogSumExp", "LpNormalization", "LpPool")
"""Operators whose results fit into 16 bits where what they add up does not: the square of 256 is infinite.

CPUs add up in 32 bits, GPUs in the type of the values: 28 layers of WebGPU's fp16 end in zeros behind one ReduceL2.
"""


def _keep_between(graph: "onnx.GraphProto", before: set[str]) -> None:
    """Let nodes that stay in 32 bits read each other directly, in place.

    The converter casts what such a node gives to 16 bits and, for the next such node, back: what is too large for 16
    bits would be infinite all the same. Where several such nodes read a value, that of wheels before 1.32 casts it
    for each, by the same name. `before` names the nodes that it did not insert.
    """
    repeated, outputs = [], set()
    for position, node in enumerate(graph.node):
        if node.op_type == "Cast" and node.name not in before:
            if node.output[0] in outputs:
                repeated.append(position)
            outputs.add(node.output[0])
    for position in reversed(repeated):
        del graph.node[position]
    casts = {n.output[0]: n for n in graph.node if n.op_type == "Cast" and n.name not in before}
    to = {
        name: next(int(attribute.i) for attribute in cast.attribute if attribute.name == "to")
        for name, cast in casts.items()
    }
    direct = {
        name: casts[cast.input[0]].input[0]
        for name, cast in casts.items()
        if to[name] == onnx_types.FLOAT and to.get(cast.input[0]) == onnx_types.FLOAT16
    }
    for node in graph.node:
        node.input[:] = [direct.get(name, name) for name in node.input]
    for name, source in direct.items():
        casts[name].input[0] = source  # where an output or a body still reads it: from 32 bits to 32 bits
    read = onnx_edit.read_names(graph.node) | {value.name for value in graph.output}
    onnx_edit.keep_only(graph.node, lambda node: node.output[0] not in casts or node.output[0] in read)


FP16 = Pass(
    name="fp16",
    title="Weights and values in 16-bit floats: half the size, for CoreML and processors with half precision.",
    apply=fp16,
    effect=Effect.LOSSY,
    options=HalfOptions,
)
