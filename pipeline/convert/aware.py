"""Provider-aware files: what is claimed after level basic and so must stay, and how it is kept in a file."""

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.model import edit as onnx_edit
from pipeline.model.onnx_model import LeanModel
from pipeline.partition import answer as claim_answer
from pipeline.partition import claiming as partition_claiming
from pipeline.partition import graph as partition_graph
from pipeline.partition import shown as partition_shown
from pipeline.partition import units as partition_units

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto

import functools
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from device_runner import host_device
from device_runner import providers as runner_providers
from device_runner.errors import RunnerError
from device_runner.spec import OptimizationLevel
from pipeline.convert import steps
from pipeline.convert.aware_reference import library_of, only_nnapi
from pipeline.convert.closed_off import close_off, culprits, problem
from pipeline.convert.request import AwareSpec, SessionSettings, has_installed
from pipeline.convert.swallowed import hold_back, swallowed, switch_off
from pipeline.core import ort_session
from pipeline.core import releases as ort_releases
from pipeline.core import variant as core_variant
from pipeline.core.errors import ConfigError, DiskError, ModelError
from pipeline.core.variant import Level
from pipeline.model import onnx_model
from pipeline.partition import file_graph, library_claims, stand_in, undone
from pipeline.partition import reference as partition_reference
from pipeline.partition import subject as partition_subject
from pipeline.passes import base as passes_base

if TYPE_CHECKING:
    from onnx import ModelProto

    from pipeline.convert.engine import Optimizer


