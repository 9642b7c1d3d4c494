"""What `ort-mobile partition` shows in the terminal."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipeline.advice.answer import Advice, AdvisedAnswer, standing_of
from pipeline.advice.verdict import verdict
from pipeline.partition.answer import ModelAnswer, Provider
from pipeline.report.advice import advice_lines, verdict_line
from pipeline.report.console import open_console
from pipeline.report.wording import visible

MOST_DETAILED = 20
"""Up to so many models are shown with their cuts and reasons; more of them as one line each."""

MOST_CUTS = 8
MOST_REASONS = 12
MOST_LINES = 200


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
    for name in ("model", "nodes", "claimed", "partitions", "load", "verdict", "best fixes"):
        table.add_column(
            name, justify="right" if name in ("nodes", "claimed", "partitions") else "left", overflow="fold"
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
    sizes = ", ".join(str(len(group)) for group in answer.partitions) or "none"
    out.print(f"[bold]{escape(visible(answer.path))}[/]  {answer.ep}, ONNX Runtime {answer.release_text}")
    out.print(f"  {answer.claimed} of {answer.nodes} nodes claimed ({coverage(answer):.0%})")
    out.print(f"  partitions: {len(answer.partitions)}, of so many nodes: {sizes}")
    for body in answer.subgraphs:
        out.print(f"  inside {escape(visible(body.owner))}: {len(body.partitions)} partitions")
    if answer.load and answer.load.error:
        out.print(f"  [bold red]does not load on the phone:[/] {escape(visible(answer.load.error))}")
        out.print(f"    [cyan]remedy:[/] {escape(visible(answer.load.remedy or ''))}")
    elif answer.load:
        about = "about " if answer.load.estimate else ""
        out.print(f"  on load: {about}{answer.load.partitions} compiled nodes")
    out.print(verdict_line(verdict(standing_of(answer), Provider(answer.ep))))
    _show_cuts(out, answer)
    _show_reasons(out, answer)
    if advice := _advice(answer):
        for line in advice_lines(advice):
            out.print(line)
    for warning in answer.warnings:
        out.print(f"  [yellow]note:[/] {escape(visible(warning))}")
    out.print()


def _show_cuts(out: Console, answer: ModelAnswer) -> None:
    if not answer.cuts:
        return
    out.print("  [bold]nodes that cut the graph[/], and what claiming each would give:")
    for cut in answer.cuts[:MOST_CUTS]:
        gain = f"partitions {len(answer.partitions)} → {cut.partitions}, nodes {answer.claimed} → {cut.claimed}"
        out.print(f"    {escape(cut.op_type)} [dim]{escape(visible(cut.output))}[/]  {gain}")
        out.print(f"      {escape(visible(cut.reason))}")
        if cut.remedy:
            out.print(f"      [cyan]remedy:[/] {escape(visible(cut.remedy))}")
    if len(answer.cuts) > MOST_CUTS:
        out.print(f"    … {len(answer.cuts) - MOST_CUTS} more")


def _show_reasons(out: Console, answer: ModelAnswer) -> None:
    """Reasons of all refused nodes, equal ones once with their number."""
    refused = [decision for decision in answer.decisions if not decision.claimed]
    counted = Counter((d.op_type, d.reason or "", d.remedy or "") for d in refused)
    if counted:
        out.print("  [bold]refused nodes:[/]")
    for (op_type, reason, remedy), count in counted.most_common(MOST_REASONS):
        tail = f" [cyan]({escape(visible(remedy))})[/]" if remedy else ""
        out.print(f"    {count} x {escape(op_type)}: {escape(visible(reason))}{tail}")
    if len(counted) > MOST_REASONS:
        out.print(f"    … {len(counted) - MOST_REASONS} more reasons: --json has all")
