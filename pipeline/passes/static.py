"""Static quantization: weights and activations in integers, with ranges from calibration data."""

import contextlib
import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec

from pipeline.core.errors import ConfigError, ModelError
from pipeline.model import edit as onnx_edit
from pipeline.model import onnx_model
from pipeline.model.onnx_model import LeanModel
from pipeline.passes.base import Effect, Model, NotApplicable, Options, Pass, PassContext
from pipeline.passes.calibration import FEW_SAMPLES, Method, TensorRanges, calibrate, quantizable
from pipeline.passes.edit import check_names, finished, library_call, whole
from pipeline.passes.optimize import PER_CHANNEL_OPSET, PreprocessOptions, preprocess
from pipeline.passes.refused import refused_nodes, warn_of_refused

if TYPE_CHECKING:
    import onnx


Activation: TypeAlias = Literal["u8", "s8", "u16", "s16"]
Weight: TypeAlias = Literal["u8", "s8", "u16", "s16"]
WIDE = frozenset({"u16", "s16"})
WIDE_OPSET = 21
"""The first opset whose QuantizeLinear and DequantizeLinear have 16 bits."""
DENSE = frozenset({"Gemm", "MatMul"})
BIASED, BIAS = frozenset({"Conv", "ConvTranspose", "Gemm"}), 2
"""Operators with a bias, whose scale is that of their values times that of their weight; and its place."""
CHANNEL_AXES = {"Conv": 0, "ConvTranspose": 1}
LEAST_FACTOR = 2.0**-22
"""The least scale of a weight times that of its values over that of its sums: from 2**-24 on down the NPU is wrong."""
APART = 32
"""Factor between the magnitudes of a Concat's parts from which on the smallest has under 8 of 255 steps."""
NUMPY: Mapping[Activation, str] = {"u8": "uint8", "s8": "int8", "u16": "uint16", "s16": "int16"}
NEVER_QUANTIZED = frozenset({"Cast", "CastLike"})
"""What every_type leaves as it is: a Cast between QuantizeLinear and DequantizeLinear is another one."""
OUTPUTS: Mapping[tuple[str, str], tuple[float, int]] = {
    ("Softmax", "u8"): (2**-8, 0),
    ("Softmax", "s8"): (2**-8, -128),
    ("Softmax", "u16"): (2**-16, 0),
    ("Sigmoid", "u16"): (2**-16, 0),
    ("Sigmoid", "s16"): (2**-15, 0),
    ("Tanh", "u16"): (2**-15, 1 << 15),
    ("Tanh", "s16"): (2**-15, 0),
}
"""Scale and zero point of outputs by operator and type, whatever the data. NNAPI claims a Softmax of 8 bits with this
one only, XNNPACK loads no other (quantization Q.1); the NPU has its tables of 16 bits for these only
(onnxruntime.quantization.execution_providers.qnn)."""


class StaticOptions(Options, frozen=True, kw_only=True):
    """Options of static-qdq."""

    activations: Activation = "u8"
    """Type of activations: u8, s8, u16 or s16. 16 bits raise the opset to 21."""
    weights: Weight = "s8"
    """Type of weights: u8, s8, u16 or s16."""
    per_channel: bool = False
    """One scale for each output channel of a weight instead of one for all."""
    dense_weights: Literal["", "u8", "s8"] = ""
    """Type of the weights of Gemm and MatMul, then of one scale each; "" for as all others."""
    op_types: tuple[str, ...] = ()
    """Operator types to quantize; without any, all that have a quantized form."""
    exclude: tuple[str, ...] = ()
    """Names of nodes that stay float."""
    method: Method = Method.MINMAX
    """How ranges follow from calibration data: minmax, entropy or percentile."""
    percentile: Annotated[float, msgspec.Meta(gt=50, le=100)] = 99.999
    """The share of magnitudes inside the range, in percent, for the method percentile."""
    every_type: bool = False
    """Quantize operators of every type, those without a quantized form of their own too: for NPUs without floats."""
    reduce_range: bool = False
    """Weights in 7 bits, for x86-64 processors without VNNI."""


def static_qdq(model: Model, options: StaticOptions, context: PassContext) -> Model:
    """The model in QDQ form.

    NotApplicable for a quantized model and one without an operator to quantize; ConfigError without usable samples.
    """
    ready = prepare(model, options, context)
    return finished(quantized_by_most(ready, ranges_of(ready, options, context), options, context).proto, context)