MOST_NAMED = 5
PRODUCTS = frozenset({"MatMul", "Gemm"})
SAVE = SessionSettings(level=Level.NONE, keep_shared_dq=True)
"""Saving what is optimized: what level extended shares must not be copied again."""
PLAIN_CPU = "cortex-a53"
"""The core that an emulator plays while it saves: one without half precision puts Casts around fp16 nodes, and such a
file runs on every core; one with it leaves nodes that the others have no kernel for (docs/facts/arm64_host.md 5.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownModel:
    """A model as its providers were shown it, after level basic, with its view and what they claim of it.

    Nodes go by their first output (`first_output`). `kept` are the nodes that stay as they are; `claimed` counts them
    by provider. `claims` are all of them, in bodies too, as the claims provider knows nodes (`node_key`). `notes` are
    warnings.
    """

    model: LeanModel
    graph: partition_graph.Graph
    kept: frozenset[str]
    claims: frozenset[str]
    claimed: Mapping[str, int]
    notes: tuple[str, ...] = ()


def aware_parts(optimizer: "Optimizer", settings: SessionSettings, aware: AwareSpec) -> steps.OrtParts:
    """The optimized model with the claims kept that are asked for: a provider-aware file.

    ModelError when onnxruntime refuses the model, or the phone would when it asks a provider.
    """
    model, context = optimizer.model, optimizer.context
    if aware not in optimizer.claims:  # the same at every level
        optimizer.claims[aware] = find_claims(model, optimizer.basic, aware, context.folder)
    shown = optimizer.claims[aware]

    # A session that has the provider saves the file where there is one, an Android library's before the installed one.
    refused: tuple[str, ...] = ()
    try:
        if aware.way is core_variant.Way.INSTALLED:
            return installed_parts(model, shown, settings, aware, context)
        if aware.way is core_variant.Way.LIBRARY:
            parts = genuine_parts(model, shown, settings, aware, context)
            told = (*crash_notes(parts, shown, aware, context), *newer_notes(parts, shown, aware))
            parts = replace(parts, notes=(*parts.notes, *told))
            if aware not in optimizer.differences:
                optimizer.differences[aware] = tuple(library_differences(shown, aware, context))
            return replace(parts, notes=(*parts.notes, *optimizer.differences[aware]))
    except RunnerError as error:
        if not aware.optional or isinstance(error, DiskError):
            raise
        refused = (f"our rules decided, because {error.what}: {error.why}",)

    # Else the installed onnxruntime does, with a provider that claims what our rules say.
    plain = msgspec.structs.replace(settings, aware=None)
    notes, start = shown.notes, model
    # Whether the CPU's session did nothing beyond level basic
    same = _node_bytes(shown.model) == _node_bytes(optimizer.basic)
    gpu = next((provider for provider in aware.providers if provider.rules.copies), None)
    copies = partition_claiming.claims_of(gpu).copies if gpu else None
    title = gpu.rules.run.ort_name if gpu else stand_in.CLAIMS_PROVIDER

    def with_copies(parts: steps.OrtParts, before: LeanModel) -> steps.OrtParts:
        if not gpu or not copies or not shown.claims:
            return parts
        saved = steps.as_onnx(parts, before, context)
        copying = copies.written(saved, gpu, viewer(saved, context.folder))
        return parts if copying is saved else steps.to_parts(copying, SAVE, context)

    if not aware.safe and (not shown.claims or (same and settings.level is Level.BASIC)):
        parts = optimizer.parts(plain)
    else:
        try:
            stand_in.claims_devices()
        except RunnerError as error:
            note = f"it is optimized for the CPU alone, because {error.what}: {error.why} ({error.remedy})"
            return replace(with_copies(optimizer.parts(plain), model), notes=(*notes, note, *refused))
        # Sessions of large models may begin with the basic result, where weights are as they stay.
        again = same and bool(model.weights) and optimizer.is_settled
        start = optimizer.basic if again else model
        chosen = msgspec.structs.replace(plain, keep_constants=again)
        parts, lost = save_with_claims(start, shown, chosen, context, title)
        notes += lost
        if aware.safe:  # the phone partitions the file again: it must not find what it cannot build
            closed = steps.as_onnx(parts, start, context)
            viewed = viewer(closed, context.folder)
            notes += tuple(note for provider in aware.providers for note in close_off(closed, provider, viewed))
            parts = steps.to_parts(closed, SAVE, context)
    notes += (*crash_notes(parts, shown, aware, context), *newer_notes(parts, shown, aware))
    borrowed = [
        provider.ort_release for provider in aware.providers if not ort_releases.has_rules(provider.ort_release)
    ]
    aware_by = core_variant.AwareBy(
        way=core_variant.Way.PLUGIN, rules=str(ort_releases.rules_of(borrowed[0])) if borrowed else ""
    )
    return replace(with_copies(parts, start), claimed=shown.claimed, notes=(*notes, *refused), aware_by=aware_by)


def crash_notes(
    parts: steps.OrtParts, shown: ShownModel, aware: AwareSpec, context: passes_base.PassContext
) -> tuple[str, ...]:
    """The warning of a file for a provider that no session at level all opens; its weights need not be there."""
    asked = [
        (settings.provider, crash_of)
        for settings in aware.providers
        if (crash_of := partition_claiming.claims_of(settings).crash_in_file)
    ]
    if not asked:
        return ()
    if not any(node.operator == "ai.onnx:QLinearConv" for node in parts.read().graph.nodes):
        return ()
    path = context.new_file(".ort")
    path.write_bytes(parts.skeleton)
    graph = file_graph.view_of_file(path)
    path.unlink()
    claimed = {index for index, node in graph.nodes.items() if stand_in.node_key(node) in shown.claims}
    crashes = ((name, crash_of(graph, claimed)) for name, crash_of in asked)
    return tuple(f"{name}: {crash.what}; {crash.remedy}" for name, crash in crashes if crash)


def newer_notes(parts: steps.OrtParts, shown: ShownModel, aware: AwareSpec) -> Iterator[str]:
    """What a file for NNAPI of an older phone costs on the newest: it is fused where only that would claim."""
    for settings in aware.providers:
        if not settings.rules.by_api_level or settings.api_level >= runner_providers.NNAPI_NEWEST_API_LEVEL:
            continue
        newest = partition_claiming.claim(
            shown.graph, msgspec.structs.replace(settings, api_level=runner_providers.NNAPI_NEWEST_API_LEVEL)
        )
        claims = {stand_in.node_key(node) for group in newest.groups for node in group}
        lost = swallowed(shown.model.proto.graph, claims, parts.read().graph, fuses=False).lost
        if lost:
            yield (
                f"made for API level {settings.api_level}: of {len(claims)} nodes that NNAPI takes at "
                f"{runner_providers.NNAPI_NEWEST_API_LEVEL}, {len(lost)} are fused for the CPU in it; make one more "
                "for newer phones "
                f"(--api-level {runner_providers.NNAPI_NEWEST_API_LEVEL}), or ship level basic to them"
            )


def _node_bytes(model: LeanModel) -> list[bytes]:
    return [node.SerializeToString(deterministic=True) for node in model.proto.graph.node]


MOST_ROUNDS = 64
MOST_LISTED = 4
MOST_LEFT_OUT = 1000
"""Nodes that `safe` leaves to the CPU before the provider is given up."""


def find_claims(source: LeanModel, basic: LeanModel, aware: AwareSpec, folder: Path) -> ShownModel:
    """The graph that the providers are shown of `basic` (which is `source` after level basic), and their claims.

    What the session for the CPU did beyond level basic is undone (ep_rules H.4.2 and H.4.3); functions that are neither
    claimed nor known to the CPU are inlined as the real session would, and the providers asked again about their nodes.
    ModelError when asking a provider would end the session on the phone too.
    """
    before = source.proto
    for settings in aware.providers:
        before = partition_shown.before_partitioning(before, viewer(source, folder), settings)
    model = undone.undone_for_provider(basic.proto, before) or basic.proto
    viewed = viewer(basic, folder)
    graph = partition_units.unique_dq(viewed(model))
    # As in the view: Constant nodes are initializers, shared DequantizeLinear nodes copied.
    shown = model = onnx_edit.copied(model)
    lift_constants(model.graph)
    partition_shown.add_copies(model.graph, graph)
    asked = [_Asked(settings, aware.safe) for settings in aware.providers]
    for provider in asked:
        provider.ask(graph)
    for _ in range(MOST_ROUNDS):
        changed = partition_shown.without_functions(
            model, graph, {name for provider in asked for name in provider.names}
        )
        if changed is model:
            break
        graph, fresh = partition_shown.inlined_view(graph, viewed(changed))
        model = changed
        for provider in asked:
            provider.ask(graph, fresh)
    # Every reader of a DequantizeLinear gets a copy of its own before functions are inlined, and none afterwards. Where
    # nodes inside an inlined body share one, a session that was given the body would make copies: then all functions
    # are left for the sessions to inline.
    remaining = {(node.op_type, onnx_edit.first_output(node)) for node in model.graph.node}
    shared = {
        node.first_output
        for node in graph.nodes.values()
        if node.op_type == "DequantizeLinear" and len(graph.out_edges[node.index]) > 1
    }
    calls = [node for node in shown.graph.node if (node.op_type, onnx_edit.first_output(node)) not in remaining]
    if any(not shared.isdisjoint(call.input) for call in calls):
        model = shown
    for provider in asked:
        if not provider.names and (
            lost := claim_answer.lost_to_dimensions(
                provider.settings.provider, partition_subject.dynamic_names(source.proto), provider.codes
            )
        ):
            provider.notes.append(lost)
    # The model as providers were shown it, and the nodes of their claims that the file can still keep
    proto = onnx_edit.copied(model)
    del proto.graph.value_info[:]
    lift_constants(proto.graph)
    names = {tensor.name for tensor in proto.graph.initializer if tensor.data_location == tensor.EXTERNAL}
    weights = {name: span for name, span in {**source.weights, **basic.weights}.items() if name in names}
    same = {(node.op_type, onnx_edit.first_output(node)) for node in proto.graph.node}
    operators = {node.first_output: node.op_type for node in graph.nodes.values()}
    return ShownModel(
        model=LeanModel(proto=proto, folder=basic.folder, weights=weights),
        graph=graph,
        kept=frozenset(name for provider in asked for name in provider.names if (operators[name], name) in same),
        claimed={provider.settings.provider: len(provider.names) for provider in asked},
        notes=tuple(dict.fromkeys(note for provider in asked for note in provider.notes)),
        claims=frozenset(name for provider in asked for name in provider.claims),
    )


def viewer(model: LeanModel, folder: Path) -> partition_shown.AsGraph:
    """How messages of a model, or of what came of it, are viewed; `folder` is for what is found out on the way."""
    read = partition_graph.tensor_reader(model)
    return lambda proto: partition_graph.view(
        proto, read=read, saved=lambda: partition_graph.body_types(proto, folder), outside=model.outside
    )


class _Asked:
    """One provider and what it has claimed so far, by first output."""

    def __init__(self, settings: claim_answer.Settings, safe: bool) -> None:
        self.settings = settings
        self.safe = safe
        self.names: set[str] = set()
        self.claims: set[str] = set()
        self.notes: list[str] = []
        self.codes: list[str] = []

    def ask(self, graph: partition_graph.Graph, fresh: frozenset[int] | None = None) -> None:
        """Ask about a whole graph, or (saving asks for both) about fresh nodes and those claimed before."""
        only = None
        if fresh is not None:
            only = fresh | {index for index, node in graph.nodes.items() if node.first_output in self.names}
        claimed = self._buildable(graph, only) if self.safe else self._claim(graph, only)
        if not self.safe and (refusal := problem(graph, claimed.groups, self.settings)) is not None:
            remedy = f"{refusal.remedy[0].upper()}{refusal.remedy[1:]}; " if refusal.remedy else ""
            self.notes.append(f"{self.settings.provider}: {refusal.what}. {remedy}--safe leaves such nodes to the CPU")
        nodes = [node for group in claimed.groups for node in group]
        self.names |= {node.first_output for node in nodes}
        self.claims |= {stand_in.node_key(node) for node in nodes}
        self.codes += [refusal.code for refusal in claimed.refusals.values()]
        if fresh is None:
            for _, body in partition_graph.bodies(graph):
                nodes = [node for group in partition_claiming.claim(body, self.settings).groups for node in group]
                self.claims |= {stand_in.node_key(node) for node in nodes}

    def _claim(self, graph: partition_graph.Graph, only: frozenset[int] | None) -> partition_claiming.Claim:
        claimed = partition_claiming.claim(graph, self.settings, only)
        if claimed.fatal is not None:
            raise ModelError(
                f"{self.settings.provider} cannot be asked about this model",
                why=claimed.fatal.what,
                remedy=claimed.fatal.remedy or "change the model, or convert without this provider",
            )
        return claimed

    def _buildable(self, graph: partition_graph.Graph, only: frozenset[int] | None) -> partition_claiming.Claim:
        """The claim without the nodes on which building the provider's model would fail; the rest is grouped anew."""
        free = frozenset(graph.nodes) if only is None else only
        left_out: list[str] = []
        for _ in range(MOST_LEFT_OUT):
            claimed = self._claim(graph, free if left_out else only)
            unit = culprits(graph, claimed, self.settings)
            if not unit:
                if left_out:
                    names = ", ".join(left_out[:MOST_LISTED])
                    more = f" and {len(left_out) - MOST_LISTED} more" if len(left_out) > MOST_LISTED else ""
                    self.notes.append(f"{self.settings.provider}: left to the CPU: {names}{more}")
                return claimed
            free -= {node.index for node in unit}
            left_out.append(f"{unit[0].op_type} '{unit[0].name or unit[0].first_output}'")
        return partition_claiming.Claim()


