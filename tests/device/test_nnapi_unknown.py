"""A probe that fails before it has opened NNAPI, on a real adbd: the phone's NNAPI stays unknown and is asked again."""

import subprocess
from pathlib import Path

import pytest

from tests.device.adb_farm import PHONE_PROPERTIES, Farm, Open, Phone
from tests.device.nnapi_phones import push

OPENING = {
    "crashes": "__attribute__((constructor)) static void opened(void) { __builtin_trap(); }",
    "hangs": "__attribute__((constructor)) static void opened(void) { for (;;) pause(); }",
}
"""What libneuralnetworks.so does while it is opened."""


def install(farm: Farm, phone: Phone, source: str, folder: Path) -> None:
    """Build the phone's libneuralnetworks.so of that source."""
    (folder / "nnapi.c").write_text(f"#include <unistd.h>\nint ANeuralNetworksModel_create;\n{source}\n")
    library = folder / "libneuralnetworks.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(folder / "nnapi.c")], check=True)
    push(farm, phone, library, f"lib64/{library.name}")


@pytest.mark.parametrize("what", OPENING)
def test_a_library_that_cannot_be_opened_says_nothing_of_the_phone(
    opened: Open, farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr("device_runner.adb.phone.ASK_SECONDS", 0.5)
    phone = farm.phone(PHONE_PROPERTIES)
    install(farm, phone, OPENING[what], tmp_path)
    device = opened(phone)
    assert device.facts().nnapi is None
    assert not list(Path(phone.root).glob("nnapi-*"))
    device.close()
    install(farm, phone, "", tmp_path)
    assert opened(phone).facts().nnapi is True


def test_a_probe_of_another_release_says_nothing_of_the_phone(opened: Open, farm: Farm, tmp_path: Path) -> None:
    """It knows no such mode and fails; what lies on the device longest must not decide for this release."""
    phone = farm.phone(PHONE_PROPERTIES)
    install(farm, phone, "", tmp_path)
    device = opened(phone)
    assert device.facts().nnapi is True
    (note,) = Path(phone.root).glob("nnapi-*")
    (probe,) = (Path(phone.root) / "store").glob("*.probe")
    device.close()
    note.unlink()
    old = probe.with_name(f"{'0' * 64}.probe")
    old.write_text(f'#!/bin/sh\nhead -c 9 "$1" > "$1.cut"\nexec "{probe}" "$1.cut"\n')
    old.chmod(0o755)
    assert opened(phone).facts().nnapi is True
