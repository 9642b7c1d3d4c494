"""The output folder of a job: it belongs to one job at a time, holds nothing of others."""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from device_runner.files import PART, RUN_PREFIX, remove_abandoned, restore_place
from pipeline.core.errors import ConfigError
from pipeline.core.files import WORK_PREFIX, make_folder, storage_errors
from pipeline.core.output import ARTIFACTS, BUNDLE, DATABASE, PROFILES, REFERENCES, WRITTEN
from pipeline.model.ort_format import parse_each_once
from pipeline.release.manifest import refuse_foreign

LOCK = ".lock"
MARKS = (LOCK, DATABASE)
"""A folder with one of these is a job's; what else it has was written by jobs before."""


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
    restore_place(folder / BUNDLE)
    remove_abandoned(RUN_PREFIX)
    for place in (folder, folder / ARTIFACTS):
        remove_abandoned(WORK_PREFIX, place)
    for pattern in (f"*{PART}", f"{ARTIFACTS}/*{PART}", f"{REFERENCES}/**/*{PART}", f"{PROFILES}/*{PART}"):
        for path in folder.glob(pattern):
            if _is_file(path):
                path.unlink(missing_ok=True)
