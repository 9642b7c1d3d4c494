"""What is claimed of a model after level basic, by one provider or several, and so must stay as it is."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.convert.splice.buildable import Look, culprits, problem
from pipeline.convert.splice.constants import add_copies, lift_constants
from pipeline.convert.splice.links import key
from pipeline.convert.splice.spec import AwareSpec
from pipeline.convert.splice.whole_graph import WholeGraph
from pipeline.core.errors import ModelError
from pipeline.model.onnx_model import LeanModel
from pipeline.partition.answer import Settings
from pipeline.partition.basic import undone_for_provider
from pipeline.partition.claim import Claim, bodies, claim
from pipeline.partition.graph import Graph
from pipeline.partition.inlining import before_partitioning, inlined_view, without_functions
from pipeline.partition.input import body_types, tensor_reader
from pipeline.partition.onnx_view import view
from pipeline.partition.unique_dq import unique_dq

if TYPE_CHECKING:
    from onnx import ModelProto

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
                f"{self.settings.provider.value}: {refusal.text}. "
                f"{_sentence(refusal.remedy)}--safe leaves such nodes to the CPU"
            )
        self.names |= {node.first_output for group in found.groups for node in group}
        if fresh is None:
            self.closed = {owner.first_output for owner, body in bodies(graph) if claim(body, self.settings).groups}

    def _claim(self, graph: Graph, only: frozenset[int] | None) -> Claim:
        found = claim(graph, self.settings, only)
        if found.fatal is not None:
            raise ModelError(
                f"{self.settings.provider.value} cannot be asked about this model",
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
                    self.notes.append(f"{self.settings.provider.value}: left to the CPU: {_listed(left_out)}")
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
        claimed={one.settings.provider.value: len(one.names) for one in asked},
        notes=tuple(dict.fromkeys(note for one in asked for note in one.notes)),
    )