def save_with_claims(
    model: LeanModel,
    shown: ShownModel,
    settings: SessionSettings,
    context: passes_base.PassContext,
    title: str = stand_in.CLAIMS_PROVIDER,
) -> tuple[steps.OrtParts, tuple[str, ...]]:
    """The ORT format file of a model at a level with the claims of `shown` kept, and a warning where one could not be.

    Saving looks up a kernel of this computer's CPU for every node, and inserts no Casts around what a provider claims:
    a claimed node without one is left to the CPU (ep_rules H.4.13). ModelError when onnxruntime refuses the model.
    """

    @functools.cache
    def intact() -> frozenset[str]:
        """Weights that the optimizations for the CPU leave as they are, even where they may fuse every node.

        None is known where a basic result cannot be optimized again: a fusion may make a name that is there already.
        """
        try:
            optimized = steps.optimize(model, settings, context)
        except ModelError:
            return frozenset()
        return frozenset(name for name, span in optimized.weights.items() if model.weights.get(name) == span)

    def save(claims: Collection[str], chosen: SessionSettings = settings) -> steps.OrtParts:
        """ModelError when onnxruntime refuses the model or the claims."""
        lean, weights = steps.weights_to_inputs(model, model.weights.keys() - _unseen(model, shown, claims, intact))
        listed = context.new_file(".claims")
        listed.write_bytes(stand_in.claims_file(claims))
        extra = {ort_session.WEIGHTS_FOLDER: str(lean.folder), stand_in.CLAIMS: str(listed)}
        message, device = onnx_model.loadable(lean).SerializeToString(), stand_in.claims_devices()[title]
        try:
            return steps.OrtParts(skeleton=steps.save_ort(message, chosen, extra, context, device), weights=weights)
        finally:
            listed.unlink()

    # What decides whether there is a kernel: operator, version, types.
    kinds: dict[tuple[object, ...], list[partition_graph.Node]] = {}

    def refused(suspects: Sequence[tuple[object, ...]]) -> list[tuple[object, ...]]:
        """The kinds of nodes among the suspects with which saving fails, by halves."""
        try:
            save([stand_in.node_key(node) for kind in suspects for node in kinds[kind]])
        except ModelError:
            half = len(suspects) // 2
            return [*refused(suspects[:half]), *refused(suspects[half:])] if half else list(suspects)
        return []

    fuses = title != stand_in.CLAIMS_PROVIDER
    with suppress(ModelError):
        return hold_back(save, shown.model.proto.graph, shown.claims, settings, fuses=fuses)
    if settings.level not in (Level.NONE, Level.BASIC):  # its fusions around claimed nodes may break the graph (1.23)
        with suppress(ModelError):
            basic = save(shown.claims, msgspec.structs.replace(settings, level=Level.BASIC))
            return basic, (f"it is of level basic: with the claims, onnxruntime fails at level {settings.level.value}",)
    save(frozenset())  # raises where the claims are not the cause
    for node in shown.graph.nodes.values():
        if stand_in.node_key(node) in shown.claims:
            types = tuple(shown.graph.value(name).dtype for name in (*node.inputs, *node.outputs) if name)
            kinds.setdefault((node.domain, node.op_type, node.since_version, types), []).append(node)
    lost = [node for kind in refused(list(kinds)) for node in kinds[kind]]
    names = ", ".join(f"{node.op_type} '{node.name or node.first_output}'" for node in lost[:MOST_NAMED])
    note = (
        f"{len(lost)} claimed nodes have no kernel on this computer's CPU and are stored otherwise "
        f"({names}{' …' * (len(lost) > MOST_NAMED)}): the phone's provider may claim less"
    )
    claims = shown.claims - {stand_in.node_key(node) for node in lost}
    if fuses:  # the Casts around what is left to the CPU meet those that are claimed
        return save(claims), (note,)
    parts, notes = hold_back(save, shown.model.proto.graph, claims, settings, fuses=False)
    return parts, (note, *notes)


