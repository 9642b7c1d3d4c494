"""The graph that a library is asked about: as our rules see it, its nodes named so that answers can be compared."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pipeline.core.errors import ModelError
from pipeline.model.onnx_model import LoadedModel, keep_only, subgraphs
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import Optimize, Settings
from pipeline.partition.basic import save_basic, undone_for_provider
from pipeline.partition.functions import before_partitioning
from pipeline.partition.input import body_types, open_subject, tensor_reader, write_model

if TYPE_CHECKING:
    from onnx import ModelProto

    from pipeline.partition.graph import Graph

EXTERNAL_SINCE = (1, 23)
"""Providers before refuse weights that lie in other files than the model (ep_rules A.4)."""


class ShowRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A model with sizes for its dynamic dimensions, and where its graph goes, as it stands or after level basic.

    The file's folder is for scratch too.
    """

    source: SourceModel
    settings: Settings
    optimize: Optimize
    target: str
    sizes: dict[str, int] = {}


class ShownGraph(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the file was written; `error` says why not."""

    error: str = ""


def show(request: ShowRequest) -> ShownGraph:
    """Write the model with its weights inside and each node of the main graph named after its first output."""
    try:
        _show(request)
    except ModelError as error:
        return ShownGraph(error=error.reason)
    return ShownGraph()


def _show(request: ShowRequest) -> None:
    target = Path(request.target)
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        loaded = open_subject(request.source, Path(name), request.sizes).loaded
        if loaded is None:
            raise ModelError(
                "an ORT format file cannot be shown to a library",
                where=request.source.name,
                why="it reports its claims of ONNX models only",
                remedy="give the ONNX model that the file was made from",
            )
        if request.optimize is Optimize.BASIC:
            loaded = _after_basic(loaded, request.settings, Path(name))
        write_model(loaded, target, named=True, external=request.settings.ort_release >= EXTERNAL_SINCE)


def _after_basic(loaded: LoadedModel, settings: Settings, folder: Path) -> LoadedModel:
    """As `judge` shows it to the rules."""
    from pipeline.partition.onnx_view import view

    read = tensor_reader(loaded)

    def look(model: "ModelProto") -> "Graph":
        return view(model, read=read, saved=lambda: body_types(model, folder), outside=loaded.outside)

    before = before_partitioning(loaded.proto, look, settings)
    saved = save_basic(loaded, folder)
    proto = undone_for_provider(saved.proto, before) or saved.proto
    _forget_unused_domains(proto)
    return replace(saved, proto=proto)


def _forget_unused_domains(proto: "ModelProto") -> None:
    """A saved model imports every domain that the installed onnxruntime knows, at versions that older ones refuse."""
    used = {node.domain for graph in subgraphs(proto.graph) for node in graph.node}
    used |= {node.domain for function in proto.functions for node in function.node}
    keep_only(proto.opset_import, lambda one: one.domain in used or one.domain in {"", "ai.onnx"})
