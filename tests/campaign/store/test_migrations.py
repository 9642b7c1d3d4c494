"""Databases of earlier releases: upgraded when they are opened, with all that they have.

`data/first.*` were written by the first release that had a schema, from the example: two variants, five rounds.
`data/third.*` is of the third schema, whose results had durations: the same variants, two rounds.
"""

import gzip
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from statistics import median_low
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from msgspec import UNSET

from device_runner.result import epoch_ms
from pipeline.campaign.lab.tables import TABLES
from pipeline.campaign.record import FailureRow
from pipeline.campaign.store import Store, StoreError, open_store
from pipeline.campaign.store.migrations import revisions, upgrade
from pipeline.campaign.store.tables import REVISION, campaigns, metadata, row_digest
from pipeline.config import Platform, Target
from pipeline.core.errors import PipelineError
from pipeline.core.variant import Level
from pipeline.job.assemble import assemble
from tests.campaign.store.samples import CAMPAIGN, DOCUMENT, run_record

ROOT = Path(__file__).resolve().parents[3]
DATA = Path(__file__).with_name("data")


def engine_of(url: str) -> sa.Engine:
    return sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))


@pytest.fixture
def first(url: str) -> str:
    """A database of the first schema, as the release of then left it."""
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        path.write_bytes(gzip.decompress((DATA / "first.sqlite.gz").read_bytes()))
        return url
    engine = engine_of(url)
    with engine.begin() as connection:
        text = gzip.decompress((DATA / "first.postgresql.sql.gz").read_bytes()).decode()
        connection.connection.driver_connection.execute(text)  # type: ignore[union-attr]  # psycopg's own
    engine.dispose()
    return url


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    engine = engine_of(url)
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(sa.text(query))]
    engine.dispose()
    return found


def test_a_database_of_the_first_schema_is_upgraded_with_all_that_it_has(first: str) -> None:
    before = rows(first, "SELECT spec_id, round, result FROM runs ORDER BY id")
    for _ in range(2):
        with open_store(first) as store:
            (campaign,) = store.campaigns()
            runs = store.runs(campaign.id)
            assert [(run.spec.id, run.round) for run in runs] == [row[:2] for row in before]
            assert len(runs) == 10
            assert all(len(run.result.latencies_ns) >= 20 for run in runs)
            assert len(store.artifacts(campaign.id)) == 2
            assert [facts.name for facts in store.devices(campaign.id)] == ["local"]
    assert rows(first, "SELECT DISTINCT planned, spec_id FROM runs WHERE round = 3 ORDER BY 1") == [
        ("local/mnist/extended-fixed/cpu", "local/mnist/extended-fixed/cpu#3"),
        ("local/mnist/none-fixed/cpu", "local/mnist/none-fixed/cpu#3"),
    ]
    assert rows(first, "SELECT version_num FROM alembic_version") == [(REVISION,)]
    assert rows(first, "SELECT version FROM schema_version") == [(2,)], "releases before migrations must refuse it"


def test_what_sql_draws_is_filled_from_what_was_stored(first: str) -> None:
    with open_store(first) as store:
        results = [run.result for run in store.runs(store.campaigns()[0].id)]
    assert rows(first, "SELECT started_at, started_at_ms, ended_at_ms, median_ns, host FROM runs ORDER BY id") == [
        (one.started_at, epoch_ms(one.started_at), None, median_low(one.latencies_ns), "") for one in results
    ]


