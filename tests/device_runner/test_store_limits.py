"""How long the store waits for a device: a connection that hangs must not cost minutes for a small file."""

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from device_runner.adb.link import Link
from device_runner.adb.store import DeviceStore


class Listener(Link):
    """A link that notes how long each command and push may take, on a device that has nothing and takes all."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 1), "S")
        self.seconds: list[float] = []

    def shell(
        self, arguments: Sequence[str], *, stdin: bytes = b"", seconds: float = 30.0, limit_bytes: int = 1 << 20
    ) -> "subprocess.CompletedProcess[bytes]":
        self.seconds.append(seconds)
        return subprocess.CompletedProcess(arguments, 1 if len(self.seconds) == 1 else 0, b"", b"")

    def push(self, parts: Iterable[bytes], remote: str, *, seconds: float) -> None:
        self.seconds.append(seconds)
        assert sum(map(len, parts))


@pytest.mark.parametrize(("size", "least", "most"), [(1_000, 0, 30), (200_000_000, 200, 1000)])
def test_a_file_is_waited_for_by_its_size(tmp_path: Path, size: int, least: float, most: float) -> None:
    path = tmp_path / "x.ort"
    with path.open("wb") as file:
        file.truncate(size)
    link = Listener()
    DeviceStore(link, "/folder").put(path, ".ort")
    assert len(link.seconds) == 4, "is it there, what is there, push, accept"
    assert least <= max(link.seconds) <= most, "for the slowest step"
