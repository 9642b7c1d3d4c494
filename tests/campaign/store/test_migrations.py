"""Databases of earlier releases, upgraded when they are opened with all that they have; of later ones; and damage."""

import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from device_runner.device import DeviceFacts
from pipeline.campaign.record import FailureRow
from pipeline.campaign.store import Store, StoreError, migrations, open_store
from pipeline.campaign.store.digests import row_digest
from pipeline.campaign.store.migrations import revisions
from pipeline.campaign.store.tables import campaigns, metadata
from pipeline.campaign.store.writer import text_of
from pipeline.config import Platform, Target
from pipeline.core.errors import PipelineError
from pipeline.core.files import REVISION
from pipeline.core.variant import Level
from pipeline.features.lab.tables import TABLES
from pipeline.job.assemble import assemble
from tests import new_databases
from tests.campaign.store.samples import ARTIFACT, CAMPAIGN, DOCUMENT, SECOND, add_second_migration, run_record

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _migrated() -> Iterator[None]:
    with new_databases.migrated():
        yield


def engine_of(url: str) -> sa.Engine:
    return sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))


@contextlib.contextmanager
def changing(url: str) -> Iterator[sa.Connection]:
    """A connection that changes a database behind the store's back."""
    engine = engine_of(url)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The program as a later release, with one migration more."""
    add_second_migration(monkeypatch, tmp_path)


@pytest.fixture
def first(url: str) -> str:
    """A database of this release, with a campaign and a run."""
    with open_store(url) as store:
        store.start(CAMPAIGN, [DeviceFacts(name="local", platform="linux")], [ARTIFACT])
        store.add_run(run_record())
    return url


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    engine = engine_of(url)
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(sa.text(query))]
    engine.dispose()
    return found


def test_a_database_of_an_earlier_release_is_upgraded_with_all_that_it_has(first: str, later: None) -> None:
    for _ in range(2):
        with open_store(first) as store:
            assert store.campaigns() == (CAMPAIGN,)
            assert store.runs("c1") == (run_record(),)
            assert store.artifacts("c1") == (ARTIFACT,)
            assert [facts.name for facts in store.devices("c1")] == ["local"]
    assert rows(first, "SELECT spec_id, note FROM runs") == [("s1", "nobody looked")]
    assert rows(first, "SELECT version_num FROM alembic_version") == [(SECOND,)]


def test_a_database_of_the_first_release_is_read_and_written_to(url: str) -> None:
    with changing(url) as connection:
        config = migrations._config()
        config.attributes["connection"] = connection
        command.upgrade(config, "v0001")
        row: dict[str, Any] = {"id": "c1", "name": "mnist", "created_at": CAMPAIGN.created_at, "sequence": 1}
        row["document"] = text_of(DOCUMENT)
        row["digest"] = row_digest("campaigns", row)
        connection.execute(sa.insert(campaigns).values(row))
    with open_store(url) as store:
        assert store.campaigns() == (CAMPAIGN,)
        assert store.add_run(run_record())
        assert store.runs("c1") == (run_record(),)
    assert rows(url, "SELECT version_num FROM alembic_version") == [(REVISION,)]


def test_an_upgraded_database_can_be_reported_and_written_to(first: str, later: None) -> None:
    with open_store(first) as store:
        assert store.add_run(run_record(number=1))
        (row,) = assemble(store, store.campaigns()[0]).report.rows
        assert (row.status.value, row.rounds) == ("ok", 2)


def test_a_campaign_whose_plan_cannot_be_read_costs_no_other(store: Store) -> None:
    with changing(store.where) as connection:
        row = dict(connection.execute(sa.select(campaigns)).mappings().one())
        row |= {"id": "c0", "sequence": 2, "document": '{"config":{"models":3}}'}
        row["digest"] = row_digest("campaigns", row)
        connection.execute(campaigns.insert().values(row))
    known, strange = store.campaigns()
    assert (known, strange.id, strange.document) == (CAMPAIGN, "c0", None)
    with pytest.raises(PipelineError, match="stored by another release") as caught:
        assemble(store, strange)
    assert "config" in caught.value.why


def test_a_variant_that_could_not_be_made_is_named_where_nothing_ships(store: Store) -> None:
    variant = "extended-fixed-u8s8pc"
    failure = FailureRow(code="preparation", what="no memory", model="mnist", variant=variant, level=Level.EXTENDED)
    target = Target(name="desk", platform=Platform.LINUX)
    config = msgspec.structs.replace(DOCUMENT.config, targets=(target,))
    document = msgspec.structs.replace(DOCUMENT, config=config, failures=(failure,), planned=())
    campaign = msgspec.structs.replace(CAMPAIGN, id="c9", document=document)
    store.start(campaign)
    (withheld,) = assemble(store, campaign).report.withheld
    assert withheld.what == f"{variant} could not be made: no memory"


def test_the_migrations_lead_to_the_tables_that_the_code_has(url: str) -> None:
    open_store(url).close()
    engine = engine_of(url)
    with engine.connect() as connection:
        assert set(TABLES) < set(metadata.sorted_tables)
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()
    assert revisions()[0] == REVISION


@pytest.mark.parametrize("revision", ["v0099", "0008"], ids=["later", "of before 1.0"])
def test_a_database_that_this_release_does_not_know_is_refused(revision: str, first: str) -> None:
    with changing(first) as connection:
        connection.execute(sa.text(f"UPDATE alembic_version SET version_num = '{revision}'"))
    with pytest.raises(PipelineError, match=f"the schema {revision}, which this release") as caught:
        open_store(first)
    assert REVISION in caught.value.why
    assert "update ort-mobile, or use another database" in caught.value.remedy


def test_a_database_from_before_migrations_is_refused(url: str) -> None:
    with changing(url) as connection:
        connection.execute(sa.text("CREATE TABLE schema_version (version int)"))
        connection.execute(sa.text("CREATE TABLE campaigns (id text, name text, created_at text, document text)"))
    with pytest.raises(PipelineError, match="the database is not one of this pipeline") as caught:
        open_store(url)
    assert "give another one" in caught.value.remedy


OPENER = """
import sys
from pipeline.campaign.store import open_store
with open_store(sys.argv[1]) as store:
    print(len(store.campaigns()))
