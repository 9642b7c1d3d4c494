"""What a provider is shown of a model, in all rounds: functions inlined as ONNX Runtime does it, level basic before it.

Model-local functions are inlined before a provider is asked; functions of ONNX's own schemas for which the CPU has no
kernel are inlined after it was asked and did not claim them (ep_rules A.1, A.2), and it is asked again: claimed nodes
are one fused node from then on (A.7).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.core import files as storage
from pipeline.core import ort_session
from pipeline.core.errors import ModelError
from pipeline.core.variant import Level
from pipeline.model import edit as onnx_edit
from pipeline.model import onnx_model
from pipeline.model import types as onnx_types
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import LoadForecast, Settings
from pipeline.partition.claiming import Claim, claim, claims_of
from pipeline.partition.graph import FreshNames, Graph, Node, given_outside, schema
from pipeline.partition.outline import left_over
from pipeline.partition.types import refused
from pipeline.partition.units import plain_units

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto


NEVER = frozenset(
    {
        "Bernoulli",
        "CastLike",
        "CenterCropPad",
        "GroupNormalization",
        "HardSwish",
        "Mish",
        "NegativeLogLikelihoodLoss",
        "SequenceMap",
        "SoftmaxCrossEntropyLoss",
    }
)
"""Functions of ONNX with no kernel for any type."""

NOT_F16 = frozenset({
    "Elu", "Gelu", "GreaterOrEqual", "HardSigmoid", "LeakyRelu", "LessOrEqual", "LogSoftmax", "PRelu", "ReduceL1",
    "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare", "Relu", "Selu", "Softmax", "Softplus", "Softsign",
    "ThresholdedRelu",
})  # fmt: skip
"""No kernel for f16: inlined where the function's body fits the opset, else computed in f32 between Casts."""

MAX_NODES = 1_000_000
"""Calls of calls can multiply: a model that grows beyond this is refused."""

AsGraph = Callable[["ModelProto"], Graph]
Round = tuple[Graph, Claim]
"""What the provider was shown in one round, and what it claimed of it."""


def before_partitioning(model: "ModelProto", view: AsGraph, settings: Settings) -> "ModelProto":
    """What a model with functions has become when the provider is asked: calls it does not claim are inlined.

    The same model when it has no functions.
    """
    if not model.functions:
        return model
    table = claims_of(settings).table
    protected: Collection[str] = ()
    if any(function.name in table for function in model.functions):
        protected = _claimed_outputs(view(model), settings)
    names = FreshNames()
    model = _inline_local(model, protected, names)
    graph = view(model)
    return without_functions(model, graph, _claimed_outputs(graph, settings), names)


def _claimed_outputs(graph: Graph, settings: Settings) -> frozenset[str]:
    return frozenset(node.first_output for group in claim(graph, settings).groups for node in group)


def _inline_local(model: "ModelProto", protected: Collection[str], names: FreshNames) -> "ModelProto":
    """The model with calls of model-local functions replaced by their bodies, until none is left.

    `protected` names calls, by their first output, that a provider claims as they stand.
    """
    functions = {(onnx_edit.plain_domain(f.domain), f.name, f.overload): f for f in model.functions}

    def key(node: "NodeProto") -> tuple[str, str, str]:
        return onnx_edit.plain_domain(node.domain), node.op_type, node.overload

    # A function that calls itself, however far around, would never be inlined.
    calls = {name: set(map(key, onnx_edit.all_nodes(body))) & functions.keys() for name, body in functions.items()}
    while leaves := {name for name, called in calls.items() if not called}:
        calls = {name: called - leaves for name, called in calls.items() if name not in leaves}
    if calls:
        circular = ", ".join(sorted(name for _, name, _ in calls)[:3])
        raise ModelError(
            "functions of the model call themselves",
            why=f"among them {circular}",
            remedy="export the model without functions",
        )
    return _inline(
        model, lambda node: None if next(iter(node.output), "") in protected else functions.get(key(node)), names
    )