def _unseen(
    model: LeanModel, shown: ShownModel, claims: Collection[str], intact: Callable[[], frozenset[str]]
) -> set[str]:
    """Large weights whose numbers no optimizer wants; onnxruntime holds what it saves in ORT format up to twice.

    Claimed nodes alone read them, or they are the second factors of products, which fusions keep or rewrite.
    """
    nodes = shown.graph.nodes.values()
    inputs_of = {(node.op_type, node.first_output): node.inputs for node in nodes if stand_in.node_key(node) in claims}
    graph, places = model.proto.graph, shown.model.weights
    names = {name for name, span in model.weights.items() if places.get(name) == span}
    names -= {value.name for value in chain(graph.input, *(body.output for body in onnx_edit.subgraphs(graph)))}
    for body in onnx_edit.subgraphs(graph) if names else ():
        for node in body.node:
            outside = body is not graph or node.op_type in steps.QUANTIZERS
            inputs = () if outside else inputs_of.get((node.op_type, onnx_edit.first_output(node)), ())
            for slot, name in enumerate(node.input):
                if name in names and (slot >= len(inputs) or inputs[slot] != name):
                    factor = not outside and slot == 1 and node.op_type in PRODUCTS and node.domain == ""
                    names -= set() if factor and name in intact() else {name}
    return names


