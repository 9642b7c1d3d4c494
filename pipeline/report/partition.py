"""What `ort-mobile partition`, its `--advise` and `ort-mobile check` show in the terminal."""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from device_runner.providers import CPU, provider_named
from pipeline.advice.fitness import FitDocument, FitRow, ModelFit, ProviderFit
from pipeline.advice.verdict import (
    Advice,
    AdviceVerdict,
    AdvisedAnswer,
    Combination,
    FixChoice,
    FixOutcome,
    FixResult,
    Help,
    ProviderSupport,
    standing_of,
    verdict,
)
from pipeline.core.providers import NNAPI, PROVIDER_RULES
from pipeline.core.releases import by_rules, line_of
from pipeline.partition.answer import Decision, ModelAnswer, Optimize
from pipeline.partition.placement import same_reason
from pipeline.report.console import open_console
from pipeline.report.wording import visible

CHOICE_COLOURS = {FixChoice.USE: "green", FixChoice.MEASURE: "yellow", FixChoice.CPU: "red"}


def verdict_line(verdict: AdviceVerdict) -> str:
    """The verdict with its reason, as markup."""
    colour = CHOICE_COLOURS[verdict.choice]
    return f"  verdict: [bold {colour}]{verdict.choice.value}[/]: {escape(visible(verdict.reason))}"


def advice_lines(advice: Advice) -> Iterator[str]:
    """Markup lines: what each fix gains, why others do not, and the best combination."""
    if advice.error:
        yield f"  [bold red]no advice:[/] {escape(visible(advice.error))}"
        return
    gains = [result for result in advice.fixes if result.outcome is FixOutcome.GAINS]
    yield (
        "  [bold]fixes[/], each applied alone, partitioned again and compared:" if gains else "  no fix gains anything"
    )
    for result in gains:
        yield f"    [green]{escape(result.name)}[/] ({escape(result.title)}): {result.gain}{_error(result)}"
    yield from _others(advice)
    if advice.precision:
        yield f"  {escape(advice.precision)}"
    if advice.copied:
        yield f"  nothing to improve in the model itself; copied unchanged to {escape(visible(advice.copied))}"
    if advice.best:
        yield from _best_lines(advice.best)
    if gains:
        yield f"  [dim]compared on {escape(visible(advice.checked_on))}[/]"


def _error(result: FixResult | Combination) -> str:
    """The numeric error in words."""
    if result.error is None:
        return ""
    if result.error == 0:
        return ", outputs equal"
    if result.tolerance is not None and result.error > result.tolerance:
        return f", absolute error {result.absolute_error:.1g} of {result.limit:.1g} allowed"
    return f", relative error {result.error:.1g} of {result.tolerance:g} allowed"


def _others(advice: Advice) -> Iterator[str]:
    """Fixes that were rejected with their reasons, and how many had nothing to do or gained nothing."""
    for result in advice.fixes:
        if result.outcome is FixOutcome.REJECTED:
            yield f"    [yellow]{escape(result.name)}[/] rejected: {escape(visible(result.why))}"
    for outcome in (FixOutcome.NO_GAIN, FixOutcome.NOT_APPLICABLE):
        names = [result.name for result in advice.fixes if result.outcome is outcome]
        if names:
            yield f"    [dim]{outcome.value}: {', '.join(names)}[/]"


def _best_lines(best: Combination) -> Iterator[str]:
    yield f"  [bold]best together[/]: {' + '.join(best.fixes)}: {best.gain}{_error(best)}"
    for setting in best.settings:
        yield f"    needs the setting {escape(setting)}"
    yield verdict_line(best.verdict).replace("verdict:", "  verdict then:")
    if best.written:
        yield f"    written to {escape(visible(best.written))}"


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
            yield f"{_title(row.ep)}: {visible(fit.reason)}"
    yield from _helps(model)
    for note in model.notes:
        yield f"{click.style('note:', fg='yellow')} {visible(note)}"
    yield f"Details: {_command(model)} --ep {NNAPI}"
    yield ""


