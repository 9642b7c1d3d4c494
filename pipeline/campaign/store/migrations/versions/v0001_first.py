"""The schema of the releases that had no migrations."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    version = op.create_table("schema_version", sa.Column("version", sa.Integer, primary_key=True, autoincrement=False))
    op.bulk_insert(version, [{"version": 1}])
    op.create_table(
        "campaigns",
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("name", sa.String(128), nullable=False, index=True),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("document", sa.Text, nullable=False),
    )
    op.create_table(
        "devices",
        sa.Column("campaign_id", sa.String(128), sa.ForeignKey("campaigns.id"), primary_key=True),
        sa.Column("name", sa.String(256), primary_key=True),
        sa.Column("document", sa.Text, nullable=False),
    )
    op.create_table(
        "artifacts",
        sa.Column("campaign_id", sa.String(128), sa.ForeignKey("campaigns.id"), primary_key=True),
        sa.Column("model", sa.String(256), primary_key=True),
        sa.Column("variant", sa.String(256), primary_key=True),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("document", sa.Text, nullable=False),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("campaign_id", sa.String(128), sa.ForeignKey("campaigns.id"), nullable=False),
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
        sa.UniqueConstraint("campaign_id", "spec_id", "round"),
    )
    op.create_table(
        "latencies",
        sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("samples", sa.Integer, nullable=False),
        sa.Column("nanoseconds", sa.LargeBinary, nullable=False),
    )
