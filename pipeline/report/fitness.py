"""What `ort-mobile check` shows in the terminal."""

import shlex
from collections.abc import Iterator, Mapping, Sequence

import click

from pipeline.report.wording import visible
from pipeline.advice.fitness import CPU, Fit, FitDocument, FitRow, ModelFit
from pipeline.advice.help import Help
from pipeline.core.releases import by_rules, line_of
from pipeline.partition.answer import Optimize, Provider

NAMES = {
    Provider.NNAPI: "NNAPI",
    Provider.COREML_NN: "CoreML NeuralNetwork",
    Provider.COREML_MLPROGRAM: "CoreML MLProgram",
    Provider.XNNPACK: "XNNPACK",
    CPU: "CPU",
}
COLOURS = {"yes": "green", "maybe": "yellow", "no": "red"}
HEAD = ("nodes", "partitions", "fit")
MOST_NAMES = 6
GUIDANCE = (
    "Fit follows ONNX Runtime's own guidance (its mobile usability checker): yes for one partition with over 75 % of\n"
    "the nodes, maybe for one with over 50 % or two with over 75 %, else no. It has none for XNNPACK, which computes\n"
    "on the CPU: here maybe from over 50 % on. Measure on a phone before you decide."
)


def show_fits(document: FitDocument) -> None:
    """Print answers to stdout; models that could not be judged to stderr."""
    for model in document.models:
        if model.error:
            _show_error(model)
            continue
        for line in _lines(model, by_rules(line_of(document.ort_release))):
            click.echo(line)
    if any(not model.error for model in document.models):
        click.echo(click.style(GUIDANCE, dim=True))


def _show_error(model: ModelFit) -> None:
    click.echo(f"{click.style('error:', fg='red', bold=True)} {visible(f'{model.path}: {model.error}')}", err=True)
    if model.remedy:
        click.echo(f"  {click.style('remedy:', fg='cyan')} {visible(model.remedy)}", err=True)


def _lines(model: ModelFit, release: str) -> Iterator[str]:
    opset = f", opset {model.opset}" if model.opset else ""
    nodes = f"{model.nodes} node{'s' * (model.nodes != 1)}"
    yield f"{click.style(visible(model.path), bold=True)}: {nodes}{opset}, ONNX Runtime {release}"
    if model.dynamic:
        guessed = f"; guessed: {_named(model.guessed)}" if model.guessed else ""
        yield f"dynamic dimensions: {_named(model.dynamic)}{guessed}"
    yield ""
    yield from _table(model)
    yield ""
    for row in model.rows:
        fit = row.fixed or row.as_is
        if row.ep != CPU or fit.verdict == "no":
            yield f"{NAMES[row.ep]}: {visible(fit.reason)}"
    yield from _helps(model)
    for note in model.notes:
        yield f"{click.style('note:', fg='yellow')} {visible(note)}"
    yield f"Details: {_command(model)} --ep {Provider.NNAPI}"
    yield ""


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return visible(", ".join(names[:MOST_NAMES])) + more


def _table(model: ModelFit) -> Iterator[str]:
    """Columns for the model as it is, and beside them with sizes."""
    sides = ["as it is"]
    if any(row.fixed for row in model.rows):
        sides.append(f"with {_named(_sizes(model.sizes))}")
    rows = [[cell for fit in _sides(row) for cell in _cells(fit)] for row in model.rows]
    table = [[*HEAD] * len(sides), *rows]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    first = max(len(name) for name in NAMES.values())
    each = sum(widths[: len(HEAD)]) + 2 * len(HEAD)
    yield (" " * first + "".join(f"  {side:<{each - 2}}" for side in sides)).rstrip()
    for name, line in zip(["", *(NAMES[row.ep] for row in model.rows)], table, strict=True):
        pairs = enumerate(zip(line, widths, strict=True))
        cells = "".join(f"  {_padded(cell, width, column)}" for column, (cell, width) in pairs)
        yield f"{name:<{first}}{cells}".rstrip()


def _sides(row: FitRow) -> Iterator[Fit]:
    yield row.as_is
    if row.fixed:
        yield row.fixed


def _sizes(sizes: Mapping[str, int]) -> list[str]:
    return [f"{name}={size}" for name, size in sizes.items()]


def _cells(fit: Fit) -> tuple[str, str, str]:
    return f"{fit.supported}/{fit.nodes}", "-" if fit.partitions is None else str(fit.partitions), fit.verdict


def _padded(cell: str, width: int, column: int) -> str:
    """Numbers to the right, verdicts to the left and in colour."""
    if column % len(HEAD) != len(HEAD) - 1:
        return f"{cell:>{width}}"
    coloured = click.style(cell, fg=COLOURS[cell]) if cell in COLOURS else cell
    return coloured + " " * (width - len(cell))


def _helps(model: ModelFit) -> Iterator[str]:
    if not model.helps:
        return
    yield ""
    yield click.style("What would help most:", bold=True)
    for number, one in enumerate(model.helps, 1):
        yield f"  {number}. {visible(one.what)}"
        yield from (f"     {visible(line)}" for line in _help(one))
    yield f"  Try what can be done automatically: {_command(model)} --ep {_best_ep(model)} --advise"
    yield ""


def _help(one: Help) -> Iterator[str]:
    for ep, gain in one.gains.items():
        yield f"{NAMES[Provider(ep)]}: {gain}"
    if one.reason:
        yield f"because {one.reason}" + (f"; {one.remedy}" if one.remedy else "")


def _best_ep(model: ModelFit) -> str:
    return next(iter(model.helps[0].gains))


def _command(model: ModelFit) -> str:
    """The command that shows everything behind the last column of the table."""
    words = ["ort-mobile", "partition", model.path]
    if model.optimize is Optimize.BASIC:
        words += ["--optimize", "basic"]
    words += [word for size in _sizes(model.sizes) for word in ("--dimension", size)]
    return visible(shlex.join(words))
