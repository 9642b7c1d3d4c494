"""Maven Central by plain HTTPS against a server of our own, and build tools' caches: checksums, cuts, no network."""

import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from device_runner.errors import MissingError as RunnerMissing
from device_runner.library_source import Name, entries, find_archive, library_folder, open_library
from pipeline.errors import MissingError
from pipeline.maven import Coordinates, by_https
from pipeline.ort_library import get_library, known_libraries
from tests.libraries.library_files import official_aar, official_jar

WANTED = Coordinates("com.microsoft.onnxruntime", "onnxruntime", "9.8.7", "jar")


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder; a file named *.cut is sent with a longer Content-Length than it has."""

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


def test_a_file_without_checksum_is_not_used(repository: Path) -> None:
    path = publish(repository)
    path.with_name(f"{path.name}.sha1").unlink()
    with pytest.raises(MissingError, match="has no checksum"):
        by_https(WANTED)


def test_a_file_that_comes_cut_off_is_not_used(repository: Path) -> None:
    path = publish(repository)
    path.with_name(f"{path.name}.cut").touch()
    with pytest.raises(MissingError):
        by_https(WANTED)


def test_what_is_not_there_says_what_the_server_said(repository: Path) -> None:
    with pytest.raises(MissingError, match="404"):
        by_https(WANTED)


@pytest.mark.parametrize("address", ["file:///etc", "ftp://x", "nonsense", "https//x"])
def test_an_address_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("ORT_MOBILE_MAVEN", address)
    with pytest.raises(MissingError) as caught:
        by_https(WANTED)
    assert "https://repo1.maven.org" in caught.value.remedy


@pytest.mark.usefixtures("own_caches")
def test_without_network_every_way_is_named() -> None:
    with pytest.raises(MissingError) as caught:
        get_library("jvm:9.8.7")
    for part in ("Gradle or Maven cache", "mvn is not on PATH", "cannot be fetched"):
        assert part in caught.value.why
    assert "com.microsoft.onnxruntime:onnxruntime:9.8.7" in caught.value.remedy


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
    digest = hashlib.sha1(official_aar(tmp_path / "same.aar", "9.8.7").read_bytes(), usedforsecurity=False).hexdigest()
    sound = _cached(own_caches, "maven", digest)
    assert find_archive("android:9.8.7") == sound
    assert get_library("android:9.8.7").source == str(sound)


@pytest.mark.parametrize("tool", ["gradle", "maven"])
def test_a_build_tools_file_with_its_checksum_is_taken(own_caches: Path, tmp_path: Path, tool: str) -> None:
    digest = hashlib.sha1(official_aar(tmp_path / "same.aar", "9.8.7").read_bytes(), usedforsecurity=False).hexdigest()
    path = _cached(own_caches, tool, digest.lstrip("0"))
    assert get_library("9.8.7").source == str(path)


def test_names_are_told_apart(own_caches: Path) -> None:
    assert str(Name("jvm", "1.28.0")) == "jvm:1.28.0"
    with pytest.raises(MissingError, match=r"jvm:1\.28\.0"):
        get_library("jvm:1.28.0")


def test_an_unpacked_library_that_was_damaged_is_unpacked_again(own_caches: Path) -> None:
    path = official_jar(own_caches / "a.jar", "9.8.7")
    library = Path(open_library(path, "x86_64").path)
    whole = library.read_bytes()
    library.write_bytes(whole[:100] + bytes(64) + whole[164:])
    again = open_library(path, "x86_64")
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
