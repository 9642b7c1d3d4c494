"""Devices of a lab are checked with a golden model, quarantined with the reason, and released by an operator; agents of
the release before go on after this upgrade.

A check is of a device whose lease the host has; so is a quarantine. What a device measured since its last good check
is in doubt: runs by their keys, which the database gives in the order in which they come. Jobs of a device in
quarantine have failed, and no host takes it, whatever its release.

An agent names the schema that it was made for; `lab_serves` has those whose statements go on working. A job names the
earliest that measures what it asks for.
"""

import sqlalchemy as sa
from alembic import op

revision = "v0004"
down_revision = "v0003"

DEFINER = "SECURITY DEFINER SET search_path = public, pg_temp"

FUNCTIONS = {
    "lab_serves() RETURNS text[] LANGUAGE sql IMMUTABLE": """
        -- the schemas whose agents may go on working, the oldest first; a migration that ends one says so here
        SELECT ARRAY['v0002', 'v0003', 'v0004']
    """,
    f"""lab_begin(the_host text, the_session text, the_schema text) RETURNS boolean LANGUAGE plpgsql {DEFINER}
    """: """
        -- take the name of a host for a session of its agent; false while another session of the host is alive
        DECLARE known lab_hosts;
        BEGIN
            IF the_schema <> ALL (lab_serves()) THEN
                RAISE EXCEPTION 'the lab refuses: an agent of the schema %: update ort-mobile on this computer',
                    the_schema USING ERRCODE = '42501';
            ELSIF NOT EXISTS (SELECT FROM lab_hosts WHERE name = the_host) AND
                (SELECT count(*) FROM lab_hosts WHERE login = session_user) >= 256 THEN
                RAISE EXCEPTION 'the lab refuses: the login % has 256 hosts; its owner frees names of lab_hosts',
                    session_user USING ERRCODE = '42501';
            END IF;
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
            UPDATE lab_hosts SET session = the_session, seen = now(), schema = the_schema WHERE name = the_host;
            RETURN true;
        END
    """,
    f"lab_too_new(the_host text, the_device text) RETURNS text[] LANGUAGE sql STABLE {DEFINER}": """
        -- campaigns that wait for a device, and need an agent of a later schema than the host's
        SELECT ARRAY(SELECT campaign_id::text FROM lab_jobs WHERE device = the_device
            AND needs > (SELECT schema FROM lab_hosts WHERE name = the_host))
    """,
    f"lab_take(the_host text, the_session text, the_name text) RETURNS boolean LANGUAGE plpgsql {DEFINER}": """
        -- lease a device that the host has attached, without a job, or the choice of a campaign; false while another
        -- host has it, while it is in quarantine, and where all that is left to do needs a later agent
        DECLARE of_host text;
        BEGIN
            PERFORM lab_own(the_host, the_session);
            SELECT schema INTO of_host FROM lab_hosts WHERE name = the_host;
            IF EXISTS (SELECT FROM lab_devices WHERE name = the_name AND host = the_host) THEN
                IF EXISTS (SELECT FROM lab_quarantines WHERE device = the_name AND released IS NULL)
                    OR (SELECT min(needs) FROM lab_jobs WHERE device = the_name AND state IN ('waiting', 'running'))
                    > of_host THEN
                    RETURN false;
                END IF;
            ELSIF NOT EXISTS (SELECT FROM lab_jobs WHERE 'campaign ' || campaign_id = the_name AND needs <= of_host)
                OR (of_host < 'v0004' AND EXISTS (SELECT FROM runs r JOIN lab_quarantines q ON q.device = r.device
                WHERE 'campaign ' || r.campaign_id = the_name AND r.id > q.after_run
                AND (q.last_run IS NULL OR r.id <= q.last_run) AND NOT q.sound)) THEN
                RETURN false; -- agents of before do not know which results are in doubt
            END IF;
            INSERT INTO lab_leases AS known (name, host, since) VALUES (the_name, the_host, now())
                ON CONFLICT (name) DO UPDATE SET host = excluded.host, since = now(), campaign_id = '', priority = 0
                WHERE known.host = the_host
                OR NOT (SELECT session <> '' AND lab_alive(seen) FROM lab_hosts h WHERE h.name = known.host);
            RETURN FOUND;
        END
    """,
    f"""lab_next(the_host text, the_session text, the_device text, refused text[]) RETURNS text LANGUAGE plpgsql
        {DEFINER}""": """
        -- lease a device that the host has attached, with the campaign whose turn it is; NULL for none, or while
        -- another host has the device, and while it is in quarantine. `refused` are campaigns that the host cannot
        -- measure, beside those that need a later agent.
        DECLARE next_one record;
        BEGIN
            PERFORM lab_own(the_host, the_session);
            refused := refused || lab_too_new(the_host, the_device);
            IF NOT EXISTS (SELECT FROM lab_devices WHERE name = the_device AND host = the_host)
                OR EXISTS (SELECT FROM lab_quarantines WHERE device = the_device AND released IS NULL)
                OR NOT EXISTS (SELECT FROM lab_waiting(the_device, refused, '')) THEN
                RETURN NULL;
            END IF;
            INSERT INTO lab_leases AS known (name, host, since) VALUES (the_device, the_host, now())
                ON CONFLICT (name) DO UPDATE SET host = excluded.host, since = now(), campaign_id = '', priority = 0
                WHERE known.host = the_host
                OR NOT (SELECT session <> '' AND lab_alive(seen) FROM lab_hosts h WHERE h.name = known.host);
            IF NOT FOUND THEN
                RETURN NULL;
            END IF;
            SELECT * INTO next_one FROM lab_choose(the_device, refused, '');
            IF FOUND THEN
                UPDATE lab_leases SET campaign_id = next_one.campaign, priority = next_one.its_priority
                    WHERE name = the_device;
            END IF;
            RETURN next_one.campaign;
        END
    """,
    f"""lab_turn(the_host text, the_session text, the_campaign text, the_device text, refused text[],
        between_rounds boolean) RETURNS text[] LANGUAGE plpgsql {DEFINER}""": """
        -- before each run: the state of its job and the campaign that the device gives way to, or ''; NULL where the
        -- host has no lease of it. A higher priority goes before the next run, a turn is over between rounds.
        DECLARE lease lab_leases; the_state text; next_one record;
        BEGIN
            PERFORM lab_own(the_host, the_session);
            refused := refused || lab_too_new(the_host, the_device);
            SELECT * INTO lease FROM lab_leases WHERE name = the_device AND host = the_host
                AND campaign_id = the_campaign FOR UPDATE;
            IF NOT FOUND THEN
                RETURN NULL;
            END IF;
            SELECT state INTO the_state FROM lab_jobs WHERE campaign_id = the_campaign AND device = the_device;
            IF between_rounds THEN
                UPDATE lab_leases SET since = now() WHERE name = the_device;
                SELECT * INTO next_one FROM lab_choose(the_device, refused, the_campaign);
                IF next_one.campaign = the_campaign THEN
                    UPDATE lab_leases SET priority = next_one.its_priority WHERE name = the_device;
                    RETURN ARRAY[the_state, ''];
                END IF;
                RETURN ARRAY[the_state, coalesce(next_one.campaign, '')];
            END IF;
            RETURN ARRAY[the_state, coalesce((SELECT w.campaign_id FROM lab_waiting(the_device, refused, the_campaign) w
                WHERE w.own_priority > lease.priority LIMIT 1), '')];
        END
    """,
    f"""lab_change(the_host text, the_session text, the_campaign text, the_device text, the_state text,
        the_attempts integer, the_reason text) RETURNS void LANGUAGE plpgsql {DEFINER}""": """
        -- what a host says of the job that it was handed; one that has ended stays as it is
        DECLARE job lab_jobs;
        BEGIN
            PERFORM lab_own(the_host, the_session);
            SELECT * INTO job FROM lab_jobs WHERE campaign_id = the_campaign AND device = the_device FOR UPDATE;
            IF NOT FOUND OR job.state NOT IN ('waiting', 'running') THEN
                RETURN;
            END IF;
            -- agents of v0002 take a device, and say then of which job
            UPDATE lab_leases SET campaign_id = the_campaign WHERE name = the_device AND host = the_host
                AND campaign_id = '' AND (SELECT schema < 'v0003' FROM lab_hosts WHERE name = the_host);
            IF NOT EXISTS (SELECT FROM lab_leases WHERE name = the_device AND host = the_host
                AND campaign_id = the_campaign) THEN
                RAISE EXCEPTION 'the lab refuses: the host % has no lease of % for the campaign %', the_host,
                    the_device, the_campaign USING ERRCODE = '42501';
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
    f"lab_needs(the_campaign text, the_schema text) RETURNS void LANGUAGE plpgsql {DEFINER}": """
        -- the earliest agents that measure a campaign; said in the transaction of its submit, and once
        BEGIN
            UPDATE lab_jobs SET needs = the_schema WHERE campaign_id = the_campaign AND needs < the_schema
                AND xmin = pg_current_xact_id()::xid;
        END
    """,
    f"lab_set_golden(the_campaign text, the_files jsonb) RETURNS boolean LANGUAGE plpgsql {DEFINER}": """
        -- what devices are checked with from now on, '' for nothing; false where content of its files is not there
        BEGIN
            IF the_campaign <> '' AND NOT lab_submit(the_campaign, '{}', '{}', '{}', the_files) THEN
                RETURN false;
            END IF;
            UPDATE lab_golden SET ended = now() WHERE ended IS NULL;
            IF the_campaign <> '' THEN
                INSERT INTO lab_golden (campaign_id, since, login, after_run)
                    SELECT the_campaign, now(), session_user, coalesce(max(id), 0) FROM runs;
            END IF;
            RETURN true;
        END
    """,
    f"""lab_lease_of(the_host text, the_session text, the_device text) RETURNS void LANGUAGE plpgsql {DEFINER}""": """
        BEGIN
            PERFORM lab_own(the_host, the_session);
            IF NOT EXISTS (SELECT FROM lab_leases WHERE name = the_device AND host = the_host) THEN
                RAISE EXCEPTION 'the lab refuses: the host % has no lease of %', the_host, the_device
                    USING ERRCODE = '42501';
            END IF;
        END
    """,
    f"""lab_checked(the_host text, the_session text, the_device text, the_golden text, the_moment text,
        the_setting text, the_value bigint, is_good boolean, the_reason text, the_note text)
        RETURNS void LANGUAGE plpgsql {DEFINER}""": """
        -- what a check of a device gave; the newest 1000 of each are kept
        BEGIN
            PERFORM lab_lease_of(the_host, the_session, the_device);
            INSERT INTO lab_checks (device, host, at, golden, moment, setting, value_ns, good, reason, note, last_run)
                SELECT the_device, the_host, now(), the_golden, the_moment, the_setting, the_value, is_good,
                    the_reason,
                    the_note, coalesce((SELECT max(id) FROM runs), 0);
            DELETE FROM lab_checks WHERE device = the_device AND id <= (SELECT id FROM lab_checks
                WHERE device = the_device ORDER BY id DESC OFFSET 1000 LIMIT 1);
        END
    """,
    f"""lab_quarantine(the_host text, the_session text, the_device text, the_reason text)
        RETURNS void LANGUAGE plpgsql {DEFINER}""": """
        -- take a device out of the lab: what it measured since its last good check is in doubt, its jobs have failed
        DECLARE last_good bigint;
        BEGIN
            PERFORM lab_lease_of(the_host, the_session, the_device);
            IF EXISTS (SELECT FROM lab_quarantines WHERE device = the_device AND released IS NULL) THEN
                RETURN;
            END IF;
            SELECT last_run INTO last_good FROM lab_checks WHERE device = the_device AND good ORDER BY id DESC LIMIT 1;
            IF NOT FOUND THEN
                SELECT after_run INTO last_good FROM lab_golden WHERE ended IS NULL;
            END IF;
            INSERT INTO lab_quarantines (device, host, reason, placed, after_run)
                VALUES (the_device, the_host, the_reason, now(), coalesce(last_good, 0));
            UPDATE lab_jobs SET state = 'failed', reason = 'in quarantine: ' || the_reason, changed = now()
                WHERE device = the_device AND state IN ('waiting', 'running');
        END
    """,
    f"""lab_release(the_device text, is_sound boolean) RETURNS boolean LANGUAGE plpgsql {DEFINER}""": """
        -- an operator gives a device back to the lab; with is_sound what it measured counts after all
        BEGIN
            UPDATE lab_quarantines SET released = now(), released_by = session_user, sound = is_sound,
                last_run = (SELECT coalesce(max(id), 0) FROM runs)
                WHERE device = the_device AND released IS NULL;
            RETURN FOUND;
        END
    """,
    f"lab_refuse_job() RETURNS trigger LANGUAGE plpgsql {DEFINER}": """
        -- a device in quarantine measures nothing of a campaign that is submitted meanwhile
        DECLARE why text;
        BEGIN
            SELECT reason INTO why FROM lab_quarantines WHERE device = NEW.device AND released IS NULL;
            IF FOUND THEN
                NEW.state := 'failed';
                NEW.reason := 'in quarantine: ' || why;
            END IF;
            RETURN NEW;
        END
    """,
    f"lab_remove_old_files() RETURNS integer LANGUAGE plpgsql {DEFINER}": """
        -- content of files that only campaigns use that ended 30 days ago; or no campaign, a day after it was stored
        DECLARE removed integer;
        BEGIN
            LOCK TABLE lab_blobs IN EXCLUSIVE MODE;
            DELETE FROM lab_blobs WHERE stored < now() - interval '1 day' AND sha256 NOT IN (
                SELECT jsonb_array_elements_text(f.parts::jsonb) FROM lab_files f
                WHERE EXISTS (SELECT FROM lab_golden g WHERE g.campaign_id = f.campaign_id AND g.ended IS NULL)
                OR EXISTS (SELECT FROM lab_jobs j WHERE j.campaign_id = f.campaign_id
                AND (j.state NOT IN ('done', 'failed', 'cancelled') OR j.changed > now() - interval '30 days')));
            GET DIAGNOSTICS removed = ROW_COUNT;
            RETURN removed;
        END
    """,
}
"""What follows CREATE OR REPLACE FUNCTION, to the function's body."""

CHECKS = {
    "lab_checks": (
        "moment IN ('before', 'after')",
        "value_ns > 0",
        "octet_length(reason) <= 65536",
        "octet_length(note) <= 65536",
        "octet_length(setting) <= 4096",
    ),
    "lab_quarantines": ("octet_length(reason) <= 65536",),
}

VIEWS = {
    "run_summary": """
        SELECT runs.campaign_id, campaigns.name AS campaign, runs.host, runs.device, runs.model, runs.variant,
            runs.provider, runs.planned, runs.round, runs.status, runs.failure_kind, runs.started_at_ms,
            runs.ended_at_ms, (runs.ended_at_ms - runs.started_at_ms) / 1000.0 AS seconds,
            runs.median_ns / 1000000.0 AS median_ms,
            EXISTS (SELECT 1 FROM lab_quarantines q WHERE q.device = runs.device AND runs.id > q.after_run
                AND (q.last_run IS NULL OR runs.id <= q.last_run) AND NOT q.sound) AS in_doubt
        FROM runs JOIN campaigns ON campaigns.id = runs.campaign_id
    """,
    "queue": """
        SELECT lab_jobs.campaign_id, campaigns.name AS campaign, lab_jobs.device, lab_jobs.state, lab_jobs.stage,
            lab_jobs.attempts, lab_jobs.host, lab_hosts.seen AS host_seen, lab_jobs.reason, lab_jobs.changed,
            lab_jobs.priority
        FROM lab_jobs JOIN campaigns ON campaigns.id = lab_jobs.campaign_id
        LEFT JOIN lab_hosts ON lab_hosts.name = lab_jobs.host
    """,
}
"""Those of before with more columns."""

OF_NOBODY = """
DO $$
DECLARE function regprocedure;
BEGIN
    FOR function IN SELECT oid::regprocedure FROM pg_proc
        WHERE proname IN ('lab_serves', 'lab_needs', 'lab_too_new', 'lab_set_golden', 'lab_lease_of', 'lab_checked',
        'lab_quarantine', 'lab_release', 'lab_refuse_job') AND pronamespace = 'public'::regnamespace LOOP
        EXECUTE 'REVOKE ALL ON FUNCTION ' || function || ' FROM PUBLIC';
    END LOOP;
END $$
"""
"""Functions that were there keep the rights that roles have: agents of before go on until roles.sql is run again."""


OF_RUNNING = """
UPDATE lab_leases l SET campaign_id = j.campaign_id FROM lab_jobs j
    WHERE j.device = l.name AND j.host = l.host AND j.state = 'running' AND l.campaign_id = ''
"""
"""Agents of v0002 at work during the upgrade have leases without a job."""


def upgrade() -> None:
    """Add tables and columns; functions and rights on PostgreSQL."""
    op.add_column("lab_hosts", sa.Column("schema", sa.String(32), nullable=False, server_default="v0002"))
    op.add_column("lab_jobs", sa.Column("needs", sa.String(32), nullable=False, server_default="v0002"))
    _make_tables()
    postgresql = op.get_bind().dialect.name == "postgresql"
    for name, query in VIEWS.items():
        if not postgresql:  # SQLite binds names when a view is read
            op.execute(f"DROP VIEW {name}")
        op.execute(_plain(f"CREATE {'OR REPLACE ' * postgresql}VIEW {name} AS {query}"))
    if not postgresql:
        return
    for table, checks in CHECKS.items():
        for check in checks:
            op.execute(_plain(f"ALTER TABLE {table} ADD CHECK ({check})"))
    for head, body in FUNCTIONS.items():
        op.execute(_plain(f"CREATE OR REPLACE FUNCTION {head} AS $${body}$$"))
    op.execute(_plain(OF_NOBODY))
    op.execute(OF_RUNNING)
    op.execute("CREATE TRIGGER lab_refuse_job BEFORE INSERT ON lab_jobs FOR EACH ROW EXECUTE FUNCTION lab_refuse_job()")


def _plain(statement: str) -> sa.TextClause:
    """A statement whose colons are no parameters."""
    return sa.text(statement.replace(":", r"\:"))


def _make_tables() -> None:
    key = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "lab_quarantines",
        sa.Column("id", key, sa.Identity(always=True), primary_key=True),
        sa.Column("device", sa.String(256), nullable=False, index=True),
        sa.Column("host", sa.String(256), nullable=False, server_default=""),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("placed", sa.DateTime(timezone=True), nullable=False),
        sa.Column("after_run", sa.BigInteger(), nullable=False),
        sa.Column("last_run", sa.BigInteger()),
        sa.Column("released", sa.DateTime(timezone=True)),
        sa.Column("released_by", sa.String(64), nullable=False, server_default=""),
        sa.Column("sound", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.create_table(
        "lab_golden",
        sa.Column("campaign_id", sa.String(128), sa.ForeignKey("campaigns.id"), primary_key=True, nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended", sa.DateTime(timezone=True)),
        sa.Column("login", sa.String(64), nullable=False),
        sa.Column("after_run", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "lab_checks",
        sa.Column("id", key, sa.Identity(always=True), primary_key=True),
        sa.Column("device", sa.String(256), nullable=False, index=True),
        sa.Column("host", sa.String(256), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("golden", sa.String(128), nullable=False),
        sa.Column("moment", sa.String(16), nullable=False),
        sa.Column("setting", sa.Text(), nullable=False),
        sa.Column("value_ns", sa.BigInteger()),
        sa.Column("good", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False, server_default=""),
        sa.Column("note", sa.Text(), nullable=False, server_default="{}"),
        sa.Column("last_run", sa.BigInteger(), nullable=False),
    )
