"""Maven Central by plain HTTPS against a server of our own, and build tools' caches: checksums, cuts, no network."""

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from device_runner.errors import UnavailableError as RunnerMissing
from device_runner.library import NamedLibrary, entries, find_archive, known_digests, library_folder, resolve
from pipeline.core.errors import MissingError
from pipeline.library import fetch
from pipeline.library.fetch import by_https, get_library, known_libraries
from tests.library.library_files import official_aar, official_jar

WANTED = NamedLibrary(scheme="jvm", release="9.8.7")


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder; a file beside a *.cut is sent with a longer Content-Length, one beside a *.slow by the byte."""

    def copyfile(self, source: Any, outputfile: Any) -> None:
        if not Path(f"{self.translate_path(self.path)}.slow").exists():
            super().copyfile(source, outputfile)
            return
        with contextlib.suppress(OSError):
            while byte := source.read(1):
                outputfile.write(byte)
                outputfile.flush()
                time.sleep(0.02)

    def send_header(self, keyword: str, value: str) -> None:
        longer = keyword == "Content-Length" and Path(f"{self.translate_path(self.path)}.cut").exists()
        super().send_header(keyword, str(int(value) + 100) if longer else value)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def repository(own_caches: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Maven repository: its folder, served on this computer."""
    folder = own_caches / "repository"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("ORT_MOBILE_MAVEN", f"http://127.0.0.1:{server.server_port}/")
        yield folder
        server.shutdown()
        thread.join()


def publish(repository: Path, *, kind: str = "sha1", digest: str | None = None) -> Path:
    path = repository / WANTED.path
    path.parent.mkdir(parents=True)
    official_jar(path, "9.8.7")
    noted = digest if digest is not None else hashlib.new(kind, path.read_bytes()).hexdigest()
    path.with_name(f"{path.name}.{kind}").write_text(f"{noted}\n")
    return path


@pytest.mark.parametrize("kind", ["sha1", "sha256", "sha512"])
def test_a_file_with_its_checksum_is_kept(repository: Path, kind: str) -> None:
    path = publish(repository, kind=kind)
    entry = get_library("jvm:9.8.7")
    assert Path(entry.file).read_bytes() == path.read_bytes()
    assert Path(entry.file).is_relative_to(library_folder())
    path.unlink()
    assert get_library("jvm:9.8.7") == entry, "from the cache now"
    assert [(known.name, known.at_hand) for known in known_libraries() if known.at_hand] == [("jvm:9.8.7", True)]


