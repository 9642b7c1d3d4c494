"""Requests one after the other by the probe alone: each once, in a process of its own, none left when it is killed."""

import json
import os
import signal
import subprocess
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from device_runner.build import build_probe
from device_runner.probe import protocol
from device_runner.spec import RunSpec
from tests.children import ends_soon

NOT_FIT = 75


@pytest.fixture
def folder(models: Path, library: str, tmp_path: Path) -> Path:
    """Five turns of a model, of which 0002 takes half a minute and 0003 has no model."""
    (tmp_path / "requests").mkdir()
    for number in range(5):
        spec = RunSpec(
            id="x",
            library=library,
            model=str(models / ("none.onnx" if number == 3 else "null.onnx")),
            min_seconds=30.0 if number == 2 else 0.0,
            outputs_folder="",
        )
        (tmp_path / f"requests/{number:04d}").write_bytes(protocol.encode_request(spec, prefix=f"{number:04d}."))
    turns(tmp_path, 0, 1)
    (tmp_path / "state.sh").write_text("echo level 50\n")
    return tmp_path


def turns(folder: Path, *numbers: int) -> None:
    (folder / "turns").write_text("".join(f"{number:04d}\n" for number in numbers))


def start(folder: Path, seconds: int = 0) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([str(build_probe()), "turns", str(folder), str(seconds)])


def code_of(folder: Path, turn: str) -> str:
    return (folder / f"session/{turn}.code").read_text()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_each_turn_runs_once_and_says_what_it_answers(folder: Path) -> None:
    turns(folder, 0, 3, 4)
    before = time.time_ns() // 1_000_000
    assert start(folder).wait() == 0
    assert [code_of(folder, turn) for turn in ("0000", "0003", "0004")] == ["0\n", "1\n", "0\n"]
    request = (folder / "requests/0004").read_bytes()
    answer = json.loads((folder / "session/0004.answer").read_bytes())
    assert answer["request"] == zlib.crc32(request[: request.rindex(b"check\0")])
    begun = int((folder / "session/0004.begun").read_text())
    assert before <= begun <= answer["began_ms"] <= answer["ended_ms"] <= time.time_ns() // 1_000_000
    assert 0 < answer["memory_private_bytes"] <= answer["memory_peak_bytes"]
    assert [output["file"] for output in answer["outputs"]] == ["0004.output_0.raw"]
    assert (folder / "session/0004.output_0.raw").stat().st_size == 16
    assert (folder / "session/0004.after").read_text() == "level 50\n"
    stamps = {path: path.stat().st_mtime_ns for path in (folder / "session").iterdir()}
    assert start(folder).wait() == 0
    assert {path: path.stat().st_mtime_ns for path in (folder / "session").iterdir()} == stamps


def test_a_killed_runner_leaves_no_process_and_the_next_goes_on(folder: Path) -> None:
    turns(folder, 0, 2, 4)
    runner = start(folder)
    until((folder / "session/0002.begun").exists)
    until(lambda: len(children := _children(runner.pid)) == 1 and bool(_children(children[0])))
    (turn,) = _children(runner.pid)
    processes = [turn, *_children(turn)]
    assert start(folder).wait() == 3  # two at once would measure each other
    os.kill(runner.pid, signal.SIGKILL)
    runner.wait()
    assert all(map(ends_soon, processes))
    assert start(folder).wait() == 0
    assert [code_of(folder, turn) for turn in ("0000", "0002", "0004")] == ["0\n", "lost\n", "0\n"]
    assert not (folder / "session/0002.answer").exists()


def _children(process: int) -> list[int]:
    paths = Path(f"/proc/{process}/task/{process}/children")
    return list(map(int, paths.read_text().split())) if paths.exists() else []


def test_a_device_that_is_not_fit_is_waited_for(folder: Path) -> None:
    """It is asked again; a turn whose time to wait is over runs all the same."""
    turns(folder, 0)
    (folder / "state.sh").write_text(f"[ -e hot ] && exit 0\n: > hot\nexit {NOT_FIT}\n")
    begun = time.monotonic()
    assert start(folder, seconds=1).wait() == 0
    assert time.monotonic() - begun > 0.9
    assert code_of(folder, "0000") == "0\n"


@pytest.mark.parametrize("line", ["../0000", "", "0000 x", "123456789", "0" * 200])
def test_names_that_lead_elsewhere_are_no_turns(folder: Path, line: str) -> None:
    (folder / "turns").write_text(f"{line}\n0000\n")
    assert start(folder).wait() == 2
    assert not list((folder / "session").iterdir())


def test_a_folder_without_turns_cannot_be_used(tmp_path: Path) -> None:
    assert start(tmp_path).wait() == 2
    assert start(tmp_path / "none").wait() == 2
