"""The steps of a conversion: session at a level -> optimized model; model -> parts of an ORT format file.

Small models are in their message whole: one session optimizes and saves them. In large ones the weights stay where they
lie: a session optimizes the graph with the weights as external data and saves it as ONNX, and a second one, without
optimizations, is shown the large weights as graph inputs and saves the graph in ORT format. That skeleton has ONNX
Runtime's own nodes, edges, types and kernel type resolver; the writer puts the weights behind it.
"""

import mmap
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from device_runner import failures
from pipeline.convert.request import SessionSettings
from pipeline.core import files as storage
from pipeline.core import ort_session
from pipeline.core import variant as core_variant
from pipeline.core.errors import DiskError, ModelError
from pipeline.core.variant import Level
from pipeline.model import edit as onnx_edit
from pipeline.model import flatbuffer, onnx_model, ort_format, ort_writer
from pipeline.model import session as model_session
from pipeline.model.onnx_model import LeanModel
from pipeline.passes import base as passes_base

if TYPE_CHECKING:
    import numpy as np


GENERAL = ("onnxruntime refuses the model", failures.CHECKER)
MAX_WHY = 400


def explain(error: BaseException, where: str) -> ModelError:
    """The error that onnxruntime raised for a model as one of ours: the cause if known, its own words, a remedy."""
    text = str(error)
    explanation = failures.text_of_message(
        text, failures.Topic.MODEL, failures.Topic.OPERATOR, failures.Topic.KERNEL, failures.Topic.ROOM
    )
    what, remedy = (explanation.why, explanation.remedy) if explanation else GENERAL
    # One printable line without onnxruntime's prefix and its build machine's source paths
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = re.sub(r"/\S*onnxruntime/\S+\.(?:cc|h):\d+ .*?(?=\s[A-Z])", "", text)
    text = "".join(c if c.isprintable() else " " for c in text)
    text = re.sub(r"\s+", " ", text).strip()
    return ModelError(what, where=where, why=text if len(text) <= MAX_WHY else text[: MAX_WHY - 1] + "…", remedy=remedy)


RECORD_CLAIMS = "session.record_ep_graph_assignment_info"
SPARE_BYTES = 1 << 20
M_MMAP_THRESHOLD = -3
MMAP_THRESHOLD_BYTES = 1 << 20


def save_optimized(
    model: bytes,
    settings: SessionSettings,
    target: Path,
    extra: Mapping[str, str],
    *,
    ort_format: bool,
    where: str,
    provider: tuple[str, dict[str, str]] | None = None,
    device: Any = None,
) -> frozenset[str] | None:
    """Optimize a serialized ModelProto for the CPU provider and save it to `target`.

    `extra` are further session config entries, `provider` one that is asked before the CPU, with its options: then the
    names of the nodes that it took are returned, None from onnxruntime before 1.24, which does not tell. `device` is
    that of a provider from a library, which is asked instead.
    ModelError with onnxruntime's reason when it refuses the model, DiskError when the disk is full.
    """
    entries = {
        "session.save_model_format": "ORT" if ort_format else "ONNX",
        "session.qdqisint8allowed": "1" if settings.int8_allowed else "0",
        **({"optimization.minimal_build_optimizations": "save"} if settings.save_records else {}),
        **({"session.disable_quant_qdq": "1"} if settings.keep_shared_dq else {}),
        **({RECORD_CLAIMS: "1"} if provider else {}),
        **extra,
    }
    try:
        session = ort_session.load_session(
            model, ort_session.session_options(settings.level, save_to=target, config=entries, device=device)
        )
        asked = [] if device is not None else [*([provider] if provider else []), (ort_session.CPU, {})]
        names, options_of = [name for name, _ in asked], [options for _, options in asked]
        left_out = {*settings.left_out} | ({"NchwcTransformer"} if not settings.nchwc else set())
        left_out |= {"ConstantSharing"} if settings.keep_constants else set()
        session.initialize_session(names, options_of, left_out)
    except ort_session.ort_errors() as error:
        free = shutil.disk_usage(target.parent).free
        if free < len(model) + SPARE_BYTES:  # onnxruntime says little of use of a full disk
            raise DiskError(
                "cannot write",
                where=str(target.parent),
                why=f"the disk is full: {free} bytes are free",
                remedy="free some space on that disk, or choose another folder with --output",
            ) from error
        told = explain(error, where)
        if not (provider or device):
            folder = {key: value for key, value in extra.items() if key == ort_session.WEIGHTS_FOLDER}
            told = model_session.broken_by_optimizer(model, settings.level, error, told, folder)
        raise told from error
    return _taken(session, provider[0]) if provider else None


