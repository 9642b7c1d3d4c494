"""Agents of a lab on a real PostgreSQL: what is submitted is measured once, whatever happens to agents and server."""

import json
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import pytest

from device_runner import device
from device_runner.adb import device as adb_device
from device_runner.build import build_library
from device_runner.device import DeviceFacts, identity
from device_runner.local import machine_abi
from device_runner.plugins import installed_plugin
from device_runner.result import Failure, host_name
from pipeline.campaign.store import Store, StoreError, open_store
from pipeline.core.errors import ConfigError, MissingError
from pipeline.features.lab.campaigns import chosen_devices, lab_versions
from pipeline.features.lab.content import fetch_file, keep_files
from pipeline.features.lab.queue import (
    CANCELLED,
    DONE,
    FAILED,
    WAITING,
    LabSession,
    SessionLost,
    attached_devices,
    cancel_jobs,
    jobs_of,
    lab_hosts,
)
from pipeline.features.lab.status import lab_status, status_lines
from pipeline.features.lab.tables import blobs
from pipeline.partition import shown, stand_in
from tests.command import ort_mobile
from tests.custom_ops.samples import library as custom_operator_library
from tests.custom_ops.samples import model as custom_operator_model
from tests.device.adb_farm import farm_in
from tests.device.farm_cli import use_folders
from tests.device.npu import plugin_files
from tests.device.test_campaign_over_adb import EXAMPLE
from tests.features.lab.farm import (
    JOURNAL,
    SCHEME,
    agent,
    all_in,
    check_stored,
    end_session,
    host_session,
    rigs,
    shared_identity,
    silent,
    submitted,
    until,
)
from tests.postgres import PostgresServer

pytestmark = pytest.mark.postgresql