def prepare(model: Model, options: StaticOptions, context: PassContext, types: frozenset[str] | None = None) -> Model:
    """The model as `calibrate` and `quantize` take it, in an opset that has the types; raises as `wanted_nodes`."""
    wide = options.activations in WIDE or options.weights in WIDE
    joins = options.every_type and any(node.op_type == "Concat" for node in model.proto.graph.node)  # may become wide
    least = WIDE_OPSET if wide or joins else PER_CHANNEL_OPSET
    ready = preprocess(model, PreprocessOptions(opset=least), context)
    wanted_nodes(ready.proto, options, context.where, types or known_types(ready.proto, options))
    return ready


def known_types(proto: "onnx.ModelProto", options: StaticOptions) -> frozenset[str]:
    """The operator types that a form may quantize: those that have one of their own, or all without bodies."""
    types = quantizable()
    if not options.every_type:
        return types
    plain = {node.op_type for node in proto.graph.node if not any(a.HasField("g") for a in node.attribute)}
    return types | (plain - NEVER_QUANTIZED)


def ranges_of(model: Model, options: StaticOptions, context: PassContext) -> TensorRanges:
    """`calibrate` a prepared model; warns of few samples, and of what stays float because a value has no range."""
    assert context.samples is not None, "the registry asks for data"  # noqa: S101 - Pass.needs_data
    types = known_types(model.proto, options)
    ranges = calibrate(
        model, context.samples, options.method, percentile=options.percentile, op_types=types, where=context.where
    )
    if ranges.samples < FEW_SAMPLES:
        plural = "s" * (ranges.samples != 1)
        context.warn(f"ranges come from {ranges.samples} calibration sample{plural}; 20 to 100 are usual")
    nodes = wanted_nodes(model.proto, options, context.where, types)
    asked = [node for node in nodes if node.name not in options.exclude]
    left = {node.name: name for node in asked for name in (*node.output, *node.input) if name in ranges.left}
    for name, value in list(left.items())[:1]:
        others = f" and {len(left) - 1} more" if len(left) > 1 else ""
        context.warn(
            f"{len(left)} of {len(asked)} operators that were to be quantized stay float: {name}{others}; "
            f"the value {value!r} is {ranges.left[value]}"
        )
    return ranges


def quantized_by_most(
    model: Model, ranges: TensorRanges, options: StaticOptions, context: PassContext, *, operators: bool = False
) -> Model:
    """`quantize`, without the nodes that the quantizer stumbles over: these stay float, with a warning."""
    try:
        return quantize(model, ranges, options, where=context.where, operators=operators)
    except NotApplicable:
        raise
    except ModelError as error:
        exclude = _and_refused(model, ranges, options, context, error, operators=operators)
    return quantize(
        model, ranges, msgspec.structs.replace(options, exclude=exclude), where=context.where, operators=operators
    )


def takable(model: Model, ranges: TensorRanges, options: StaticOptions, context: PassContext) -> tuple[str, ...]:
    """What to exclude so that the quantizer takes the rest, with a warning; what is excluded already where it does."""
    try:
        quantize(model, ranges, options, where=context.where)
    except NotApplicable:  # who quantizes says so
        return options.exclude
    except ModelError as error:
        return _and_refused(model, ranges, options, context, error)
    return options.exclude


def _and_refused(
    model: Model,
    ranges: TensorRanges,
    options: StaticOptions,
    context: PassContext,
    error: ModelError,
    *,
    operators: bool = False,
) -> tuple[str, ...]:
    """What is excluded, and what the quantizer raised an error for; raises that as `refused_nodes` does."""
    from onnxruntime.quantization.registry import QLinearOpsRegistry

    types = frozenset(QLinearOpsRegistry) if operators else known_types(model.proto, options)
    chosen = chosen_nodes(model.proto, ranges, options, context.where, types)
    names = [node.name for node in model.proto.graph.node if node.name in chosen]

    def attempt(part: Sequence[str]) -> None:
        exclude = (*options.exclude, *chosen.difference(part))
        with contextlib.suppress(NotApplicable):  # some types are quantized behind quantized nodes only
            quantize(model, ranges, msgspec.structs.replace(options, exclude=exclude), operators=operators)

    refused = refused_nodes(names, attempt, error)
    warn_of_refused(refused, error, context)
    return (*options.exclude, *refused)


