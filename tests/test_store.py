"""The store: what goes in comes out, once, whole, also after a kill, on SQLite and on a real PostgreSQL."""

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from device_runner.device import DeviceFacts
from device_runner.result import Failure, FailureKind, Mark, RunResult, Status
from device_runner.spec import RunOptions, RunSpec
from pipeline.errors import ConfigError, MissingError, PipelineError
from pipeline.store import REPEATED, CampaignRecord, RunRecord, Store, open_store
from pipeline.store.refusals import hidden
from pipeline.summary import OutputCheck
from pipeline.variant import Artifact, Level, Variant

ROOT = Path(__file__).resolve().parent.parent
CAMPAIGN = CampaignRecord(id="c1", name="mnist", created_at="2026-01-01T00:00:00.000Z", document={"host": {"cores": 2}})
ARTIFACT = Artifact(
    model="mnist",
    variant=Variant(level=Level.BASIC),
    file="mnist.basic.ort",
    size_bytes=30_000,
    sha256="a" * 64,
    semantic_digest="b" * 64,
    operators={"ai.onnx:Conv": 2},
    source_operators={"ai.onnx:Conv": 2, "ai.onnx:Add": 3},
)


def run_record(
    spec: str = "s1", number: int = 0, latencies_ns: tuple[int, ...] = (5, 7, 6), failure: Failure | None = None
) -> RunRecord:
    result = RunResult(
        spec_id=spec,
        device="local",
        status=Status.OK if failure is None else Status.FAILED,
        failure=failure,
        latencies_ns=latencies_ns,
        marks=(Mark.THROTTLED,),
        started_at="2026-01-01T00:00:01.000Z",
    )
    return RunRecord(
        campaign="c1",
        round=number,
        model="mnist",
        variant="basic-fixed",
        spec=RunSpec(id=spec, model="mnist.basic.ort", options=RunOptions(intra_op_threads=2)),
        result=result,
        checks=(OutputCheck(output="logits", passed=True, max_abs_error=1e-6, cosine=1.0),),
        prediction={"latency_ns": 6},
    )


def failed(kind: FailureKind, spec: str = "s1") -> RunRecord:
    return run_record(spec, latencies_ns=(), failure=Failure(kind=kind, message="it broke"))


# --- both databases ---------------------------------------------------------------------------------------------------


