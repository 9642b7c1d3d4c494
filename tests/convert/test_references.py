"""Whose session saves aware files: what `auto` finds available, and what it leaves alone."""

import zipfile
from pathlib import Path

import pytest

from device_runner.errors import RunnerError, SpecError, UnavailableError
from device_runner.host_device import Processor
from device_runner.library import MINIMAL_TEXT, NamedLibrary, keep, resolve
from pipeline.convert.aware_reference import choose_reference
from pipeline.convert.request import AwareSpec
from pipeline.core.variant import AwareBy, Way
from tests.library.library_files import library, official_jar, texts

INSTALLED = AwareSpec(by=AwareBy(way=Way.INSTALLED))
AUTO = AwareSpec(by=AwareBy(way=Way.INSTALLED), optional=True)
AT_HAND = ("1.28.0", "1.9.2", "1.28.1", "1.29.0")


def archive(path: Path, release: str, *providers: str, extra: bytes = b"", abis: tuple[str, ...] = ("x86_64",)) -> Path:
    """An AAR with a library for each ABI that has these providers."""
    with zipfile.ZipFile(path, "w") as file:
        for abi in abis:
            content = library(abi, extra=texts(release, *providers) + extra)
            file.writestr(f"jni/{abi}/libonnxruntime.so", content)
    return path


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that can run libraries, with some of them in its cache and others in the current folder."""
    monkeypatch.chdir(tmp_path)
    for release in AT_HAND:
        content = archive(Path("kept.aar"), release, "nnapi").read_bytes()
        keep(content, file="kept.aar", name=NamedLibrary(release=release), source="here", licence="MIT")
    jar = official_jar(Path("kept.jar"), "1.28.3").read_bytes()
    keep(jar, file="kept.jar", name=NamedLibrary(scheme="jvm", release="1.28.3"), source="here", licence="MIT")
    archive(Path("app.aar"), "1.29.0", "nnapi", extra=b"the app's own build")
    archive(Path("reduced.aar"), "1.29.0", "nnapi", extra=MINIMAL_TEXT)
    archive(Path("cpu.aar"), "1.29.0")
    archive(Path("phones.aar"), "1.29.0", "nnapi", abis=("arm64-v8a", "x86_64"))
    monkeypatch.setattr("device_runner.host_device.find_processor", lambda abi: Processor(abi=abi))
    monkeypatch.setattr("device_runner.android_host.build.build_host", lambda _processor: Path())


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("release", "ships", "found"),
    [
        ("1.28", (), "android:1.28.1"),
        ("1.28.0", (), "android:1.28.0"),
        ("1.9", (), "android:1.9.2"),
        ("1.2", (), ""),
        ("1.30", (), ""),
        ("1.29", ("app.aar",), "app.aar"),
        ("1.28", ("app.aar",), "android:1.28.1"),
        ("", ("app.aar",), "app.aar"),
        ("1.29", ("gone.aar",), "android:1.29.0"),
        ("1.29", ("reduced.aar", "cpu.aar"), "android:1.29.0"),
    ],
)
def test_auto_takes_a_library_of_the_release_at_hand(release: str, ships: tuple[str, ...], found: str) -> None:
    chosen = choose_reference("auto", release, ships, abi="x86_64")
    assert chosen.optional
    assert chosen.by.sha256 == (resolve(found).sha256 if found else "")


@pytest.mark.usefixtures("host")
def test_what_is_named_is_taken() -> None:
    assert choose_reference("none", "1.28") == AwareSpec()
    assert choose_reference("installed", "1.28") == INSTALLED
    named = choose_reference("app.aar", "1.28")
    app = resolve("app.aar")
    by = AwareBy(way=Way.LIBRARY, release="1.29.0", sha256=app.sha256)
    assert named == AwareSpec(by=by, library=str(app.path))
    with pytest.raises(SpecError):
        choose_reference("gone.aar", "1.28")
    for name, why in (("reduced.aar", "minimal"), ("cpu.aar", "without nnapi")):
        with pytest.raises(RunnerError, match=why):
            choose_reference(name, "1.29")


@pytest.mark.usefixtures("host")
def test_the_library_of_the_abi_is_asked_and_no_other() -> None:
    phones = ("phones.aar",)
    for text, ships in (("auto", phones), ("phones.aar", ())):
        chosen = choose_reference(text, "1.29", ships, abi="arm64-v8a")
        assert (chosen.by.abi, chosen.library) == ("arm64-v8a", str(resolve("phones.aar", "arm64-v8a").path))
    assert choose_reference("auto", "1.29", ("app.aar",), abi="arm64-v8a") == AUTO
    with pytest.raises(UnavailableError, match="arm64-v8a"):
        choose_reference("app.aar", "1.29", abi="arm64-v8a")


@pytest.mark.usefixtures("host")
def test_a_machine_that_cannot_run_libraries_keeps_our_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_processor: object) -> None:
        raise UnavailableError("android-host does not run on this computer")

    monkeypatch.setattr("device_runner.android_host.build.build_host", refuse)
    assert choose_reference("auto", "1.28") == AUTO