def quantize(
    model: Model, ranges: TensorRanges, options: StaticOptions, *, where: str = "", operators: bool = False
) -> Model:
    """Quantize a prepared model with the ranges of its values: a fraction of a second for a phone's model.

    In QDQ form, or in that of `operators`; with onnxruntime.quantization's own quantizers and our ranges in place of
    its calibration. All weights of the result are in its message. ModelError for ranges of another model, NotApplicable
    when nothing would be quantized, ConfigError for an excluded node that there is not.
    """
    import numpy as np
    from onnxruntime.quantization.calibrate import CalibrationMethod, TensorData, TensorsData
    from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
    from onnxruntime.quantization.quant_utils import QuantizationMode
    from onnxruntime.quantization.registry import QLinearOpsRegistry

    if ranges.model != onnx_model.content_digest(model, {}):
        raise ModelError("the calibrated ranges are of another model", where=where, remedy="calibrate again")
    types = frozenset(QLinearOpsRegistry) if operators else known_types(model.proto, options)
    chosen = chosen_nodes(model.proto, ranges, options, where, types)
    proto = whole(model)
    split_shared(proto.graph, chosen)
    of_chosen = sorted({node.op_type for node in proto.graph.node if node.name in chosen})
    kinds = quant_type(options.weights), quant_type(options.activations)
    data = TensorsData(
        CalibrationMethod.MinMax,
        {
            name: TensorData(lowest=np.array(low, np.float32), highest=np.array(high, np.float32))
            for name, (low, high) in ranges.ranges.items()
        },
    )
    other = "take the pass static-qdq" if operators else "name operator types"
    with library_call(
        "onnxruntime.quantization cannot quantize the model", where, f"exclude the node that it names, or {other}"
    ):
        if operators:
            quantizer = ONNXQuantizer(
                proto,
                options.per_channel,
                options.reduce_range,
                QuantizationMode.QLinearOps,
                True,
                *kinds,
                data,
                sorted(chosen),
                [],
                of_chosen,
                {},
            )
        else:
            quantizer = QDQQuantizer(
                proto,
                options.per_channel,
                options.reduce_range,
                *kinds,
                data,
                sorted(chosen),
                [],
                of_chosen,
                {"TensorQuantOverrides": overrides(proto, ranges, options, chosen)},
            )
        quantizer.quantize_model()
    quantized: onnx.ModelProto = quantizer.model.model
    onnx_edit.sort_nodes(quantized.graph)
    signs = ("QLinear", "QGemm") if operators else ("DequantizeLinear",)
    if not any(node.op_type.startswith(signs) for node in quantized.graph.node):
        raise NotApplicable(
            "nothing was quantized",
            where=where,
            why="no operator of these types had what it needs",
            remedy="name other operator types",
        )
    return LeanModel(proto=quantized, folder=model.folder, weights={})


def chosen_nodes(
    proto: "onnx.ModelProto", ranges: TensorRanges, options: StaticOptions, where: str, types: frozenset[str]
) -> set[str]:
    """Names of the nodes to quantize: of the types wanted and in `types`, not excluded, all values with a range.

    NotApplicable when there are none; raises as `wanted_nodes`.
    """
    check_names(proto, options.exclude, where)
    asked = wanted_nodes(proto, options, where, types)
    left = ranges.left.keys()
    constants = {tensor.name: len(tensor.dims) for tensor in proto.graph.initializer}
    chosen = {
        node.name
        for node in asked
        if node.name not in options.exclude
        and left.isdisjoint((*node.input, *node.output))
        and not (node.op_type == "Gemm" and not _has_plain_bias(node, constants))
    }
    if not chosen:
        first = next((f"the value {name!r} is {why}" for name, why in ranges.left.items()), "")
        why = first or "all nodes of these types are excluded, or have no form that keeps their values"
        raise NotApplicable(
            "no node can be quantized",
            where=where,
            why=why,
            remedy="check the calibration data, or name other operator types",
        )
    return chosen