def test_durations_that_were_stored_become_times_of_ends(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    path.write_bytes(gzip.decompress((DATA / "third.sqlite.gz").read_bytes()))
    url = f"sqlite:///{path}"
    with open_store(url) as store:
        (campaign,) = store.campaigns()
        elapsed = [run.result.elapsed_ns // 1_000_000 for run in store.runs(campaign.id)]
        assert assemble(store, campaign).report.rows
    assert rows(url, "SELECT ended_at_ms - started_at_ms FROM runs ORDER BY id") == [(ms,) for ms in elapsed]
    assert len(elapsed) == 4
    assert all(100 < ms < 1000 for ms in elapsed)


def test_an_upgraded_database_can_be_reported_and_written_to(first: str) -> None:
    with open_store(first) as store:
        (old,) = store.campaigns()
        report = assemble(store, old).report
        assert [row.status.value for row in report.rows] == ["ok", "ok"]
        assert all(row.statistics is not None and row.statistics.samples >= 100 for row in report.rows)
        assert store.start(CAMPAIGN)
        assert store.add_run(run_record())
        assert store.campaigns() == (old, CAMPAIGN)
        assert store.runs("c1") == (run_record(),)


def test_an_upgrade_does_not_hide_damage(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    path.write_bytes(gzip.decompress((DATA / "first.sqlite.gz").read_bytes()))
    engine = engine_of(f"sqlite:///{path}")
    with engine.begin() as connection:
        upgrade(connection, "0001", to="0002")
        connection.execute(sa.text("UPDATE runs SET variant = 'other' WHERE id = 4"))
    engine.dispose()
    with open_store(f"sqlite:///{path}") as store:
        with pytest.raises(StoreError, match="round 1 of the run local/mnist/none-fixed/cpu") as caught:
            store.runs(store.campaigns()[0].id)
        assert "its digest is another" in caught.value.why


def test_an_upgrade_takes_the_password_of_the_database_out_of_stored_plans(first: str) -> None:
    engine = engine_of(first)
    with engine.begin() as connection:
        document = json.loads(connection.execute(sa.select(campaigns.c.document)).scalar_one())
        document["config"]["output"]["database"] = "postgresql://u:secret@h/d"
        connection.execute(sa.update(campaigns).values(document=json.dumps(document)))
    engine.dispose()
    with open_store(first) as store:
        (campaign,) = store.campaigns()
        assert campaign.job().config.output.database is None
        assert assemble(store, campaign).report.rows
    assert "secret" not in str(rows(first, "SELECT * FROM campaigns"))


def test_a_campaign_whose_plan_cannot_be_read_costs_no_other(store: Store) -> None:
    engine = engine_of(store.where)
    with engine.begin() as connection:
        row = dict(connection.execute(sa.select(campaigns)).mappings().one())
        row |= {"id": "c0", "sequence": 2, "document": '{"config":{"models":3}}'}
        row["digest"] = row_digest("campaigns", row)
        connection.execute(campaigns.insert().values(row))
    engine.dispose()
    known, strange = store.campaigns()
    assert (known, strange.id, strange.document) == (CAMPAIGN, "c0", None)
    with pytest.raises(PipelineError, match="stored by another release") as caught:
        assemble(store, strange)
    assert "config" in caught.value.why


@pytest.mark.parametrize(
    ("variant", "level"),
    [("extended-fixed", None), ("extended-fixed-u8s8pc", None), ("extended-fixed-u8s8pc", Level.EXTENDED)],
    ids=["an earlier release", "an unknown level", "this release"],
)
def test_a_variant_that_could_not_be_made_is_named_where_nothing_ships(
    variant: str, level: Level | None, store: Store
) -> None:
    failure = FailureRow(kind="preparation", message="no memory", model="mnist", variant=variant, level=level or UNSET)
    target = Target(name="desk", platform=Platform.LINUX)
    config = msgspec.structs.replace(DOCUMENT.config, targets=(target,))
    document = msgspec.structs.replace(DOCUMENT, config=config, failures=(failure,), planned=())
    campaign = msgspec.structs.replace(CAMPAIGN, id="c9", document=document)
    store.start(campaign)
    (withheld,) = assemble(store, campaign).report.withheld
    assert withheld.reason == f"{variant} could not be made: no memory"


def test_campaigns_of_before_keep_the_order_in_which_they_were_entered(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    path.write_bytes(gzip.decompress((DATA / "first.sqlite.gz").read_bytes()))
    url = f"sqlite:///{path}"
    engine = engine_of(url)
    with engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO campaigns VALUES ('a', 'n', '1999', '{}'), ('0', 'n', '1998', '{}')"))
    engine.dispose()
    with open_store(url) as store:
        assert [campaign.id for campaign in store.campaigns()][1:] == ["a", "0"]


@pytest.mark.parametrize("start", ["new", "first"])
def test_the_migrations_lead_to_the_tables_that_the_code_has(
    start: str, url: str, request: pytest.FixtureRequest
) -> None:
    if start == "first":
        request.getfixturevalue("first")
    open_store(url).close()
    engine = engine_of(url)
    with engine.connect() as connection:
        assert set(TABLES) < set(metadata.sorted_tables)
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()
    assert revisions()[0] == REVISION


@pytest.mark.parametrize(
    "change", ["UPDATE alembic_version SET version_num = '0099'", "DROP TABLE alembic_version"], ids=["alembic", "old"]
)
def test_a_database_of_a_later_release_is_refused(change: str, url: str) -> None:
    open_store(url).close()
    engine = engine_of(url)
    with engine.begin() as connection:
        connection.execute(sa.text(change))
        connection.execute(sa.text("UPDATE schema_version SET version = 99"))
    engine.dispose()
    with pytest.raises(PipelineError, match="the schema 0099, which is newer than this release") as caught:
        open_store(url)
    assert REVISION in caught.value.why
    assert "update ort-mobile" in caught.value.remedy


OPENER = """
import sys
from pipeline.campaign.store import open_store
with open_store(sys.argv[1]) as store:
    print(len(store.campaigns()))
"""


def opened_by_four_processes(url: str) -> list[tuple[int, str]]:
    def run(_: int) -> tuple[int, str]:
        command = [sys.executable, "-c", OPENER, url]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
        return done.returncode, done.stdout.strip() or done.stderr

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(run, range(4)))


@pytest.mark.long
def test_processes_that_upgrade_at_the_same_time_do_it_once(first: str) -> None:
    assert opened_by_four_processes(first) == [(0, "1")] * 4


def test_threads_that_open_a_new_database_at_the_same_time_make_it_once(url: str) -> None:
    def opened(_: int) -> tuple[object, ...]:
        with open_store(url) as store:
            return store.campaigns()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(opened, range(4))) == [()] * 4


def test_a_new_database_waits_for_the_write_lock_of_another_process(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE of_another_program (id)")
    other.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(open_store, f"sqlite:///{path}")
        wait([opening], timeout=0.3)
        other.execute("ROLLBACK")
        with opening.result() as store:
            assert store.campaigns() == ()
    other.close()


def test_an_upgrade_that_fails_leaves_the_database_as_it_was(tmp_path: Path) -> None:
    path, copy = tmp_path / "results.sqlite", tmp_path / "copy.sqlite"
    path.write_bytes(gzip.decompress((DATA / "first.sqlite.gz").read_bytes()))
    url = f"sqlite:///{path}"
    engine = engine_of(url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE other (id)"))
        connection.execute(sa.text("CREATE INDEX ix_campaigns_sequence ON other (id)"))
    engine.dispose()
    shutil.copy(path, copy)
    before = rows(f"sqlite:///{copy}", "SELECT name, sql FROM sqlite_master ORDER BY name")
    with pytest.raises(PipelineError):
        open_store(url)
    assert rows(url, "SELECT name, sql FROM sqlite_master ORDER BY name") == before


def test_opening_a_database_of_this_release_imports_no_migrations(file_url: str) -> None:
    open_store(file_url).close()
    opened = f"import sys; from pipeline.campaign.store import open_store; open_store({file_url!r}).close()"
    code = f"{opened}; assert 'alembic' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


# --- damage -----------------------------------------------------------------------------------------------------------

Read = Callable[[Store], object]
READS: dict[str, Read] = {
    "campaigns": lambda store: store.campaigns(),
    "devices": lambda store: store.devices("c1"),
    "artifacts": lambda store: store.artifacts("c1"),
    "runs": lambda store: store.runs("c1"),
}
"""Table to what reads it."""

DAMAGES = {
    "a latency": ("runs", "UPDATE latencies SET nanoseconds = x'0500000000000000060000000000000007000000000000ff'"),
    "latencies emptied": ("runs", "UPDATE latencies SET nanoseconds = x''"),
    "seven bytes": ("runs", "UPDATE latencies SET nanoseconds = x'05000000000000'"),
    "latencies as text": ("runs", "UPDATE latencies SET nanoseconds = 'abc'"),
    "latencies as a number": ("runs", "UPDATE latencies SET nanoseconds = 5"),
    "the count": ("runs", "UPDATE latencies SET samples = 2"),
    "latencies lost": ("runs", "DELETE FROM latencies"),
    "a result": ("runs", """UPDATE runs SET result = replace(result, '"load_ns":', '"load_ns":1')"""),
    "a result as bytes": ("runs", "UPDATE runs SET result = CAST(result AS BLOB)"),
    "a text that is none": ("runs", "UPDATE runs SET result = CAST(x'ff' AS TEXT)"),
    "a round": ("runs", "UPDATE runs SET round = round + 1"),
    "a variant": ("runs", "UPDATE runs SET variant = 'other'"),
    "a median": ("runs", "UPDATE runs SET median_ns = 1"),
    "a host": ("runs", "UPDATE runs SET host = 'other'"),
    "a digest": ("runs", "UPDATE runs SET digest = NULL"),
    "an artifact": ("artifacts", """UPDATE artifacts SET document = replace(document, '"mnist"', '"n"')"""),
    "an artifact's digest": ("artifacts", "UPDATE artifacts SET sha256 = upper(sha256) || '0'"),
    "a device": ("devices", "UPDATE devices SET document = replace(document, 'linux', 'android')"),
    "a campaign": ("campaigns", "UPDATE campaigns SET document = '{}'"),
    "the order of campaigns": ("campaigns", "UPDATE campaigns SET sequence = 7"),
}


@pytest.fixture
def filled(file_url: str) -> str:
    from device_runner.device import DeviceFacts
    from tests.campaign.store.samples import ARTIFACT

    with open_store(file_url) as store:
        store.start(CAMPAIGN, [DeviceFacts(name="local", platform="linux")], [ARTIFACT])
        store.add_run(run_record())
        for read in READS.values():
            assert read(store)
    return file_url


@pytest.mark.parametrize("name", DAMAGES)
def test_a_row_that_is_not_as_it_was_stored_is_named(name: str, filled: str) -> None:
    table, change = DAMAGES[name]
    engine = engine_of(filled)
    with engine.begin() as connection:
        assert connection.exec_driver_sql(change).rowcount == 1
    engine.dispose()
    with open_store(filled) as store:
        with pytest.raises(StoreError, match="the database is damaged") as caught:
            READS[table](store)
        assert "results.sqlite" in caught.value.where
        assert "restore a copy" in caught.value.remedy
        for other, read in READS.items():
            assert other == table or read(store)
        if table == "runs":
            with pytest.raises(StoreError, match="the database is damaged"):
                list(store.run_medians(["c1"]))


def test_every_exchanged_or_zeroed_page_of_a_database_is_found_or_harmless(filled: str, tmp_path: Path) -> None:
    """Whatever page is lost, what is read is what was stored, or a typed error."""
    engine = engine_of(filled)
    with engine.connect() as connection:
        connection.execute(sa.text("PRAGMA wal_checkpoint(TRUNCATE)"))
        connection.execute(sa.text("PRAGMA journal_mode=DELETE"))
        size = connection.execute(sa.text("PRAGMA page_size")).scalar_one()
    engine.dispose()
    sound = Path(filled.removeprefix("sqlite:///")).read_bytes()
    with open_store(filled) as store:
        expected = {table: read(store) for table, read in READS.items()}
    pages = [sound[start : start + size] for start in range(0, len(sound), size)]
    broken = [[*pages[:n], bytes(size), *pages[n + 1 :]] for n in range(1, len(pages))]
    broken += [[*pages[:n], pages[n + 1], pages[n], *pages[n + 2 :]] for n in range(1, len(pages) - 1)]
    found = 0
    for number, parts in enumerate(broken):
        path = tmp_path / f"{number}.sqlite"
        path.write_bytes(b"".join(parts))
        try:
            with open_store(f"sqlite:///{path}") as store:
                assert {table: read(store) for table, read in READS.items()} == expected
        except PipelineError:
            found += 1
    assert found >= 8
