"""Passes that leave the graph between inputs and outputs as it is, and folding and fusions by libraries."""

import difflib
import importlib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pipeline.core import errors as core_errors
from pipeline.core.errors import ConfigError, ModelError
from pipeline.model import edit as onnx_edit
from pipeline.model import guards, onnx_model, signature
from pipeline.model import types as onnx_types
from pipeline.passes import edit as passes_edit
from pipeline.passes import value_types as passes_types
from pipeline.passes.base import Effect, Model, NotApplicable, Options, Pass, PassContext

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto


def take_initializers_out(model: Model, _options: Options, _context: PassContext) -> Model:
    """The model without inputs that have an initializer; NotApplicable where there are none."""
    graph = model.proto.graph
    constants = onnx_edit.constant_names(graph)
    if not any(value.name in constants for value in graph.input):
        raise NotApplicable("nothing to do", why="no initializer is an input")
    proto = onnx_edit.copied(model.proto)
    onnx_edit.keep_only(proto.graph.input, lambda value: value.name not in constants)
    proto.ir_version = max(proto.ir_version, passes_edit.IR_OF_CONSTANTS)
    return replace(model, proto=proto)


def constants_fixed(model: Model, context: PassContext) -> Model:
    """The model without such inputs; the model itself where there are none."""
    try:
        return take_initializers_out(model, Options(), context)
    except NotApplicable:
        return model


CONSTANT_INITIALIZERS = Pass(
    name="constant-initializers",
    title="Take initializers out of the inputs: they become constants.",
    apply=take_initializers_out,
    effect=Effect.INTERFACE,
)


class DimensionOptions(Options, frozen=True, kw_only=True):
    """Options of fixed-dimensions."""

    sizes: dict[str, int] = {}
    """Sizes by symbolic name or as INPUT[AXIS]."""
    rest: int | None = None
    """The size of every dimension that `sizes` does not name; without it those stay open."""


def fix_sizes(model: Model, options: DimensionOptions, context: PassContext) -> Model:
    """The model with sizes; ConfigError for a name that it lacks, NotApplicable where no dimension is open."""
    axes = signature.open_axes(signature.own_inputs(model.proto))
    if not axes:
        raise NotApplicable("nothing to do", why="every input dimension has a size")
    proto = onnx_edit.copied(model.proto)
    onnx_model.fix_dimensions(proto, options.sizes, context.where)
    if options.rest is not None:
        onnx_model.fix_dimensions(
            proto, {axis.key: options.rest for axis in signature.open_axes(signature.own_inputs(proto))}, context.where
        )
    return replace(model, proto=proto)


FIXED_DIMENSIONS = Pass(
    name="fixed-dimensions",
    title="Give dynamic dimensions their sizes.",
    apply=fix_sizes,
    effect=Effect.EXACT,
    options=DimensionOptions,
)


class PruneOptions(Options, frozen=True, kw_only=True):
    """Options of prune-outputs."""

    outputs: tuple[str, ...]
    """Names of the values that the model gives from now on, in this order: outputs, or values inside the graph."""


