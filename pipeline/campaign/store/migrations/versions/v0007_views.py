"""Views for people and dashboards: runs with their campaign, how devices did in each campaign, and what is to be done.

Times of runs are milliseconds since 1970, as in their table. Queries that name campaigns find runs by an index.
"""

from alembic import op

revision = "0007"
down_revision = "0006"

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


def upgrade() -> None:
    """Make the views, each after those that it reads."""
    for name, query in VIEWS.items():
        op.execute(f"CREATE VIEW {name} AS {query}")
