"""What is said of a library from its bytes: layouts of real packages, damaged and foreign files."""

import contextlib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runner.errors import UnavailableError
from device_runner.files import cache_folder, note_digests
from device_runner.library import (
    MINIMAL_TEXT,
    archive_abis,
    find_archive,
    library_folder,
    read_facts,
    resolve,
    resolve_all,
)
from device_runner.local import wheel_library
from pipeline.core.errors import ConfigError
from pipeline.library.fetch import get_library, known_libraries, show_library
from tests.command import ort_mobile
from tests.library.library_files import library, official_aar, official_jar, texts

pytestmark = pytest.mark.usefixtures("own_caches")


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_an_official_aar_is_read_like_those_of_the_registries(tmp_path: Path) -> None:
    path = official_aar(tmp_path / "onnxruntime-android-1.28.0.aar")
    found = [one.facts for one in resolve_all(str(path))]
    assert [(facts.abi, facts.system, facts.release, facts.kind, facts.page_bytes) for facts in found] == [
        ("arm64-v8a", "android", "1.28.0", "full", 16384),
        ("x86_64", "android", "1.28.0", "full", 16384),
    ]
    assert {facts.providers for facts in found} == {("cpu", "nnapi", "xnnpack")}


def test_the_jar_has_a_library_for_each_linux_architecture(tmp_path: Path) -> None:
    found = [one.facts for one in resolve_all(str(official_jar(tmp_path / "onnxruntime-1.28.0.jar")))]
    assert [(facts.abi, facts.system, facts.providers) for facts in found] == [
        ("arm64-v8a", "linux", ("cpu",)),
        ("x86_64", "linux", ("cpu",)),
    ]


def test_an_archive_is_unpacked_once(tmp_path: Path) -> None:
    path = official_aar(tmp_path / "a.aar")
    first = resolve(str(path)).android()
    before = Path(first.path).stat().st_mtime_ns
    assert resolve(str(path)).android() == first
    assert Path(first.path).stat().st_mtime_ns == before
    assert Path(first.path).is_relative_to(library_folder())


@pytest.mark.parametrize(
    ("extra", "kind"),
    [
        (b"", "full"),
        (MINIMAL_TEXT, "minimal"),
        (MINIMAL_TEXT + b"\0/src/core/optimizer/selectors_actions/actions.cc", "extended"),
        (b"/src/core/optimizer/selectors_actions/actions.cc", "full"),
    ],
)
def test_the_kind_of_build_is_told_by_what_is_compiled_in(tmp_path: Path, extra: bytes, kind: str) -> None:
    assert read_facts(write(tmp_path / "l.so", library("x86_64", extra=extra))).kind == kind


def test_the_installed_wheel_is_a_full_build_for_linux() -> None:
    facts = read_facts(wheel_library())
    assert (facts.system, facts.kind, facts.providers) == ("linux", "full", ("cpu",))
    assert facts.release in wheel_library().name


@pytest.mark.parametrize("cut", [0, 3, 40, 63, 64, 200, 400])
def test_a_cut_off_library_is_refused(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path / "l.so", library("x86_64", extra=texts("1.28.0"))[:cut])
    with pytest.raises(UnavailableError, match="no libonnxruntime"):
        read_facts(path)


@given(data=st.data())
def test_any_cut_or_flip_of_a_library_is_facts_or_a_missing_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = bytearray(library("arm64-v8a", extra=texts("1.28.0", "nnapi")))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path = write(tmp_path_factory.mktemp("flip") / "l.so", bytes(whole[: data.draw(st.integers(0, len(whole)))]))
    with contextlib.suppress(UnavailableError):
        read_facts(path)


def test_a_place_beyond_all_files_is_refused(tmp_path: Path) -> None:
    """Found by the test above: the address of the strings is a number of 64 bits."""
    whole = library("x86_64")
    start = 64 + 2 * 56
    path = write(tmp_path / "l.so", whole[: start + 8] + b"\xff" * 8 + whole[start + 16 :])
    with pytest.raises(UnavailableError, match="no libonnxruntime"):
        read_facts(path)


def test_a_library_of_linux_is_none_for_phones(tmp_path: Path) -> None:
    path = write(tmp_path / "l.so", library("x86_64", needed="libc.so.6"))
    assert read_facts(path).system == "linux"
    with pytest.raises(UnavailableError, match=r"no Android libonnxruntime.*not built for Android"):
        resolve(str(path), "x86_64").android()


def test_a_member_under_a_wrong_abi_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.aar"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("jni/arm64-v8a/libonnxruntime.so", library("x86_64"))
    with pytest.raises(UnavailableError, match="for x86_64, not for arm64-v8a"):
        _ = resolve(str(path), "arm64-v8a").facts


