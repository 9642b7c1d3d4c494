"""The tables of the store and of a lab, views for people and dashboards, and what each role of a lab may do.

Times of runs are milliseconds since 1970, in the views as in the table. Queries that name campaigns find runs by an
index.

What roles may do are rules of PostgreSQL: leases are rows, and jobs change by functions alone. Advisory locks would do
for leases, but every user of a database may take them, and its owner cannot forbid it. The functions run with the
rights of the owner and look at `session_user`, which no statement of a user changes; roles.sql says who may call which.
A database in SQLite is nobody else's and needs none of this.
"""

import sqlalchemy as sa
from alembic import op

revision = "v0001"
down_revision = None

VIEWS = {
    "run_summary": """
        SELECT runs.campaign_id, campaigns.name AS campaign, runs.host, runs.device, runs.model, runs.variant,
            runs.provider, runs.planned, runs.round, runs.status, runs.failure_kind, runs.started_at_ms,
            runs.ended_at_ms, (runs.ended_at_ms - runs.started_at_ms) / 1000.0 AS seconds,
            runs.median_ns / 1000000.0 AS median_ms
        FROM runs JOIN campaigns ON campaigns.id = runs.campaign_id
    """,
    "device_health": """
        SELECT campaign_id, campaign, host, device, count(*) AS runs,
            sum(CASE WHEN status = 'ok' THEN 1 ELSE 0 END) AS ok,
            sum(CASE WHEN status = 'failed' THEN 1 ELSE 0 END) AS failed,
            sum(CASE WHEN status = 'skipped' THEN 1 ELSE 0 END) AS skipped,
            sum(CASE WHEN failure_kind = 'lost_device' THEN 1 ELSE 0 END) AS lost,
            max(started_at_ms) AS last_run_ms, max(CASE WHEN status = 'ok' THEN started_at_ms END) AS last_ok_ms
        FROM run_summary GROUP BY campaign_id, campaign, host, device
    """,
    "queue": """
        SELECT lab_jobs.campaign_id, campaigns.name AS campaign, lab_jobs.device, lab_jobs.state, lab_jobs.stage,
            lab_jobs.attempts, lab_jobs.host, lab_hosts.seen AS host_seen, lab_jobs.reason, lab_jobs.changed
        FROM lab_jobs JOIN campaigns ON campaigns.id = lab_jobs.campaign_id
        LEFT JOIN lab_hosts ON lab_hosts.name = lab_jobs.host
    """,
}


CHECKS = {
    "campaigns": (
        "id ~ '^[0-9A-Za-z][0-9A-Za-z.:_-]{0,127}$'", "name !~ '[[:cntrl:]]'", "octet_length(document) <= 67108864",
    ),
    "artifacts": ("octet_length(document) <= 16777216",),
    "devices": ("octet_length(document) <= 1048576",),
    "runs": (
        "round BETWEEN 0 AND 2000000", "median_ns >= 0", "octet_length(spec) <= 1048576",
        "octet_length(result) <= 16777216", "octet_length(checks) <= 1048576", "octet_length(prediction) <= 1048576",
    ),
    "latencies": ("samples >= 0", "octet_length(nanoseconds) = 8::bigint * samples"),
    "lab_hosts": ("name !~ '[[:cntrl:]]'", "octet_length(versions) <= 16384", "octet_length(note) <= 65536"),
    "lab_devices": ("name !~ '[[:cntrl:]]'", "octet_length(document) <= 65536"),
    "lab_jobs": (
        "state IN ('waiting', 'running', 'measured', 'done', 'failed', 'cancelled')", "stage IN ('rounds', 'fresh')",
        "attempts >= 0", "octet_length(reason) <= 65536", "octet_length(again) <= 16777216",
    ),
    "lab_files": (
        "name ~ '^((artifacts|libraries)/[^/]+|reference/[^/]+/[^/]+)$'", r"name !~ '(^|/)\.\.?(/|$)'",
        r"name !~ '[[:cntrl:]\\]'", "sha256 ~ '^[0-9a-f]{64}$'", "size_bytes BETWEEN 0 AND 8589934592",
    ),
    "lab_blobs": ("sha256 ~ '^[0-9a-f]{64}$'", "part BETWEEN 0 AND 8191", "octet_length(content) <= 1048576"),
}  # fmt: skip

DEFINER = "SECURITY DEFINER SET search_path = public, pg_temp"