def prune_outputs(model: Model, options: PruneOptions, context: PassContext) -> Model:
    """The model with the named outputs, without the nodes, weights and inputs that only others need.

    Values that only the bodies of If, Loop and Scan read count as needed. ConfigError for a name that no node gives,
    NotApplicable where these are the outputs already.
    """
    names = tuple(dict.fromkeys(options.outputs))
    if names == tuple(value.name for value in model.proto.graph.output):
        raise NotApplicable("nothing to do", why="these are the outputs of the model")
    proto = onnx_edit.copied(model.proto)
    graph = proto.graph
    values = [*(value.name for value in graph.output), *(name for node in graph.node for name in node.output if name)]
    if not any(names):
        raise ConfigError("no output is named", where=context.where, remedy=f"name some of: {', '.join(values[:8])}")
    for name in names:
        if name not in values:
            close = difflib.get_close_matches(name, values, n=1)
            remedy = f"did you mean {close[0]!r}?" if close else "name an output, or a value that a node gives"
            raise ConfigError(f"no node of the model gives {name!r}", where=context.where, remedy=remedy)
    _set_outputs(proto, names)
    # Remove what no output needs; in a graph whose nodes are in no order, too
    maker = {name: node for node in graph.node for name in node.output if name}
    needed, waiting = set[str](), [value.name for value in graph.output]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting.extend(onnx_edit.read_names([maker[name]]) if name in maker else ())
    onnx_edit.keep_only(graph.node, lambda node: not needed.isdisjoint(node.output))
    given = {name for node in graph.node for name in node.output}
    for kept in (graph.initializer, graph.input):
        onnx_edit.keep_only(kept, lambda value: value.name in needed)
    onnx_edit.keep_only(graph.sparse_initializer, lambda sparse: sparse.values.name in needed)
    onnx_edit.keep_only(graph.value_info, lambda value: value.name in needed and value.name in given)
    onnx_edit.keep_only(graph.quantization_annotation, lambda note: note.tensor_name in needed)
    return passes_edit.changed(model, proto)


def expose(model: Model, names: tuple[str, ...]) -> Model:
    """The model with more outputs: values of its main graph that nodes give."""
    proto = onnx_edit.copied(model.proto)
    _set_outputs(proto, (*(value.name for value in proto.graph.output), *names))
    return passes_edit.changed(model, proto)


def _set_outputs(proto: "ModelProto", names: tuple[str, ...]) -> None:
    """Declare the outputs; those from inside the graph get the types that ONNX Runtime infers."""
    import onnx

    graph = proto.graph
    declared = {value.name: value for value in graph.output}
    types = passes_types.value_types(proto) if any(name not in declared for name in names) else {}
    outputs = []
    for name in names:
        value = onnx.ValueInfoProto(name=name)
        if name in declared:
            value.CopyFrom(declared[name])
        elif (value_type := types.get(name)) and value_type.dtype:
            passes_types.declare(value, value_type)
        outputs.append(value)
    del graph.output[:]
    graph.output.extend(outputs)


PRUNE_OUTPUTS = Pass(
    name="prune-outputs",
    title="Keep named outputs, or cut at inner values; remove what they do not need.",
    apply=prune_outputs,
    effect=Effect.INTERFACE,
    options=PruneOptions,
)

SHARED = re.compile(r"[\w-][\w.-]{0,99}\.weights", re.ASCII)


class ExternalOptions(Options, frozen=True, kw_only=True):
    """Options of external-data."""

    min_bytes: int = 1024
    """Weights of fewer bytes stay in the model."""
    file: str = ""
    """Name of the file, NAME.weights beside the result, which keeps what it has: weights that are there already, such
    as those of the model in another size, are not stored again. Default: the result's name with .data."""

    def __post_init__(self) -> None:
        """A name that paths can be made of."""
        if self.file and not SHARED.fullmatch(self.file):
            raise ValueError(f"{self.file[:200]!r} is no name for weights: NAME.weights of letters, digits, _, - and .")


def to_external(model: Model, options: ExternalOptions, context: PassContext) -> Model:
    """The model with its weights in a file of their own, MODEL.data, once it is saved.

    Weights in Constant nodes of the main graph become initializers first. NotApplicable where none is large enough.
    """
    if options.min_bytes < 1:
        raise ConfigError("min_bytes is not positive", where=context.where, remedy="give 1 or more bytes")
    proto = onnx_edit.copied(model.proto)
    outputs = {value.name for value in proto.graph.output}

    def large(tensor: "TensorProto") -> bool:
        return tensor.data_type != tensor.STRING and (guards.tensor_bytes(tensor) or 0) >= options.min_bytes

    moved = set()
    for node in proto.graph.node:
        if node.op_type != "Constant" or node.domain not in onnx_edit.ONNX_DOMAINS or outputs & set(node.output):
            continue
        for attribute in node.attribute:
            if attribute.name == "value" and large(attribute.t):
                added = proto.graph.initializer.add()
                added.CopyFrom(attribute.t)
                added.name = node.output[0]
                moved.add(node.output[0])
    onnx_edit.keep_only(proto.graph.node, lambda node: not (node.op_type == "Constant" and moved & set(node.output)))
    passes_edit.make_constant(proto)
    names = {tensor.name for tensor in proto.graph.initializer if large(tensor)}
    if not names or (names <= model.outside and not options.file):
        raise NotApplicable("nothing to do", why=f"no weight in the model has {options.min_bytes} bytes or more")
    return replace(passes_edit.changed(model, proto), outside=frozenset(model.outside | names))


