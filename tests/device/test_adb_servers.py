"""Several adb servers, of other versions, gone, or no such thing at all; and never the developer's own."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from device_runner.adb import device as adb_device
from device_runner.adb.device import AdbDevice, Tools, list_devices, open_adb
from device_runner.adb.link import Link, NoServer, server_at
from device_runner.adb.server import list_serials
from device_runner.device import open_device
from device_runner.errors import UnavailableError
from device_runner.result import Status
from device_runner.spec import RunSpec, encode
from pipeline.core.errors import MissingError as NoDeviceError
from pipeline.job.bench import found, opened
from tests.debian_packages import unpacked
from tests.device.adb_farm import PHONE_PROPERTIES, Farm, Phone, farm_in, free_port
from tests.device.fault_proxy import FaultProxy, Hit

ROOT = Path(__file__).resolve().parents[2]


def quick(models: Path) -> RunSpec:
    return RunSpec(id="quick", model=str(models / "null.onnx"), min_runs=3, min_seconds=1e-9)


@pytest.fixture
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A second server, of Debian's version of adb."""
    tree = unpacked("adb")
    libraries = tree / "usr/lib/x86_64-linux-gnu"
    adb = [
        str(libraries / "ld-linux-x86-64.so.2"), "--library-path", f"{libraries}:{libraries}/android",
        str(tree / "usr/lib/android-sdk/platform-tools/adb"),
    ]  # fmt: skip
    with farm_in(tmp_path_factory.mktemp("other"), adb) as farm:
        yield farm


@pytest.fixture
def here(tmp_path: Path, tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices that are opened by name have a folder and the tools of this test: all phones are this computer."""
    root = f"{tmp_path}/device"
    usual = AdbDevice.__init__.__kwdefaults__ or {}
    monkeypatch.setattr(AdbDevice.__init__, "__kwdefaults__", {**usual, "root": root, "tools": tools})
    monkeypatch.setattr(adb_device, "REMOTE_ROOT", root)


@pytest.mark.usefixtures("here")
def test_servers_of_two_versions_live_side_by_side(farm: Farm, other: Farm, models: Path) -> None:
    one, two = farm.phone(), other.phone(PHONE_PROPERTIES)
    versions = {line for f in (farm, other) for line in f.adb("version").splitlines() if line.startswith("Version")}
    assert len(versions) == 2
    names = [f"adb:{one.serial}@127.0.0.1:{farm.port}", f"adb:model=phone*@127.0.0.1:{other.port}"]
    with opened(names) as ready:
        assert list(ready.devices) == [names[0], f"adb:{two.serial}@127.0.0.1:{other.port}"]
        for device in ready.devices.values():
            assert device.run(quick(models)).status is Status.OK
            assert device.run(quick(models)).device == device.name
    assert farm.server.poll() is None
    assert other.server.poll() is None


@pytest.mark.usefixtures("here")
def test_what_cannot_be_used_costs_only_itself(farm: Farm, phone: Phone, models: Path) -> None:
    """A server that is not there, one of something else, a serial that nobody has, a device that talks nonsense."""
    mad = farm.phone(PHONE_PROPERTIES)
    mad.write("bin/getprop", "#!/bin/sh\nhead -c 3000 /dev/urandom\n")
    here = f"127.0.0.1:{farm.port}"
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        threading.Thread(target=_talk_http, args=(stranger,), daemon=True).start()
        strange = f"127.0.0.1:{stranger.getsockname()[1]}"
        names = [
            f"adb:*@{strange}", f"adb:X@{strange}", f"adb:nobody@{here}", f"adb:{mad.serial}@{here}",
            f"adb:{phone.serial}@{here}", f"adb:127.0.0.1:{free_port()}@{here}",
        ]  # fmt: skip
        with opened(names) as ready:
            assert list(ready.devices) == [f"adb:{phone.serial}@{here}"]
            assert ready.devices[f"adb:{phone.serial}@{here}"].run(quick(models)).status is Status.OK
        reasons = {skipped.device: skipped.text for skipped in ready.unusable}
        with pytest.raises(NoServer, match="does not answer as one"):
            list_serials(server_at(strange))
    assert set(reasons) == set(names) - {f"adb:{phone.serial}@{here}"}
    assert "ANDROID_ADB_SERVER_PORT" in reasons[f"adb:X@{strange}"]
    assert "the adb server knows" in reasons[f"adb:nobody@{here}"]
    assert "nonsense" in reasons[f"adb:{mad.serial}@{here}"]
    assert "Connection refused" in reasons[names[-1]]


def _talk_http(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.recv(100)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_selectors_of_servers_that_are_not_there_are_told(farm: Farm, phone: Phone) -> None:
    port = free_port()
    names, silent = found([f"adb:*@localhost:{farm.port}", "local", f"adb:*@203.0.113.9.invalid:{port}", "local"])
    assert f"adb:{phone.serial}@localhost:{farm.port}" in names
    assert names[-1] == "local"
    (skipped,) = silent
    assert "no adb server" in skipped.text


@pytest.mark.usefixtures("here")
def test_a_phone_on_the_network_is_joined_again(tmp_path_factory: pytest.TempPathFactory, models: Path) -> None:
    """When it is opened, and in a campaign: whether the server forgot it, was started anew, or the phone was."""
    with farm_in(tmp_path_factory.mktemp("farm")) as farm:
        phone = farm.phone()
        name = f"adb:{phone.serial}@127.0.0.1:{farm.port}"
        farm.adb("disconnect", phone.serial)
        with open_device(name) as device:
            assert device.run(quick(models)).status is Status.OK
            farm.stop_server()
            farm.start_server()
            assert device.run(quick(models)).status is Status.FAILED
            assert device.run(quick(models)).status is Status.OK
            phone.stop()
            assert device.run(quick(models)).status is Status.FAILED
            phone.start()
            assert device.run(quick(models)).status is Status.OK
        phone.stop()
        with pytest.raises(UnavailableError, match=r"refused|not ready"):
            open_device(name)


@pytest.mark.usefixtures("here")
def test_a_connection_that_hangs_is_made_anew(farm: Farm, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a broken packet both ends may wait for each other, and the server still calls the device ready."""
    made: list[FaultProxy] = []

    def before(phone: Phone) -> str:
        made.append(FaultProxy(phone.port))
        return f"127.0.0.1:{made[0].port}"

    phone = farm.phone(before=before)
    usual = Link.shell

    def hurried(
        self: Link, arguments: Sequence[str], *, stdin: bytes = b"", seconds: float = 30.0
    ) -> "subprocess.CompletedProcess[bytes]":
        return usual(self, arguments, stdin=stdin, seconds=min(seconds, 10.0))

    monkeypatch.setattr(Link, "shell", hurried)
    made[0].once("up", Hit("stall", 0, seconds=600.0))
    with open_device(f"adb:{phone.serial}@127.0.0.1:{farm.port}") as device:
        assert made[0].hits["stall"] == 1
        monkeypatch.setattr(Link, "shell", usual)
        assert device.run(quick(models)).status is Status.OK
    made[0].close()


def device_runner(spec: Path, device: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "device_runner", str(spec), "--device", device], cwd=ROOT, capture_output=True,
        text=True, check=False, timeout=600, env={**os.environ, **environment},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("device", "environment", "said"),
    [
        ("adb:X", {"ADBUTILS_ADB_PATH": "/nowhere/adb"}, "adb start-server"),
        ("adb:X", {"ADBUTILS_ADB_PATH": "/bin/false"}, "no adb server"),
        ("adb:X@nowhere.invalid:5038", {}, "no adb server"),
        ("adb:X@127.0.0.1:port", {}, "not a port of an adb server"),
    ],
)
def test_no_adb_is_one_clear_error(
    models: Path, tmp_path: Path, device: str, environment: dict[str, str], said: str
) -> None:
    (tmp_path / "spec.json").write_bytes(encode(quick(models)))
    done = device_runner(tmp_path / "spec.json", device, ANDROID_ADB_SERVER_PORT=str(free_port()), **environment)
    assert done.returncode in (2, 3)
    assert said in done.stderr
    assert "remedy: " in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_no_device_at_all_is_one_clear_error(farm: Farm) -> None:
    with pytest.raises(NoDeviceError, match="no device is ready") as caught, opened([f"adb:no*@127.0.0.1:{farm.port}"]):
        pass
    assert "ort-mobile devices" in caught.value.remedy


