"""Judges one model for a provider: the answers of `ort-mobile partition`."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from device_runner import providers as runner_providers
from pipeline.check import many as check_many
from pipeline.check import result as check_result
from pipeline.core import releases as ort_releases
from pipeline.core.errors import ModelError, PipelineError
from pipeline.core.releases import Release
from pipeline.dataset import Dataset
from pipeline.model.sources import SourceModel
from pipeline.partition import kept
from pipeline.partition.answer import (
    BodyClaim,
    Cut,
    Decision,
    LoadForecast,
    ModelAnswer,
    OperatorGain,
    Optimize,
    Refusal,
    Settings,
    Simulation,
    SizedAnswer,
)
from pipeline.partition.claiming import (
    Claim,
    claim,
    claims_of,
    compiler_of,
    copied_bytes,
    copies_estimated,
    copies_of,
    unit_edges,
)
from pipeline.partition.graph import Graph, Node, bodies
from pipeline.partition.model_core import core_of
from pipeline.partition.processors import processor_warnings
from pipeline.partition.provider_claims import ModelRun
from pipeline.partition.selectors import node_units, unit_of_node
from pipeline.partition.shown import predict_load, rounds
from pipeline.partition.subject import Views, check_computed, likely_sizes, open_views, scratch_folder
from pipeline.partition.units import plain_units


class PartitionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One question: this model, this provider with its settings, the file as it stands or after level basic.

    `sizes` are for dynamic dimensions, by name or `input[axis]`. With `likely` the answer also says what likely sizes
    would give for those that are left. On the data of `simulate` it says what the chip's simulator computes, compared
    with `original`, the model that this is another form of, where there is one.
    """

    source: SourceModel
    settings: Settings
    optimize: Optimize = Optimize.NONE
    sizes: dict[str, int] = {}
    likely: bool = False
    simulate: Dataset | None = None
    original: check_result.Reference | None = None

    @property
    def entry(self) -> Path | None:
        """Where the answer is kept; None for one that is not: of a simulator, or as `entry_of_chip_answer`."""
        if self.simulate:
            return None
        return kept.entry_of_chip_answer(self.source, self.settings, self.optimize, self.sizes, likely=self.likely)


def judge(request: PartitionRequest) -> ModelAnswer:
    """The answer for one model; what is wrong with the model stands in the answer's `error`."""
    try:
        with scratch_folder(request.source) as folder:
            views = open_views(request.source, request.optimize, folder, request.sizes)
            answer = judge_views(views, request.settings, simulates=bool(request.simulate))
            lacking = tuple(
                finding.text for finding in views.lacking(request.settings, request.settings.rules.provider)
            )
            answer = msgspec.structs.replace(answer, warnings=(*answer.warnings, *lacking))
            fixed = _with_sizes(views, answer, request.settings) if request.likely else None
            simulated = _simulated(views, request, answer) if request.simulate else None
            answer = msgspec.structs.replace(answer, fixed=fixed, simulated=simulated)
            if request.likely and views.loaded and answer.claimed and request.settings.rules.run.gpu:
                loss = check_many.gpu_loss_alone(views.loaded, request.sizes, Dataset(), folder)
                answer = msgspec.structs.replace(answer, warnings=(*answer.warnings, *([loss.text] if loss else ())))
            if views.loaded and not views.loaded.outside:
                kept.keep_answer(request.entry, answer)
            return answer
    except ModelError as error:
        # A model that can be judged without the sizes that were asked for is refused for them.
        if request.sizes and not judge(msgspec.structs.replace(request, sizes={}, likely=False)).error:
            sizes = ", ".join(f"{name}={size}" for name, size in request.sizes.items())
            error = ModelError(
                f"ONNX Runtime refuses the model with {sizes}",
                why=error.why or error.what,
                remedy="give other sizes, or leave them open: without sizes the model loads",
            )
        return failed_answer(request, error)
    except PipelineError as error:
        return failed_answer(request, error)


