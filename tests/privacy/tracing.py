"""Runs a command under trace.c and says what it and its children tried to reach and to change."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("trace.c")
CANNOT_TRACE = 125
NETWORK = frozenset({"connect", "send"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Addresses that were contacted, and paths that were written, in order."""

    code: int
    output: str
    contacted: tuple[str, ...]
    written: tuple[Path, ...]

    def outside(self, *folders: Path) -> list[Path]:
        """What was written in none of these folders; making a folder above one of them is no writing."""
        return [
            path
            for path in self.written
            if not any(path.is_relative_to(folder) or folder.is_relative_to(path) for folder in folders)
        ]


def compile_tracer(folder: Path) -> Path:
    """The tracer, built by the package ziglang; skips where nothing can be traced."""
    if sys.platform != "linux":
        pytest.skip("system calls are traced on Linux only")
    program = folder / "trace"
    command = [sys.executable, "-m", "ziglang", "cc", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]
    done = subprocess.run([*command, program, SOURCE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if subprocess.run([program, folder / "log", "true"], capture_output=True, check=False).returncode == CANNOT_TRACE:
        pytest.skip("this system lets no process trace another")
    return program


def trace(tracer: Path, command: Sequence[str | Path], home: Path) -> Trace:
    """Run a command in `home`/work with an empty HOME and no settings of ours."""
    (home / "work").mkdir(parents=True, exist_ok=True)
    (home / "tmp").mkdir(exist_ok=True)
    kept = {name: os.environ[name] for name in ("PATH", "ZIG_GLOBAL_CACHE_DIR") if name in os.environ}
    environment = {**kept, "HOME": str(home), "TMPDIR": str(home / "tmp"), "PYTHONPATH": str(ROOT)}
    log = home / "trace.log"
    done = subprocess.run(
        [tracer, log, *map(str, command)],
        cwd=home / "work", env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=500,
    )  # fmt: skip
    noted = [line.split("\t", 1) for line in os.fsdecode(log.read_bytes()).split("\0")[:-1]]
    return Trace(
        code=done.returncode,
        output=done.stdout + done.stderr,
        contacted=tuple(where for what, where in noted if what in NETWORK),
        written=tuple(
            Path(os.path.normpath(where))
            for what, where in noted
            if what not in NETWORK and "__pycache__" not in where and not where.startswith("/dev/")
        ),
    )


def own_folders(home: Path) -> tuple[Path, ...]:
    """Folders that commands may write to: the work folder, the temporary one, our own below XDG's, zig's cache."""
    folders = (".cache/ort-mobile", ".local/state/ort-mobile", ".local/share/ort-mobile", ".cache/zig", "work", "tmp")
    shared = os.environ.get("ZIG_GLOBAL_CACHE_DIR")
    return (*(home / folder for folder in folders), *([Path(shared)] if shared else []))
