"""What ONNX Runtime did to a saved model before a provider was asked, undone.

At level basic a session on the CPU alone also inserts Casts around f16 nodes and inlines functions that the CPU has no
kernel for. With a provider that comes after the question, so both are undone here (H.4.2 and H.4.3).
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from pipeline.model import edit as onnx_edit
from pipeline.model import types as onnx_types
from pipeline.partition.types import bodies_in, infer

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto
from pipeline.partition.shown import NEVER, NOT_F16

FLOATS = frozenset({1, 10, 16})
"""ONNX's numbers of 32-bit, 16-bit and brain floats."""


CAST_PREFIX = "InsertedPrecisionFreeCast_"


INLINED_PREFIX = "_inlfunc_"


INLINED = re.compile(INLINED_PREFIX + r"(?P<op>[A-Za-z0-9]+?)(?P<token>_token_\d+)?_")


def undone_for_provider(saved: "ModelProto", source: "ModelProto") -> "ModelProto | None":
    """What a provider would have been shown of a saved model; None when that is the saved model itself.

    `source` is the model before.
    """
    # Names show inserted Casts and inlined functions; a Cast may have been a CastLike.
    names = (name for node in saved.graph.node for name in (node.name, *node.input, *node.output))
    made = (name for name in names if name.startswith((CAST_PREFIX, INLINED_PREFIX)))
    if not any(name.startswith(CAST_PREFIX) or INLINED.match(name) for name in made) and not any(
        node.op_type == "Cast" for node in saved.graph.node
    ):
        return None
    shown = onnx_edit.copied(saved)
    _remove_inserted_casts(shown.graph)
    # Casts to the type that their input has: level basic removes these, for a provider as well.
    graph = source.graph
    casts = [node for node in graph.node if node.op_type == "Cast" and node.output]
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    types |= {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.input)}
    types |= {node.output[0]: node.attribute[0].i for node in casts}
    if any(node.input[0] not in types for node in casts):
        types |= {name: onnx_types.CODES.get(value.dtype or "", 0) for name, value in infer(source).items()}
    useless = {node.output[0] for node in casts if types.get(node.input[0]) == node.attribute[0].i}
    _restore_casts(shown.graph, graph, useless)
    _restore_functions(shown.graph, source.graph)
    _restore_constants(shown.graph, source.graph)
    # What was saved has the types around inserted Casts that these gave.
    declared = {value.name: value for value in source.graph.value_info}
    for value in shown.graph.value_info:
        before = declared.get(value.name)
        if before is not None and before.type.tensor_type.elem_type != value.type.tensor_type.elem_type:
            value.CopyFrom(before)
    return shown


def _remove_inserted_casts(graph: "GraphProto") -> None:
    """Take out inserted Casts, in place; those of bodies first, whose names are theirs alone."""
    for node in graph.node:
        for body in (body for attribute in node.attribute for body in bodies_in(attribute)):
            _remove_inserted_casts(body)
    inserted = [node for node in graph.node if node.op_type == "Cast" and node.name.startswith(CAST_PREFIX)]
    outputs = {name for node in graph.node for name in node.output}
    names = outputs | {name for node in graph.node for name in node.input}
    names |= {value.name for value in (*graph.input, *graph.output)}
    if not inserted and not any(name.startswith(CAST_PREFIX) for name in names):
        return
    # Input and output of an inserted Cast are one value; of its names the one without prefix stays.
    same: dict[str, str] = {}

    def root(name: str) -> str:
        while name in same:
            name = same[name]
        return name

    for node in inserted:
        a, b = root(node.input[0]), root(node.output[0])
        if a != b:
            a, b = (b, a) if a.startswith(CAST_PREFIX) and not b.startswith(CAST_PREFIX) else (a, b)
            same[b] = a

    def canonical(name: str) -> str:
        name = root(name)
        if not name.startswith(CAST_PREFIX):
            return name
        plain = name.removeprefix(CAST_PREFIX)
        short = re.sub(r"_token_\d+$", "", plain)
        other = short in names and not (name in outputs and short in outputs)
        return short if plain not in names and other else plain

    gone = {node.output[0] for node in inserted}
    kept = [node for node in graph.node if not (node.output and node.output[0] in gone)]
    _rename_values(kept, canonical)
    onnx_edit.set_nodes(graph, kept)


def _rename_values(nodes: "Iterable[NodeProto]", canonical: Callable[[str], str]) -> None:
    """Rename inputs and outputs of nodes in place, in bodies too."""
    for node in nodes:
        for slots in (node.input, node.output):
            for slot, name in enumerate(slots):
                if name:
                    slots[slot] = canonical(name)
        for body in (body for attribute in node.attribute for body in bodies_in(attribute)):
            _rename_values(body.node, canonical)
            for value in body.output:
                value.name = canonical(value.name)


