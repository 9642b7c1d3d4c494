"""Campaigns that were stored before: found again by their folder, or in a database of a lab."""

from pathlib import Path

from pipeline.campaign.store import CampaignRecord, open_store
from pipeline.core.errors import ConfigError
from pipeline.job.assemble import Assembled, assemble
from pipeline.job.folder import DATABASE
from pipeline.job.ship import proven


def list_campaigns(folder: Path, database: str | None) -> tuple[CampaignRecord, ...]:
    """All campaigns of a folder or database, the oldest first; raises ConfigError when there is none."""
    with open_store(_url(folder, database)) as store:
        return store.campaigns()


def stored(folder: Path, database: str | None, campaign: str | None) -> Assembled:
    """What is known of a campaign (the newest by default); raises ConfigError when it is not there."""
    with open_store(_url(folder, database)) as store:
        known = {record.id: record for record in store.campaigns()}
        if not known or (campaign and campaign not in known):
            raise ConfigError(
                f"no campaign {campaign!r} here" if campaign else "no results here",
                where=store.where,
                why=f"stored are: {', '.join(known) or 'none'}",
                remedy="run `ort-mobile run` first, or name another folder",
            )
        return proven(assemble(store, known[campaign or list(known)[-1]]), folder)


def _url(folder: Path, database: str | None) -> str:
    file = folder / DATABASE
    if database is None and not file.is_file():
        raise ConfigError(
            "no results here",
            where=str(folder),
            why="it has no results.sqlite",
            remedy="name the output folder of `ort-mobile run`, or a --database",
        )
    return database or f"sqlite:///{file}"
