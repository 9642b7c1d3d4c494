"""Libraries out of wheels for other architectures."""

import zipfile
from pathlib import Path

import pytest

from device_runner.errors import UnavailableError
from device_runner.files import NOTE
from device_runner.library_facts import _unpack, foreign_library
from device_runner.probe.elf import read_header


@pytest.mark.network
def test_an_aarch64_wheel_gives_its_library_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_MOBILE_CACHE", str(tmp_path))
    try:
        library = foreign_library("arm64-v8a")
    except UnavailableError as error:
        pytest.skip(f"the package index cannot be reached: {error.why}")
    assert read_header(library).abi == "arm64-v8a"
    before = library.stat().st_mtime_ns
    assert foreign_library("arm64-v8a").stat().st_mtime_ns == before
    assert {path.name for path in library.parent.iterdir()} == {library.name, NOTE}


def test_an_abi_without_wheels_is_told() -> None:
    with pytest.raises(UnavailableError, match="no onnxruntime wheel for riscv64"):
        foreign_library("riscv64")


def test_only_the_library_is_taken_from_a_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "w.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("../../evil/libonnxruntime.so.1", b"no")
        archive.writestr("onnxruntime/capi/libonnxruntime.so.1.31.1", b"yes")
    assert _unpack(wheel, tmp_path / "out").read_bytes() == b"yes"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("onnxruntime/capi/other.so", b"no")
    with pytest.raises(UnavailableError, match="no libonnxruntime"):
        _unpack(wheel, tmp_path / "out")


@pytest.mark.parametrize("damage", ["cut", "flipped", "text"])
def test_a_damaged_wheel_is_told_and_leaves_nothing(tmp_path: Path, damage: str) -> None:
    wheel = tmp_path / "w.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("onnxruntime/capi/libonnxruntime.so.1.31.1", b"yes" * 100)
    content = wheel.read_bytes()
    flipped = content.replace(b"yesyesyes", b"yesyesyEs", 1)
    wheel.write_bytes({"cut": content[:-30], "flipped": flipped, "text": b"no wheel"}[damage])
    with pytest.raises(UnavailableError, match="cannot be unpacked"):
        _unpack(wheel, tmp_path / "out")
    assert not (tmp_path / "out").exists()
