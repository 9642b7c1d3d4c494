"""Errors of the runner itself. What a run meets is no error but a typed `Failure` in its result."""

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Self

import msgspec

from device_runner.problem import Problem


class RunnerError(Exception):
    """Base: a problem that ends what was asked for. The exit codes are those of `pipeline.core.errors.ExitCode`."""

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", why: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.problem = Problem(what=what, where=where, why=why, remedy=remedy)

    @classmethod
    def of(cls, problem: Problem, where: str = "") -> Self:
        """The error that a problem of something else is here, at a place of its own if one is given."""
        return cls(problem.what, where=where or problem.where, why=problem.why, remedy=problem.remedy)

    def at(self, where: str) -> Self:
        """The same error, at this place where it names none."""
        if not self.problem.where:
            self.problem = msgspec.structs.replace(self.problem, where=where)
        return self

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.what, self.why) if part)

    @property
    def what(self) -> str:
        """What failed."""
        return self.problem.what

    @property
    def where(self) -> str:
        """The file, the key or the device."""
        return self.problem.where

    @property
    def why(self) -> str:
        """The cause."""
        return self.problem.why

    @property
    def remedy(self) -> str:
        """What to do."""
        return self.problem.remedy

    @property
    def reason(self) -> str:
        """What failed and why, on one line without its place."""
        return self.problem.reason

    @property
    def text(self) -> str:
        """As `reason`, with what to do."""
        return self.problem.text

    def lines(self) -> list[tuple[str, str]]:
        """As `Problem.lines`."""
        return self.problem.lines()


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
