"""Worker processes that all tests of one pytest process share: each new one imports onnx and onnxruntime again."""

import contextlib
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from pipeline.core import workers

IDLE = workers._idle_child


def become(environment: dict[str, str], folder: str) -> None:
    """In a worker: take the variables and the folder of the test that uses it now."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)


def idle_child() -> "workers._Child[Any] | None":
    """An idle worker as if this test had started it."""
    child = IDLE()
    if child:
        call = workers._encoded(partial(become, dict(os.environ), str(Path.cwd())), 0)
        workers.write_message(child.send, msgspec.json.encode(call))
        answer = workers._read_message(child.receive)
        assert answer is not None
        assert msgspec.json.decode(answer, type=workers.Reply)[0] == workers.VALUE
    return child


@contextlib.contextmanager
def shared() -> Iterator[None]:
    """Share workers inside."""
    with workers.shared_children(), mock.patch.object(workers, "_idle_child", idle_child):
        yield


@contextlib.contextmanager
def not_shared() -> Iterator[None]:
    """Let calls start and end workers of their own, as they do in a program; there are no others."""
    idle = workers._Shared.idle or []
    while idle:
        idle.pop().end()
    with mock.patch.object(workers, "_idle_child", IDLE), mock.patch.object(workers._Shared, "idle", None):
        yield


def ends_soon(pid: int) -> bool:
    """Whether a process is gone, or waits for its parent only, within a minute."""
    for _ in range(3000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False
