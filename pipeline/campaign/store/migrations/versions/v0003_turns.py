"""Whose turn a device is: campaigns have a priority, and those of one priority share a device's time.

A function hands out jobs, with the lease of their device; results are taken for the job that was handed out, so that no
agent can work on another first. Time counts by the database's clock, from handing out a device to having it back,
whatever a host says: a trigger on leases sees each way in which one ends. `lab_times` has it for each device by login
(campaign ""), and by campaign of that login. Both levels have a clock, as start-time fair queueing has it: the least
time of all that wait when one is chosen (that of a device is its row of the campaign `*`). Who comes later begins
there, so that nobody saves time up by waiting, and nobody pays for having had a device that nobody else wanted.

Priorities: -1 when nothing else waits, 0, 1 before others, 2 before everything, which the owner of the database gives.
An hour without a turn raises one by 1, up to 1, until it had a round.

Also here: which devices were lost, since when and at which host; who is told of a campaign's end; and who may cancel.
"""

import sqlalchemy as sa
from alembic import op

revision = "v0003"
down_revision = "v0002"

DEFINER = "SECURITY DEFINER SET search_path = public, pg_temp"

FUNCTIONS = {
    "lab_turn_seconds() RETURNS integer LANGUAGE sql IMMUTABLE": """
        -- for how long a campaign has a device at least, while others of its priority wait: a change costs seconds
        SELECT 60
    """,
    f"""lab_waiting(the_device text, refused text[], the_current text) RETURNS TABLE (campaign_id text, login text,
        own_priority integer, priority integer, login_ms numeric, campaign_ms numeric) LANGUAGE sql STABLE {DEFINER}
    """: """
        -- the campaigns that wait for a device but those that are refused, the next one first; the one that has it
        -- stays before others of its priority for as long as a turn is
        SELECT j.campaign_id, c.login, j.priority, least(greatest(j.priority, 1), j.priority
                + floor(extract(epoch FROM now() - coalesce(mine.ended, j.changed)) / 3600)::integer) AS priority,
            greatest(of_login.used_ms, clock.clock_ms, 0) AS login_ms,
            greatest(mine.used_ms, of_login.clock_ms, 0) AS campaign_ms
        FROM lab_jobs j JOIN campaigns c ON c.id = j.campaign_id
            LEFT JOIN campaigns current ON current.id = the_current
            LEFT JOIN lab_times clock ON clock.device = j.device AND clock.login = '' AND clock.campaign_id = '*'
            LEFT JOIN lab_times of_login ON of_login.device = j.device AND of_login.login = c.login
                AND of_login.campaign_id = ''
            LEFT JOIN lab_times mine ON mine.device = j.device AND mine.login = c.login
                AND mine.campaign_id = j.campaign_id
        WHERE j.device = the_device AND j.state IN ('waiting', 'running') AND j.campaign_id <> ALL (refused)
        ORDER BY 4 DESC,
            greatest(of_login.used_ms, clock.clock_ms, 0)
                + CASE WHEN c.login <> current.login THEN lab_turn_seconds() * 1000 ELSE 0 END,
            greatest(mine.used_ms, of_login.clock_ms, 0)
                + CASE WHEN j.campaign_id <> current.id THEN lab_turn_seconds() * 1000 ELSE 0 END,
            c.sequence
    """,
    f"""lab_choose(the_device text, refused text[], the_current text)
        RETURNS TABLE (campaign text, its_priority integer) LANGUAGE plpgsql {DEFINER}""": """
        -- the campaign whose turn it is on a device, whose lease the caller has changed, and the clocks at that moment
        DECLARE chosen record; least_login numeric; least_campaign numeric;
        BEGIN
            SELECT * INTO chosen FROM lab_waiting(the_device, refused, the_current) LIMIT 1;
            IF NOT FOUND THEN
                RETURN;
            END IF;
            SELECT min(w.login_ms), min(w.campaign_ms) FILTER (WHERE w.login = chosen.login)
                INTO least_login, least_campaign FROM lab_waiting(the_device, refused, the_current) w;
            INSERT INTO lab_times AS known (device, login, campaign_id, used_ms, clock_ms) VALUES
                (the_device, '', '*', 0, least_login), (the_device, chosen.login, '', chosen.login_ms, least_campaign),
                (the_device, chosen.login, chosen.campaign_id, chosen.campaign_ms, 0)
                ON CONFLICT (device, login, campaign_id) DO UPDATE SET
                used_ms = greatest(known.used_ms, excluded.used_ms),
                clock_ms = greatest(known.clock_ms, excluded.clock_ms);
            RETURN QUERY SELECT chosen.campaign_id, chosen.priority;
        END
    """,
    f"lab_count_time() RETURNS trigger LANGUAGE plpgsql {DEFINER}": """
        -- what a campaign had of a device until its lease changes; of a host that is silent, until it was given up
        DECLARE the_login text; spent numeric;
        BEGIN
            IF OLD.campaign_id <> '' THEN
                SELECT login INTO the_login FROM campaigns WHERE id = OLD.campaign_id;
                SELECT greatest(0, extract(epoch FROM least(now(), max(seen) + interval '8 seconds') - OLD.since))
                    * 1000 INTO spent FROM lab_hosts WHERE name = OLD.host;
                INSERT INTO lab_times AS known (device, login, campaign_id, used_ms, clock_ms, ended)
                    SELECT OLD.name, the_login, c, coalesce(spent, 0), 0, now()
                    FROM unnest(ARRAY['', OLD.campaign_id]) c
                    ON CONFLICT (device, login, campaign_id) DO UPDATE SET
                    used_ms = known.used_ms + excluded.used_ms, ended = now();
            END IF;
            RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
        END
    """,
    f"""lab_next(the_host text, the_session text, the_device text, refused text[]) RETURNS text LANGUAGE plpgsql
        {DEFINER}""": """
        -- lease a device that the host has attached, with the campaign whose turn it is; NULL for none, or while
        -- another host has the device. `refused` are campaigns that the host cannot measure.
        DECLARE next_one record;
        BEGIN
            PERFORM lab_own(the_host, the_session);
            IF NOT EXISTS (SELECT FROM lab_devices WHERE name = the_device AND host = the_host)
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
    f"lab_take(the_host text, the_session text, the_name text) RETURNS boolean LANGUAGE plpgsql {DEFINER}": """
        -- lease a device that the host has attached, without a job, or the choice of a campaign; false while another
        -- host has it
        BEGIN
            PERFORM lab_own(the_host, the_session);
            IF NOT EXISTS (SELECT FROM lab_devices WHERE name = the_name AND host = the_host)
                AND NOT EXISTS (SELECT FROM lab_jobs WHERE 'campaign ' || campaign_id = the_name) THEN
                RETURN false;
            END IF;
            INSERT INTO lab_leases AS known (name, host, since) VALUES (the_name, the_host, now())
                ON CONFLICT (name) DO UPDATE SET host = excluded.host, since = now(), campaign_id = '', priority = 0
                WHERE known.host = the_host
                OR NOT (SELECT session <> '' AND lab_alive(seen) FROM lab_hosts h WHERE h.name = known.host);
            RETURN FOUND;
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
                AND l.campaign_id = the_campaign AND h.login = session_user AND the_host IN ('', h.name)) THEN
                RETURN format('this login has no lease of %s at the host %s for the campaign %s', the_device, the_host,
                    the_campaign);
            END IF;
            RETURN '';
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
            ELSIF NOT EXISTS (SELECT FROM lab_leases WHERE name = the_device AND host = the_host
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
    f"""lab_own_campaign(the_campaign text, the_priority integer) RETURNS void LANGUAGE plpgsql {DEFINER}""": """
        -- refuse a login that did not submit a campaign, and a priority that it may not give; the owner may both. One
        -- that was stored before logins were is anybody's.
        DECLARE is_owner boolean := has_table_privilege(session_user, 'lab_jobs', 'UPDATE'); the_login text;
        BEGIN
            SELECT login INTO the_login FROM campaigns WHERE id = the_campaign;
            IF the_login NOT IN ('', session_user) AND NOT is_owner THEN
                RAISE EXCEPTION 'the lab refuses: the campaign % belongs to another login', the_campaign
                    USING ERRCODE = '42501';
            ELSIF the_priority IS NULL OR the_priority NOT BETWEEN -1 AND (CASE WHEN is_owner THEN 2 ELSE 1 END) THEN
                RAISE EXCEPTION 'the lab refuses: a priority is -1, 0 or 1, or 2 by the owner of the database, not %',
                    the_priority USING ERRCODE = '42501';
            END IF;
        END
    """,
    f"lab_prefer(the_campaign text, the_priority integer) RETURNS integer LANGUAGE plpgsql {DEFINER}": """
        -- change the priority of what is left of a campaign; of how many devices
        DECLARE changed_jobs integer;
        BEGIN
            PERFORM lab_own_campaign(the_campaign, the_priority);
            UPDATE lab_jobs SET priority = the_priority
                WHERE campaign_id = the_campaign AND state IN ('waiting', 'running', 'measured');
            GET DIAGNOSTICS changed_jobs = ROW_COUNT;
            RETURN changed_jobs;
        END
    """,
    f"lab_cancel(the_campaign text) RETURNS integer LANGUAGE plpgsql {DEFINER}": """
        DECLARE found_jobs integer;
        BEGIN
            PERFORM lab_own_campaign(the_campaign, 0);
            UPDATE lab_jobs SET state = 'cancelled', reason = 'cancelled', changed = now()
                WHERE campaign_id = the_campaign AND state IN ('waiting', 'running', 'measured');
            GET DIAGNOSTICS found_jobs = ROW_COUNT;
            RETURN found_jobs;
        END
    """,
    f"""lab_submit(the_campaign text, devices text[], runs integer[], bytes bigint[], the_files jsonb,
        the_priority integer, address text) RETURNS boolean LANGUAGE plpgsql {DEFINER}""": """
        -- enter the jobs and files of a campaign with its priority, and the URL that is told of its end
        BEGIN
            PERFORM lab_own_campaign(the_campaign, the_priority);
            IF EXISTS (SELECT FROM lab_jobs WHERE campaign_id = the_campaign) THEN
                RETURN lab_submit(the_campaign, devices, runs, bytes, the_files);
            ELSIF NOT lab_submit(the_campaign, devices, runs, bytes, the_files) THEN
                RETURN false;
            END IF;
            UPDATE lab_jobs SET priority = the_priority WHERE campaign_id = the_campaign;
            INSERT INTO lab_notices (campaign_id, kind, address) SELECT the_campaign, kind, of_kind
                FROM (VALUES ('program', ''), ('url', address)) v (kind, of_kind) WHERE kind <> 'url' OR address <> '';
            RETURN true;
        END
    """,
    f"""lab_notice(the_host text, the_session text, kinds text[]) RETURNS text[] LANGUAGE plpgsql {DEFINER}""": """
        -- take a notice of a campaign that has ended: campaign, kind and address, NULL for none. It is given to one
        -- host, and again after 2 minutes where that did not say that it went well, three times at most
        DECLARE due lab_notices;
        BEGIN
            PERFORM lab_own(the_host, the_session);
            SELECT n.* INTO due FROM lab_notices n WHERE n.kind = ANY (kinds) AND NOT n.told AND n.attempts < 3
                AND (n.host = '' OR n.taken < now() - interval '2 minutes')
                AND (SELECT bool_and(j.state IN ('done', 'failed', 'cancelled'))
                    AND max(j.changed) > now() - interval '1 day'
                    FROM lab_jobs j WHERE j.campaign_id = n.campaign_id)
                ORDER BY n.campaign_id, n.kind LIMIT 1 FOR UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                RETURN NULL;
            END IF;
            UPDATE lab_notices SET host = the_host, taken = now(), attempts = attempts + 1
                WHERE campaign_id = due.campaign_id AND kind = due.kind;
            RETURN ARRAY[due.campaign_id, due.kind, due.address];
        END
    """,
    f"""lab_noticed(the_host text, the_session text, the_campaign text, the_kind text, the_failure text)
        RETURNS void LANGUAGE plpgsql {DEFINER}""": """
        -- how telling went of a notice that the host has taken; '' for well
        BEGIN
            PERFORM lab_own(the_host, the_session);
            UPDATE lab_notices SET told = the_failure = '', failure = the_failure
                WHERE campaign_id = the_campaign AND kind = the_kind AND host = the_host;
        END
    """,
    f"lab_keep_lost() RETURNS trigger LANGUAGE plpgsql {DEFINER}": """
        -- remember devices that a host has no more, and forget that of those that are back
        BEGIN
            IF TG_OP = 'INSERT' THEN
                DELETE FROM lab_lost WHERE name = NEW.name;
                RETURN NEW;
            END IF;
            IF NOT EXISTS (SELECT FROM lab_devices WHERE name = OLD.name AND host <> OLD.host) THEN
                INSERT INTO lab_lost (name, host, since) VALUES (OLD.name, OLD.host, now())
                    ON CONFLICT (name) DO UPDATE SET host = excluded.host, since = now();
                DELETE FROM lab_lost WHERE host = OLD.host AND name IN (SELECT name FROM lab_lost
                    WHERE host = OLD.host ORDER BY since DESC OFFSET 512);
            END IF;
            RETURN OLD;
        END
    """,
}
"""What follows CREATE OR REPLACE FUNCTION, to the function's body."""

