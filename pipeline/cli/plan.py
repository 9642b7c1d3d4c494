"""`ort-mobile plan`: what a campaign will be able to find, and how long it takes."""

from pathlib import Path
from typing import Any

import click

from pipeline.cli.command import Command
from pipeline.cli.options import (
    data_options,
    dataset_from,
    devices_option,
    json_option,
    library_option,
    progress,
    shows_text,
    write_json,
)
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
    json_to: str | None,
) -> None:
    """Say how many rounds find a difference of N % on each device, and how long that takes.

    A pilot measures the baseline of CONFIG, or of one --model, twice in each of 5 rounds: how much two equal runs
    differ is the noise of that device now. Nothing is stored. So short a pilot knows the noise to a factor of about 2:
    the rounds are so many that 95 of 100 pilots with their campaigns find the difference.
    """
    if (config is None) == (model is None):
        raise click.UsageError("give either a config file or --model MODEL.onnx", ctx)
    import dataclasses

    from pipeline.campaign.pilot import PERCENTS
    from pipeline.config import read_config
    from pipeline.core.errors import ExitCode
    from pipeline.job.campaign import JobOptions
    from pipeline.job.pilot import pilot
    from pipeline.report.pilot import pilot_listing, pilot_notes
    from pipeline.report.terminal import show_parts

    data = dataset_from(test_data, input_values)
    if data.given and not model:
        raise click.UsageError("--test-data and --input are for --model; a config has `test_data` and `inputs`", ctx)
    settings = config_of_model(model, data) if model else read_config(Path(str(config)), existing=True)
    found = pilot(settings, JobOptions(devices=devices, library=library), progress(), tuple(percents) or PERCENTS)
    if json_to:
        write_json(dataclasses.asdict(found), json_to)
    if shows_text(json_to):
        show_parts([pilot_listing(one) for one in found.answers], pilot_notes(found.answers, found.missing))
    ctx.exit(ExitCode.SOME_FAILED if found.missing or not found.answers else ExitCode.DONE)
