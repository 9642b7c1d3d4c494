"""One family of errors: each says what failed, where, why, and what to do; each has its exit code."""

from enum import IntEnum
from typing import ClassVar

from device_runner.errors import RunnerError


class ExitCode(IntEnum):
    """What the commands return to the shell."""

    DONE = 0
    SOME_FAILED = 1
    USAGE = 2
    MISSING = 3
    CHECK_FAILED = 4
    INTERRUPTED = 130


class PipelineError(RunnerError):
    """Base of everything that a user can cause or mend: some models or runs failed, the rest is done."""

    exit_code: ClassVar[int] = ExitCode.SOME_FAILED


class ConfigError(PipelineError):
    """The command line or a config file is wrong: nothing was done."""

    exit_code = ExitCode.USAGE


class ModelError(PipelineError):
    """A model, its data or an artifact cannot be used; other models of the run go on."""


class MissingError(PipelineError):
    """Something that this machine must have is not there: a compiler, a library, a device."""

    exit_code = ExitCode.MISSING


class CheckFailed(PipelineError):
    """A check says no: coverage, operators, budget, regression, a bundle that was changed."""

    exit_code = ExitCode.CHECK_FAILED
