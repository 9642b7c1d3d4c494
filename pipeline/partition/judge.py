"""Judges models for providers, each in a worker process where there are many: the answers of `ort-mobile partition`."""

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pipeline.core.errors import ModelError, PipelineError
from pipeline.core.releases import Release, rules_of
from pipeline.core.workers import Task, needed_bytes, run_tasks
from pipeline.model.onnx_model import LoadedModel
from pipeline.model.sources import SourceModel, find_models, source_bytes
from pipeline.partition.answer import (
    SUFFIXES,
    BodyClaim,
    Decision,
    LoadForecast,
    ModelAnswer,
    Optimize,
    Refusal,
    Settings,
    SizedAnswer,
)
from pipeline.partition.basic import save_basic, undone_for_provider
from pipeline.partition.functions import before_partitioning
from pipeline.partition.graph import Graph, Node
from pipeline.partition.grouping import SavedFile, cuts, operator_gains, predict_load
from pipeline.partition.input import (
    NO_SIZES,
    PartitionInput,
    body_types,
    check_computed,
    dynamic_names,
    likely_sizes,
    open_subject,
    resized,
    tensor_reader,
)
from pipeline.partition.rules import Claim, bodies, claim
from pipeline.partition.units import processor_warnings, unique_dq

if TYPE_CHECKING:
    from onnx import ModelProto

    from pipeline.partition.onnx_view import Reader

TIMEOUT_SECONDS = 120.0
"""For one model."""


class PartitionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One question: this model, this provider with its settings, the file as it stands or after level basic.

    `sizes` are for dynamic dimensions, by name or `input[axis]`. With `likely` the answer also says what likely sizes
    would give for those that are left.
    """

    source: SourceModel
    settings: Settings
    optimize: Optimize = Optimize.NONE
    sizes: dict[str, int] = {}
    likely: bool = False


def judge(request: PartitionRequest) -> ModelAnswer:
    """The answer for one model; what is wrong with the model stands in the answer's `error`."""
    try:
        with scratch_folder(request.source) as folder:
            views = open_views(request.source, request.optimize, folder, request.sizes)
            answer = judge_views(views, request.settings)
            fixed = _with_sizes(views, answer, request.settings) if request.likely else None
            return msgspec.structs.replace(answer, fixed=fixed)
    except ModelError as error:
        return failed_answer(request, _blamed_on_sizes(request, error) if request.sizes else error)
    except PipelineError as error:
        return failed_answer(request, error)


def _blamed_on_sizes(request: PartitionRequest, error: ModelError) -> ModelError:
    """The refusal of a model that can be judged without the sizes that were asked for."""
    if judge(msgspec.structs.replace(request, sizes={}, likely=False)).error:
        return error
    sizes = ", ".join(f"{name}={size}" for name, size in request.sizes.items())
    return ModelError(
        f"ONNX Runtime refuses the model with {sizes}",
        why=error.why or error.what,
        remedy="give other sizes, or leave them open: without sizes the model loads",
    )


IN_MEMORY = Path("/dev/shm")  # noqa: S108 - folders in it are made by tempfile, with names of their own
IN_MEMORY_BYTES = 16 << 20


@contextmanager
def scratch_folder(source: SourceModel) -> Iterator[Path]:
    """A folder for what judging a model writes. Small ones are in memory: a disk takes longer than judging them.

    Names that are no text, which protobuf reads only when they are asked for, become a ModelError here.
    """
    small = Path(source.path).is_file() and Path(source.path).stat().st_size <= IN_MEMORY_BYTES
    place = IN_MEMORY if small and os.access(IN_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="ort-mobile-", dir=place) as folder:
        try:
            yield Path(folder)
        except UnicodeDecodeError as error:
            raise ModelError(
                "a name in the model is not UTF-8",
                where=source.name,
                why=str(error),
                remedy="export the model again with names that are text",
            ) from error


