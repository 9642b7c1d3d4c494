"""What of a model is claimed after level basic and so must stay, less what a provider could not build."""

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.convert.splice.edits import AwareSpec, key, sorted_nodes
from pipeline.core.errors import ModelError
from pipeline.model.onnx_model import LeanModel
from pipeline.partition.answer import Refusal, Settings
from pipeline.partition.basic import undone_for_provider
from pipeline.partition.functions import before_partitioning, inlined_view, without_functions
from pipeline.partition.graph import FreshNames, Graph, Node
from pipeline.partition.input import body_types, tensor_reader
from pipeline.partition.onnx_view import view
from pipeline.partition.rules import Claim, bodies, claim
from pipeline.partition.units import node_units, unique_dq

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto


MOST_CLOSED = 200
"""Nodes of one model that are kept from a provider before giving up."""

Look = Callable[["ModelProto"], Graph]


def problem(graph: Graph, groups: Iterable[tuple[Node, ...]], settings: Settings) -> Refusal | None:
    """The first reason why one of the provider's models cannot be built on the phone."""
    module = importlib.import_module(settings.rules.load)
    found: Refusal | None = module.build_refusal(graph, groups, settings)
    return found


def culprits(graph: Graph, found: Claim, settings: Settings) -> Sequence[Node]:
    """The members of the first unit without which the first problem is another one or none; empty without problem."""
    for group in found.groups:
        first = problem(graph, (group,), settings)
        if first is None:
            continue
        for unit in _units(graph, group, settings):
            members = {node.index for node in unit}
            others = tuple(node for node in group if node.index not in members)
            if not others or problem(graph, (others,), settings) != first:
                return unit
        return group
    return ()


def _units(graph: Graph, group: tuple[Node, ...], settings: Settings) -> Iterable[tuple[Node, ...]]:
    """A group's nodes as the provider takes or leaves them: NNAPI by units, CoreML one by one."""
    if not settings.rules.qdq_units:
        return [(node,) for node in group]
    owner = node_units(graph, settings).by_node()
    return {owner[node.index].target.index: owner[node.index].nodes for node in group}.values()


def close_off(model: LeanModel, settings: Settings, look: Look) -> Iterator[str]:
    """Keep a provider from the nodes of a finished model that it would claim and not build; gives warnings.

    The phone partitions the file again. Every rule that asks for a constant refuses what an Identity makes of one, and
    the file is saved and loaded without optimizations that would see through it. In place; a node without constants
    cannot be kept from the provider so.
    """
    fresh, tried = FreshNames(), set[tuple[str, str]]()
    for _ in range(MOST_CLOSED):
        graph = look(model.proto)
        found = claim(graph, settings)
        refusal = found.fatal or problem(graph, found.groups, settings)
        if refusal is None:
            return
        place = next(_constants(graph, culprits(graph, found, settings), tried), None)
        if place is None:
            yield f"{settings.provider}: {refusal.text}. No change of the file keeps this node from the provider"
            return
        tried.add(place)
        _hide(model.proto, *place, fresh)


