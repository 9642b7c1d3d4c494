"""What `compare` is given: results.json, a database, an output folder or a bundle, read as a campaign's report."""

from pathlib import Path

import msgspec

from device_runner.device import DeviceFacts
from device_runner.reading import read_regular
from pipeline.campaign.record import Host
from pipeline.campaign.statistics.compare import DEFAULT_MARGIN
from pipeline.campaign.store.errors import hidden
from pipeline.core.errors import ConfigError, PipelineError
from pipeline.job.stored import DATABASE, REPORT_BYTES, has_campaigns, own_campaign, stored
from pipeline.release.manifest import MANIFEST_FILE, read_manifest
from pipeline.report import model
from pipeline.report.comparison import ComparedSide
from pipeline.report.model import CampaignReport, Row

SQLITE = b"SQLite format 3\0"
PREVIOUS = "previous"
"""What stands for the campaign before the newest, as in output/my#previous."""


def read_side(text: str, run: str = "") -> ComparedSide:
    """The campaign that `PATH`, `URL` or either with `#CAMPAIGN` names.

    Raises ConfigError for what is nothing of these, and PipelineError for what is damaged or another release's.
    """
    place, _, campaign = text.partition("#") if not Path(text).exists() else (text, "", "")
    if "://" in place:
        report = _stored(None, place, campaign)
    else:
        path = Path(place)
        if not path.exists():
            raise ConfigError(
                "there is nothing to compare", where=place, why="no file or folder has this name",
                remedy="name results.json, results.sqlite, an output folder, a bundle of ort-mobile, or a database URL",
            )  # fmt: skip
        report = _of_path(path, campaign)
    return ComparedSide(source=hidden(text), report=report, run=run)


def _of_path(path: Path, campaign: str) -> CampaignReport:
    if path.is_dir():
        if (path / MANIFEST_FILE).is_file():
            return _of_bundle(path)
        if (path / DATABASE).is_file() or (campaign and has_campaigns(path)):
            return _stored(path, None, campaign)
        return _of_document(path / model.FILE_NAME)
    try:
        head = read_regular(path, REPORT_BYTES)[: len(SQLITE)]
    except OSError as error:
        raise ConfigError("the file cannot be read", where=str(path), why=str(error)) from error
    return (
        _stored(path.parent if path.name == DATABASE else None, f"sqlite:///{path}", campaign)
        if head == SQLITE
        else _of_document(path)
    )


def _of_document(path: Path) -> CampaignReport:
    try:
        content = read_regular(path, REPORT_BYTES)
    except OSError as error:
        raise ConfigError(
            f"there is no {model.FILE_NAME} here", where=str(path), why=error.strerror or str(error),
            remedy="name results.json, results.sqlite, an output folder or a bundle of ort-mobile",
        ) from error  # fmt: skip
    return model.decode(content, str(path))


def _stored(folder: Path | None, database: str | None, campaign: str) -> CampaignReport:
    if campaign == PREVIOUS:
        campaign = _before_the_newest(folder, database)
    return stored(folder, database, campaign or None).report


def _before_the_newest(folder: Path | None, database: str | None) -> str:
    """The last campaign before the newest that has its name; those of searches have no rounds."""
    with own_campaign(folder, database) as (store, newest):
        known = store.names()
        earlier = [one for one in list(known)[: list(known).index(newest.id)] if known[one] == newest.name]
        for name in reversed(earlier):
            if not ((document := store.campaign(name).document) and document.searching):
                return name
        raise ConfigError(
            "no campaign is before the newest", where=store.where, remedy="`ort-mobile report --list` lists all"
        )


class _Evidence(msgspec.Struct):
    """What a bundle keeps of its campaign."""

    campaign: str
    created_at: str
    host: Host
    versions: dict[str, str]
    devices: tuple[DeviceFacts, ...]
    measured: tuple[Row, ...]


def _of_bundle(folder: Path) -> CampaignReport:
    manifest = read_manifest(folder)
    try:
        found = msgspec.convert(manifest.evidence, _Evidence)
    except msgspec.ValidationError as error:
        raise PipelineError(
            "the bundle does not say what was measured", where=str(folder), why=str(error),
            remedy="make it again: `ort-mobile release OUTPUT`",
        ) from error  # fmt: skip
    return CampaignReport(
        name=manifest.content.name,
        campaign=found.campaign,
        created_at=found.created_at,
        margin=DEFAULT_MARGIN,
        host=found.host,
        versions=found.versions,
        devices=found.devices,
        rows=found.measured,
    )
