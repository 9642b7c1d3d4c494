"""What a job shows at its end."""

import click
from rich.console import Console

from pipeline.job import JobResult
from pipeline.release.manifest import content_digest
from pipeline.report import terminal


def show_job(result: JobResult) -> None:
    """The report in the terminal, then where everything lies."""
    console = Console(highlight=False)
    terminal.show(result.assembled.report, console)
    for left in result.left:
        click.echo(f"{left.device} was left before the end: {left.reason}", err=True)
    folder = result.folder
    click.echo(f"report   {folder / 'report.html'}, {folder / 'report.md'}, {folder / 'results.json'}")
    if result.content:
        click.echo(f"bundle   {folder / 'bundle'} (digest {content_digest(result.content)[:16]})")
    else:
        click.echo("bundle   none: no artifact may ship", err=True)