def _read_only_casts(graph: "GraphProto", source: "GraphProto", useless: set[str]) -> None:
    """Put back Casts between floats that alone read their input, in place: nodes read the last of each chain.

    What reads the input once the Cast is gone has read the Cast. Nodes that were fused have no counterpart in the model
    that would show it.
    """
    uses = Counter(name for part in onnx_edit.subgraphs(source) for node in part.node for name in node.input)
    uses.update(value.name for part in onnx_edit.subgraphs(source) for value in part.output)
    casts = [node for node in source.node if node.op_type == "Cast" and node.output[0] not in useless]
    only = {cast.input[0]: cast for cast in casts if uses[cast.input[0]] == 1 and cast.attribute[0].i in FLOATS}
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

    def read_before(node: "NodeProto") -> "Iterator[tuple[int, str, NodeProto]]":
        """Slots of a node that read a Cast before, with the Cast."""
        old = before.get((node.op_type, node.output[0])) if node.output else None
        for slot, name in enumerate(old.input if old else ()):
            if name in casts and slot < len(node.input):
                yield slot, name, casts[name]

    names = {name for node in graph.node for name in node.output} | {value.name for value in graph.input}
    names |= {tensor.name for tensor in graph.initializer}
    for node in list(graph.node):
        for slot, name, cast in read_before(node):
            if name not in names and node.input[slot] != name and cast.input[0] == node.input[slot]:
                graph.node.append(cast)
                names.add(name)
    _read_only_casts(graph, source, useless)
    restored = {node.output[0] for node in graph.node if node.op_type == "Cast" and node.output}
    for node in graph.node:
        for slot, name, cast in read_before(node):
            if name in restored and cast.input[0] == node.input[slot]:
                node.input[slot] = name


def _restore_functions(graph: "GraphProto", source: "GraphProto") -> None:
    """Put back calls of schema functions in place of their bodies, which are known by the names of inner values."""
    calls = [node for node in source.node if node.op_type in NEVER or node.op_type in NOT_F16]
    if not calls:
        return
    op_types = {node.op_type for node in calls}
    bodies: dict[tuple[str, str], set[int]] = {}  # prefix and operator of each inlined call to places of its nodes
    for position, node in enumerate(graph.node):
        for name in (*node.input, *node.output):
            match = INLINED.match(name)
            if match is not None and match["op"] in op_types:
                bodies.setdefault((match[0], match["op"]), set()).add(position)
    removed: set[int] = set()
    added: list[NodeProto] = []
    for (_, op_type), body in bodies.items():
        call = _call(graph, body, [call for call in calls if call.op_type == op_type])
        if call is not None:
            removed |= body
            added.append(call)
    onnx_edit.set_nodes(graph, [*(node for position, node in enumerate(graph.node) if position not in removed), *added])
    likes = {call.output[0]: call for call in calls if call.op_type == "CastLike"}
    for node in graph.node:
        like = likes.get(node.output[0]) if node.op_type == "Cast" else None
        if like is not None and len(like.input) > 1:
            node.CopyFrom(like)


def _call(graph: "GraphProto", body: set[int], same: "Collection[NodeProto]") -> "NodeProto | None":
    """The call that a body stands for, with the names that its inputs and outputs have now."""
    inside = [graph.node[position] for position in sorted(body)]
    written = [name for node in inside for name in node.output if name]
    inner = set(written)
    read = {name for position, node in enumerate(graph.node) if position not in body for name in node.input}
    read |= {value.name for value in graph.output}
    outputs = [name for name in written if name in read]
    inputs = list(dict.fromkeys(name for node in inside for name in node.input if name and name not in inner))
    original = next((call for call in same if set(call.output) & set(outputs)), None)
    original = original or next((call for call in same if set(call.input) & set(inputs)), None)
    if original is None:
        return None
    call = onnx_edit.copied(original)
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
    names = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    names |= {name for node in graph.node for name in node.output}
    waiting = [name for node in graph.node for name in node.input if name and name not in names]
    while waiting:
        name = waiting.pop()
        maker = makers.get(name)
        copied = constants.get(maker.input[0]) if maker and maker.op_type == "Identity" else constants.get(name)
        if name not in names and copied is not None:
            graph.initializer.append(copied)
            graph.initializer[-1].name = name
        elif name not in names and maker is not None:
            graph.node.append(maker)
            waiting += [read for read in maker.input if read]
        names.add(name)
