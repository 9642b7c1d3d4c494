"""Judges one model for one provider: the answer of `ort-mobile partition`."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pipeline.core.releases import Release, rules_of
from pipeline.errors import PipelineError
from pipeline.guards import check_constants, computed_constants, shaped_bytes
from pipeline.model_sources import SourceModel
from pipeline.onnx_model import LoadedModel
from pipeline.partition.answer import BodyClaim, Decision, LoadForecast, ModelAnswer, Optimize, Refusal, Settings
from pipeline.partition.basic import save_basic, undone_for_provider
from pipeline.partition.claim import Claim, bodies, claim
from pipeline.partition.cuts import cuts
from pipeline.partition.graph import DTYPES, Graph, Node
from pipeline.partition.inlining import before_partitioning
from pipeline.partition.load import Shipped, foresee
from pipeline.partition.subject import Subject, body_types, open_subject, tensor_reader
from pipeline.partition.unique_dq import unique_dq

if TYPE_CHECKING:
    from onnx import ModelProto

    from pipeline.partition.onnx_view import Reader


class PartitionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One question: this model, this provider with its settings, the file as it stands or after level basic."""

    source: SourceModel
    settings: Settings
    optimize: Optimize = Optimize.NONE


def judge(request: PartitionRequest) -> ModelAnswer:
    """The answer for one model; what is wrong with the model stands in the answer's `error`."""
    try:
        with tempfile.TemporaryDirectory(prefix="ort-mobile-", dir=_fast_place(request.source)) as folder:
            return _judge(request, Path(folder))
    except PipelineError as error:
        return failed_answer(request, error)


IN_MEMORY = Path("/dev/shm")  # noqa: S108 - folders in it are made by tempfile, with names of their own
IN_MEMORY_BYTES = 16 << 20


def _fast_place(source: SourceModel) -> Path | None:
    """Where small models are spooled: making and removing a folder on a disk takes longer than judging one of them."""
    small = Path(source.path).is_file() and Path(source.path).stat().st_size <= IN_MEMORY_BYTES
    return IN_MEMORY if small and os.access(IN_MEMORY, os.W_OK) else None


def _judge(request: PartitionRequest, work_folder: Path) -> ModelAnswer:
    subject = open_subject(request.source, work_folder)
    shown, shipped = (
        _ort_views(subject) if subject.loaded is None else _onnx_views(subject.loaded, request, work_folder)
    )
    if subject.loaded:
        _check_constants(subject.loaded, shown, request.source.name)
    found = claim(shown, request.settings)
    return _answer(request, shown, found, foresee(shipped, shown, found, request.settings))


def _check_constants(loaded: LoadedModel, shown: Graph, where: str) -> None:
    """ModelError for constants that no phone could compute when it loads the model."""
    codes = {name: code for code, name in DTYPES.items()}

    def size_of(name: str) -> int:
        value = shown.value(name)
        return shaped_bytes(codes.get(value.dtype or "", 0), [dim or 0 for dim in value.shape or (0,)])

    check_constants(computed_constants(loaded.proto.graph), size_of, where)


def _ort_views(subject: Subject) -> tuple[Graph, Shipped]:
    """An ORT format file is shown as it is; nothing in it is inlined any more."""
    from pipeline.partition.ort_view import view_of_file

    graph = unique_dq(view_of_file(subject.path))
    return graph, Shipped(graph=graph, model=None, view=lambda _: graph)


def _onnx_views(loaded: LoadedModel, request: PartitionRequest, work_folder: Path) -> tuple[Graph, Shipped]:
    """What the provider is shown, and the file that ships: at level none the same."""
    from pipeline.partition.onnx_view import view

    def look(model: "ModelProto", read: "Reader") -> Graph:
        return view(model, read=read, saved=lambda: body_types(model, work_folder), outside=loaded.outside)

    read = tensor_reader(loaded)
    model = before_partitioning(loaded.proto, lambda model: look(model, read), request.settings)
    if request.optimize is Optimize.NONE:
        graph = unique_dq(look(model, read))
        return graph, Shipped(graph=graph, model=model, view=lambda model: look(model, read))
    saved = save_basic(loaded, work_folder)
    read = tensor_reader(saved)
    ships = Shipped(graph=unique_dq(look(saved.proto, read)), model=saved.proto, view=lambda model: look(model, read))
    shown = undone_for_provider(saved.proto, model)
    return (ships.graph if shown is None else unique_dq(look(shown, read))), ships


def failed_answer(request: PartitionRequest, error: PipelineError | None) -> ModelAnswer:
    """The answer where nothing is known but what went wrong."""
    text = "; ".join(part for part in (error.what, error.why) if part) if error else "no answer"
    return ModelAnswer(
        path=request.source.name,
        ep=request.settings.provider.value,
        ort_release=str(Release(*request.settings.ort_release)),
        rules_release=str(rules_of(request.settings.ort_release)),
        error=text,
        remedy=(error.remedy or None) if error else None,
    )


def _answer(request: PartitionRequest, graph: Graph, found: Claim, load: LoadForecast) -> ModelAnswer:
    return ModelAnswer(
        path=request.source.name,
        ep=request.settings.provider.value,
        ort_release=str(Release(*request.settings.ort_release)),
        rules_release=str(rules_of(request.settings.ort_release)),
        nodes=len(graph.nodes),
        claimed=len(found.claimed),
        partitions=found.names(),
        subgraphs=tuple(_body_claims(graph, request.settings)),
        decisions=tuple(_decisions(graph, found)),
        cuts=cuts(graph, request.settings, found),
        load=load,
        shapes_from=_shapes_from(),
    )


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
        inputs=node.inputs,
        outputs=node.outputs,
        claimed=group is not None,
        partition=group,
        code=refused.code if refused else None,
        reason=refused.text if refused else None,
        remedy=(refused.remedy or None) if refused else None,
    )
