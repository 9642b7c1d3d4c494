"""What every quantization begins with: constants folded, an opset that has the form, names and types for everything."""

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.core.ort_session import HostSession, load_session, ort_errors
from pipeline.core.variant import Level
from pipeline.model.edit import copied, drop_unused_domains
from pipeline.model.onnx_model import LeanModel, loadable
from pipeline.model.types import FLOAT16, TYPES
from pipeline.passes.base import Effect, Model, NotApplicable, Options, Pass, PassContext
from pipeline.passes.edit import quantized_operators
from pipeline.passes.optimize import refused, saved_at
from pipeline.passes.surgery import constants_fixed, raise_opset

if TYPE_CHECKING:
    import onnx

FLAGS = ("onnx.quant.pre_process", "onnx.infer")
"""Properties by which onnxruntime.quantization knows a model that needs no further preparation."""
DECLARED_TYPES = ("f32", "f16", "f64", "i32", "i64", "bool", "u8", "i8")
DECLARED = {f"tensor({row.ort})": row.code for row in TYPES if row.short in DECLARED_TYPES}
"""ONNX's numbers of the types that quantization asks about."""
CONSTANTS_IR = 8
"""The IR version of opset 17; before 4 ONNX's converter wants constants among the inputs."""
PER_CHANNEL_OPSET = 17
"""The opset that older models are raised to: DequantizeLinear has an axis since 13, without which a file quantized per
channel does not load; 17 is the newest before reductions and Pad change (quantization Q.3).
"""


class PreprocessOptions(Options, frozen=True, kw_only=True):
    """Options of preprocess."""

    opset: int = PER_CHANNEL_OPSET
    """The least opset; older models are converted to it. 16-bit activations need 21."""


def preprocess(model: Model, options: PreprocessOptions, context: PassContext) -> Model:
    """The model as quantization needs it; a model that has been through here comes back as it is.

    Constants are folded and batch normalization is merged into convolutions by ONNX Runtime's basic level: without that
    weights stay float and accuracy falls (quantization Q.2). NotApplicable for a quantized model, ModelError when ONNX
    Runtime refuses the model or ONNX cannot convert its opset.
    """
    if operators := quantized_operators(model.proto):
        raise NotApplicable("the model is quantized already", where=context.where,
                            why=f"it has {', '.join(sorted(operators))}",
                            remedy="quantize the float model that it was made from")  # fmt: skip
    if any(tensor.data_type == FLOAT16 for tensor in model.proto.graph.initializer):
        raise NotApplicable("the model is in half precision", where=context.where,
                            remedy="quantize the 32-bit float model that it was made from")  # fmt: skip
    if not {entry.key for entry in model.proto.metadata_props}.issuperset(FLAGS):
        model = saved_at(constants_fixed(model, context), Level.BASIC, context)
        model.proto.ir_version = max(model.proto.ir_version, CONSTANTS_IR)
    model = raise_opset(model, options.opset, context.where)
    return _finished(model, context.where)


def _finished(model: Model, where: str) -> Model:
    """Names for nodes without, biases of Gemm of one dimension, types of all values, the flags."""
    proto = copied(model.proto)
    drop_unused_domains(proto)
    name_nodes(proto.graph)
    # Turn constant biases [1, N] of Gemm into [N], in place and exactly. onnxruntime.quantization fails on them per
    # channel, or saves a file that does not load (quantization Q.3)
    uses = Counter(name for node in proto.graph.node for name in node.input)
    outputs = {value.name for value in proto.graph.output}
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        tensor = constants.get(node.input[2]) if node.op_type == "Gemm" and len(node.input) == 3 else None
        if tensor is None or len(tensor.dims) != 2 or tensor.dims[0] != 1 or tensor.name in outputs:
            continue
        if uses[tensor.name] > 1:
            copy = proto.graph.initializer.add()
            copy.CopyFrom(tensor)
            copy.name = f"{tensor.name}/{node.name}"
            uses[tensor.name] -= 1
            node.input[2], tensor = copy.name, copy
        del tensor.dims[0]
    done: Model = LeanModel(proto=proto, folder=model.folder, weights=model.weights)
    declare_types(done, where)
    known = {entry.key for entry in proto.metadata_props}
    for flag in FLAGS:
        if flag not in known:
            proto.metadata_props.add(key=flag, value="onnxruntime.quant")
    return replace(model, proto=proto, weights=done.weights)


def name_nodes(graph: "onnx.GraphProto") -> None:
    """Give every node of the main graph a name of its own, in place: nodes are excluded by name."""
    taken = Counter(node.name for node in graph.node)
    for number, node in enumerate(graph.node):
        if not node.name or taken[node.name] > 1:
            base = f"{node.op_type}_{next(filter(None, node.output), number)}"
            taken[node.name] -= 1
            while taken[base]:
                base += "_"
            node.name = base
            taken[base] += 1


def declare_types(model: Model, where: str) -> None:
    """Write the types and shapes of all values of the main graph into the message, as ONNX Runtime infers them.

    A session is loaded and never initialized, with every value made an output (ep_rules A.4).
    """
    import onnx

    graph = model.proto.graph
    asked = copied(loadable(model))
    declared = {value.name for value in (*graph.output, *graph.input)}
    names = [name for node in graph.node for name in node.output if name and name not in declared]
    asked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    try:
        session = load_session(asked.SerializeToString(), HostSession(weights=model.folder))
    except ort_errors() as error:
        raise refused(error, where) from error
    metas = {meta.name: meta for meta in session.outputs_meta}
    del graph.value_info[:]
    for name in names:
        code = DECLARED.get(metas[name].type) if name in metas else None
        if code is not None:
            shape = [dim if isinstance(dim, int | str) else None for dim in metas[name].shape] or None
            graph.value_info.append(onnx.helper.make_tensor_value_info(name, code, shape))


PASS = Pass(
    name="preprocess",
    title="Fold constants, raise the opset and name all nodes: quantization begins with it.",
    apply=preprocess,
    effect=Effect.ROUNDING,
    options=PreprocessOptions,
)
