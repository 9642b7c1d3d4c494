"""Findings as every command shows them: on stderr, in the parts of our errors."""

from collections.abc import Iterable

import click

from pipeline.core.finding import Finding, Severity
from pipeline.report.wording import visible


def show_findings(findings: Iterable[Finding]) -> None:
    """Print findings to stderr; names of models and libraries in them cannot steer the terminal."""
    for finding in findings:
        color = "red" if finding.severity is Severity.ERROR else "yellow"
        place = f"{finding.where}: " if finding.where else ""
        click.echo(f"{click.style(finding.severity.value, fg=color)}: {visible(place + finding.what)}", err=True)
        for label, text in (("why", finding.why), ("remedy", finding.remedy)):
            if text:
                click.echo(f"  {label}: {visible(text)}", err=True)
