"""Agents of two neighbouring releases in one lab: the earlier goes on while it is upgraded, and both end campaigns.

The earlier release is the real one: its tree, as it was before the migration that came next, in a process of its own.
"""

import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.campaign.store import Store, open_reading, open_store
from pipeline.core.errors import ConfigError, PipelineError
from pipeline.core.files import REVISION
from pipeline.features.lab import campaigns
from pipeline.features.lab.content import keep_files
from pipeline.features.lab.queue import DONE, WAITING, LabSession, jobs_of, submit_jobs
from tests.campaign.store.samples import SECOND, add_second_migration
from tests.command import ROOT
from tests.features.lab.farm import (
    SECONDS,
    agent,
    all_in,
    check_stored,
    entered,
    golden_stored,
    rigs,
    silent,
    submitted,
    until,
)
from tests.features.lab.test_attacks import with_roles
from tests.features.lab.test_logins import add
from tests.postgres import PostgresServer

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")

pytestmark = pytest.mark.postgresql

VERSIONS = "pipeline/campaign/store/migrations/versions"


def git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout


def release_before(migration: str, folder: Path) -> Path:
    """The project as it was before a migration was added; skips where the history is not there."""
    try:
        commits = git("log", "--diff-filter=A", "--format=%H", "--", f"{VERSIONS}/{migration}.py").decode().split()
        archive = git("archive", f"{commits[-1]}^", "pipeline", "device_runner", "tests", "build_configs")
    except (OSError, IndexError, subprocess.CalledProcessError):
        pytest.skip("the history of this repository is not here")
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(folder, filter="data")
    return folder