def flip(content: bytes) -> bytes:
    """Another byte in the data of the member."""
    place = content.index(b"jni/x86_64/libonnxruntime.so") + 50
    return content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]


@pytest.mark.parametrize("damage", [lambda content, cut=cut: content[:cut] for cut in (30, 300, -200, -10)] + [flip])
def test_a_damaged_aar_leaves_nothing_behind(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = official_aar(tmp_path / "a.aar")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UnavailableError) as caught:
        resolve(str(path))
    assert "cannot be unpacked" in caught.value.what
    assert not [file for file in library_folder().rglob("*") if file.is_file()]


@pytest.mark.parametrize(
    "name", ["../../jni/x86_64/libonnxruntime.so", "/jni/x86_64/libonnxruntime.so", "jni/../libonnxruntime.so",
             "jni/x86_64/../../../libonnxruntime.so"]
)  # fmt: skip
def test_entries_that_escape_are_not_taken(tmp_path: Path, name: str) -> None:
    path = tmp_path / "folder" / "a.aar"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, library("x86_64"))
    assert archive_abis(path) == []
    with pytest.raises(UnavailableError, match=r"no libonnxruntime.so for x86_64"):
        resolve(str(path), "x86_64")
    files = {file.name for file in tmp_path.rglob("*") if file.is_file()}
    assert files == {"a.aar"}


def test_a_wheels_library_is_found_by_its_name() -> None:
    """`library get wheel:9.8.7` leaves it there; pip is not asked again."""
    for machine, abi in (("aarch64", "arm64-v8a"), ("x86_64", "x86_64")):
        place = cache_folder() / "wheels" / f"9.8.7-{machine}" / "libonnxruntime.so"
        place.parent.mkdir(parents=True)
        place.write_bytes(library(abi, needed="libc.so.6", extra=texts("9.8.7")))
        note_digests(place.parent, [place.name])
    for abi in ("arm64-v8a", "x86_64"):
        assert read_facts(find_archive("wheel:9.8.7", abi)).abi == abi
    assert find_archive("wheel:9.8.7").is_file()
    assert {(known.name, known.abi) for known in known_libraries() if known.at_hand} == {
        ("wheel:9.8.7", "arm64-v8a"),
        ("wheel:9.8.7", "x86_64"),
    }
    assert [facts.abi for facts in show_library("wheel:9.8.7").libraries] == ["arm64-v8a", "x86_64"]
    entry = get_library("wheel:9.8.7", abi="x86_64")
    assert (entry.release, entry.file.split("/")[-2]) == ("9.8.7", "9.8.7-x86_64")
    with pytest.raises(ConfigError, match="no wheels for x86"):
        get_library("wheel:9.8.7", abi="x86")


@pytest.mark.parametrize(
    ("abi", "remedy"), [("x86_64", "library get wheel:9.8.7 --abi x86_64"), ("x86", "give the path"), ("", "get")]
)
def test_a_wheel_that_was_fetched_for_another_abi_is_not_taken(abi: str, remedy: str) -> None:
    if abi:
        place = cache_folder() / "wheels" / "9.8.7-aarch64" / "libonnxruntime.so"
        place.parent.mkdir(parents=True)
        place.write_bytes(library("arm64-v8a", needed="libc.so.6"))
        note_digests(place.parent, [place.name])
    with pytest.raises(UnavailableError, match=r"no library wheel:9\.8\.7") as caught:
        find_archive("wheel:9.8.7", abi)
    assert remedy in caught.value.remedy


def test_a_difference_of_two_libraries_names_what_came_and_went(tmp_path: Path) -> None:
    keys = b"\0session.one_key\0session.other_key\0"
    old = tmp_path / "old.so"
    old.write_bytes(library("arm64-v8a", extra=texts("1.26.0", "nnapi") + keys))
    new = tmp_path / "new.so"
    telemetry = b"\0events.data.microsoft.com\0"
    new.write_bytes(library("arm64-v8a", extra=texts("1.29.0", "xnnpack") + telemetry + keys[:17]))
    document = ort_mobile("library", "diff", old, new, "--json", "-").document()
    rows = {(row["part"], row["name"]): (row["old"], row["new"]) for row in document["changes"]}
    assert rows[("release", "")] == ("1.26.0", "1.29.0")
    assert rows[("telemetry", "")] == ("no", "yes")
    assert (rows[("providers", "nnapi")], rows[("providers", "xnnpack")]) == (("yes", ""), ("", "yes"))
    assert [name for part, name in rows if part == "session config keys"] == ["session.other_key"]
    assert document["operators_asked"] == 0
    assert "x86_64" in document["why_not_asked"]
