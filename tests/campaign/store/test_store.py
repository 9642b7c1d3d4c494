"""The store: what goes in comes out, once, whole, also after a kill, on SQLite and on a real PostgreSQL."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import event

from device_runner.device import DeviceFacts
from device_runner.result import FailureKind
from pipeline.campaign.record import Prediction
from pipeline.campaign.statistics.groups import RunGroup, describe
from pipeline.campaign.store import REPEATED, Store, open_store
from pipeline.core.errors import PipelineError, warning
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
        assert (one.wait(60), two.wait(60)) == (0, 0)
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
