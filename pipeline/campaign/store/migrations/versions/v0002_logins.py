"""What a login of a lab cannot take from others: keys of runs, locks of tables, rows, files, campaigns and devices.

Keys of runs are made by the database, and have 64 bits: no login needs the right to their sequence. Runs are repeated
by a function, since who may delete from a table may also lock it. A result says by its ids of which device it is. Parts
of files have the digest of their own content, which the database computes: nobody can store others under it. A campaign
belongs to the login that stored it until it is submitted. A job takes so many bytes of results.

Agents of the release before stop with their session, and are told to be updated when they ask for the next.
"""

import sqlalchemy as sa
from alembic import op

revision = "v0002"
down_revision = "v0001"

DEFINER = "SECURITY DEFINER SET search_path = public, pg_temp"

FUNCTIONS = {
    "lab_begin(the_host text, the_session text) RETURNS boolean LANGUAGE plpgsql": """
        -- what an agent of the release before calls
        BEGIN
            RAISE EXCEPTION 'the lab refuses: the database was upgraded: update ort-mobile on this computer'
                USING ERRCODE = '42501';
        END
    """,
    """lab_submit(the_campaign text, devices text[], runs integer[], names text[], digests text[], sizes bigint[])
        RETURNS boolean LANGUAGE plpgsql""": """
        -- what `lab submit` of the release before calls
        BEGIN
            RAISE EXCEPTION 'the lab refuses: the database was upgraded: update ort-mobile on this computer'
                USING ERRCODE = '42501';
        END
    """,
    f"""lab_begin(the_host text, the_session text, the_schema text) RETURNS boolean LANGUAGE plpgsql {DEFINER}
    """: """
        -- take the name of a host for a session of its agent; false while another session of the host is alive
        DECLARE known lab_hosts;
        BEGIN
            IF the_schema <> (SELECT version_num FROM alembic_version) THEN
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
            UPDATE lab_hosts SET session = the_session, seen = now() WHERE name = the_host;
            RETURN true;
        END
    """,
    f"""lab_live(the_host text, the_session text, the_versions text, the_note text, names text[], documents text[])
        RETURNS text[] LANGUAGE plpgsql {DEFINER}""": """
        -- a sign of life, with what the host has attached; gives what it may not have: the devices of a host that is
        -- alive are its login's alone
        DECLARE foreign_name text; was_alive boolean; others text[];
        BEGIN
            PERFORM lab_own(the_host, the_session);
            SELECT n INTO foreign_name FROM unnest(names) n
                WHERE position('@' IN n) > 0 AND right(n, length(the_host) + 1) <> '@' || the_host;
            IF FOUND OR cardinality(names) > 512 THEN
                RAISE EXCEPTION 'the lab refuses: % is not of the host %', coalesce(foreign_name, 'so much'), the_host
                    USING ERRCODE = '42501';
            END IF;
            SELECT lab_alive(seen) INTO was_alive FROM lab_hosts WHERE name = the_host;
            UPDATE lab_hosts SET seen = now(), versions = the_versions, note = the_note WHERE name = the_host;
            DELETE FROM lab_devices WHERE host = the_host AND (name <> ALL (names) OR NOT was_alive);
            SELECT coalesce(array_agg(n ORDER BY n), '{}') INTO others FROM unnest(names) n
                WHERE NOT EXISTS (SELECT FROM lab_devices WHERE name = n AND host = the_host)
                AND EXISTS (SELECT FROM lab_devices d JOIN lab_hosts h ON h.name = d.host WHERE d.name = n
                AND h.login <> session_user AND h.session <> '' AND lab_alive(h.seen));
            INSERT INTO lab_devices (name, host, seen, document)
                SELECT n, the_host, now(), d FROM unnest(names, documents) u (n, d) WHERE n <> ALL (others)
                ON CONFLICT (name, host) DO UPDATE SET seen = now(), document = excluded.document;
            RETURN others;
        END
    """,
    f"""lab_is_of(the_campaign text, the_planned text, the_device text) RETURNS boolean LANGUAGE sql STABLE {DEFINER}
    """: """
        -- whether a planned run is of a device: its id begins with it; where it is a digest, the plan says so
        SELECT CASE WHEN the_planned ~ '^[0-9a-f]{64}$' THEN EXISTS (
            SELECT FROM campaigns, jsonb_array_elements(document::jsonb -> 'planned') p
            WHERE campaigns.id = the_campaign AND p ->> 'id' = the_planned AND p ->> 'device' = the_device)
        ELSE starts_with(the_planned, the_device || '/') AND NOT EXISTS (
            SELECT FROM lab_jobs WHERE campaign_id = the_campaign AND starts_with(device, the_device || '/')
            AND starts_with(the_planned, device || '/')) END
    """,
    f"lab_check_run() RETURNS trigger LANGUAGE plpgsql {DEFINER}": """
        -- of campaigns of a lab, whoever adds the result; the database's clock, not the host's, says what is future
        DECLARE reason text;
        BEGIN
            IF NOT EXISTS (SELECT FROM lab_jobs WHERE campaign_id = NEW.campaign_id) THEN
                RETURN NEW;
            END IF;
            reason := lab_may_add(NEW.campaign_id, NEW.device, NEW.host);
            IF reason = '' AND NOT (lab_is_of(NEW.campaign_id, NEW.planned, NEW.device)
                AND NEW.spec_id = NEW.planned || '#' || NEW.round) THEN
                reason := format('round %s of %s is no run of %s', NEW.round, NEW.planned, NEW.device);
            ELSIF reason = '' AND NEW.started_at_ms > (extract(epoch FROM now()) + 86400) * 1000 THEN
                reason := format('a run of %s begins in more than a day', NEW.device);
            END IF;
            IF reason = '' THEN
                UPDATE lab_jobs SET runs_left = runs_left - 1
                    WHERE campaign_id = NEW.campaign_id AND device = NEW.device AND runs_left > 0;
                IF NOT FOUND THEN
                    reason := format('%s has more runs than were planned', NEW.device);
                ELSE
                    reason := lab_count_bytes(NEW.campaign_id, NEW.device, octet_length(NEW.spec)
                        + octet_length(NEW.result) + octet_length(NEW.checks)
                        + coalesce(octet_length(NEW.prediction), 0));
                END IF;
            END IF;
            IF reason <> '' THEN
                RAISE EXCEPTION 'the lab refuses: %', reason USING ERRCODE = '42501';
            END IF;
            RETURN NEW;
        END
    """,
    f"lab_check_latencies() RETURNS trigger LANGUAGE plpgsql {DEFINER}": """
        DECLARE reason text;
        BEGIN
            SELECT lab_count_bytes(j.campaign_id, j.device, octet_length(NEW.nanoseconds)) INTO reason FROM runs r
                JOIN lab_jobs j ON j.campaign_id = r.campaign_id AND j.device = r.device WHERE r.id = NEW.run_id;
            IF reason <> '' THEN
                RAISE EXCEPTION 'the lab refuses: %', reason USING ERRCODE = '42501';
            END IF;
            RETURN NEW;
        END
    """,
    f"""lab_count_bytes(the_campaign text, the_device text, size bigint) RETURNS text LANGUAGE plpgsql {DEFINER}
    """: """
        -- take what a result has from what its job may store; why it may not, or ''
        BEGIN
            UPDATE lab_jobs SET bytes_left = bytes_left - size
                WHERE campaign_id = the_campaign AND device = the_device AND bytes_left >= size;
            RETURN CASE WHEN FOUND THEN ''
                ELSE format('results of %s have more bytes than were planned', the_device) END;
        END
    """,
    f"lab_repeat(keys bigint[]) RETURNS void LANGUAGE plpgsql {DEFINER}": """
        -- remove runs that failed for a passing reason, whose place others take
        DECLARE stale record; reason text;
        BEGIN
            FOR stale IN SELECT id, campaign_id, device FROM runs WHERE id = ANY (keys) AND failure_kind IN
                ('lost_device', 'garbage', 'device_error', 'no_space', 'denied', 'out_of_memory', 'set_up') LOOP
                IF NOT has_table_privilege(session_user, 'runs', 'DELETE') THEN
                    reason := lab_may_add(stale.campaign_id, stale.device, '');
                    IF reason <> '' THEN
                        RAISE EXCEPTION 'the lab refuses: %', reason USING ERRCODE = '42501';
                    END IF;
                END IF;
                DELETE FROM runs WHERE id = stale.id;
            END LOOP;
        END
    """,
    f"lab_put(the_content bytea) RETURNS text LANGUAGE plpgsql {DEFINER}": """
        -- store a part of a file under the digest of its content, which it gives; over one that was damaged
        DECLARE digest text := encode(sha256(the_content), 'hex');
        BEGIN
            INSERT INTO lab_blobs AS known (sha256, content) VALUES (digest, the_content)
                ON CONFLICT (sha256) DO UPDATE SET content = excluded.content, stored = now()
                WHERE encode(sha256(known.content), 'hex') <> known.sha256;
            RETURN digest;
        END
    """,
    f"lab_keep_login() RETURNS trigger LANGUAGE plpgsql {DEFINER}": """
        BEGIN
            NEW.login := session_user;
            RETURN NEW;
        END
    """,
    f"""lab_submit(the_campaign text, devices text[], runs integer[], bytes bigint[], the_files jsonb)
        RETURNS boolean LANGUAGE plpgsql {DEFINER}""": """
        -- enter the jobs and files of a campaign; false where content of a file is not there any more
        DECLARE owner_login text;
        BEGIN
            LOCK TABLE lab_blobs IN EXCLUSIVE MODE; -- what is there now stays until the files are entered
            SELECT login INTO owner_login FROM campaigns WHERE id = the_campaign FOR UPDATE;
            IF owner_login <> session_user THEN
                RAISE EXCEPTION 'the lab refuses: the campaign % belongs to another login', the_campaign
                    USING ERRCODE = '42501';
            ELSIF EXISTS (SELECT FROM lab_jobs WHERE campaign_id = the_campaign) THEN
                IF EXISTS (SELECT device FROM lab_jobs WHERE campaign_id = the_campaign
                        EXCEPT SELECT unnest(devices))
                    OR cardinality(devices) <> (SELECT count(*) FROM lab_jobs WHERE campaign_id = the_campaign)
                    OR (SELECT jsonb_object_agg(f ->> 'name', f ->> 'sha256') FROM jsonb_array_elements(the_files) f)
                    IS DISTINCT FROM
                    (SELECT jsonb_object_agg(name, sha256) FROM lab_files WHERE campaign_id = the_campaign) THEN
                    RAISE EXCEPTION 'the lab refuses: the campaign % was submitted with other devices or files',
                        the_campaign USING ERRCODE = '42501';
                END IF;
                RETURN true;
            ELSIF jsonb_array_length(the_files) > 10000
                OR (SELECT sum((f ->> 'size_bytes')::numeric) FROM jsonb_array_elements(the_files) f) > 8589934592 THEN
                RAISE EXCEPTION 'the lab refuses: % files of more than a campaign may have',
                    jsonb_array_length(the_files) USING ERRCODE = '42501';
            ELSIF EXISTS (SELECT FROM jsonb_array_elements(the_files) f
                WHERE jsonb_array_length(f -> 'parts') <> ceil((f ->> 'size_bytes')::bigint / 1048576.0)) THEN
                RAISE EXCEPTION 'the lab refuses: a file has other parts than its size says' USING ERRCODE = '42501';
            ELSIF EXISTS (SELECT FROM jsonb_array_elements(the_files) f, jsonb_array_elements_text(f -> 'parts') part
                WHERE NOT EXISTS (SELECT FROM lab_blobs WHERE sha256 = part)) THEN
                RETURN false;
            END IF;
            INSERT INTO lab_jobs (campaign_id, device, state, stage, changed, runs_left, bytes_left)
                SELECT the_campaign, d, 'waiting', 'rounds', now(), r, b FROM unnest(devices, runs, bytes) u (d, r, b);
            INSERT INTO lab_files (campaign_id, name, sha256, size_bytes, parts)
                SELECT the_campaign, f ->> 'name', f ->> 'sha256', (f ->> 'size_bytes')::bigint, f ->> 'parts'
                FROM jsonb_array_elements(the_files) f;
            RETURN true;
        END
    """,
    f"lab_remove_old_files() RETURNS integer LANGUAGE plpgsql {DEFINER}": """
        -- content of files that only campaigns use that ended 30 days ago; or no campaign, a day after it was stored
        DECLARE removed integer;
        BEGIN
            LOCK TABLE lab_blobs IN EXCLUSIVE MODE;
            DELETE FROM lab_blobs WHERE stored < now() - interval '1 day' AND sha256 NOT IN (
                SELECT jsonb_array_elements_text(f.parts::jsonb) FROM lab_files f WHERE EXISTS (
                SELECT FROM lab_jobs j WHERE j.campaign_id = f.campaign_id
                AND (j.state NOT IN ('done', 'failed', 'cancelled') OR j.changed > now() - interval '30 days')));
            GET DIAGNOSTICS removed = ROW_COUNT;
            RETURN removed;
        END
    """,
}
"""What follows CREATE OR REPLACE FUNCTION, to the function's body."""

