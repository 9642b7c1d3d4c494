"""What `ort-mobile partition --reference` shows beyond the answers: our claims beside the library's."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipeline.partition.reference.compare import LibraryReference
from pipeline.partition.reference.diff import ClaimDiff, NodeDiff, Side
from pipeline.report.console import open_console
from pipeline.report.partition import MOST_DETAILED
from pipeline.report.wording import visible

MOST_NODES = 60
"""Up to so many nodes of one model are all listed; of larger ones those that differ."""

MOST_DIFFERENT = 40
"""So many differing nodes of one model are listed; the JSON has all."""


def show_reference(reference: LibraryReference) -> None:
    """Print models beside one another, what differs with both reasons, and one line that sums up; to stdout."""
    out, err = open_console(), open_console(stderr=True)
    few = len(reference.models) <= MOST_DETAILED
    for one in reference.models:
        if one.error and reference.rules:  # without rules it is an error of the answer, which was shown
            err.print(f"[bold red]no answer of the library:[/] {escape(visible(f'{one.path}: {one.error}'))}")
        elif one.asked and not one.error and (few or one.same is False):
            _show(out, one, everything=few and len(one.nodes) <= MOST_NODES)
    out.print(escape(summary(reference)), soft_wrap=True)


def summary(reference: LibraryReference) -> str:
    """How many models differ, by which library."""
    library = f"libonnxruntime {reference.release or 'of unknown release'}"
    library += f" for {reference.abi} (sha256 {reference.sha256[:12]})"
    failed = sum(bool(one.error) for one in reference.models)
    silent = f", {failed} without an answer of the library" if failed else ""
    answered = sum(one.asked for one in reference.models) - failed
    models = f"{answered} model{'' if answered == 1 else 's'}"
    if not reference.rules:
        return f"{models}: no rules for this release, the claims are those of {library}{silent}"
    return f"{models} checked against {library}: {reference.different} different{silent}"


def _show(out: Console, one: ClaimDiff, *, everything: bool) -> None:
    nodes = [node for node in one.nodes if everything or node.different]
    out.print(f"[bold]{escape(visible(one.path))}[/]  {_verdict(one)}", soft_wrap=True)
    if nodes:
        out.print(_table(nodes[: len(nodes) if everything else MOST_DIFFERENT]))
    if len(nodes) > MOST_DIFFERENT and not everything:
        out.print(f"  … {len(nodes) - MOST_DIFFERENT} more: --json has all")
    for note in one.notes:
        out.print(f"  [yellow]note:[/] {escape(note)}")
    out.print()


def _verdict(one: ClaimDiff) -> str:
    theirs = _partitions(one.library_partitions)
    if one.same is None:
        claimed = sum(node.library is not None and node.library.claimed for node in one.nodes)
        return f"the library claims {claimed} of {len(one.nodes)} nodes, {theirs}"
    if one.same:
        return f"[green]the same claims[/], {theirs}"
    different = sum(node.different for node in one.nodes)
    nodes = "1 node differs" if different == 1 else f"{different} nodes differ"
    return f"[bold red]{nodes}[/]: ours {_partitions(one.our_partitions or 0)}, the library's {theirs}"


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"


def _table(nodes: Sequence[NodeDiff]) -> Table:
    """Without rules for the release there is no column for ours."""
    table = Table(box=None, pad_edge=True, header_style="bold")
    ours = any(node.ours for node in nodes)
    for name in ("", "node", "operator", *(["ours"] if ours else []), "library"):
        table.add_column(name, overflow="fold")
    for node in nodes:
        mark = "[red]≠[/]" if node.different else ""
        sides = [_words(side) for side in ([node.ours, node.library] if ours else [node.library])]
        table.add_row(mark, *map(escape, (visible(node.output), visible(node.op_type), *sides)))
    return table


def _words(side: Side | None) -> str:
    if side is None:
        return "-"
    if side.claimed:
        return "claimed" if side.partition is None else f"partition {side.partition + 1}"
    return f"CPU: {visible(side.reason)}" if side.reason else "CPU"
