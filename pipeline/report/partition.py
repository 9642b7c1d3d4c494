"""What `ort-mobile partition` shows in the terminal."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipeline.advice.answer import Advice, AdvisedAnswer, ProviderSupport, standing_of
from pipeline.advice.verdict import verdict
from pipeline.partition.answer import Decision, ModelAnswer, Provider
from pipeline.report.advice import advice_lines, verdict_line
from pipeline.report.console import open_console
from pipeline.report.wording import visible

MOST_DETAILED = 20
"""Up to so many models are shown with their cuts and reasons; more of them as one line each."""

MOST_CUTS = 8
MOST_REASONS = 12
MOST_LINES = 200
MOST_SIZES = 12
MOST_OPERATORS = 4
NAMES_AND_SHAPES = re.compile(r"'[^']*'|\[[^\]]*\]")
"""What differs between reasons that are the same."""


def show_answers(answers: Sequence[ModelAnswer]) -> None:
    """Print answers to stdout; models that could not be judged to stderr."""
    out, err = open_console(), open_console(stderr=True)
    good = [answer for answer in answers if not answer.error]
    for answer in answers:
        if answer.error:
            err.print(f"[bold red]error:[/] {escape(visible(answer.path))}: {escape(visible(answer.error))}")
            if answer.remedy:
                err.print(f"  [cyan]remedy:[/] {escape(visible(answer.remedy))}")
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
        choice = verdict(standing_of(answer), Provider(answer.ep)).choice.value
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
        out.print(verdict_line(verdict(standing_of(answer), Provider(answer.ep))))
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
    yield verdict_line(verdict(standing, Provider(answer.ep))).strip()
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
            key = (NAMES_AND_SHAPES.sub("", decision.reason or ""), decision.remedy or "")
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