KEYS = """
DROP POLICY IF EXISTS agents_add ON latencies;
DROP POLICY IF EXISTS agents_repeat ON latencies;
DROP POLICY IF EXISTS agents_repeat ON runs;
ALTER TABLE runs ALTER COLUMN id DROP DEFAULT;
DROP SEQUENCE IF EXISTS runs_id_seq;
ALTER TABLE runs ALTER COLUMN id TYPE bigint;
ALTER TABLE latencies ALTER COLUMN run_id TYPE bigint;
ALTER TABLE runs ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY;
SELECT setval(pg_get_serial_sequence('runs', 'id'), coalesce(max(id), 0) + 1, false) FROM runs;
"""

PARTS = """
ALTER TABLE lab_blobs ADD COLUMN of_content varchar(64);
UPDATE lab_blobs SET of_content = encode(sha256(content), 'hex');
UPDATE lab_files f SET parts = coalesce((SELECT json_agg(b.of_content ORDER BY b.part)::text FROM lab_blobs b
    WHERE b.sha256 = f.sha256 AND b.part < ceil(f.size_bytes / 1048576.0)), '[]');
DELETE FROM lab_blobs b USING lab_blobs other WHERE b.of_content = other.of_content AND b.ctid > other.ctid;
ALTER TABLE lab_blobs DROP COLUMN part;
ALTER TABLE lab_blobs DROP COLUMN sha256;
ALTER TABLE lab_blobs RENAME COLUMN of_content TO sha256;
ALTER TABLE lab_blobs ADD CONSTRAINT lab_blobs_pkey PRIMARY KEY (sha256);
ALTER TABLE lab_files ADD CHECK (octet_length(parts) <= 1048576);
UPDATE lab_jobs SET bytes_left = runs_left * 1048576::bigint;
UPDATE lab_hosts SET session = '';
"""
"""Files that were stored before keep their parts; those that were damaged are refused by hosts, as before."""


