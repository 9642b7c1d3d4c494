"""Runs with columns that SQL can draw: the host, the times of beginning and end, the median latency.

Filled from what is stored: results of before have no host; where nobody had looked at the duration there is no end. A
row whose digest is not that of its content was damaged before: it keeps its digest, and stays damaged.
"""

import struct
from collections.abc import Mapping
from datetime import datetime
from statistics import median_low
from typing import Any

import msgspec
import sqlalchemy as sa
from alembic import op

from pipeline.campaign.store.tables import digest

revision = "0004"
down_revision = "0003"

BEFORE = (
    "campaign_id", "spec_id", "planned", "round", "model", "variant", "device", "provider", "status", "failure_kind",
    "started_at", "spec", "result", "checks", "prediction", "samples", "nanoseconds",
)  # fmt: skip
ADDED = ("host", "started_at_ms", "ended_at_ms", "median_ns")
PAGE = 500
"""Rows at a time: a lab has more than memory should."""


class StoredTimes(msgspec.Struct):
    """What is read of a stored result."""

    elapsed_ns: int = 0


def upgrade() -> None:
    """Add the columns and fill them."""
    op.add_column("runs", sa.Column("host", sa.String(256), nullable=False, server_default=""))
    for name in ADDED[1:]:
        op.add_column("runs", sa.Column(name, sa.BigInteger))
    connection = op.get_bind()
    read = sa.text(
        f"SELECT id, digest, {', '.join(BEFORE)} FROM runs LEFT JOIN latencies ON latencies.run_id = runs.id "  # noqa: S608
        f"WHERE id > :last ORDER BY id LIMIT {PAGE}"
    )
    values = ", ".join(f"{name} = :{name}" for name in (*ADDED, "digest"))
    change = sa.text(f"UPDATE runs SET {values} WHERE id = :id")  # noqa: S608  # constants
    last = -1
    while rows := connection.execute(read, {"last": last}).mappings().all():
        if sound := [_values(row) for row in rows if row["digest"] == digest(row[name] for name in BEFORE)]:
            connection.execute(change, sound)
        last = rows[-1]["id"]


def _values(row: Mapping[Any, Any]) -> dict[str, Any]:
    started_ms = _epoch_ms(row["started_at"])
    elapsed_ns = _elapsed_ns(row["result"])
    packed = bytes(row["nanoseconds"] or b"")
    latencies = struct.unpack(f"<{len(packed) // 8}q", packed[: len(packed) // 8 * 8])
    added = {
        "host": "",
        "started_at_ms": started_ms,
        "ended_at_ms": None if started_ms is None or not elapsed_ns else started_ms + elapsed_ns // 1_000_000,
        "median_ns": median_low(latencies) if latencies else None,
    }
    return {"id": row["id"], **added, "digest": digest((*(row[name] for name in BEFORE), *added.values()))}


def _epoch_ms(instant: str) -> int | None:
    try:
        return round(datetime.fromisoformat(instant).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def _elapsed_ns(result: str) -> int:
    try:
        return msgspec.json.decode(result, type=StoredTimes).elapsed_ns
    except msgspec.DecodeError:
        return 0
