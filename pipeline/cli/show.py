"""What a job shows at its end."""

from collections.abc import Iterable

import click
from rich.console import Console

from device_runner.blame import Denied
from pipeline.blaming import deny_list
from pipeline.cli.findings import show_findings
from pipeline.finding import errors
from pipeline.job import JobResult
from pipeline.release.manifest import content_digest
from pipeline.report import terminal
from pipeline.report.wording import visible
from pipeline.run_options import options_name


def show_denied(entries: Iterable[Denied]) -> None:
    """What was newly entered in the deny list, and where that is; on stderr."""
    for entry in entries:
        model = ", this model" if entry.model_sha256 else ""
        name = f"{options_name(entry.options)} on {entry.devices.chip}{model}"
        click.echo(f"denied from now on: {visible(name)} ({deny_list()})", err=True)


def show_job(result: JobResult) -> None:
    """The report in the terminal, then where everything lies."""
    console = Console(highlight=False)
    terminal.show(result.assembled.report, console)
    for left in result.left:
        click.echo(visible(f"{left.device} was left before the end: {left.reason}"), err=True)
    show_denied(result.denied)
    show_findings(result.findings)
    folder = result.folder
    click.echo(f"report   {folder / 'report.html'}, {folder / 'report.md'}, {folder / 'results.json'}")
    if result.content:
        click.echo(f"bundle   {folder / 'bundle'} (digest {content_digest(result.content)[:16]})")
    else:
        reason = "see the errors above" if errors(result.findings) else "no artifact may ship"
        click.echo(f"bundle   none: {reason}", err=True)