def test_two_hosts_and_what_happens_to_them(
    server: PostgresServer, url: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart of the database, a session that is ended, and an agent that stops, in one campaign."""
    monkeypatch.setenv(JOURNAL, str(tmp_path / "journal"))
    names, rounds = rigs(4), 12
    campaign = submitted(store, tmp_path, names, rounds)
    with agent(url, "h1", names) as first, agent(url, "h2", names):
        until(lambda: len(store.finished(campaign.id)) >= 10)
        server.restart(0.3)
        until(lambda: len(store.finished(campaign.id)) >= 30)
        with store.engine.begin() as connection:
            connection.execute(end_session("h2"))
        until(lambda: len(store.finished(campaign.id)) >= 50)
        first.set()
        until(all_in(store, DONE))
    check_stored(store, campaign, rounds)
    begun = len((tmp_path / "journal").read_text().splitlines())
    stored = len(names) * 2 * rounds
    assert stored <= begun <= stored + 3 * len(names), "each event costs a device at most the run that it is in"


def test_cancelled_campaign_ends_and_keeps_what_was_measured(url: str, store: Store, tmp_path: Path) -> None:
    names = rigs(2)
    campaign = submitted(store, tmp_path, names, 1000)
    with agent(url, "h1", names):
        until(lambda: len(store.finished(campaign.id)) >= 4)
        assert cancel_jobs(store, campaign.id) == 2
        until(lambda: not lab_hosts(store)[0]["leases"])  # each device ends the run that it is in
        kept = len(store.runs(campaign.id))
        time.sleep(0.5)
        assert len(store.runs(campaign.id)) == kept
    assert all_in(store, CANCELLED)()


CUSTOM = """
name = "twice"
custom_ops = ["libtwice.so"]
devices = ["local"]
models = [{ path = "twice.onnx" }]
targets = [{ name = "linux", platform = "linux" }]
variants = { levels = ["basic"], styles = ["fixed"] }
measure = { rounds = 1, min_runs = 2, min_seconds = 0.001 }
"""


@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
def test_custom_operators_come_with_the_campaign(url: str, store: Store, tmp_path: Path) -> None:
    here = tmp_path / "submitter"
    here.mkdir()
    custom_operator_model(here / "twice.onnx")
    shutil.copy(custom_operator_library(), here / "libtwice.so")
    (here / "twice.toml").write_text(CUSTOM)
    with agent(url, host_name(), ("local",)):
        until(lambda: bool(attached_devices(store)))
        ort_mobile("lab", "submit", "twice.toml", "--database", url, cwd=here, process=True)
        shutil.rmtree(here)
        until(all_in(store, DONE, FAILED))
        assert [(job.state, job.reason) for job in jobs_of(store)] == [(DONE, "")]
    ort_mobile("lab", "close", "--database", url, "--output", tmp_path / "out")
    document = json.loads((tmp_path / "out/results.json").read_text("utf-8"))
    assert {row["status"] for row in document["rows"]} == {"ok"}
    library = tmp_path / f"out/bundle/custom_ops/linux/{machine_abi()}/libtwice.so"
    assert library.read_bytes() == custom_operator_library().read_bytes()


NPU = """
name = "npu"
devices = ["adb:*"]
models = [{{ path = "{example}/mnist.onnx", test_data = "{example}" }}]
targets = [{{ name = "linux", platform = "linux" }}]
variants = {{ levels = ["basic"], styles = ["fixed"] }}
runs = [{{ provider = "{provider}", options = {options} }}]
measure = {{ rounds = 1, min_runs = 2, min_seconds = 0.001, plugins = {{ {provider} = {plugin} }} }}
"""


def claims_plugin(folder: Path) -> list[str]:
    """The plugin that claims what a list says, which no run here has, and a file that it brings along."""
    library = build_library(Path(shown.__file__).with_name("plugin"), stand_in.LIBRARY)
    (folder / "beside.so").write_bytes(library.read_bytes())
    return [str(library), str(folder / "beside.so")]


def npu_plugin(_folder: Path) -> list[str]:
    """Qualcomm's: 250 MB."""
    plugin = installed_plugin("qnn")
    if isinstance(plugin, Failure):
        pytest.skip("the package onnxruntime-qnn is not installed")
    return plugin_files(plugin, compiles=True)


@pytest.mark.device
@pytest.mark.parametrize(
    ("provider", "options", "plugin", "failure"),
    [
        (stand_in.CLAIMS_PROVIDER, "{}", claims_plugin, f"'{stand_in.CLAIMS}' was not found"),
        pytest.param(
            "qnn", '{ soc_model = "57", htp_arch = "75" }', npu_plugin, "",
            marks=(pytest.mark.npu, pytest.mark.nightly),
        ),
    ],
)  # fmt: skip
def test_a_plugin_comes_with_the_campaign_and_reaches_a_phone(
    url: str, store: Store, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch,
    provider: str, options: str, plugin: Callable[[Path], list[str]], failure: str,
) -> None:  # fmt: skip
    """The submitter has it elsewhere than the host, whose phone gets all of its files in one folder and loads it."""
    here = tmp_path / "submitter"
    here.mkdir()
    files = [shutil.copy(file, here) for file in plugin(tmp_path)]
    names = json.dumps([Path(file).name for file in files])
    (here / "npu.toml").write_text(NPU.format(example=EXAMPLE, provider=provider, options=options, plugin=names))
    monkeypatch.setattr(adb_device, "AdbDevice", adb_device.AdbDevice)
    with farm_in(tmp_path_factory.mktemp("farm")) as farm:
        phone = farm.phone()
        use_folders({phone.serial: phone.root})
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(farm.port))
        with agent(url, host_name(), ("adb:*",)):
            until(lambda: bool(attached_devices(store)))
            ort_mobile("lab", "submit", "npu.toml", "--database", url, cwd=here, process=True)
            shutil.rmtree(here)
            until(all_in(store, DONE, FAILED))
    assert [(job.state, job.reason) for job in jobs_of(store)] == [(DONE, "")]
    (run,) = store.runs(jobs_of(store)[0].campaign_id)
    assert failure in (run.result.failure.what if run.result.failure else "")
    assert bool(run.result.failure) == bool(failure)
    assert run.result.device == f"adb:{phone.serial}@{host_name()}"
    assert run.spec.plugin
    assert [Path(file).name for file in run.spec.plugin.files] == [Path(file).name for file in files[1:]]