def _title(ep: str) -> str:
    """Of a provider with rules, or of the CPU."""
    return (PROVIDER_RULES.get(ep) or provider_named(ep)).title


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
    first = max(len(row.title) for row in PROVIDER_RULES.values())
    each = sum(widths[: len(HEAD)]) + 2 * len(HEAD)
    yield (" " * first + "".join(f"  {side:<{each - 2}}" for side in sides)).rstrip()
    for name, line in zip(["", *(_title(row.ep) for row in model.rows)], table, strict=True):
        pairs = enumerate(zip(line, widths, strict=True))
        cells = "".join(f"  {_padded(cell, width, column)}" for column, (cell, width) in pairs)
        yield f"{name:<{first}}{cells}".rstrip()


def _sides(row: FitRow) -> Iterator[ProviderFit]:
    yield row.as_is
    if row.fixed:
        yield row.fixed


def _sizes(sizes: Mapping[str, int]) -> list[str]:
    return [f"{name}={size}" for name, size in sizes.items()]


def _cells(fit: ProviderFit) -> tuple[str, str, str]:
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
        yield f"{PROVIDER_RULES[ep].title}: {gain}"
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


MOST_DETAILED = 20
"""Up to so many models are shown with their cuts and reasons; more of them as one line each."""

MOST_CUTS = 8
MOST_REASONS = 12
MOST_LINES = 200
MOST_SIZES = 12
MOST_OPERATORS = 4


def show_failed(answers: Iterable[ModelAnswer]) -> None:
    """Print models that could not be judged to stderr, once for all providers that say the same."""
    err = open_console(stderr=True)
    for path, error, remedy in dict.fromkeys((one.path, one.error, one.remedy) for one in answers if one.error):
        err.print(f"[bold red]error:[/] {escape(visible(path))}: {escape(visible(error))}")
        if remedy:
            err.print(f"  [cyan]remedy:[/] {escape(visible(remedy))}")


def show_answers(answers: Sequence[ModelAnswer]) -> None:
    """Print the answers of one provider to stdout, but for models that could not be judged."""
    out = open_console()
    good = [answer for answer in answers if not answer.error]
    if len(good) > MOST_DETAILED:
        out.print(_overview(good))
        return
    for answer in good:
        _show(out, answer)


def coverage(answer: ModelAnswer) -> float:
    """The claimed share of the nodes, 0 to 1."""
    return answer.claimed / answer.nodes if answer.nodes else 0.0


def _advice(answer: ModelAnswer) -> Advice | None:
    return answer.advice if isinstance(answer, AdvisedAnswer) else None


def _best(advice: Advice | None) -> str:
    best = advice.best if advice else None
    return f"{' + '.join(best.fixes)}: {best.gain}" if best else ""


