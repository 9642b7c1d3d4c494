"""The output folder of a job: it belongs to one job at a time, and knows which stored campaigns are its own.

A database may be a lab's, with the campaigns of many folders: a folder keeps the ids of its own in `campaign.json`, and
the database where that was not its results.sqlite, so that reports and releases are never made of another's campaign.
"""

import contextlib
import errno
import fcntl
import os
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from device_runner import files as runner_files
from device_runner import untrusted_files
from pipeline.core import files as storage
from pipeline.core.errors import ConfigError

if TYPE_CHECKING:  # all imported late: `report --list` waits for none of them, a history not for the writers
    from pipeline.campaign.record import CampaignRecord
    from pipeline.campaign.store import Store
    from pipeline.job.assemble import Assembled

LOCK = ".lock"
MARKS = (LOCK, storage.DATABASE)
"""A folder with one of these is a job's; what else it has was written by jobs before."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other jobs out of an output folder, and remove what killed ones left in it; read each artifact once.

    Raises ConfigError when another job is in it, or when it has files of others that this one would overwrite.
    """
    from pipeline.model import ort_format
    from pipeline.release import manifest as bundle_manifest

    for name in () if any(_is_file(folder / mark) for mark in MARKS) else storage.WRITTEN:
        path = folder / name
        if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
            raise ConfigError(
                f"{name} in the output folder is not of an earlier run, and would be overwritten",
                where=str(path),
                why="the folder has no results of ort-mobile",
                remedy="move it away, or choose another folder with --output",
            )
    bundle_manifest.refuse_foreign(folder / storage.BUNDLE)
    storage.make_folder(folder)
    with _lock(folder / LOCK), ort_format.parse_each_once():
        _clean(folder)
        yield


def _is_file(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISREG(path.lstat().st_mode)
    return False


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold the lock; it is never followed elsewhere nor truncated, since a folder may come from anywhere."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with storage.storage_errors(path):
        try:
            descriptor = os.open(path, flags, 0o666)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise ConfigError(
                "the lock of the output folder is a symbolic link",
                where=str(path),
                why="it may point to any file of yours",
                remedy="remove it, or choose another folder with --output",
            ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                "another job works in this output folder",
                where=str(path.parent),
                why="two at once would measure each other",
                remedy="wait for it, or choose another folder with --output",
            ) from error
        yield
    finally:
        os.close(descriptor)


def _clean(folder: Path) -> None:
    """Remove what jobs that were killed left: who has the lock is the only one to write here."""
    runner_files.restore_place(folder / storage.BUNDLE)
    runner_files.remove_abandoned(runner_files.RUN_PREFIX)
    for directory in (folder, folder / storage.ARTIFACTS):
        runner_files.remove_abandoned(storage.WORK_PREFIX, directory)
    for pattern in (
        f"*{runner_files.PART}",
        f"{storage.ARTIFACTS}/*{runner_files.PART}",
        f"{storage.REFERENCES}/**/*{runner_files.PART}",
        f"{storage.PROFILES}/*{runner_files.PART}",
    ):
        for path in folder.glob(pattern):
            if _is_file(path):
                path.unlink(missing_ok=True)


REPORT_BYTES = 512 << 20
"""Most that is read of a results.json: a thousand rows have a few megabytes."""


class KeptCampaigns(msgspec.Struct, frozen=True, kw_only=True):
    """What a folder keeps of its campaigns: their ids, the newest last, and the database's URL without a password.

    `database` is None where it is the folder's own results.sqlite.
    """

    database: str | None = None
    campaigns: tuple[str, ...] = ()


def keep_campaign(folder: Path, campaign: str, database: str | None) -> None:
    """Note in a folder that this campaign is its newest, and in which database (None: its results.sqlite) it lies."""
    from pipeline.campaign import store as campaign_store

    url = campaign_store.lasting(database) if database else None
    kept = kept_campaigns(folder)
    earlier = [name for name in kept.campaigns if name != campaign] if kept.database == url else []
    storage.write_bytes(
        folder / storage.KEPT, msgspec.json.encode(KeptCampaigns(database=url, campaigns=(*earlier, campaign)))
    )


def kept_campaigns(folder: Path) -> KeptCampaigns:
    """What a folder keeps of its campaigns, if anything. Raises ConfigError for a bad file."""
    path = folder / storage.KEPT
    try:
        return untrusted_files.decode_json(untrusted_files.read_regular(path), KeptCampaigns)
    except FileNotFoundError:
        return KeptCampaigns()
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            "what the folder keeps of its campaigns cannot be read",
            where=str(path),
            why=str(error),
            remedy="remove the file, and name --database and --campaign",
        ) from error