def is_inlined(graph: Graph, node: Node) -> bool:
    """Whether the CPU cannot run a node of the default domain as it stands and uses its function's body."""
    if node.domain != "" or not (node.op_type in NEVER or node.op_type in NOT_F16):
        return False
    first = graph.value(next(iter(node.inputs), ""))
    if node.op_type == "PRelu" and first.dtype:
        return first.dtype != "f32"  # the one type that it has a kernel for
    return node.op_type in NEVER or (node.op_type in NOT_F16 and first.dtype == "f16")


def _inlined(graph: Graph) -> list[Node]:
    """The nodes for which `is_inlined` holds."""
    if graph.operators.isdisjoint(NEVER) and graph.operators.isdisjoint(NOT_F16):
        return []
    parts = left_over(graph, plain_units(graph), lambda shown, unit: not is_inlined(shown, unit.target))
    return [unit.target for unit in parts if is_inlined(graph, unit.target)]


def without_functions(
    model: "ModelProto", graph: Graph, claimed: Collection[str], names: FreshNames | None = None
) -> "ModelProto":
    """The model with the schema functions inlined that are not claimed and that the CPU cannot run.

    `claimed` are first outputs, `names` the counter of an earlier inlining in the same graph.
    """
    imports = {onnx_edit.plain_domain(opset.domain): opset.version for opset in model.opset_import}
    calls = {node.first_output for node in _inlined(graph)} - set(claimed)

    def body(node: "NodeProto") -> "FunctionProto | None":
        called = next(iter(node.output), "") in calls and node.domain in ("", "ai.onnx")
        has_function = called and (node.op_type in NEVER or node.op_type in NOT_F16)
        return _schema_function(node, imports.get("", 1), graph) if has_function else None

    if not calls:
        return model
    copy = onnx_edit.copied(model)
    add_copies(copy.graph, graph)
    inlined = _inline(copy, body, names or FreshNames())
    return model if inlined is copy else inlined


def _schema_function(node: "NodeProto", opset: int, graph: Graph) -> "FunctionProto | None":
    """The body of a node's function under the model's opset; None when its schema has none that fits it."""
    import onnx
    from onnx import defs

    definition: Any = defs.get_schema(node.op_type, opset, "")  # its stub lacks half of the methods
    if definition.has_function:
        opsets = definition.function_opset_versions
    elif definition.has_context_dependent_function:
        opsets = definition.context_dependent_function_opset_versions
    else:
        return None
    versions = [version for version in opsets if version <= opset]
    if not versions:
        return None
    if definition.has_function:
        data = definition.get_function_with_opset_version(versions[-1])
    else:
        types = []
        for value in map(graph.value, node.input):
            kind = onnx.TypeProto()
            kind.tensor_type.elem_type = onnx_types.CODES.get(value.dtype or "", 0)
            if value.shape is not None:
                kind.tensor_type.shape.SetInParent()
            for dim in value.shape or ():
                kind.tensor_type.shape.dim.add(**({} if dim is None else {"dim_value": dim}))
            types.append(kind.SerializeToString())
        message = node.SerializeToString()
        data = definition.get_context_dependent_function_with_opset_version(versions[-1], message, types)
    if not data:
        return None
    function = onnx.FunctionProto()
    function.ParseFromString(data)
    function.attribute_proto.extend(a.default_value for a in definition.attributes.values() if a.default_value.name)
    # No operator of a fixed body may have changed between the opset it was written for and the model's.
    fits = definition.has_context_dependent_function or all(
        schema(inner.op_type, "", versions[-1])[0] == schema(inner.op_type, "", opset)[0] for inner in function.node
    )
    return function if fits else None


def add_copies(graph: "GraphProto", view: Graph) -> None:
    """Give each reader of a shared DequantizeLinear the copy that it has in the view (ep_rules C.1), in place.

    What is inlined afterwards reads the copy of its call, which several of its nodes may then share.
    """
    messages = {onnx_edit.first_output(node): node for node in graph.node}
    for node in view.nodes.values():
        message = messages.get(node.first_output)
        if message is None:  # a copy, which its reader brings
            continue
        for slot, name in enumerate(node.inputs):
            if message.input[slot] == name:
                continue
            source = view.nodes[view.producers[name][0]]
            copy = graph.node.add()
            copy.CopyFrom(messages[message.input[slot]])
            copy.name, copy.input[:], copy.output[:] = source.name, source.inputs, source.outputs
            message.input[slot] = name


