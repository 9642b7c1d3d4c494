"""The commands devices and build probe."""

from pathlib import Path

import pytest
from rich.console import Console

from device_runner.device import DeviceFacts, DriverType, NnapiDevice, Readiness
from pipeline.report.device_list import device_listing
from pipeline.report.show import show
from tests.command import ort_mobile


@pytest.mark.usefixtures("no_adb")
def test_devices_without_adb_are_this_computer() -> None:
    done = ort_mobile("devices")
    assert "local" in done.text
    assert "no adb server" in done.text
    listed = ort_mobile("devices", "--json", "-").document()["devices"]
    assert [(facts["name"], facts["readiness"]) for facts in listed] == [("local", "ready")]


@pytest.mark.usefixtures("no_adb")
def test_a_selector_that_finds_nothing_exits_with_3_and_says_how_to_connect_a_phone() -> None:
    done = ort_mobile("devices", "api=29-", code=3)
    assert done.out == ""
    assert "no adb server" in done.err
    assert "turn on USB debugging" in done.err


def test_a_selector_that_matches_none_names_those_that_are_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    pixel = DeviceFacts(name="adb:28121FDH\x1b[2J", platform="android", model="Pixel 7")
    asked: list[str] = []

    def listed(text: str) -> list[DeviceFacts]:
        asked.append(text)
        return [pixel]

    monkeypatch.setattr("device_runner.adb.device.list_devices", listed)
    done = ort_mobile("devices", "foo@lab:5037", code=3)
    assert (done.out, asked) == ("", ["*@lab:5037"])
    assert "no device matches 'foo@lab:5037'" in done.err
    assert r"connected: adb:28121FDH\x1b[2J Pixel 7" in done.err


def test_without_a_phone_it_says_how_to_connect_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("device_runner.adb.device.list_devices", lambda _: [])
    done = ort_mobile("devices")
    assert "no phone is connected" in done.err
    assert "turn on USB debugging" in done.err


def test_the_table_says_what_is_the_matter() -> None:
    console = Console(record=True, width=200)
    phone = DeviceFacts(name="adb:1", platform="android", model="One [bold]", api_level=26, thermal_status=3)
    shut = DeviceFacts(name="adb:2", platform="android", readiness=Readiness.UNAUTHORIZED, advice="accept the dialog")
    show([device_listing([phone, shut])], console)
    text = console.export_text()
    assert "One [bold]" in text
    assert "API 26: NNAPI needs 27; hot" in text
    assert "accept the dialog" in text
    assert "battery" not in text
    assert "NNAPI " not in text.splitlines()[0]


def test_the_table_names_the_devices_of_nnapi() -> None:
    console = Console(record=True, width=200)
    npu = NnapiDevice(name="npu", type=DriverType.ACCELERATOR, feature_level=30, version="1.4")
    said = {"named": (True, (npu,)), "unnamed": (True, ()), "none": (False, ()), "unknown": (None, ())}
    phones = [
        DeviceFacts(name=f"adb:{name}", platform="android", api_level=30, nnapi=nnapi, nnapi_devices=found)
        for name, (nnapi, found) in said.items()
    ]
    show([device_listing([*phones, DeviceFacts(name="local", platform="linux", nnapi=False)])], console)
    head, *lines = console.export_text().splitlines()
    column = slice(head.index("NNAPI"), head.index("state"))
    assert [line[column].strip() for line in lines] == ["npu (accelerator, level 30)", "yes", "none", "", ""]


def test_the_probe_is_built_and_copied(tmp_path: Path) -> None:
    done = ort_mobile("build", "probe", "host", "--output", tmp_path / "out")
    assert str(tmp_path / "out/probe-host") in done.text
    assert (tmp_path / "out/probe-host").stat().st_mode & 0o100
