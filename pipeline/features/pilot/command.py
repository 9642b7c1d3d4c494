"""`ort-mobile run --plan`: what a campaign will be able to find, and how long it takes."""

from typing import TYPE_CHECKING

import click

from pipeline.cli import command as cli_command
from pipeline.cli import options as cli_options
from pipeline.cli.outputs import Outputs

if TYPE_CHECKING:
    from pipeline.config import Config
    from pipeline.job import run as job_run


def kept(ctx: click.Context, param: click.Parameter, value: object) -> None:
    """A callback that keeps what is given with the command's context: the command itself has no such parameter."""
    cli_command.refuse_nan(ctx, param, value)
    ctx.meta[f"{__name__}.{param.name}"] = value


def options() -> list[click.Parameter]:
    """The options of `run` for a plan."""
    return [
        click.Option(
            ["--plan"],
            is_flag=True,
            callback=kept,
            expose_value=False,
            help="Do not run: measure the baseline twice in each of 5 rounds, and say how many rounds find a "
            "difference of N % on each device, and how long they take.",
        ),
        click.Option(
            ["--percent", "percents"],
            multiple=True,
            callback=kept,
            expose_value=False,
            type=click.FloatRange(0.01, 1000),
            metavar="N",
            help="Difference that --plan is for; repeatable.  [default: 1, 2, 3, 5, 10]",
        ),
    ]


def plan(ctx: click.Context, settings: "Config", asked: "job_run.JobOptions", outputs: Outputs) -> None:
    """With --plan: say how many rounds find a difference of N % on each device, and end the command.

    How much two equal runs differ is the noise of that device now. So short a pilot knows the noise to a factor of
    about 2: the rounds are so many that 95 of 100 pilots with their campaigns find the difference.
    """
    if not ctx.meta[f"{__name__}.plan"]:
        return
    from pipeline.core import errors as core_errors
    from pipeline.features.pilot.job import PERCENTS, pilot, pilot_listing, pilot_notes

    refused = {
        "--convert-only": asked.convert_only,
        "--resume": asked.resume,
        "--blame": asked.blame,
        "--quick": asked.quick,
        "--markdown": outputs.markdown_to,
        "--junit": outputs.junit_to,
        "--sarif": outputs.sarif_to,
    }
    if given := [option for option, value in refused.items() if value]:
        raise click.UsageError(f"--plan measures a pilot only: leave {', '.join(given)} out")
    answers, missing = pilot(settings, asked, cli_options.progress(), ctx.meta[f"{__name__}.percents"] or PERCENTS)
    outputs.finish(
        {"answers": answers, "missing": missing},
        [*map(pilot_listing, answers), *pilot_notes(answers, missing)],
        code=core_errors.ExitCode.SOME_FAILED if missing or not answers else core_errors.ExitCode.DONE,
        failed=missing,
    )
