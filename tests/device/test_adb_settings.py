"""What runs change on a phone is again as it was: after the campaign, after a kill, and after a lost connection."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from device_runner.adb.device import AdbDevice, Tools
from device_runner.adb.link import Link, server_at
from device_runner.result import RunResult, Status
from device_runner.spec import RunSpec
from tests.configs import BASIC, EVERY
from tests.device.adb_farm import PHONE_PROPERTIES, Farm, Open, Phone
from tests.signals import PYTHON_THAT_HEARS

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "build_configs" / "examples" / "mnist" / "mnist.onnx"
COMMANDS = {
    "cmd": '[ -e "$PHONE/no-fixed" ] && { echo "Failed to set FIXED_PERFORMANCE mode" >&2; exit 255; }\n'
    '[ "$1" = power ] && echo "$3" > "$PHONE/fixed"\n',
    "settings": 'if [ "$1" = get ]; then cat "$PHONE/stay-on"; else echo "$4" > "$PHONE/stay-on"; fi\n',
    "svc": 'echo 7 > "$PHONE/stay-on"\n',
    "input": 'echo "$2" > "$PHONE/key"\n',
}


@pytest.fixture
def phone(farm: Farm) -> Phone:
    """A phone whose settings are files."""
    made = farm.phone(PHONE_PROPERTIES)
    for name, text in COMMANDS.items():
        made.write(f"bin/{name}", f"#!/bin/sh\n{text}").chmod(0o755)
    made.write("fixed", "false\n")
    made.write("stay-on", "3\n")
    return made


def settings_of(phone: Phone) -> tuple[str, str]:
    return (phone.folder / "fixed").read_text().strip(), (phone.folder / "stay-on").read_text().strip()


def notes(phone: Phone) -> list[Path]:
    return list(Path(phone.root).glob("changed-*"))


def test_settings_are_held_and_restored(opened: Open, phone: Phone, models: Path) -> None:
    device = opened(phone)
    assert device.arrange(fixed_performance=True, screen_on=True) == []
    assert settings_of(phone) == ("true", "7")
    assert (phone.folder / "key").read_text() == "KEYCODE_WAKEUP\n"
    result = device.run(RunSpec(id="x", model=str(models / "null.onnx"), min_runs=1, min_seconds=0.0))
    assert result.status is Status.OK, result.failure
    assert result.before.fixed_performance is True
    device.close()
    assert settings_of(phone) == ("false", "3")
    assert notes(phone) == []


def test_the_next_one_restores_what_a_killed_one_left(farm: Farm, phone: Phone, tools: Tools, opened: Open) -> None:
    killed = AdbDevice(Link(server_at(f"127.0.0.1:{farm.port}"), phone.serial), root=phone.root, tools=tools)
    assert killed.arrange(fixed_performance=True, screen_on=True) == []
    killed._lease.close()  # what the kernel does for a killed process
    assert settings_of(phone) == ("true", "7")
    assert len(notes(phone)) == 2
    opened(phone).facts()
    assert settings_of(phone) == ("false", "3")
    assert notes(phone) == []


def test_a_phone_without_the_mode_says_so_and_keeps_nothing(opened: Open, phone: Phone) -> None:
    phone.write("no-fixed", "")
    (reason,) = opened(phone).arrange(fixed_performance=True, screen_on=False)
    assert "Failed to set FIXED_PERFORMANCE mode" in reason
    assert notes(phone) == []


def test_an_old_phone_is_not_asked_for_the_mode(opened: Open, phone: Phone) -> None:
    phone.write("prop/ro.build.version.sdk", "29\n")
    (reason,) = opened(phone).arrange(fixed_performance=True, screen_on=True)
    assert "API 30" in reason
    assert settings_of(phone) == ("false", "7")


def test_after_a_loss_settings_are_held_again(opened: Open, phone: Phone, models: Path) -> None:
    device = opened(phone)
    device.arrange(fixed_performance=True, screen_on=False)
    spec = RunSpec(id="x", model=str(models / "null.onnx"), min_runs=1, min_seconds=0.0)
    phone.stop()
    assert device.run(spec).status is Status.FAILED
    phone.write("fixed", "false\n")  # a phone that starts anew has forgotten it
    phone.start()
    assert run_when_back(device, spec).status is Status.OK
    assert settings_of(phone)[0] == "true"


def run_when_back(device: AdbDevice, spec: RunSpec) -> RunResult:
    """A run on a device that the adb server may notice some seconds later, as a campaign tries it again."""
    result = device.run(spec)
    for _ in range(40):
        if result.status is not Status.OK:
            time.sleep(0.5)
            result = device.run(spec)
    return result


def start(farm: Farm, phone: Phone, *arguments: str) -> subprocess.Popen[str]:
    """`ort-mobile` on that phone, in a process of its own."""
    command = [*PYTHON_THAT_HEARS, str(Path(__file__).with_name("farm_cli.py")), json.dumps({phone.serial: phone.root})]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ANDROID_ADB_SERVER_PORT": str(farm.port)}
    return subprocess.Popen(
        [*command, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=environment,
    )  # fmt: skip


def until_held(phone: Phone, job: subprocess.Popen[str]) -> None:
    """Wait until the job has changed both settings and has a run on the phone."""
    end = time.monotonic() + 600
    while settings_of(phone) != ("true", "7") or not list(Path(phone.root).glob("run-*/request")):
        assert job.poll() is None, job.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.02)


LONG = ("--min-seconds", "0.3", "--rounds", "50", "--threads", "1")
"""The run in progress is finished, of which a processor computes this long; the others are left."""
HELD = ("--stable", "--keep-screen-on")

CAMPAIGN = f"""
name = "held"
[[models]]
path = "{EXAMPLE}"
[[targets]]
name = "box"
platform = "linux"
{BASIC}{EVERY}
[measure]
rounds = 50
min_seconds = 0.3
[conditions]
stable = true
keep_screen_on = true
"""


def arguments_of(command: str, phone: Phone, folder: Path) -> tuple[str, ...]:
    device = ("--device", f"adb:{phone.serial}")
    if command == "perf":
        return ("perf", str(EXAMPLE), *device, *HELD, *LONG)
    (folder / "held.toml").write_text(CAMPAIGN)
    return ("run", str(folder / "held.toml"), "--output", str(folder / "out"), *device)


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("perf", signal.SIGINT),
        pytest.param("perf", signal.SIGTERM, marks=pytest.mark.nightly),  # each run of test_job.py sends it to `run`
        pytest.param("run", signal.SIGINT, marks=pytest.mark.nightly),
        ("run", signal.SIGHUP),
    ],
)
def test_ctrl_c_and_other_signals_restore_at_once(
    command: str, number: signal.Signals, farm: Farm, phone: Phone, tmp_path: Path
) -> None:
    job = start(farm, phone, *arguments_of(command, phone, tmp_path))
    until_held(phone, job)
    job.send_signal(number)
    said, _ = job.communicate(timeout=600)
    assert job.returncode == 130, said
    assert "Traceback" not in said
    assert "finishing the runs in progress" in said, "perf runs on the engine of campaigns"
    assert settings_of(phone) == ("false", "3")
    assert notes(phone) == []


@pytest.mark.parametrize("command", [pytest.param("perf", marks=pytest.mark.nightly), "run"])
def test_after_kill_9_the_next_start_restores(command: str, farm: Farm, phone: Phone, tmp_path: Path) -> None:
    job = start(farm, phone, *arguments_of(command, phone, tmp_path))
    until_held(phone, job)
    job.kill()
    job.communicate()
    assert settings_of(phone) == ("true", "7")
    assert len(notes(phone)) == 2
    quick = ("--min-seconds", "0.001", "--rounds", "1")
    again = start(farm, phone, "perf", str(EXAMPLE), "--device", f"adb:{phone.serial}", *quick)
    said, _ = again.communicate(timeout=600)
    assert again.returncode == 0, said
    assert settings_of(phone) == ("false", "3")
    assert notes(phone) == []


def test_perf_waits_for_what_is_asked_and_says_what_did_not_come(farm: Farm, phone: Phone) -> None:
    asked = ("--min-battery-percent", "90", "--wait-seconds", "0.1")
    job = start(farm, phone, "perf", str(EXAMPLE), "--device", f"adb:{phone.serial}", *asked)
    said, _ = job.communicate(timeout=600)
    assert job.returncode == 1, said
    assert "battery at 84 %, at least 90 is wanted" in " ".join(said.split())
