"""`ort-mobile diff`, and `convert --show-changes`."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli import command as cli_command
from pipeline.cli import outputs as cli_outputs
from pipeline.cli.outputs import Outputs

if TYPE_CHECKING:
    from pipeline.convert import command_job
    from pipeline.features.diff.changes import GraphDiff
    from pipeline.features.diff.graph import FileGraph
    from pipeline.model.sources import SourceModel
    from pipeline.report import wording

MOST_ROWS = 40
"""Rows of a table: the JSON has all."""


@click.command(cls=cli_command.Command, examples=("ort-mobile diff my.onnx out/my.all-fixed.ort --svg changes.svg",))
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option(
    "--svg", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Draw both graphs side by side."
)
@cli_outputs.json_option
def diff(a: str, b: str, svg: Path | None, outputs: Outputs) -> None:
    """Show what changed from model file A to B, each an .onnx or .ort file.

    Nodes that are gone, new and changed, and which of ONNX Runtime's optimizers explains it, with its level. Nodes are
    the same where operator and outputs are, or all that leads to them; Constant nodes count as constants.
    """
    from pipeline.features.diff.changes import diff_graphs
    from pipeline.features.diff.drawing import draw_diff
    from pipeline.features.diff.graph import read_graph

    sources = [_one_model(path) for path in (a, b)]
    before, after = map(read_graph, sources)
    change_set = diff_graphs(before, after)
    if svg:
        from pipeline.core import files as storage

        names = (Path(sources[0].name).name, Path(sources[1].name).name)
        storage.write_text(svg, draw_diff(before, after, change_set, names))

    def nodes(graph: "FileGraph", places: Iterable[int]) -> list[dict[str, str]]:
        return [{"name": graph.nodes[place].label, "operator": graph.nodes[place].operator} for place in places]

    document = {
        "a": a,
        "b": b,
        "nodes_a": len(before.nodes),
        "nodes_b": len(after.nodes),
        "same": change_set.same,
        "regions": [
            {"by": list(by), "gone": nodes(before, gone), "new": nodes(after, new)}
            for gone, new, by in change_set.regions
        ],
        "changed": [{**nodes(before, [index])[0], "what": list(what)} for index, _, what in change_set.changed],
        "recorded": change_set.recorded,
    }
    outputs.finish(document, diff_parts(a, b, before, after, change_set))


def _one_model(path: str) -> "SourceModel":
    from pipeline.core.errors import ConfigError
    from pipeline.model import sources as model_sources

    models = model_sources.find_models([path], (".onnx", ".ort"))
    if len(models) > 1:
        raise ConfigError("one model at a time", where=path, why=f"{len(models)} are there", remedy="name one of them")
    return models[0]


def diff_parts(
    a: str, b: str, before: "FileGraph", after: "FileGraph", change_set: "GraphDiff"
) -> "Iterator[wording.Part]":
    """The change in a line, regions that are alike in one row, and nodes that have other attributes or constants."""
    from pipeline.report import wording

    lost = sum(len(gone) for gone, _, _ in change_set.regions)
    added = sum(len(new) for _, new, _ in change_set.regions)
    yield wording.Line(
        f"{a} → {b}: {len(before.nodes)} → {len(after.nodes)} nodes: {lost} gone, {added} new, "
        f"{len(change_set.changed)} changed, {change_set.same} the same"
    )
    if not (change_set.regions or change_set.changed or change_set.recorded):
        yield wording.Line("no node differs")
    alike = Counter(
        (
            _operators(before.nodes[index].operator for index in gone),
            _operators(after.nodes[index].operator for index in new),
            ", ".join(by) or "-",
        )
        for gone, new, by in change_set.regions
    )
    if alike:
        rows = tuple((*row, str(count)) for row, count in alike.most_common(MOST_ROWS))
        yield wording.Listing(title="", head=("gone", "new", "by", "times"), rows=rows, right=("times",))
        yield from _more(len(alike))
    if change_set.changed:
        changes = tuple(
            (before.nodes[index].label, before.nodes[index].operator, "; ".join(what))
            for index, _, what in change_set.changed[:MOST_ROWS]
        )
        yield wording.Listing(title="", head=("changed", "operator", "what"), rows=changes)
        yield from _more(len(change_set.changed))
    for text, count in change_set.recorded.items():
        yield wording.Line(f"recorded for the device, which applies it when it loads the file: {text} ({count})")


def _more(count: int) -> "Iterator[wording.Part]":
    from pipeline.report import wording

    if count > MOST_ROWS:
        yield wording.Line(f"and {count - MOST_ROWS} more rows: --json has them all")


def _operators(names: Iterable[str]) -> str:
    """As in `Conv, Add, Relu` or `Conv 3, Relu 2`; a dash for none."""
    counts = Counter(names)
    return ", ".join(f"{name} {count}" if count > 1 else name for name, count in counts.items()) or "-"


def convert_options() -> list[click.Parameter]:
    """The option of `convert`."""
    text = "Show which nodes each artifact has lost and gained, and by which optimizer."
    return [click.Option(["--show-changes"], is_flag=True, help=text)]


def convert_changes(report: "command_job.ConversionJob") -> "Iterator[wording.Part]":
    """What became of each model in each artifact; equal files are shown once."""
    from pipeline.features.diff.changes import diff_graphs
    from pipeline.features.diff.graph import read_graph

    for converted in report.converted:
        files: dict[str, list[str]] = {}
        paths = {}
        for artifact in converted.artifacts:
            files.setdefault(artifact.sha256, []).append(artifact.variant.name)
            paths[artifact.sha256] = report.output / artifact.file
        before = read_graph(converted.model.source) if files else None
        for digest, variants in files.items():
            if before:
                after = read_graph(_one_model(str(paths[digest])))
                names = converted.model.name, ", ".join(variants)
                yield from diff_parts(*names, before, after, diff_graphs(before, after))