def _constants(graph: Graph, nodes: Sequence[Node], tried: set[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """(node, initializer) for the constants that nodes read, the smallest first, without those tried before."""
    found = [
        (constant.count, node.first_output, name)
        for node in nodes
        for name in node.inputs
        if name and (constant := graph.constant(name)) is not None
    ]
    yield from (place for _, *pair in sorted(found) if (place := (pair[0], pair[1])) not in tried)


def _hide(proto: "ModelProto", name: str, constant: str, fresh: FreshNames) -> None:
    """Make one node read an initializer through an Identity."""
    graph = proto.graph
    taken = {value for node in graph.node for value in (*node.input, *node.output)}
    hidden = fresh.take(f"{constant}/for the CPU", taken)
    node = next(node for node in graph.node if key(node) == name)
    node.input[:] = [hidden if value == constant else value for value in node.input]
    graph.node.add(op_type="Identity", input=[constant], output=[hidden])
    ordered = [type(node).FromString(node.SerializeToString()) for node in sorted_nodes(graph.node)]
    del graph.node[:]
    graph.node.extend(ordered)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeGraph:
    """A model with its view. Nodes go by their first output (`links.key`).

    `kept` are the nodes that stay as they are; `claimed` counts them by provider. `closed` are nodes of control flow in
    whose bodies something is claimed: these are left alone as a whole (ep_rules H.4.10). `notes` are warnings.
    """

    model: LeanModel
    graph: Graph
    kept: frozenset[str]
    closed: frozenset[str] = frozenset()
    claimed: Mapping[str, int]
    notes: tuple[str, ...] = ()

    @property
    def nodes(self) -> "list[NodeProto]":
        """The messages of the main graph's nodes."""
        return list(self.model.proto.graph.node)

    @property
    def out_of_reach(self) -> frozenset[str]:
        """Every node that the optimizer must not touch."""
        return self.kept | self.closed


def lift_constants(graph: "GraphProto") -> None:
    """Turn Constant nodes (inlined functions have them) into initializers, as ONNX Runtime does on loading."""
    constants = [node for node in graph.node if _is_constant(node)]
    if not constants:
        return
    graph.initializer.extend(_tensor(node) for node in constants)
    kept = [node for node in graph.node if not _is_constant(node)]
    del graph.node[:]
    graph.node.extend(kept)


def _is_constant(node: "NodeProto") -> bool:
    """Whether it is a Constant node of numbers; other kinds stay nodes."""
    plain = node.op_type == "Constant" and node.domain in ("", "ai.onnx") and len(node.attribute) == 1
    return plain and not node.attribute[0].name.startswith(("sparse", "value_string"))


def _tensor(node: "NodeProto") -> "TensorProto":
    import onnx

    attribute = node.attribute[0]
    if attribute.name == "value":
        tensor = onnx.TensorProto()
        tensor.CopyFrom(attribute.t)
        tensor.name = node.output[0]
        return tensor
    content: Any = onnx.helper.get_attribute_value(attribute)
    kind = onnx.TensorProto.FLOAT if "float" in attribute.name else onnx.TensorProto.INT64
    many = isinstance(content, (list, tuple))
    return onnx.helper.make_tensor(node.output[0], kind, [len(content)] if many else [], content if many else [content])


def add_copies(graph: "GraphProto", view: Graph) -> None:
    """Add the DequantizeLinear copies that the view has more than the message (ep_rules C.1)."""
    import onnx

    known = {key(node): node for node in graph.node}
    copies = [node for node in view.nodes.values() if node.first_output not in known]
    if not copies:
        return
    originals = {tuple(node.input): node for node in graph.node if node.op_type == "DequantizeLinear"}
    for copy in copies:
        added = onnx.NodeProto()
        added.CopyFrom(originals[copy.inputs])
        added.name, added.output[:] = copy.name, copy.outputs
        known[copy.first_output] = added
    for node in view.nodes.values():
        known[node.first_output].input[:] = node.inputs
    graph.node.extend(known[copy.first_output] for copy in copies)


MOST_ROUNDS = 64
MOST_NAMED = 4
MOST_LEFT_OUT = 1000
"""Nodes that `safe` leaves to the CPU before the provider is given up."""


def find_claims(source: LeanModel, basic: LeanModel, wish: AwareSpec, folder: Path) -> WholeGraph:
    """The graph that the providers are shown of `basic` (which is `source` after level basic), and their claims.

    What the session for the CPU did beyond level basic is undone (ep_rules H.4.2 and H.4.3); functions that are neither
    claimed nor known to the CPU are inlined as the real session would, and the providers asked again about their nodes.
    ModelError when asking a provider would end the session on the phone too.
    """
    before = source.proto
    for settings in wish.providers:
        before = before_partitioning(before, look_at(source, folder), settings)
    model = undone_for_provider(basic.proto, before) or basic.proto
    look = look_at(basic, folder)
    graph = unique_dq(look(model))
    shown = model = _as_viewed(model, graph)
    asked = [_Asked(settings, wish.safe) for settings in wish.providers]
    for one in asked:
        one.ask(graph)
    for _ in range(MOST_ROUNDS):
        changed = without_functions(model, graph, {name for one in asked for name in one.names})
        if changed is model:
            break
        graph, fresh = inlined_view(graph, look(changed))
        model = changed
        for one in asked:
            one.ask(graph, fresh)
    if model is not shown and _bodies_share(shown, model, graph):
        model = shown
    return _whole(source, basic, model, graph, asked)


def _as_viewed(model: "ModelProto", graph: Graph) -> "ModelProto":
    """The model with the nodes of its view: Constant nodes are initializers, shared DequantizeLinear nodes copied."""
    import onnx

    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    lift_constants(proto.graph)
    add_copies(proto.graph, graph)
    return proto


def _bodies_share(shown: "ModelProto", inlined: "ModelProto", graph: Graph) -> bool:
    """Whether nodes inside an inlined body share a DequantizeLinear.

    Every reader gets a copy of its own before functions are inlined, and none afterwards. A session that was given the
    body would make copies, so then all functions are left for the sessions to inline.
    """
    remaining = {(node.op_type, key(node)) for node in inlined.graph.node}
    shared = {
        node.first_output
        for node in graph.nodes.values()
        if node.op_type == "DequantizeLinear" and len(graph.out_edges[node.index]) > 1
    }
    calls = [node for node in shown.graph.node if (node.op_type, key(node)) not in remaining]
    return any(not shared.isdisjoint(call.input) for call in calls)


def look_at(model: LeanModel, folder: Path) -> Look:
    """How messages of a model, or of what came of it, are viewed; `folder` is for what is found out on the way."""
    read = tensor_reader(model)
    return lambda proto: view(proto, read=read, saved=lambda: body_types(proto, folder), outside=model.outside)


class _Asked:
    """One provider and what it has claimed so far, by first output."""

    def __init__(self, settings: Settings, safe: bool) -> None:
        self.settings = settings
        self.safe = safe
        self.names: set[str] = set()
        self.closed: set[str] = set()
        self.notes: list[str] = []

    def ask(self, graph: Graph, fresh: frozenset[int] | None = None) -> None:
        """Ask about a whole graph, or (saving asks for both) about fresh nodes and those claimed before."""
        only = None
        if fresh is not None:
            only = fresh | {index for index, node in graph.nodes.items() if node.first_output in self.names}
        found = self._buildable(graph, only) if self.safe else self._claim(graph, only)
        if not self.safe and (refusal := problem(graph, found.groups, self.settings)) is not None:
            self.notes.append(
                f"{self.settings.provider}: {refusal.text}. "
                f"{_sentence(refusal.remedy)}--safe leaves such nodes to the CPU"
            )
        self.names |= {node.first_output for group in found.groups for node in group}
        if fresh is None:
            self.closed = {owner.first_output for owner, body in bodies(graph) if claim(body, self.settings).groups}

    def _claim(self, graph: Graph, only: frozenset[int] | None) -> Claim:
        found = claim(graph, self.settings, only)
        if found.fatal is not None:
            raise ModelError(
                f"{self.settings.provider} cannot be asked about this model",
                why=found.fatal.text,
                remedy=found.fatal.remedy or "change the model, or convert without this provider",
            )
        return found

    def _buildable(self, graph: Graph, only: frozenset[int] | None) -> Claim:
        """The claim without the nodes on which building the provider's model would fail; the rest is grouped anew."""
        free = frozenset(graph.nodes) if only is None else only
        left_out: list[str] = []
        for _ in range(MOST_LEFT_OUT):
            found = self._claim(graph, free if left_out else only)
            unit = culprits(graph, found, self.settings)
            if not unit:
                if left_out:
                    self.notes.append(f"{self.settings.provider}: left to the CPU: {_listed(left_out)}")
                return found
            free -= {node.index for node in unit}
            left_out.append(f"{unit[0].op_type} '{unit[0].name or unit[0].first_output}'")
        return Claim()


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}; " if text else ""


def _whole(
    source: LeanModel, basic: LeanModel, model: "ModelProto", graph: Graph, asked: Sequence[_Asked]
) -> WholeGraph:
    import onnx

    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    del proto.graph.value_info[:]
    lift_constants(proto.graph)
    names = {tensor.name for tensor in proto.graph.initializer if tensor.data_location == tensor.EXTERNAL}
    weights = {name: place for name, place in {**source.weights, **basic.weights}.items() if name in names}
    same = {(node.op_type, key(node)) for node in proto.graph.node}
    found = {node.first_output: node.op_type for node in graph.nodes.values()}
    kept = frozenset(name for one in asked for name in one.names if (found[name], name) in same)
    return WholeGraph(
        model=LeanModel(proto=proto, folder=basic.folder, weights=weights),
        graph=graph,
        kept=kept,
        closed=frozenset(name for one in asked for name in one.closed),
        claimed={one.settings.provider: len(one.names) for one in asked},
        notes=tuple(dict.fromkeys(note for one in asked for note in one.notes)),
    )
