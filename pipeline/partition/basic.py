"""The graph that a provider is shown after optimization level basic, made with the installed onnxruntime.

A session on the CPU alone also inserts Casts around f16 nodes and inlines functions that the CPU has no kernel for.
With a provider that comes after the question, so both are undone here (ep_rules H.4.2 and H.4.3).
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core.errors import ModelError
from pipeline.core.files import make_folder, share_file
from pipeline.core.ort_session import HostSession, make_session, ort_errors
from pipeline.core.variant import Level
from pipeline.model.edit import subgraphs
from pipeline.model.onnx_model import LoadedModel, load_model
from pipeline.model.sources import SourceModel
from pipeline.model.types import CODES
from pipeline.partition.onnx_view import NEVER, NOT_F16
from pipeline.partition.ort_view import infer, refused

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

FLOATS = frozenset({1, 10, 16})
"""ONNX's numbers of 32-bit, 16-bit and brain floats."""
CAST_PREFIX = "InsertedPrecisionFreeCast_"
INLINED = re.compile(r"_inlfunc_(?P<op>[A-Za-z0-9]+?)(?P<token>_token_\d+)?_")


def save_basic(loaded: LoadedModel, work_folder: Path) -> LoadedModel:
    """The model as the installed onnxruntime saves it at level basic for the CPU; ModelError when it cannot."""
    target = work_folder / "basic.onnx"
    try:
        make_session(loaded.path, HostSession(level=Level.BASIC, save_to=target))
    except ort_errors() as error:
        raise refused(error, "no session can be made of the model at level basic") from error
    if not target.is_file():
        raise ModelError("ONNX Runtime did not save the model at level basic", where=loaded.source.name)
    _bring_weights(loaded, work_folder)
    return load_model(SourceModel(path=str(target)), work_folder)


def _bring_weights(loaded: LoadedModel, work_folder: Path) -> None:
    """Put the files of weights into the folder of the saved model, which names them as the model did."""
    for file in {place.file for place in loaded.weights.values()} - {loaded.path.resolve()}:
        target = work_folder / file.relative_to(loaded.folder)
        if not target.exists():
            make_folder(target.parent)
            share_file(file, target)


def undone_for_provider(saved: "ModelProto", source: "ModelProto") -> "ModelProto | None":
    """What a provider would have been shown of a saved model; None when that is the saved model itself.

    `source` is the model before.
    """
    import onnx

    if not _touched(saved.graph):
        return None
    shown = onnx.ModelProto()
    shown.CopyFrom(saved)
    _remove_inserted_casts(shown.graph)
    _restore_casts(shown.graph, source.graph, _useless_casts(source))
    _restore_functions(shown.graph, source.graph)
    _restore_constants(shown.graph, source.graph)
    _restore_types(shown.graph, source.graph)
    return shown


def _touched(graph: "GraphProto") -> bool:
    """Whether names show inserted Casts or inlined functions; a Cast may have been a CastLike."""
    names = (name for node in graph.node for name in (node.name, *node.input, *node.output))
    return any(name.startswith(CAST_PREFIX) or INLINED.match(name) for name in names) or any(
        node.op_type == "Cast" for node in graph.node
    )


def _remove_inserted_casts(graph: "GraphProto") -> None:
    """Take out inserted Casts, in place; those of bodies first, whose names are theirs alone."""
    for node in graph.node:
        for attribute in node.attribute:
            for body in [attribute.g] if attribute.type == 5 else attribute.graphs:
                _remove_inserted_casts(body)
    inserted = [node for node in graph.node if node.op_type == "Cast" and node.name.startswith(CAST_PREFIX)]
    names = _Names(graph)
    for node in inserted:
        names.join(node.input[0], node.output[0])
    if not inserted and not any(name.startswith(CAST_PREFIX) for name in names.known):
        return
    gone = {node.output[0] for node in inserted}
    kept = [node for node in graph.node if not (node.output and node.output[0] in gone)]
    rename_values(kept, names.canonical)
    _replace_nodes(graph, kept)


def _replace_nodes(graph: "GraphProto", nodes: "Iterable[NodeProto]") -> None:
    import onnx

    copies = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copies.append(copy)
    del graph.node[:]
    graph.node.extend(copies)


