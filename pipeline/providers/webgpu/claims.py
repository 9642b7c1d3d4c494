"""What WebGPU answers about a model: its claims, and what a session of what ships runs into."""

from collections.abc import Iterator

import msgspec

from pipeline.core.errors import ModelError
from pipeline.model import edit as onnx_edit
from pipeline.partition.answer import MOST_COPIES, LoadForecast, Settings
from pipeline.partition.claiming import claim as kept_claim
from pipeline.partition.claiming import copies_of
from pipeline.partition.graph import Graph, bodies
from pipeline.partition.provider_claims import FileRun, LibraryLog, ModelRun, NodeCopies, ProviderClaims
from pipeline.partition.subject import Views
from pipeline.providers.webgpu.copies import with_copies
from pipeline.providers.webgpu.kernels import TABLE, claim, copies, estimated, forecast, unknown_names
from pipeline.providers.webgpu.library import read_log, session_entries
from pipeline.providers.webgpu.runs import OF_QUANTIZED, moved, run_findings


def _copies_much(graph: Graph, settings: Settings) -> bool:
    """Whether copies alone speak against the provider."""
    return (copies_of(graph, settings, kept_claim(graph, settings).claimed) or 0) > MOST_COPIES


def _forecast_of_run(run: ModelRun) -> LoadForecast:
    """The forecast of a session that is made, with the first reason why it does not run what ships."""
    where, ort_format = run.views.source.name, run.views.loaded is None
    told = run_findings(FileRun(graph=run.ships, settings=run.settings, where=where, ort_format=ort_format))
    if _copies_much(run.ships, run.settings):
        told = (finding for finding in told if finding.code != OF_QUANTIZED)  # the copies say it
    problem = next(told, None)
    if problem is None or not any(run.load.rounds):  # what takes nothing fails at nothing
        return run.load
    return msgspec.structs.replace(run.load, code=problem.code, error=problem.what, remedy=problem.remedy, at_run=True)


def _in_ort_format(run: ModelRun) -> Iterator[str]:
    """What an ONNX file runs with in WebGPU's layout, and a file in ORT format with the same copies does not."""
    if run.views.loaded and not _copies_much(run.ships, run.settings):
        for problem in moved(run.ships, run.settings):
            yield f"in ORT format: {problem.what}; {problem.remedy}"


def _check_names(views: Views, shown: Graph, settings: Settings) -> None:
    """ModelError for a name of forceCpuNodeNames that no node of the file has."""
    if not settings.webgpu.cpu_nodes:
        return
    inside = (shown, *(body for _, body in bodies(shown)))
    nodes = (
        onnx_edit.all_nodes(views.loaded.proto.graph)
        if views.loaded
        else (node for graph in inside for node in graph.nodes.values())
    )
    names, remedy = unknown_names(settings, (node.name for node in nodes))
    if names:
        raise ModelError(
            f"forceCpuNodeNames names {names}, and the model has no such node",
            where=views.source.name,
            why="WebGPU ignores such a name",
            remedy=remedy,
        )


CLAIMS = ProviderClaims(
    claim=claim,
    forecast=forecast,
    table=TABLE,
    copies=NodeCopies(count=copies, estimated=estimated, written=with_copies),
    check=_check_names,
    at_run=_forecast_of_run,
    run_findings=run_findings,
    warnings=_in_ort_format,
    library_log=LibraryLog(entries=session_entries, read=read_log),
)
