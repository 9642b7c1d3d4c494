"""Whose session saves aware files: what `auto` finds available, and what it leaves alone."""

from pathlib import Path

import pytest

from device_runner.errors import MissingError, RunnerError, SpecError
from device_runner.library_facts import LibraryFacts
from pipeline.convert import references
from pipeline.convert.references import choose_reference
from pipeline.convert.splice.edits import AwareSource
from pipeline.library.fetch import KnownLibrary

AT_HAND = ("android:1.28.0", "android:1.9.2", "android:1.28.1", "jvm:1.28.3", "android:1.29.0")


def facts(name: str) -> LibraryFacts:
    release = name.partition(":")[2] or "1.29.0"
    return LibraryFacts(
        path=name, sha256=release, size_bytes=1, system="android", abi="x86_64", release=release, commit="",
        kind="minimal" if name == "reduced.aar" else "full", page_bytes=16384, needed=(), imports=(),
        providers=("cpu",) if name == "cpu.aar" else ("cpu", "nnapi"),
    )  # fmt: skip


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that can run libraries, with some of them in its cache and one in an app's folder."""

    def find(name: str) -> LibraryFacts:
        if name not in (*AT_HAND, "app.aar", "reduced.aar", "cpu.aar"):
            raise SpecError(f"no library at {name!r}")
        return facts(name)

    known = [KnownLibrary(name=n, release=n.partition(":")[2], at_hand=True, place="") for n in AT_HAND]
    known.append(KnownLibrary(name="android:1.28.7", release="1.28.7", at_hand=False, place="npm"))
    monkeypatch.setattr(references, "known_libraries", lambda: known)
    monkeypatch.setattr(references, "find_library", find)
    monkeypatch.setattr(references, "check_host", lambda: None)
    monkeypatch.setattr(references, "build_host", lambda: Path())


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
    chosen = choose_reference("auto", release, ships)
    assert chosen is not None
    assert (chosen.library, chosen.optional) == (found, True)
    assert bool(chosen.sha256) == bool(found)


@pytest.mark.usefixtures("host")
def test_what_is_named_is_taken() -> None:
    assert choose_reference("none", "1.28") is None
    assert choose_reference("installed", "1.28") == AwareSource()
    named = choose_reference("app.aar", "1.28")
    assert named == AwareSource(library="app.aar", release="1.29.0", sha256="1.29.0")
    with pytest.raises(SpecError):
        choose_reference("gone.aar", "1.28")
    for name, why in (("reduced.aar", "minimal"), ("cpu.aar", "without nnapi")):
        with pytest.raises(RunnerError, match=why):
            choose_reference(name, "1.29")


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("check", ["check_host", "build_host"])
def test_a_machine_that_cannot_run_libraries_splices(monkeypatch: pytest.MonkeyPatch, check: str) -> None:
    def refuse() -> None:
        raise MissingError("android-host does not run on this computer")

    monkeypatch.setattr(references, check, refuse)
    assert choose_reference("auto", "1.28") == AwareSource(optional=True)
