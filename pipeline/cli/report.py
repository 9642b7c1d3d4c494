"""`ort-mobile report`: the reports of stored results, written again."""

from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--database", help="SQLAlchemy URL, where results are not in FOLDER/results.sqlite.")
@click.option("--campaign", help="Id of a campaign; the newest by default.")
@click.option("--list", "list_only", is_flag=True, help="List the stored campaigns and stop.")
def report(folder: Path, database: str | None, campaign: str | None, list_only: bool) -> None:
    """Write report.html, report.md and results.json of results that a run stored in FOLDER, and show the table."""
    from rich.console import Console

    from pipeline.job.run import write_reports
    from pipeline.job.stored import list_campaigns, stored
    from pipeline.report import terminal

    if list_only:
        for known in list_campaigns(folder, database):
            click.echo(f"{known.id}  {known.name}")
        return
    assembled = stored(folder, database, campaign)
    write_reports(assembled, folder)
    terminal.show(assembled.report, Console(highlight=False))