@dataclass(slots=True)
class Views:
    """The graphs of one model that providers judge: graphs are made once, however many providers are asked."""

    subject: PartitionInput
    optimize: Optimize
    folder: Path
    warnings: list[str] = field(default_factory=list)
    saved: LoadedModel | None = None
    graphs: dict[int, tuple["ModelProto", Graph]] = field(default_factory=dict)

    def of(self, settings: Settings) -> tuple[Graph, SavedFile]:
        """What a provider is shown, and the file that ships: at level none the same."""
        loaded = self.subject.loaded
        if loaded is None:
            graph = self._ort_view()
            return graph, SavedFile(graph=graph, model=None, view=lambda _: graph)
        read = tensor_reader(loaded)
        model = before_partitioning(loaded.proto, lambda model: self._view(model, read), settings)
        if self.optimize is Optimize.NONE:
            graph = self._graph(model, read)
            return graph, SavedFile(graph=graph, model=model, view=lambda model: self._view(model, read))
        saved = self.basic()
        read = tensor_reader(saved)
        ships = SavedFile(
            graph=self._graph(saved.proto, read), model=saved.proto, view=lambda model: self._view(model, read)
        )
        shown = undone_for_provider(saved.proto, model)
        return (ships.graph if shown is None else unique_dq(self._view(shown, read))), ships

    def basic(self) -> LoadedModel:
        """The model at level basic, made once; ModelError when onnxruntime makes no session of it on the CPU."""
        if self.saved is None:
            assert self.subject.loaded, "an ORT format file is never optimized"  # noqa: S101 - an invariant
            self.saved = save_basic(self.subject.loaded, self.folder)
        return self.saved

    def _view(self, model: "ModelProto", read: "Reader") -> Graph:
        from pipeline.partition.onnx_view import view

        outside = self.subject.loaded.outside if self.subject.loaded else None
        return view(
            model, read=read, saved=lambda: body_types(model, self.folder, self.warnings.append), outside=outside
        )

    def _graph(self, model: "ModelProto", read: "Reader") -> Graph:
        """The graph of a model of which several providers are asked."""
        if id(model) not in self.graphs:
            self.graphs[id(model)] = model, unique_dq(self._view(model, read))
        return self.graphs[id(model)][1]

    def _ort_view(self) -> Graph:
        """An ORT format file is shown as it is; nothing in it is inlined any more."""
        from pipeline.partition.ort_view import view_of_file

        return unique_dq(view_of_file(self.subject.path))


def open_views(source: SourceModel, optimize: Optimize, folder: Path, sizes: Mapping[str, int]) -> Views:
    """Load a model for judging, with sizes for its dynamic dimensions; errors as `open_subject`."""
    return Views(subject=open_subject(source, folder, sizes), optimize=optimize, folder=folder)


def judge_views(views: Views, settings: Settings) -> ModelAnswer:
    """One provider's answer; ModelError for what the rules or ONNX Runtime cannot read."""
    shown, shipped = views.of(settings)
    loaded = views.subject.loaded
    if loaded:
        check_computed(loaded, shown, views.subject.source.name)
    provider_claim = claim(shown, settings)
    return _answer(views, settings, shown, provider_claim, predict_load(shipped, shown, provider_claim, settings))


def _with_sizes(views: Views, answer: ModelAnswer, settings: Settings) -> SizedAnswer | None:
    """What likely sizes for the dynamic dimensions that are left would give; None where nothing is left to gain."""
    if not answer.dynamic or answer.claimed == answer.nodes or views.subject.loaded is None:
        return None
    try:
        sizes = next(likely_sizes(views.subject.loaded, {}), None)
        if sizes is None:
            return None
        with scratch_folder(views.subject.source) as folder:
            loaded = resized(views.subject.loaded, sizes, folder)
            subject = replace(views.subject, path=loaded.path, loaded=loaded)
            fixed = judge_views(Views(subject=subject, optimize=views.optimize, folder=folder), settings)
    except PipelineError:
        return None
    return SizedAnswer(
        sizes=sizes, nodes=fixed.nodes, claimed=fixed.claimed, partitions=len(fixed.partitions), load=fixed.load
    )


