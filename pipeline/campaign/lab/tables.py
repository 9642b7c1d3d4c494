"""The tables of a lab, beside those of the store: its hosts, their devices, what is to be measured where, and files."""

import sqlalchemy as sa

from pipeline.campaign.store.tables import metadata

hosts = sa.Table(
    "lab_hosts",
    metadata,
    sa.Column("name", sa.String(256), primary_key=True),
    sa.Column("seen", sa.DateTime(timezone=True), nullable=False),
    sa.Column("backend", sa.Integer, nullable=False),
    sa.Column("versions", sa.Text, nullable=False),
    sa.Column("note", sa.Text, nullable=False, server_default=""),
)
"""`backend` is the process of the server that serves the host's session, which holds its leases."""

attached = sa.Table(
    "lab_devices",
    metadata,
    sa.Column("name", sa.String(256), primary_key=True),
    sa.Column("host", sa.String(256), primary_key=True),
    sa.Column("seen", sa.DateTime(timezone=True), nullable=False),
    sa.Column("document", sa.Text, nullable=False),
)
"""Devices under their names among those of all hosts; one on the network may be at several hosts."""

jobs = sa.Table(
    "lab_jobs",
    metadata,
    sa.Column("campaign_id", sa.String(128), sa.ForeignKey("campaigns.id"), primary_key=True),
    sa.Column("device", sa.String(256), primary_key=True),
    sa.Column("state", sa.String(16), nullable=False, index=True),
    sa.Column("stage", sa.String(16), nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("host", sa.String(256), nullable=False, server_default=""),
    sa.Column("reason", sa.Text, nullable=False, server_default=""),
    sa.Column("changed", sa.DateTime(timezone=True), nullable=False),
    sa.Column("again", sa.Text, nullable=False, server_default="[]"),
)
"""One device of one campaign, with all its rounds: leased as a whole, so that its runs stay interleaved. `again` has
the planned runs of the fresh rounds, as JSON."""

files = sa.Table(
    "lab_files",
    metadata,
    sa.Column("campaign_id", sa.String(128), sa.ForeignKey("campaigns.id"), primary_key=True),
    sa.Column("name", sa.String(1024), primary_key=True),
    sa.Column("sha256", sa.String(64), nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
)

blobs = sa.Table(
    "lab_blobs",
    metadata,
    sa.Column("sha256", sa.String(64), primary_key=True),
    sa.Column("part", sa.Integer, primary_key=True),
    sa.Column("content", sa.LargeBinary, nullable=False),
)

TABLES = (hosts, attached, jobs, files, blobs)
