"""One long command: its output in a log file, its progress told, its whole process group ended on Ctrl-C."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pipeline.ort_build.plan import BuildStep

Progress = Callable[[str, float], None]
"""Takes the last line of the log and the seconds since the start, about twice a second."""

POLL_SECONDS = 0.5
GRACE_SECONDS = 5.0
TAIL_BYTES = 4096
LOG_END_BYTES = 1 << 20


def build_environment(own: Mapping[str, str]) -> dict[str, str]:
    """The environment with this process's Python first on the path: CMake calls it, and pip puts tools beside it."""
    return {**own, "PATH": os.pathsep.join([str(Path(sys.executable).parent), own.get("PATH", os.defpath)])}


def run_step(step: BuildStep, log: Path, environment: Mapping[str, str], progress: Progress) -> int:
    """Run a command to its end and return its exit code; the log is appended to.

    The command gets a process group of its own, which is ended with it when this process is interrupted: compilers
    would otherwise go on for hours.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            step.arguments, cwd=step.folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    started = time.monotonic()
    try:
        while process.poll() is None:
            progress(last_line(log), time.monotonic() - started)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(POLL_SECONDS)
    except BaseException:
        end_group(process)
        raise
    return process.returncode


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a command with all that it started: politely, then not."""
    for ending, patience in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, ending)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)


def last_line(log: Path) -> str:
    """The last line of a log that says something."""
    lines = [line.strip() for line in log_end(log, TAIL_BYTES).splitlines()]
    return next((line for line in reversed(lines) if line), "")


def log_end(log: Path, size: int = LOG_END_BYTES) -> str:
    """The last `size` bytes of a log as text."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - size))
        return file.read().decode("utf-8", "replace")
