"""Libraries by path and by name: what is found, and what is said of files that are none."""

import struct
import zipfile
from pathlib import Path

import pytest

from device_runner.android_host.device import open_android_host
from device_runner.errors import SpecError, UnavailableError
from device_runner.library import NamedLibrary, archive_abis, entries, find_archive, keep, release_of, resolve
from pipeline.core.errors import ConfigError
from pipeline.library.fetch import PACKAGES, get_library, known_libraries

pytestmark = pytest.mark.usefixtures("own_caches")


def elf(machine: int, *, bits: int = 64, length: int = 256) -> bytes:
    """The header of an empty library for a processor, and zeros."""
    head = b"\x7fELF" + bytes([bits // 32, 1, 1]) + bytes(9)
    if bits == 64:
        return (head + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 0, 64, 0, 0)).ljust(
            length, b"\0"
        )
    return (head + struct.pack("<HHIIIIIHHHHHH", 3, machine, 1, 0, 52, 0, 0, 52, 32, 0, 40, 0, 0)).ljust(length, b"\0")


def aar(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for abi, content in members.items():
            archive.writestr(f"jni/{abi.replace('arm64', 'arm64-v8a')}/libonnxruntime.so", content)
    return path


def test_names_of_releases() -> None:
    assert release_of("1.29.0") == release_of("android:1.29.0") == "1.29.0"
    assert release_of("1.29") is None
    assert release_of("ios:1.29.0") is None


def test_a_release_that_is_not_there_says_how_to_get_it() -> None:
    with pytest.raises(UnavailableError) as caught:
        find_archive("android:1.29.0")
    assert "ort-mobile library get android:1.29.0" in caught.value.remedy


@pytest.mark.parametrize(
    "place", ["gradle/caches/modules-2/files-2.1/{g}/{a}/9.8.7/abc", ".m2/repository/{p}/{a}/9.8.7"]
)
def test_caches_of_build_tools_are_searched(own_caches: Path, place: str) -> None:
    group, artifact = "com.microsoft.onnxruntime", "onnxruntime-android"
    folder = own_caches / place.format(g=group, a=artifact, p=group.replace(".", "/"))
    folder.mkdir(parents=True)
    path = aar(folder / "onnxruntime-android-9.8.7.aar", x86_64=elf(62))
    assert find_archive("9.8.7") == path
    assert ("9.8.7", True) in [(known.release, known.at_hand) for known in known_libraries()]
    assert get_library("android:9.8.7").source == str(path)
    assert [entry.release for entry in entries()] == ["9.8.7"]


def test_what_was_kept_is_found_by_name_and_by_content() -> None:
    first = keep(b"content", file="a.aar", name=NamedLibrary(release="1.2.3"), source="here", licence="MIT")
    second = keep(b"content", file="a.aar", name=NamedLibrary(release="1.2.4"), source="here", licence="MIT")
    assert first.file == second.file
    assert find_archive("1.2.3").read_bytes() == b"content"
    assert not list(Path(first.file).parent.glob(".part-*"))


def test_a_cache_that_was_moved_has_its_libraries_still(own_caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or is mounted elsewhere, or shared by homes that come and go."""
    keep(b"content", file="a.aar", name=NamedLibrary(release="1.2.3"), source="here", licence="MIT")
    (own_caches / "cache").rename(own_caches / "moved")
    monkeypatch.setenv("ORT_MOBILE_CACHE", str(own_caches / "moved"))
    assert find_archive("1.2.3").read_bytes() == b"content"
    assert [Path(entry.file).is_file() for entry in entries()] == [True]


def test_what_was_deleted_is_not_at_hand() -> None:
    entry = keep(b"content", file="a.aar", name=NamedLibrary(release="1.29.0"), source="here", licence="MIT")
    Path(entry.file).unlink()
    assert entries() == []
    assert [known.at_hand for known in known_libraries() if known.name == "android:1.29.0"] == [False]


def test_packages_are_listed_before_they_are_fetched() -> None:
    listed = {known.release: known for known in known_libraries()}
    assert set(listed) == {package.release for package in PACKAGES}
    assert not any(known.at_hand for known in listed.values())


def test_what_is_no_release_is_refused() -> None:
    with pytest.raises(ConfigError, match="no library"):
        get_library("newest")


def test_an_archive_without_the_abi_names_those_it_has(tmp_path: Path) -> None:
    path = aar(tmp_path / "app.aar", arm64=elf(183), x86=elf(3, bits=32))
    assert archive_abis(path) == ["arm64-v8a", "x86"]
    with pytest.raises(UnavailableError) as caught:
        resolve(str(path))
    assert "for x86_64" in caught.value.what
    assert caught.value.why == "it has arm64-v8a, x86"


def _file(folder: Path, kind: str) -> Path:
    path = folder / kind
    whole = aar(folder / "whole.aar", x86_64=elf(62)).read_bytes()
    contents = {
        "empty": b"",
        "text": b"hello",
        "cut-off archive": whole[:80],
        "archive of nothing": b"PK\x05\x06" + bytes(18),
        "library of arm": elf(183),
        "32-bit library": elf(40, bits=32),
        "header only": elf(62, length=64),
        "damaged archive": whole.replace(b"\x7fELF", b"\x7fELG"),
    }
    path.write_bytes(contents[kind])
    return path


KINDS = {
    "empty": "not a little-endian ELF", "text": "not a little-endian ELF", "cut-off archive": "not a zip",
    "archive of nothing": "no package of ONNX", "library of arm": "OrtGetApiBase", "32-bit library": "OrtGetApiBase",
    "header only": "OrtGetApiBase", "damaged archive": "CRC",
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_are_no_library_are_refused_with_the_reason(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UnavailableError) as caught:
        resolve(str(_file(tmp_path, kind))).android()
    assert KINDS[kind].lower() in f"{caught.value.what} {caught.value.why}".lower()
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("", "needs a library"),
        ("nowhere.aar", "no library at"),
        ("1.29.0?level=30", "unknown option 'level'"),
        ("1.29.0?api_level=abc", "does not exist"),
        ("1.29.0?api_level=27&api_level=28", "cannot be read"),
        ("1.29.0?driver=none.json", "not a driver profile"),
    ],
)
def test_wrong_device_names_are_refused(name: str, what: str) -> None:
    with pytest.raises(SpecError, match=what.replace("'", ".")):
        open_android_host(name)
