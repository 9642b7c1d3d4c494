"""The store: what goes in comes out, once and whole, by SQLite's and PostgreSQL's indexes; and what SQL sees of it."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection

from device_runner.device import DeviceFacts
from device_runner.result import FailureKind, epoch_ms
from pipeline.campaign.record import Prediction, RunRecord
from pipeline.campaign.statistics.groups import RunGroup, describe
from pipeline.campaign.store import REPEATED, Store, open_store
from pipeline.core.errors import PipelineError, warning
from pipeline.features.lab.tables import hosts, jobs
from tests.campaign.store.samples import ARTIFACT, CAMPAIGN, DOCUMENT, failed, run_record
from tests.values import present

ROOT = Path(__file__).resolve().parents[3]


def test_everything_comes_back_as_it_went_in(store: Store) -> None:
    facts = DeviceFacts(name="local", platform="linux", core_max_mhz=(3000, 3000))
    ok, bad = run_record(), failed(FailureKind.MODEL_LOAD, spec="s2")
    c2 = msgspec.structs.replace(CAMPAIGN, id="c2")
    assert store.start(c2, [facts], [ARTIFACT])
    assert store.add_run(ok)
    assert store.add_run(bad)
    assert store.campaigns() == (CAMPAIGN, c2)
    assert store.runs("c1") == (ok, bad)
    assert store.artifacts("c2") == (ARTIFACT,)
    assert store.devices("c2") == (facts,)
    assert [store.artifacts("c1"), store.devices("c1")] == [(), ()]
    assert store.runs("other") == ()


def test_medians_come_without_latencies(store: Store) -> None:
    ok, bad = run_record(latencies_ns=(9, 5, 7, 6)), failed(FailureKind.MODEL_LOAD, spec="s2")
    store.add_run(ok)
    store.add_run(bad)
    bare = msgspec.structs.replace(ok, result=msgspec.structs.replace(ok.result, latencies_ns=()))
    profiled = msgspec.structs.replace(ok.spec, id="s3", profile=True, outputs_folder="o")
    store.add_run(
        msgspec.structs.replace(
            ok, planned="s3", spec=profiled, result=msgspec.structs.replace(ok.result, spec_id="s3")
        )
    )
    found, none = store.run_medians(["c1", "other"])
    assert found == ((bare, 6), (bad, None))
    assert none == ()


def test_the_median_of_a_run_is_that_of_the_report(store: Store) -> None:
    """The column had the lower of the middle two, the page the upper, the report their mean."""
    record = run_record(latencies_ns=(40, 10, 30, 20))
    store.add_run(record)
    (((_, median_ns),),) = store.run_medians(["c1"])
    described = present(describe(RunGroup(key="", latencies_ns={0: record.result.latencies_ns})))
    assert median_ns == record.result.median_ns == described.median_ns == 25


def test_runs_of_one_round_come_alone(store: Store) -> None:
    first = run_record(latencies_ns=(1,))
    second = msgspec.structs.replace(first, round=first.round + 1)
    assert store.add_run(first)
    assert store.add_run(second)
    assert store.runs("c1", number=second.round) == (second,)


def test_a_run_is_stored_once(store: Store) -> None:
    assert store.add_run(run_record(latencies_ns=(1,)))
    assert not store.add_run(run_record(latencies_ns=(2,)))
    assert store.add_run(run_record(number=1))
    assert [run.result.latencies_ns for run in store.runs("c1")] == [(1,), (5, 7, 6)]
    assert store.finished("c1") == {("s1", 0), ("s1", 1)}


@pytest.mark.parametrize("kind", list(FailureKind))
def test_only_failures_of_the_surroundings_are_tried_again(kind: FailureKind, file_url: str) -> None:
    with open_store(file_url) as store:
        store.start(CAMPAIGN)
        store.add_run(failed(kind))
        again = kind in REPEATED
        assert store.failed("c1") == (frozenset() if again else {"s1"})
        assert store.finished("c1") == (set() if again else {("s1", 0)})
        assert store.add_run(run_record()) == again
        assert store.finished("c1") == {("s1", 0)}
        assert len(store.runs("c1")) == 1


def test_devices_that_join_a_campaign_are_replaced_not_doubled(store: Store) -> None:
    small, large = (DeviceFacts(name="local", platform="linux", memory_bytes=size) for size in (1, 2))
    store.amend("c1", lambda document: document, [small])
    warnings = (warning("joined"),)
    changed = store.amend("c1", lambda document: msgspec.structs.replace(document, warnings=warnings), [large])
    assert store.devices("c1") == (large,)
    assert store.campaigns() == (changed,)
    assert changed.job() == msgspec.structs.replace(DOCUMENT, warnings=warnings)


def test_a_campaign_is_entered_with_its_artifacts_or_not_at_all(file_url: str) -> None:
    broken = msgspec.structs.replace(ARTIFACT, model="m\ud800")
    with open_store(file_url) as store:
        with pytest.raises(UnicodeEncodeError):
            store.start(CAMPAIGN, [DeviceFacts(name="local", platform="linux")], [ARTIFACT, broken])
        assert [store.campaigns(), store.artifacts("c1"), store.devices("c1")] == [(), (), ()]
        assert store.start(CAMPAIGN, (), [ARTIFACT])


def test_the_last_campaign_is_the_one_that_was_entered_last_whatever_the_clock_said(store: Store) -> None:
    jumped = msgspec.structs.replace(CAMPAIGN, id="c2", created_at="2046-01-01T00:00:00.000Z")
    back = msgspec.structs.replace(CAMPAIGN, id="a3", created_at="2026-01-01T00:00:00.000Z")
    for campaign in (jumped, back):
        assert store.start(campaign)
    assert [campaign.id for campaign in store.campaigns()] == ["c1", "c2", "a3"]


def test_a_campaign_starts_once(store: Store) -> None:
    assert not store.start(msgspec.structs.replace(CAMPAIGN, created_at="2027-01-01T00:00:00.000Z"))
    assert store.start(msgspec.structs.replace(CAMPAIGN, id="c2"))
    assert [campaign.id for campaign in store.campaigns()] == ["c1", "c2"]
    assert store.campaigns()[0] == CAMPAIGN


def test_runs_need_their_campaign(url: str) -> None:
    with open_store(url) as store, pytest.raises(PipelineError, match="belongs to a campaign"):
        store.add_run(run_record())


def test_a_latency_beyond_64_bits_is_refused_and_leaves_nothing(store: Store) -> None:
    with pytest.raises(PipelineError, match="64-bit"):
        store.add_run(run_record(latencies_ns=(2**63,)))
    assert store.runs("c1") == ()


def test_hostile_text_is_only_text(store: Store) -> None:
    name = "'); DROP TABLE runs; -- \x1b[31m é 漢\u2028"
    record = msgspec.structs.replace(run_record(), model=name, prediction=Prediction(error="\x00" + name))
    assert store.add_run(record)
    assert store.runs("c1") == (record,)


# --- more than one process --------------------------------------------------------------------------------------------

WRITER = """
import sys
from pipeline.campaign.store import open_store
from tests.campaign.store.samples import CAMPAIGN, run_record
url, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with open_store(url) as store:
    store.start(CAMPAIGN)
    for number in range(count):
        store.add_run(run_record(name, number, tuple(range(1000))))
        print(number, flush=True)