"""


@pytest.mark.long
def test_processes_that_open_a_new_database_at_the_same_time_make_it_once(url: str) -> None:
    def run(_: int) -> tuple[int, str]:
        command = [sys.executable, "-c", OPENER, url]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
        return done.returncode, done.stdout.strip() or done.stderr

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(4))) == [(0, "0")] * 4


def test_threads_that_open_a_database_at_the_same_time_make_and_upgrade_it_once(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def opened(_: int) -> tuple[object, ...]:
        with open_store(url) as store:
            return store.campaigns()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(opened, range(4))) == [()] * 4
        add_second_migration(monkeypatch, tmp_path)
        assert list(pool.map(opened, range(4))) == [()] * 4


@pytest.mark.postgresql
@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_an_upgrade_is_tried_again_where_postgresql_ends_it_for_a_deadlock(first: str, later: None) -> None:
    """Another session holds what the upgrade waits for, and then waits for what the upgrade holds."""
    engine = engine_of(first)
    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as other:
            other.execute(sa.text("SELECT count(*) FROM runs"))
            opening = pool.submit(open_store, first)
            while not rows(first, "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'runs'::regclass"):
                assert not opening.done()
            other.execute(sa.text("LOCK TABLE alembic_version IN ROW EXCLUSIVE MODE"))
        opening.result().close()
    engine.dispose()
    assert rows(first, "SELECT version_num FROM alembic_version") == [(SECOND,)]


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


def test_an_upgrade_that_fails_leaves_the_database_as_it_was(first: str, later: None) -> None:
    engine = engine_of(first)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE notes (id int)"))  # the second thing that the migration makes
    engine.dispose()
    before = [column["name"] for column in sa.inspect(engine).get_columns("runs")]
    with pytest.raises(PipelineError):
        open_store(first)
    assert [column["name"] for column in sa.inspect(engine).get_columns("runs")] == before
    engine.dispose()


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
    "a digest": ("runs", "UPDATE runs SET digest = ''"),
    "an artifact": ("artifacts", """UPDATE artifacts SET document = replace(document, '"mnist"', '"n"')"""),
    "an artifact's digest": ("artifacts", "UPDATE artifacts SET sha256 = upper(sha256) || '0'"),
    "a device": ("devices", "UPDATE devices SET document = replace(document, 'linux', 'android')"),
    "a campaign": ("campaigns", "UPDATE campaigns SET document = '{}'"),
    "the order of campaigns": ("campaigns", "UPDATE campaigns SET sequence = 7"),
}


@pytest.fixture
def filled(file_url: str) -> str:
    with open_store(file_url) as store:
        store.start(CAMPAIGN, [DeviceFacts(name="local", platform="linux")], [ARTIFACT])
        store.add_run(run_record())
        for read in READS.values():
            assert read(store)
    return file_url


@pytest.mark.parametrize("name", DAMAGES)
def test_a_row_that_is_not_as_it_was_stored_is_named(name: str, filled: str) -> None:
    table, change = DAMAGES[name]
    with changing(filled) as connection:
        assert connection.exec_driver_sql(change).rowcount == 1
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