Body = Callable[["NodeProto"], "FunctionProto | None"]
"""The function behind a node, None when the node stays."""


def _inline(model: "ModelProto", body: Body, names: FreshNames) -> "ModelProto":
    """A copy of the model in which every node with a body is replaced by it, again and again; in nested graphs too.

    The same model when no node has a body. `names` is the main graph's counter, which goes on after this.
    """
    if all(body(node) is None for node in onnx_edit.all_nodes(model.graph)):
        return model
    result = onnx_edit.copied(model)
    prefixes: set[str] = set()
    while True:
        growth = sum(
            _inline_graph(result, graph, body, names if graph is result.graph else FreshNames(), prefixes)
            for graph in onnx_edit.subgraphs(result.graph)
        )
        if not growth:
            return result
        if sum(len(graph.node) for graph in onnx_edit.subgraphs(result.graph)) > MAX_NODES:
            raise ModelError("the model's functions expand without end", why=f"more than {MAX_NODES} nodes")


def _inline_graph(model: "ModelProto", graph: "GraphProto", body: Body, fresh: FreshNames, prefixes: set[str]) -> int:
    """Inline the calls of one graph, once each; how many there were.

    In the main graph new nodes go to the end, as in ONNX Runtime. ONNX's inference of types looks into bodies, where
    it wants nodes in order and names that no graph around them has: `prefixes` are those given so far.
    """
    calls = {position: function for position, node in enumerate(graph.node) if (function := body(node)) is not None}
    if not calls:
        return 0
    inside = graph is not model.graph
    taken = {node.name for node in graph.node} | (prefixes if inside else set())
    kept: list[NodeProto] = []
    added: list[NodeProto] = []
    for position, node in enumerate(graph.node):
        if position not in calls:
            kept.append(node)
            continue
        prefix = fresh.take(f"_inlfunc_{node.op_type}", taken)
        taken.add(prefix)
        prefixes.add(prefix)
        # Formal names become actual ones, inner names get the prefix.
        function = calls[position]
        actual = {formal: next(iter(node.input[slot : slot + 1]), "") for slot, formal in enumerate(function.input)}
        for slot, formal in enumerate(function.output):
            actual[formal] = next(iter(node.output[slot : slot + 1]), "") or f"{prefix}_{formal}"
        attributes = {attribute.name: attribute for attribute in (*function.attribute_proto, *node.attribute)}
        (kept if inside else added).extend(_expand_node(part, prefix, actual, attributes) for part in function.node)
    onnx_edit.set_nodes(graph, [*kept, *added])
    domains = {onnx_edit.plain_domain(opset.domain) for opset in model.opset_import}
    for opset in (opset for function in calls.values() for opset in function.opset_import):
        if onnx_edit.plain_domain(opset.domain) not in domains:
            domains.add(onnx_edit.plain_domain(opset.domain))
            model.opset_import.append(opset)
    return len(calls)


def _expand_node(
    source: "NodeProto", prefix: str, actual: dict[str, str], attributes: "Mapping[str, AttributeProto]"
) -> "NodeProto":
    import onnx

    def renamed(name: str) -> str:
        return actual.setdefault(name, f"{prefix}_{name}") if name else ""

    node = onnx.NodeProto(
        op_type=source.op_type,
        domain=source.domain,
        name=f"{prefix}_{source.name}" if source.name else "",
        overload=source.overload,
    )
    node.input.extend(map(renamed, source.input))
    node.output.extend(map(renamed, source.output))
    for attribute in source.attribute:
        # What refers to an attribute of the call gets its value, or is left out with it.
        given = attributes.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if given is None:
            continue
        node.attribute.append(given)
        node.attribute[-1].name = attribute.name
        for body in [node.attribute[-1].g] if given.type == 5 else node.attribute[-1].graphs:
            inner = dict(actual)  # values of a body's own keep to the body
            for value in (*body.input, *body.output, *body.initializer):
                inner[value.name] = value.name = f"{prefix}_{value.name}"
            onnx_edit.set_nodes(body, [_expand_node(part, prefix, inner, attributes) for part in body.node])
    return node


