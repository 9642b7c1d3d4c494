"""The tables as the newest migration leaves them."""

from typing import Any

import sqlalchemy as sa

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
    sa.Column("login", sa.String(64), nullable=False, server_default=""),
)
"""`sequence` counts campaigns in the order in which they were entered: clocks jump. `login` is the user that entered it
where the database is PostgreSQL, which says so itself.
"""

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""The type of the keys of runs: SQLite has 64 bits by the other name."""


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
    sa.Column("id", KEY, sa.Identity(always=True), primary_key=True),
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
    sa.Column("run_id", KEY, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("samples", sa.Integer, nullable=False),
    sa.Column("nanoseconds", sa.LargeBinary, nullable=False),
)

quarantines = sa.Table(
    "lab_quarantines",
    metadata,
    sa.Column("id", KEY, sa.Identity(always=True), primary_key=True),
    sa.Column("device", sa.String(256), nullable=False, index=True),
    sa.Column("host", sa.String(256), nullable=False, server_default=""),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("placed", sa.DateTime(timezone=True), nullable=False),
    sa.Column("after_run", sa.BigInteger, nullable=False),
    sa.Column("last_run", sa.BigInteger),
    sa.Column("released", sa.DateTime(timezone=True)),
    sa.Column("released_by", sa.String(64), nullable=False, server_default=""),
    sa.Column("sound", sa.Boolean, nullable=False, server_default=sa.false()),
)
"""Devices that a lab took out. Their runs with keys above `after_run`, of the last good check, up to `last_run`, of the
release (None before it), are in doubt, unless the operator found the device `sound`."""

IN_DOUBT = sa.exists(
    sa.select(quarantines.c.id).where(
        quarantines.c.device == runs.c.device,
        runs.c.id > quarantines.c.after_run,
        sa.or_(quarantines.c.last_run.is_(None), runs.c.id <= quarantines.c.last_run),
        sa.not_(quarantines.c.sound),
    )
).label("in_doubt")
"""Whether a run is of a device in quarantine, since its last good check."""
