"""Artifacts by content: the same model, variant, settings and onnxruntime are not converted twice.

`entries/KEY.json` says what the conversion gave and for which key, `objects/SHA256.ort` is the file. An entry is
trusted only under the key that it names, a file only when its size and sha256 are those of the entry: whatever else is
in the folder costs a conversion, never a wrong artifact.
"""

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import msgspec

from device_runner.files import sha256
from device_runner.reading import read_regular
from pipeline.convert.rules import SessionSettings
from pipeline.core.files import replacing, share_file, write_bytes
from pipeline.core.variant import AwareBy

ROOT = Path(__file__).resolve().parents[2]
NOT_DECIDING = frozenset({"advice", "cli", "job", "ort_build", "prove", "release", "report", "store"})
"""Packages of pipeline/ that no conversion imports. Every other source may decide what is written."""
LIBRARY_SESSIONS = "device_runner/android_host"
"""What runs the session of an Android library, which saves provider-aware files."""


class CachedResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one optimization gave, whichever variant or target asked for it."""

    size_bytes: int
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    semantic_digest: str
    operators: dict[str, int]
    unreplayable: tuple[str, ...] = ()
    claimed: dict[str, int] = {}
    notes: tuple[str, ...] = ()
    aware_by: AwareBy | None = None


def cache_key(content_digest: str, settings: SessionSettings, wheel: str) -> str:
    """The key of a conversion: everything that its bytes depend on, our own sources among it."""
    parts = (content_digest, msgspec.to_builtins(settings), wheel, sources_digest())
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


@lru_cache(maxsize=1)
def sources_digest() -> str:
    """Digest of all sources that may decide the bytes of an artifact: an edit of one makes every entry another's."""
    total = hashlib.sha256()
    for path in deciding_sources():
        total.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()


def deciding_sources() -> Iterator[Path]:
    """Files that `sources_digest` reads, in one order."""
    for path in sorted((ROOT / "pipeline").rglob("*.py")):
        if path.relative_to(ROOT).parts[1] not in NOT_DECIDING:
            yield path
    yield from sorted(path for path in (ROOT / LIBRARY_SESSIONS).rglob("*") if path.suffix in {".py", ".c", ".h"})


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What is in entries/KEY.json."""

    key: str
    made: CachedResult


class Cache:
    """A folder of artifacts by content; safe to share between processes, as every file appears whole."""

    def __init__(self, folder: Path) -> None:
        self.entries = folder / "entries"
        self.objects = folder / "objects"

    def find(self, key: str) -> tuple[CachedResult, Path] | None:
        """What was made for a key and its file; None when it was not, or when the file is not what was made."""
        try:
            entry = msgspec.json.decode(read_regular(self.entries / f"{key}.json"), type=_Entry)
            made, path = entry.made, self._object(entry.made)
            if entry.key != key or path.stat().st_size != made.size_bytes or sha256(path) != made.sha256:
                return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        return made, path

    def keep(self, key: str, made: CachedResult, path: Path) -> None:
        """Remember what a conversion gave: its file by another name where the file system can, else as a copy.

        `path` must be a scratch file that nobody else keeps. Raises PipelineError where the folder cannot be written.
        """
        with replacing(self._object(made)) as temporary:
            temporary.unlink()
            share_file(path, temporary)
        write_bytes(self.entries / f"{key}.json", msgspec.json.encode(_Entry(key=key, made=made)))

    def _object(self, made: CachedResult) -> Path:
        return self.objects / f"{made.sha256}.ort"