def run_in(tree: Path, code: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tree, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@contextmanager
def agent_of(tree: Path, url: str, host: str, devices: str, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """An agent of a release in a process of its own; what it says is in `HOST.log`."""
    with (folder / f"{host}.log").open("wb") as out:
        words = [url, host, devices, str(folder / f"{host}.pid")]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.features.lab.agent_process", *words], cwd=tree, stderr=out
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(600)


SUBMIT = """
import sys
from pathlib import Path
from pipeline.campaign.store import open_store
from pipeline.core.files import REVISION
from tests.features.lab.farm import rigs, submitted
with open_store(sys.argv[1]) as store:
    submitted(store, Path(sys.argv[2]), rigs(4), 15)
print(REVISION)
"""


@pytest.mark.parametrize(("migration", "schema"), [("v0003_turns", "v0002"), ("v0004_health", "v0003")])
def test_a_lab_is_upgraded_with_agents_at_work(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, migration: str, schema: str
) -> None:
    tree, url = release_before(migration, tmp_path / "before"), server.database()
    assert run_in(tree, SUBMIT, url, str(tmp_path)) == schema
    roles = tree / "build_configs/lab/roles.sql"
    subprocess.run(["psql", "-q", url, "-f", str(roles)], capture_output=True, check=True)
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("DROP ROLE IF EXISTS farm_host; CREATE ROLE farm_host LOGIN IN ROLE ort_mobile_agent")
    monkeypatch.setenv(SECONDS, "0.1")
    names = rigs(4)
    login = url.replace("tester@", "farm_host@")
    with agent_of(tree, login, "old", "2", tmp_path):
        with psycopg.connect(url, autocommit=True) as looking:
            count = "SELECT count(*) FROM runs"
            until(lambda: looking.execute(count).fetchone()[0] >= 4)
        with open_store(url) as store:  # the upgrade; roles.sql is run later
            before = len(store.finished("c1"))
            until(lambda: len(store.finished("c1")) >= before + 6)
            with_roles(url, "any_other", "ort_mobile_agent")
            # rigs run no probe: how the programs that measure are compared is another test's
            there, ours = store.campaign("c1").job().versions, campaigns.lab_versions
            monkeypatch.setattr(campaigns, "lab_versions", lambda: there)
            with agent(login, "new", names):
                until(all_in(store, DONE))
                campaign = store.campaign("c1")
                check_stored(store, campaign, 15)
                assert {run.result.host for run in store.runs("c1")} == {"old", "new"}
                monkeypatch.setattr(campaigns, "lab_versions", ours)
                # what needs a later agent is not handed to the earlier one, which has two of the devices, too
                late = entered(store, names, 2, "c2")
                hand_over(store, tmp_path, "c2", names)
                until(all_in(store, DONE))
            check_stored(store, late, 2)
            assert {run.result.host for run in store.runs("c2")} == {"new"}
            (versions,) = store.read(
                lambda connection: connection.exec_driver_sql("SELECT schema FROM lab_hosts WHERE name = 'old'").all()
            )
            assert versions.schema == "v0002", "a host that began before the upgrade counts as the earliest"
    said = run_in(tree, OPEN, url)
    assert f"the database has the schema {REVISION}, which this release of ort-mobile does not know" in said
    assert "update ort-mobile" in said


def hand_over(store: Store, folder: Path, name: str, names: tuple[str, ...]) -> None:
    """Submit an entered campaign that only agents of this release measure."""
    (folder / "m.ort").write_bytes(b"what an artifact would be" * 100_000)
    kept = keep_files(store, {"artifacts/m.ort": folder / "m.ort"})
    allowed = campaigns.most_runs(store.campaign(name).job(), names)
    submit_jobs(store, name, allowed, kept, needs=REVISION)


OPEN = """
import sys
from pipeline.campaign.store import open_store
from pipeline.core.errors import PipelineError
try:
    open_store(sys.argv[1])
except PipelineError as error:
    print(error.text)
"""


def later(server: PostgresServer, folder: Path, serves: str) -> str:
    """The URL of a database of a later release, which says that agents of these schemas go on."""
    url = server.database()
    with pytest.MonkeyPatch.context() as patch:
        add_second_migration(patch, folder)
        open_store(url).close()
    with psycopg.connect(url, autocommit=True) as owner:
        if serves:
            body = f"SELECT ARRAY[{serves}]"
            owner.execute(f"CREATE OR REPLACE FUNCTION lab_serves() RETURNS text[] LANGUAGE sql AS $${body}$$")
    return url


def test_a_later_lab_that_serves_this_release_is_used(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by an agent that begins after the upgrade, in its own process, and by who only reads."""
    url, names = later(server, tmp_path, f"'{REVISION}', '{SECOND}'"), rigs(2)
    monkeypatch.setenv(SECONDS, "0.01")
    with open_store(url) as store:
        campaign = submitted(store, tmp_path, names, 2)
        login = with_roles(url, "present_host", "ort_mobile_agent")
        with agent_of(ROOT, login, "h1", "2", tmp_path):
            until(all_in(store, DONE))
        check_stored(store, campaign, 2)
    open_reading(with_roles(url, "present_reader", "ort_mobile_reader")).close()


@pytest.mark.parametrize("serves", ["", f"'{SECOND}'", f"'{REVISION}'"], ids=["as it was", "itself", "this alone"])
def test_a_later_lab_that_does_not_is_one_error(server: PostgresServer, tmp_path: Path, serves: str) -> None:
    """Also where its migration said nothing of earlier agents."""
    url = later(server, tmp_path, serves)
    for login in (url, with_roles(url, "any_agent", "ort_mobile_agent")):
        with pytest.raises(PipelineError, match=f"the database has the schema {SECOND}, which this release") as said:
            open_store(login)
        assert "update ort-mobile" in said.value.remedy
    with pytest.raises(PipelineError, match=f"the database has the schema {SECOND}"):
        open_reading(url)


def test_a_login_without_a_role_is_one_error(url: str, store: Store) -> None:
    with_roles(url, "any_reader", "ort_mobile_reader")
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("DROP ROLE IF EXISTS roleless; CREATE ROLE roleless LOGIN")
    with pytest.raises(ConfigError, match="the database's user may not do this") as said:
        open_store(url.replace("tester@", "roleless@"))
    assert "use a user with the role for it" in said.value.remedy


def test_an_earlier_agent_chooses_nothing_of_results_in_doubt(url: str, store: Store, tmp_path: Path) -> None:
    """It does not know the mark; a device in quarantine it does not get."""
    submitted(store, tmp_path, rigs(2), 1)
    golden_stored(store, tmp_path / "golden")
    session = LabSession(store.engine, "h0", "k")
    session.sign_of_life("{}", "", {name: f'{{"name":"{name}","platform":"linux"}}' for name in rigs(2)})
    assert session.next_job("rig:0", ()) == "c1"
    assert add(store, "rig:0/m", "rig:0", "h0")
    session.call("lab_quarantine", "rig:0", "it drifts")
    assert session.next_job("rig:0", ()) == ""
    assert [job.state for job in jobs_of(store)] == ["failed", WAITING]
    assert session.take("campaign c1")
    session.close()
    silent(store, "h0")
    with psycopg.connect(url, autocommit=True) as old:
        until(lambda: old.execute("SELECT NOT lab_alive(seen) FROM lab_hosts WHERE name = 'h0'").fetchone() == (True,))
        assert old.execute("SELECT lab_begin('old', 'k', 'v0002')").fetchone() == (True,)
        devices = '{"name":"rig:0"}'.replace('"', '\\"')
        old.execute(f"SELECT lab_live('old', 'k', '{{}}', '', '{{rig:0}}', '{{\"{devices}\"}}')")
        for name in ("rig:0", "campaign c1"):
            assert old.execute(f"SELECT lab_take('old', 'k', '{name}')").fetchone() == (False,)
