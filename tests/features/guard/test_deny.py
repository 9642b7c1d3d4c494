"""Lists that forbid: the desk makes them, phones take those alone that are whole, newer and by the right key."""

import random
from pathlib import Path

import pytest

from device_runner.options import Denied, DeviceClass
from device_runner.result import FailureKind
from pipeline.features.guard.deny import signed_list
from tests.features.android.samples import CPU, NNAPI, WEBGPU, manifest, shipped, signature
from tests.features.guard.phones import JVM, App, Phone, run_java
from tests.features.guard.test_lives import GUARD, MakePhone, provider

pytestmark = pytest.mark.long


def denied(options: object = NNAPI, chip: str = "chip", level: int = 34) -> Denied:
    return Denied(
        devices=DeviceClass(chip=chip, api_level=level), options=options, ort_version="1.29.0",  # type: ignore[arg-type]
        kind=FailureKind.CRASH, message="SIGSEGV", seen_at="2026-11-01T00:00:00Z",
    )  # fmt: skip


def made(app: App, folder: Path, *entries: Denied, serial: int = 2, days: int = 30, name: str = "demo") -> Path:
    file = folder / f"{serial}.{days}.{name}.list"
    table = manifest([shipped()], [signature()], name=name)
    file.write_bytes(signed_list(table, entries, app.private_key, None, serial=serial, days=days))
    return file


def test_a_list_forbids_what_it_names_and_nothing_else(phone: MakePhone, app: App, tmp_path: Path) -> None:
    ours = phone()
    assert provider(ours.launch(now=True)) == "nnapi"
    first = ours.launch(deny=made(app, tmp_path, denied(), denied(CPU)))
    assert first.said("denied") == [""]
    assert provider(first) == "webgpu"
    assert "denied, crash: SIGSEGV" in first.said("skipped")[0]
    assert ours.launch(reset=True, wait=True).events[0] == "denied nnapi"  # a reset does not allow it
    others = made(app, tmp_path, denied(WEBGPU, level=33), denied(WEBGPU, chip="another"), serial=3)
    assert provider(ours.launch(deny=others, now=True)) == "nnapi"


def test_lists_that_are_old_expired_or_of_another_bundle_are_refused(
    phone: MakePhone, app: App, tmp_path: Path
) -> None:
    ours = phone()
    lists = (
        (made(app, tmp_path, denied(), serial=5), "denied", ""),
        (made(app, tmp_path, denied(), serial=5), "refused", "not newer"),
        (made(app, tmp_path, serial=4), "refused", "not newer"),
        (made(app, tmp_path, serial=6, days=-1), "refused", "expired"),
        (made(app, tmp_path, serial=7, name="another"), "refused", "of the bundle another"),
    )
    for file, word, why in lists:
        (said,) = ours.launch(deny=file).said(word)
        assert why in said
    (ours.storage / GUARD / "deny.list").write_text("nonsense")
    assert ours.launch().is_whole


def test_of_300_damaged_lists_300_are_refused(phone: MakePhone, app: App, tmp_path: Path) -> None:
    content = made(app, tmp_path, denied(), denied(WEBGPU)).read_bytes()
    numbers, folder = random.Random(1), tmp_path / "damaged"
    folder.mkdir()
    for number in range(300):
        damaged = bytearray(content)
        place = (
            numbers.randrange(len(damaged) - 1)
            if number % 2
            else numbers.randrange(len(damaged) - 100, len(damaged) - 1)
        )
        damaged[place] ^= 1 << numbers.randrange(8)
        (folder / f"{number}.list").write_bytes(damaged)
    (folder / "whole.list").write_bytes(content)
    ours: Phone = phone()
    ours.storage.mkdir()
    command = [*JVM, f"-Dstorage={ours.storage}", "-cp", str(app.classes), "com.example.demo.Lists", str(folder)]
    assert run_java(command) == "301 read, 1 taken\n"
