"""What `ort-mobile convert` shows: a table of artifacts, then what failed and why."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipeline.conversion import ConversionReport, Converted

MOST_ROWS = 60
"""Above this the table gives way to totals: the JSON has every row."""


def show_conversion(report: ConversionReport) -> None:
    """Print the artifacts to stdout, failures to stderr."""
    out = Console(highlight=False)
    rows = [(one, artifact) for one in report.converted for artifact in one.artifacts]
    if 0 < len(rows) <= MOST_ROWS:
        out.print(_table(report))
    reused = sum(one.result.reused for one in report.converted if one.result)
    models = sum(bool(one.artifacts) for one in report.converted)
    size = sum(artifact.size_bytes for _, artifact in rows)
    known = f", {reused} of them unchanged since the last time" if reused else ""
    out.print(f"{len(rows)} artifacts of {models} models, {size_text(size)}{known}: {escape(str(report.order.output))}")
    for path in report.configs:
        out.print(f"operators they need: {escape(str(path))}")
    show_failures(report.converted)


def _table(report: ConversionReport) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("model", "variant", "file", "size", "nodes", "sha256"):
        table.add_column(name, justify="right" if name in ("size", "nodes") else "left", overflow="fold")
    for one in report.converted:
        for artifact in one.artifacts:
            nodes = f"{sum(artifact.source_operators.values())} → {sum(artifact.operators.values())}"
            cells = (one.model.name, artifact.variant.name, artifact.file, size_text(artifact.size_bytes), nodes)
            table.add_row(*map(escape, cells), artifact.sha256[:12])
    return table


def show_failures(converted: tuple[Converted, ...]) -> None:
    """Print what could not be made to stderr, each with its reason and remedy; skipped variants once per reason."""
    err = Console(stderr=True, highlight=False)
    skipped: dict[tuple[str, str], list[str]] = {}
    for one in converted:
        if one.error:
            err.print("\n".join(f"[bold red]{label}:[/] {escape(text)}" for label, text in one.error.lines()))
        for failure in one.failures:
            if failure.skipped:
                skipped.setdefault((failure.why, failure.remedy), []).append(failure.variant.name)
            else:
                told = f"{failure.what}: {failure.why}" + (f" ({failure.remedy})" if failure.remedy else "")
                err.print(f"[bold red]{escape(one.model.source.name)}[/] {failure.variant.name}: {escape(told)}")
    for (why, remedy), names in skipped.items():
        err.print(f"[yellow]skipped[/] {', '.join(dict.fromkeys(names))}: {escape(why)}; {escape(remedy)}")


def size_text(size_bytes: int) -> str:
    """Bytes for people: 812 B, 24.8 KB, 102 MB (1 KB is 1000 bytes)."""
    amount, unit = float(size_bytes), "B"
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1000 or unit == "GB":
            break
        amount /= 1000
    return f"{amount:.3g} {unit}" if unit != "B" else f"{size_bytes} B"
