"""`ort-mobile tune`: searches for the best configuration of a model on devices."""

from pathlib import Path
from typing import Any

import click

from pipeline import config as configs
from pipeline.cli import command as cli_command
from pipeline.cli import options as cli_options
from pipeline.cli import outputs as cli_outputs
from pipeline.cli import run as cli_run
from pipeline.cli.outputs import Outputs

LIMITS = ("max_latency_ms", "max_p90_ms", "max_memory_mb", "max_size_mb")


@click.command(cls=cli_command.Command)
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--model", type=click.Path(path_type=Path), help="Search for a model without a config.")
@cli_options.output_option
@cli_options.devices_option
@cli_options.wait_option
@cli_options.library_option
@cli_options.config_options(configs.TuneConfig, "minutes")
@cli_options.config_options(configs.TuneConfig, goals="goal")
@cli_options.config_options(configs.TuneConfig, *LIMITS, "strategy", "seed", "share_percent")
@click.option("--resume", is_flag=True, help="Resume the last interrupted search of this config.")
@click.option(
    "--blame",
    is_flag=True,
    help="Find the fewest options that crash a device, and skip them on such devices from now on (deny list).",
)
@cli_options.data_options
@cli_options.dimension_option
@cli_options.precision_option
@click.option(
    "--max-drop", type=click.FloatRange(0, 1), metavar="N", help="Constraint: largest drop of accuracy, as 0.01."
)
@cli_outputs.ci_options
@cli_outputs.json_option
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

    from pipeline.config import read as config_read
    from pipeline.features.tune.job import tune as search
    from pipeline.job import run as job_run

    data = cli_options.dataset_from(test_data, input_values)
    if (data.given or dimensions) and not model:
        raise click.UsageError("--test-data, --input and --dimension are for --model; a config has keys for them", ctx)
    whole = (
        cli_run.config_of_model(model, data, dimensions)
        if model
        else config_read.read_config(Path(str(config)), existing=True)
    )
    whole = cli_run.with_overrides(whole, precisions=precisions, max_drop=max_drop, perf_test=None)
    whole = msgspec.structs.replace(whole, tune=cli_options.with_given(whole.tune, settings))
    options = job_run.JobOptions(
        output=output, devices=devices, library=library, resume=resume, blame=blame, wait_seconds=lease_seconds
    )
    with cli_run.resumable(ctx, "nothing was measured; what was converted is kept"):
        result = job_run.run_job(whole, options, cli_options.progress(), measure=search)
    cli_run.finish_job(ctx, result, outputs, tuned=result.report.tuned)