def to_inline(model: Model, _options: Options, _context: PassContext) -> Model:
    """The model with all weights in its own file once it is saved; NotApplicable where they are."""
    if not model.outside:
        raise NotApplicable("nothing to do", why="no weight lies in another file")
    return replace(model, outside=frozenset())


EXTERNAL = Pass(
    name="external-data",
    title="Put weights into a file beside the model, those in Constant nodes too.",
    apply=to_external,
    effect=Effect.EXACT,
    options=ExternalOptions,
)
INLINE = Pass(
    name="inline-data",
    title="Put weights from files beside the model into it.",
    apply=to_inline,
    effect=Effect.EXACT,
)


class OpsetOptions(Options, frozen=True, kw_only=True):
    """Options of opset."""

    version: int
    """The opset of ai.onnx to convert to, over that of the model."""


def convert_opset(model: Model, options: OpsetOptions, context: PassContext) -> Model:
    """The model in a newer opset; weights stay where they are.

    NotApplicable for the same or an older opset and for models with functions, which the converter loses; ConfigError
    for an opset that the installed onnx does not know, ModelError where the converter cannot.
    """
    import onnx

    newest = onnx.defs.onnx_opset_version()
    if not 1 <= options.version <= newest:
        raise ConfigError(
            f"there is no opset {options.version}",
            where=context.where,
            remedy=f"the installed onnx {onnx.__version__} knows 1 to {newest}",
        )
    now = onnx_edit.onnx_opset(model.proto)
    if now == options.version:
        raise NotApplicable("nothing to do", why=f"the model is opset {now}")
    if now > options.version:
        raise NotApplicable(
            f"opset {now} cannot become {options.version}",
            why="ONNX's version converter lacks most adapters to older opsets: 1 of 12 models could be converted down",
            remedy="export the model again with that opset",
        )
    return passes_edit.changed(model, converted(model.proto, options.version))


def raise_opset(model: Model, least: int, where: str) -> Model:
    """The model with at least this opset; ModelError with the reason where ONNX cannot convert it."""
    if onnx_edit.onnx_opset(model.proto) >= least:
        return model
    try:
        return passes_edit.changed(model, converted(model.proto, least))
    except ModelError as error:
        raise ModelError(
            f"ONNX cannot convert the model to opset {least}",
            where=where,
            why=error.why or error.what,
            remedy=f"export the model again with opset {least} or newer",
        ) from error