def _taken(session: Any, provider: str) -> frozenset[str] | None:
    """Recorded when the provider was asked: the saved file itself names the CPU for every node."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return None
    groups = session.get_provider_graph_assignment_info()
    return frozenset(node.name for group in groups if group.ep_name == provider for node in group.get_nodes())


def return_freed_memory() -> None:
    """Make the C library give large blocks back to the system as soon as they are freed, for the rest of the process.

    By default it learns to keep blocks of up to 32 MiB, and folding large weights then holds half the model twice.
    Only glibc has this knob (mallopt(3)); elsewhere nothing happens.
    """
    import ctypes

    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        library.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)


PLAIN = SessionSettings(level=Level.NONE)
QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OrtParts:
    """A skeleton in ORT format and the weights that belong behind it.

    Of a provider-aware model also how many nodes each provider claims, warnings, and what made it.
    """

    skeleton: flatbuffer.Buffer
    weights: "tuple[ort_writer.Weight, ...]" = ()
    claimed: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    aware_by: core_variant.AwareBy | None = None

    def int8_weights(self, tensor: ort_format.Tensor) -> "np.ndarray[Any, np.dtype[np.int8]]":
        """The numbers of an int8 constant of `read`, in their shape."""
        import numpy as np

        span = next((span for weight, span in self.weights if weight.name == tensor.name), None)
        if span and not tensor.offset:  # what lies in the skeleton never begins there
            values = np.fromfile(span.file, dtype=np.int8, count=span.length, offset=span.offset)
        else:
            values = np.frombuffer(self.skeleton, dtype=np.int8, count=tensor.length, offset=tensor.offset)
        return values.reshape(tensor.dims)

    def read(self, *, inner_types: bool = False) -> ort_format.OrtModel:
        """The model as it will be in the file; its weights' offsets are 0, inner values have types where asked for."""
        model = ort_format.parse_ort(self.skeleton, "the file that onnxruntime wrote", inner_types=inner_types)
        moved = {
            w.name: ort_format.Tensor(w.name, tuple(w.dims), w.data_type, 0, span.length) for w, span in self.weights
        }
        inputs = tuple(name for name in model.graph.inputs if name not in moved)
        initializers = {**model.graph.initializers, **moved}
        graph = msgspec.structs.replace(model.graph, inputs=inputs, initializers=initializers)
        return msgspec.structs.replace(model, graph=graph)


def optimize(model: LeanModel, settings: SessionSettings, context: passes_base.PassContext) -> LeanModel:
    """Optimize a model and read the result back, weights left where they lie.

    Where the optimizer is likely to change large weights (batch normalization folded into convolutions), it writes all
    of them to a file of its own: that costs a copy, but ONNX saved with weights in the message costs three in memory.
    """
    target = context.new_file(".onnx")
    extra = {ort_session.WEIGHTS_FOLDER: str(model.folder)}
    if changes_large_weights(model):
        extra |= _own_weights(target)
    save_optimized(
        onnx_model.loadable(model).SerializeToString(), settings, target, extra, ort_format=False, where=context.where
    )
    return _read_optimized(target, model)


def as_onnx(parts: OrtParts, before: LeanModel, context: passes_base.PassContext) -> LeanModel:
    """The ONNX model of a file that a session saved of `before`, node for node."""
    target = context.new_file(".onnx")
    save_optimized(bytes(parts.skeleton), PLAIN, target, _own_weights(target), ort_format=False, where=context.where)
    optimized = _read_optimized(target, before)
    for number, body in enumerate(
        onnx_edit.subgraphs(optimized.proto.graph)
    ):  # ORT format keeps no names, ONNX wants some
        body.name = body.name or f"graph {number}"
    moved = {tensor.name: span for tensor, span in parts.weights}
    onnx_edit.keep_only(optimized.proto.graph.input, lambda value: value.name not in moved)
    initializers = {tensor.name: tensor for tensor in before.proto.graph.initializer if tensor.name in moved}
    for tensor, _ in parts.weights:  # what an optimizer made has no message in the model before
        optimized.proto.graph.initializer.add().CopyFrom(initializers.get(tensor.name, tensor))
    return LeanModel(proto=optimized.proto, folder=optimized.folder, weights={**optimized.weights, **moved})


def write_whole(model: LeanModel, target: Path) -> None:
    """Write a model as one ONNX file, weights and all, each as raw bytes; ModelError for more than a message holds."""
    import onnx
    from google.protobuf.message import EncodeError

    proto = onnx_edit.copied(model.proto)
    for tensor in proto.graph.initializer:
        if tensor.name in model.weights:
            onnx_model.read_in(tensor, model.weights[tensor.name])
        elif not tensor.HasField("raw_data") and tensor.data_type != onnx.TensorProto.STRING:
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name))
    # Which of equal constants comes first is chance in ONNX Runtime: the same inputs give the same bytes.
    ordered = sorted(proto.graph.initializer, key=lambda tensor: tensor.name)
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(ordered)
    try:
        content: bytes = proto.SerializeToString(deterministic=True)
    except (EncodeError, ValueError) as error:
        why, remedy = str(error), "ship the ORT format (style fixed), or quantize the weights"
        raise ModelError("the model is too large for one ONNX file", why=why, remedy=remedy) from error
    with storage.storage_errors(target):
        target.write_bytes(content)


