"""Phones with NNAPI: Android's shims and the fake driver are pushed to a real adbd where its system libraries lie."""

from pathlib import Path

import pytest

from device_runner.android_host.build import build_host
from device_runner.android_host.device import DriverProfile, encode_profile
from device_runner.errors import UnavailableError
from device_runner.host_device import check_host
from tests.device.adb_farm import PHONE_PROPERTIES, Farm, Phone


def shims() -> Path:
    """The folder of shims and of the fake libneuralnetworks.so; skips where they cannot be built or run."""
    try:
        check_host()
        return build_host()
    except UnavailableError as error:
        pytest.skip(f"android-host: {error}")


def phone_with(farm: Farm, libraries: Path, profile: DriverProfile, folder: Path, api_level: int = 30) -> Phone:
    """A phone of an API level with these system libraries; `folder` is for what is pushed."""
    phone = farm.phone({**PHONE_PROPERTIES, "ro.build.version.sdk": str(api_level)})
    for library in sorted(libraries.glob("lib*.so")):
        push(farm, phone, library, f"lib64/{library.name}")
    (folder / "driver").write_text(encode_profile(profile, api_level))
    push(farm, phone, folder / "driver", "driver")
    return phone


def push(farm: Farm, phone: Phone, source: Path, name: str) -> None:
    """Put a file into the phone's system."""
    said = farm.adb("-s", phone.serial, "push", str(source), f"{phone.folder}/system/{name}")
    assert "1 file pushed" in said, said


def calls_of(phone: Phone) -> Path:
    """The record of all calls to the phone's NNAPI."""
    return phone.folder / "system" / "calls.jsonl"