FUNCTIONS = {
    "lab_alive(seen timestamptz) RETURNS boolean LANGUAGE sql STABLE": """
        -- whether a host gave a sign of life within 8 s; after a restart of the server each has time to come back
        SELECT greatest(seen, pg_postmaster_start_time()) > now() - interval '8 seconds'
    """,
    f"lab_begin(the_host text, the_session text) RETURNS boolean LANGUAGE plpgsql {DEFINER}": """
        -- take the name of a host for a session of its agent; false while another session of the host is alive
        DECLARE known lab_hosts;
        BEGIN
            INSERT INTO lab_hosts (name, seen, versions, login) VALUES (the_host, now(), '{}', session_user)
                ON CONFLICT DO NOTHING;
            SELECT * INTO known FROM lab_hosts WHERE name = the_host FOR UPDATE;
            IF known.login <> session_user THEN
                RAISE EXCEPTION 'the lab refuses: the host % belongs to the login %', the_host, known.login
                    USING ERRCODE = '42501';
            ELSIF known.session NOT IN ('', the_session) AND lab_alive(known.seen) THEN
                RETURN false;
            ELSIF known.session <> the_session THEN
                DELETE FROM lab_leases WHERE host = the_host;
                DELETE FROM lab_devices WHERE host = the_host;
            END IF;
            UPDATE lab_hosts SET session = the_session, seen = now() WHERE name = the_host;
            RETURN true;
        END
    """,
    f"lab_own(the_host text, the_session text) RETURNS void LANGUAGE plpgsql {DEFINER}": """
        BEGIN
            PERFORM FROM lab_hosts WHERE name = the_host AND session = the_session AND session <> ''
                AND login = session_user FOR UPDATE;
            IF NOT FOUND THEN
                RAISE EXCEPTION 'the lab refuses: the host % is not of this session', the_host USING ERRCODE = '42501';
            END IF;
        END
    """,
    f"""lab_live(the_host text, the_session text, the_versions text, the_note text, names text[], documents text[])
        RETURNS void LANGUAGE plpgsql {DEFINER}""": """
        -- a sign of life, with what the host has attached
        DECLARE foreign_name text;
        BEGIN
            PERFORM lab_own(the_host, the_session);
            SELECT n INTO foreign_name FROM unnest(names) n
                WHERE position('@' IN n) > 0 AND right(n, length(the_host) + 1) <> '@' || the_host;
            IF FOUND OR cardinality(names) > 512 THEN
                RAISE EXCEPTION 'the lab refuses: % is not of the host %', coalesce(foreign_name, 'so much'), the_host
                    USING ERRCODE = '42501';
            END IF;
            UPDATE lab_hosts SET seen = now(), versions = the_versions, note = the_note WHERE name = the_host;
            DELETE FROM lab_devices WHERE host = the_host AND name <> ALL (names);
            INSERT INTO lab_devices (name, host, seen, document)
                SELECT n, the_host, now(), d FROM unnest(names, documents) u (n, d)
                ON CONFLICT (name, host) DO UPDATE SET seen = now(), document = excluded.document;
        END
    """,
    f"lab_take(the_host text, the_session text, the_name text) RETURNS boolean LANGUAGE plpgsql {DEFINER}": """
        -- lease a device that the host has attached, or the choice of a campaign; false while another host has it
        BEGIN
            PERFORM lab_own(the_host, the_session);
            IF NOT EXISTS (SELECT FROM lab_devices WHERE name = the_name AND host = the_host)
                AND NOT EXISTS (SELECT FROM lab_jobs WHERE 'campaign ' || campaign_id = the_name) THEN
                RETURN false;
            END IF;
            INSERT INTO lab_leases AS known (name, host, since) VALUES (the_name, the_host, now())
                ON CONFLICT (name) DO UPDATE SET host = excluded.host, since = now() WHERE known.host = the_host
                OR NOT (SELECT session <> '' AND lab_alive(seen) FROM lab_hosts h WHERE h.name = known.host);
            RETURN FOUND;
        END
    """,
    f"lab_keep(the_host text, the_session text, names text[]) RETURNS void LANGUAGE plpgsql {DEFINER}": """
        -- give back every lease of the host but these
        BEGIN
            PERFORM lab_own(the_host, the_session);
            DELETE FROM lab_leases WHERE host = the_host AND name <> ALL (names);
        END
    """,
    f"lab_end(the_host text, the_session text) RETURNS void LANGUAGE plpgsql {DEFINER}": """
        BEGIN
            PERFORM lab_own(the_host, the_session);
            DELETE FROM lab_leases WHERE host = the_host;
            DELETE FROM lab_devices WHERE host = the_host;
            UPDATE lab_hosts SET session = '', note = 'the agent was stopped' WHERE name = the_host;
        END
    """,
    f"""lab_may_add(the_campaign text, the_device text, the_host text) RETURNS text LANGUAGE plpgsql STABLE {DEFINER}
    """: """
        -- why this login may not add or repeat a result, or ''; the host is that which has the device, or had it last
        DECLARE job lab_jobs;
        BEGIN
            SELECT * INTO job FROM lab_jobs WHERE campaign_id = the_campaign AND device = the_device;
            IF NOT FOUND THEN
                RETURN format('the campaign %s has no device %s in the queue', the_campaign, the_device);
            ELSIF job.state NOT IN ('waiting', 'running') THEN
                RETURN format('the job of %s is %s', the_device, job.state);
            ELSIF NOT EXISTS (SELECT FROM lab_leases l JOIN lab_hosts h ON h.name = l.host WHERE l.name = the_device
                AND h.login = session_user AND the_host IN ('', h.name)) THEN
                RETURN format('this login has no lease of %s at the host %s', the_device, the_host);
            END IF;
            RETURN '';
        END
    """,
    f"lab_check_run() RETURNS trigger LANGUAGE plpgsql {DEFINER}": """
        -- of campaigns of a lab, whoever adds the result; the database's clock, not the host's, says what is future
        DECLARE reason text;
        BEGIN
            IF NOT EXISTS (SELECT FROM lab_jobs WHERE campaign_id = NEW.campaign_id) THEN
                RETURN NEW;
            END IF;
            reason := lab_may_add(NEW.campaign_id, NEW.device, NEW.host);
            IF reason = '' AND NEW.started_at_ms > (extract(epoch FROM now()) + 86400) * 1000 THEN
                reason := format('a run of %s begins in more than a day', NEW.device);
            END IF;
            IF reason = '' THEN
                UPDATE lab_jobs SET runs_left = runs_left - 1
                    WHERE campaign_id = NEW.campaign_id AND device = NEW.device AND runs_left > 0;
                IF NOT FOUND THEN
                    reason := format('%s has more runs than were planned', NEW.device);
                END IF;
            END IF;
            IF reason <> '' THEN
                RAISE EXCEPTION 'the lab refuses: %', reason USING ERRCODE = '42501';
            END IF;
            RETURN NEW;
        END
    """,
    f"""lab_change(the_host text, the_session text, the_campaign text, the_device text, the_state text,
        the_attempts integer, the_reason text) RETURNS void LANGUAGE plpgsql {DEFINER}""": """
        -- what a host says of a job whose device it has; one that has ended stays as it is
        DECLARE job lab_jobs;
        BEGIN
            PERFORM lab_own(the_host, the_session);
            SELECT * INTO job FROM lab_jobs WHERE campaign_id = the_campaign AND device = the_device FOR UPDATE;
            IF NOT FOUND OR job.state NOT IN ('waiting', 'running') THEN
                RETURN;
            ELSIF NOT EXISTS (SELECT FROM lab_leases WHERE name = the_device AND host = the_host) THEN
                RAISE EXCEPTION 'the lab refuses: the host % has no lease of %', the_host, the_device
                    USING ERRCODE = '42501';
            ELSIF the_state NOT IN
                ('waiting', 'running', 'failed', CASE job.stage WHEN 'rounds' THEN 'measured' ELSE 'done' END)
                OR the_attempts NOT BETWEEN job.attempts AND job.attempts + 1 THEN
                RAISE EXCEPTION 'the lab refuses: a job in % does not become %', job.stage, the_state
                    USING ERRCODE = '42501';
            END IF;
            UPDATE lab_jobs SET state = the_state, attempts = the_attempts, reason = the_reason, changed = now(),
                host = CASE the_state WHEN 'running' THEN the_host ELSE host END
                WHERE campaign_id = the_campaign AND device = the_device;
        END
    """,
    f"""lab_end_stage(the_host text, the_session text, the_campaign text, the_again jsonb, the_reason text)
        RETURNS void LANGUAGE plpgsql {DEFINER}""": """
        -- after the rounds of all devices: those that are named begin fresh rounds, the others are done
        BEGIN
            PERFORM lab_own(the_host, the_session);
            IF NOT EXISTS (SELECT FROM lab_leases WHERE name = 'campaign ' || the_campaign AND host = the_host) THEN
                RAISE EXCEPTION 'the lab refuses: the host % has no lease of the choice of %', the_host, the_campaign
                    USING ERRCODE = '42501';
            ELSIF EXISTS
                (SELECT FROM lab_jobs WHERE campaign_id = the_campaign AND state IN ('waiting', 'running')) THEN
                RETURN;
            END IF;
            UPDATE lab_jobs SET reason = the_reason, changed = now(),
                again = coalesce((the_again -> device)::text, '[]'),
                stage = CASE WHEN the_again ? device THEN 'fresh' ELSE stage END,
                state = CASE WHEN the_reason <> '' THEN 'failed' WHEN the_again ? device THEN 'waiting' ELSE 'done' END
                WHERE campaign_id = the_campaign AND state = 'measured' AND stage = 'rounds';
        END
    """,
    f"lab_next_sequence() RETURNS integer LANGUAGE sql STABLE {DEFINER}": """
        SELECT coalesce(max(sequence), 0) + 1 FROM campaigns
    """,
    f"""lab_submit(the_campaign text, devices text[], runs integer[], names text[], digests text[], sizes bigint[])
        RETURNS boolean LANGUAGE plpgsql {DEFINER}""": """
        -- enter the jobs and files of a campaign; false where content of a file is not there any more
        BEGIN
            LOCK TABLE lab_blobs IN EXCLUSIVE MODE; -- what is there now stays until the files are entered
            IF EXISTS (SELECT FROM lab_jobs WHERE campaign_id = the_campaign) THEN
                RETURN true;
            ELSIF cardinality(names) > 10000 OR (SELECT sum(s) FROM unnest(sizes) s) > 8589934592 THEN
                RAISE EXCEPTION 'the lab refuses: % files of more than a campaign may have', cardinality(names)
                    USING ERRCODE = '42501';
            ELSIF EXISTS (SELECT FROM unnest(digests, sizes) f (digest, size) WHERE ceil(f.size / 1048576.0) >
                (SELECT count(*) FROM lab_blobs b WHERE b.sha256 = f.digest AND b.part < ceil(f.size / 1048576.0))) THEN
                RETURN false;
            END IF;
            INSERT INTO lab_jobs (campaign_id, device, state, stage, changed, runs_left)
                SELECT the_campaign, d, 'waiting', 'rounds', now(), r FROM unnest(devices, runs) u (d, r);
            INSERT INTO lab_files (campaign_id, name, sha256, size_bytes)
                SELECT the_campaign, n, d, s FROM unnest(names, digests, sizes) u (n, d, s);
            RETURN true;
        END
    """,
    f"lab_cancel(the_campaign text) RETURNS integer LANGUAGE plpgsql {DEFINER}": """
        DECLARE found_jobs integer;
        BEGIN
            UPDATE lab_jobs SET state = 'cancelled', reason = 'cancelled', changed = now()
                WHERE campaign_id = the_campaign AND state IN ('waiting', 'running', 'measured');
            GET DIAGNOSTICS found_jobs = ROW_COUNT;
            RETURN found_jobs;
        END
    """,
    f"lab_remove_old_files() RETURNS integer LANGUAGE plpgsql {DEFINER}": """
        -- content of files that only campaigns use that ended 30 days ago; or no campaign, a day after it was stored
        DECLARE removed integer;
        BEGIN
            LOCK TABLE lab_blobs IN EXCLUSIVE MODE;
            DELETE FROM lab_blobs b WHERE stored < now() - interval '1 day' AND NOT EXISTS (
                SELECT FROM lab_files f JOIN lab_jobs j ON j.campaign_id = f.campaign_id WHERE f.sha256 = b.sha256
                AND (j.state NOT IN ('done', 'failed', 'cancelled') OR j.changed > now() - interval '30 days'));
            GET DIAGNOSTICS removed = ROW_COUNT;
            RETURN removed;
        END
    """,
}
"""What follows CREATE FUNCTION, to the function's body."""


