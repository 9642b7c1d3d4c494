"""`ort-mobile release`: the bundle of stored results, made again."""

from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--database", help="SQLAlchemy URL, where results are not in FOLDER/results.sqlite.")
@click.option("--campaign", help="Id of a campaign; the newest by default.")
def release(folder: Path, database: str | None, campaign: str | None) -> None:
    """Choose anew from the results that a run stored in FOLDER, and make FOLDER/bundle of what ships."""
    from pipeline.errors import CheckFailed
    from pipeline.job.ship import ship
    from pipeline.job.stored import stored
    from pipeline.release.manifest import content_digest

    assembled = stored(folder, database, campaign)
    content = ship(assembled, folder)
    if content is None:
        raise CheckFailed(
            "nothing may ship",
            where=str(folder),
            why="no artifact's outputs were compared with the original model's and found near enough",
            remedy="see the report for what failed",
        )
    for shipped in content.ships:
        click.echo(f"{shipped.target}: {shipped.model} {shipped.variant.name} on {shipped.provider} ({shipped.basis})")
    click.echo(f"bundle   {folder / 'bundle'} (digest {content_digest(content)[:16]})")