def judge_views(views: Views, settings: Settings, *, simulates: bool = False, brief: bool = False) -> ModelAnswer:
    """One provider's answer; ModelError for what the rules or ONNX Runtime cannot read.

    What the provider is shown is asked about; what becomes of it on load is asked of the file that ships.
    Nodes that a chip may compute otherwise are named, unless it `simulates` them next. A `brief` answer has decisions
    about refused nodes alone, no single cuts, and no bytes at the borders of partitions. What is said of nodes is of
    the model's own: those that make tensors of an app's data are counted apart.
    """
    import onnxruntime

    view = views.of(settings)
    shown, ships, model = view.shown, view.ships, view.model
    check_computed(views.computed, shown, views.source.name)
    provider = claims_of(settings)
    provider.check(views, shown, settings)
    compiler, doubts = "", tuple[str, ...]()
    if provider.compiler:
        shown, compiler = ships, kept.compiler_name()
        if model is None or views.shipped_model is None:
            raise ModelError(
                f"the compiler of {settings.rules.title} says nothing about ORT format files",
                where=views.source.name,
                remedy="name the ONNX model that the file was made from",
            )
        chip = runner_providers.CHIPS[settings.chip]
        provider_claim, load = provider.compiler.ask(views.shipped_model, model, ships, chip, views.folder)
        doubts = () if simulates or load.error else tuple(provider.compiler.suspicions(ships, provider_claim.claimed))
        in_bodies: list[tuple[Node, Graph, Claim]] = []
    else:
        provider_claim = claim(shown, settings)
        first = ships, (provider_claim if shown is ships else claim(ships, settings))
        load = predict_load(rounds(model, first, views.later, settings), settings)
        if provider.crash_in_file and not views.loaded and not load.error:
            crash = provider.crash_in_file(ships, provider_claim.claimed)
            load = LoadForecast.failing(crash, estimate=True) if crash else load
        in_bodies = [(owner, body, claim(body, settings)) for owner, body in bodies(shown)]
        if not load.error:
            load = provider.at_run(ModelRun(views=views, ships=ships, settings=settings, load=load))
    core = core_of(shown)
    in_bodies = [of_body for of_body in in_bodies if of_body[0].index not in core.ends]
    copies_inside = sum(copies_of(body, settings, inside.claimed) or 0 for _, body, inside in in_bodies)
    counted = core.claim(provider_claim)
    cuts, operators = gains(core.graph, settings, counted, copies_inside, each=not brief)
    apart = not (settings.rules.on_cpu or settings.rules.copies or brief)  # partitions with memory of their own
    given, taken = (copied_bytes(core.graph, counted.groups) if apart else None) or (None, None)
    return ModelAnswer(
        path=views.source.name,
        ep=settings.provider,
        chip=settings.chip,
        compiler=compiler,
        ort_release=str(Release(*settings.ort_release)),
        rules_release="" if settings.rules.by_chip else str(ort_releases.rules_of(settings.ort_release)),
        nodes=len(core.graph.nodes),
        claimed=len(counted.claimed),
        ends=tuple(node.first_output for node in core.ends.values()),
        claimed_ends=len(provider_claim.claimed & core.ends.keys()),
        partitions=counted.names(),
        copies=copies_of(core.graph, settings, counted.claimed, copies_inside),
        copies_estimated=(settings.rules.copies and len(load.rounds) > 1)  # functions were inlined
        or any(
            copies_estimated(graph, settings, graph_claim.claimed)
            for graph, graph_claim in ((core.graph, counted), *((body, inside) for _, body, inside in in_bodies))
        ),
        given_bytes=given,
        taken_bytes=taken,
        subgraphs=tuple(
            BodyClaim(owner=owner.first_output, partitions=inside.names())
            for owner, _, inside in in_bodies
            if inside.groups
        ),
        decisions=_decisions(core.graph, counted, brief=brief),
        cuts=cuts,
        operators=operators,
        load=load,
        dynamic=views.dynamic(core.hidden),
        shapes_from=onnxruntime.__version__,
        warnings=(*_warnings(ModelRun(views=views, ships=ships, settings=settings, load=load), shown), *doubts),
    )


def _warnings(run: ModelRun, shown: Graph) -> Iterator[str]:
    """What works otherwise than expected: said of the file, of the settings, and by the provider."""
    yield from dict.fromkeys(run.views.warnings)
    yield from processor_warnings(shown, run.settings, optimized_there=run.views.loaded is not None)
    yield from run.settings.warnings
    yield from () if run.load.error else claims_of(run.settings).warnings(run)


