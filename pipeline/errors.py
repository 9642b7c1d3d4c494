"""One family of errors: each says what failed, where, why, and what to do; each has its exit code."""

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """What the commands return to the shell."""

    DONE = 0
    SOME_FAILED = 1
    USAGE = 2
    MISSING = 3
    CHECK_FAILED = 4
    INTERRUPTED = 130


class PipelineError(Exception):
    """Base of everything that a user can cause or mend: some models or runs failed, the rest is done."""

    exit_code: ClassVar[ExitCode] = ExitCode.SOME_FAILED

    def __init__(self, what: str, *, where: str = "", why: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.why = why
        self.remedy = remedy

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.what, self.why) if part)

    def lines(self) -> list[tuple[str, str]]:
        """The four parts with their labels, empty ones left out, in the order the terminal shows them."""
        parts = [("error", self.what), ("where", self.where), ("why", self.why), ("remedy", self.remedy)]
        return [(label, text) for label, text in parts if text]


class ConfigError(PipelineError):
    """The command line or a config file is wrong: nothing was done."""

    exit_code = ExitCode.USAGE


class ModelError(PipelineError):
    """A model, its data or an artifact cannot be used; other models of the run go on."""


class RunFailed(PipelineError):
    """A measured run ended without a result; other runs go on."""


class MissingError(PipelineError):
    """Something that this machine must have is not there: a compiler, a library, a device."""

    exit_code = ExitCode.MISSING


class CheckFailed(PipelineError):
    """A check says no: coverage, operators, budget, regression, a bundle that was changed."""

    exit_code = ExitCode.CHECK_FAILED