def _overview(answers: Sequence[ModelAnswer]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("model", "nodes", "supported", "partitions", "load", "verdict", "best fixes"):
        table.add_column(
            name, justify="right" if name in ("nodes", "supported", "partitions") else "left", overflow="fold"
        )
    for answer in answers[:MOST_LINES]:
        row = (visible(answer.path), str(answer.nodes), f"{coverage(answer):.0%}", str(len(answer.partitions)))
        loads = "[red]fails[/]" if answer.load and answer.load.error else ""
        choice = verdict(standing_of(answer), answer.ep).choice.value
        table.add_row(*map(escape, row), loads, choice, escape(_best(_advice(answer))))
    if len(answers) > MOST_LINES:
        table.add_row(f"… {len(answers) - MOST_LINES} more: --json has all")
    return table


def _show(out: Console, answer: ModelAnswer) -> None:
    out.print(f"[bold]{escape(visible(answer.path))}[/]  {answer.ep}, ONNX Runtime {answer.release_text}")
    for line in _headline(answer):
        out.print(f"  {line}")
    for body in answer.subgraphs:
        out.print(f"  inside {escape(visible(body.owner))}: {partitions_text(len(body.partitions))}")
    if answer.load and answer.load.error:
        out.print(f"  [bold red]does not load on the phone:[/] {escape(visible(answer.load.error))}")
        out.print(f"    [cyan]remedy:[/] {escape(visible(answer.load.remedy or ''))}")
    elif answer.load:
        about = "about " if answer.load.estimate else ""
        nodes = f"{answer.load.partitions} node{'s' * (answer.load.partitions != 1)}"
        out.print(f"  {about}{nodes} compiled by the EP at load")
    if not answer.fixed:
        out.print(verdict_line(verdict(standing_of(answer), answer.ep)))
    _show_cuts(out, answer)
    _show_reasons(out, answer)
    if advice := _advice(answer):
        for line in advice_lines(advice):
            out.print(line)
    for warning in answer.warnings:
        out.print(f"  [yellow]note:[/] {escape(visible(warning))}")
    out.print()


def _headline(answer: ModelAnswer) -> Iterator[str]:
    """How much is supported; of a model with dynamic dimensions first what it is about, and what sizes would give."""
    sizes = [len(group) for group in answer.partitions]
    yield f"{answer.claimed} of {answer.nodes} nodes supported ({coverage(answer):.0%})"
    yield partitions_text(len(sizes)) + (f" ({_listed(sizes)})" if sizes else "")
    if not answer.fixed:
        return
    fixed = answer.fixed
    yield f"[yellow]dimensions are dynamic:[/] {escape(visible(', '.join(answer.dynamic)))}"
    named = ", ".join(f"{name}={size}" for name, size in fixed.sizes.items())
    standing = ProviderSupport(
        nodes=fixed.nodes,
        claimed=fixed.claimed,
        partitions=fixed.partitions,
        load_error=fixed.load.error if fixed.load else None,
    )
    share = f"{standing.coverage:.0%}"
    yield (
        f"[bold]with fixed sizes[/], as {escape(visible(named))}: {fixed.claimed} of {fixed.nodes} nodes ({share}) in "
        f"{partitions_text(fixed.partitions)}"
    )
    yield verdict_line(verdict(standing, answer.ep)).strip()
    yield "[cyan]remedy:[/] give the sizes of your app with --dimension NAME=N; with --fix FILE they are written"


def partitions_text(count: int) -> str:
    """As in `1 partition`."""
    return f"{count} partition{'s' * (count != 1)}"


def _listed(sizes: Sequence[int]) -> str:
    """As in `10 and 1 nodes`."""
    shown = [str(size) for size in sizes[:MOST_SIZES]]
    if len(sizes) > MOST_SIZES:
        shown.append(f"{len(sizes) - MOST_SIZES} more partitions")
    text = " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
    return text if len(sizes) > MOST_SIZES else f"{text} node{'s' * (sizes != [1])}"


def _show_cuts(out: Console, answer: ModelAnswer) -> None:
    if not answer.cuts:
        return
    out.print("  [bold]nodes that cut the graph[/], and what supporting each would give:")
    for cut in answer.cuts[:MOST_CUTS]:
        gain = f"partitions {len(answer.partitions)} → {cut.partitions}, nodes {answer.claimed} → {cut.claimed}"
        out.print(f"    {escape(cut.op_type)} [dim]{escape(visible(cut.output))}[/]  {gain}")
        out.print(f"      {escape(visible(cut.reason))}")
        if cut.remedy:
            out.print(f"      [cyan]remedy:[/] {escape(visible(cut.remedy))}")
    if len(answer.cuts) > MOST_CUTS:
        out.print(f"    … {len(answer.cuts) - MOST_CUTS} more")


def _show_reasons(out: Console, answer: ModelAnswer) -> None:
    """Reasons of all refused nodes; those that differ in names and shapes alone once, with one of them in full."""
    grouped: dict[tuple[str, str], list[Decision]] = {}
    for decision in answer.decisions:
        if not decision.claimed:
            key = (same_reason(decision.reason or ""), decision.remedy or "")
            grouped.setdefault(key, []).append(decision)
    if grouped:
        out.print("  [bold]nodes that are not supported:[/]")
    ranked = sorted(grouped.items(), key=lambda item: -len(item[1]))
    for (_, remedy), alike in ranked[:MOST_REASONS]:
        tail = f" [cyan]({escape(visible(remedy))})[/]" if remedy else ""
        other = "for example " if len({decision.reason for decision in alike}) > 1 else ""
        reason = escape(visible(alike[0].reason or ""))
        out.print(f"    {len(alike)} x {escape(_operators(alike))}: {other}{reason}{tail}")
    if len(ranked) > MOST_REASONS:
        out.print(f"    … {len(ranked) - MOST_REASONS} more reasons: --json has all")


def _operators(alike: Sequence[Decision]) -> str:
    """As in `Conv, Relu and 4 more`, the commonest first."""
    names = [name for name, _ in Counter(decision.op_type for decision in alike).most_common()]
    more = len(names) - MOST_OPERATORS
    return ", ".join(names[:MOST_OPERATORS]) + (f" and {more} more" if more > 0 else "")
