"""`ort-mobile doctor`: ONNX Runtime's performance checklist, tested on a model."""

from pathlib import Path
from typing import Any

import click

from pipeline.cli.command import Command
from pipeline.cli.options import data_options, dataset_from, dimension_option, library_option, progress, wait_option
from pipeline.cli.outputs import Outputs, json_option, markdown_option
from pipeline.cli.run import conditions_of, run_conditions


def show_checks(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    """A callback that lists every check in one line and ends the command."""
    if not value or ctx.resilient_parsing:
        return
    from pipeline.features.doctor.checks import CHECKS
    from pipeline.report.show import show
    from pipeline.report.wording import Line

    show(Line(f"{check.check:<16} {check.title}: {check.how} ({check.source})") for check, _ in CHECKS)
    ctx.exit()


@click.command(cls=Command)
@click.argument("model", type=click.Path(path_type=Path), metavar="MODEL|CONFIG")
@click.option("--device", help="local, adb:SERIAL or android-host:LIBRARY.  [default: the config's first, or local]")
@wait_option
@library_option
@click.option(
    "--minutes", type=click.FloatRange(min=0, min_open=True, max=1440), default=5.0, show_default=True,
    help="Time for everything. What does not fit is reported as not tested.",
)  # fmt: skip
@dimension_option
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False), default=Path("output/doctor"), show_default=True,
    help="Folder of the database of its runs.",
)  # fmt: skip
@click.option("--resume", is_flag=True, help="Resume the last interrupted diagnosis of this model.")
@data_options
@run_conditions
@click.option(
    "--list", is_flag=True, is_eager=True, expose_value=False, callback=show_checks,
    help="List all checks, with the page of the advice.",
)  # fmt: skip
@markdown_option
@json_option
@click.pass_context
def doctor(
    ctx: click.Context,
    /,
    model: Path,
    device: str | None,
    lease_seconds: float,
    library: str | None,
    minutes: float,
    dimensions: dict[str, int],
    test_data: str | None,
    input_values: dict[str, Any],
    output: Path,
    resume: bool,
    outputs: Outputs,
    **answers: Any,
) -> None:
    """Test ONNX Runtime's performance checklist on a model, and show what each remedy gains.

    MODEL is an .onnx or .ort file that starts with ONNX Runtime's defaults; a CONFIG (.toml) names models, their data
    and, in its first [[runs]], the options to start with. Every remedy is measured in the same rounds as the start, on
    the device; the remedies that gain are measured again together. Nothing is changed.
    """
    from dataclasses import replace

    from device_runner.spec import RunOptions
    from pipeline.config import MeasureConfig, read_config
    from pipeline.features.doctor.diagnose import diagnose, orders_of_config
    from pipeline.features.doctor.diagnosis import parts
    from pipeline.job.file_runs import PerfOrder

    data = dataset_from(test_data, input_values)
    if model.suffix.lower() == ".toml":
        if data.given or dimensions:
            raise click.UsageError("--test-data, --input and --dimension are for a MODEL; a config has its own", ctx)
        orders = orders_of_config(read_config(model, existing=True))
    else:
        alone = PerfOrder(
            files=(model,), options=(RunOptions(),), device="local", library=None, dimensions=dimensions,
            measure=MeasureConfig(), data=data,
        )  # fmt: skip
        orders = [alone]
    conditions = conditions_of(answers)
    orders = [
        replace(
            order, device=device or order.device, library=library, conditions=conditions or order.conditions,
            wait_seconds=lease_seconds,
        )
        for order in orders
    ]  # fmt: skip
    report = diagnose(orders, progress(), minutes=minutes, folder=output, resume=resume)
    failed = (f"{model.model}: {'; '.join(model.failure)}" for model in report.diagnoses if model.failure)
    outputs.finish(report, parts(report), code=report.exit_code, failed=failed, title="Diagnosis")
