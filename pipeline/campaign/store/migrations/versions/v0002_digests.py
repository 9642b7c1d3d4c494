"""Digests of rows, by which damage is seen, and the order in which campaigns were entered.

Rows of before get the digest of what they hold now: damage that is older stays unseen.
"""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

from pipeline.campaign.store.tables import digest

revision = "0002"
down_revision = "0001"

DIGESTED = {
    "campaigns": ("id", "name", "created_at", "sequence", "document"),
    "devices": ("campaign_id", "name", "document"),
    "artifacts": ("campaign_id", "model", "variant", "sha256", "document"),
    "runs": (
        "campaign_id", "spec_id", "round", "model", "variant", "device", "provider", "status", "failure_kind",
        "started_at", "spec", "result", "checks", "prediction", "samples", "nanoseconds",
    ),
}  # fmt: skip
KEYS = {
    "campaigns": ("id",),
    "devices": ("campaign_id", "name"),
    "artifacts": ("campaign_id", "model", "variant"),
    "runs": ("id",),
}
PAGE = 500
"""Rows at a time: a lab has more than memory should."""


def upgrade() -> None:
    """Add the columns and fill them."""
    for table in DIGESTED:
        op.add_column(table, sa.Column("digest", sa.String(32)))
    op.add_column("campaigns", sa.Column("sequence", sa.Integer))
    op.create_index("ix_campaigns_sequence", "campaigns", ["sequence"], unique=True)
    connection = op.get_bind()
    _number_campaigns(connection)
    for table in DIGESTED:
        _add_digests(connection, table)
    connection.execute(sa.text("UPDATE schema_version SET version = 2"))


def _number_campaigns(connection: sa.Connection) -> None:
    """In the order of entering, which SQLite knows; elsewhere by the clock."""
    order = "rowid" if connection.dialect.name == "sqlite" else "created_at, id"
    names = connection.scalars(sa.text(f"SELECT id FROM campaigns ORDER BY {order}")).all()  # noqa: S608  # constants
    change = sa.text("UPDATE campaigns SET sequence = :number WHERE id = :id")
    for number, name in enumerate(names, start=1):
        connection.execute(change, {"number": number, "id": name})


def _add_digests(connection: sa.Connection, table: str) -> None:
    keys, columns = KEYS[table], DIGESTED[table]
    source = f"{table} LEFT JOIN latencies ON latencies.run_id = runs.id" if table == "runs" else table
    order = ", ".join(keys)
    selected = ", ".join(dict.fromkeys((*keys, *columns)))
    read = sa.text(f"SELECT {selected} FROM {source} ORDER BY {order} LIMIT {PAGE} OFFSET :start")  # noqa: S608
    same = " AND ".join(f"{key} = :key_{key}" for key in keys)
    change = sa.text(f"UPDATE {table} SET digest = :digest WHERE {same}")  # noqa: S608  # constants
    start = 0
    while rows := connection.execute(read, {"start": start}).mappings().all():
        for row in rows:
            connection.execute(change, _values(row, keys, columns))
        start += len(rows)


def _values(row: Mapping[Any, Any], keys: tuple[str, ...], columns: tuple[str, ...]) -> dict[str, Any]:
    return {"digest": digest(row[name] for name in columns), **{f"key_{key}": row[key] for key in keys}}