def _decisions(graph: Graph, provider_claim: Claim, *, brief: bool) -> tuple[Decision, ...]:
    """What became of each node, or where it is to be `brief` of each refused one."""
    group_of = {node.index: position for position, group in enumerate(provider_claim.groups) for node in group}
    refusals = {index: refusal for index, refusal in provider_claim.refusals.items() if index not in group_of}
    return tuple(
        Decision(
            name=node.name,
            op_type=node.op_type,
            domain=node.domain,
            since_version=node.since_version,
            inputs=node.inputs,
            outputs=node.outputs,
            claimed=index in group_of,
            partition=group_of.get(index),
            code=refusals[index].code if index in refusals else None,
            reason=refusals[index].what if index in refusals else None,
            remedy=(refusals[index].remedy or None) if index in refusals else None,
        )
        for index, node in (graph.nodes.items() if not brief or refusals else ())
        if not brief or index not in group_of
    )


def _simulated(views: Views, request: PartitionRequest, answer: ModelAnswer) -> Simulation | None:
    """What the simulator computes; None where the chip takes nothing, or makes no session."""
    if not answer.claimed or (answer.load and answer.load.error):
        return None
    view = views.of(request.settings)
    model = view.model
    if not (model and views.shipped_model and request.simulate):
        return None
    try:
        chip, original = runner_providers.CHIPS[request.settings.chip], request.original
        simulator = compiler_of(request.settings).simulator
        return simulator.simulate(
            views.shipped_model, model, view.ships, chip, request.simulate, views.folder, original
        )
    except ModelError as error:  # the original does not run on the CPU
        return Simulation(passed=False, reason=f"nothing to compare with: {error.reason}", remedy=error.remedy)


def _with_sizes(views: Views, answer: ModelAnswer, settings: Settings) -> SizedAnswer | None:
    """What likely sizes for the dynamic dimensions that are left would give; None where nothing is left to gain."""
    if not answer.dynamic or answer.claimed == answer.nodes or views.loaded is None:
        return None
    try:
        sizes = next(likely_sizes(views.loaded, {}), None)
        if sizes is None:
            return None
        with scratch_folder(views.source) as folder:
            fixed = judge_views(views.resized(sizes, folder, views.optimize), settings)
    except PipelineError:
        return None
    return SizedAnswer(
        sizes=sizes,
        nodes=fixed.nodes,
        claimed=fixed.claimed,
        partitions=len(fixed.partitions),
        copies=fixed.copies,
        copies_estimated=fixed.copies_estimated,
        load=fixed.load,
    )


def failed_answer(request: PartitionRequest, error: PipelineError | None) -> ModelAnswer:
    """The answer where nothing is known but what went wrong."""
    text, remedy = reason_of(error)
    return ModelAnswer(
        path=request.source.name,
        ep=request.settings.provider,
        chip=request.settings.chip,
        ort_release=str(Release(*request.settings.ort_release)),
        rules_release=str(ort_releases.rules_of(request.settings.ort_release)),
        error=text,
        remedy=remedy,
    )


def reason_of(error: PipelineError | None) -> tuple[str, str | None]:
    """The texts of an error in an answer: what and why, and the remedy."""
    if error is None:
        return "no answer", None
    return error.reason, error.remedy or None


MOST = 64
"""Candidates tried for a model, those with most claimed neighbours first: the time stays linear in the nodes."""

TRIVIAL = ("trivial", "constant", "border", "single")
"""Codes of nodes that the provider could take, but not as a partition of their own."""


def gains(
    graph: Graph, settings: Settings, provider_claim: Claim, inside: int = 0, *, each: bool = True
) -> tuple[tuple[Cut, ...], tuple[OperatorGain, ...]]:
    """What supporting more nodes would give; `inside` as `copies_of`.

    First refused nodes whose claim would join partitions or take in more nodes, the best first (none where `each` is
    False: each costs a look at the whole graph, and nothing is said of what computes on the CPU); then what supporting
    all refused nodes of one operator would give, for every operator that has some. What computes on the CPU (XNNPACK)
    does not group, so nothing cuts there and its partitions are none.
    """
    if len(provider_claim.claimed) == len(graph.nodes) or (settings.rules.on_cpu and not each):
        return (), ()
    waves = _Waves(graph, settings, provider_claim, inside)
    cuts = []
    before = copies_of(graph, settings, provider_claim.claimed, inside)
    none_cut = settings.rules.on_cpu or not provider_claim.groups or not each
    for position in () if none_cut else waves.candidates():
        gain = waves.claiming(frozenset({position}))
        fewer = gain.partitions < len(provider_claim.groups) or gain.claimed > len(provider_claim.claimed)
        if gain.copies is None and not fewer:
            continue
        if gain.copies is not None and before is not None and gain.copies >= before:
            continue
        node = waves.units[position].target
        refusal = provider_claim.refusals.get(node.index, Refusal("", ""))
        cut = Cut(
            output=node.first_output,
            op_type=node.op_type,
            reason=refusal.what,
            remedy=refusal.remedy,
            partitions=gain.partitions,
            claimed=gain.claimed,
            copies=gain.copies,
        )
        cuts.append(cut)
    refused: dict[str, list[int]] = {}
    for position, unit in enumerate(waves.units):
        if unit.target.index in provider_claim.refusals and not waves.supported[position]:
            refused.setdefault(unit.target.op_type, []).append(position)
    operators = []
    for op_type, units in refused.items():
        gain = waves.claiming(frozenset(units))
        operators.append(
            OperatorGain(
                op_type=op_type,
                nodes=len(units),
                partitions=gain.partitions,
                claimed=gain.claimed,
                copies=gain.copies,
            )
        )
    cuts.sort(key=lambda cut: (cut.copies or cut.partitions, -cut.claimed, cut.output))
    return tuple(cuts), tuple(operators)