def installed_parts(
    model: LeanModel, shown: ShownModel, settings: SessionSettings, aware: AwareSpec, context: passes_base.PassContext
) -> steps.OrtParts:
    """The file that the installed onnxruntime saves at the wanted level; notes where its claims are not our rules'.

    ConfigError where it does not have the provider, or cannot be told what is asked; ModelError when it refuses.
    """
    import onnxruntime

    asked = aware.providers[0]
    if len(aware.providers) > 1 or aware.safe or asked.nnapi_flags:
        raise ConfigError(
            "the installed onnxruntime makes models aware of one provider as it is",
            why="Python cannot hand it NNAPI flags, and it decides by itself what is claimed",
            remedy="give one --ep without --safe and flags, or --reference none",
        )
    if not has_installed(asked):
        raise ConfigError(
            f"the installed onnxruntime has no {asked.rules.run.ort_name}",
            why="stock wheels for Linux have none",
            remedy="leave --reference out: the models are then made with the claims of our rules",
        )
    switches = {
        "RequireStaticInputShapes": asked.require_static_input_shapes,
        "EnableOnSubgraphs": asked.enable_on_subgraphs,
    }
    provider = (asked.rules.run.ort_name, {**asked.rules.options} | {key: "1" for key, on in switches.items() if on})
    config = {"ep.nnapi.partitioning_stop_ops": ",".join(asked.stop_ops)} if asked.rules.run.nnapi else {}

    def save(proto: "ModelProto", lean: LeanModel, chosen: SessionSettings) -> tuple[bytes, frozenset[str] | None]:
        """The file that a session saves of a message with its weights where the model has them, and what it claimed."""
        target = context.new_file(".ort")
        taken = steps.save_optimized(
            proto.SerializeToString(),
            chosen,
            target,
            {ort_session.WEIGHTS_FOLDER: str(lean.folder), **config},
            ort_format=True,
            where=context.where,
            provider=provider,
        )
        content = target.read_bytes()
        target.unlink()
        return content, taken

    parts, lost = switch_off(
        lambda chosen: steps.OrtParts(skeleton=save(onnx_model.loadable(model), model, chosen)[0]),
        shown.model.proto.graph,
        shown.claims,
        settings,
    )
    named = onnx_edit.copied(onnx_model.loadable(shown.model))
    partition_subject.name_nodes(named)
    _, taken = save(named, shown.model, steps.PLAIN)
    notes = (*shown.notes, *lost)
    if taken is None:
        notes += ("the installed onnxruntime does not tell its claims (that came with 1.24): they were not compared",)
    elif "" not in taken:  # nodes of inlined functions have no names
        differing = [f"{name} (theirs)" for name in sorted(taken - shown.kept)]
        differing += [f"{name} (ours)" for name in sorted(shown.kept - taken)]
        if differing:
            names = ", ".join(differing[:MOST_NAMED])
            notes += (
                f"{len(differing)} nodes are claimed by the installed onnxruntime or by our rules alone: {names}",
            )
    return steps.OrtParts(
        skeleton=parts.skeleton,
        claimed={asked.provider: len(shown.kept if taken is None else taken)},
        notes=notes,
        aware_by=core_variant.AwareBy(way=core_variant.Way.INSTALLED, release=onnxruntime.__version__),
    )