def converted(proto: "ModelProto", target: int) -> "ModelProto":
    """The message in another opset, with what the converter's own representation has no place for put back.

    Opsets below the model's are tried, too. ModelError with the converter's reason when it cannot.
    """
    from onnx import version_converter

    if proto.functions or proto.graph.sparse_initializer:
        lost = "functions" if proto.functions else "sparse initializers"
        raise NotApplicable("the opset cannot be converted", why=f"ONNX's version converter loses the model's {lost}")
    try:
        newer = version_converter.convert_version(proto, target)
    except Exception as error:  # the converter throws RuntimeError, its own ConvertError, and what protobuf has
        text = str(error).strip().partition("\n")[0]
        why = (text.rpartition("failed: ")[2] or text).replace("$", "")[:200]
        raise ModelError("ONNX's version converter cannot convert the model", why=why) from error
    # Where weights lie, and what describes the model
    external = {t.name: t for t in proto.graph.initializer if t.data_location == t.EXTERNAL}
    left = {t.name: t for t in newer.graph.initializer}
    if not external.keys() <= left.keys():
        raise ModelError("ONNX's version converter loses parts of this model")
    for name, tensor in external.items():
        left[name].CopyFrom(tensor)
    newer.ir_version = max(proto.ir_version, newer.ir_version)
    del newer.metadata_props[:]
    newer.metadata_props.extend(proto.metadata_props)
    if onnx_edit.onnx_opset(proto) < RESIZE_HAS_MODES <= target:
        # Give each Resize the modes that its older opset meant, which ONNX's converter leaves out
        from onnx import helper, numpy_helper

        scales = {tensor.name: tensor for tensor in newer.graph.initializer if tensor.data_location != tensor.EXTERNAL}
        for node in onnx_edit.all_nodes(newer.graph):
            if (
                node.op_type == "Constant"
                and node.domain in onnx_edit.ONNX_DOMAINS
                and (tensor := onnx_edit.attribute(node, "value"))
            ):
                scales[onnx_edit.first_output(node)] = tensor
            if node.op_type != "Resize" or node.domain not in onnx_edit.ONNX_DOMAINS:
                continue
            modes = {"coordinate_transformation_mode": "asymmetric"}
            if onnx_edit.attribute(node, "mode", "nearest") == "nearest":
                scale = scales.get(onnx_edit.operand(node, 2))
                smaller = scale is not None and bool((numpy_helper.to_array(scale) < 1).any())
                modes["nearest_mode"] = "ceil" if smaller else "floor"  # as ONNX Runtime computes opset 10
            others = [attribute for attribute in node.attribute if attribute.name not in modes]
            del node.attribute[:]
            node.attribute.extend([*others, *(helper.make_attribute(name, value) for name, value in modes.items())])
    return newer


RESIZE_HAS_MODES = 11
"""Resize and Upsample of older opsets count from the corner; Resize of newer ones does so only where it says it."""

OPSET = Pass(
    name="opset",
    title="Convert to a newer opset.",
    apply=convert_opset,
    effect=Effect.ROUNDING,
    options=OpsetOptions,
)

EXTRA = "surgery"
NOT_WANTED = ("graph_fusion", "weight_tying")
"""Steps of onnxslim that do more than fold: fusions belong to ONNX Runtime's levels, which the variants choose."""

MOST_CONSTANT_BYTES = 1 << 20
"""Constants above this are computed at run time: folding is for shapes, and must not make the file large."""

MOST_FOLDED_BYTES, MOST_FOLDED_TIMES = 64 << 20, 10
"""A constant that a pass computes has at most so many bytes, or so many times those of the model."""


def fold_shapes(model: Model, _options: Options, context: PassContext) -> Model:
    """The model with what is computed from constants and known sizes as constants.

    MissingError without onnxslim, ModelError where it fails, NotApplicable where no node goes.
    """
    passes_edit.refuse_overridable(model)
    proto = passes_edit.whole(model)
    guards.check_structure(proto, context.where)
    check_folding(proto, passes_edit.model_bytes(model), context.where)
    passes_types.fill_output_shapes(proto)
    try:
        import onnxslim
    except ImportError as error:
        raise core_errors.missing_extra(EXTRA, "onnxslim", context.where, error) from error
    with passes_edit.library_call(
        "onnxslim cannot fold this model",
        context.where,
        "leave fold-shapes out: ONNX Runtime folds constants itself from level basic on",
        300,
    ):
        folded: ModelProto = onnxslim.slim(
            proto, skip_optimizations=list(NOT_WANTED), size_threshold=MOST_CONSTANT_BYTES
        )

    if len(folded.graph.node) >= len(model.proto.graph.node):
        raise NotApplicable("nothing to do", why="no node computes constants or the sizes of known dimensions")
    passes_edit.make_constant(folded)
    return passes_edit.lean(folded, model, context)