CHECKS = {
    "lab_jobs": "priority BETWEEN -1 AND 2",
    "lab_notices": "address ~ '^(https?://[!-~]+)?$' AND length(address) <= 2000",
}

PRIVATE = """
DO $$
DECLARE role_name text; function regprocedure;
BEGIN
    REVOKE ALL ON lab_notices FROM PUBLIC;
    FOR role_name IN SELECT rolname FROM pg_roles WHERE rolname LIKE 'ort\\_mobile\\_%' LOOP
        EXECUTE format('REVOKE ALL ON lab_notices FROM %I', role_name);
    END LOOP;
    FOR function IN SELECT oid::regprocedure FROM pg_proc
        WHERE proname LIKE 'lab\\_%' AND pronamespace = 'public'::regnamespace LOOP
        EXECUTE 'REVOKE ALL ON FUNCTION ' || function || ' FROM PUBLIC';
    END LOOP;
END $$
"""
"""Addresses may have a secret in them, which no login reads; and functions are nobody's until roles.sql says whose."""


def upgrade() -> None:
    """Make tables and columns; functions and triggers on PostgreSQL."""
    op.add_column("lab_jobs", sa.Column("priority", sa.Integer(), nullable=False, server_default="0"))
    op.create_index("ix_lab_jobs_device", "lab_jobs", ["device", "state"])
    op.add_column("lab_leases", sa.Column("campaign_id", sa.String(128), nullable=False, server_default=""))
    op.add_column("lab_leases", sa.Column("priority", sa.Integer(), nullable=False, server_default="0"))
    _make_tables()
    if op.get_bind().dialect.name != "postgresql":
        return
    for table, check in CHECKS.items():
        op.execute(_plain(f"ALTER TABLE {table} ADD CHECK ({check})"))
    for head, body in FUNCTIONS.items():
        op.execute(_plain(f"CREATE OR REPLACE FUNCTION {head} AS $${body}$$"))
    op.execute(_plain(PRIVATE))
    for name, when, table in (
        ("lab_count_time", "BEFORE DELETE OR UPDATE", "lab_leases"),
        ("lab_keep_lost", "AFTER INSERT OR DELETE", "lab_devices"),
    ):
        op.execute(f"CREATE TRIGGER {name} {when} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()")


def _make_tables() -> None:
    op.create_table(
        "lab_times",
        sa.Column("device", sa.String(256), primary_key=True),
        sa.Column("login", sa.String(64), primary_key=True),
        sa.Column("campaign_id", sa.String(128), primary_key=True),
        sa.Column("used_ms", sa.Numeric(), nullable=False),
        sa.Column("clock_ms", sa.Numeric(), nullable=False),
        sa.Column("ended", sa.DateTime(timezone=True)),
    )
    op.create_table(
        "lab_lost",
        sa.Column("name", sa.String(256), primary_key=True),
        sa.Column("host", sa.String(256), nullable=False, index=True),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "lab_notices",
        sa.Column("campaign_id", sa.String(128), sa.ForeignKey("campaigns.id"), primary_key=True),
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("address", sa.Text(), nullable=False, server_default=""),
        sa.Column("host", sa.String(256), nullable=False, server_default=""),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("taken", sa.DateTime(timezone=True)),
        sa.Column("told", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("failure", sa.Text(), nullable=False, server_default=""),
    )


def _plain(statement: str) -> sa.TextClause:
    """A statement whose colons are no parameters."""
    return sa.text(statement.replace(":", r"\:"))