def genuine_parts(
    model: LeanModel, shown: ShownModel, settings: SessionSettings, aware: AwareSpec, context: passes_base.PassContext
) -> steps.OrtParts:
    """The file that an Android library saves at the wanted level.

    ConfigError for other providers than NNAPI alone, which is the one that Android's libraries have; ModelError when
    the library refuses the model or crashes on it.
    """
    if not aware.library_serves:
        raise only_nnapi()
    library = library_of(aware)
    path = context.new_file(".onnx")
    partition_subject.write_model(model, path)

    def save(chosen: SessionSettings) -> steps.OrtParts:
        target = context.new_file(".ort")
        entries = {"session.qdqisint8allowed": "1" if chosen.int8_allowed else "0"}
        partition_reference.reference_aware(
            path,
            target,
            library,
            aware.providers[0],
            OptimizationLevel(chosen.level.value),
            cpu="" if library.abi == host_device.default_abi() else PLAIN_CPU,
            config=entries,
            left_out=chosen.left_out,
        )
        content = target.read_bytes()
        target.unlink()
        return steps.OrtParts(skeleton=content, claimed=shown.claimed, aware_by=aware.by)

    try:
        parts, lost = switch_off(save, shown.model.proto.graph, shown.claims, settings)
    finally:
        partition_subject.remove_model(path)
    return replace(parts, notes=(*shown.notes, *lost))


