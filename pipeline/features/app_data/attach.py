"""The pass that puts what an app has before a model, and what it wants behind it: one graph, which all else judges."""

import hashlib
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from device_runner.spec import ElementType
from pipeline import config as configs
from pipeline.config import app_data
from pipeline.config import tables as config_tables
from pipeline.core.errors import ConfigError
from pipeline.features.app_data import (
    boxes,
    classes,
    ctc,
    embedding,
    image,
    label_file,
    mask,
    probability,
    texts,
    tokenizer,
    windows,
)
from pipeline.features.app_data.ending import Ending
from pipeline.features.app_data.graph_end import GraphEnd
from pipeline.features.app_data.original import Original
from pipeline.job import attachment as job_attachment
from pipeline.model import edit as onnx_edit
from pipeline.model import signature
from pipeline.model import types as onnx_types
from pipeline.model.signature import TensorInfo
from pipeline.passes import base as passes_base
from pipeline.passes import edit as passes_edit

if TYPE_CHECKING:
    import onnx

NAME = "app-data"


class AttachOptions(passes_base.Options, frozen=True, kw_only=True):
    """Options of app-data. `sha256` is that of the file of labels, `tokens` that of the tokenizer's file for apps: what
    is cached and what ships is of their content.
    """

    takes: app_data.Takes | None = None
    gives: app_data.Gives | None = None
    sha256: str = ""
    tokens: str = ""


def attach(model: passes_base.Model, options: AttachOptions, context: passes_base.PassContext) -> passes_base.Model:
    """The model with the parts at its ends; ConfigError where they do not fit."""
    proto = onnx_edit.copied(model.proto)
    original = None
    if options.takes and options.takes.text:
        texts.check_inputs(options.takes, signature.own_inputs(proto), context.where)
    elif options.takes and options.takes.samples:
        tensor = _chosen(signature.own_inputs(proto), options.takes.input, "takes.input", context.where)
        if options.takes.features:
            _require_opset(proto, LEAST_OPSET, f"takes.features = {options.takes.features}", context.where)
        taken = _names(proto.graph)
        _refuse_names(windows.put_before(proto, tensor, options.takes, context.where), taken, context.where)
    elif options.takes:
        original = _put_before(proto, options.takes, context.where)
    if options.gives:
        _put_behind(proto, options.gives, original, context.where)
    del proto.graph.value_info[:]  # their sizes may have been those of an open batch
    return passes_edit.changed(model, proto)


def passes() -> tuple[passes_base.Pass, ...]:
    """The pass, for the registry of all."""
    return (
        passes_base.Pass(
            name=NAME,
            title="Put `takes` before the model and `gives` behind it.",
            apply=attach,
            effect=passes_base.Effect.INTERFACE,
            options=AttachOptions,
        ),
    )


def attachment(table: configs.ModelConfig) -> job_attachment.Attachment | None:
    """The pass for a model whose table says what its app has or wants; ConfigError where labels cannot be read."""
    if not (table.takes or table.gives):
        return None
    options: dict[str, object] = {
        key: msgspec.to_builtins(value) for key, value in (("takes", table.takes), ("gives", table.gives)) if value
    }
    if table.gives and (digest := label_file.digest_of(label_file.names_of(table.gives))):
        options["sha256"] = digest
    if table.takes and table.takes.text:
        made = texts.tokens(table.takes)
        texts.most_tokens(table.takes, tokenizer.Tokenizer(made))
        options["tokens"] = hashlib.sha256(made).hexdigest()
    return job_attachment.Attachment(step=config_tables.Step(do=NAME, options=options))


