"""A digest for each stored row, by which damage is seen: a disk, an editor or a broken copy may change any of it."""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

DIGEST_BYTES = 16

COLUMNS: dict[str, tuple[str, ...]] = {
    "campaigns": ("id", "name", "created_at", "sequence", "document"),
    "devices": ("campaign_id", "name", "document"),
    "artifacts": ("campaign_id", "model", "variant", "sha256", "document"),
    "runs": (
        "campaign_id", "spec_id", "round", "model", "variant", "device", "provider", "status", "failure_kind",
        "started_at", "spec", "result", "checks", "prediction", "samples", "nanoseconds",
    ),
}  # fmt: skip
"""Table to the columns that its digests cover, in their order; a run's latencies belong to the run."""


def row_digest(table: str, row: Mapping[Any, Any]) -> str:
    """The digest of a row, from the columns that COLUMNS names. Databases hold it: another way needs a migration."""
    return digest(row[name] for name in COLUMNS[table])


def digest(values: Iterable[object]) -> str:
    """32 hexadecimal digits for these values, their types and their order."""
    found = blake2b(digest_size=DIGEST_BYTES)
    for value in values:
        kind, data = _encoded(value)
        found.update(b"%s%d:" % (kind, len(data)))
        found.update(data)
    return found.hexdigest()


def _encoded(value: object) -> tuple[bytes, bytes]:
    """The kind of a value and its bytes; of a kind that nothing is stored in, its name alone."""
    match value:
        case None:
            return b"n", b""
        case int():
            return b"i", b"%d" % value
        case str():
            return b"s", value.encode("utf-8", "surrogatepass")
        case bytes() | memoryview():
            return b"b", bytes(value)
        case _:
            return b"?", type(value).__name__.encode()
