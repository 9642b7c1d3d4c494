"""ONNX Runtime's own graph optimizations, saved as an ONNX model: what a session would do at every start, done once."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pipeline.core import ort_session
from pipeline.core.errors import ModelError
from pipeline.core.variant import Level
from pipeline.model import edit as onnx_edit
from pipeline.model import guards, onnx_model
from pipeline.model import session as model_session
from pipeline.model import types as onnx_types
from pipeline.passes.base import Effect, Model, NotApplicable, Options, Pass, PassContext
from pipeline.passes.edit import changed, model_bytes, quantized_operators, read_back, whole
from pipeline.passes.surgery import check_folding, constants_fixed, raise_opset

if TYPE_CHECKING:
    import onnx
    from onnx import ModelProto

LAYOUT = "NchwcTransformer"
"""Puts weights into blocks as wide as the vector registers of the processor that it runs on."""
NCHWC_DOMAIN = "com.microsoft.nchwc"
STANDARD = frozenset({*onnx_edit.ONNX_DOMAINS, "ai.onnx.ml"})


class OptimizeOptions(Options, frozen=True, kw_only=True):
    """Options of optimize."""

    level: Literal["basic", "extended", "layout", "all"] = "basic"
    """What is done: basic keeps to ONNX's own operators, from extended on some are ONNX Runtime's."""

    platform: Literal["unspecified", "arm", "amd64"] = "unspecified"
    """The processor that it is for: arm keeps int8 as it is, amd64 allows this computer's layout at layout and all."""

    loads_in: Literal["onnxruntime", "any"] = "onnxruntime"
    """any refuses a result with operators that other runtimes do not know."""


def optimize(model: Model, options: OptimizeOptions, context: PassContext) -> Model:
    """The model as ONNX Runtime saves it at a level; ModelError when it refuses it."""
    level = Level(options.level)
    config = {"session.qdqisint8allowed": "1"} if level is not Level.BASIC and options.platform == "arm" else {}
    saved = saved_at(model, level, context, config=config, layout=options.platform == "amd64")
    onnx_edit.drop_unused_domains(saved.proto)
    foreign = foreign_operators(saved.proto)
    if foreign and options.loads_in == "any":
        raise NotApplicable(
            "the optimized model loads in ONNX Runtime alone",
            where=context.where,
            why=f"it has {_listed(foreign)}",
            remedy="use level basic, or leave loads_in out",
        )
    for note in loads_where(saved.proto):
        context.warn(note)
    return saved


def foreign_operators(proto: "ModelProto") -> Counter[str]:
    """The operators of domains that ONNX does not have, counted, bodies included."""
    return Counter(
        f"{node.domain}:{node.op_type}" for node in onnx_edit.all_nodes(proto.graph) if node.domain not in STANDARD
    )


def loads_where(proto: "ModelProto") -> Iterator[str]:
    """What an optimized ONNX model cannot be loaded in, in words."""
    foreign = foreign_operators(proto)
    if foreign:
        yield f"only ONNX Runtime loads this: it has {_listed(foreign)}"
    yield from for_processors(foreign)


def for_processors(operators: Iterable[str]) -> Iterator[str]:
    """That a file with these operators is for processors like this computer's, in words; nothing for most files."""
    if any(name.startswith(f"{NCHWC_DOMAIN}:") for name in operators):
        yield (
            "its weights lie in blocks of this computer's processor (NCHWc, 16 channels with AVX-512, else 8): it is "
            "for such processors only, as ONNX Runtime itself warns"
        )