def check_folding(proto: "ModelProto", size_bytes: int, where: str) -> None:
    """ModelError where a constant that would be computed is much larger than the whole model; all weights are inside.

    A hundred bytes can ask for any amount of memory.
    """
    computed = guards.computed_constants(proto.graph)
    types = passes_types.value_types(proto) if computed else {}

    def size_of(name: str) -> int:
        value = types.get(name)
        sizes = [dim or 0 for dim in value.shape or (0,)] if value else (0,)
        return guards.shaped_bytes(onnx_types.CODES.get(value.dtype or "", 0) if value else 0, sizes)

    guards.check_constants(computed, size_of, where, most=max(MOST_FOLDED_BYTES, MOST_FOLDED_TIMES * size_bytes))


FOLD = Pass(
    name="fold-shapes",
    title="Replace computed shapes and constants by their values.",
    apply=fold_shapes,
    effect=Effect.ROUNDING,
    extra=EXTRA,
)

TRANSFORMERS = "transformers"
"""The extra with sympy, by which onnxruntime.transformers finds shapes; the one that README.md installs has it, too."""
CONTRIB = "com.microsoft"
LAYER_NORM_OPSET = 17
"""The first opset with LayerNormalization; ONNX Runtime runs it in older ones, other tools refuse the model."""


class FusionOptions(Options, frozen=True, kw_only=True):
    """Options of transformer-fusions."""

    model_type: Literal["bert", "gpt2", "vit", "bart", "t5", "clip", "swin", "conformer", "phi"] = "bert"
    """The architecture, as onnxruntime.transformers calls it; bert for most encoders."""
    num_heads: int = 0
    """Attention heads; 0: as found in the graph."""
    hidden_size: int = 0
    """Width of the hidden layers; 0: as found in the graph."""


def fuse_transformer(model: Model, options: FusionOptions, context: PassContext) -> Model:
    """The model with ONNX Runtime's own operators for the parts of a transformer, which only its CPU provider runs.

    NotApplicable where nothing is fused, ModelError where the optimizer fails, MissingError without sympy, which
    onnxruntime installs no more from 1.32 on.
    """
    passes_edit.refuse_overridable(model)
    try:
        importlib.import_module("sympy")
    except ImportError as error:
        raise core_errors.missing_extra(TRANSFORMERS, "sympy", context.where, error) from error
    proto = passes_edit.whole(model)
    passes_types.fill_output_shapes(proto)
    before = _contrib(proto)
    with passes_edit.library_call(
        "onnxruntime.transformers cannot fuse this model", context.where, "leave transformer-fusions out", 300
    ):
        from onnxruntime.transformers.optimizer import optimize_model

        optimizer = optimize_model(
            proto,
            model_type=options.model_type,
            num_heads=options.num_heads,
            hidden_size=options.hidden_size,
            opt_level=0,
        )
        optimizer.topological_sort()
        fused: ModelProto = optimizer.model

    if _contrib(fused) <= before:
        raise NotApplicable(
            "no part of a transformer was found",
            why=f"onnxruntime.transformers fuses nothing as {options.model_type}",
            remedy="name another model_type, or leave the pass out",
        )
    opset = onnx_edit.onnx_opset(fused)
    if opset < LAYER_NORM_OPSET and any(node.op_type == "LayerNormalization" for node in fused.graph.node):
        raise NotApplicable(
            f"LayerNormalization needs opset {LAYER_NORM_OPSET}",
            why=f"the model is opset {opset}",
            remedy=f"do opset:version={LAYER_NORM_OPSET} first",
        )
    passes_edit.make_constant(fused)
    if not any(opset.domain == CONTRIB for opset in fused.opset_import):
        fused.opset_import.add(domain=CONTRIB, version=1)
    return passes_edit.lean(fused, model, context)


def _contrib(proto: "ModelProto") -> int:
    return sum(node.domain == CONTRIB or node.op_type == "LayerNormalization" for node in proto.graph.node)


