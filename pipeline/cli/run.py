"""`ort-mobile run`: the whole job, with what it shows at its end."""

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from device_runner import safe_text
from pipeline import config as configs
from pipeline.cli.command import Command, together
from pipeline.cli.config_options import config_options
from pipeline.cli.data_options import data_options, dimension_option, labels_option, preprocess_option
from pipeline.cli.options import (
    custom_ops_option,
    devices_option,
    keep_float_option,
    library_option,
    output_option,
    perf_test_option,
    plugin_option,
    precision_option,
    progress,
    wait_option,
)
from pipeline.cli.outputs import Outputs, ci_options, json_option, show_findings
from pipeline.cli.values import GivenKeys, keys_of, one_value
from pipeline.core.features import Place

if TYPE_CHECKING:
    from device_runner import options as runner_options
    from pipeline.config import Config
    from pipeline.dataset import Dataset
    from pipeline.job import assemble
    from pipeline.job import run as job_run


measure_options = config_options(
    configs.MeasureConfig, "mode", "sustained_seconds", "sustained_rounds", "fits_mb", "warmup", "rule", into="measure"
)
"""Options of [measure]: the keys that are given, as `measure`, which `run` has among its `overrides`."""

run_conditions = together(
    config_options(
        configs.ConditionsConfig,
        "stable",
        "keep_screen_on",
        "max_thermal_status",
        "max_battery_celsius",
        "min_battery_percent",
        "wait_seconds",
        into="conditions",
    ),
    one_value("conditions", lambda conditions: conditions.alone(), "conditions"),
)
"""The options of [conditions]: a command gets `conditions`, None where none is asked for."""


PLAN_OPTIONS = Place[Callable[[], list[click.Parameter]]]("run.plan_options")
"""Options of the plan, which keep what is given with the command's context."""
INSTEAD_OF_JOB = Place[Callable[[click.Context, "Config", "job_run.JobOptions", Outputs], None]]("run.instead_of_job")
"""What options may ask for in the place of a job, such as its plan: then that is shown, and the command ends there with
ctx.exit; else the call returns, and the job is done.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What options of a job say instead of a config; empty for what they leave to it."""

    precisions: tuple[str, ...] = ()
    max_drop: float | None = None
    perf_test: str | None = None
    plugins: dict[str, tuple[str, ...]] = field(default_factory=dict)
    database: str | None = None
    measure: "GivenKeys[configs.MeasureConfig] | None" = None
    """The keys that `measure_options` give."""

    def over(self, settings: "Config") -> "Config":
        """The config with these, and with --custom-ops; ConfigError for a precision that there is not."""
        import msgspec

        from pipeline.core import custom_ops as core_custom_ops
        from pipeline.passes import precisions as passes_precisions

        passes_precisions.resolve_precisions(self.precisions, where="--precision")
        measure = self.measure.over(settings.measure) if self.measure else settings.measure
        answers = asdict(replace(self, measure=None))
        return msgspec.structs.replace(
            settings,
            custom_ops=core_custom_ops.given() or settings.custom_ops,
            variants=keys_of(configs.VariantsConfig, answers).over(settings.variants),
            accuracy=keys_of(configs.AccuracyConfig, answers).over(settings.accuracy),
            measure=keys_of(configs.MeasureConfig, answers).over(measure),
            output=keys_of(configs.OutputConfig, answers).over(settings.output),
        )