def library_differences(shown: ShownModel, aware: AwareSpec, context: passes_base.PassContext) -> Iterator[str]:
    """What the library claims otherwise than our rules of the shown model.

    It is asked about that graph as it stands: after its own level basic, nodes would have other names.
    """
    path = context.new_file(".onnx")
    partition_subject.write_model(shown.model, path, named=True)
    (answer,) = partition_reference.claims_of_named([path], library_of(aware), aware.providers[0])
    partition_subject.remove_model(path)
    if answer.error is not None:
        yield f"the library's claims cannot be compared: {answer.error}"
        return
    differences = library_claims.differing(answer, shown.kept)
    if differences:
        names = ", ".join(
            f"{name} ({'ours' if ours else 'theirs'})" for name, ours in list(differences.items())[:MOST_NAMED]
        )
        yield f"{len(differences)} nodes are claimed by the library or by our rules alone: {names}"


def lift_constants(graph: "GraphProto") -> None:
    """Turn Constant nodes (inlined functions have them) into initializers, as ONNX Runtime does on loading."""
    constants = [node for node in graph.node if _is_constant(node)]
    if not constants:
        return
    graph.initializer.extend(_tensor(node) for node in constants)
    onnx_edit.keep_only(graph.node, lambda node: not _is_constant(node))


def _is_constant(node: "NodeProto") -> bool:
    """Whether it is a Constant node of numbers; other kinds stay nodes."""
    plain = node.op_type == "Constant" and node.domain in onnx_edit.ONNX_DOMAINS and len(node.attribute) == 1
    return plain and not node.attribute[0].name.startswith(("sparse", "value_string"))


def _tensor(node: "NodeProto") -> "TensorProto":
    import onnx

    attribute = node.attribute[0]
    if attribute.name == "value":
        tensor: TensorProto = onnx_edit.copied(attribute.t)
        tensor.name = node.output[0]
        return tensor
    content: Any = onnx.helper.get_attribute_value(attribute)
    kind = onnx.TensorProto.FLOAT if "float" in attribute.name else onnx.TensorProto.INT64
    many = isinstance(content, (list, tuple))
    return onnx.helper.make_tensor(node.output[0], kind, [len(content)] if many else [], content if many else [content])