@pytest.mark.parametrize(
    "serial", ["x; reboot", "$(id)", "-s", "new\nline", "a b", "host:kill", "x" * 70_000, "é\t", "\udcff", ""]
)
def test_hostile_serials_are_only_serials(farm: Farm, phone: Phone, serial: str) -> None:
    if not serial:  # of one device alone, the server takes no serial for that one's
        farm.phone()
    with pytest.raises(UnavailableError, match="no device"):
        open_adb(f"{serial}@127.0.0.1:{farm.port}")
    link = Link(server_at(f"127.0.0.1:{farm.port}"), serial)
    with pytest.raises(Exception, match=r"not found|too long|no devices|more than one|unknown host service"):
        link.shell(["true"])
    assert farm.server.poll() is None
    assert (phone.serial, "device") in list_serials(server_at(f"127.0.0.1:{farm.port}"))


def test_hostile_words_of_a_phone_are_only_words(farm: Farm, tmp_path: Path) -> None:
    """What a phone says of itself is shown on one line and runs nothing."""
    evil = f"Phone $(touch {tmp_path}/was-here) `id`; [red]x[/] \x1b[2J\n-rf"
    made = farm.phone({**PHONE_PROPERTIES, "ro.product.model": evil, "ro.product.cpu.abilist": "x86_64,$(id),;,-rf"})
    (facts,) = list_devices(f"{made.serial}@127.0.0.1:{farm.port}")
    assert facts.model.isprintable()
    assert facts.abis == ("x86_64", "-rf")
    assert not (tmp_path / "was-here").exists()


def test_the_usual_port_is_watched(usual_port: list[str] | None) -> None:
    """And at the end of the device tests: no developer's server was asked or started."""
    if usual_port is None:
        pytest.skip("something listens on port 5037 already: it is left alone, and what connects to it is not seen")
    assert usual_port == []
