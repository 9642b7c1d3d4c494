"""A digest for each row, by which damage is seen; databases hold them."""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

DIGEST_BYTES = 16

COLUMNS: dict[str, tuple[str, ...]] = {
    "campaigns": ("id", "name", "created_at", "sequence", "document"),
    "devices": ("campaign_id", "name", "document"),
    "artifacts": ("campaign_id", "model", "variant", "sha256", "document"),
    "runs": (
        "campaign_id", "spec_id", "planned", "round", "model", "variant", "device", "provider", "status",
        "failure_kind", "started_at", "spec", "result", "checks", "prediction", "samples", "nanoseconds", "host",
        "started_at_ms", "ended_at_ms", "median_ns",
    ),
}  # fmt: skip
"""Table to the columns that its digests cover, in their order; a run's latencies belong to the run."""


def row_digest(table: str, row: Mapping[Any, Any]) -> str:
    """The digest of a row, from the columns that COLUMNS names. Databases hold it: another way needs a migration."""
    return digest(row[name] for name in COLUMNS[table])


def digest(values: Iterable[object]) -> str:
    """32 hexadecimal digits for these values, their types and their order.

    Texts, which most columns of a row are, have a short way: histories check thousands of rows.
    """
    parts: list[bytes] = []
    for value in values:
        if type(value) is str:
            data = value.encode("utf-8", "surrogatepass")
            parts += (b"s%d:" % len(data), data)
            continue
        match value:
            case None:
                kind, data = b"n", b""
            case int():
                kind, data = b"i", b"%d" % value
            case str():
                kind, data = b"s", value.encode("utf-8", "surrogatepass")
            case bytes() | memoryview():
                kind, data = b"b", bytes(value)
            case _:  # a kind that nothing is stored in: its name alone
                kind, data = b"?", type(value).__name__.encode()
        parts += (b"%s%d:" % (kind, len(data)), data)
    return blake2b(b"".join(parts), digest_size=DIGEST_BYTES).hexdigest()
