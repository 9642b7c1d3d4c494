"""`ort-mobile run`: the whole job."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.command import Command
from pipeline.cli.options import (
    data_options,
    dataset_from,
    json_option,
    library_option,
    perf_test_option,
    progress,
    shows_text,
    write_json,
)  # fmt: skip

if TYPE_CHECKING:
    from pipeline.config import Config
    from pipeline.dataset import Dataset


@click.command(cls=Command)
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--model", type=click.Path(path_type=Path), help="Run a model without a config, with the defaults.")
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False), help="Output folder.  [default: output/NAME]"
)
@click.option("--device", "devices", multiple=True, help="local, adb:SERIAL or adb:*; overrides the config.")
@library_option
@click.option(
    "--convert-only",
    is_flag=True,
    help="Convert, check and bundle what ONNX Runtime's documentation advises; measure nothing.",
)
@click.option("--resume", is_flag=True, help="Resume the last interrupted run of this config.")
@click.option(
    "--blame", is_flag=True,
    help="Reduce options that crash to a minimal set, and add it to the deny list.",
)  # fmt: skip
@data_options
@click.option(
    "--quick", is_flag=True,
    help="Measure less: levels basic and all in fixed style, 3 short rounds. For a first look, not for a release.",
)  # fmt: skip
@perf_test_option
@json_option
@click.pass_context
def run(
    ctx: click.Context,
    config: Path | None,
    model: Path | None,
    output: Path | None,
    devices: tuple[str, ...],
    library: str | None,
    convert_only: bool,
    resume: bool,
    blame: bool,
    test_data: str | None,
    input_values: dict[str, Any],
    quick: bool,
    perf_test: str | None,
    json_to: str | None,
) -> None:
    """Convert, check, measure, choose, bundle and report, as CONFIG says or for one --model.

    The output folder contains the artifacts, the operator configs, results.json, report.md, report.html, the database
    results.sqlite and bundle/.
    """
    if (config is None) == (model is None):
        raise click.UsageError("give either a config file or --model MODEL.onnx", ctx)
    import msgspec

    from pipeline.config import read_config
    from pipeline.core.errors import ExitCode
    from pipeline.job import JobOptions, run_job

    data = dataset_from(test_data, input_values)
    if data.given and not model:
        raise click.UsageError("--test-data and --input are for --model; a config has `test_data` and `inputs`", ctx)
    settings = _of_model(model, data) if model else read_config(Path(str(config)), existing=True)
    if perf_test:
        measure = msgspec.structs.replace(settings.measure, perf_test=perf_test)
        settings = msgspec.structs.replace(settings, measure=measure)
    options = JobOptions(
        output=output, devices=devices, library=library, convert_only=convert_only, resume=resume, blame=blame,
        quick=quick,
    )  # fmt: skip
    try:
        result = run_job(settings, options, progress())
    except KeyboardInterrupt as error:
        click.echo(f"interrupted: {str(error) or NOTHING_MEASURED}", err=True)
        click.echo(f"continue with: {shlex.join(_same_command())}", err=True)
        ctx.exit(ExitCode.INTERRUPTED)
    from pipeline.cli.show import job_document, show_job

    if json_to:
        write_json(job_document(result), json_to)
    show_job(result, text=shows_text(json_to))
    ctx.exit(result.exit_code)


def _of_model(model: Path, data: "Dataset") -> "Config":
    """The config of a model without one; what was guessed for its inputs is said on stderr."""
    from pipeline.core.errors import ConfigError
    from pipeline.job.template import config_for_model, data_beside, guessed_lines, safe_line

    if not model.exists():
        raise ConfigError("no such model file", where=str(model), remedy="check the path")
    settings, guess = config_for_model(model, data_beside(model, data))
    for line in (*map(str, guess.inputs), *(f"guessed: {line}" for line in guessed_lines(guess))):
        click.echo(f"input {safe_line(line)}" if not line.startswith("guessed") else safe_line(line), err=True)
    return settings


NOTHING_MEASURED = "no report and no bundle were written; what was converted is kept"


def _same_command() -> list[str]:
    """The command line that goes on with this job: as it was given, with --resume."""
    given = sys.argv[1:]
    return ["ort-mobile", *given, *(() if "--resume" in given else ("--resume",))]