def _own_weights(target: Path) -> dict[str, str]:
    """Session config entries by which large weights are saved in a file beside the model."""
    return {
        "session.optimized_model_external_initializers_file_name": f"{target.stem}.weights",
        "session.optimized_model_external_initializers_min_size_in_bytes": str(onnx_model.LARGE_BYTES),
    }


def changes_large_weights(model: LeanModel) -> bool:
    """Whether optimizing is likely to change large weights: they feed nodes that fold or are scaled afterwards.

    A guess that decides which way of saving is cheaper; either gives the same result.
    """
    constants = {t.name for t in model.proto.graph.initializer}
    large = set(model.weights)
    for node in model.proto.graph.node:
        if node.op_type == "BatchNormalization":
            return True
        foldable = node.input and all(name in constants for name in node.input)
        if foldable and node.op_type not in QUANTIZERS and not large.isdisjoint(node.input):
            return True
    return False


def _read_optimized(path: Path, before: LeanModel) -> LeanModel:
    """Read a model that onnxruntime saved: weights in the file, beside it, or still where they were before."""
    proto = onnx_model.scan_message(path)
    new = {path.name, f"{path.stem}.weights"}
    for body in onnx_edit.subgraphs(proto.graph):
        for tensor in body.initializer if body is not proto.graph else ():  # a model's weights are the main graph's
            if tensor.data_location == tensor.EXTERNAL:
                entries = onnx_model.external_entries(tensor)
                onnx_model.read_in(tensor, entries.inside(path.parent / entries.location))
    folder = before.folder
    files = {span.file for span in before.weights.values() if span.file.is_relative_to(folder)}
    old = {file.relative_to(folder).as_posix(): file for file in files}
    weights: dict[str, onnx_model.ByteRange] = {}
    for tensor in proto.graph.initializer:
        if tensor.data_location == tensor.EXTERNAL:
            entries = onnx_model.external_entries(tensor)
            file = path.parent / entries.location if entries.location in new else old[entries.location]
            weights[tensor.name] = entries.inside(file)
    all_own = all(span.file.parent == path.parent for span in weights.values())
    return LeanModel(proto=proto, folder=path.parent if all_own else folder, weights=weights)


def to_parts(model: LeanModel, settings: SessionSettings, context: passes_base.PassContext) -> OrtParts:
    """Save a model in ORT format with its large weights left where they are.

    With level none this only changes the container. Further levels are right for models without large weights, and
    for recording fusions (which look at scales and zero points, never at other weights).
    """
    # What must stay an initializer: graph outputs, and what quantization's fusions look at
    graph = model.proto.graph
    seen = {output.name for output in graph.output}
    if settings.save_records and model.weights:
        seen |= {
            name
            for body in onnx_edit.subgraphs(graph)
            for n in body.node
            if n.op_type in QUANTIZERS
            for name in n.input
        }
    lean, weights = weights_to_inputs(model, seen)
    for tensor in lean.proto.graph.initializer:
        if tensor.name in lean.weights:
            onnx_model.read_in(tensor, lean.weights[tensor.name])
    return OrtParts(skeleton=save_ort(lean.proto.SerializeToString(), settings, {}, context), weights=weights)


def save_ort(
    model: bytes,
    settings: SessionSettings,
    extra: Mapping[str, str],
    context: passes_base.PassContext,
    device: Any = None,
) -> flatbuffer.Buffer:
    """Optimize a serialized model and save it in ORT format: the file, mapped, as it may have weights too."""
    target = context.new_file(".ort")
    try:
        save_optimized(model, settings, target, extra, ort_format=True, where=context.where, device=device)
        with target.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    finally:
        target.unlink(missing_ok=True)


def weights_to_inputs(model: LeanModel, kept: Iterable[str]) -> "tuple[LeanModel, tuple[ort_writer.Weight, ...]]":
    """A copy of the model in which large weights, but for `kept`, are graph inputs of their type and shape."""
    import onnx

    if not model.weights:
        return model, ()
    proto = onnx_edit.copied(model.proto)
    graph = proto.graph
    stay = {*kept, *(value.name for value in graph.input)}
    moved = {t.name: t for t in model.proto.graph.initializer if t.name in model.weights and t.name not in stay}
    onnx_edit.keep_only(graph.value_info, lambda value: value.name not in moved)
    onnx_edit.keep_only(graph.initializer, lambda tensor: tensor.name not in moved)
    graph.input.extend(onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in moved.values())
    left = {name: span for name, span in model.weights.items() if name not in moved}
    weights = tuple((moved[name], model.weights[name]) for name in sorted(moved))
    return LeanModel(proto=proto, folder=model.folder, weights=left), weights