@pytest.mark.parametrize("digest", ["0" * 40, "", "garbage"])
def test_another_checksum_keeps_the_file_out_of_the_cache(repository: Path, digest: str) -> None:
    publish(repository, digest=digest)
    with pytest.raises(MissingError, match="not what the repository says"):
        by_https(WANTED)
    with pytest.raises(MissingError) as caught:
        get_library("jvm:9.8.7")
    assert "not what the repository says" in caught.value.why
    assert entries() == []
    assert not library_folder().exists()


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing there": (Path.unlink, "404"),
    "no checksum": (lambda path: Path(f"{path}.sha1").unlink(), "has no checksum"),
    "checksum without end": (lambda path: Path(f"{path}.sha1").write_text("0" * 1_000_000), "has no checksum"),
    "cut off": (lambda path: Path(f"{path}.cut").touch(), "came cut off"),
    "sent without end": (lambda path: Path(f"{path}.slow").touch(), "too slow.*within 1 seconds"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_server_sends_wrongly_is_not_used(repository: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, why = FAULTS[fault]
    make(publish(repository))
    monkeypatch.setattr(fetch, "FETCH_SECONDS", 1 if fault == "sent without end" else fetch.FETCH_SECONDS)
    with pytest.raises(MissingError, match=why):
        by_https(WANTED)


@pytest.mark.parametrize("address", ["file:///etc", "ftp://x", "nonsense", "https//x"])
def test_an_address_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("ORT_MOBILE_MAVEN", address)
    with pytest.raises(MissingError) as caught:
        by_https(WANTED)
    assert "https://repo1.maven.org" in caught.value.remedy


@pytest.mark.usefixtures("own_caches")
@pytest.mark.parametrize(
    ("name", "artifact", "ways"),
    [("jvm:9.8.7", "onnxruntime:9.8.7", ()), ("1.29.0", "onnxruntime-android:1.29.0", ("npm is not on PATH",))],
)
def test_without_network_and_clients_every_way_is_named(name: str, artifact: str, ways: tuple[str, ...]) -> None:
    with pytest.raises(MissingError) as caught:
        get_library(name)
    for part in ("Gradle or Maven cache", "mvn is not on PATH", "cannot be fetched", *ways):
        assert part in caught.value.why
    assert name in caught.value.what
    assert f"com.microsoft.onnxruntime:{artifact}" in caught.value.remedy


def _cached(home: Path, tool: str, digest: str) -> Path:
    folder = {
        "gradle": home
        / "gradle/caches/modules-2/files-2.1/com.microsoft.onnxruntime/onnxruntime-android/9.8.7"
        / digest,
        "maven": home / ".m2/repository/com/microsoft/onnxruntime/onnxruntime-android/9.8.7",
    }[tool]
    folder.mkdir(parents=True)
    path = official_aar(folder / "onnxruntime-android-9.8.7.aar", "9.8.7")
    if tool == "maven":
        path.with_name(f"{path.name}.sha1").write_text(digest)
    return path


def _digest(folder: Path) -> str:
    """The SHA-1 of the file that `_cached` puts there."""
    content = official_aar(folder / "same.aar", "9.8.7").read_bytes()
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


@pytest.mark.parametrize("tool", ["gradle", "maven"])
def test_a_build_tools_file_is_held_against_its_checksum(own_caches: Path, tool: str) -> None:
    _cached(own_caches, tool, "1" * 40)
    with pytest.raises(RunnerMissing) as caught:
        find_archive("android:9.8.7")
    assert "SHA-1" in caught.value.why
    with pytest.raises(MissingError) as caught:
        get_library("android:9.8.7")
    assert "SHA-1" in caught.value.why
    assert "cannot be fetched" in caught.value.why, "the search went on"
    assert entries() == []


def test_a_damaged_file_in_one_cache_does_not_stop_the_search(own_caches: Path, tmp_path: Path) -> None:
    _cached(own_caches, "gradle", "1" * 40)
    sound = _cached(own_caches, "maven", _digest(tmp_path))
    assert find_archive("android:9.8.7") == sound
    assert get_library("android:9.8.7").source == str(sound)


@pytest.mark.parametrize("tool", ["gradle", "maven"])
def test_a_build_tools_file_with_its_checksum_is_taken(own_caches: Path, tmp_path: Path, tool: str) -> None:
    path = _cached(own_caches, tool, _digest(tmp_path).lstrip("0"))
    assert get_library("9.8.7").source == str(path)


def test_an_unpacked_library_that_was_damaged_is_unpacked_again(own_caches: Path) -> None:
    path = official_jar(own_caches / "a.jar", "9.8.7")
    library = Path(resolve(str(path), "x86_64").facts.path)
    whole = library.read_bytes()
    library.write_bytes(whole[:100] + bytes(64) + whole[164:])
    again = resolve(str(path), "x86_64").facts
    assert Path(again.path) == library
    assert library.read_bytes() == whole
    assert again.sha256 == hashlib.sha256(whole).hexdigest()


def test_a_kept_file_that_was_damaged_is_fetched_again(repository: Path) -> None:
    whole = publish(repository).read_bytes()
    entry = get_library("jvm:9.8.7")
    Path(entry.file).write_bytes(b"7 bytes")
    with pytest.raises(RunnerMissing, match="no library jvm"):
        find_archive("jvm:9.8.7")
    assert get_library("jvm:9.8.7") == entry
    assert Path(entry.file).read_bytes() == whole


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"6 bytes", "not a zip"),
        (b"PK\x05\x06" + bytes(18), "no libonnxruntime.so"),
        (b"<html>404</html>", "not a zip"),
    ],
)
def test_what_is_no_package_is_not_kept(repository: Path, content: bytes, why: str) -> None:
    """A mirror that lies consistently: the checksum fits."""
    path = repository / WANTED.path
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    path.with_name(f"{path.name}.sha1").write_text(hashlib.sha1(content, usedforsecurity=False).hexdigest())
    with pytest.raises(MissingError) as caught:
        get_library("jvm:9.8.7")
    assert "no such package" in caught.value.why
    assert why in caught.value.why
    assert entries() == []


def test_a_release_that_does_not_exist_names_the_nearest_that_does(repository: Path) -> None:
    folder = repository / WANTED.folder
    folder.mkdir(parents=True)
    listed = "".join(f"<version>{release}</version>" for release in ("9.6.0", "9.8.5", "9.9.1", "10.0.0-rc1"))
    (folder / "maven-metadata.xml").write_text(f"<metadata><versions>{listed}</versions></metadata>")
    with pytest.raises(MissingError) as caught:
        get_library("jvm:9.8.7")
    assert "404" in caught.value.why
    assert "9.6.0, 9.8.5, 9.9.1" in caught.value.why
    assert "`ort-mobile library get jvm:9.8.5`" in caught.value.remedy


