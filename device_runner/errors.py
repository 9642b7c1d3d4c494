"""Errors of the runner itself. What a run meets is no error but a typed `Failure` in its result."""

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar


class RunnerError(Exception):
    """Base: what failed, where, why, and what to do. The exit codes are those of `pipeline.core.errors.ExitCode`."""

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", why: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.why = why
        self.remedy = remedy

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.what, self.why) if part)

    @property
    def reason(self) -> str:
        """What failed and why, on one line without its place."""
        return "; ".join(part for part in (self.what, self.why) if part)

    @property
    def text(self) -> str:
        """As `reason`, with what to do."""
        return "; ".join(part for part in (self.reason, self.remedy) if part)

    def lines(self) -> list[tuple[str, str]]:
        """The four parts with their labels, empty ones left out, in the order a terminal shows them."""
        parts = [("error", self.what), ("where", self.where), ("why", self.why), ("remedy", self.remedy)]
        return [(label, text) for label, text in parts if text]


class SpecError(RunnerError):
    """A RunSpec, a device name or another argument is wrong: nothing was run."""

    exit_code = 2


class NoLibraryError(SpecError):
    """The path of a library where none is."""


class UnavailableError(RunnerError):
    """Something is not there: a compiler, a library, an adb server, a device."""

    exit_code = 3


def pip_install(*requirements: str) -> str:
    """The command that installs packages into the environment of this program, which need not be the shell's."""
    pip = shutil.which("pip")
    if pip and Path(pip).parent == Path(sys.executable).parent:
        command = "pip install"
    elif find_spec("pip"):
        command = f"{sys.executable} -m pip install"
    else:  # made by uv, without pip
        command = f"uv pip install --python {sys.executable}"
    return " ".join((command, *(f"'{text}'" if set(text) & set("<>=[;") else text for text in requirements)))