def _has_plain_bias(node: "onnx.NodeProto", ranks: Mapping[str, int]) -> bool:
    """Whether a Gemm's bias is none, or such that the quantizer keeps its value: it takes beta for 1, and rank 1."""
    bias = "".join(node.input[2:3])
    if ranks.get(bias, 1) != 1:
        return False
    return not bias or onnx_edit.attribute(node, "beta", 1.0) == 1.0


def wanted_nodes(
    proto: "onnx.ModelProto", options: StaticOptions, where: str, quantizable: frozenset[str]
) -> "list[onnx.NodeProto]":
    """The nodes of the wanted types, all `quantizable` if none are named.

    NotApplicable when there are none; ConfigError for a type that has no quantized form.
    """
    for kind in options.op_types:
        if kind not in quantizable:
            close = difflib.get_close_matches(kind, quantizable, n=1)
            remedy = (
                f"did you mean {close[0]!r}?" if close else f"types that have one: {', '.join(sorted(quantizable))}"
            )
            raise ConfigError(f"the operator type {kind!r} has no quantized form", where=where, remedy=remedy)
    types = set(options.op_types) or quantizable
    if nodes := [node for node in proto.graph.node if node.op_type in types]:
        return nodes
    have = ", ".join(sorted({node.op_type for node in proto.graph.node})[:12])
    raise NotApplicable(
        "the model has no operator to quantize",
        where=where,
        why=f"its operators: {have}",
        remedy=f"operators with a quantized form: {', '.join(sorted(quantizable))}",
    )


def split_shared(graph: "onnx.GraphProto", chosen: set[str]) -> None:
    """Give each kind of reader of a float constant its own copy, in place: float nodes keep the float numbers.

    onnxruntime.quantization replaces a weight for all its readers, quantized or not, with the first one's options,
    removes the constant that one of several Pads reads, and copies a bias under the name of another value (quantization
    Q.3).
    """
    constants = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type == 1}
    first: dict[str, str] = {}
    copies: dict[tuple[str, str], str] = {}
    for node in graph.node:
        for slot, name in enumerate(node.input):
            alone = node.op_type == "Pad" or (slot == BIAS and node.op_type in BIASED)
            kind = "float" if node.name not in chosen else node.name if alone else node.op_type
            if name not in constants or first.setdefault(name, kind) == kind:
                continue
            if (name, kind) not in copies:
                copy = graph.initializer.add()
                copy.CopyFrom(constants[name])
                copy.name = copies[name, kind] = f"{name}/{kind}"
            node.input[slot] = copies[name, kind]