def test_what_is_done_is_said(repository: Path) -> None:
    path = publish(repository)
    lines: list[str] = []
    get_library("jvm:9.8.7", say=lines.append)
    told = "\n".join(lines)
    assert "looking into the caches of Gradle and Maven" in told
    assert "not found there: mvn is not on PATH" in told
    assert f"/{WANTED.path}" in told
    assert f"fetched {path.stat().st_size:,} bytes" in told
    assert "its sha1 is the one that" in told
    lines.clear()
    get_library("jvm:9.8.7", say=lines.append)
    assert lines == ["jvm:9.8.7 was fetched before"]


def test_a_name_that_nobody_knows_is_no_network(own_caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_MOBILE_MAVEN", "https://nowhere.invalid/maven2")
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(MissingError) as caught:
        get_library("jvm:9.8.7")
    assert "no network: nowhere.invalid" in caught.value.why
    assert "check the network" in caught.value.remedy


def test_a_mirror_without_encryption_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ORT_MOBILE_MAVEN", "http://nowhere.invalid/maven2")
    with pytest.raises(MissingError):
        by_https(WANTED)
    assert "not encrypted" in caplog.text


def test_another_licence_comes_with_the_whole_command_and_a_place_to_read_it(own_caches: Path) -> None:
    with pytest.raises(MissingError) as caught:
        get_library("android:1.28.0")
    assert "`ort-mobile library get android:1.28.0 --accept-licence`" in caught.value.remedy
    assert "https://www.npmjs.com/package/@runanywhere/onnx" in caught.value.remedy
    assert "third party" in caught.value.why


def test_the_repository_that_was_asked_is_named_and_an_unknown_file_is_warned_of(
    repository: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    publish(repository)
    address = os.environ["ORT_MOBILE_MAVEN"].rstrip("/")
    assert get_library("jvm:9.8.7").source == f"Maven com.microsoft.onnxruntime:onnxruntime of {address}"
    (warning,) = caplog.messages
    assert "onnxruntime-9.8.7.jar" in warning
    assert address in warning
    get_library("jvm:9.8.7")
    assert len(caplog.messages) == 1


def test_a_known_release_must_be_the_released_file(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mirror's checksum fits its own file, which is another."""
    path = publish(repository)
    monkeypatch.setitem(known_digests(), path.name, "0" * 64)
    with pytest.raises(MissingError) as caught:
        get_library("jvm:9.8.7")
    assert "not the one that was released" in caught.value.why
    assert entries() == []
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(known_digests(), path.name, digest)
    assert get_library("jvm:9.8.7").sha256 == digest


def test_a_known_release_in_a_build_tools_cache_must_be_the_released_file(
    own_caches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _cached(own_caches, "gradle", _digest(tmp_path))
    monkeypatch.setitem(known_digests(), "onnxruntime-android-9.8.7.aar", "0" * 64)
    with pytest.raises(RunnerMissing, match="not the one that was released"):
        find_archive("android:9.8.7")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("[ERROR] Failed: Could not find artifact a:b:aar:1 in central (https://r/maven2) -> [Help 1]",
         "Could not find artifact a:b:aar:1 in central"),
        ("[ERROR] Failed: a:b:aar:1 was not found in https://r/maven2 during a previous attempt. This failure was ...",
         "a:b:aar:1 was not found in https://r/maven2 during a previous attempt"),
        ("[ERROR] Failed: Could not transfer artifact a:b from/to central -> [Help 1]",
         "Could not transfer artifact a:b from/to central"),
    ],
)  # fmt: skip
def test_mavens_reason_is_its_sentence(answer: str, why: str) -> None:
    found = fetch.MAVEN_REASON.search(f"[INFO] line\n{answer}\n[ERROR]\n")
    assert found
    assert found[1] == why


def test_mavens_own_client_names_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = tmp_path / "mvn"
    line = f"[INFO] Downloaded from mirror: https://user:secret@mirror.example/m2/{WANTED.path} (41 MB at 2 MB/s)"
    place = f"${{word#*=}}/{WANTED.file_name}"
    client.write_text(f"#!/bin/sh\nfor word; do :; done\nprintf x > \"{place}\"\necho '{line}'\n")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert fetch.by_client(WANTED) == (b"x", "https://mirror.example/m2")
