"""`ort-mobile plan`: what a campaign will be able to find, and how long it takes."""

from pathlib import Path
from typing import Any

import click

from pipeline.cli.command import Command
from pipeline.cli.options import data_options, dataset_from, devices_option, dimension_option, library_option, progress
from pipeline.cli.outputs import Outputs, json_option
from pipeline.cli.run import config_of_model


@click.command(cls=Command)
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--model", type=click.Path(path_type=Path), help="Plan for a model without a config, with the defaults.")
@devices_option
@library_option
@click.option(
    "--percent", "percents", multiple=True, type=click.FloatRange(0.01, 1000), metavar="N",
    help="Difference to plan for; repeatable.  [default: 1, 2, 3, 5, 10]",
)  # fmt: skip
@data_options
@dimension_option
@json_option
@click.pass_context
def plan(
    ctx: click.Context,
    /,
    config: Path | None,
    model: Path | None,
    devices: tuple[str, ...],
    library: str | None,
    percents: tuple[float, ...],
    test_data: str | None,
    input_values: dict[str, Any],
    dimensions: dict[str, int],
    outputs: Outputs,
) -> None:
    """Say how many rounds find a difference of N % on each device, and how long that takes.

    A pilot measures the baseline of CONFIG, or of one --model, twice in each of 5 rounds: how much two equal runs
    differ is the noise of that device now. Nothing is stored. So short a pilot knows the noise to a factor of about 2:
    the rounds are so many that 95 of 100 pilots with their campaigns find the difference.
    """
    if (config is None) == (model is None):
        raise click.UsageError("give either a config file or --model MODEL.onnx", ctx)
    import dataclasses

    from pipeline.config import read_config
    from pipeline.core.errors import ExitCode
    from pipeline.features.pilot.job import PERCENTS, pilot, pilot_listing, pilot_notes
    from pipeline.job.campaign import JobOptions

    data = dataset_from(test_data, input_values)
    if (data.given or dimensions) and not model:
        raise click.UsageError("--test-data, --input and --dimension are for --model; a config has keys for them", ctx)
    settings = config_of_model(model, data, dimensions) if model else read_config(Path(str(config)), existing=True)
    result = pilot(settings, JobOptions(devices=devices, library=library), progress(), tuple(percents) or PERCENTS)
    outputs.finish(
        dataclasses.asdict(result),
        [*map(pilot_listing, result.answers), *pilot_notes(result.answers, result.missing)],
        code=ExitCode.SOME_FAILED if result.missing or not result.answers else ExitCode.DONE,
        failed=result.missing,
    )
