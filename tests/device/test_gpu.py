"""The GPU of a phone behind a real adbd: what the phone says of it, and a deny list that is for its driver alone."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from device_runner.adb.link import Link, server_at
from device_runner.adb.phone import facts_or_reason
from device_runner.device import DeviceFacts, GraphicsProcessor
from device_runner.options import Denied, add_denied, class_for
from device_runner.result import FailureKind
from device_runner.spec import RunOptions
from tests.device.adb_farm import PHONE_PROPERTIES, Farm, Phone, farm_in
from tests.device_runner.test_adb_words import VKJSON

ROOT = Path(__file__).resolve().parents[2]
WEBGPU = RunOptions(provider="webgpu")


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """One of this file: commands ask all phones of a farm what they are, and other tests leave many."""
    with farm_in(tmp_path_factory.mktemp("farm")) as farm:
        yield farm


@pytest.fixture(scope="module")
def gpu_phone(farm: Farm) -> Phone:
    """A phone whose `cmd gpu vkjson` answers."""
    phone = farm.phone(PHONE_PROPERTIES)
    phone.write("vkjson", VKJSON)
    phone.write("bin/cmd", '#!/bin/sh\n[ "$1 $2" = "gpu vkjson" ] && cat "$PHONE/vkjson"\n').chmod(0o755)
    return phone


def facts_of(farm: Farm, phone: Phone) -> DeviceFacts:
    link = Link(server_at(f"127.0.0.1:{farm.port}"), phone.serial)
    return facts_or_reason(link, f"adb:{phone.serial}", "device", phone.root)


def command(farm: Farm, phone: Phone, state: Path, *words: str) -> str:
    """What a command prints on the farm's phones, with the state of a user of its own."""
    cli = Path(__file__).with_name("farm_cli.py")
    environment = {"ANDROID_ADB_SERVER_PORT": str(farm.port), "ORT_MOBILE_STATE": str(state), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, str(cli), json.dumps({phone.serial: phone.root}), *words],
        capture_output=True, text=True, check=False, timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip
    return done.stdout + done.stderr


def test_a_phone_names_its_gpu_its_driver_and_half_precision(farm: Farm, gpu_phone: Phone, tmp_path: Path) -> None:
    adreno = GraphicsProcessor(name="Adreno (TM) 740", driver="512.744.6", vulkan="1.3.128", shader_f16=True)
    assert facts_of(farm, gpu_phone).gpu == adreno
    assert "Adreno (TM) 740, driver 512.744.6, fp16" in command(farm, gpu_phone, tmp_path, "devices")


@pytest.mark.parametrize("same_driver", [True, False])
def test_what_crashed_on_a_driver_is_skipped_on_that_driver_alone(
    farm: Farm, gpu_phone: Phone, models: Path, tmp_path: Path, *, same_driver: bool
) -> None:
    facts = facts_of(farm, gpu_phone)
    devices = class_for(facts, WEBGPU)
    if not same_driver:
        devices = msgspec.structs.replace(devices, gpu="Adreno (TM) 740, driver 600")
    (tmp_path / "state").mkdir()
    add_denied(
        tmp_path / "state" / "denied.json",
        Denied(
            devices=devices, options=WEBGPU, ort_version="1.29.0", kind=FailureKind.CRASH, message="SIGSEGV in load",
            seen_at="2026-01-01T00:00:00.000Z",
        ),
    )  # fmt: skip
    asked = ("perf", str(models / "sum.onnx"), "--device", f"adb:{gpu_phone.serial}", "--provider", "webgpu",
             "--dimension", "N=2")  # fmt: skip
    shown = command(farm, gpu_phone, tmp_path / "state", *asked)
    assert ("Adreno (TM) 740, driver 512.744.6, with ONNX Runtime 1.29.0" in shown) is same_driver, shown