def upgrade() -> None:
    """Make them; bounds and functions on PostgreSQL."""
    _make_store()
    _make_lab()
    for name, query in VIEWS.items():  # each after those that it reads
        op.execute(f"CREATE VIEW {name} AS {query}")
    if op.get_bind().dialect.name != "postgresql":
        return
    op.execute("ALTER TABLE lab_blobs ALTER COLUMN stored SET DEFAULT now()")
    for table, checks in CHECKS.items():
        for check in checks:
            op.execute(_plain(f"ALTER TABLE {table} ADD CHECK ({check})"))
    for head, body in FUNCTIONS.items():
        op.execute(_plain(f"CREATE FUNCTION {head} AS $${body}$$"))
        op.execute(f"REVOKE ALL ON FUNCTION {head.partition('(')[0]} FROM PUBLIC")
    op.execute("CREATE TRIGGER lab_check_run BEFORE INSERT ON runs FOR EACH ROW EXECUTE FUNCTION lab_check_run()")


def _plain(statement: str) -> sa.TextClause:
    """A statement whose colons are no parameters."""
    return sa.text(statement.replace(":", r"\:"))


def _text(name: str, length: int | None = None, **more: object) -> sa.Column[str]:
    return sa.Column(name, sa.String(length) if length else sa.Text(), nullable=False, **more)  # type: ignore[arg-type]


