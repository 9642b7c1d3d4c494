"""Runs know their planned run: earlier releases wrote it into the id of the spec alone, as PLANNED#ROUND.

A row whose digest is not that of its content was damaged before: it keeps its digest, and stays damaged.
"""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

from pipeline.campaign.store.tables import digest

revision = "0003"
down_revision = "0002"

BEFORE = (
    "campaign_id", "spec_id", "round", "model", "variant", "device", "provider", "status", "failure_kind",
    "started_at", "spec", "result", "checks", "prediction", "samples", "nanoseconds",
)  # fmt: skip
AFTER = (*BEFORE[:2], "planned", *BEFORE[2:])
PAGE = 500
"""Rows at a time: a lab has more than memory should."""


def upgrade() -> None:
    """Add the column and fill it."""
    op.add_column("runs", sa.Column("planned", sa.String(256), nullable=False, server_default=""))
    connection = op.get_bind()
    read = sa.text(
        f"SELECT id, digest, {', '.join(BEFORE)} FROM runs LEFT JOIN latencies ON latencies.run_id = runs.id "  # noqa: S608
        f"WHERE id > :last ORDER BY id LIMIT {PAGE}"
    )
    change = sa.text("UPDATE runs SET planned = :planned, digest = :digest WHERE id = :id")
    last = -1
    while rows := connection.execute(read, {"last": last}).mappings().all():
        connection.execute(change, [_values(row) for row in rows])
        last = rows[-1]["id"]


def _values(row: Mapping[Any, Any]) -> dict[str, Any]:
    planned = row["spec_id"].removesuffix(f"#{row['round']}")
    sound = row["digest"] == digest(row[name] for name in BEFORE)
    whole = {**row, "planned": planned}
    return {
        "id": row["id"],
        "planned": planned,
        "digest": digest(whole[name] for name in AFTER) if sound else row["digest"],
    }
