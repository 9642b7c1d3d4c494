"""`--wait`: a device that another process has is waited for, by the real lease; who has it is said."""

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from device_runner import device
from device_runner.device import Waiting, no_waiting, take_lease
from device_runner.errors import RunnerError
from pipeline.campaign.record import Skipped
from pipeline.core.errors import MissingError
from pipeline.job.bench import opened, opened_alone, require_devices
from tests.scripted_devices import ScriptedDevice
from tests.signals import PYTHON_THAT_HEARS

ROOT = Path(__file__).resolve().parents[2]
HOLDER = """
import sys
from device_runner.device import take_lease
lease = take_lease(sys.argv[1], "it")
print("held", flush=True)
sys.stdin.read()
"""
WAITER = """
import sys
from device_runner import device
from pipeline.job.bench import opened, require_devices
device.OPENERS["leased"] = "tests.job.test_wait:open_leased"
try:
    with opened(["leased:phone"], 600):
        print("opened")
except KeyboardInterrupt:
    print("interrupted")
"""


class LeasedDevice(ScriptedDevice):
    """A scripted device with the lease that phones have."""

    def __init__(self, name: str, waiting: Waiting) -> None:
        super().__init__(name)
        self._lease = take_lease(name, name, waiting)

    def close(self) -> None:
        self._lease.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def open_leased(rest: str, waiting: Waiting = no_waiting) -> LeasedDevice:
    return LeasedDevice(f"leased:{rest}", waiting)


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(device.OPENERS, "leased", "tests.job.test_wait:open_leased")


@contextmanager
def held(name: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the device until its standard input ends."""
    command = [sys.executable, "-c", HOLDER, name]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdin
        assert process.stdout.readline() == "held\n"
        yield process
        process.stdin.close()


def test_a_device_is_waited_for_until_the_other_process_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with held("leased:phone") as process:
        assert process.stdin
        threading.Timer(0.2, process.stdin.close).start()
        with opened(["leased:phone"], 60) as ready:
            assert list(ready.devices) == ["leased:phone"]
        (line,) = caplog.messages
        assert line == f"leased:phone: waits at most 60 s: process {process.pid} of this computer runs on it"
        assert process.wait() == 0


@pytest.mark.parametrize("seconds", [0.0, 0.1])
def test_the_wait_ends_and_the_other_devices_go_on(seconds: float) -> None:
    with held("leased:phone") as process:
        with opened(["leased:phone", "leased:other"], seconds) as ready:
            assert list(ready.devices) == ["leased:other"]
            (left,) = ready.unusable
        assert "is in use" in left.text
        assert f"process {process.pid}" in left.text
        assert "--wait SECONDS" in left.text
        with pytest.raises(MissingError, match="no device is ready"), opened(["leased:phone"], seconds):
            pass


@pytest.mark.parametrize("ready", [True, False])
def test_of_many_devices_that_a_selector_means_a_few_are_named(monkeypatch: pytest.MonkeyPatch, ready: bool) -> None:
    names = [f"adb:phone{number}" for number in range(2000)]
    silent = [Skipped(device=name, what=f"{name} does not answer") for name in names]
    monkeypatch.setattr("pipeline.job.bench.found", lambda *_, **__: (names, []) if ready else ([], silent))
    with pytest.raises(RunnerError) as caught, opened_alone("adb:*", 0, None):
        pass
    assert caught.value.why.endswith("and 1,995 more")
    assert len(caught.value.text) < 500


@pytest.mark.usefixtures("no_adb")
def test_of_many_devices_that_are_not_there_a_few_are_named() -> None:
    names = [f"adb:none{number}@127.0.0.1:1" for number in range(200)]
    with pytest.raises(MissingError, match="no device is ready") as caught, opened(names):
        pass
    assert len(caught.value.text) < 3_000
    assert "adb:none0@127.0.0.1:1" in caught.value.why
    assert caught.value.why.endswith("and 195 more")
    with pytest.raises(MissingError) as caught, opened(names[:2]):
        pass
    assert "more" not in caught.value.where


@pytest.mark.usefixtures("no_adb")
def test_a_device_in_use_is_there_only_for_a_job_that_will_wait_for_it() -> None:
    with held("leased:phone"):
        require_devices(["leased:phone"], None, 60)
        with pytest.raises(MissingError, match="no device is ready") as caught:
            require_devices(["leased:phone"], None, 0)
        assert "--wait SECONDS" in caught.value.why
    with pytest.raises(MissingError, match="no device is ready"):
        require_devices(["adb:none@127.0.0.1:1"], None, 60)
    require_devices(["leased:phone", "adb:none@127.0.0.1:1"], None, 0)
    take_lease("leased:phone", "it").close()


@pytest.mark.long
def test_ctrl_c_ends_the_wait_at_once_and_leaves_no_lease() -> None:
    with held("leased:phone") as process:
        command = [*PYTHON_THAT_HEARS, "-c", WAITER]
        waiter = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert waiter.stderr
        assert f"process {process.pid}" in waiter.stderr.readline()
        waiter.send_signal(signal.SIGINT)
        assert waiter.communicate(timeout=300)[0] == "interrupted\n"
    take_lease("leased:phone", "it").close()