def overrides(
    proto: "onnx.ModelProto", ranges: TensorRanges, options: StaticOptions, chosen: set[str]
) -> dict[str, list[dict[str, Any]]]:
    """What differs from the options for single values, by name.

    Outputs of Softmax and the like, and weights of Gemm and MatMul. For an NPU without floats also ranges of constants
    beside whose scales it makes garbage, all zeros and channels of nearly nothing; and outputs of Concat that 8 bits
    cannot hold, since a part would be a few steps of the others': boxes and scores.
    """
    import numpy as np
    from onnx import numpy_helper

    special: dict[str, list[dict[str, Any]]] = {}
    scales: dict[str, list[dict[str, Any]]] = {}
    kind = quant_type(options.activations)
    every = {tensor.name for tensor in proto.graph.initializer}
    constants = {tensor.name: tensor for tensor in proto.graph.initializer if tensor.data_type == 1}
    nodes = [node for node in proto.graph.node if node.name in chosen]
    for node in nodes:
        if output := OUTPUTS.get((node.op_type, options.activations)):
            zero = np.array(output[1], NUMPY[options.activations])
            scale = np.array(output[0], np.float32)
            special[node.output[0]] = [{"quant_type": kind, "scale": scale, "zero_point": zero}]
        if node.op_type in DENSE and options.dense_weights and node.input[1] in every:
            special[node.input[1]] = [{"quant_type": quant_type(options.dense_weights)}]
        grouped = node.op_type == "ConvTranspose" and onnx_edit.attribute(node, "group", 1) > 1
        if grouped and options.per_channel and node.input[1] in every:
            # Its channels are those of a group: the quantizer has no scale for each of its bias (quantization Q.3)
            special[node.input[1]] = [{"quant_type": quant_type(options.weights)}]
        if not options.every_type:
            continue
        if node.op_type == "LayerNormalization" and node.input[1] in every:
            special[node.input[1]] = [{"quant_type": quant_type("u8")}]  # the only scale that the NPU takes
        axis = CHANNEL_AXES.get(node.op_type)
        for name in node.input if axis is None and node.output[0] in ranges.ranges else ():
            if name in constants and not numpy_helper.to_array(constants[name]).any():
                low, high = ranges.ranges[node.output[0]]
                bounds = scales.get(name, [{"rmin": low, "rmax": high}])[0]  # without a range its scale would be 1
                scales[name] = [{"rmin": max(low, bounds["rmin"]), "rmax": min(high, bounds["rmax"])}]
        if axis is None or not options.per_channel or options.activations not in WIDE or node.input[1] not in constants:
            continue
        weights = np.moveaxis(numpy_helper.to_array(constants[node.input[1]]), axis, 0)
        largest = np.abs(weights.reshape(len(weights), -1)).max(1)
        before, after = (np.ptp([0, *ranges.ranges[name]]) for name in (node.input[0], node.output[0]))
        least = 127 * LEAST_FACTOR * after / before
        if largest.min() < least:
            far = np.maximum(largest, least).tolist()
            scales[node.input[1]] = [{"axis": axis, "rmin": -most, "rmax": most} for most in far]
    reach = {
        node.output[0]: [max(map(abs, ranges.ranges[name])) for name in node.input if name in ranges.ranges]
        for node in nodes
        if node.op_type == "Concat" and options.every_type and options.activations not in WIDE
    }
    apart = [name for name, parts in reach.items() if parts and max(parts) > APART * min(parts)]
    joins: dict[str, list[dict[str, Any]]] = {name: [{"quant_type": quant_type("u16")}] for name in apart}
    by_value = special | scales | joins
    if joins:  # the types of the values around them, and conversions to the others' type and back
        from onnxruntime.quantization.execution_providers.qnn import mixed_precision_overrides_utils as mixed
        from onnxruntime.quantization.tensor_quant_overrides import TensorQuantOverridesHelper

        helper = TensorQuantOverridesHelper(by_value)
        mixed.MixedPrecisionTensorQuantOverridesFixer.create_from_model(helper, proto, kind).apply(kind, False)
        by_value = helper.get_dict()
    return by_value


def quant_type(short: str) -> Any:
    """onnxruntime.quantization's QuantType of u8, s8, u16, s16."""
    from onnxruntime.quantization import QuantType

    return {"u8": QuantType.QUInt8, "s8": QuantType.QInt8, "u16": QuantType.QUInt16, "s16": QuantType.QInt16}[short]


STATIC = Pass(
    name="static-qdq",
    title="Quantize weights and activations statically, in QDQ form.",
    apply=static_qdq,
    effect=Effect.LOSSY,
    options=StaticOptions,
    before_data=prepare,
)


def qoperator(model: Model, options: StaticOptions, context: PassContext) -> Model:
    """The model with quantized operators; raises as `prepare_operators`."""
    ready = prepare_operators(model, options, context)
    ranges = ranges_of(ready, options, context)
    return finished(quantized_by_most(ready, ranges, options, context, operators=True).proto, context)


def prepare_operators(model: Model, options: StaticOptions, context: PassContext) -> Model:
    """As `prepare`; NotApplicable for what has this form not: 16 bits, s8 activations."""
    from onnxruntime.quantization.registry import QLinearOpsRegistry

    if options.activations in WIDE or options.weights in WIDE or options.activations == "s8":
        raise NotApplicable(
            "the operator form has u8 activations and 8-bit weights only",
            where=context.where,
            remedy="take activations=u8, or the pass static-qdq",
        )
    if options.dense_weights or options.every_type:
        raise NotApplicable(
            "the operator form has neither dense_weights nor every_type",
            where=context.where,
            remedy="leave them out, or take the pass static-qdq",
        )
    return prepare(model, options, context, frozenset(QLinearOpsRegistry))


QOPERATOR = Pass(
    name="qoperator",
    title="Quantize statically into operators (QLinearConv …), for libraries from before QDQ.",
    apply=qoperator,
    effect=Effect.LOSSY,
    options=StaticOptions,
    before_data=prepare_operators,
)
