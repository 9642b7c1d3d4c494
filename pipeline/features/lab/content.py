"""The content of a lab's files, which lies in its database in parts: what files may be called, storing and fetching."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from device_runner import safe_text
from pipeline.campaign.store import Store, StoreError
from pipeline.core import files as storage
from pipeline.core.errors import ConfigError
from pipeline.features.lab.tables import blobs, files

PART_BYTES = 1 << 20
"""Files are stored in parts of this size, so that neither side has more of one in memory."""

MOST_BYTES = 8 << 30
"""What the files of one campaign may have together."""

MOST_FILES = 10_000
"""Of one campaign."""

LONGEST_PART = 255
"""Bytes of a file's name, as file systems have it."""

CAMPAIGN_ID = "[0-9A-Za-z][0-9A-Za-z.:_-]{0,127}"
FILE_NAME = "(artifacts|libraries)/[^/]+|reference/[^/]+/[^/]+"
"""Regular expressions, for Python and for PostgreSQL; a host has no other files of a campaign than these."""


class LabFile(msgspec.Struct, frozen=True):
    """A file of a campaign: its path in an output folder, SHA-256, size in bytes, and the SHA-256 of each part."""

    name: str
    sha256: str
    size_bytes: int
    parts: tuple[str, ...] = ()


def checked_id(campaign: str) -> str:
    """The id of a campaign, a folder's name on hosts; raises StoreError for one that could lead elsewhere."""
    if not re.fullmatch(CAMPAIGN_ID, campaign):
        raise _refused(
            f"{safe_text.visible(campaign)[:200]!r} is no id of a campaign",
            "an id has letters, digits and .:_- only",
        )
    return campaign


def file_in(folder: Path, name: str) -> Path:
    """Where a campaign's file of that name lies in a folder; raises StoreError for a name that leads out of it."""
    shown = f"{safe_text.visible(name)[:200]!r} is no name of a campaign's file"
    parts = name.split("/")
    if not re.fullmatch(FILE_NAME, name) or {".", ".."} & set(parts) or safe_text.visible(name) != name or "\\" in name:
        raise _refused(shown, "names are artifacts/FILE, reference/MODEL/FILE and libraries/FILE, without `..`")
    path = folder / name
    if max(len(part.encode()) for part in parts) > LONGEST_PART or not path.resolve().is_relative_to(folder.resolve()):
        raise _refused(shown, f"it leads out of {folder}")
    return path


def checked_files(files: Iterable[LabFile]) -> list[LabFile]:
    """The files of a campaign; raises StoreError for sizes or digests that cannot be, or more than a host takes."""
    checked, total = list(files), 0
    for file in checked:
        shown = safe_text.visible(file.name)[:200]
        if not re.fullmatch("[0-9a-f]{64}", file.sha256):
            raise _refused(f"the file {shown!r} has no SHA-256", "a host compares what it fetched with it")
        if not 0 <= file.size_bytes <= MOST_BYTES:
            raise _refused(f"the file {shown!r} has {file.size_bytes} bytes", f"a file has 0 to {MOST_BYTES}")
        total += file.size_bytes
    if total > MOST_BYTES or len(checked) > MOST_FILES:
        raise _refused(
            f"the campaign has {len(checked)} files of {total >> 20} MB",
            f"a host takes at most {MOST_FILES} of {MOST_BYTES >> 20} MB together",
        )
    return checked


def _refused(what: str, why: str) -> StoreError:
    return StoreError(
        what,
        where="the lab's database",
        why=why,
        remedy="`ort-mobile lab submit` writes no such thing: ask who may write to the database, then submit again",
    )


KEPT_DAYS = 30
"""For how long after its end the files of a campaign stay, for `lab close` and for campaigns that use the same."""


def keep_files(store: Store, paths: Mapping[str, Path]) -> list[LabFile]:
    """Store files by content, in transactions of one part; what is there already, and sound, is not sent again.

    Raises ConfigError for more than `MOST_BYTES`.
    """
    total = sum(path.stat().st_size for path in paths.values())
    if total > MOST_BYTES:
        raise ConfigError(
            f"the files of this campaign have {total >> 20} MB",
            where="lab submit",
            why=f"a campaign may put {MOST_BYTES >> 20} MB into the database",
            remedy="submit fewer models or variants",
        )
    kept = []
    for name, path in paths.items():
        digest, parts = hashlib.sha256(), []
        with path.open("rb") as file:
            for content in iter(partial(file.read, PART_BYTES), b""):
                digest.update(content)
                parts.append(hashlib.sha256(content).hexdigest())
                if not store.read(partial(_is_sound, digest=parts[-1])):
                    store.write(partial(_put_part, content=content))
        kept.append(LabFile(name, digest.hexdigest(), path.stat().st_size, tuple(parts)))
    return kept


def _is_sound(connection: Connection, digest: str) -> bool:
    """Whether a part is there with its own content, as the database computes it."""
    of_content = sa.func.encode(sa.func.sha256(blobs.c.content), "hex")
    query = sa.select(sa.exists(sa.select(blobs.c.sha256).where(blobs.c.sha256 == digest, of_content == digest)))
    return bool(connection.scalar(query))


def _put_part(connection: Connection, content: bytes) -> None:
    connection.execute(sa.select(sa.func.lab_put(content)))


def fetch_file(store: Store, file: LabFile, path: Path, ended: Callable[[], str] = str) -> None:
    """Write a stored file to a path, whole or not at all, unless it is there. Raises StoreError for another content.

    `ended` is asked before each part why the file is not needed any more, "" while it is; a reason is raised, too.
    """
    if path.is_file() and path.stat().st_size == file.size_bytes and storage.sha256_of(path) == file.sha256:
        return
    digest = hashlib.sha256()
    with storage.replacing(path) as temporary, temporary.open("wb") as out:
        for part_digest, start in zip(file.parts, range(0, file.size_bytes, PART_BYTES), strict=False):
            if reason := ended():
                raise StoreError(f"{file.name} is not fetched", where=store.where, why=reason)
            part = store.read(partial(_part, digest=part_digest))
            if len(part) != min(PART_BYTES, file.size_bytes - start):
                break
            digest.update(part)
            out.write(part)
        if digest.hexdigest() != file.sha256:
            raise StoreError(
                f"the file {file.name} is not as it was submitted",
                where=store.where,
                why=f"parts of it are lost or were changed; {KEPT_DAYS} days after a campaign's end they are removed",
                remedy="submit the campaign again",
            )


def _part(connection: Connection, digest: str) -> bytes:
    """A part; of one that is too large no more than shows it."""
    content = sa.type_coerce(sa.func.substr(blobs.c.content, 1, PART_BYTES + 1), sa.LargeBinary)
    return bytes(connection.execute(sa.select(content).where(blobs.c.sha256 == digest)).scalar() or b"")


def remove_old_files(store: Store) -> int:
    """Remove the content of files that only campaigns use that ended `KEPT_DAYS` ago; how many parts that were.

    Also of files that no campaign has a day after they were stored, left by a submit that was broken off.
    """
    return int(store.write(lambda connection: connection.scalar(sa.select(sa.func.lab_remove_old_files()))) or 0)


def files_of(store: Store, campaign: str) -> list[LabFile]:
    """The files of a campaign; raises StoreError for more of them than a host takes, or sizes that cannot be."""
    query = sa.select(files).where(files.c.campaign_id == campaign).limit(MOST_FILES + 1)
    rows = store.read(lambda connection: connection.execute(query).all())
    return checked_files(
        LabFile(file.name, file.sha256, file.size_bytes, tuple(msgspec.json.decode(file.parts))) for file in rows
    )
