"""Artifacts by content: the same model, variant, settings and onnxruntime are not converted twice.

`entries/KEY.json` says what the conversion gave, `objects/SHA256.ort` is the file. A file is trusted only when its size
and sha256 are those of the entry: whatever else lies in the folder costs a conversion, never a wrong artifact.
"""

import hashlib
from pathlib import Path
from typing import Annotated

import msgspec

from pipeline.convert.rules import SessionSettings
from pipeline.files import replacing, sha256_of, share_file, write_bytes
from pipeline.onnx_model import LARGE_BYTES, LEAN_MINIMUM_BYTES
from pipeline.variant import AwareBy

# Raise it when the same inputs would give other bytes than before.
WRITER_VERSION = 2


class Made(msgspec.Struct, frozen=True, kw_only=True):
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
    """The key of a conversion: everything that its bytes depend on."""
    parts = (content_digest, msgspec.to_builtins(settings), wheel, WRITER_VERSION, LARGE_BYTES, LEAN_MINIMUM_BYTES)
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


class Cache:
    """A folder of artifacts by content; safe to share between processes, as every file appears whole."""

    def __init__(self, folder: Path) -> None:
        self.entries = folder / "entries"
        self.objects = folder / "objects"

    def find(self, key: str) -> tuple[Made, Path] | None:
        """What was made for a key and its file; None when it was not, or when the file is not what was made."""
        try:
            made = msgspec.json.decode((self.entries / f"{key}.json").read_bytes(), type=Made)
            path = self._object(made)
            if path.stat().st_size != made.size_bytes or sha256_of(path) != made.sha256:
                return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return made, path

    def keep(self, key: str, made: Made, path: Path) -> None:
        """Remember what a conversion gave: its file by another name where the file system can, else as a copy."""
        with replacing(self._object(made)) as temporary:
            temporary.unlink()
            share_file(path, temporary)
        write_bytes(self.entries / f"{key}.json", msgspec.json.encode(made))

    def _object(self, made: Made) -> Path:
        return self.objects / f"{made.sha256}.ort"
