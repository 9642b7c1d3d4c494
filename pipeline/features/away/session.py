"""Sessions as they come back, hostile until parsed: plain files with known names and sizes, out of folders and ZIPs."""

import contextlib
import os
import re
import stat
import zipfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from device_runner import safe_text, untrusted_files
from device_runner.errors import RunnerError
from pipeline.core.errors import ConfigError

MARKS = frozenset({"session", "package", "device"})
"""A folder with these files has a session: whose it is, of which package, on what device."""

MOST_FILES = 1_000_000
"""The most that is looked at of a folder or an archive: a turn has some ten files."""

LINE_BYTES, DEVICE_BYTES, STATE_BYTES = 256, 1 << 20, 1 << 20


class SessionFiles(ABC):
    """The files of one session, by their names."""

    def __init__(self, where: str) -> None:
        self.where = where

    @abstractmethod
    def read(self, name: str, limit_bytes: int) -> bytes | None:
        """A file of at most so many bytes; None where there is none. Raises RunnerError, OSError for any other."""

    def line(self, name: str) -> str | None:
        """A file of one short line; None where there is none."""
        content = self.read(name, LINE_BYTES)
        return None if content is None else content.decode("ascii", "replace").strip()


class FolderFiles(SessionFiles):
    """A session in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.folder = folder

    def read(self, name: str, limit_bytes: int) -> bytes | None:
        """As above; a link is not followed."""
        path = self.folder / name
        try:
            if stat.S_ISLNK(path.lstat().st_mode):
                raise RunnerError(f"{name} is a link", where=str(path), why="a session has plain files alone")
            return untrusted_files.read_regular(path, limit_bytes)
        except FileNotFoundError:
            return None


class ArchiveFiles(SessionFiles):
    """A session in a folder of a ZIP archive."""

    def __init__(self, archive: zipfile.ZipFile, folder: str, where: str) -> None:
        super().__init__(f"{where}: {folder or '/'}")
        self.archive = archive
        self.members = {
            info.filename[len(folder) :]: info
            for info in untrusted_files.files_of(archive)
            if info.filename.rpartition("/")[0] == folder.rstrip("/")
        }

    def read(self, name: str, limit_bytes: int) -> bytes | None:
        """As above; sizes are looked at before anything is unpacked, and counted while it is."""
        info = self.members.get(name)
        if info is None:
            return None
        if info.external_attr >> 16 and not stat.S_ISREG(info.external_attr >> 16):
            raise RunnerError(f"{name} is no plain file", where=self.where, why="a session has plain files alone")
        untrusted_files.check_unpacked(info, limit_bytes)
        with self.archive.open(info) as file:
            content = file.read(limit_bytes + 1)
        if len(content) > limit_bytes:
            raise RunnerError(f"{name} is larger than it says", where=self.where)
        return content


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageSession:
    """What one device did with a package."""

    files: SessionFiles
    id: str
    package: str
    device: bytes
    """What it says of itself, as run.sh wrote it."""


@contextlib.contextmanager
def opened_sessions(paths: list[Path]) -> Iterator[list[PackageSession]]:
    """The sessions in folders and ZIP archives, in order; raises ConfigError for a path without one."""
    with contextlib.ExitStack() as stack:
        sessions: list[PackageSession] = []
        for path in paths:
            try:
                inside = _in_folder(path) if path.is_dir() else _in_archive(path, stack)
                opened = [_session(files) for files in inside]
            except FileNotFoundError as error:
                raise ConfigError(
                    "there is no such session", where=str(path), remedy="name a folder, or a ZIP archive of one"
                ) from error
            except (RunnerError, *untrusted_files.ZIP_ERRORS) as error:
                raise ConfigError(
                    "the session cannot be read",
                    where=str(path),
                    why=safe_text.visible(str(error))[:300],
                    remedy="bring it once more: a folder as the package wrote it, or a ZIP archive of it",
                ) from error
            if not opened:
                raise ConfigError(
                    "there is no session here",
                    where=str(path),
                    why=f"a session has the files {', '.join(sorted(MARKS))} beside those of its turns",
                    remedy="name the folder `session` of the package, or what the farm brought back of it",
                )
            sessions += opened
        twice = [name for name, count in Counter(session.id for session in sessions).items() if count > 1]
        if twice:
            raise ConfigError(
                "a session is there twice", where=twice[0], why="it would count once", remedy="name each session once"
            )
        yield sessions


def _in_folder(path: Path) -> list[SessionFiles]:
    """Every folder of a session in a folder; links are not followed."""
    sessions: list[SessionFiles] = []
    count = 0
    for folder, folders, names in os.walk(path):
        folders.sort()
        count += len(names)
        if count > MOST_FILES:
            raise RunnerError(f"there are more than {MOST_FILES:,} files")
        if set(names) >= MARKS:
            sessions.append(FolderFiles(Path(folder)))
    return sessions


def _in_archive(path: Path, stack: contextlib.ExitStack) -> list[SessionFiles]:
    archive = stack.enter_context(zipfile.ZipFile(stack.enter_context(untrusted_files.open_regular(path))))
    infos = untrusted_files.files_of(archive)
    names = Counter(info.filename for info in infos)
    if len(infos) > MOST_FILES:
        raise RunnerError(f"there are more than {MOST_FILES:,} files")
    if twice := [name for name, count in names.items() if count > 1]:
        raise RunnerError(f"{twice[0][:200]!r} is in the archive twice")
    folders = sorted(name.removesuffix("session") for name in names if name.rpartition("/")[2] == "session")
    return [
        ArchiveFiles(archive, folder, str(path))
        for folder in folders
        if all(f"{folder}{mark}" in names for mark in MARKS)
    ]


def _session(files: SessionFiles) -> PackageSession:
    name, package = files.line("session") or "", files.line("package") or ""
    if not re.fullmatch(r"[0-9a-f-]{8,64}", name) or not re.fullmatch(r"[0-9a-f]{64}", package):
        raise RunnerError("it does not say which session of which package it is", where=files.where)
    return PackageSession(files=files, id=name, package=package, device=files.read("device", DEVICE_BYTES) or b"")
