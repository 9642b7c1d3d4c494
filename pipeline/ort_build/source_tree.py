"""A source tree of ONNX Runtime: its release, tools, digest; and long commands in it, ended as a group."""

import contextlib
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from pipeline.core.errors import ConfigError
from pipeline.core.releases import Release, line_of
from pipeline.ort_build.plan import BuildStep

VERSION_FILE = "VERSION_NUMBER"
LEFT_OUT = frozenset({".git", "build", "__pycache__", "node_modules", ".gradle", ".idea", ".vscode"})
"""Folders that no build compiles: history, earlier builds, caches."""


class SourceTree(msgspec.Struct, frozen=True, kw_only=True):
    """A tree as it lies there. `cmake` is the version that its CMake file demands, empty when it names none."""

    path: str
    version: str
    cmake: str

    @property
    def release(self) -> Release:
        """The release line."""
        return line_of(self.version)


def read_tree(path: Path) -> SourceTree:
    """Read the tree's release; raises ConfigError when this is no source tree of ONNX Runtime."""
    version = _text(path / VERSION_FILE).strip()
    if not re.fullmatch(r"\d{1,3}\.\d{1,3}\.\d{1,3}", version):
        raise ConfigError(
            "this is no source tree of ONNX Runtime", where=str(path),
            why=f"{VERSION_FILE} is missing or holds no release",
            remedy="unpack or clone the source of the release, and give its folder with --source",
        )  # fmt: skip
    needed = re.search(r"cmake_minimum_required\(VERSION (\d+(?:\.\d+)*)", _text(path / "cmake/CMakeLists.txt"))
    return SourceTree(path=str(path), version=version, cmake=needed[1] if needed else "")


def check_release(tree: SourceTree, version: str) -> None:
    """Raise ConfigError when a tree is not of the release that a target names (`1.23` takes any patch of it)."""
    wanted = version.split(".")
    if tree.version.split(".")[: len(wanted)] != wanted:
        raise ConfigError(
            f"this source tree is ONNX Runtime {tree.version}, the target wants {version}", where=tree.path,
            why="operators, format versions and options differ between releases",
            remedy=f"check out {version} there, or write ort_release = \"{tree.version}\" in the target",
        )  # fmt: skip


def source_digest(path: Path) -> str:
    """Hex SHA-256 over names and bytes of all files that a build may compile (some seconds for 300 MB)."""
    digest = hashlib.sha256()
    for file in _files(path):
        digest.update(file.relative_to(path).as_posix().encode("utf-8", "surrogateescape") + b"\0")
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def _files(path: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(path):
        names[:] = sorted(name for name in names if name not in LEFT_OUT)
        for name in sorted(files):
            file = Path(folder, name)
            if file.is_file() and not file.is_symlink() and not name.endswith(".pyc"):
                yield file


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


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