"""


def writer(url: str, name: str, count: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", WRITER, url, name, str(count)]
    return subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_what_was_stored_before_a_kill_is_there_and_whole(url: str) -> None:
    with writer(url, "s", 100_000) as process:
        acknowledged = [int(present(process.stdout).readline()) for _ in range(20)]
        process.kill()
    with open_store(url) as store:
        stored = store.runs("c1")
        assert store.finished("c1") >= {("s", number) for number in acknowledged}
        assert all(run.result.latencies_ns == tuple(range(1000)) for run in stored)
        assert store.add_run(run_record("s", len(stored)))


def test_two_processes_start_and_write_at_the_same_time(url: str) -> None:
    with writer(url, "a", 30) as one, writer(url, "b", 30) as two:
        assert (one.wait(600), two.wait(600)) == (0, 0)
    with open_store(url) as store:
        assert len(store.finished("c1")) == 60


def test_runs_of_one_moment_share_a_commit_and_one_that_is_refused_costs_no_other(store: Store) -> None:
    """All wait until the last one is there: then one of them writes for all."""
    good = [run_record("s", number) for number in range(20)]
    twin, stray = run_record("s", 3, latencies_ns=(9,)), msgspec.structs.replace(run_record("s", 50), campaign="none")
    lost = failed(FailureKind.LOST_DEVICE, spec="lost")
    assert store.add_run(lost)
    records = [*good, twin, stray, run_record("lost")]
    commits: list[int] = []
    event.listen(store.engine, "commit", lambda _: commits.append(1))
    with ThreadPoolExecutor(max_workers=len(records)) as pool:
        with store._writing:
            answers = [pool.submit(store.add_run, record) for record in records]
            while len(store._entrance._waiting) < len(records):
                time.sleep(0.001)
        told = [type(answer.exception()) if answer.exception() else answer.result() for answer in answers]
    assert told.count(PipelineError) == 1
    assert told.index(PipelineError) == records.index(stray)
    assert sorted(one for one in told if isinstance(one, bool)) == [False, *[True] * 21]
    assert len(store.finished("c1")) == 21
    assert [run.result.failure for run in store.runs("c1") if run.spec.id == "lost"] == [None]
    commits.clear()
    with ThreadPoolExecutor(max_workers=20) as pool:
        with store._writing:
            more = [pool.submit(store.add_run, run_record("more", number)) for number in range(20)]
            while len(store._entrance._waiting) < 20:
                time.sleep(0.001)
        assert all(answer.result() for answer in more)
    assert len(commits) == 1


READS: dict[str, Callable[[Store], object]] = {
    "a campaign": lambda store: store.campaign("c1"),
    "the campaigns of a name": lambda store: store.campaigns("mnist"),
    "runs": lambda store: store.runs("c1"),
    "medians of runs": lambda store: list(store.run_medians(["c1"])),
    "what is finished": lambda store: store.finished("c1"),
    "what failed": lambda store: store.failed("c1"),
    "artifacts": lambda store: store.artifacts("c1"),
    "devices": lambda store: store.devices("c1"),
    "a run that is stored": lambda store: store.add_run(run_record(number=1)),
}
EXPLAIN = {"sqlite": "EXPLAIN QUERY PLAN ", "postgresql": "EXPLAIN "}


def test_no_table_is_read_as_a_whole(store: Store) -> None:
    store.add_run(run_record())
    plans: list[str] = []

    def explain(connection: Connection, cursor: object, statement: str, parameters: Any, *more: object) -> None:
        if statement.startswith("SELECT"):
            if connection.dialect.name == "postgresql":  # it reads small tables as a whole, and this one is small
                connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
            explained = EXPLAIN[connection.dialect.name] + statement
            plans.extend(str(row[-1]) for row in connection.exec_driver_sql(explained, parameters))

    for name, read in READS.items():
        plans.clear()
        sa.event.listen(store.engine, "before_cursor_execute", explain)
        read(store)
        sa.event.remove(store.engine, "before_cursor_execute", explain)
        assert plans, name
        assert not [line for line in plans if line.startswith("SCAN") or "Seq Scan" in line], (name, plans)


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
    job = {
        "campaign_id": "c1", "state": "waiting", "stage": "rounds", "reason": "", "changed": now, "host": "",
        "priority": 1,
    }  # fmt: skip
    with engine.begin() as connection:
        connection.execute(hosts.insert(), {"name": "shelf", "seen": now, "versions": "{}"})
        connection.execute(jobs.insert(), [{**job, "device": "a"}, {**job, "device": "b", "host": "shelf"}])
    engine.dispose()
    waiting, working = rows(url, "SELECT * FROM queue ORDER BY device")
    assert (waiting["campaign"], waiting["host_seen"], waiting["attempts"]) == ("mnist", None, 0)
    assert waiting["priority"] == 1
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
