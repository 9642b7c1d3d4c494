"""Folders of our own: where they are, what is moved into them, and what is not used from them."""

import shutil
import stat
from pathlib import Path

import pytest

from device_runner.build import build_probe
from device_runner.device import take_lease
from device_runner.errors import UnavailableError
from device_runner.files import are_sound, cache_folder, note_digests, own_folder_errors, state_folder
from tests import own_home


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, and no variable that says otherwise."""
    for name in ("ORT_MOBILE_CACHE", "ORT_MOBILE_STATE", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("variables", "cache", "state"),
    [
        ({}, "home/.cache/ort-mobile", "home/.local/state/ort-mobile"),
        ({"XDG_CACHE_HOME": "/x", "XDG_STATE_HOME": "/y"}, "/x/ort-mobile", "/y/ort-mobile"),
        ({"XDG_CACHE_HOME": "relative"}, "home/.cache/ort-mobile", "home/.local/state/ort-mobile"),
        ({"ORT_MOBILE_CACHE": "/c", "ORT_MOBILE_STATE": "/s", "XDG_CACHE_HOME": "/x"}, "/c", "/s"),
    ],
)
def test_folders_follow_the_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], cache: str, state: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (cache_folder(), state_folder()) == (tmp_path / cache, tmp_path / state)


def test_leases_are_no_cache() -> None:
    with take_lease("serial", "adb:serial"):
        assert list((state_folder() / "leases").iterdir())
        with pytest.raises(UnavailableError, match="in use"):
            take_lease("serial", "adb:serial")
    assert not cache_folder().exists()


@pytest.mark.parametrize("damage", ["bytes", "shorter", "removed", "note", "no note", "binary note"])
def test_a_file_that_is_not_what_was_noted_is_not_sound(tmp_path: Path, damage: str) -> None:
    file, note = tmp_path / "file", tmp_path / "SHA256SUMS"
    file.write_bytes(bytes(1000))
    note_digests(tmp_path, ["file"])
    assert are_sound(tmp_path, ["file"])
    if damage == "bytes":
        file.write_bytes(bytes(999) + b"1")
    elif damage == "shorter":
        file.write_bytes(bytes(999))
    elif damage == "removed":
        file.unlink()
    elif damage == "note":
        note.write_text(note.read_text().replace("file", "other"))
    elif damage == "no note":
        note.unlink()
    else:
        note.write_bytes(b"\xff\xfe")
    assert not are_sound(tmp_path, ["file"])


@pytest.mark.long
def test_a_damaged_probe_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the one that all tests use: to build it takes two seconds."""
    shared, cache = tmp_path / "shared", tmp_path / "cache"
    own_home.link(shared)
    monkeypatch.setenv("ORT_MOBILE_CACHE", str(shared))
    folder = build_probe().parent
    shutil.copytree(folder, cache / folder.relative_to(shared))
    monkeypatch.setenv("ORT_MOBILE_CACHE", str(cache))
    probe = build_probe()
    assert probe.is_relative_to(cache)
    whole, built = probe.read_bytes(), probe.stat().st_mtime_ns
    assert build_probe().stat().st_mtime_ns == built, "a sound one is used as it is"
    probe.write_bytes(whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:])
    assert build_probe().read_bytes() == whole
    assert probe.stat().st_mode & stat.S_IXUSR


def test_a_folder_that_cannot_be_written_is_named_with_its_variable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError) as caught, own_folder_errors(tmp_path / "file" / "probe"):
        (tmp_path / "file" / "probe").mkdir(parents=True)
    assert caught.value.why == "Not a directory"
    assert "ORT_MOBILE_CACHE" in caught.value.remedy
