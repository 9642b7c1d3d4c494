"""The tables as the newest migration leaves them, and a digest for each row by which damage is seen."""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

import sqlalchemy as sa

REVISION = "v0001"
"""The newest migration: what this release reads and writes."""

metadata = sa.MetaData()


def _digest_column() -> sa.Column[str]:
    return sa.Column("digest", sa.String(32), nullable=False)


campaigns = sa.Table(
    "campaigns",
    metadata,
    sa.Column("id", sa.String(128), primary_key=True),
    sa.Column("name", sa.String(128), nullable=False, index=True),
    sa.Column("created_at", sa.String(32), nullable=False),
    sa.Column("document", sa.Text, nullable=False),
    sa.Column("sequence", sa.Integer, nullable=False, index=True, unique=True),
    _digest_column(),
)
"""`sequence` counts campaigns in the order in which they were entered: clocks jump."""


def _campaign_column(**more: Any) -> sa.Column[str]:
    return sa.Column("campaign_id", sa.String(128), sa.ForeignKey("campaigns.id"), nullable=False, **more)


devices = sa.Table(
    "devices",
    metadata,
    _campaign_column(primary_key=True),
    sa.Column("name", sa.String(256), primary_key=True),
    sa.Column("document", sa.Text, nullable=False),
    _digest_column(),
)

artifacts = sa.Table(
    "artifacts",
    metadata,
    _campaign_column(primary_key=True),
    sa.Column("model", sa.String(256), primary_key=True),
    sa.Column("variant", sa.String(256), primary_key=True),
    sa.Column("sha256", sa.String(64), nullable=False),
    sa.Column("document", sa.Text, nullable=False),
    _digest_column(),
)

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    _campaign_column(),
    sa.Column("spec_id", sa.String(256), nullable=False),
    sa.Column("planned", sa.String(256), nullable=False),
    sa.Column("round", sa.Integer, nullable=False),
    sa.Column("model", sa.String(256), nullable=False),
    sa.Column("variant", sa.String(256), nullable=False),
    sa.Column("device", sa.String(256), nullable=False),
    sa.Column("provider", sa.String(128), nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("failure_kind", sa.String(32)),
    sa.Column("started_at", sa.String(32), nullable=False),
    sa.Column("spec", sa.Text, nullable=False),
    sa.Column("result", sa.Text, nullable=False),
    sa.Column("checks", sa.Text, nullable=False),
    sa.Column("prediction", sa.Text),
    sa.Column("host", sa.String(256), nullable=False),
    sa.Column("started_at_ms", sa.BigInteger),
    sa.Column("ended_at_ms", sa.BigInteger),
    sa.Column("median_ns", sa.BigInteger),
    _digest_column(),
    sa.UniqueConstraint("campaign_id", "spec_id", "round"),
)
"""`host`, the times in milliseconds since 1970 and the median are what `result` and the latencies say, for SQL."""

latencies = sa.Table(
    "latencies",
    metadata,
    sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("samples", sa.Integer, nullable=False),
    sa.Column("nanoseconds", sa.LargeBinary, nullable=False),
)


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
        else:
            kind, data = _encoded(value)
            parts += (b"%s%d:" % (kind, len(data)), data)
    return blake2b(b"".join(parts), digest_size=DIGEST_BYTES).hexdigest()


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