def rename_values(nodes: "Iterable[NodeProto]", canonical: Callable[[str], str]) -> None:
    """Rename inputs and outputs of nodes in place, in bodies too."""
    for node in nodes:
        for slots in (node.input, node.output):
            for slot, name in enumerate(slots):
                if name:
                    slots[slot] = canonical(name)
        for attribute in node.attribute:
            for body in [attribute.g] if attribute.type == 5 else attribute.graphs:
                rename_values(body.node, canonical)
                for value in body.output:
                    value.name = canonical(value.name)


class _Names:
    """Which values are one and the same once inserted Casts are gone, and by what name."""

    def __init__(self, graph: "GraphProto") -> None:
        self.parent: dict[str, str] = {}
        self.known = {name for node in graph.node for name in (*node.input, *node.output)}
        self.known |= {value.name for value in (*graph.input, *graph.output)}
        self.made = {name for node in graph.node for name in node.output}

    def _root(self, name: str) -> str:
        while name in self.parent:
            name = self.parent[name]
        return name

    def join(self, first: str, second: str) -> None:
        """Make two values one; the name without prefix wins."""
        a, b = self._root(first), self._root(second)
        if a == b:
            return
        if a.startswith(CAST_PREFIX) and not b.startswith(CAST_PREFIX):
            a, b = b, a
        self.parent[b] = a

    def canonical(self, name: str) -> str:
        """The name of a value after the Casts are gone."""
        root = self._root(name)
        if not root.startswith(CAST_PREFIX):
            return root
        plain = root.removeprefix(CAST_PREFIX)
        short = re.sub(r"_token_\d+$", "", plain)
        other = short in self.known and not (root in self.made and short in self.made)
        return short if plain not in self.known and other else plain


def _useless_casts(source: "ModelProto") -> set[str]:
    """Outputs of Casts to the type that their input has: level basic removes these, for a provider as well."""
    graph = source.graph
    casts = [node for node in graph.node if node.op_type == "Cast" and node.output]
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    types |= {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.input)}
    types |= {node.output[0]: node.attribute[0].i for node in casts}
    if any(node.input[0] not in types for node in casts):
        types |= {name: CODES.get(value.dtype or "", 0) for name, value in infer(source).items()}
    return {node.output[0] for node in casts if types.get(node.input[0]) == node.attribute[0].i}


def _only_casts(source: "GraphProto", useless: set[str]) -> "dict[str, NodeProto]":
    """Casts between floats that alone read their input: what reads it once the Cast is gone has read the Cast.

    Nodes that were fused have no counterpart in the model that would show it.
    """
    uses = Counter(name for graph in subgraphs(source) for node in graph.node for name in node.input)
    uses.update(value.name for graph in subgraphs(source) for value in graph.output)
    casts = (node for node in source.node if node.op_type == "Cast" and uses[node.input[0]] == 1)
    casts = (node for node in casts if node.output[0] not in useless)
    return {node.input[0]: node for node in casts if node.attribute[0].i in FLOATS}


def _read_casts(graph: "GraphProto", only: "Mapping[str, NodeProto]") -> None:
    """Put back Casts of `only`, in place: nodes of the main graph read the last of each chain."""
    outputs = {name for node in graph.node for name in node.output}
    for node in list(graph.node):
        for slot, name in enumerate(node.input if node.op_type != "Cast" else ()):
            while name in only:
                cast = only[name]
                if cast.output[0] not in outputs:
                    graph.node.append(cast)
                    outputs.add(cast.output[0])
                node.input[slot] = name = cast.output[0]


def _restore_casts(graph: "GraphProto", source: "GraphProto", useless: set[str]) -> None:
    """Put back Casts of the model that were dropped as duplicates of inserted ones (H.4.2b)."""
    casts = {node.output[0]: node for node in source.node if node.op_type == "Cast" and node.output}
    casts = {name: node for name, node in casts.items() if name not in useless}
    before = {(node.op_type, node.output[0]): node for node in source.node if node.output}
    known = {name for node in graph.node for name in node.output} | {value.name for value in graph.input}
    known |= {tensor.name for tensor in graph.initializer}
    for node in list(graph.node):
        old = before.get((node.op_type, node.output[0])) if node.output else None
        for slot, name in enumerate(old.input if old else ()):
            if slot >= len(node.input) or node.input[slot] == name or name in known:
                continue
            cast = casts.get(name)
            if cast is not None and cast.input[0] == node.input[slot]:
                graph.node.append(cast)
                known.add(name)
    _read_casts(graph, _only_casts(source, useless))
    restored = {node.output[0] for node in graph.node if node.op_type == "Cast" and node.output}
    for node in graph.node:
        old = before.get((node.op_type, node.output[0])) if node.output else None
        for slot, name in enumerate(old.input if old else ()):
            cast = casts.get(name)
            if cast is not None and name in restored and slot < len(node.input) and cast.input[0] == node.input[slot]:
                node.input[slot] = name