def postgres_programs() -> Path | None:
    """The folder of initdb and postgres: on PATH, or where Debian puts them."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a PostgreSQL server of this test run's own: a temporary folder, a free port, not run by root."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: nothing is tested against PostgreSQL")
    programs = postgres_programs()
    if programs is None:
        pytest.skip("no PostgreSQL on this machine (initdb): nothing is tested against it")
    user = "nobody" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="pg") as folder, socket.socket() as free:
        if user is not None:
            shutil.chown(folder, user)
        data, log = f"{folder}/data", Path(folder, "log")
        initdb = [str(programs / "initdb"), "-D", data, "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(initdb, user=user, check=True, capture_output=True, cwd=folder)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        options = ["-D", data, "-p", str(port), "-k", folder, "-c", "listen_addresses=127.0.0.1", "-F"]
        with (
            log.open("wb") as out,
            subprocess.Popen([str(programs / "postgres"), *options], user=user, stderr=out) as server,
        ):
            try:
                wait_for_port(port)
                yield f"postgresql://tester@127.0.0.1:{port}/postgres"
            finally:
                server.send_signal(signal.SIGINT)


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"PostgreSQL does not listen on port {port}")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new, empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'results.sqlite'}"
    server: str = request.getfixturevalue("postgres")
    name = f"t{time.monotonic_ns()}"
    engine = sa.create_engine(server.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return server.removesuffix("postgres") + name


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url) as opened:
        opened.start(CAMPAIGN)
        yield opened


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'results.sqlite'}"


def test_everything_comes_back_as_it_went_in(store: Store) -> None:
    facts = DeviceFacts(name="local", platform="linux", core_max_mhz=(3000, 3000))
    ok, bad = run_record(), failed(FailureKind.MODEL_LOAD, spec="s2")
    store.add_device("c1", facts)
    store.add_artifact("c1", ARTIFACT)
    assert store.add_run(ok)
    assert store.add_run(bad)
    assert store.campaigns() == (CAMPAIGN,)
    assert store.runs("c1") == (ok, bad)
    assert store.artifacts("c1") == (ARTIFACT,)
    assert store.devices("c1") == (facts,)
    assert store.runs("other") == ()


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


def test_artifacts_and_devices_are_replaced_not_doubled(store: Store) -> None:
    for size in (1, 2):
        store.add_artifact("c1", msgspec.structs.replace(ARTIFACT, size_bytes=size))
        store.add_device("c1", DeviceFacts(name="local", platform="linux", memory_bytes=size))
    assert [artifact.size_bytes for artifact in store.artifacts("c1")] == [2]
    assert [facts.memory_bytes for facts in store.devices("c1")] == [2]


def test_a_campaign_starts_once(store: Store) -> None:
    assert not store.start(msgspec.structs.replace(CAMPAIGN, created_at="2027-01-01T00:00:00.000Z"))
    assert store.start(msgspec.structs.replace(CAMPAIGN, id="c2"))
    assert [campaign.id for campaign in store.campaigns()] == ["c1", "c2"]
    assert store.campaigns()[0] == CAMPAIGN


def test_opening_again_keeps_what_is_there(url: str) -> None:
    for expected in (True, False):
        with open_store(url) as store:
            store.start(CAMPAIGN)
            assert store.add_run(run_record()) is expected


def test_runs_need_their_campaign(url: str) -> None:
    with open_store(url) as store, pytest.raises(PipelineError, match="belongs to a campaign"):
        store.add_run(run_record())


def test_another_schema_version_is_refused(url: str) -> None:
    open_store(url).close()
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE schema_version SET version = 99"))
    engine.dispose()
    with pytest.raises(PipelineError, match="schema version 99") as caught:
        open_store(url)
    assert "version 1" in caught.value.why


def test_a_latency_beyond_64_bits_is_refused_and_leaves_nothing(store: Store) -> None:
    with pytest.raises(PipelineError, match="64-bit"):
        store.add_run(run_record(latencies_ns=(2**63,)))
    assert store.runs("c1") == ()


def test_hostile_text_is_only_text(store: Store) -> None:
    name = "'); DROP TABLE runs; -- \x1b[31m é 漢\u2028"
    record = msgspec.structs.replace(run_record(), model=name, prediction={"said": "\x00" + name})
    assert store.add_run(record)
    assert store.runs("c1") == (record,)


@given(latencies_ns=st.lists(st.integers(0, 2**63 - 1), max_size=50).map(tuple), number=st.integers(0, 2**31 - 1))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_raw_latencies_come_back(store: Store, latencies_ns: tuple[int, ...], number: int) -> None:
    spec = f"s{time.monotonic_ns()}"
    assert store.add_run(run_record(spec, number, latencies_ns))
    assert store.runs("c1")[-1].result.latencies_ns == latencies_ns


# --- more than one process --------------------------------------------------------------------------------------------

WRITER = """
import sys
from pipeline.store import open_store
from tests.test_store import CAMPAIGN, run_record
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
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline()) for _ in range(20)]
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


def test_threads_share_a_store(store: Store) -> None:
    def write(name: str) -> list[bool]:
        return [store.add_run(run_record(name, number)) for number in range(20)]

    with ThreadPoolExecutor(max_workers=4) as pool:
        answers = list(pool.map(write, ["a", "b", "c", "a"]))
    assert sum(map(sum, answers)) == 60
    assert len(store.finished("c1")) == 60


