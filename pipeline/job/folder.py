"""The output folder of a job: it belongs to one job at a time, holds nothing of others; stored campaigns in it."""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from device_runner.files import RUN_PREFIX, remove_abandoned
from pipeline.campaign.record import CampaignRecord
from pipeline.campaign.store import open_store
from pipeline.convert.operator_configs import CONFIG_FILE, TYPED_CONFIG_FILE
from pipeline.core.errors import ConfigError
from pipeline.core.files import PART, WORK_PREFIX, make_folder, storage_errors, write_bytes, write_text
from pipeline.job.assemble import Assembled, assemble, with_earlier
from pipeline.job.prepare import ARTIFACTS, PROFILES, REFERENCES
from pipeline.job.proofs import proven
from pipeline.model.ort_format import parse_each_once
from pipeline.release.bundle import BUNDLE, refuse_foreign, restore_interrupted
from pipeline.report import html, markdown, model, trace, tuning

LOCK = ".lock"
DATABASE = "results.sqlite"
MARKS = (LOCK, DATABASE)
"""A folder with one of these is a job's; what else it has was written by jobs before."""

WRITTEN = (
    model.FILE_NAME, html.FILE_NAME, markdown.FILE_NAME, CONFIG_FILE, TYPED_CONFIG_FILE, ARTIFACTS, REFERENCES,
    PROFILES, BUNDLE, tuning.FILE_NAME, trace.FILE_NAME,
)  # fmt: skip
"""What a job writes there, over what has these names."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other jobs out of an output folder, and remove what killed ones left in it; read each artifact once.

    Raises ConfigError when another job is in it, or when it has files of others that this one would overwrite.
    """
    refuse_files_of_others(folder)
    make_folder(folder)
    with _lock(folder / LOCK), parse_each_once():
        _clean(folder)
        yield


def refuse_files_of_others(folder: Path) -> None:
    """Raise ConfigError for a folder that no job made and that has something a job would overwrite."""
    if not any(_is_file(folder / name) for name in MARKS):
        for name in WRITTEN:
            path = folder / name
            if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
                raise ConfigError(
                    f"{name} in the output folder is not of an earlier run, and would be overwritten",
                    where=str(path),
                    why="the folder has no results of ort-mobile",
                    remedy="move it away, or choose another folder with --output",
                )
    refuse_foreign(folder / BUNDLE)


def _is_file(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISREG(path.lstat().st_mode)
    return False


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold the lock; it is never followed elsewhere nor truncated, since a folder may come from anywhere."""
    descriptor = _opened(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                "another job works in this output folder", where=str(path.parent),
                why="two at once would measure each other",
                remedy="wait for it, or choose another folder with --output",
            ) from error  # fmt: skip
        yield
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with storage_errors(path):
        try:
            return os.open(path, flags, 0o666)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise ConfigError(
                "the lock of the output folder is a symbolic link", where=str(path),
                why="it may point to any file of yours", remedy="remove it, or choose another folder with --output",
            ) from error  # fmt: skip


def _clean(folder: Path) -> None:
    """Remove what jobs that were killed left: who has the lock is the only one to write here."""
    restore_interrupted(folder / BUNDLE)
    remove_abandoned(f".{BUNDLE}.", folder)
    remove_abandoned(RUN_PREFIX)
    for place in (folder, folder / ARTIFACTS):
        remove_abandoned(WORK_PREFIX, place)
    for pattern in (f"*{PART}", f"{ARTIFACTS}/*{PART}", f"{REFERENCES}/**/*{PART}", f"{PROFILES}/*{PART}"):
        for path in folder.glob(pattern):
            if _is_file(path):
                path.unlink(missing_ok=True)


def list_campaigns(folder: Path, database: str | None) -> tuple[CampaignRecord, ...]:
    """All campaigns of a folder or database, the oldest first; raises ConfigError when there is none."""
    with open_store(_url(folder, database)) as store:
        return store.campaigns()


def stored(folder: Path, database: str | None, campaign: str | None) -> Assembled:
    """What is known of a campaign (the newest by default); raises ConfigError when it is not there."""
    with open_store(_url(folder, database)) as store:
        known = {record.id: record for record in store.campaigns()}
        rounds = [name for name, record in known.items() if not (record.document and record.document.searching)]
        if not known or (campaign and campaign not in known):
            raise ConfigError(
                f"no campaign {campaign!r} here" if campaign else "no results here",
                where=store.where,
                why=f"stored are: {', '.join(known) or 'none'}",
                remedy="run `ort-mobile run` first, or name another folder",
            )
        if not campaign and not rounds:
            raise ConfigError(
                "the search here has not ended", where=store.where, why="nothing was confirmed yet",
                remedy="go on with `ort-mobile tune ... --resume`",
            )  # fmt: skip
        return proven(with_earlier(assemble(store, known[campaign or rounds[-1]]), store), folder)


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


def write_reports(assembled: Assembled, folder: Path) -> None:
    """results.json, report.md, report.html and trace.json.gz; tune.json where a search was made."""
    report = assembled.report
    timeline = trace.encode(report.name, report.campaign, assembled.runs, assembled.record.stages)
    write_bytes(folder / trace.FILE_NAME, timeline)
    write_bytes(folder / model.FILE_NAME, model.encode(assembled.report))
    write_text(folder / markdown.FILE_NAME, markdown.render(assembled.report))
    write_text(folder / html.FILE_NAME, html.render(assembled.report, assembled.measured, assembled.earlier))
    if assembled.report.tuned:
        write_bytes(folder / tuning.FILE_NAME, tuning.encode(assembled.report.tuned))
