"""What `ort-mobile convert` shows: a table of artifacts, then what failed and why."""

from collections.abc import Sequence

import msgspec
from rich.markup import escape
from rich.table import Table

from pipeline.check.compare import OutputCheck, remedy_of
from pipeline.convert.batch import Converted
from pipeline.convert.report import ConversionReport
from pipeline.core.errors import Finding, PipelineError, Severity
from pipeline.core.variant import aware_lines
from pipeline.model.sources import numbered_lines
from pipeline.report.console import open_console
from pipeline.report.wording import size, visible

MOST_ROWS = 60
"""Above this the table gives way to totals: the JSON has every row."""

MOST_FAILURES = 40
"""So many errors are shown; the JSON has every one."""


def show_conversion(report: ConversionReport) -> None:
    """Print the artifacts to stdout, failures to stderr."""
    out = open_console()
    rows = [(one, artifact) for one in report.converted for artifact in one.artifacts]
    if 0 < len(rows) <= MOST_ROWS:
        out.print(_table(report))
    reused = sum(one.result.reused for one in report.converted if one.result)
    models = sum(bool(one.artifacts) for one in report.converted)
    total = sum(artifact.size_bytes for _, artifact in rows)
    known = f", {reused} of them unchanged since the last time" if reused else ""
    nouns = [
        f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in ((len(rows), "artifact"), (models, "model"))
    ]
    if rows:
        out.print(f"{' of '.join(nouns)}, {size(total)}{known}: {escape(str(report.order.output))}")
    if report.checks:
        passed = sum(all(check.passed for check in checks) for checks in report.checks.values())
        unknown = sum(_undecided(checks) for checks in report.checks.values())
        more = f", {unknown} cannot be judged on these inputs" if unknown else ""
        out.print(f"{passed} of {len(report.checks)} give the original model's outputs{more}")
    for line in numbered_lines(one.model for one in report.converted):
        out.print(escape(visible(line)))
    for line in aware_lines(artifact for _, artifact in rows):
        out.print(escape(line))
    for model, verdicts in report.verdicts.items():
        for verdict in verdicts:
            out.print(escape(visible(f"{model}: precision {verdict.text}")))
    for path in report.configs:
        out.print(f"operators they need: {escape(str(path))}")
    show_failures(report.converted)
    _show_findings(report)
    _show_differences(report)


def _show_findings(report: ConversionReport) -> None:
    """Print what the release that will run the artifacts says to them: once for all that share it, to stderr."""
    err = open_console(stderr=True)
    shared: dict[tuple[str, Finding], list[str]] = {}
    for (model, variant), findings in report.findings.items():
        for finding in findings:
            shared.setdefault((model, msgspec.structs.replace(finding, where="")), []).append(variant)
    for (model, finding), variants in list(shared.items())[:MOST_FAILURES]:
        color = "bold red" if finding.severity is Severity.ERROR else "yellow"
        text = escape(visible(f"{model}: {finding.what}"))
        err.print(f"[{color}]{finding.severity.value}:[/] {text} [dim]({', '.join(variants)})[/]")
        for label, words in (("why", finding.why), ("remedy", finding.remedy)):
            err.print(f"  {label}: {escape(visible(words))}")
    if len(shared) > MOST_FAILURES:
        err.print(f"and {len(shared) - MOST_FAILURES} more: --json has them all")


def _show_differences(report: ConversionReport) -> None:
    """Print outputs that differ, and those that these inputs say nothing of, to stderr: once for all variants."""
    err = open_console(stderr=True)
    shared: dict[tuple[str, OutputCheck], list[str]] = {}
    for (model, variant), checks in report.checks.items():
        for check in checks:
            if not check.passed:
                told = OutputCheck(
                    output=check.output, passed=False, unknown=check.unknown, random_inputs=check.random_inputs,
                    reason=check.reason,
                )  # fmt: skip
                shared.setdefault((model, told), []).append(variant)
    for (model, check), variants in shared.items():
        head = "[yellow]not judged:[/]" if check.unknown else "[bold red]check failed:[/]"
        output = f" output {check.output!r}" if check.output else ""
        err.print(f"{head} {escape(visible(f'{model}{output}: {check.reason}'))} [dim]({', '.join(variants)})[/]")
        if check.output:
            err.print(f"  remedy: {escape(remedy_of(check))}")


def _undecided(checks: Sequence[OutputCheck]) -> bool:
    return any(check.unknown for check in checks) and not any(check.failed for check in checks)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _table(report: ConversionReport) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("model", "variant", "size", "nodes", "sha256"):
        table.add_column(name, justify="right" if name in ("size", "nodes") else "left", overflow="fold")
    for one in report.converted:
        for artifact in one.artifacts:
            nodes = f"{sum(artifact.source_operators.values())} → {sum(artifact.operators.values())}"
            cells = (visible(one.model.name), artifact.variant.name, size(artifact.size_bytes), nodes)
            table.add_row(*map(escape, cells), artifact.sha256[:12])
    return table


def show_failures(converted: tuple[Converted, ...]) -> None:
    """Print what could not be made, and warnings, to stderr: once for all variants that share a reason."""
    err = open_console(stderr=True)
    told = [(one.model.source.name, told) for one in converted for told in _failures(one)]
    for name, (error, variants) in told[:MOST_FAILURES]:
        which = f" [dim]({', '.join(variants)})[/]" if variants else ""
        err.print(f"[bold red]error:[/] {escape(visible(name))}: {escape(visible(error.what))}{which}")
        for label, text in error.lines():
            if label in ("why", "remedy"):
                err.print(f"  {label}: {escape(visible(text))}")
    if len(told) > MOST_FAILURES:
        err.print(f"and {len(told) - MOST_FAILURES} more errors: --json has them all")
    for (name, note), variants in _notes(converted).items():
        which = f" [dim]({', '.join(variants)})[/]"
        err.print(f"[yellow]warning:[/] {escape(visible(name))}: {escape(visible(note))}{which}")
    for reason, names in _skipped(converted).items():
        err.print(f"[yellow]skipped[/] {', '.join(names)}: {escape(reason)}")


def _notes(converted: tuple[Converted, ...]) -> dict[tuple[str, str], list[str]]:
    """The variants that a warning about a model is for."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in converted:
        for artifact in one.artifacts:
            for note in artifact.notes:
                found.setdefault((one.model.source.name, note), []).append(artifact.variant.name)
    return found


def _failures(one: Converted) -> list[tuple[PipelineError, list[str]]]:
    """The errors of a model, each with the variants that it cost; none where it cost the whole model."""
    if one.error:
        return [(one.error, [])]
    found: dict[tuple[str, str, str], list[str]] = {}
    for failure in one.failures:
        if not failure.skipped:
            found.setdefault((failure.what, failure.why, failure.remedy), []).append(failure.variant.name)
    whole = not one.artifacts and len(found) == 1
    return [
        (PipelineError(what, why=why, remedy=remedy), [] if whole else names)
        for (what, why, remedy), names in found.items()
    ]


def _skipped(converted: tuple[Converted, ...]) -> dict[str, list[str]]:
    """Variants that the releases do not have, by reason."""
    found: dict[str, dict[str, None]] = {}
    for one in converted:
        for failure in one.failures:
            if failure.skipped:
                found.setdefault(f"{failure.why}; {failure.remedy}", {})[failure.variant.name] = None
    return {reason: list(names) for reason, names in found.items()}
