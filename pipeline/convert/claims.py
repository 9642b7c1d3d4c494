"""What of a model is claimed after level basic and so must stay, less what a provider could not build."""

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.convert.request import AwareSpec
from pipeline.core.errors import ModelError
from pipeline.model.edit import (
    ONNX_DOMAINS,
    copied,
    first_output,
    fresh_name,
    keep_only,
    names_in,
    set_nodes,
    sort_nodes,
)
from pipeline.model.onnx_model import ByteRange, LeanModel
from pipeline.partition.answer import Refusal, Settings, lost_to_dimensions
from pipeline.partition.graph import FreshNames, Graph, Node, bodies, body_types, tensor_reader, view
from pipeline.partition.rules import Claim, claim
from pipeline.partition.shown import (
    add_copies,
    before_partitioning,
    inlined_view,
    node_key,
    undone_for_provider,
    without_functions,
)
from pipeline.partition.subject import dynamic_names
from pipeline.partition.units import node_units, unique_dq, unit_of_node

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto


MOST_CLOSED = 200
"""Nodes of one model that are kept from a provider before giving up."""

Look = Callable[["ModelProto"], Graph]


def problem(graph: Graph, groups: Iterable[tuple[Node, ...]], settings: Settings) -> Refusal | None:
    """The first reason why one of the provider's models cannot be built on the phone."""
    module = importlib.import_module(settings.rules.load)
    refusal: Refusal | None = module.build_refusal(graph, groups, settings)
    return refusal


def culprits(graph: Graph, claimed: Claim, settings: Settings) -> Sequence[Node]:
    """The members of the first unit without which the first problem is another one or none; empty without problem."""
    for group in claimed.groups:
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
    owner = unit_of_node(node_units(graph, settings))
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
        claimed = claim(graph, settings)
        refusal = claimed.fatal or problem(graph, claimed.groups, settings)
        if refusal is None:
            return
        place = next(_constants(graph, culprits(graph, claimed, settings), tried), None)
        if place is None:
            yield f"{settings.provider}: {refusal.text}. No change of the file keeps this node from the provider"
            return
        tried.add(place)
        _hide(model.proto, *place, fresh)