def _listed(operators: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" if count > 1 else name for name, count in operators.items())


def saved_at(
    model: Model, level: Level, context: PassContext, *, config: Mapping[str, str] | None = None, layout: bool = False
) -> Model:
    """The model as a session saves it at a level, its large weights in a file of their own.

    Without `layout` the optimizer that knows only this computer's processor is left out. ModelError when ONNX Runtime
    refuses the model.
    """
    if guards.computed_constants(model.proto.graph):
        check_folding(whole(model), model_bytes(model), context.where)
    target = context.new_file(".onnx")
    file = {"session.optimized_model_external_initializers_file_name": f"{target.stem}.weights"}
    entries = {**(file if model.weights else {}), **(config or {})}
    try:
        options = ort_session.session_options(level, save_to=target, weights=model.folder, config=entries)
        session = ort_session.load_session(onnx_model.loadable(model).SerializeToString(), options)
        session.initialize_session([ort_session.CPU], [{}], set() if layout else {LAYOUT})
    except ort_session.ort_errors() as error:
        message, folder = (
            onnx_model.loadable(model).SerializeToString(),
            {ort_session.WEIGHTS_FOLDER: str(model.folder)},
        )
        raise model_session.broken_by_optimizer(message, level, error, refused(error, context.where), folder) from error
    return read_back(target)


def refused(error: Exception, where: str) -> ModelError:
    """ONNX Runtime's complaint about a model."""
    return ModelError(
        "ONNX Runtime cannot run the model on this computer's CPU",
        where=where,
        why=ort_session.first_line(error),
        remedy="fix what it names; onnx.checker.check_model often says more",
    )


PASS = Pass(
    name="optimize",
    title="Save the model as ONNX Runtime optimizes it at a level.",
    apply=optimize,
    effect=Effect.ROUNDING,
    options=OptimizeOptions,
)


FLAGS = ("onnx.quant.pre_process", "onnx.infer")
"""Properties by which onnxruntime.quantization knows a model that needs no further preparation."""
DECLARED_TYPES = ("f32", "f16", "f64", "i32", "i64", "bool", "u8", "i8")
DECLARED = {f"tensor({element.ort})": element.code for element in onnx_types.TYPES if element.short in DECLARED_TYPES}
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
        raise NotApplicable(
            "the model is quantized already",
            where=context.where,
            why=f"it has {', '.join(sorted(operators))}",
            remedy="quantize the float model that it was made from",
        )
    _refuse_half(model.proto, context.where, but_cast=True)
    if not {entry.key for entry in model.proto.metadata_props}.issuperset(FLAGS):
        fixed = constants_fixed(model, context)
        model = saved_at(replace(fixed, proto=_bounded(fixed.proto)), Level.BASIC, context)
        model.proto.ir_version = max(model.proto.ir_version, CONSTANTS_IR)
    _refuse_half(model.proto, context.where)
    model = raise_opset(model, options.opset, context.where)
    # Names for nodes without, biases of Gemm of one dimension, types of all values, the flags
    proto = onnx_edit.copied(model.proto)
    onnx_edit.drop_unused_domains(proto)
    name_nodes(proto.graph)
    plain_biases(model, proto)
    model = changed(model, proto)
    declare_types(model, context.where)
    keys = {entry.key for entry in proto.metadata_props}
    for flag in FLAGS:
        if flag not in keys:
            proto.metadata_props.add(key=flag, value="onnxruntime.quant")
    return model


def _refuse_half(proto: "ModelProto", where: str, *, but_cast: bool = False) -> None:
    """NotApplicable for constants in half precision; `but_cast` passes over those that are stored so and cast."""
    halves = {tensor.name for tensor in proto.graph.initializer if tensor.data_type == onnx_types.FLOAT16}
    readers = [node for node in proto.graph.node if not halves.isdisjoint(node.input)] if halves else []
    if halves and not (but_cast and readers and all(node.op_type == "Cast" for node in readers)):
        raise NotApplicable(
            "the model is in half precision",
            where=where,
            remedy="quantize the 32-bit float model that it was made from, or put the pass f32 before "
            "(--do f32 --do static-qdq)",
        )


def plain_biases(model: Model, proto: "ModelProto") -> None:
    """Give Gemm a constant bias [N] with beta 1, in place; `proto` is a copy of the model's message.

    onnxruntime.quantization takes beta for 1 and keeps the bias; on biases [1, N] and scalars it fails per channel, or
    saves a file that does not load (quantization Q.3). A bias of other numbers for each sample stays.
    """
    import numpy as np
    from onnx import numpy_helper

    uses = Counter(name for node in proto.graph.node for name in node.input)
    outputs = {value.name for value in proto.graph.output}
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        tensor = constants.get(node.input[2]) if node.op_type == "Gemm" and len(node.input) == 3 else None
        weight = constants.get(node.input[1]) if tensor is not None else None
        if tensor is None or tensor.data_type != onnx_types.FLOAT:
            continue
        dims, beta = list(tensor.dims), onnx_edit.attribute(node, "beta", 1.0)
        width = weight.dims[0 if onnx_edit.attribute(node, "transB", 0) else 1] if weight is not None else 0
        plain = dims if len(dims) == 1 and dims != [1] else dims[1:] if len(dims) == 2 and dims[0] == 1 else dims
        if math.prod(dims) == 1 and width:
            plain = [width]
        if plain == dims and beta == 1.0:
            continue
        if tensor.name in model.weights:
            onnx_model.read_in(tensor, model.weights[tensor.name])
        values = numpy_helper.to_array(tensor)
        values = np.broadcast_to(values.reshape(-1) if plain != dims else values, plain) * np.float32(beta)
        name = tensor.name
        if uses[name] > 1 or name in outputs:
            name = f"{name}/{node.name}"
            uses[tensor.name] -= 1
            tensor = proto.graph.initializer.add()
            node.input[2] = name
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values), name))
        onnx_edit.keep_only(node.attribute, lambda part: part.name != "beta")


INFINITE_BOUNDS = {"Max": -math.inf, "Min": math.inf}


def _bounded(model: "ModelProto") -> "ModelProto":
    """A copy with Identity for Max and Min of a value and a bound that is infinite: no integer stands for it."""
    from onnx import numpy_helper

    scalars = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type == "Constant"]
    scalars |= {node.output[0]: onnx_edit.attribute(node, "value") for node in nodes}
    bounds = {node.output[0]: onnx_edit.attribute(node, "value_float") for node in nodes}
    bounds |= {
        name: float(numpy_helper.to_array(tensor))
        for name, tensor in scalars.items()
        if tensor is not None and tensor.data_type == onnx_types.FLOAT and not tensor.dims
    }
    proto = onnx_edit.copied(model)
    for node in proto.graph.node:
        bound = INFINITE_BOUNDS.get(node.op_type)
        kept = [name for name in node.input if bounds.get(name) != bound]
        if bound is not None and len(kept) == 1 < len(node.input):
            node.op_type, node.input[:] = "Identity", kept
    return proto


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
    asked = onnx_edit.copied(onnx_model.loadable(model))
    declared = {value.name for value in (*graph.output, *graph.input)}
    names = [name for node in graph.node for name in node.output if name and name not in declared]
    asked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    try:
        session = ort_session.load_session(asked.SerializeToString(), ort_session.session_options(weights=model.folder))
    except ort_session.ort_errors() as error:
        raise refused(error, where) from error
    metas = {meta.name: meta for meta in session.outputs_meta}
    del graph.value_info[:]
    for name in names:
        code = DECLARED.get(metas[name].type) if name in metas else None
        if code is not None:
            shape = [dim if isinstance(dim, int | str) else None for dim in metas[name].shape] or None
            graph.value_info.append(onnx.helper.make_tensor_value_info(name, code, shape))


PREPROCESS = Pass(
    name="preprocess",
    title="Fold constants, raise the opset and name all nodes: quantization begins with it.",
    apply=preprocess,
    effect=Effect.ROUNDING,
    options=PreprocessOptions,
)