@click.command(
    cls=Command,
    examples=(
        "ort-mobile run my.toml",
        "ort-mobile run --model my.onnx --convert-only",
        "ort-mobile run my.toml --device 'adb:*' --resume",
        "ort-mobile run my.toml --device adb:SERIAL --plan",
    ),
)
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--model", type=click.Path(path_type=Path), help="Run a model without a config, with the defaults.")
@output_option
@devices_option
@wait_option
@library_option
@click.option(
    "--convert-only",
    is_flag=True,
    help="Convert, check and bundle what ONNX Runtime's documentation advises; measure nothing.",
)
@click.option(
    "--no-proof",
    is_flag=True,
    help="Do not run the bundle in the libraries that ship: the report has that as a reservation.",
)
@click.option("--resume", is_flag=True, help="Resume the last interrupted run of this config.")
@click.option(
    "--blame",
    is_flag=True,
    help="Find the fewest options that crash a device, and skip them on such devices from now on (deny list).",
)
@data_options
@dimension_option
@click.option(
    "--quick",
    is_flag=True,
    help="Measure less: levels basic and all in fixed style, 3 short rounds. For a first look, not for a release.",
)
@preprocess_option
@labels_option("CSV file with a line `file,label` for each sample of --test-data.")
@precision_option
@keep_float_option
@click.option(
    "--max-drop",
    type=click.FloatRange(0, 1),
    help="Accuracy that an artifact in another precision may lose, as in 0.01, on labelled samples that "
    "quantization was not calibrated with; it ships when the 95 % interval excludes a larger loss.",
)
@measure_options
@perf_test_option
@custom_ops_option
@plugin_option
@ci_options
@click.option(
    "--database",
    metavar="URL",
    help="SQLAlchemy URL of the results; the output folder keeps it, without a password.  [default: results.sqlite]",
)
@json_option
# `measure` is what measure_options, above, hand on: one of the fields
@one_value("overrides", Overrides, *(field.name for field in fields(Overrides)))
@click.pass_context
def run(
    ctx: click.Context,
    /,
    config: Path | None,
    model: Path | None,
    output: Path | None,
    devices: tuple[str, ...],
    device_wait_seconds: float,
    library: str | None,
    convert_only: bool,
    no_proof: bool,
    resume: bool,
    blame: bool,
    data: "Dataset",
    dimensions: dict[str, int],
    quick: bool,
    keep_float: tuple[str, ...],
    overrides: Overrides,
    outputs: Outputs,
) -> None:
    """Convert, check, measure, choose, bundle and report, as CONFIG says or for one --model.

    The output folder contains the artifacts, the operator configs, results.json, report.md, report.html, trace.json.gz,
    the database results.sqlite and bundle/.
    """
    if (config is None) == (model is None):
        raise click.UsageError("give either a config file or --model MODEL.onnx", ctx)
    import msgspec

    from pipeline.config import read as config_read
    from pipeline.job import run as job_run

    if (data.given or data.preprocess or data.labels or dimensions or keep_float) and not model:
        raise click.UsageError(
            "--test-data, --input, --dimension, --preprocess, --labels and --keep-float are for --model; a config has "
            "keys for them",
            ctx,
        )
    settings = (
        config_of_model(model, data, dimensions) if model else config_read.read_config(Path(str(config)), existing=True)
    )
    tables = (msgspec.structs.replace(table, keep_float=keep_float or table.keep_float) for table in settings.models)
    settings = msgspec.structs.replace(settings, models=tuple(tables))
    settings = overrides.over(settings)
    options = job_run.JobOptions(
        output=output,
        devices=devices,
        library=library,
        convert_only=convert_only,
        resume=resume,
        blame=blame,
        quick=quick,
        wait_seconds=device_wait_seconds,
        prove=not no_proof,
    )
    for answer in INSTEAD_OF_JOB:
        answer(ctx, settings, options, outputs)  # does not return where it is asked for
    finish_job(ctx, completed_job(ctx, settings, options), outputs)


run.params += [option for options in PLAN_OPTIONS for option in options()]


def config_of_model(model: Path, data: "Dataset", dimensions: dict[str, int]) -> "Config":
    """The config of a model without one; what was guessed for its inputs is said on stderr."""
    from pipeline.job import template
    from pipeline.model import sources as model_sources

    model_sources.require_model_file(model)
    settings, guess = template.config_for_model(model, template.data_beside(model, data), dimensions)
    lines = (
        *(f"input {text}" for text in guess.inputs),
        *(f"guessed: {text}" for text in template.guessed_lines(guess)),
    )
    for line in lines:
        click.echo(template.safe_line(line), err=True)
    return settings


NOTHING_MEASURED = "no report and no bundle were written; what was converted is kept"


def completed_job(ctx: click.Context, settings: "Config", options: "job_run.JobOptions") -> "assemble.Assembled":
    """Do a job whose campaign is measured in rounds."""
    from pipeline.job import run as job_run

    with resumable(ctx):
        return job_run.run_job(settings, options, progress())