FUSIONS = Pass(
    name="transformer-fusions",
    title="Fuse attention, LayerNorm and GELU into ONNX Runtime's operators: CPU only.",
    apply=fuse_transformer,
    effect=Effect.ROUNDING,
    options=FusionOptions,
    extra=TRANSFORMERS,
)

BOOL, DOUBLE = 9, 11
WIDENED = frozenset({onnx_types.FLOAT16, BOOL, DOUBLE})
CAST_SINCE = 6
"""The opset from which on Cast names its type by a number."""


def float_io(model: Model, _options: Options, _context: PassContext) -> Model:
    """The model with float32 where inputs and outputs are float64, float16 or bool, and a Cast at each.

    A truth value is 0 or 1, and every other number is true. NotApplicable where no input or output has such a type.
    """
    import onnx

    proto = onnx_edit.copied(model.proto)
    graph = proto.graph
    constants = onnx_edit.constant_names(graph)
    inputs = [value for value in graph.input if value.name not in constants and _kind(value) in WIDENED]
    outputs = [value for value in graph.output if _kind(value) in WIDENED]
    if not (inputs or outputs):
        raise NotApplicable("nothing to do", why="no input or output is float64, float16 or bool")
    _check_casts(proto, outputs)
    if not onnx_edit.onnx_opset(proto):
        proto.opset_import.append(onnx.helper.make_opsetid("", 13))
    taken = {name for node in onnx_edit.all_nodes(graph) for name in (*node.input, *node.output)} | constants
    taken |= {
        value.name for body in onnx_edit.subgraphs(graph) for value in (*body.input, *body.output, *body.value_info)
    }
    before, after, inner = [], [], dict[str, str]()
    for value in inputs:
        inner[value.name] = onnx_edit.fresh_name(f"{value.name}/cast", taken)
        before.append(onnx.helper.make_node("Cast", [value.name], [inner[value.name]], to=_kind(value)))
    given = {value.name for value in graph.input}
    for value in outputs:
        if value.name not in given:
            inner[value.name] = onnx_edit.fresh_name(f"{value.name}/cast", taken)
            after.append(onnx.helper.make_node("Cast", [inner[value.name]], [value.name], to=onnx_types.FLOAT))
    for value in (*inputs, *outputs):
        value.type.tensor_type.elem_type = onnx_types.FLOAT
    _rename_values(graph, inner)
    onnx_edit.set_nodes(graph, [*before, *graph.node, *after])
    return passes_edit.changed(model, proto)


def _check_casts(proto: "ModelProto", outputs: "Sequence[ValueInfoProto]") -> None:
    """NotApplicable for what a Cast cannot be put behind."""
    if 0 < onnx_edit.onnx_opset(proto) < CAST_SINCE:
        raise NotApplicable(
            "the model is too old", why=f"Cast needs opset {CAST_SINCE}", remedy="first convert it with the pass opset"
        )
    constants = onnx_edit.constant_names(proto.graph)
    if fixed := [value.name for value in outputs if value.name in constants]:
        raise NotApplicable("an output is a constant", why=f"{fixed[0]} is stored in the model")


def _rename_values(graph: "GraphProto", inner: Mapping[str, str]) -> None:
    """Other names for values of the graph, in bodies that read them, too; its own inputs and outputs keep theirs."""
    for node in onnx_edit.all_nodes(graph):
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                names[index] = inner.get(name, name)
    given = [body.output for body in onnx_edit.subgraphs(graph) if body is not graph]
    for value in itertools.chain(graph.value_info, *given):
        value.name = inner.get(value.name, value.name)


def _kind(value: "ValueInfoProto") -> int:
    return value.type.tensor_type.elem_type if value.type.HasField("tensor_type") else 0


FLOAT_IO = Pass(
    name="float-io",
    title="Take and give float32 in place of float64, float16 and bool, by a Cast at each.",
    apply=float_io,
    effect=Effect.INTERFACE,
)
