"""`ort-mobile transform`: steps that change a model, each checked against the original."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.command import Command
from pipeline.cli.options import data_options, dataset_from, progress, sample_options
from pipeline.cli.outputs import Outputs, json_option

if TYPE_CHECKING:
    from pipeline.check.compare import OutputCheck
    from pipeline.model.sources import SourceModel
    from pipeline.passes.base import Pass
    from pipeline.passes.run import TransformReport, Verification
    from pipeline.report.wording import Part


def show_passes(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    """A callback that lists every pass in one line and ends the command."""
    if not value or ctx.resilient_parsing:
        return
    from pipeline.passes.registry import PASSES

    for step in PASSES.values():
        click.echo(pass_line(step))
    ctx.exit()


def show_options(ctx: click.Context, _param: click.Parameter, name: str | None) -> None:
    """A callback that shows one pass with its options and ends the command."""
    if not name or ctx.resilient_parsing:
        return
    from pipeline.passes.registry import find_pass

    step = find_pass(name, "--options")
    click.echo(pass_line(step))
    for option, text in option_lines(step):
        click.echo(f"    {option:<28} {text}".rstrip())
    ctx.exit()


def pass_line(step: "Pass") -> str:
    """A pass in one line."""
    return f"{step.name:<24} {step.title}" + (f" Needs the extra {step.extra!r}." if step.extra else "")


def option_lines(step: "Pass") -> list[tuple[str, str]]:
    """The options of a pass as `name=default`, each with what it means."""
    import msgspec

    from pipeline.config import key_texts

    texts = key_texts(step.options)
    lines = []
    for field in msgspec.structs.fields(step.options):
        default = field.default if field.default is not msgspec.NODEFAULT else None
        shown = "" if default in (None, "") or field.required else f"={default}"
        lines.append((f"{field.name}{shown}", texts.get(field.name, "")))
    return lines


@click.command(cls=Command)
@click.argument("model", metavar="IN")
@click.argument("output", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--do", "steps", multiple=True, metavar="NAME[:OPTION=VALUE]…",
    help="A step; repeatable, in this order. Values of a list are joined by +.",
)  # fmt: skip
@click.option(
    "--list", is_flag=True, is_eager=True, expose_value=False, callback=show_passes,
    help="List all passes, one a line.",
)  # fmt: skip
@click.option(
    "--options", is_eager=True, expose_value=False, metavar="NAME", callback=show_options,
    help="Show the options of a pass.",
)  # fmt: skip
@click.option("--check/--no-check", default=True, help="Compare the result's outputs with the original's.")
@data_options
@sample_options
@click.option(
    "--cache", type=click.Path(path_type=Path, file_okay=False),
    help="Cache folder: the same steps on the same model are not run again.",
)  # fmt: skip
@json_option
@click.pass_context
def transform(
    ctx: click.Context,
    /,
    model: str,
    output: Path,
    steps: tuple[str, ...],
    check: bool,
    test_data: str | None,
    input_values: dict[str, Any],
    cache: Path | None,
    outputs: Outputs,
    **sampling: Any,
) -> None:
    """Change the ONNX model IN by steps and write it to OUT.

    Each step is a pass with options: other outputs, fixed dimensions, another batch size or opset, weights in a file
    of their own, folded shapes, fixes for execution providers. OUT is written only when every step applies and, where
    a step keeps the outputs, only when they are those of IN on the same inputs (random ones without --test-data).
    """
    from pipeline.core.errors import CheckFailed
    from pipeline.passes.registry import parse_step
    from pipeline.passes.run import transform_file

    if not steps:
        raise click.UsageError("name at least one step with --do; --list shows all", ctx)
    report = transform_file(
        _one_model(model), [parse_step(text) for text in steps], output,
        data=dataset_from(test_data, input_values, **sampling), check=check, cache=cache, progress=progress(),
    )  # fmt: skip
    for note in report.notes:
        click.echo(f"warning: {note}", err=True)
    outputs.write_json({"output": str(output), **_document(report)})
    if outputs.text:
        from pipeline.report.show import show

        show(_parts(report, output))
    verification = report.verification
    if verification and not verification.failed:
        for row in _not_compared(verification):
            click.echo(f"warning: the output {row.output!r} was not compared: {row.reason}", err=True)
    if verification and verification.failed:
        why = "; ".join(f"output {c.output!r}: {c.reason}" for c in verification.checks if c.failed)
        raise CheckFailed(
            "the changed model's outputs differ", where=model, why=why[:500],
            remedy="leave a step out; --no-check writes the model all the same",
        )  # fmt: skip


def _one_model(path: str) -> "SourceModel":
    from pipeline.core.errors import ConfigError
    from pipeline.model.sources import find_models

    models = find_models([path])
    if len(models) > 1:
        raise ConfigError("one model at a time", where=path, why=f"{len(models)} are there", remedy="name one of them")
    return models[0]


def _document(report: "TransformReport") -> dict[str, Any]:
    """The report as JSON has it, each step as it was written on the command line, too."""
    import msgspec

    document: dict[str, Any] = msgspec.to_builtins(report)
    for change, shown in zip(report.steps, document["steps"], strict=True):
        shown["text"] = change.step.text
    if report.verification:
        document["verification"]["failed"] = report.verification.failed
    return document


def _parts(report: "TransformReport", output: Path) -> "Iterator[Part]":
    """What each step changed, what was written and how its outputs compare."""
    from pipeline.report.wording import Line, Listing, size

    rows = (
        (
            change.step.text,
            f"{change.nodes_before} → {change.nodes_after}",
            f"{size(change.bytes_before)} → {size(change.bytes_after)}",
        )
        for change in report.steps
    )
    yield Listing(title="", head=("step", "nodes", "size"), rows=tuple(rows), right=("nodes", "size"))
    if report.verification:
        yield Line(_comparison(report.verification))
    if not (report.verification and report.verification.failed):
        beside = f", weights in {report.saved.data_file} ({size(report.saved.data_bytes)})"
        tail = (beside if report.saved.data_file else "") + (", unchanged since the last time" if report.reused else "")
        yield Line(f"{output}: {size(report.saved.size_bytes)}{tail}")


def _comparison(verification: "Verification") -> str:
    """How the outputs compare, in a sentence."""
    if verification.why:
        return f"not checked: {verification.why}"
    if not verification.checks:
        return "not checked: no output is a tensor of numbers"
    lacking = _not_compared(verification)
    error = max((check.max_rel_error or 0.0 for check in verification.checks), default=0.0)
    apart = f"largest relative error {error:.2g}" if error else "" if lacking else "equal to the last bit"
    apart = "; ".join(filter(None, (apart, *(f"{check.output}: {check.reason}" for check in lacking))))
    if not verification.judged:
        return f"outputs: {apart}, on {verification.data} (not judged: a step changes numbers by design)"
    passed = sum(check.passed for check in verification.checks)
    unknown = [check for check in verification.checks if check.unknown and check not in lacking]
    doubt = f"; {unknown[0].output}: {unknown[0].reason}" if unknown else ""
    return f"{passed} of {len(verification.checks)} outputs are the original's, {apart}, on {verification.data}{doubt}"


def _not_compared(verification: "Verification") -> list["OutputCheck"]:
    """The outputs of whose differences there is no figure: NaN, infinity, another shape, strings that differ."""
    return [check for check in verification.checks if check.max_rel_error is None and not check.passed]