def test_host_of_another_version_is_refused_and_says_why(
    url: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = rigs(1)
    campaign = submitted(store, tmp_path, names, 1)
    other = {**lab_versions(), "onnxruntime": "1.0.0"}
    monkeypatch.setattr("pipeline.features.lab.campaigns.lab_versions", lambda: other)
    with agent(url, "old", names):
        until(lambda: bool(jobs_of(store)[0].reason))
        until(lambda: "refused" in str(lab_hosts(store)))
    assert jobs_of(store)[0].state == WAITING
    assert "onnxruntime 1.0.0, the campaign" in jobs_of(store)[0].reason
    assert "is refused" in "\n".join(status_lines(lab_status(url)))
    monkeypatch.undo()
    monkeypatch.setitem(device.OPENERS, SCHEME, "tests.features.lab.farm:open_rig")
    monkeypatch.setattr("device_runner.device.identity", shared_identity)
    with agent(url, "new", names):
        until(all_in(store, DONE))
    check_stored(store, campaign, 1)


def test_device_that_cannot_be_used_fails_with_its_reason_and_costs_no_other(
    url: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a disk that is full on one host: its cache cannot be written."""
    monkeypatch.setenv("ORT_MOBILE_CACHE", "/dev/null/cache")
    names = rigs(2)
    submitted(store, tmp_path, names, 1)
    with agent(url, "full", names):
        until(all_in(store, FAILED))
    assert all("full: " in job.reason and job.attempts == 3 for job in jobs_of(store))


@pytest.mark.parametrize("hours", [-1, 1])
def test_host_whose_clock_is_off_keeps_its_leases(
    url: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """Leases and signs of life go by the database's clock, the times of runs by the host's own."""

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Shifted":
            return super().now(tz) + timedelta(hours=hours)

    clock = time.time
    monkeypatch.setattr("device_runner.result.datetime", Shifted)
    monkeypatch.setattr(time, "time", lambda: clock() + 3600 * hours)
    names, rounds = rigs(1), 30
    campaign = submitted(store, tmp_path, names, rounds)
    with agent(url, "h1", names):
        until(lambda: len(store.finished(campaign.id)) >= 2)
        while not all_in(store, DONE)():
            assert lab_hosts(store)[0]["silent_seconds"] < 1800  # half of what the clock is wrong by
            time.sleep(0.1)
        assert {host["name"]: host["state"] for host in lab_status(url)["hosts"]}["h1"] == "working"
    check_stored(store, campaign, rounds)
    begun = [datetime.fromisoformat(run.result.started_at) for run in store.runs(campaign.id)]
    assert all(abs((moment - datetime.now(UTC)).total_seconds() / 3600 - hours) < 0.5 for moment in begun)


def test_silent_host_loses_its_devices_to_others_alone(store: Store) -> None:
    """A stopped process holds its connection; only others can see that it gives no sign of life."""
    stopped, other = host_session(store, "stopped", ["phone"]), host_session(store, "other", ["phone"])
    assert stopped.take("phone")
    assert not other.take("phone")
    silent(store, "stopped")
    until(lambda: other.take("phone"))
    with pytest.raises(SessionLost, match="no lease of phone any more"):
        stopped.state_of("c", "phone")
    assert other.state_of("c", "phone") == ""
    silent(store, "other")
    assert other.take("phone"), "nobody else took it"
    stopped.close()
    other.close()


def test_lab_needs_postgresql(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path / 'x.sqlite'}") as found, pytest.raises(ConfigError, match="PostgreSQL"):
        LabSession(found.engine, "h", "k")


def test_file_whose_parts_were_changed_is_refused(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "m.ort"
    path.write_bytes(bytes(3 << 20))
    (kept,) = keep_files(store, {"artifacts/m.ort": path})
    fetch_file(store, kept, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == path.read_bytes()
    store.write(lambda connection: connection.execute(blobs.update().values(content=b"x")))
    with pytest.raises(StoreError, match="not as it was submitted"):
        fetch_file(store, kept, tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        (DeviceFacts(name="local", platform="linux", host="h1"), "local@h1"),
        (DeviceFacts(name="adb:emulator-5554", platform="android", host="h1", serial="EMU"), "adb:emulator-5554@h1"),
        (DeviceFacts(name="adb:R58M1@10.0.0.5:5037", platform="android", host="h1"), "adb:R58M1"),
        (DeviceFacts(name="adb:10.0.0.7:5555", platform="android", host="h1", serial="R58M1"), "adb:R58M1"),
        (DeviceFacts(name="adb:127.0.0.1:5555", platform="android", host="h1"), "adb:127.0.0.1:5555@h1"),
        (DeviceFacts(name="android-host:1.29.0", platform="linux", host="h2"), "android-host:1.29.0@h2"),
    ],
)
def test_names_among_all_hosts(facts: DeviceFacts, name: str) -> None:
    assert identity(facts) == name


def test_config_means_devices_of_the_lab() -> None:
    facts = {
        name: DeviceFacts(name=name, platform="android", model=model)
        for name, model in (("adb:A", "Pixel 8"), ("adb:B", "SM-S918B"), ("local@h1", ""), ("local@h2", ""))
    }
    assert list(chosen_devices(["adb:*"], facts)) == ["adb:A", "adb:B"]
    assert list(chosen_devices(["adb:model=Pixel*"], facts)) == ["adb:A"]
    assert list(chosen_devices(["local"], facts)) == ["local@h1", "local@h2"]
    assert list(chosen_devices(["local@h2", "adb:B"], facts)) == ["adb:B", "local@h2"]
    with pytest.raises(MissingError, match="no host of the lab"):
        chosen_devices(["adb:C"], facts)