def has_campaigns(folder: Path) -> bool:
    """Whether a folder has results, in a file of its own or in a database that it keeps."""
    return (folder / storage.DATABASE).is_file() or (folder / storage.KEPT).is_file()


def list_campaigns(folder: Path, database: str | None) -> dict[str, str]:
    """Names of all campaigns of a folder or database by their ids, the oldest first; raises ConfigError where none is.

    They are a lab's where the database is one: also those of other folders.
    """
    url, file = _url(folder, database), folder / storage.DATABASE
    if url == f"sqlite:///{file}":
        # As `Store.names`, without the 0.3 s that importing SQLAlchemy takes. Any file that is not in order the store
        # upgrades, or says what is wrong.
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(file)) as connection:
            if connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(storage.REVISION,)]:
                return dict(connection.execute("SELECT id, name FROM campaigns ORDER BY sequence"))
    from pipeline.campaign import store as campaign_store

    with campaign_store.open_store(url) as store:
        return store.names()


def stored(folder: Path | None, database: str | None, campaign: str | None) -> "Assembled":
    """What is known of a campaign: by default the newest of the folder, or of the database where there is no folder.

    Raises ConfigError when it is not there.
    """
    from pipeline.job.assemble import assemble, with_bundle_facts, with_earlier

    with own_campaign(folder, database, campaign) as (store, record):
        assembled = with_earlier(assemble(store, record), store)
        return with_bundle_facts(assembled, folder) if folder else assembled


@contextmanager
def own_campaign(
    folder: Path | None, database: str | None, campaign: str | None = None
) -> Iterator[tuple["Store", "CampaignRecord"]]:
    """The open store and the campaign in it that `stored` speaks of. Raises ConfigError when it is not there."""
    from pipeline.campaign import store as campaign_store

    with campaign_store.open_store(_url(folder, database)) as store:
        names = list(store.names())
        if not names or (campaign and campaign not in names):
            raise ConfigError(
                f"no campaign {campaign!r} here" if campaign else "no campaign is stored here",
                where=store.where,
                why=f"stored are: {_listed(names)}",
                remedy="run `ort-mobile run` first, or name another folder",
            )
        # The last of its own that is no search: whose runs are no rounds.
        asked = [campaign] if campaign else reversed(_own(store, folder, database, names))
        records = (store.campaign(name) for name in asked)
        record = next(
            (record for record in records if campaign or not (record.document and record.document.searching)), None
        )
        if record is None:
            raise ConfigError(
                "the search here has not ended",
                where=store.where,
                why="nothing was confirmed yet",
                remedy="go on with `ort-mobile tune ... --resume`",
            )
        yield store, record


def _listed(names: Sequence[str]) -> str:
    """The newest of the names: a lab has thousands."""
    return ", ".join(names[-5:]) + (f" and {len(names) - 5} earlier" if len(names) > 5 else "") if names else "none"


def _own(store: "Store", folder: Path | None, database: str | None, names: Sequence[str]) -> Sequence[str]:
    """The campaigns that belong to a folder, the newest last; all where the database does, or where there is no folder.

    Raises ConfigError where the folder does not say which of several it is.
    """
    from pipeline.campaign import store as campaign_store

    if folder is None:
        return names
    kept = kept_campaigns(folder)
    names_here = [name for name in kept.campaigns if name in names]
    url = database or kept.database
    if url is None or campaign_store.lasting(url) == campaign_store.lasting(f"sqlite:///{folder / storage.DATABASE}"):
        if names_here or not kept.campaigns:
            return [*(name for name in names if name not in kept.campaigns), *names_here]
    elif names_here:
        return names_here
    if len(names) == 1 and not kept.campaigns:
        return names
    raise ConfigError(
        "the database has no campaign of this folder"
        if kept.campaigns
        else "the folder does not say which campaign is its own",
        where=str(folder),
        why=f"{store.where} has {_listed(names)}"
        + (f"; the folder's are: {_listed(kept.campaigns)}" if kept.campaigns else ""),
        remedy="name one with --campaign; `ort-mobile report FOLDER --database URL --list` lists all",
    )


def _url(folder: Path | None, database: str | None) -> str:
    """The database that is named, else the one that the folder keeps, else its own file."""
    if database or folder is None:
        return database or ""
    if kept := kept_campaigns(folder).database:
        return kept
    file = folder / storage.DATABASE
    if not file.is_file():
        raise ConfigError(
            "no results here",
            where=str(folder),
            why=f"it has no {storage.DATABASE}",
            remedy="name the output folder of `ort-mobile run`, or a --database",
        )
    return f"sqlite:///{file}"