def _put_before(proto: "onnx.ModelProto", takes: app_data.Takes, where: str) -> Original:
    """The app's image as an input in place of a tensor; ConfigError where it does not fit."""
    from onnx import helper

    graph = proto.graph
    tensor = _chosen(signature.own_inputs(proto), takes.input, "takes.input", where)
    size = _size_for(tensor, takes, where)
    form = image.FORMS[takes.filter]
    _require_opset(proto, form.opset, f"takes.filter = {takes.filter}", where)
    part = image.tensor_of(takes, size)
    taken = _names(graph)
    _refuse_names(part, taken, where)
    name = next(name for name in _numbered(image.INPUT) if name not in taken)
    for node in part.nodes:
        node.input[:] = [name if value == image.INPUT else value for value in node.input]
    part.nodes[-1].output[:] = [tensor.name]  # readers of the input, in bodies too, read what the part makes
    nodes = [*part.nodes, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(part.constants)
    batch = tensor.shape[0] if tensor.shape else None
    place = next(index for index, value in enumerate(graph.input) if value.name == tensor.name)
    _one_for_all(graph, batch)
    axes: list[str | int | None] = [1, "height", "width", takes.channels_of_image]
    graph.input[place].CopyFrom(helper.make_tensor_value_info(name, onnx_types.UINT8, axes))
    return Original(name=name, takes=takes, size=size)


def _put_behind(proto: "onnx.ModelProto", gives: app_data.Gives, original: Original | None, where: str) -> None:
    """What the app gets as outputs in place of a tensor; ConfigError where it does not fit."""
    graph = proto.graph
    if gives.answer is not app_data.AnswerKind.CLASSES:
        _require_opset(proto, LEAST_OPSET, f"gives.{gives.answer}", where)
    given = (tensor for tensor in signature.tensor_infos(graph.output) if tensor.name != app_data.NEXT_KEPT)
    tensor = _chosen(tuple(given), gives.output, "gives.output", where)
    part = GraphEnd(f"{onnx_edit.ENDS}gives")
    names = _characters(proto, where) if gives.text is True else tuple(label_file.names_of(gives))
    ending = Ending(
        gives=gives, tensor=tensor, names=names, original=original, mask=_mask(proto, gives, where), where=where
    )
    BEHIND[gives.answer](part, ending)
    taken = _names(graph)
    _refuse_names(part, taken, where)
    for output in part.outputs:
        if output.name in taken:
            _make_room(graph, output.name, where)
    graph.node.extend(part.nodes)
    graph.initializer.extend(part.constants)
    onnx_edit.keep_only(graph.output, lambda value: value.name != tensor.name)
    graph.output.extend(part.outputs)


def _make_room(graph: "onnx.GraphProto", name: str, where: str) -> None:
    """Call what is inside of the model by another name; ConfigError for an input, an output or a constant."""
    if name not in {output for node in graph.node for output in node.output} - {value.name for value in graph.output}:
        raise ConfigError(
            f"the model has a value called {name!r}",
            where=where,
            why="that is the name of what the app gets",
            remedy="name it otherwise when you export the model",
        )
    taken = _names(graph)
    other = next(other for other in _numbered(f"{name} of the model") if other not in taken)
    for node in onnx_edit.all_nodes(graph):
        node.input[:] = [other if value == name else value for value in node.input]
        node.output[:] = [other if value == name else value for value in node.output]


LEAST_OPSET = 13
"""From which on operators at the ends take their axes as inputs, and Softmax is of one axis."""


def _require_opset(proto: "onnx.ModelProto", least: int, key: str, where: str) -> None:
    """ConfigError where a model's operators are older than a key needs them."""
    opset = onnx_edit.onnx_opset(proto)
    if opset < least:
        raise ConfigError(
            f"opset {opset} has not all that `{key}` needs",
            where=where,
            why=f"it has been there since opset {least}",
            remedy=f'raise it first: `transforms = [{{ do = "opset", options = {{ version = {least} }} }}]`',
        )


BEHIND: dict[app_data.AnswerKind, Callable[[GraphEnd, Ending], None]] = {
    app_data.AnswerKind.CLASSES: classes.add_to,
    app_data.AnswerKind.BOXES: boxes.add_to,
    app_data.AnswerKind.TEXT: ctc.add_to,
    app_data.AnswerKind.EMBEDDING: embedding.add_to,
    app_data.AnswerKind.MASK: mask.add_to,
    app_data.AnswerKind.PROBABILITY: probability.add_to,
}


def _characters(proto: "onnx.ModelProto", where: str) -> tuple[str, ...]:
    """Those that the model's own metadata has."""
    text = next((entry.value for entry in proto.metadata_props if entry.key == label_file.CHARACTERS), "")
    if not text:
        keys = ", ".join(entry.key for entry in proto.metadata_props)
        raise ConfigError(
            "the model has no characters of its own",
            where=where,
            why=f"its metadata has no {label_file.CHARACTERS!r}, but {keys or 'nothing'}",
            remedy="give a text file with a character a line, without the blank, as `gives.text`",
        )
    return tuple(text.splitlines())


def _mask(proto: "onnx.ModelProto", gives: app_data.Gives, where: str) -> str:
    """The input that says which tokens count; "" where there is none."""
    given = signature.own_inputs(proto)
    if gives.counts:
        return _chosen(given, gives.counts, "gives.counts", where).name
    names = [tensor.name for tensor in given if gives.pool is app_data.Pool.MEAN]
    return next((name for name in embedding.MASKS if name in names), "")


def _chosen(tensors: tuple[TensorInfo, ...], name: str | None, key: str, where: str) -> TensorInfo:
    """The tensor of a name, or the only one."""
    names = [tensor.name for tensor in tensors]
    if name is None and len(tensors) == 1:
        return tensors[0]
    if name in names:
        return tensors[names.index(name)]
    raise ConfigError(
        f"the model has no {name!r}" if name else "it is not said which tensor is meant",
        where=where,
        why=f"it has {', '.join(names) or 'none'}",
        remedy=f"name one of them as `{key}`",
    )


def _size_for(tensor: TensorInfo, takes: app_data.Takes, where: str) -> tuple[int, int]:
    """Height and width that the model gets; ConfigError where it is open, or the model wants another."""
    shape = tensor.shape
    if tensor.dtype is not ElementType.FLOAT32 or shape is None or len(shape) != 4:
        raise ConfigError(
            f"the input {tensor.name!r} takes no image",
            where=where,
            why=f"it is {tensor}; float32 of four axes is wanted",
            remedy="name another input as `takes.input`",
        )
    planes = takes.layout is config_tables.ImageLayout.NCHW
    depth, own = (shape[1], shape[2:]) if planes else (shape[3], shape[1:3])
    if isinstance(depth, int) and depth != 3:
        raise ConfigError(
            f"the input {tensor.name!r} has {depth} channels",
            where=where,
            why=f"it is {tensor}, {takes.layout}; red, green and blue are given to a model",
            remedy="set `takes.layout` where it is the other one; give other models tensors, without `takes`",
        )
    height, width = takes.size or own
    if not (isinstance(height, int) and isinstance(width, int)):
        raise ConfigError(
            "it is not said to which size an image is resized",
            where=where,
            why=f"the input {tensor.name!r} is {tensor}",
            remedy="give `takes.resize` or `takes.crop`, height and width",
        )
    resized = takes.least_size or (height, width)
    if any(before < after for before, after in zip(resized, (height, width), strict=True)):
        raise ConfigError(
            f"{height} by {width} cannot be cut out of every picture",
            where=where,
            why=f"`takes.resize` makes it as small as {resized[0]} by {resized[1]}",
            remedy="make `takes.resize` at least as large as `takes.crop`",
        )
    axes = zip((shape[0], *own), (1, height, width), strict=True)
    if any(isinstance(axis, int) and axis != size for axis, size in axes):
        raise ConfigError(
            f"one image, {height} by {width}, does not fit the input {tensor.name!r}",
            where=where,
            why=f"it is {tensor}",
            remedy="give its size as `takes.resize` or `takes.crop`, and export the model for one image",
        )
    return height, width


def _one_for_all(graph: "onnx.GraphProto", batch: int | str | None) -> None:
    """Outputs whose first axis was as long as the input's have one row now."""
    for value in graph.output:
        for dim in value.type.tensor_type.shape.dim:
            if isinstance(batch, str) and dim.dim_param == batch:
                dim.dim_value = 1


def _numbered(name: str) -> Iterator[str]:
    """The name, and then with numbers."""
    yield name
    yield from (f"{name}_{number}" for number in itertools.count(2))


def _names(graph: "onnx.GraphProto") -> set[str]:
    """Every name of a value or node, in bodies too."""
    names: set[str] = set()
    for body in onnx_edit.subgraphs(graph):
        names.update(value.name for value in (*body.input, *body.output))
        names.update(tensor.name for tensor in body.initializer)
        for node in body.node:
            names.update((node.name, *node.output))
    return names


def _refuse_names(part: GraphEnd, taken: set[str], where: str) -> None:
    """ConfigError where the model has the names of a part: it went through this pass before."""
    if clash := next((node.name for node in part.nodes if node.name in taken), None):
        raise ConfigError(
            f"the model has a node called {clash!r}",
            where=where,
            why="what an app has or wants is part of it already",
            remedy="leave out `takes` and `gives`, or give the model as it was exported",
        )
