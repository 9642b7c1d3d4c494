"""`ort-mobile doctor`: ONNX Runtime's performance checklist, tested on a model."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli import command as cli_command
from pipeline.cli import data_options
from pipeline.cli import options as cli_options
from pipeline.cli import outputs as cli_outputs
from pipeline.cli import run as cli_run
from pipeline.cli.outputs import Outputs

if TYPE_CHECKING:
    from pipeline import config as configs
    from pipeline.dataset import Dataset


def show_checks(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    """A callback that lists every check in one line and ends the command."""
    if not value or ctx.resilient_parsing:
        return
    from pipeline.features.doctor.checks import CHECKS
    from pipeline.report import show as terminal
    from pipeline.report import wording

    terminal.show(wording.Line(f"{check.code:<16} {check.title}: {check.how} ({check.source})") for check, _ in CHECKS)
    ctx.exit()


@click.command(
    cls=cli_command.Command,
    examples=(
        "ort-mobile doctor my.onnx",
        "ort-mobile doctor my.toml --minutes 10 --markdown doctor.md",
    ),
)
@click.argument("model", type=click.Path(path_type=Path), metavar="MODEL|CONFIG")
@click.option("--device", help="local, adb:SERIAL or android-host:LIBRARY.  [default: the config's first, or local]")
@cli_options.wait_option
@cli_options.library_option
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True, max=1440),
    default=5.0,
    show_default=True,
    help="Time for everything. What does not fit is reported as not tested.",
)
@data_options.dimension_option
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("output/doctor"),
    show_default=True,
    help="Folder of the database of its runs.",
)
@click.option("--resume", is_flag=True, help="Resume the last interrupted diagnosis of this model.")
@data_options.data_options
@cli_run.run_conditions
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_checks,
    help="List all checks, with the page of the advice.",
)
@cli_outputs.markdown_option
@cli_outputs.json_option
@click.pass_context
def doctor(
    ctx: click.Context,
    /,
    model: Path,
    device: str | None,
    device_wait_seconds: float,
    library: str | None,
    minutes: float,
    dimensions: dict[str, int],
    data: "Dataset",
    output: Path,
    resume: bool,
    conditions: "configs.ConditionsConfig | None",
    outputs: Outputs,
) -> None:
    """Test ONNX Runtime's performance checklist on a model, and show what each remedy gains.

    MODEL is an .onnx or .ort file that starts with ONNX Runtime's defaults; a CONFIG (.toml) names models, their data
    and, in its first [[runs]], the options to start with. Every remedy is measured in the same rounds as the start, on
    the device; the remedies that gain are measured again together. Nothing is changed.
    """
    from dataclasses import replace

    from device_runner.spec import RunOptions
    from pipeline import config as configs
    from pipeline.features.doctor.diagnose import diagnose, orders_of_config
    from pipeline.features.doctor.diagnosis import parts
    from pipeline.job import file_runs

    if model.suffix.lower() == ".toml":
        if data.given or dimensions:
            raise click.UsageError("--test-data, --input and --dimension are for a MODEL; a config has its own", ctx)
        orders = orders_of_config(configs.read_config(model, existing=True))
    else:
        alone = file_runs.PerfOrder(
            files=(model,),
            options=(RunOptions(),),
            device="local",
            library=None,
            dimensions=dimensions,
            measure=configs.MeasureConfig(),
            data=data,
        )
        orders = [alone]
    orders = [
        replace(
            order,
            device=device or order.device,
            library=library,
            conditions=conditions or order.conditions,
            wait_seconds=device_wait_seconds,
        )
        for order in orders
    ]
    report = diagnose(orders, cli_options.progress(), minutes=minutes, folder=output, resume=resume)
    failed = (f"{model.model}: {'; '.join(model.failure)}" for model in report.diagnoses if model.failure)
    outputs.finish(report, parts(report), code=report.exit_code, failed=failed, title="Diagnosis")