def _instant(name: str) -> "sa.Column[sa.DateTime]":
    return sa.Column(name, sa.DateTime(timezone=True), nullable=False)  # type: ignore[arg-type]


def _campaign(*, key: bool = True) -> sa.Column[str]:
    return sa.Column("campaign_id", sa.String(128), sa.ForeignKey("campaigns.id"), primary_key=key, nullable=False)


def _make_store() -> None:
    op.create_table(
        "campaigns",
        _text("id", 128, primary_key=True),
        _text("name", 128, index=True),
        _text("created_at", 32),
        _text("document"),
        sa.Column("sequence", sa.Integer, nullable=False, index=True, unique=True),
        _text("digest", 32),
    )
    op.create_table(
        "devices", _campaign(), _text("name", 256, primary_key=True), _text("document"), _text("digest", 32)
    )
    op.create_table(
        "artifacts",
        _campaign(),
        _text("model", 256, primary_key=True),
        _text("variant", 256, primary_key=True),
        _text("sha256", 64),
        _text("document"),
        _text("digest", 32),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer, primary_key=True),
        _campaign(key=False),
        _text("spec_id", 256),
        _text("planned", 256),
        sa.Column("round", sa.Integer, nullable=False),
        _text("model", 256),
        _text("variant", 256),
        _text("device", 256),
        _text("provider", 128),
        _text("status", 16),
        sa.Column("failure_kind", sa.String(32)),
        _text("started_at", 32),
        _text("spec"),
        _text("result"),
        _text("checks"),
        sa.Column("prediction", sa.Text),
        _text("host", 256),
        sa.Column("started_at_ms", sa.BigInteger),
        sa.Column("ended_at_ms", sa.BigInteger),
        sa.Column("median_ns", sa.BigInteger),
        _text("digest", 32),
        sa.UniqueConstraint("campaign_id", "spec_id", "round"),
    )
    op.create_table(
        "latencies",
        sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("samples", sa.Integer, nullable=False),
        sa.Column("nanoseconds", sa.LargeBinary, nullable=False),
    )


