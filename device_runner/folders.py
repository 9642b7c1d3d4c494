"""Where this program keeps files of its own: caches that may be deleted at any time, and state that may not.

What is used again from a cache has its sha256 noted beside it (`note_digests`) and is compared with that first
(`are_sound`): a file that a full disk, a crash or somebody's editor damaged is made again and never used.
"""

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from device_runner.errors import MissingError
from device_runner.files import sha256

NOTE = "SHA256SUMS"
"""Digests of the files of a folder, as `sha256sum` writes them."""


def cache_folder() -> Path:
    """Where builds, libraries and artifacts are kept: ORT_MOBILE_CACHE, else ort-mobile in XDG_CACHE_HOME, ~/.cache."""
    return _folder("ORT_MOBILE_CACHE", "XDG_CACHE_HOME", ".cache")


def state_folder() -> Path:
    """Where the deny list and the leases of devices are: ORT_MOBILE_STATE, else in XDG_STATE_HOME, ~/.local/state."""
    return _folder("ORT_MOBILE_STATE", "XDG_STATE_HOME", ".local/state")


def _folder(own: str, base: str, default: str) -> Path:
    """By the XDG base directory specification, which says to ignore variables that are no absolute path."""
    if chosen := os.environ.get(own):
        return Path(chosen)
    shared = os.environ.get(base, "")
    return (Path(shared) if Path(shared).is_absolute() else Path.home() / default) / "ort-mobile"


def state_file(name: str) -> Path:
    """A file of the state folder; one of that name that earlier releases kept in the cache is moved there first."""
    path, old = state_folder() / name, cache_folder() / name
    if old.is_file() and not path.exists():
        with own_folder_errors(path, "ORT_MOBILE_STATE"):
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(old, path)
    return path


@contextlib.contextmanager
def own_folder_errors(path: Path, variable: str = "ORT_MOBILE_CACHE") -> Iterator[None]:
    """Turn what the system says about writing into a folder of ours into MissingError, with the remedy."""
    try:
        yield
    except OSError as error:
        raise MissingError(
            "cannot write into the cache" if variable == "ORT_MOBILE_CACHE" else "cannot write the program's state",
            where=str(path),
            why=error.strerror or str(error),
            remedy=f"free some space, correct the folder's permissions, or set {variable} to another folder",
        ) from error


def note_digests(folder: Path, names: Iterable[str]) -> None:
    """Note the sha256 of files of a folder beside them; raises OSError."""
    lines = [f"{sha256(folder / name)}  {name}\n" for name in sorted(names)]
    part = folder / f".{NOTE}.{os.getpid()}"
    part.write_text("".join(lines), encoding="utf-8")
    part.replace(folder / NOTE)


def are_sound(folder: Path, names: Iterable[str]) -> bool:
    """Whether files of a folder are what was noted of them; each is read once in a process while it does not change."""
    try:
        lines = (folder / NOTE).read_text(encoding="utf-8").splitlines()
        noted = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
        return all(noted.get(name) == sha256(folder / name) for name in names)
    except (OSError, UnicodeDecodeError):
        return False