@contextlib.contextmanager
def resumable(ctx: click.Context, nothing: str = NOTHING_MEASURED) -> Iterator[None]:
    """End a command that is interrupted with what is kept, by default `nothing` that was measured, and how to go on."""
    from pipeline.campaign.store import refusals
    from pipeline.core import errors as core_errors

    try:
        yield
    except KeyboardInterrupt as error:
        click.echo(f"interrupted: {str(error) or nothing}", err=True)
        given = [refusals.hidden(word) for word in sys.argv[1:]]  # as it was given but for passwords
        again = shlex.join(["ort-mobile", *given, *(() if "--resume" in given else ("--resume",))])
        click.echo(f"continue with: {again}", err=True)
        ctx.exit(core_errors.ExitCode.INTERRUPTED)


def show_denied(entries: "Iterable[runner_options.Denied]") -> None:
    """What was newly entered in the deny list, and where that is; on stderr."""
    from pipeline.campaign import denied as campaign_denied
    from pipeline.campaign import run_options

    for entry in entries:
        model = ", this model" if entry.model_sha256 else ""
        name = f"{run_options.options_name(entry.options)} on {entry.devices.chip}{model}"
        click.echo(f"denied from now on: {safe_text.visible(name)} ({campaign_denied.deny_list()})", err=True)


def nothing_ships(assembled: "assemble.Assembled") -> str:
    """Why nothing is in a bundle, for each model once."""
    reasons = dict.fromkeys(f"{withheld.model}: {withheld.what}" for withheld in assembled.report.withheld)
    return safe_text.visible(
        "no artifact may ship" + (f" ({'; '.join(reasons)})" if reasons else ": the config has no target")
    )


def job_document(result: "assemble.Assembled") -> dict[str, Any]:
    """What a job left, for programs: the files, the bundle, and what speaks against shipping."""
    from pipeline.release import manifest as bundle_manifest

    folder, content = result.folder, result.content
    return {
        "folder": str(folder),
        "results": str(folder / "results.json"),
        "reports": [str(folder / "report.html"), str(folder / "report.md")],
        "bundle": content
        and {
            "folder": str(folder / "bundle"),
            "digest": bundle_manifest.content_digest(content),
            "ships": content.ships,
            "contexts": content.contexts,
        },
        "findings": result.findings,
        "left": [{"device": device, "reason": reason} for device, reason in result.left.items()],
        "denied": result.denied,
        "exit_code": result.exit_code,
    }


def show_job(result: "assemble.Assembled", outputs: Outputs) -> None:
    """The report and where everything is on stdout, unless there is to be no text; what went wrong on stderr."""
    from pipeline.core import errors as core_errors
    from pipeline.release import chip_contexts
    from pipeline.release import manifest as bundle_manifest
    from pipeline.report import formats, sections

    if outputs.text:
        formats.show_report(result.report)
    if result.exit_code:
        outputs.show_errors(sections.failed_lines(result.report))
    for device, reason in result.left.items():
        click.echo(safe_text.visible(f"{device} was left before the end: {reason}"), err=True)
    show_denied(result.denied)
    show_findings(result.findings)
    folder = result.folder
    if outputs.text:
        click.echo(f"report   {folder / 'report.html'}, {folder / 'report.md'}, {folder / 'results.json'}")
    if result.content and outputs.text:
        for context in result.content.contexts:
            click.echo(chip_contexts.context_line(context))
        click.echo(f"bundle   {folder / 'bundle'} (digest {bundle_manifest.content_digest(result.content)[:16]})")
    elif not result.content:
        reason = "see the errors above" if core_errors.errors(result.findings) else nothing_ships(result)
        click.echo(f"bundle   none: {reason}", err=True)


def finish_job(
    ctx: click.Context, result: "assemble.Assembled", outputs: Outputs, more: Mapping[str, object] = {}
) -> NoReturn:
    """Write what a job left as JSON (with `more`) and for a CI, show it, and end the command."""
    from pipeline.report import ci_parts

    outputs.write_json({**job_document(result), **more})
    outputs.write_ci(ci_parts.of_campaign(result.report, result.findings))
    show_job(result, outputs)
    ctx.exit(result.exit_code)