def _make_lab() -> None:
    op.create_table(
        "lab_hosts",
        _text("name", 256, primary_key=True),
        _instant("seen"),
        _text("versions"),
        _text("note", server_default=""),
        _text("login", 64, server_default=""),
        _text("session", 64, server_default=""),
    )
    op.create_table(
        "lab_devices",
        _text("name", 256, primary_key=True),
        _text("host", 256, primary_key=True),
        _instant("seen"),
        _text("document"),
    )
    op.create_table(
        "lab_leases",
        _text("name", 256, primary_key=True),
        sa.Column("host", sa.String(256), sa.ForeignKey("lab_hosts.name", ondelete="CASCADE"), nullable=False),
        _instant("since"),
    )
    op.create_table(
        "lab_jobs",
        _campaign(),
        _text("device", 256, primary_key=True),
        _text("state", 16, index=True),
        _text("stage", 16),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        _text("host", 256, server_default=""),
        _text("reason", server_default=""),
        _instant("changed"),
        _text("again", server_default="[]"),
        sa.Column("runs_left", sa.Integer, nullable=False, server_default="0"),
    )
    op.create_table(
        "lab_files",
        _campaign(),
        _text("name", 1024, primary_key=True),
        _text("sha256", 64),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "lab_blobs",
        _text("sha256", 64, primary_key=True),
        sa.Column("part", sa.Integer, primary_key=True),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("stored", sa.DateTime(timezone=True)),
    )
