"""`ort-mobile tune`: searches for the best configuration of a model on devices."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline import config as configs
from pipeline.cli import command as cli_command
from pipeline.cli import config_options, data_options
from pipeline.cli import options as cli_options
from pipeline.cli import outputs as cli_outputs
from pipeline.cli import run as cli_run
from pipeline.cli.outputs import Outputs

if TYPE_CHECKING:
    from pipeline.cli import values as cli_values
    from pipeline.dataset import Dataset

LIMITS = ("max_latency_ms", "max_p90_ms", "max_memory_mb", "max_size_mb")
SEARCH_KEYS = ("minutes", "goals", *LIMITS, "strategy", "seed", "share_percent")
"""Keys of [tune] that are options."""


@click.command(
    cls=cli_command.Command,
    examples=("ort-mobile tune my.toml --device adb:SERIAL --minutes 20 --goal latency",),
)
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--model", type=click.Path(path_type=Path), help="Search for a model without a config.")
@cli_options.output_option
@cli_options.devices_option
@cli_options.wait_option
@cli_options.library_option
@config_options.config_options(configs.TuneConfig, *SEARCH_KEYS, into="search", goals="goal")
@config_options.config_options(configs.MeasureConfig, "sustained_seconds", into="measure")
@click.option("--resume", is_flag=True, help="Resume the last interrupted search of this config.")
@click.option(
    "--blame",
    is_flag=True,
    help="Find the fewest options that crash a device, and skip them on such devices from now on (deny list).",
)
@data_options.data_options
@data_options.dimension_option
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
    device_wait_seconds: float,
    library: str | None,
    resume: bool,
    blame: bool,
    data: "Dataset",
    dimensions: dict[str, int],
    precisions: tuple[str, ...],
    max_drop: float | None,
    search: "cli_values.GivenKeys[configs.TuneConfig]",
    measure: "cli_values.GivenKeys[configs.MeasureConfig]",
    outputs: Outputs,
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
    from pipeline.features.tune import job as tune_job
    from pipeline.job import run as job_run

    if (data.given or dimensions) and not model:
        raise click.UsageError("--test-data, --input and --dimension are for --model; a config has keys for them", ctx)
    whole = (
        cli_run.config_of_model(model, data, dimensions)
        if model
        else config_read.read_config(Path(str(config)), existing=True)
    )
    whole = cli_run.Overrides(precisions=precisions, max_drop=max_drop).over(whole)
    whole = msgspec.structs.replace(whole, tune=search.over(whole.tune), measure=measure.over(whole.measure))
    options = job_run.JobOptions(
        output=output, devices=devices, library=library, resume=resume, blame=blame, wait_seconds=device_wait_seconds
    )
    with cli_run.resumable(ctx, "nothing was measured; what was converted is kept"):
        result = job_run.run_job(whole, options, cli_options.progress(), measure=tune_job.tune)
    cli_run.finish_job(ctx, result, outputs, {"tuned": result.report.tuned})
