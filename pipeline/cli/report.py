"""`ort-mobile report`: the reports of stored results, written again."""

from pathlib import Path

import click

from pipeline.cli.command import Command
from pipeline.cli.options import json_option, shows_text, write_json


@click.command(cls=Command)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--database", help="SQLAlchemy URL.  [default: FOLDER/results.sqlite]")
@click.option("--campaign", help="Id of a campaign, as --list shows.  [default: the newest]")
@json_option
@click.option("--list", "list_only", is_flag=True, help="List the stored campaigns instead.")
def report(folder: Path, database: str | None, campaign: str | None, list_only: bool, json_to: str | None) -> None:
    """Write report.html, report.md and results.json again from the results stored in FOLDER, and show the table."""
    from pipeline.job.run import write_reports
    from pipeline.job.stored import list_campaigns, stored
    from pipeline.report import terminal
    from pipeline.report.console import open_console

    if list_only:
        campaigns = list_campaigns(folder, database)
        if json_to:
            write_json({"campaigns": [{"id": known.id, "name": known.name} for known in campaigns]}, json_to)
        for known in campaigns if shows_text(json_to) else ():
            click.echo(f"{known.id}  {known.name}")
        return
    assembled = stored(folder, database, campaign)
    write_reports(assembled, folder)
    if json_to:
        write_json(assembled.report, json_to)
    if shows_text(json_to):
        terminal.show(assembled.report, open_console())