def _constants(graph: Graph, nodes: Sequence[Node], tried: set[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """(node, initializer) for the constants that nodes read, the smallest first, without those tried before."""
    constants = [
        (constant.count, node.first_output, name)
        for node in nodes
        for name in node.inputs
        if name and (constant := graph.constant(name)) is not None
    ]
    yield from (place for _, *pair in sorted(constants) if (place := (pair[0], pair[1])) not in tried)


def _hide(proto: "ModelProto", name: str, constant: str, fresh: FreshNames) -> None:
    """Make one node read an initializer through an Identity."""
    graph = proto.graph
    taken = {value for node in graph.node for value in (*node.input, *node.output)}
    hidden = fresh.take(f"{constant}/for the CPU", taken)
    node = next(node for node in graph.node if first_output(node) == name)
    node.input[:] = [hidden if value == constant else value for value in node.input]
    identity = type(node)(op_type="Identity", input=[constant], output=[hidden])
    set_nodes(graph, (identity, *graph.node))


FUSED_CONV = "FusedConv"


def for_gpu(model: LeanModel, settings: Settings, look: Look) -> LeanModel:
    """A finished model with copies between the memories of GPU and CPU, which ONNX Runtime inserts in ONNX files alone.

    The same model where none are needed. A constant that both sides read is there twice. The layout decides what of the
    computation of shapes stays on the CPU; FusedConv loads in NCHW alone.
    """
    graph = look(model.proto)
    parts = (graph, *(body for _, body in bodies(graph)))
    fused = any(node.op_type == FUSED_CONV for part in parts for node in part.nodes.values())
    options = msgspec.structs.replace(settings.webgpu, layout="NCHW" if fused else settings.webgpu.layout)
    weights = dict(model.weights)
    result = LeanModel(proto=copied(model.proto), folder=model.folder, weights=weights)
    taken = names_in(result.proto.graph)
    taken |= {tensor.values.name for tensor in result.proto.graph.sparse_initializer}
    asked = msgspec.structs.replace(settings, webgpu=options)
    written = [_copy_in(part, proto, asked, weights, taken) for part, proto in _parts(graph, result.proto.graph)]
    return result if any(written) else model


def _parts(graph: Graph, proto: "GraphProto") -> "Iterator[tuple[Graph, GraphProto]]":
    """A graph and its bodies, each with the message that it is a view of."""
    yield graph, proto
    nodes = {first_output(node): node for node in proto.node}
    for node in graph.nodes.values():
        if node.bodies:
            inner = [attribute.g for attribute in nodes[node.first_output].attribute if attribute.type == 5]
            for body, message in zip(node.bodies, inner, strict=True):
                yield from _parts(body, message)


def _copy_in(
    graph: Graph, proto: "GraphProto", settings: Settings, weights: dict[str, ByteRange], taken: set[str]
) -> bool:
    """Write the copies into one graph; whether there are any."""
    from pipeline.partition.webgpu import COPIES, crossing, memories, shared_constants  # a table that few need

    gpu, cpu = memories(graph, claim(graph, settings).claimed)
    to_gpu, to_cpu = crossing(graph, gpu, cpu)
    shared = shared_constants(graph, gpu, cpu)
    doubled = shared & graph.initializers.keys()
    to_gpu |= shared - doubled  # a constant of a graph around
    # Readers by the first outputs of their nodes, which is what messages and view have in common.
    nodes = {first_output(node): node for node in proto.node}
    initializers = {tensor.name: tensor for tensor in proto.initializer}
    sparse = {tensor.values.name: tensor for tensor in proto.sparse_initializer}
    moves = [(name, gpu, COPIES[0]) for name in to_gpu] + [(name, cpu, COPIES[1]) for name in to_cpu]
    for name, side, operator in sorted([*moves, *((name, gpu, "") for name in doubled)], key=itemgetter(0, 2)):
        copy = fresh_name(f"{name}_{'on_gpu' if side is gpu else 'on_cpu'}", taken)
        for node, slot in side.read[name]:
            if slot < len(node.inputs):
                nodes[node.first_output].input[slot] = copy
        if operator:
            proto.node.add(op_type=operator, name=copy, input=[name], output=[copy])
        elif name in sparse:
            proto.sparse_initializer.append(sparse[name])
            proto.sparse_initializer[-1].values.name = copy
        else:
            proto.initializer.append(initializers[name])
            proto.initializer[-1].name = copy
            weights |= {copy: weights[name]} if name in weights else {}
    sort_nodes(proto)
    return bool(moves or doubled)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeGraph:
    """A model with its view. Nodes go by their first output (`first_output`).

    `kept` are the nodes that stay as they are; `claimed` counts them by provider. `claims` are all of them, in bodies
    too, as the claims provider knows nodes (`node_key`). `notes` are warnings.
    """

    model: LeanModel
    graph: Graph
    kept: frozenset[str]
    claims: frozenset[str]
    claimed: Mapping[str, int]
    notes: tuple[str, ...] = ()


def lift_constants(graph: "GraphProto") -> None:
    """Turn Constant nodes (inlined functions have them) into initializers, as ONNX Runtime does on loading."""
    constants = [node for node in graph.node if _is_constant(node)]
    if not constants:
        return
    graph.initializer.extend(_tensor(node) for node in constants)
    keep_only(graph.node, lambda node: not _is_constant(node))


def _is_constant(node: "NodeProto") -> bool:
    """Whether it is a Constant node of numbers; other kinds stay nodes."""
    plain = node.op_type == "Constant" and node.domain in ONNX_DOMAINS and len(node.attribute) == 1
    return plain and not node.attribute[0].name.startswith(("sparse", "value_string"))


def _tensor(node: "NodeProto") -> "TensorProto":
    import onnx

    attribute = node.attribute[0]
    if attribute.name == "value":
        tensor: TensorProto = copied(attribute.t)
        tensor.name = node.output[0]
        return tensor
    content: Any = onnx.helper.get_attribute_value(attribute)
    kind = onnx.TensorProto.FLOAT if "float" in attribute.name else onnx.TensorProto.INT64
    many = isinstance(content, (list, tuple))
    return onnx.helper.make_tensor(node.output[0], kind, [len(content)] if many else [], content if many else [content])


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
    # As in the view: Constant nodes are initializers, shared DequantizeLinear nodes copied.
    shown = model = copied(model)
    lift_constants(model.graph)
    add_copies(model.graph, graph)
    asked = [_Asked(settings, wish.safe) for settings in wish.providers]
    for provider in asked:
        provider.ask(graph)
    for _ in range(MOST_ROUNDS):
        changed = without_functions(model, graph, {name for provider in asked for name in provider.names})
        if changed is model:
            break
        graph, fresh = inlined_view(graph, look(changed))
        model = changed
        for provider in asked:
            provider.ask(graph, fresh)
    if model is not shown and _bodies_share(shown, model, graph):
        model = shown
    for provider in asked:
        if not provider.names and (
            lost := lost_to_dimensions(provider.settings.provider, dynamic_names(source.proto), provider.codes)
        ):
            provider.notes.append(lost)
    return _whole_graph(source, basic, model, graph, asked)


def _bodies_share(shown: "ModelProto", inlined: "ModelProto", graph: Graph) -> bool:
    """Whether nodes inside an inlined body share a DequantizeLinear.

    Every reader gets a copy of its own before functions are inlined, and none afterwards. A session that was given the
    body would make copies, so then all functions are left for the sessions to inline.
    """
    remaining = {(node.op_type, first_output(node)) for node in inlined.graph.node}
    shared = {
        node.first_output
        for node in graph.nodes.values()
        if node.op_type == "DequantizeLinear" and len(graph.out_edges[node.index]) > 1
    }
    calls = [node for node in shown.graph.node if (node.op_type, first_output(node)) not in remaining]
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
        self.claims: set[str] = set()
        self.notes: list[str] = []
        self.codes: list[str] = []

    def ask(self, graph: Graph, fresh: frozenset[int] | None = None) -> None:
        """Ask about a whole graph, or (saving asks for both) about fresh nodes and those claimed before."""
        only = None
        if fresh is not None:
            only = fresh | {index for index, node in graph.nodes.items() if node.first_output in self.names}
        claimed = self._buildable(graph, only) if self.safe else self._claim(graph, only)
        if not self.safe and (refusal := problem(graph, claimed.groups, self.settings)) is not None:
            self.notes.append(
                f"{self.settings.provider}: {refusal.text}. "
                f"{_sentence(refusal.remedy)}--safe leaves such nodes to the CPU"
            )
        nodes = [node for group in claimed.groups for node in group]
        self.names |= {node.first_output for node in nodes}
        self.claims |= {node_key(node) for node in nodes}
        self.codes += [refusal.code for refusal in claimed.refusals.values()]
        if fresh is None:
            for _, body in bodies(graph):
                nodes = [node for group in claim(body, self.settings).groups for node in group]
                self.claims |= {node_key(node) for node in nodes}

    def _claim(self, graph: Graph, only: frozenset[int] | None) -> Claim:
        claimed = claim(graph, self.settings, only)
        if claimed.fatal is not None:
            raise ModelError(
                f"{self.settings.provider} cannot be asked about this model",
                why=claimed.fatal.text,
                remedy=claimed.fatal.remedy or "change the model, or convert without this provider",
            )
        return claimed

    def _buildable(self, graph: Graph, only: frozenset[int] | None) -> Claim:
        """The claim without the nodes on which building the provider's model would fail; the rest is grouped anew."""
        free = frozenset(graph.nodes) if only is None else only
        left_out: list[str] = []
        for _ in range(MOST_LEFT_OUT):
            claimed = self._claim(graph, free if left_out else only)
            unit = culprits(graph, claimed, self.settings)
            if not unit:
                if left_out:
                    self.notes.append(f"{self.settings.provider}: left to the CPU: {_listed(left_out)}")
                return claimed
            free -= {node.index for node in unit}
            left_out.append(f"{unit[0].op_type} '{unit[0].name or unit[0].first_output}'")
        return Claim()


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}; " if text else ""


def _whole_graph(
    source: LeanModel, basic: LeanModel, model: "ModelProto", graph: Graph, asked: Sequence[_Asked]
) -> WholeGraph:
    """The model as providers were shown it, and the nodes of their claims that the file can still keep."""
    proto = copied(model)
    del proto.graph.value_info[:]
    lift_constants(proto.graph)
    names = {tensor.name for tensor in proto.graph.initializer if tensor.data_location == tensor.EXTERNAL}
    weights = {name: place for name, place in {**source.weights, **basic.weights}.items() if name in names}
    same = {(node.op_type, first_output(node)) for node in proto.graph.node}
    operators = {node.first_output: node.op_type for node in graph.nodes.values()}
    kept = frozenset(name for provider in asked for name in provider.names if (operators[name], name) in same)
    return WholeGraph(
        model=LeanModel(proto=proto, folder=basic.folder, weights=weights),
        graph=graph,
        kept=kept,
        claimed={provider.settings.provider: len(provider.names) for provider in asked},
        notes=tuple(dict.fromkeys(note for provider in asked for note in provider.notes)),
        claims=frozenset(name for provider in asked for name in provider.claims),
    )
