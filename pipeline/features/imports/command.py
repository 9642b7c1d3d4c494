"""`ort-mobile import`: a trained model as ONNX, compared with its framework."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli import command as cli_command
from pipeline.cli import outputs as cli_outputs
from pipeline.cli.outputs import Outputs

if TYPE_CHECKING:
    from pipeline.check.compare import OutputCheck
    from pipeline.features.imports.job import ImportReport
    from pipeline.report import wording


@click.command(
    "import",
    cls=cli_command.Command,
    examples=(
        "ort-mobile import train:model my.onnx",
        "ort-mobile import my.pt2 my.onnx --opset 20",
    ),
)
@click.argument("source")
@click.argument("output", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--opset", type=click.IntRange(7), help="ONNX opset.  [default: the exporter's own]")
@click.option("--check/--no-check", default=True, help="Compare with what the framework computes.")
@cli_outputs.json_option
def import_model(source: str, output: Path, opset: int | None, check: bool, outputs: Outputs) -> None:
    """Export a trained model SOURCE to the ONNX file OUTPUT.

    SOURCE is MODULE:FUNCTION, which gives a PyTorch module or a scikit-learn estimator with example inputs, or a file:
    .pt2 (PyTorch), .tflite, .keras, .h5, a SavedModel folder or FOLDER:SIGNATURE (TensorFlow). OUTPUT is written only
    when its outputs are those of the framework: on the example, on random inputs like it, on other sizes of dynamic
    dimensions. Needs the extra of its framework: torch, sklearn, boosting (LightGBM, XGBoost) or tensorflow.
    """
    import msgspec

    from pipeline.features.imports.job import import_source, refuse_failed

    report = import_source(source, output, opset=opset, check=check)
    outputs.write_json({"output": str(output), **msgspec.to_builtins(report)})
    if outputs.text:
        from pipeline.report import show as terminal

        terminal.show(_parts(report, output))
        for note in report.notes:
            click.echo(f"warning: {note}", err=True)
    refuse_failed(report)


def _outputs(checks: "Sequence[OutputCheck]") -> str:
    """How a row's outputs compare, with what is to be known of those that were not shown to be wrong."""
    from pipeline.report import wording

    reasons = dict.fromkeys(check.reason for check in checks if check.reason and not check.failed)
    return "; ".join((wording.outputs(checks), *reasons))


def _parts(report: "ImportReport", output: Path) -> "Iterator[wording.Part]":
    """What it became, and a row for each input that both were run on."""
    from pipeline.check import compare as output_compare
    from pipeline.core import groups as counting
    from pipeline.report import wording

    rows = tuple(
        (
            comparison.inputs,
            ", ".join(f"{name}={size}" for name, size in comparison.sizes.items()) or wording.DASH,
            f"the framework refuses them: {comparison.refused}" if comparison.refused else _outputs(comparison.checks),
        )
        for comparison in report.compared
    )
    if rows:
        yield wording.Listing(title="", head=("inputs", "sizes", "outputs"), rows=rows)
        judged = [comparison.checks for comparison in report.compared if not comparison.refused]
        passed = sum(all(check.passed for check in checks) for checks in judged)
        unknown = sum(output_compare.sound(checks) and any(check.unknown for check in checks) for checks in judged)
        tail = f", {unknown} not judged" if unknown else ""
        yield wording.Line(f"{passed} of {len(judged)} give the outputs of {report.framework}{tail}")
    if not report.failed:
        takes = ", ".join(report.inputs)
        yield wording.Line(
            f"{output}: {counting.counted(report.nodes, 'node')}, opset {report.opset}, "
            f"{wording.size(report.size_bytes)}, "
            f"takes {takes}"
        )
