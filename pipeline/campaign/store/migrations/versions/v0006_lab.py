"""The tables of a lab: hosts, their devices, jobs, and files by content."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def _text(name: str, length: int | None = None, **more: object) -> sa.Column[str]:
    return sa.Column(name, sa.String(length) if length else sa.Text(), nullable=False, **more)  # type: ignore[arg-type]


def _instant(name: str) -> "sa.Column[sa.DateTime]":
    return sa.Column(name, sa.DateTime(timezone=True), nullable=False)  # type: ignore[arg-type]


def upgrade() -> None:
    """Make them."""
    op.create_table(
        "lab_hosts", _text("name", 256, primary_key=True), _instant("seen"),
        sa.Column("backend", sa.Integer, nullable=False),
        _text("versions"), _text("note", server_default=""),
    )  # fmt: skip
    op.create_table(
        "lab_devices", _text("name", 256, primary_key=True), _text("host", 256, primary_key=True), _instant("seen"),
        _text("document"),
    )  # fmt: skip
    op.create_table(
        "lab_jobs", sa.Column("campaign_id", sa.String(128), sa.ForeignKey("campaigns.id"), primary_key=True),
        _text("device", 256, primary_key=True), _text("state", 16, index=True), _text("stage", 16),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"), _text("host", 256, server_default=""),
        _text("reason", server_default=""), _instant("changed"), _text("again", server_default="[]"),
    )  # fmt: skip
    op.create_table(
        "lab_files", sa.Column("campaign_id", sa.String(128), sa.ForeignKey("campaigns.id"), primary_key=True),
        _text("name", 1024, primary_key=True), _text("sha256", 64),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
    )  # fmt: skip
    op.create_table(
        "lab_blobs", _text("sha256", 64, primary_key=True), sa.Column("part", sa.Integer, primary_key=True),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )  # fmt: skip
