"""Errors of the runner itself. What a run meets is no error but a typed `Failure` in its result."""

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
