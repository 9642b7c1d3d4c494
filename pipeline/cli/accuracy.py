"""`ort-mobile accuracy`: how much of a model's accuracy is left in other files of it."""

from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.command import Command
from pipeline.cli.options import data_options, dataset_from, dimension_option, progress, sample_options
from pipeline.cli.outputs import Outputs, json_option

if TYPE_CHECKING:
    from pipeline.accuracy.evaluate import AccuracyRequest
    from pipeline.accuracy.result import AccuracyResult
    from pipeline.core.workers import TaskOutcome


@click.command(cls=Command)
@click.argument("paths", nargs=-1, required=True, metavar="MODEL...")
@click.option("--reference", required=True, metavar="ORIGINAL", help="The .onnx file that the models were made from.")
@data_options
@sample_options
@click.option("--labels", metavar="FILE", help="CSV file with a line `file,label` for each sample.")
@dimension_option
@click.option(
    "--ep",
    type=click.Choice(["cpu", "qnn"]),
    default="cpu",
    show_default=True,
    help="Run the models on the CPU, or in the simulator of a Snapdragon's NPU; ORIGINAL on the CPU.",
)
@click.option(
    "--chip", metavar="CHIP", default="", help="With --ep qnn: whose NPU, by Build.SOC_MODEL, such as SM8650."
)
@click.option(
    "--metric", metavar="NAME",
    help="top-1, top-5, f1, map, miou, wer, cer, agreement, cosine, psnr, sqnr, max-error or module:function.  "
    "[default: top-1 with labels; without, agreement for scores of classes, else cosine]",
)  # fmt: skip
@click.option("--model-output", metavar="NAME", help="Output that the metric is computed from.  [default: the first]")
@click.option("--vocabulary", metavar="FILE", help="For wer and cer: the symbol of each class, one a line.")
@click.option(
    "--max-drop", type=click.FloatRange(0, 1),
    help="Largest drop from ORIGINAL, as in 0.01; exit code 4 where a larger one is not excluded.",
)  # fmt: skip
@json_option
def accuracy(
    paths: tuple[str, ...],
    reference: str,
    test_data: str | None,
    outputs: Outputs,
    **answers: Any,
) -> None:
    """Measure the accuracy of .onnx and .ort files beside the model that they were made from.

    Each MODEL and ORIGINAL run over the same samples on this computer's CPU. The drop has an interval that holds at
    95 %; with --max-drop a model passes only when the interval excludes a larger drop, and the table says how many
    samples would tell where these do not. Without labels, outputs are compared with those of ORIGINAL.
    """
    from pipeline.accuracy.evaluate import measure_accuracy
    from pipeline.core.errors import ConfigError
    from pipeline.report.layout import accuracy_parts, refusal_text

    if not test_data:
        raise ConfigError(
            "accuracy is measured on test data", where="--test-data", why="random inputs show nothing of it",
            remedy="give a folder of samples, an .npz file with inputs and labels, or module:function",
        )  # fmt: skip
    outcomes = measure_accuracy(_requests(paths, reference, test_data, answers), progress())
    results = [outcome.value for outcome in outcomes if outcome.value]
    if not results and outcomes[0].error:
        raise outcomes[0].error
    outputs.finish(
        {"reference": reference, "models": [_entry(outcome) for outcome in outcomes]}, accuracy_parts(results),
        code=_end(outcomes), failed=(refusal_text(result) for result in results if result.refused),
    )  # fmt: skip


def _requests(
    paths: tuple[str, ...], reference: str, test_data: str, answers: dict[str, Any]
) -> list["AccuracyRequest"]:
    from pipeline.accuracy.evaluate import AccuracyRequest
    from pipeline.config import AccuracyConfig
    from pipeline.model.sources import find_models

    data = dataset_from(
        test_data, answers["input_values"], preprocess=answers["preprocess"], part=answers["part"],
        samples=answers["samples"], labels=answers["labels"],
    )  # fmt: skip
    asked = AccuracyConfig(
        metric=answers["metric"], max_drop=answers["max_drop"], output=answers["model_output"],
        vocabulary=answers["vocabulary"],
    )  # fmt: skip
    (original, *_) = find_models([reference])
    sources = find_models(paths, (".onnx", ".ort"))
    chip = _chip(answers["ep"], answers["chip"], [source.path for source in sources])
    return [
        AccuracyRequest(
            model=source.path,
            reference=original,
            data=data,
            dimensions=answers["dimensions"],
            chip=chip,
            accuracy=asked,
        )
        for source in sources
    ]


def _chip(ep: str, named: str, models: list[str]) -> str:
    """The name of the chip that is simulated, "" for the CPU; errors for a chip without --ep qnn, and the reverse."""
    from device_runner.providers import chip_named
    from pipeline.core.errors import ConfigError
    from pipeline.partition.qnn.kept import compiler_name

    if ep != "qnn":
        if named:
            raise click.UsageError("--chip is for qnn: add --ep qnn")
        return ""
    if not named:
        remedy = "name one with --chip, such as SM8650"
        raise ConfigError("what an NPU computes depends on the chip, and none is named", remedy=remedy)
    if wrong := next((path for path in models if path.lower().endswith(".ort")), ""):
        raise ConfigError("the simulator runs no ORT format files", where=wrong,
                          remedy="name the ONNX model that the file was made from")  # fmt: skip
    compiler_name()
    return chip_named(named).name


def _entry(outcome: "TaskOutcome[AccuracyResult]") -> dict[str, Any]:
    import msgspec

    if outcome.error:
        return {"model": outcome.task.label, "error": str(outcome.error), "remedy": outcome.error.remedy}
    entry: dict[str, Any] = msgspec.to_builtins(outcome.value)
    return entry


def _end(outcomes: "list[TaskOutcome[AccuracyResult]]") -> int:
    """Report models that could not be measured, and give the exit code."""
    from pipeline.cli.main import show_error
    from pipeline.core.errors import ExitCode

    for outcome in outcomes:
        if outcome.error:
            show_error(outcome.error)
    if any(outcome.value and outcome.value.refused for outcome in outcomes):
        return ExitCode.CHECK_FAILED
    return ExitCode.SOME_FAILED if any(outcome.error for outcome in outcomes) else ExitCode.DONE
