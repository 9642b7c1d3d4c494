"""NNAPI of a phone behind a real adbd: what its facts say, and a driver profile from it. The driver is the fake one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from device_runner.adb.link import Link, server_at
from device_runner.adb.phone import facts_or_reason
from device_runner.android_host.device import Driver, DriverProfile, read_profile
from device_runner.android_host.inspection import inspect_phone
from device_runner.device import DeviceFacts, DriverType, NnapiDevice
from device_runner.errors import UnavailableError
from device_runner.spec import RunSpec
from tests.device.adb_farm import PHONE_PROPERTIES, Farm, Open, Phone, farm_in
from tests.device.nnapi_phones import calls_of, phone_with, shims

ROOT = Path(__file__).resolve().parents[2]
TYPES = ("INT32", "TENSOR_FLOAT32", "BOOL")
PROFILE = DriverProfile(
    devices=(
        Driver(name="npu", feature_level=30, version="1.4", operations=("ADD", "CONV_2D"), operand_types=TYPES),
        Driver(name="nnapi-reference", type=DriverType.CPU, feature_level=29),
    ),
    api_level=30,
    phone="Example, Phone One, QTI SM8450, 11, example/one/one:11/ABC/1:user/release-keys",
)
NAMED = (
    NnapiDevice(name="npu", type=DriverType.ACCELERATOR, feature_level=30, version="1.4"),
    NnapiDevice(name="nnapi-reference", type=DriverType.CPU, feature_level=29, version="1"),
)


@pytest.fixture(scope="module", name="shims")
def built_shims() -> Path:
    return shims()


def calls(phone: Phone) -> int:
    """How often anyone asked for the list of devices."""
    return calls_of(phone).read_text().count("_getDeviceCount")


def listed(farm: Farm, phone: Phone) -> DeviceFacts:
    """What a listing of devices says of the phone."""
    link = Link(server_at(f"127.0.0.1:{farm.port}"), phone.serial)
    return facts_or_reason(link, "adb:x", "device", phone.root)


def notes(phone: Phone) -> list[Path]:
    return list(Path(phone.root).glob("nnapi-*"))


def test_devices_are_named_once_a_boot(opened: Open, farm: Farm, shims: Path, tmp_path: Path) -> None:
    phone = phone_with(farm, shims, PROFILE, tmp_path)
    assert (listed(farm, phone).nnapi, listed(farm, phone).nnapi_devices) == (None, ())
    device = opened(phone)
    assert (device.facts().nnapi, device.facts().nnapi_devices) == (True, NAMED)
    device.close()
    assert opened(phone).facts().nnapi_devices == listed(farm, phone).nnapi_devices == NAMED
    assert calls(phone) == 1

    (note,) = notes(phone)
    note.rename(note.with_name("nnapi-of-another-boot"))
    assert listed(farm, phone).nnapi_devices == NAMED
    assert calls(phone) == 2
    assert notes(phone) == [note]


@pytest.mark.parametrize("text", ["", "{", '{"found": 1}', '{"found": true, "level": -1, "devices": []}', "\0\xff"])
def test_a_note_that_makes_no_sense_is_asked_again(
    opened: Open, farm: Farm, shims: Path, tmp_path: Path, text: str
) -> None:
    phone = phone_with(farm, shims, PROFILE, tmp_path)
    opened(phone).facts()
    notes(phone)[0].write_text(text)
    assert listed(farm, phone).nnapi_devices == NAMED


def test_an_old_probe_that_looks_newer_is_no_obstacle(opened: Open, farm: Farm, shims: Path, tmp_path: Path) -> None:
    phone = phone_with(farm, shims, PROFILE, tmp_path)
    old = Path(phone.root) / "store" / f"{'0' * 64}.probe"
    old.parent.mkdir(parents=True)
    old.write_text("#!/bin/sh\necho of another release\n")
    old.chmod(0o755)
    os.utime(old, (2e9, 2e9))
    assert listed(farm, phone).nnapi is None
    assert opened(phone).facts().nnapi_devices == NAMED


def test_below_level_29_it_is_there_without_names(opened: Open, farm: Farm, shims: Path, tmp_path: Path) -> None:
    """The fake has the calls at any level; a phone of that level has not, which is the same to who may not use them."""
    phone = phone_with(farm, shims, msgspec.structs.replace(PROFILE, devices=()), tmp_path, api_level=28)
    device = opened(phone)
    assert (device.facts().nnapi, device.facts().nnapi_devices) == (True, ())
    assert inspect_phone(device).devices == ()


def test_a_phone_without_the_library_has_none(opened: Open, farm: Farm) -> None:
    device = opened(farm.phone(PHONE_PROPERTIES))
    assert device.facts().nnapi is False
    with pytest.raises(UnavailableError, match="has no NNAPI"):
        inspect_phone(device)


BAD_DRIVERS = {
    "crashes": "int ANeuralNetworks_getDeviceCount(unsigned *n) { *n = 1; __builtin_trap(); }",
    "hangs": "int ANeuralNetworks_getDeviceCount(unsigned *n) { *n = 1; for (;;) pause(); }",
}


@pytest.mark.parametrize("what", BAD_DRIVERS)
def test_a_driver_that_fails_while_it_is_listed_costs_nothing(
    opened: Open, farm: Farm, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr("device_runner.adb.phone.ASK_SECONDS", 0.5)
    others = ("_getDevice", "Device_getName", "Device_getVersion", "Device_getType", "Device_getFeatureLevel")
    source = "\n".join(["#include <unistd.h>", BAD_DRIVERS[what], *(f"int ANeuralNetworks{name};" for name in others)])
    (tmp_path / "bad.c").write_text(source)
    library = tmp_path / "lib" / "libneuralnetworks.so"
    library.parent.mkdir()
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "bad.c")], check=True)
    phone = phone_with(farm, library.parent, PROFILE, tmp_path)
    device = opened(phone)
    assert (device.facts().nnapi, device.facts().nnapi_devices) == (True, ())
    assert len(notes(phone)) == 1
    assert device.run(RunSpec(id="x", model=str(models / "null.onnx"), min_runs=1, min_seconds=0.0)).failure is None


def command(farm: Farm, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`ort-mobile devices` with the phones of a farm of few: it asks each of them for its facts."""
    return subprocess.run(
        [
            sys.executable, str(Path(__file__).with_name("farm_cli.py")),
            json.dumps({phone.serial: phone.root for phone in farm.phones}), "devices", *arguments,
        ],
        capture_output=True, text=True, check=False, timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT), "ANDROID_ADB_SERVER_PORT": str(farm.port), "COLUMNS": "160"},
    )  # fmt: skip


def test_a_profile_comes_back_as_it_is_played(
    shims: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with farm_in(tmp_path_factory.mktemp("farm")) as farm:
        phone = phone_with(farm, shims, PROFILE, tmp_path)
        done = command(farm, phone.serial, "--profile", str(tmp_path / "npu.json"))
    assert done.returncode == 0, done.stderr
    assert "npu, nnapi-reference" in done.stderr
    assert read_profile(tmp_path / "npu.json") == PROFILE


def test_a_profile_is_of_one_phone_that_has_nnapi(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with farm_in(tmp_path_factory.mktemp("farm")) as farm:
        phone = farm.phone()
        none = command(farm, "nobody", "--profile", str(tmp_path / "x.json"))
        linux = command(farm, phone.serial, "--profile", str(tmp_path / "x.json"))
        farm.phone()
        many = command(farm, "*", "--profile", str(tmp_path / "x.json"))
    assert (none.returncode, "no phone" in none.stderr) == (3, True), none.stderr
    assert (many.returncode, "one phone" in many.stderr) == (2, True), many.stderr
    assert (linux.returncode, "has no NNAPI" in linux.stderr) == (3, True), linux.stderr
    assert not (tmp_path / "x.json").exists()
