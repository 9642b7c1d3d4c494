"""Judges one model for one provider: the answer of `ort-mobile partition`."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec

from pipeline.errors import PipelineError
from pipeline.model_sources import SourceModel
from pipeline.partition.answer import BodyClaim, Decision, LoadForecast, ModelAnswer, Optimize, Refusal, Settings
from pipeline.partition.claim import Claim, bodies, claim
from pipeline.partition.cuts import cuts
from pipeline.partition.graph import Graph, Node
from pipeline.partition.inlining import before_partitioning
from pipeline.partition.subject import Subject, body_types, open_subject, tensor_reader
from pipeline.partition.unique_dq import unique_dq


class PartitionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One question: this model, this provider with its settings, the file as it stands or after level basic."""

    source: SourceModel
    settings: Settings
    optimize: Optimize = Optimize.NONE


def judge(request: PartitionRequest) -> ModelAnswer:
    """The answer for one model; what is wrong with the model stands in the answer's `error`."""
    try:
        with tempfile.TemporaryDirectory(prefix="ort-mobile-") as folder:
            return _judge(request, Path(folder))
    except PipelineError as error:
        return failed_answer(request, error)


def _judge(request: PartitionRequest, work_folder: Path) -> ModelAnswer:
    subject = open_subject(request.source, work_folder)
    graph = unique_dq(_view(subject, work_folder, request))
    found = claim(graph, request.settings)
    return _answer(request, graph, found)


def _view(subject: Subject, work_folder: Path, request: PartitionRequest) -> Graph:
    if subject.loaded is None:
        from pipeline.partition.ort_view import view_of_file

        return view_of_file(subject.path)
    from pipeline.partition.onnx_view import view

    loaded = subject.loaded
    read = tensor_reader(loaded)
    model = before_partitioning(loaded.proto, lambda model: view(model, read=read), request.settings)
    if request.optimize is Optimize.BASIC:
        from pipeline.partition.basic import save_basic, undo_for_provider

        saved = save_basic(loaded, work_folder)
        undo_for_provider(saved.proto, model)
        read, model = tensor_reader(saved), saved.proto
    return view(model, read=read, saved=lambda: body_types(model, work_folder))


def _release(settings: Settings) -> str:
    return ".".join(str(part) for part in settings.ort_release)


def failed_answer(request: PartitionRequest, error: PipelineError | None) -> ModelAnswer:
    """The answer where nothing is known but what went wrong."""
    text = "; ".join(part for part in (error.what, error.why) if part) if error else "no answer"
    return ModelAnswer(
        path=request.source.name,
        ep=request.settings.provider.value,
        ort_release=_release(request.settings),
        error=text,
        remedy=(error.remedy or None) if error else None,
    )


def _answer(request: PartitionRequest, graph: Graph, found: Claim) -> ModelAnswer:
    return ModelAnswer(
        path=request.source.name,
        ep=request.settings.provider.value,
        ort_release=_release(request.settings),
        nodes=len(graph.nodes),
        claimed=len(found.claimed),
        partitions=found.names(),
        subgraphs=tuple(_body_claims(graph, request.settings)),
        decisions=tuple(_decisions(graph, found)),
        cuts=cuts(graph, request.settings, found),
        load=_load(found),
        shapes_from=_shapes_from(),
    )


def _load(found: Claim) -> LoadForecast:
    if found.fatal is not None:
        return LoadForecast(error=found.fatal.text, remedy=found.fatal.remedy or None)
    return LoadForecast(partitions=len(found.groups))


def _shapes_from() -> str:
    import onnxruntime

    return f"onnxruntime {onnxruntime.__version__}"


def _body_claims(graph: Graph, settings: Settings) -> Iterable[BodyClaim]:
    for owner, body in bodies(graph):
        found = claim(body, settings)
        if found.groups:
            yield BodyClaim(owner=owner.first_output, partitions=found.names())


def _decisions(graph: Graph, found: Claim) -> Iterable[Decision]:
    """One decision for each node of the main graph, in the order of their indices."""
    group_of = {node.index: position for position, group in enumerate(found.groups) for node in group}
    for index, node in graph.nodes.items():
        yield _decision(node, group_of.get(index), found.refusals.get(index))


def _decision(node: Node, group: int | None, refusal: Refusal | None) -> Decision:
    refused = refusal if group is None else None
    return Decision(
        name=node.name,
        op_type=node.op_type,
        domain=node.domain,
        since_version=node.since_version,
        outputs=node.outputs,
        claimed=group is not None,
        partition=group,
        code=refused.code if refused else None,
        reason=refused.text if refused else None,
        remedy=(refused.remedy or None) if refused else None,
    )
