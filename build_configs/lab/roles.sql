-- Roles of a lab's database, with the least that each needs. Run it as the owner of the tables, after
-- `ort-mobile lab status` has made them, and again after each update of ort-mobile:   psql "$DATABASE" -f roles.sql
-- Then give people and hosts login roles of their own:   CREATE ROLE host_a LOGIN PASSWORD '…' IN ROLE ort_mobile_agent;
-- The name of a host belongs to the login that first works under it.

\set ON_ERROR_STOP on
BEGIN;

DO $$
DECLARE role_name text;
BEGIN
  FOREACH role_name IN ARRAY ARRAY['ort_mobile_reader', 'ort_mobile_agent', 'ort_mobile_submitter',
    'ort_mobile_operator'] LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role_name) THEN
      EXECUTE format('CREATE ROLE %I NOLOGIN', role_name);
    END IF;
  END LOOP;
  EXECUTE format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', current_database());
END $$;

REVOKE ALL ON ALL TABLES IN SCHEMA public FROM PUBLIC, ort_mobile_reader, ort_mobile_agent, ort_mobile_submitter,
  ort_mobile_operator;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA public FROM PUBLIC, ort_mobile_agent;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA public FROM PUBLIC;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;

-- Reports, dashboards and `lab status`: everything but the content of files (models, test data, libraries).
GRANT SELECT ON ALL TABLES IN SCHEMA public TO ort_mobile_reader, ort_mobile_submitter, ort_mobile_agent;
REVOKE SELECT ON lab_blobs FROM ort_mobile_reader;
-- An address that is told of a campaign's end may have a secret in it.
REVOKE ALL ON lab_notices FROM ort_mobile_reader, ort_mobile_submitter, ort_mobile_agent;
-- Tables and views that a later release adds, too: they are the owner's, who runs this.
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO ort_mobile_reader, ort_mobile_submitter;

-- `lab work`: adds results of the devices that its host has. Leases, jobs, hosts and devices change by functions, which
-- look at the login, the host and its leases, and so are runs repeated that failed for a passing reason: who may delete
-- from a table may lock it for everybody.
GRANT INSERT (campaign_id, spec_id, planned, round, model, variant, device, provider, status, failure_kind, started_at,
  spec, result, checks, prediction, digest, host, started_at_ms, ended_at_ms, median_ns) ON runs TO ort_mobile_agent;
GRANT INSERT ON latencies TO ort_mobile_agent;
GRANT EXECUTE ON FUNCTION lab_begin(text, text, text), lab_begin(text, text), lab_live, lab_take, lab_next, lab_turn,
  lab_keep, lab_end, lab_notice, lab_noticed, lab_change, lab_end_stage, lab_may_add, lab_repeat, lab_checked,
  lab_quarantine TO ort_mobile_agent;

ALTER TABLE runs ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS everybody_reads ON runs;
CREATE POLICY everybody_reads ON runs FOR SELECT USING (true);
DROP POLICY IF EXISTS agents_add ON runs;
CREATE POLICY agents_add ON runs FOR INSERT TO ort_mobile_agent
  WITH CHECK (EXISTS (SELECT FROM lab_jobs j WHERE j.campaign_id = runs.campaign_id));
-- Latencies come with their run, in one transaction.
ALTER TABLE latencies ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS everybody_reads ON latencies;
CREATE POLICY everybody_reads ON latencies FOR SELECT USING (true);
DROP POLICY IF EXISTS agents_add ON latencies;
CREATE POLICY agents_add ON latencies FOR INSERT TO ort_mobile_agent WITH CHECK (EXISTS (
  SELECT FROM runs WHERE runs.id = run_id AND runs.xmin = pg_current_xact_id()::xid));

-- `lab submit`, `priority`, `cancel` and `close`: adds plans with their files, and changes what is left of its own. A plan
-- comes in one transaction and stays as it is; jobs, files and their parts are entered by functions.
GRANT INSERT ON campaigns, artifacts, devices TO ort_mobile_submitter;
GRANT EXECUTE ON FUNCTION lab_submit(text, text[], integer[], bigint[], jsonb, integer, text),
  lab_submit(text, text[], integer[], text[], text[], bigint[]), lab_put, lab_cancel, lab_prefer, lab_remove_old_files,
  lab_next_sequence, lab_needs TO ort_mobile_submitter;
ALTER TABLE campaigns ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS everybody_reads ON campaigns;
CREATE POLICY everybody_reads ON campaigns FOR SELECT USING (true);
DROP POLICY IF EXISTS submitters_add ON campaigns;
CREATE POLICY submitters_add ON campaigns FOR INSERT TO ort_mobile_submitter
  WITH CHECK (sequence BETWEEN 1 AND lab_next_sequence());
ALTER TABLE artifacts ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS everybody_reads ON artifacts;
CREATE POLICY everybody_reads ON artifacts FOR SELECT USING (true);
DROP POLICY IF EXISTS submitters_add ON artifacts;
CREATE POLICY submitters_add ON artifacts FOR INSERT TO ort_mobile_submitter WITH CHECK (EXISTS (
  SELECT FROM campaigns c WHERE c.id = campaign_id AND c.xmin = pg_current_xact_id()::xid));
ALTER TABLE devices ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS everybody_reads ON devices;
CREATE POLICY everybody_reads ON devices FOR SELECT USING (true);
DROP POLICY IF EXISTS submitters_add ON devices;
CREATE POLICY submitters_add ON devices FOR INSERT TO ort_mobile_submitter WITH CHECK (EXISTS (
  SELECT FROM campaigns c WHERE c.id = campaign_id AND c.xmin = pg_current_xact_id()::xid));
ALTER TABLE lab_blobs ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS everybody_reads ON lab_blobs;
CREATE POLICY everybody_reads ON lab_blobs FOR SELECT USING (true);
DROP POLICY IF EXISTS submitters_remove ON lab_blobs;
DROP POLICY IF EXISTS submitters_add ON lab_blobs;

-- `lab golden` and `lab release`: what devices are checked with, and which come back from quarantine; submits, too.
GRANT ort_mobile_submitter TO ort_mobile_operator;
GRANT EXECUTE ON FUNCTION lab_set_golden, lab_release TO ort_mobile_operator;

-- Which earlier and later releases may work with these tables.
GRANT EXECUTE ON FUNCTION lab_serves TO ort_mobile_reader, ort_mobile_agent, ort_mobile_submitter;

COMMIT;

-- What only a superuser may forbid.
DO $$
BEGIN
  IF EXISTS (SELECT FROM pg_proc f, aclexplode(coalesce(f.proacl, acldefault('f', f.proowner))) a
    WHERE f.proname IN ('lo_creat', 'lo_create', 'lo_from_bytea') AND a.grantee = 0) THEN
    RAISE WARNING 'every login may make large objects; a superuser forbids it in this database: %',
      'REVOKE EXECUTE ON FUNCTION lo_creat(integer), lo_create(oid), lo_from_bytea(oid, bytea) FROM PUBLIC';
  END IF;
  IF EXISTS (SELECT FROM pg_namespace n, aclexplode(n.nspacl) a
    WHERE n.nspname = 'public' AND a.grantee = 0 AND a.privilege_type = 'CREATE') THEN
    RAISE WARNING 'every login may make tables; a superuser forbids it in this database: %',
      'REVOKE CREATE ON SCHEMA public FROM PUBLIC';
  END IF;
END $$;
