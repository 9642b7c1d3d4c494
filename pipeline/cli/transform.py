"""`ort-mobile transform`: a model changed by steps, each checked; the list of passes and their options."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.command import Command
from pipeline.cli.data_options import data_options, sample_options
from pipeline.cli.options import progress
from pipeline.cli.outputs import Outputs, json_option

if TYPE_CHECKING:
    from pipeline.check.compare import OutputCheck
    from pipeline.dataset import Dataset
    from pipeline.passes import base as passes_base
    from pipeline.passes import run as passes_run
    from pipeline.report import wording


def show_passes(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    """A callback that lists every pass in one line and ends the command."""
    if not value or ctx.resilient_parsing:
        return
    from pipeline.passes import registry
    from pipeline.report import show as terminal
    from pipeline.report import wording

    terminal.show(wording.Line(pass_line(step)) for step in registry.PASSES.values())
    ctx.exit()


def show_options(ctx: click.Context, _param: click.Parameter, name: str | None) -> None:
    """A callback that shows one pass with its options and ends the command."""
    if not name or ctx.resilient_parsing:
        return
    from pipeline.passes import registry

    step = registry.find_pass(name, "--options")
    click.echo(pass_line(step))
    for option, text in option_lines(step):
        click.echo(f"    {option:<28} {text}".rstrip())
    ctx.exit()


def pass_line(step: "passes_base.Pass") -> str:
    """A pass in one line."""
    return f"{step.name:<24} {step.title}" + (f" Needs the extra {step.extra!r}." if step.extra else "")


def option_lines(step: "passes_base.Pass") -> list[tuple[str, str]]:
    """The options of a pass as `name=default`, each with what it means."""
    import msgspec

    from pipeline import config as configs

    texts = configs.key_texts(step.options)
    lines = []
    for field in msgspec.structs.fields(step.options):
        default = field.default if field.default is not msgspec.NODEFAULT else None
        shown = "" if default in (None, "") or field.required else f"={default}"
        lines.append((f"{field.name}{shown}", texts.get(field.name, "")))
    return lines


@click.command(
    cls=Command,
    examples=(
        "ort-mobile transform my.onnx out.onnx --do opset:version=21",
        "ort-mobile transform my.onnx out.onnx --do opset:version=21 --do external-data --json -",
    ),
)
@click.argument("model", metavar="IN")
@click.argument("output", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--do",
    "steps",
    multiple=True,
    metavar="NAME[:OPTION=VALUE]…",
    help="A step; repeatable, in this order. Values of a list are joined by +.",
)
@click.option(
    "--list", is_flag=True, is_eager=True, expose_value=False, callback=show_passes, help="List all passes, one a line."
)
@click.option(
    "--options",
    is_eager=True,
    expose_value=False,
    metavar="NAME",
    callback=show_options,
    help="Show the options of a pass.",
)
@click.option("--check/--no-check", default=True, help="Compare the result's outputs with the original's.")
@data_options
@sample_options
@click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    help="Cache folder: the same steps on the same model are not run again.",
)
@json_option
@click.pass_context
def transform(
    ctx: click.Context,
    /,
    model: str,
    output: Path,
    steps: tuple[str, ...],
    check: bool,
    data: "Dataset",
    cache: Path | None,
    outputs: Outputs,
) -> None:
    """Change the ONNX model IN by steps and write it to OUT.

    Each step is a pass with options: other outputs, fixed dimensions, another batch size or opset, weights in a file
    of their own, folded shapes, fixes for execution providers. OUT is written only when every step applies and, where
    a step keeps the outputs, only when they are those of IN on the same inputs (random ones without --test-data).
    """
    import msgspec

    from pipeline.core.errors import CheckFailed, ConfigError
    from pipeline.model import sources as model_sources
    from pipeline.passes import registry
    from pipeline.passes import run as passes_run
    from pipeline.report import show as terminal

    if not steps:
        raise click.UsageError("name at least one step with --do; --list shows all", ctx)
    models = model_sources.find_models([model])
    if len(models) > 1:
        raise ConfigError("one model at a time", where=model, why=f"{len(models)} are there", remedy="name one of them")
    report = passes_run.transform_file(
        models[0],
        [registry.parse_step(text) for text in steps],
        output,
        data=data,
        check=check,
        cache=cache,
        progress=progress(),
    )
    for note in report.notes:
        click.echo(f"warning: {note}", err=True)
    verification = report.verification
    document = msgspec.to_builtins(report)
    for change, shown in zip(report.steps, document["steps"], strict=True):
        shown["text"] = change.step.text  # as it was written on the command line
    if verification:
        document["verification"]["failed"] = verification.failed
    outputs.write_json({"output": str(output), **document})
    if outputs.text:
        terminal.show(_parts(report, output))
    if verification and not verification.failed:
        for left_out in _not_compared(verification):
            click.echo(f"warning: the output {left_out.output!r} was not compared: {left_out.reason}", err=True)
    if verification and verification.failed:
        why = "; ".join(f"output {c.output!r}: {c.reason}" for c in verification.checks if c.failed)
        raise CheckFailed(
            "the changed model's outputs differ",
            where=model,
            why=why[:500],
            remedy="leave a step out; --no-check writes the model all the same",
        )


def _parts(report: "passes_run.TransformReport", output: Path) -> "Iterator[wording.Part]":
    """What each step changed, what was written and how its outputs compare."""
    from pipeline.report import wording

    rows = (
        (
            change.step.text,
            f"{change.nodes_before} → {change.nodes_after}",
            f"{wording.size(change.bytes_before)} → {wording.size(change.bytes_after)}",
        )
        for change in report.steps
    )
    yield wording.Listing(title="", head=("step", "nodes", "size"), rows=tuple(rows), right=("nodes", "size"))
    if verification := report.verification:
        lacking = _not_compared(verification)
        error = max((check.max_rel_error or 0.0 for check in verification.checks), default=0.0)
        apart = f"largest relative error {error:.2g}" if error else "" if lacking else "equal to the last bit"
        apart = "; ".join(filter(None, (apart, *(f"{check.output}: {check.reason}" for check in lacking))))
        if verification.why:
            text = f"not checked: {verification.why}"
        elif not verification.checks:
            text = "not checked: no output is a tensor of numbers"
        elif not verification.judged:
            text = f"outputs: {apart}, on {verification.data} (not judged: a step changes numbers by design)"
        else:
            passed = sum(check.passed for check in verification.checks)
            unknown = [check for check in verification.checks if check.unknown and check not in lacking]
            doubt = f"; {unknown[0].output}: {unknown[0].reason}" if unknown else ""
            of_all = f"{passed} of {len(verification.checks)} outputs are the original's"
            text = f"{of_all}, {apart}, on {verification.data}{doubt}"
        yield wording.Line(text)
    if not (report.verification and report.verification.failed):
        beside = f", weights in {report.saved.data_file} ({wording.size(report.saved.data_bytes)})"
        tail = (beside if report.saved.data_file else "") + (", unchanged since the last time" if report.reused else "")
        yield wording.Line(f"{output}: {wording.size(report.saved.size_bytes)}{tail}")


def _not_compared(verification: "passes_run.Verification") -> list["OutputCheck"]:
    """The outputs of whose differences there is no figure: NaN, infinity, another shape, strings that differ."""
    return [check for check in verification.checks if check.max_rel_error is None and not check.passed]