@dataclass(slots=True)
class _Body:
    """The nodes that came of one inlined function, by position in the graph."""

    op_type: str
    nodes: set[int] = field(default_factory=set)


def _restore_functions(graph: "GraphProto", source: "GraphProto") -> None:
    """Put back calls of schema functions in place of their bodies, which are known by the names of inner values."""
    calls = [node for node in source.node if node.op_type in NEVER or node.op_type in NOT_F16]
    if not calls:
        return
    bodies = _bodies(graph, {node.op_type for node in calls})
    removed: set[int] = set()
    added: list[NodeProto] = []
    for body in bodies:
        call = _call(graph, body, calls)
        if call is not None:
            removed |= body.nodes
            added.append(call)
    nodes = [node for position, node in enumerate(graph.node) if position not in removed]
    _replace_nodes(graph, [*nodes, *added])
    _restore_cast_like(graph, calls)


def _bodies(graph: "GraphProto", op_types: set[str]) -> list[_Body]:
    bodies: dict[str, _Body] = {}
    for position, node in enumerate(graph.node):
        for name in (*node.input, *node.output):
            match = INLINED.match(name)
            if match is not None and match["op"] in op_types:
                bodies.setdefault(match[0], _Body(match["op"])).nodes.add(position)
    return list(bodies.values())


def _call(graph: "GraphProto", body: _Body, calls: "Iterable[NodeProto]") -> "NodeProto | None":
    """The call that a body stands for, with the names that its inputs and outputs have now."""
    import onnx

    inside = [graph.node[position] for position in sorted(body.nodes)]
    written = [name for node in inside for name in node.output if name]
    inner = set(written)
    read = {name for position, node in enumerate(graph.node) if position not in body.nodes for name in node.input}
    read |= {value.name for value in graph.output}
    outputs = [name for name in written if name in read]
    inputs = list(dict.fromkeys(name for node in inside for name in node.input if name and name not in inner))
    same = [call for call in calls if call.op_type == body.op_type]
    original = next((call for call in same if set(call.output) & set(outputs)), None)
    original = original or next((call for call in same if set(call.input) & set(inputs)), None)
    if original is None:
        return None
    call = onnx.NodeProto()
    call.CopyFrom(original)
    others = [name for name in inputs if name not in original.input and not INLINED.match(name)]
    for slot, name in enumerate(call.input):
        if name and name not in inputs and others:
            call.input[slot] = others.pop(0)
    if len(outputs) == len(call.output):
        call.output[:] = outputs
    return call


def _restore_constants(graph: "GraphProto", source: "GraphProto") -> None:
    """Put back what only calls read: it went with these, or was computed into other constants."""
    constants = {tensor.name: tensor for tensor in source.initializer}
    makers = {name: node for node in source.node for name in node.output if name}
    known = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    known |= {name for node in graph.node for name in node.output}
    waiting = [name for node in graph.node for name in node.input if name and name not in known]
    while waiting:
        name = waiting.pop()
        maker = makers.get(name)
        copied = constants.get(maker.input[0]) if maker and maker.op_type == "Identity" else constants.get(name)
        if name not in known and copied is not None:
            graph.initializer.append(copied)
            graph.initializer[-1].name = name
        elif name not in known and maker is not None:
            graph.node.append(maker)
            waiting += [read for read in maker.input if read]
        known.add(name)


def _restore_types(graph: "GraphProto", source: "GraphProto") -> None:
    """Declare values around inserted Casts as the model did: what was saved has the types that the Casts gave them."""
    declared = {value.name: value for value in source.value_info}
    for value in graph.value_info:
        before = declared.get(value.name)
        if before is not None and before.type.tensor_type.elem_type != value.type.tensor_type.elem_type:
            value.CopyFrom(before)


def _restore_cast_like(graph: "GraphProto", calls: "Iterable[NodeProto]") -> None:
    likes = {call.output[0]: call for call in calls if call.op_type == "CastLike"}
    for node in graph.node:
        call = likes.get(node.output[0]) if node.op_type == "Cast" else None
        if call is not None and len(call.input) > 1:
            node.CopyFrom(call)