@dataclass(frozen=True, slots=True)
class _Gain:
    """Partitions, claimed nodes and copies: of these only what a provider counts."""

    partitions: int
    claimed: int
    copies: int | None


class _Waves:
    """The grouping in its closed form (ep_rules B.3), for asking again and again with another node supported."""

    def __init__(self, graph: Graph, settings: Settings, provider_claim: Claim, inside: int) -> None:
        self.graph, self.settings, self.claimed, self.inside = graph, settings, provider_claim.claimed, inside
        self.units = node_units(graph, settings) if settings.rules.qdq_units else plain_units(graph)
        self.trivial = {index for index, refusal in provider_claim.refusals.items() if refusal.code in TRIVIAL}
        claimed = provider_claim.claimed
        self.supported = [u.target.index in claimed or u.target.index in self.trivial for u in self.units]

    @cached_property
    def sizes(self) -> list[int]:
        """How many nodes each unit has."""
        return [len(unit.nodes) if unit.group else 1 for unit in self.units]

    @cached_property
    def is_trivial(self) -> list[bool]:
        """Whether each unit's refusal is one of `TRIVIAL`."""
        return [unit.target.index in self.trivial for unit in self.units]

    @cached_property
    def producers(self) -> list[list[int]]:
        """For each unit the positions of those that it reads from."""
        position_of = {unit.target.index: position for position, unit in enumerate(self.units)}
        if len(self.units) == len(self.graph.nodes):  # no groups
            edges = self.graph.in_edges
            return [[position_of[edge.producer] for edge in edges[unit.target.index]] for unit in self.units]
        owner = unit_of_node(self.units)
        producers: list[list[int]] = [[] for _ in self.units]
        for position, unit in enumerate(self.units):
            for edge in unit_edges(self.graph, unit):
                producers[position_of[owner[edge.consumer].target.index]].append(position)
        return producers

    def candidates(self) -> list[int]:
        """Refused units that a claimed one feeds, those with most claimed neighbours first."""
        near = [0] * len(self.units)
        fed = [False] * len(self.units)
        for position, producers in enumerate(self.producers):
            for producer in producers:
                near[position] += self.supported[producer]
                near[producer] += self.supported[position]
                fed[position] = fed[position] or self.supported[producer]
        refused = [i for i in range(len(self.units)) if fed[i] and not self.supported[i]]
        return sorted(refused, key=lambda i: -near[i])[:MOST]

    def claiming(self, forced: frozenset[int]) -> _Gain:
        """What would be claimed if more units were supported; groups of trivial nodes only are no partitions."""
        if self.settings.rules.on_cpu or self.settings.rules.copies:
            claimed = self.claimed | {node.index for position in forced for node in self.units[position].nodes}
            return _Gain(0, len(claimed), copies_of(self.graph, self.settings, claimed, self.inside))
        supported = [*self.supported]
        for position in forced:
            supported[position] = True
        wave, sizes, real = [0] * len(supported), [0] * (len(supported) + 1), set[int]()
        for position, producers in enumerate(self.producers):
            highest = 0
            for producer in producers:
                if wave[producer] > highest:
                    highest = wave[producer]
            if supported[position]:
                sizes[highest] += self.sizes[position]
                if not self.is_trivial[position]:
                    real.add(highest)
            else:
                for producer in producers:
                    if supported[producer] and wave[producer] == highest:
                        highest += 1
                        break
            wave[position] = highest
        return _Gain(len(real), sum(sizes[number] for number in real), None)