OF_NOBODY = """
DO $$
DECLARE function regprocedure;
BEGIN
    FOR function IN SELECT oid::regprocedure FROM pg_proc
        WHERE proname LIKE 'lab\\_%' AND pronamespace = 'public'::regnamespace LOOP
        EXECUTE 'REVOKE ALL ON FUNCTION ' || function || ' FROM PUBLIC';
    END LOOP;
END $$
"""


def upgrade() -> None:
    """Change tables, then functions of PostgreSQL; SQLite has no lab, and keys of 64 bits."""
    op.add_column("campaigns", sa.Column("login", sa.String(64), nullable=False, server_default=""))
    op.add_column("lab_jobs", sa.Column("bytes_left", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("lab_files", sa.Column("parts", sa.Text(), nullable=False, server_default="[]"))
    if op.get_bind().dialect.name != "postgresql":
        op.drop_table("lab_blobs")
        op.create_table(
            "lab_blobs",
            sa.Column("sha256", sa.String(64), primary_key=True, nullable=False),
            sa.Column("content", sa.LargeBinary(), nullable=False),
            sa.Column("stored", sa.DateTime(timezone=True)),
        )
        return
    for statement in filter(None, map(str.strip, (KEYS + PARTS).split(";"))):
        op.execute(_plain(statement))
    op.execute("DROP FUNCTION lab_live(text, text, text, text, text[], text[])")  # which gave nothing
    for head, body in FUNCTIONS.items():
        op.execute(_plain(f"CREATE OR REPLACE FUNCTION {head} AS $${body}$$"))
    op.execute(_plain(OF_NOBODY))
    for name, table in (("lab_check_latencies", "latencies"), ("lab_keep_login", "campaigns")):
        op.execute(f"CREATE TRIGGER {name} BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()")


def _plain(statement: str) -> sa.TextClause:
    """A statement whose colons are no parameters."""
    return sa.text(statement.replace(":", r"\:"))
