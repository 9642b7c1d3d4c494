-- Roles of a lab's database, with the least that each needs. Run it as the owner of the tables, after
-- `ort-mobile lab status` has made them, and again after each update of ort-mobile:   psql "$DATABASE" -f roles.sql
-- Then give people and hosts login roles of their own:   CREATE ROLE hosts LOGIN PASSWORD '…' IN ROLE ort_mobile_agent;
-- All agents log in as one role: a host may end the session of another that gives no sign of life only then.

DO $$
DECLARE one text;
BEGIN
  FOREACH one IN ARRAY ARRAY['ort_mobile_reader', 'ort_mobile_agent', 'ort_mobile_submitter'] LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = one) THEN
      EXECUTE format('CREATE ROLE %I NOLOGIN', one);
    END IF;
  END LOOP;
END $$;

REVOKE ALL ON ALL TABLES IN SCHEMA public FROM PUBLIC;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;

-- Reports, dashboards and `lab status`.
GRANT SELECT ON ALL TABLES IN SCHEMA public TO ort_mobile_reader;
-- Tables and views that a later release adds, too: they are the owner's, who runs this.
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO ort_mobile_reader, ort_mobile_submitter;

-- `lab work`: reads plans and files, adds results, and says what it does. It cannot change a plan, a file or a result
-- that is stored, nor remove anything but failures that are to be measured again.
GRANT SELECT ON alembic_version, campaigns, artifacts, devices, runs, latencies,
  lab_hosts, lab_devices, lab_jobs, lab_files, lab_blobs TO ort_mobile_agent;
GRANT INSERT ON runs, latencies TO ort_mobile_agent;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO ort_mobile_agent;
GRANT DELETE ON runs, latencies TO ort_mobile_agent;
GRANT INSERT, UPDATE, DELETE ON lab_hosts, lab_devices TO ort_mobile_agent;
GRANT UPDATE (state, stage, attempts, host, reason, changed, again) ON lab_jobs TO ort_mobile_agent;

ALTER TABLE runs ENABLE ROW LEVEL SECURITY;
ALTER TABLE latencies ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS everybody_reads ON runs;
CREATE POLICY everybody_reads ON runs FOR SELECT USING (true);
DROP POLICY IF EXISTS agents_add ON runs;
CREATE POLICY agents_add ON runs FOR INSERT TO ort_mobile_agent WITH CHECK (true);
DROP POLICY IF EXISTS agents_repeat ON runs;
CREATE POLICY agents_repeat ON runs FOR DELETE TO ort_mobile_agent
  USING (failure_kind IN ('lost_device', 'garbage', 'device_error', 'no_space', 'denied', 'out_of_memory'));
DROP POLICY IF EXISTS everybody_reads ON latencies;
CREATE POLICY everybody_reads ON latencies FOR SELECT USING (true);
DROP POLICY IF EXISTS agents_add ON latencies;
CREATE POLICY agents_add ON latencies FOR INSERT TO ort_mobile_agent WITH CHECK (true);
DROP POLICY IF EXISTS agents_repeat ON latencies;
CREATE POLICY agents_repeat ON latencies FOR DELETE TO ort_mobile_agent USING (EXISTS (
  SELECT FROM runs WHERE runs.id = run_id
  AND failure_kind IN ('lost_device', 'garbage', 'device_error', 'no_space', 'denied', 'out_of_memory')));

-- `lab submit`, `lab cancel` and `lab close`: adds plans with their files, and cancels.
GRANT SELECT ON ALL TABLES IN SCHEMA public TO ort_mobile_submitter;
GRANT INSERT ON campaigns, artifacts, devices, lab_jobs, lab_files, lab_blobs TO ort_mobile_submitter;
GRANT UPDATE (state, reason, changed) ON lab_jobs TO ort_mobile_submitter;
-- `lab submit` removes the content of files that only campaigns use that ended 30 days ago.
GRANT DELETE ON lab_blobs TO ort_mobile_submitter;
ALTER TABLE lab_blobs ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS everybody_reads ON lab_blobs;
CREATE POLICY everybody_reads ON lab_blobs FOR SELECT USING (true);
DROP POLICY IF EXISTS submitters_add ON lab_blobs;
CREATE POLICY submitters_add ON lab_blobs FOR INSERT TO ort_mobile_submitter WITH CHECK (true);
DROP POLICY IF EXISTS submitters_remove ON lab_blobs;
CREATE POLICY submitters_remove ON lab_blobs FOR DELETE TO ort_mobile_submitter USING (NOT EXISTS (
  SELECT FROM lab_files f JOIN lab_jobs j USING (campaign_id) WHERE f.sha256 = lab_blobs.sha256
  AND (j.state NOT IN ('done', 'failed', 'cancelled') OR j.changed > now() - interval '30 days')));
-- `lab close` adds the times of its own stages to a campaign.
GRANT UPDATE (document, digest) ON campaigns TO ort_mobile_submitter;