def test_runs_of_one_moment_share_a_commit_and_one_that_is_refused_costs_no_other(store: Store) -> None:
    """All wait until the last one is there: then one of them writes for all."""
    good = [run_record("s", number) for number in range(20)]
    twin, stray = run_record("s", 3, latencies_ns=(9,)), msgspec.structs.replace(run_record("s", 50), campaign="none")
    lost = failed(FailureKind.LOST_DEVICE, spec="lost")
    assert store.add_run(lost)
    records = [*good, twin, stray, run_record("lost")]
    commits: list[int] = []
    event.listen(store._engine, "commit", lambda _: commits.append(1))
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


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "error", "part"),
    [
        ("results.sqlite", ConfigError, "not a database URL"),
        ("nosuch://host/db", ConfigError, "unknown kind of database 'nosuch'"),
        ("oracle+cx_oracle://host/db", MissingError, "driver 'cx_Oracle'"),
        ("postgresql://u:secret@host:port/db", ConfigError, "database URL"),
        ("sqlite://", ConfigError, "in memory"),
        ("sqlite:///:memory:", ConfigError, "in memory"),
        ("sqlite:////nosuch/folder/results.sqlite", MissingError, "cannot be opened"),
        ("sqlite:////dev/null/results.sqlite", MissingError, "cannot be opened"),
    ],
)
def test_urls_that_lead_nowhere(bad: str, error: type[PipelineError], part: str) -> None:
    with pytest.raises(error, match=part) as caught:
        open_store(bad)
    assert caught.value.remedy
    assert "secret" not in str(caught.value)


def test_server_that_is_not_there() -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"postgresql://u:secret@127.0.0.1:{free.getsockname()[1]}/db"
        with pytest.raises(MissingError, match="cannot be reached") as caught:
            open_store(url)
    assert "u:***@127.0.0.1" in caught.value.where
    assert "secret" not in str(caught.value)


def test_server_without_that_database(postgres: str) -> None:
    with pytest.raises(MissingError, match="does not know"):
        open_store(postgres.removesuffix("postgres") + "nosuch")


def test_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database at all\n" * 100)
    with pytest.raises(PipelineError, match="no SQLite database") as caught:
        open_store(f"sqlite:///{tmp_path / 'notes.txt'}")
    assert caught.value.remedy


def test_damaged_database(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    with open_store(f"sqlite:///{path}") as store:
        store.start(CAMPAIGN)
        for number in range(50):
            store.add_run(run_record(number=number, latencies_ns=tuple(range(1000))))
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    with pytest.raises(PipelineError, match="damaged"), open_store(f"sqlite:///{path}") as store:
        store.runs("c1")


def test_database_of_something_else(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.sqlite") as other:
        other.execute("CREATE TABLE campaigns (number INTEGER)")
    other.close()
    with pytest.raises(PipelineError, match="not one of this pipeline"):
        open_store(f"sqlite:///{tmp_path / 'other.sqlite'}").start(CAMPAIGN)


def test_another_process_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    with open_store(f"sqlite:///{path}", busy_seconds=0.1) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(PipelineError, match="another process holds"):
            store.start(CAMPAIGN)
        other.execute("ROLLBACK")
        other.close()
        assert store.start(CAMPAIGN)


def test_full_disk_keeps_what_was_stored(file_url: str) -> None:
    with open_store(file_url) as store:
        store.start(CAMPAIGN)
        limit_pages(store, 60)
        with pytest.raises(PipelineError, match="disk is full") as caught:
            add_many(store)
        assert "make room" in caught.value.remedy
        stored = len(store.runs("c1"))
        assert stored > 3
    with open_store(file_url) as store:
        assert store.finished("c1") == {("s1", number) for number in range(stored)}


def add_many(store: Store) -> None:
    for number in range(200):
        store.add_run(run_record(number=number, latencies_ns=tuple(range(1000))))


def limit_pages(store: Store, pages: int) -> None:
    """SQLite says of a file that may not grow what it says of a full disk."""
    with store._engine.connect() as connection:
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")


def test_read_only_file(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    open_store(f"sqlite:///{path}").close()
    with open_store(f"sqlite:///file:{path}?mode=ro&uri=true") as store:
        assert store.campaigns() == ()
        with pytest.raises(PipelineError, match="cannot be written to"):
            store.start(CAMPAIGN)


def test_a_value_that_something_else_changed(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    with open_store(f"sqlite:///{path}") as store:
        store.start(CAMPAIGN)
        with sqlite3.connect(path) as other:
            other.execute("UPDATE campaigns SET document = '[1, 2'")
        other.close()
        with pytest.raises(PipelineError, match="stored value cannot be read"):
            store.campaigns()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:p@w@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u@h:1/d", "postgresql://u@h:1/d"),
        ("sqlite:////a/b.sqlite", "sqlite:////a/b.sqlite"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert hidden(url) == shown