def failed_answer(request: PartitionRequest, error: PipelineError | None) -> ModelAnswer:
    """The answer where nothing is known but what went wrong."""
    text, remedy = reason_of(error)
    return ModelAnswer(
        path=request.source.name,
        ep=request.settings.provider,
        ort_release=str(Release(*request.settings.ort_release)),
        rules_release=str(rules_of(request.settings.ort_release)),
        error=text,
        remedy=remedy,
    )


def reason_of(error: PipelineError | None) -> tuple[str, str | None]:
    """The texts of an error in an answer: what and why, and the remedy."""
    if error is None:
        return "no answer", None
    return error.reason, error.remedy or None


def _answer(views: Views, settings: Settings, graph: Graph, provider_claim: Claim, load: LoadForecast) -> ModelAnswer:
    import onnxruntime

    loaded = views.subject.loaded
    return ModelAnswer(
        path=views.subject.source.name,
        ep=settings.provider,
        ort_release=str(Release(*settings.ort_release)),
        rules_release=str(rules_of(settings.ort_release)),
        nodes=len(graph.nodes),
        claimed=len(provider_claim.claimed),
        partitions=provider_claim.names(),
        subgraphs=tuple(_body_claims(graph, settings)),
        decisions=tuple(_decisions(graph, provider_claim)),
        cuts=cuts(graph, settings, provider_claim),
        operators=operator_gains(graph, settings, provider_claim),
        load=load,
        dynamic=dynamic_names(loaded.proto) if loaded else (),
        shapes_from=onnxruntime.__version__,
        warnings=(
            *dict.fromkeys(views.warnings),
            *processor_warnings(graph, settings, optimized_there=loaded is not None),
            *settings.warnings,
        ),
    )


def _body_claims(graph: Graph, settings: Settings) -> Iterable[BodyClaim]:
    for owner, body in bodies(graph):
        body_claim = claim(body, settings)
        if body_claim.groups:
            yield BodyClaim(owner=owner.first_output, partitions=body_claim.names())


def _decisions(graph: Graph, provider_claim: Claim) -> Iterable[Decision]:
    """One decision for each node of the main graph, in the order of their indices."""
    group_of = {node.index: position for position, group in enumerate(provider_claim.groups) for node in group}
    for index, node in graph.nodes.items():
        yield _decision(node, group_of.get(index), provider_claim.refusals.get(index))


def _decision(node: Node, group: int | None, refusal: Refusal | None) -> Decision:
    refused = refusal if group is None else None
    return Decision(
        name=node.name,
        op_type=node.op_type,
        domain=node.domain,
        since_version=node.since_version,
        inputs=node.inputs,
        outputs=node.outputs,
        claimed=group is not None,
        partition=group,
        code=refused.code if refused else None,
        reason=refused.text if refused else None,
        remedy=(refused.remedy or None) if refused else None,
    )


def judge_paths(
    paths: Sequence[str | Path],
    settings: Settings | Sequence[Settings],
    optimize: Optimize,
    *,
    sizes: Mapping[str, int] = NO_SIZES,
    processes: int = 1,
) -> Iterator[ModelAnswer]:
    """An answer for every model under files, folders and archives, in that order; `error` is set where there is none.

    With several settings all answers of the first come first. `sizes` are for dynamic dimensions. ConfigError when a
    path does not exist or holds no model.
    """
    sources = find_models(paths, SUFFIXES)
    asked = (settings,) if isinstance(settings, Settings) else settings
    requests = [
        PartitionRequest(source=source, settings=wanted, optimize=optimize, sizes=dict(sizes), likely=True)
        for wanted in asked
        for source in sources
    ]
    tasks = [
        Task(label=request.source.name, request=request, memory_bytes=needed_bytes(source_bytes(request.source)))
        for request in requests
    ]
    waiting: dict[tuple[SourceModel, Settings], ModelAnswer] = {}
    outstanding = iter([(request.source, request.settings) for request in requests])
    expected = next(outstanding, None)
    for outcome in run_tasks(judge, ModelAnswer, tasks, processes=processes, timeout_seconds=TIMEOUT_SECONDS):
        request = outcome.task.request
        waiting[request.source, request.settings] = outcome.value or failed_answer(request, outcome.error)
        while expected in waiting:
            yield waiting.pop(expected)
            expected = next(outstanding, None)
