"""A command stopped before each of its changes of the file system, and begun again: what both leave.

Run as a program, it forks for each stop, so that all of them share one start of Python; no thread is in it.
"""

import contextlib
import errno
import functools
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest

from tests.values import files_of

CHANGES = ("os.rename", "os.link", "os.mkdir", "os.rmdir", "os.remove", "os.chmod", "ctypes.dlsym")
"""Audit events of changes besides an `open` for writing; ctypes calls renameat2."""
ACTIONS = ("kill", "interrupt", "full", "broken")
STOPPED = [pytest.param(("kill",), marks=pytest.mark.long), pytest.param(ACTIONS, marks=pytest.mark.every_call)]
"""For tests of all stops: kills alone, and all."""
TRACES = ("Traceback", "Internal error")


class Stop(NamedTuple):
    """One stop: how and before which change, the folder that it left, and that after the command was begun again."""

    action: str
    number: int
    after: Path
    again: Path
    again_code: int
    traced: bool

    @property
    def name(self) -> str:
        return f"{self.action} before change {self.number}"


def stops(folder: Path, words: tuple[object, ...], actions: tuple[str, ...] = ACTIONS) -> list[Stop]:
    """Every stop of `ort-mobile WORDS` in copies of `folder`/start, the last one of each action being none.

    Folders that are alike are one.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.stops", str(folder), json.dumps([*map(str, words)]), *actions],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = (json.loads(line) for line in done.stdout.splitlines())
    return [Stop(action, number, Path(after), Path(again), *rest) for action, number, after, again, *rest in rows]


def _is_change(event: str, arguments: tuple[object, ...]) -> bool:
    flags = arguments[2] if event == "open" else 0
    return event in CHANGES or (isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)))


def _fail(number: int) -> None:
    raise OSError(number, os.strerror(number))


def _interrupt() -> None:
    raise KeyboardInterrupt


_ACTIONS: dict[str, Callable[[], None]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "interrupt": _interrupt,
    "full": functools.partial(_fail, errno.ENOSPC),
    "broken": functools.partial(_fail, errno.EIO),
}


def _forked(work: Path, words: list[str], number: int | None, action: str) -> tuple[int, str, bool]:
    """The exit code of the command in `work`, what it said, and whether it was stopped: before change `number`."""
    from pipeline.cli.main import main

    said, mark = work.with_name("said"), work.with_name("stopped")
    mark.unlink(missing_ok=True)
    child = os.fork()
    if not child:
        output = os.open(said, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(work)
        sys.argv = ["ort-mobile", *words]
        left = number

        def count(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            if left is not None and _is_change(event, arguments):
                left -= 1
                if left < 0:
                    left = None
                    mark.touch()
                    _ACTIONS[action]()

        sys.addaudithook(count)
        code = 99
        try:
            main()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 99
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, said.read_text("utf-8", "replace"), mark.exists()


def _kept(work: Path, place: Path) -> Path:
    """A copy of a folder, one for all that are alike."""
    content = sorted(files_of(work).items())
    folders = sorted(str(path.relative_to(work)) for path in work.rglob("*") if path.is_dir())
    kept = place / hashlib.sha256(repr((content, folders)).encode()).hexdigest()[:16]
    if not kept.exists():
        shutil.copytree(work, kept, symlinks=True)
    return kept


def _once_compiled() -> None:
    """Let the Java compiler, which changes nothing but its own scratch folder, run in the first call alone."""
    from pipeline.features.android import library
    from pipeline.features.android.package import compiled

    classes: dict[object, dict[str, bytes]] = {}

    def remembered(package: str, sources: dict[str, str], work: Path) -> dict[str, bytes]:
        key = package, *sources.items()
        if key not in classes:
            made = compiled(package, sources, work).items()
            classes[key] = {name: file.read_bytes() if isinstance(file, Path) else file for name, file in made}
        return classes[key]

    mock.patch.object(library, "compiled", remembered).start()


def _all(folder: Path, words: list[str], actions: list[str]) -> Iterator[tuple[object, ...]]:
    from pipeline.cli.main import cli

    work, kept = folder / "work", folder / "kept"
    _once_compiled()
    shutil.copytree(folder / "start", work)
    with contextlib.chdir(work):
        cli.main(args=words, standalone_mode=False)  # imports what it needs, once for all
    for action in actions:
        number, stopped = 0, True
        while stopped:
            shutil.rmtree(work)
            shutil.copytree(folder / "start", work)
            _, said, stopped = _forked(work, words, number, action)
            after = _kept(work, kept)
            code, said_again, _ = _forked(work, words, None, action)
            traced = any(trace in said + said_again for trace in TRACES)
            yield action, number, str(after), str(_kept(work, kept)), code, traced
            number += 1


if __name__ == "__main__":
    rows = _all(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:])
    output = os.dup(1)
    os.dup2(2, 1)  # what the first call shows is none of ours
    for row in rows:
        os.write(output, json.dumps(row).encode() + b"\n")