FUSED = "(fused)"
MOST_ROUNDS = 64
"""Bodies of functions call functions in turn; no schema of ONNX needs more rounds than a few."""


def rounds(model: "ModelProto | None", first: Round, view: AsGraph, settings: Settings) -> Iterator[Round]:
    """All rounds of a session, the first included.

    `model` is what the first round's graph was made of, None for an ORT format file, in which nothing is inlined.
    """
    yield first
    if model is None:
        return
    whole, groups = first[0], first[1].groups
    for _ in range(MOST_ROUNDS):
        if not _inlined(whole):
            return
        claimed = frozenset(node.first_output for group in groups for node in group)
        changed = without_functions(model, whole, claimed)
        if changed is model:
            return
        whole, fresh = inlined_view(whole, view(changed))
        nodes = dict(whole.nodes)
        for group in groups:  # each is one node, which reads and gives what the group did
            members = {node.index for node in group}
            index = max(nodes) + 1
            for member in members:
                del nodes[member]
            written = {name for node in group for name in node.outputs if name}
            read = dict.fromkeys(name for node in group for name in (*node.inputs, *node.implicit_inputs) if name)
            nodes[index] = Node(
                index=index,
                name="",
                op_type=FUSED,
                domain="",
                since_version=1,
                inputs=tuple(name for name in read if name not in written),
                outputs=tuple(dict.fromkeys(given_outside(whole, group, members))),
            )
        fused = replace(whole, nodes=nodes)
        next_claim = claim(fused, settings, fresh)
        yield fused, next_claim
        model, groups = changed, (*groups, *next_claim.groups)


def inlined_view(graph: Graph, after: Graph) -> tuple[Graph, frozenset[int]]:
    """The graph with the calls that `after` has no more replaced by their bodies, and the indices of the new nodes.

    Nodes that stay keep their indices; the unique-DQ pass is not run again (A.2).
    """
    nodes_before = {(node.op_type, node.outputs) for node in graph.nodes.values()}
    remaining = {(node.op_type, node.outputs) for node in after.nodes.values()}
    nodes = {
        i: node
        for i, node in graph.nodes.items()
        if (node.op_type, node.outputs) in remaining or node.op_type == "DequantizeLinear"
    }
    first = max(graph.nodes, default=-1) + 1
    fresh: dict[int, Node] = {}
    for node in after.nodes.values():
        if (node.op_type, node.outputs) not in nodes_before:
            fresh[first + len(fresh)] = msgspec.structs.replace(node, index=first + len(fresh))
    merged = replace(
        graph,
        nodes=nodes | fresh,
        values={**after.values, **graph.values},
        initializers={**after.initializers, **graph.initializers},
    )
    return merged, frozenset(fresh)


def predict_load(asked: Iterable[Round], settings: Settings) -> LoadForecast:
    """How many compiled nodes the session will have, or why it cannot be made; `asked` are its rounds (`rounds`)."""
    remaining = iter(asked)
    first = next(remaining)
    if first[1].fatal is not None:
        return LoadForecast.failing(first[1].fatal)
    return claims_of(settings).forecast(chain([first], remaining), settings)


def save_basic(loaded: onnx_model.LoadedModel, work_folder: Path) -> onnx_model.LoadedModel:
    """The model as the installed onnxruntime saves it at level basic for the CPU; ModelError when it cannot."""
    target = work_folder / "basic.onnx"
    try:
        ort_session.make_session(loaded.path, ort_session.session_options(Level.BASIC, save_to=target))
    except ort_session.ort_errors() as error:
        raise refused(error, "no session can be made of the model at level basic") from error
    if not target.is_file():
        raise ModelError("ONNX Runtime did not save the model at level basic", where=loaded.source.name)
    # The saved model names the files of its weights as the model did.
    for file in {span.file for span in loaded.weights.values()} - {loaded.path.resolve()}:
        beside = work_folder / file.relative_to(loaded.folder)
        if not beside.exists():
            storage.make_folder(beside.parent)
            storage.share_file(file, beside)
    return onnx_model.load_model(SourceModel(path=str(target)), work_folder)
