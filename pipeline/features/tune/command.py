"""`ort-mobile tune`: searches for the best configuration of a model on devices."""

from pathlib import Path
from typing import Any

import click

from pipeline.cli.command import Command
from pipeline.cli.options import (
    config_options,
    data_options,
    dataset_from,
    devices_option,
    dimension_option,
    library_option,
    output_option,
    precision_option,
    progress,
    wait_option,
    with_given,
)
from pipeline.cli.outputs import Outputs, ci_options, json_option
from pipeline.cli.run import config_of_model, finish_job, resumable, with_overrides
from pipeline.config import TuneConfig

LIMITS = ("max_latency_ms", "max_p90_ms", "max_memory_mb", "max_size_mb")


@click.command(cls=Command)
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--model", type=click.Path(path_type=Path), help="Search for a model without a config.")
@output_option
@devices_option
@wait_option
@library_option
@config_options(TuneConfig, "minutes")
@config_options(TuneConfig, goals="goal")
@config_options(TuneConfig, *LIMITS, "strategy", "seed", "share_percent")
@click.option("--resume", is_flag=True, help="Resume the last interrupted search of this config.")
@click.option(
    "--blame", is_flag=True,
    help="Find the fewest options that crash a device, and skip them on such devices from now on (deny list).",
)  # fmt: skip
@data_options
@dimension_option
@precision_option
@click.option(
    "--max-drop", type=click.FloatRange(0, 1), metavar="N", help="Constraint: largest drop of accuracy, as 0.01."
)
@ci_options
@json_option
@click.pass_context
def tune(
    ctx: click.Context,
    /,
    config: Path | None,
    model: Path | None,
    output: Path | None,
    devices: tuple[str, ...],
    lease_seconds: float,
    library: str | None,
    resume: bool,
    blame: bool,
    test_data: str | None,
    input_values: dict[str, Any],
    dimensions: dict[str, int],
    precisions: tuple[str, ...],
    max_drop: float | None,
    outputs: Outputs,
    **settings: Any,
) -> None:
    """Search for the best artifact and session options for each device, as [tune] of CONFIG says or for one --model.

    A model of what was measured decides what is measured next; the last candidates race in rounds, and the winner is
    measured again beside the defaults in rounds that did not choose it. Every run is stored as it ends. The output
    folder then has what `ort-mobile run` leaves there, and tune.json. Exit code 1 if a search found no answer, 4 if no
    candidate keeps to the constraints.
    """
    if (config is None) == (model is None):
        raise click.UsageError("give either a config file or --model MODEL.onnx", ctx)
    import msgspec

    from pipeline.config.read import read_config
    from pipeline.features.tune.job import tune as search
    from pipeline.job.run import JobOptions, run_job

    data = dataset_from(test_data, input_values)
    if (data.given or dimensions) and not model:
        raise click.UsageError("--test-data, --input and --dimension are for --model; a config has keys for them", ctx)
    whole = config_of_model(model, data, dimensions) if model else read_config(Path(str(config)), existing=True)
    whole = with_overrides(whole, precisions=precisions, max_drop=max_drop, perf_test=None)
    whole = msgspec.structs.replace(whole, tune=with_given(whole.tune, settings))
    options = JobOptions(
        output=output,
        devices=devices,
        library=library,
        resume=resume,
        blame=blame,
        wait_seconds=lease_seconds,
    )  # fmt: skip
    with resumable(ctx, "nothing was measured; what was converted is kept"):
        result = run_job(whole, options, progress(), measure=search)
    finish_job(ctx, result, outputs, tuned=result.report.tuned)
