"""A process of this computer in a group of its own: whatever ends the wait for it ends all of it."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_group(
    command: Sequence[str],
    folder: Path,
    limit_seconds: float,
    environment: Mapping[str, str],
    *,
    inside: bool = False,
) -> int | None:
    """The exit code of a command, negative for a signal; None at the limit. It runs in `folder` where `inside`.

    Output goes to the files `stdout` and `stderr` there, so that nothing it prints can fill our memory or block it.
    Everything of the group is dead when this returns or raises. Raises OSError when it cannot start.
    """
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        process = subprocess.Popen(
            command,
            cwd=folder if inside else None,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=dict(environment),
            start_new_session=True,
        )
        return _wait(process, limit_seconds)


def _wait(process: subprocess.Popen[bytes], limit_seconds: float) -> int | None:
    """A thread waits, as `Popen.wait` with a limit looks only every 50 ms, which would count as the run's."""
    waiting = threading.Thread(target=process.wait, daemon=True)
    waiting.start()
    try:
        waiting.join(limit_seconds)
        late = waiting.is_alive()
    except BaseException:
        _kill(process, waiting)
        raise
    if late:
        _kill(process, waiting)
    return None if late else process.returncode


def _kill(process: subprocess.Popen[bytes], waiting: threading.Thread) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    waiting.join()


def tail(path: Path, size: int = 2000) -> str:
    """The end of a text file."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        return file.read().decode("utf-8", "replace").strip()
