"""The tables as the newest migration leaves them. Values are JSON text beside the columns that queries need."""

from typing import Any

import sqlalchemy as sa

REVISION = "0002"
"""The newest migration: what this release reads and writes."""

metadata = sa.MetaData()

versions = sa.Table("schema_version", metadata, sa.Column("version", sa.Integer, primary_key=True, autoincrement=False))
"""What releases before migrations look at: anything but 1 keeps them from writing rows without a digest."""


def _digest_column() -> sa.Column[str]:
    return sa.Column("digest", sa.String(32))


campaigns = sa.Table(
    "campaigns",
    metadata,
    sa.Column("id", sa.String(128), primary_key=True),
    sa.Column("name", sa.String(128), nullable=False, index=True),
    sa.Column("created_at", sa.String(32), nullable=False),
    sa.Column("document", sa.Text, nullable=False),
    sa.Column("sequence", sa.Integer, index=True, unique=True),
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
    _digest_column(),
    sa.UniqueConstraint("campaign_id", "spec_id", "round"),
)

latencies = sa.Table(
    "latencies",
    metadata,
    sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("samples", sa.Integer, nullable=False),
    sa.Column("nanoseconds", sa.LargeBinary, nullable=False),
)
