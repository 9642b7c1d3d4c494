"""Files that others chose: what is no regular file is refused at once, and nothing is read without end."""

import errno
import os
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from device_runner.untrusted_files import check_unpacked, open_regular, read_regular


def test_a_regular_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_regular(tmp_path / "a", 5) == b"12345"
    with open_regular(tmp_path / "a") as file:
        assert file.read(2) == b"12"


def test_a_larger_file_is_refused_without_reading_it(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(40 << 30)
    with pytest.raises(OSError, match="42,949,672,960 bytes; at most 1,000 are read") as caught:
        read_regular(tmp_path / "sparse", 1000)
    assert caught.value.errno == errno.EFBIG


def test_a_file_that_names_no_size_is_read_to_the_limit_only() -> None:
    path = Path("/proc/self/maps")
    if not path.exists():
        pytest.skip("this system has no /proc")
    assert path.stat().st_size == 0
    assert read_regular(path)
    with pytest.raises(OSError, match="at most 10 are read"):
        read_regular(path, 10)


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices have no names there")
@pytest.mark.parametrize("kind", ["named pipe", "device", "socket", "folder"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "it"
    if kind == "named pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    else:
        path.mkdir()
    descriptors = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0
    with pytest.raises(OSError):  # noqa: PT011 - a socket cannot even be opened, and says so in the system's words
        read_regular(path)
    if descriptors:
        assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def _member(file_size: int, compress_size: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("m.onnx")
    info.file_size, info.compress_size = file_size, compress_size
    return info


@pytest.mark.parametrize(
    ("size", "packed", "why"),
    [
        (1001 << 20, 900 << 20, "at most 1,048,576,000 are allowed"),
        (900 << 20, 1 << 20, "900 times what it has packed"),
        (900 << 20, 0, "times what it has packed"),
    ],
)
def test_a_member_that_would_fill_the_disk_is_refused(size: int, packed: int, why: str) -> None:
    with pytest.raises(OSError, match=why):
        check_unpacked(_member(size, packed), 1000 << 20)


@pytest.mark.parametrize(("size", "packed"), [(1000 << 20, 900 << 20), (450 << 20, 1 << 20), (0, 0)])
def test_usual_members_are_unpacked(size: int, packed: int) -> None:
    check_unpacked(_member(size, packed), 1000 << 20)


FIRST_DECODERS = """
import sys, threading
import msgspec
from device_runner.untrusted_files import decode_json

sys.setswitchinterval(1e-6)
for number in range(40):
    inner = msgspec.defstruct(f"Inner{number}", [(f"a{field}", int, 1) for field in range(20)])
    outer = msgspec.defstruct(f"Outer{number}", [(f"b{field}", inner | None, None) for field in range(20)])
    start = threading.Barrier(8)
    found = []

    def first():
        start.wait()
        found.append(decode_json('{"b3": {"a2": 5}}', outer).b3.a2)

    threads = [threading.Thread(target=first) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [5] * 8, found
"""


def test_threads_may_be_the_first_to_read_a_document_of_a_kind() -> None:
    """With msgspec's own function the process ends with SIGSEGV."""
    done = subprocess.run([sys.executable, "-c", FIRST_DECODERS], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
