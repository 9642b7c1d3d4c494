"""`ort-mobile accuracy`: what a changed model has lost, beside the model that it was made from."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from pipeline.cli.command import Command
from pipeline.cli.data_options import data_options, dimension_option, labels_option, sample_options
from pipeline.cli.options import progress
from pipeline.cli.outputs import Outputs, json_option
from pipeline.core import providers as provider_rules

if TYPE_CHECKING:
    from pipeline.dataset import Dataset


@click.command(
    cls=Command,
    examples=("ort-mobile accuracy int8.onnx --reference my.onnx --test-data samples --max-drop 0.01",),
)
@click.argument("paths", nargs=-1, required=True, metavar="MODEL...")
@click.option("--reference", required=True, metavar="ORIGINAL", help="The .onnx file that the models were made from.")
@data_options
@sample_options
@labels_option("CSV file with a line `file,label` for each sample.")
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
    "--metric",
    metavar="NAME",
    help="top-1, top-5, f1, map, miou, wer, cer, agreement, r2, equal, cosine, psnr, sqnr, max-error or "
    "module:function.  [default: top-1 with labels; for outputs without, agreement of scores of classes, equal of "
    "whole numbers and texts, else r2]",
)
@click.option("--model-output", metavar="NAME", help="The only output that is judged.  [default: every one]")
@click.option("--vocabulary", metavar="FILE", help="For wer and cer: the symbol of each class, one a line.")
@click.option(
    "--max-drop",
    type=click.FloatRange(0, 1),
    help="Largest drop from ORIGINAL, as in 0.01; exit code 4 where a larger one is not excluded.",
)
@json_option
def accuracy(
    paths: tuple[str, ...],
    reference: str,
    data: "Dataset",
    dimensions: dict[str, int],
    ep: str,
    chip: str,
    metric: str | None,
    model_output: str | None,
    max_drop: float | None,
    vocabulary: str | None,
    outputs: Outputs,
) -> None:
    """Measure the accuracy of .onnx and .ort files beside the model that they were made from.

    Each MODEL and ORIGINAL run over the same samples on this computer's CPU. The drop has an interval that holds at
    95 %; with --max-drop a model passes only when the interval excludes a larger drop, and the table says how many
    samples would tell where these do not. Every output is judged, the worst decides; without labels, by ORIGINAL's.
    Below 10 dB from it a model passes only with a budget that allows it.
    """
    import msgspec

    from pipeline import config as configs
    from pipeline.accuracy import evaluate
    from pipeline.cli.main import show_error
    from pipeline.core import errors as core_errors
    from pipeline.core.errors import ConfigError
    from pipeline.model import sources as model_sources
    from pipeline.report import accuracies

    if not data.test_data:
        raise ConfigError(
            "accuracy is measured on test data",
            where="--test-data",
            why="random inputs show nothing of it",
            remedy="give a folder of samples, an .npz file with inputs and labels, or module:function",
        )
    asked = configs.AccuracyConfig(metric=metric, max_drop=max_drop, output=model_output, vocabulary=vocabulary)
    (original, *_) = model_sources.find_models([reference])
    models = [source.path for source in model_sources.find_models(paths, (".onnx", ".ort"))]
    chip = _npu(ep, chip, models)
    requests = [
        evaluate.AccuracyRequest(
            model=path, reference=original, data=data, dimensions=dimensions, chip=chip, accuracy=asked
        )
        for path in models
    ]
    outcomes = evaluate.measure_accuracy(requests, progress())
    results = [outcome.value for outcome in outcomes if outcome.value]
    errors = [outcome.error for outcome in outcomes if outcome.error]
    if not results and errors:
        raise errors[0]
    for error in errors:
        show_error(error)
    code = core_errors.ExitCode.SOME_FAILED if errors else core_errors.ExitCode.DONE
    outputs.finish(
        {
            "reference": reference,
            "models": [
                {"model": outcome.task.label, "error": str(outcome.error), "remedy": outcome.error.remedy}
                if outcome.error
                else msgspec.to_builtins(outcome.value)
                for outcome in outcomes
            ],
        },
        accuracies.accuracy_parts(results),
        code=core_errors.ExitCode.CHECK_FAILED if any(result.refused for result in results) else code,
        failed=(accuracies.refusal_text(result) for result in results if result.refused),
    )


def _npu(ep: str, chip: str, models: Sequence[str]) -> str:
    """The name of the chip whose NPU is simulated, "" for the CPU; raises for what no simulator runs."""
    from device_runner import providers as runner_providers
    from pipeline.core.errors import ConfigError
    from pipeline.partition import kept

    if not provider_rules.of_chips(ep):
        if chip:
            raise click.UsageError("--chip is for qnn: add --ep qnn")
        return ""
    if not chip:
        remedy = "name one with --chip, such as SM8650"
        raise ConfigError("what an NPU computes depends on the chip, and none is named", remedy=remedy)
    if wrong := next((path for path in models if path.lower().endswith(".ort")), ""):
        raise ConfigError(
            "the simulator runs no ORT format files",
            where=wrong,
            remedy="name the ONNX model that the file was made from",
        )
    kept.compiler_name()
    return runner_providers.chip_named(chip).name
