"""The tables of a lab, beside those of the store, as the newest migration leaves them."""

import sqlalchemy as sa

from pipeline.campaign.store import tables as store_tables

hosts = sa.Table(
    "lab_hosts",
    store_tables.metadata,
    sa.Column("name", sa.String(256), primary_key=True),
    sa.Column("seen", sa.DateTime(timezone=True), nullable=False),
    sa.Column("versions", sa.Text, nullable=False),
    sa.Column("note", sa.Text, nullable=False, server_default=""),
    sa.Column("login", sa.String(64), nullable=False, server_default=""),
    sa.Column("session", sa.String(64), nullable=False, server_default=""),
    sa.Column("schema", sa.String(32), nullable=False, server_default="v0002"),
)
"""`login` is the user of the database that the host's name belongs to, `session` its agent at work, "" for none,
`schema` the one that the agent was made for."""

leases = sa.Table(
    "lab_leases",
    store_tables.metadata,
    sa.Column("name", sa.String(256), primary_key=True),
    sa.Column("host", sa.String(256), sa.ForeignKey("lab_hosts.name", ondelete="CASCADE"), nullable=False),
    sa.Column("since", sa.DateTime(timezone=True), nullable=False),
    sa.Column("campaign_id", sa.String(128), nullable=False, server_default=""),
    sa.Column("priority", sa.Integer, nullable=False, server_default="0"),
)
"""Which host has a device, or the choice of a campaign (`campaign ID`): it holds while the host gives signs of life,
and after that until another takes it. `campaign_id` is the job that was handed out with the device, "" for none,
`priority` what it had then."""

attached = sa.Table(
    "lab_devices",
    store_tables.metadata,
    sa.Column("name", sa.String(256), primary_key=True),
    sa.Column("host", sa.String(256), primary_key=True),
    sa.Column("seen", sa.DateTime(timezone=True), nullable=False),
    sa.Column("document", sa.Text, nullable=False),
)
"""Devices under their names among those of all hosts; one on the network may be at several hosts."""

jobs = sa.Table(
    "lab_jobs",
    store_tables.metadata,
    sa.Column("campaign_id", sa.String(128), sa.ForeignKey("campaigns.id"), primary_key=True),
    sa.Column("device", sa.String(256), primary_key=True),
    sa.Column("state", sa.String(16), nullable=False, index=True),
    sa.Column("stage", sa.String(16), nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("host", sa.String(256), nullable=False, server_default=""),
    sa.Column("reason", sa.Text, nullable=False, server_default=""),
    sa.Column("changed", sa.DateTime(timezone=True), nullable=False),
    sa.Column("again", sa.Text, nullable=False, server_default="[]"),
    sa.Column("runs_left", sa.Integer, nullable=False, server_default="0"),
    sa.Column("bytes_left", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("priority", sa.Integer, nullable=False, server_default="0"),
    sa.Column("needs", sa.String(32), nullable=False, server_default="v0002"),
    sa.Index("ix_lab_jobs_device", "device", "state"),
)
"""One device of one campaign, with all its rounds: leased as a whole, so that its runs stay interleaved. `reason` says
why it was left, refused or ended without all of its runs; `again` has the planned runs of the fresh rounds, as JSON;
`runs_left` and `bytes_left` are how many results may still be stored, and of how many bytes together."""

files = sa.Table(
    "lab_files",
    store_tables.metadata,
    sa.Column("campaign_id", sa.String(128), sa.ForeignKey("campaigns.id"), primary_key=True),
    sa.Column("name", sa.String(1024), primary_key=True),
    sa.Column("sha256", sa.String(64), nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("parts", sa.Text, nullable=False, server_default="[]"),
)
"""`parts` has the digests of the parts in their order, as JSON."""

blobs = sa.Table(
    "lab_blobs",
    store_tables.metadata,
    sa.Column("sha256", sa.String(64), primary_key=True),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sa.Column("stored", sa.DateTime(timezone=True)),
)
"""Parts of files under the SHA-256 of their own content: who stores one cannot change what others get."""

times = sa.Table(
    "lab_times",
    store_tables.metadata,
    sa.Column("device", sa.String(256), primary_key=True),
    sa.Column("login", sa.String(64), primary_key=True),
    sa.Column("campaign_id", sa.String(128), primary_key=True),
    sa.Column("used_ms", sa.Numeric, nullable=False),
    sa.Column("clock_ms", sa.Numeric, nullable=False),
    sa.Column("ended", sa.DateTime(timezone=True)),
)
"""What a login (campaign ""), and each campaign of it, had of a device, by the database's clock, and when it had it
last. `clock_ms` is the least time of those that waited when one was chosen: of a device (campaign "*")
among its logins, of a login among its campaigns."""

lost = sa.Table(
    "lab_lost",
    store_tables.metadata,
    sa.Column("name", sa.String(256), primary_key=True),
    sa.Column("host", sa.String(256), nullable=False, index=True),
    sa.Column("since", sa.DateTime(timezone=True), nullable=False),
)
"""Devices that no host has any more: the host that had one last, and until when."""

notices = sa.Table(
    "lab_notices",
    store_tables.metadata,
    sa.Column("campaign_id", sa.String(128), sa.ForeignKey("campaigns.id"), primary_key=True),
    sa.Column("kind", sa.String(16), primary_key=True),
    sa.Column("address", sa.Text, nullable=False, server_default=""),
    sa.Column("host", sa.String(256), nullable=False, server_default=""),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("taken", sa.DateTime(timezone=True)),
    sa.Column("told", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("failure", sa.Text, nullable=False, server_default=""),
)
"""Who is told of a campaign's end: `url` is the one that was submitted, `program` that of a host. No role reads them,
since an address may have a secret in it."""

goldens = sa.Table(
    "lab_golden",
    store_tables.metadata,
    sa.Column("campaign_id", sa.String(128), sa.ForeignKey("campaigns.id"), primary_key=True),
    sa.Column("since", sa.DateTime(timezone=True), nullable=False),
    sa.Column("ended", sa.DateTime(timezone=True)),
    sa.Column("login", sa.String(64), nullable=False),
    sa.Column("after_run", sa.BigInteger, nullable=False),
)
"""Campaigns that devices were checked with, the present one without an end; `after_run` was the newest run then."""

checks = sa.Table(
    "lab_checks",
    store_tables.metadata,
    sa.Column("id", store_tables.KEY, sa.Identity(always=True), primary_key=True),
    sa.Column("device", sa.String(256), nullable=False, index=True),
    sa.Column("host", sa.String(256), nullable=False),
    sa.Column("at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("golden", sa.String(128), nullable=False),
    sa.Column("moment", sa.String(16), nullable=False),
    sa.Column("setting", sa.Text, nullable=False),
    sa.Column("value_ns", sa.BigInteger),
    sa.Column("good", sa.Boolean, nullable=False),
    sa.Column("reason", sa.Text, nullable=False, server_default=""),
    sa.Column("note", sa.Text, nullable=False, server_default="{}"),
    sa.Column("last_run", sa.BigInteger, nullable=False),
)
"""Checks of devices. `setting` is what a value depends on besides: the phone's build, libonnxruntime, the probe; `note`
is what else is known of it, as JSON, `last_run` the newest run of the lab at that time."""

TABLES = (hosts, attached, leases, jobs, files, blobs, times, lost, notices, goldens, checks)
