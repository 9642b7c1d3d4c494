"""What SQL sees of a store: its views on SQLite and PostgreSQL, with runs, failures and a lab's queue."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from device_runner.result import FailureKind, epoch_ms
from pipeline.campaign.record import RunRecord
from pipeline.campaign.store import open_store
from pipeline.features.lab.queue import hosts, jobs
from tests.campaign.store.samples import CAMPAIGN, failed, run_record

DASHBOARD = Path(__file__).resolve().parents[3] / "build_configs/lab/grafana/lab.json"
GRAFANA = {
    "${campaign:sqlstring}": "'mnist','other'",
    "$__unixEpochFrom()": "1767225600",
    "$__unixEpochTo()": "1767312000",
}
"""What Grafana writes into queries: the names that were chosen, and the times shown, here 2026-01-01."""
STARTED = "2026-01-01T00:00:01.000Z"


def on_host(run: RunRecord, **changes: Any) -> RunRecord:
    result = msgspec.structs.replace(run.result, host="shelf", elapsed_ns=2_500_000_000, **changes)
    return msgspec.structs.replace(run, result=result)


def rows(url: str, query: str) -> list[dict[str, Any]]:
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        found = [dict(row) for row in connection.exec_driver_sql(query).mappings()]
    engine.dispose()
    return found


def test_views_show_runs_and_devices(url: str) -> None:
    with open_store(url) as store:
        store.start(CAMPAIGN)
        store.add_run(on_host(run_record(latencies_ns=(2_000_000, 3_000_000, 1_000_000))))
        store.add_run(on_host(failed(FailureKind.MODEL_LOAD, "s2"), started_at="2026-01-01T00:01:00.000Z"))
        store.add_run(on_host(failed(FailureKind.LOST_DEVICE, "s3"), device="other"))
    (good, bad, _) = rows(url, "SELECT * FROM run_summary ORDER BY planned")
    assert (good["campaign"], good["host"], good["device"], good["status"]) == ("mnist", "shelf", "local", "ok")
    assert (float(good["median_ms"]), float(good["seconds"])) == (2.0, 2.5)
    assert good["ended_at_ms"] - good["started_at_ms"] == 2500
    assert (bad["median_ms"], bad["failure_kind"]) == (None, "model_load")
    local, other = rows(url, "SELECT * FROM device_health WHERE campaign_id = 'c1' ORDER BY device")
    assert {name: local[name] for name in ("host", "device", "runs", "ok", "failed", "skipped", "lost")} == {
        "host": "shelf", "device": "local", "runs": 2, "ok": 1, "failed": 1, "skipped": 0, "lost": 0,
    }  # fmt: skip
    assert local["last_ok_ms"] == epoch_ms(STARTED)
    assert local["last_run_ms"] == epoch_ms("2026-01-01T00:01:00.000Z")
    assert (other["device"], other["ok"], other["lost"], other["last_ok_ms"]) == ("other", 0, 1, None)


def test_the_queue_shows_who_works_on_what(url: str) -> None:
    now = datetime.now(UTC)
    with open_store(url) as store:
        store.start(CAMPAIGN)
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    job = {"campaign_id": "c1", "state": "waiting", "stage": "rounds", "reason": "", "changed": now, "host": ""}
    with engine.begin() as connection:
        connection.execute(hosts.insert(), {"name": "shelf", "seen": now, "versions": "{}"})
        connection.execute(jobs.insert(), [{**job, "device": "a"}, {**job, "device": "b", "host": "shelf"}])
    engine.dispose()
    waiting, working = rows(url, "SELECT * FROM queue ORDER BY device")
    assert (waiting["campaign"], waiting["host_seen"], waiting["attempts"]) == ("mnist", None, 0)
    assert (working["host"], working["stage"]) == ("shelf", "rounds")
    assert working["host_seen"] is not None


@pytest.mark.parametrize("url", [pytest.param("postgresql", marks=pytest.mark.postgresql)], indirect=True)
def test_every_query_of_the_dashboard_runs_and_finds_its_rows(url: str) -> None:
    with open_store(url) as store:
        store.start(CAMPAIGN)
        store.add_run(on_host(run_record()))
        store.add_run(on_host(failed(FailureKind.MODEL_LOAD, "s2")))
    now = datetime.now(UTC)
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        job = {"campaign_id": "c1", "device": "a", "state": "waiting", "stage": "rounds", "reason": "", "changed": now}
        connection.execute(jobs.insert(), job)
    engine.dispose()
    document = json.loads(DASHBOARD.read_text())
    queries = {panel["title"]: panel["targets"][0]["rawSql"] for panel in document["panels"]}
    queries["variable"] = document["templating"]["list"][1]["query"]
    for text, value in GRAFANA.items():
        queries = {title: query.replace(text, value) for title, query in queries.items()}
    found = {title: len(rows(url, query)) for title, query in queries.items()}
    assert found == {"Median latency": 1, "Devices": 1, "Queue": 1, "Failures": 1, "variable": 1}
