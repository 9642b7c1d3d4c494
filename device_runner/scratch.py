"""Scratch folders that show whether their maker still runs: each has a lock that goes with its process.

What a killed process leaves is then removed by the next one, and what a running one works in never is.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

NEW = ".new-"
"""Before a folder's own prefix until it is locked: nobody takes it for abandoned in between."""

BUILD_PREFIX = ".build-"
"""Folders in which something is built, next to where it goes."""

RUN_PREFIX = "ort-mobile-run-"
"""Folders of runs in the system's folder for temporary files."""


@contextlib.contextmanager
def scratch_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A new folder in `parent` (the system's temporary folder), removed at the end. Raises OSError."""
    new = Path(tempfile.mkdtemp(prefix=NEW + prefix, dir=parent))
    path = new.with_name(new.name.removeprefix(NEW))
    descriptor = os.open(new, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        new.rename(path)
        yield path
    finally:
        for folder in (new, path):
            shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def remove_abandoned(prefix: str, parent: Path | None = None) -> None:
    """Remove this user's folders of `scratch_folder` with this prefix whose process has ended.

    `parent` may not exist. Links, other users' folders, and file systems without locks are left alone.
    """
    with contextlib.suppress(OSError):
        for path in list((parent or Path(tempfile.gettempdir())).glob(f"{prefix}*")):
            _remove_abandoned(path)


def _remove_abandoned(path: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(descriptor).st_uid == os.geteuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)
