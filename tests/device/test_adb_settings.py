"""What runs change on a phone is again as it was: after the campaign, after a kill, and after a lost connection."""

from pathlib import Path

import pytest

from device_runner.adb.device import AdbDevice, Tools
from device_runner.adb.link import Link, server_at
from device_runner.result import Status
from device_runner.spec import RunSpec
from tests.device.adb_farm import PHONE_PROPERTIES, Farm, Open, Phone

COMMANDS = {
    "cmd": '[ -e "$PHONE/no-fixed" ] && { echo "Failed to set FIXED_PERFORMANCE mode" >&2; exit 255; }\n'
    'echo "$3" > "$PHONE/fixed"\n',
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
    assert device.run(spec).status is Status.OK
    assert settings_of(phone)[0] == "true"
