"""Libraries out of wheels for other architectures."""

import hashlib
import re
import zipfile
from pathlib import Path

import pytest

from device_runner.errors import UnavailableError
from device_runner.files import NOTE
from device_runner.library import NamedLibrary, known_digests, resolve, wheel_libraries
from device_runner.probe.elf import read_header
from device_runner.wheels import SOURCE, _library_in, foreign_library, source_of
from tests.device_runner.pip_index import RELEASE, index, wheel, wheel_name


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
    assert {path.name for path in library.parent.iterdir()} == {library.name, NOTE, SOURCE}


def test_an_abi_without_wheels_is_told() -> None:
    with pytest.raises(UnavailableError, match="no onnxruntime wheel for riscv64"):
        foreign_library("riscv64")


def test_only_the_library_is_taken_from_a_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "w.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("../../evil/libonnxruntime.so.1", b"no")
        archive.writestr("onnxruntime/capi/libonnxruntime.so.1.31.1", b"yes")
    assert _library_in(wheel) == b"yes"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("onnxruntime/capi/other.so", b"no")
    with pytest.raises(UnavailableError, match="no libonnxruntime"):
        _library_in(wheel)


@pytest.mark.parametrize("damage", ["cut", "flipped", "text"])
def test_a_damaged_wheel_is_told(tmp_path: Path, damage: str) -> None:
    wheel = tmp_path / "w.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("onnxruntime/capi/libonnxruntime.so.1.31.1", b"yes" * 100)
    content = wheel.read_bytes()
    flipped = content.replace(b"yesyesyes", b"yesyesyEs", 1)
    wheel.write_bytes({"cut": content[:-30], "flipped": flipped, "text": b"no wheel"}[damage])
    with pytest.raises(UnavailableError, match="cannot be unpacked"):
        _library_in(wheel)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORT_MOBILE_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.long
def test_a_wheel_of_an_unknown_release_is_taken_with_a_warning_that_names_the_index(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with index(own_cache, monkeypatch, wheel(b"library")) as address:
        library = foreign_library("arm64-v8a", RELEASE)
    assert library.read_bytes() == b"library"
    assert source_of(library) == address
    (warning,) = caplog.messages
    assert RELEASE in warning
    assert address in warning
    assert "secret" not in warning
    assert foreign_library("arm64-v8a", RELEASE) == library, "from the cache now"
    assert len(caplog.messages) == 1


def test_an_index_without_digests_is_refused(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        index(own_cache, monkeypatch, wheel(b"library"), digest="") as address,
        pytest.raises(UnavailableError, match="does not state the sha256") as caught,
    ):
        foreign_library("arm64-v8a", RELEASE)
    assert caught.value.where == address
    assert not list(wheel_libraries(NamedLibrary(scheme="wheel", release="*")))


@pytest.mark.long
def test_a_wheel_that_is_not_what_the_index_states_is_refused(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        index(own_cache, monkeypatch, wheel(b"library"), digest="0" * 64),
        pytest.raises(UnavailableError, match=r"Expected sha256 0{64}.*Got"),
    ):
        foreign_library("arm64-v8a", RELEASE)


@pytest.mark.long
def test_a_wheel_of_a_known_release_must_be_the_released_one(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index states the digest of its own file, which says nothing."""
    content = wheel(b"other library", "1.30.0")
    with index(own_cache, monkeypatch, content, release="1.30.0"):
        with pytest.raises(UnavailableError, match=f"Got +{hashlib.sha256(content).hexdigest()}"):
            foreign_library("arm64-v8a", "1.30.0")
        monkeypatch.setitem(known_digests(), wheel_name("1.30.0"), hashlib.sha256(content).hexdigest())
        assert foreign_library("arm64-v8a", "1.30.0").read_bytes() == b"other library"


def test_the_known_digests_are_of_every_machine_and_python() -> None:
    digests = known_digests()
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in digests.values())
    for machine in ("aarch64", "x86_64"):
        names = [name for name in digests if name.startswith("onnxruntime-1.32.0-") and name.endswith(f"{machine}.whl")]
        assert len(names) == 6
    assert digests["onnxruntime-1.28.0.jar"].startswith("3a9dc00b")


@pytest.mark.long
def test_a_library_that_changed_in_the_cache_is_not_used(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with index(own_cache, monkeypatch, wheel(b"library")):
        library = foreign_library("arm64-v8a", RELEASE)
    assert resolve(f"wheel:{RELEASE}", "arm64-v8a").path == library
    library.write_bytes(b"lib?ary")
    with pytest.raises(UnavailableError, match="has changed since") as caught:
        resolve(f"wheel:{RELEASE}", "arm64-v8a")
    assert f"`ort-mobile library get wheel:{RELEASE} --abi arm64-v8a`" in caught.value.remedy
