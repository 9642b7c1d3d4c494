"""One family of errors with exit codes, and findings: each is a `Problem`, or has one.

It is device_runner's family carried on: a `ConfigError` is a `SpecError`, a `MissingError` an `UnavailableError`. Code
that handles what either package raises catches the class of device_runner.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum, StrEnum
from typing import ClassVar, Generic, NamedTuple, TypeVar

import msgspec

from device_runner import errors as runner_errors
from device_runner.errors import RunnerError
from device_runner.problem import Problem


class ExitCode(IntEnum):
    """What the commands return to the shell."""

    DONE = 0
    SOME_FAILED = 1
    USAGE = 2
    MISSING = 3
    CHECK_FAILED = 4
    TIMED_OUT = 124
    INTERRUPTED = 130


class PipelineError(RunnerError):
    """Base of everything that a user can cause or fix: some models or runs failed, the rest is done."""

    exit_code: ClassVar[int] = ExitCode.SOME_FAILED


class ConfigError(PipelineError, runner_errors.SpecError):
    """The command line or a config file is wrong: nothing was done."""

    exit_code = ExitCode.USAGE


class ModelError(PipelineError):
    """A model, its data or an artifact cannot be used; other models of the run go on."""


class MissingError(PipelineError, runner_errors.UnavailableError):
    """Something that this machine must have is not there: a compiler, a library, a device."""

    exit_code = ExitCode.MISSING


class DiskError(MissingError):
    """The disk is full or read-only, or the user's quota is used up: this costs a whole run, not one file of it."""


class CheckFailed(PipelineError):
    """A check failed: coverage, operators, budget, regression, a bundle that was changed."""

    exit_code = ExitCode.CHECK_FAILED


CLASSES: dict[str, type[PipelineError]] = {
    kind.__name__: kind for kind in (PipelineError, ConfigError, ModelError, MissingError, DiskError, CheckFailed)
}
"""What may travel between processes, by the name it travels under."""


def install_extra(extra: str) -> str:
    """The command that installs what an extra of this project needs, by the names of those packages.

    The project's own name is on no index: whoever registered it there would be installed.
    """
    from importlib import metadata  # 20 ms that only an error pays

    try:
        needs = metadata.requires("ort-mobile-pipeline") or []
    except metadata.PackageNotFoundError:  # run from a clone that was not installed
        needs = []
    marker = re.compile(rf"extra *== *['\"]{extra}['\"]")
    packages = [need.partition(";")[0].strip() for need in needs if marker.search(need)]
    return (
        runner_errors.pip_install(*packages)
        if packages
        else runner_errors.pip_install(f".[{extra}]") + " in a clone of this project"
    )


def missing_extra(extra: str, package: str, where: str, error: ImportError) -> MissingError:
    """That something needs a package which an extra installs."""
    return MissingError(
        f"the package {package} is not installed", where=where, why=str(error), remedy=install_extra(extra)
    )


def class_name(error: RunnerError) -> str:
    """The name in `CLASSES` for an error of either package: that of the first of its classes, or a kind of one."""
    if type(error).__name__ in CLASSES:
        return type(error).__name__
    return next((name for kind, name in _RUNNER_KINDS if isinstance(error, kind)), PipelineError.__name__)


_RUNNER_KINDS = (
    (runner_errors.SpecError, ConfigError.__name__),
    (runner_errors.UnavailableError, MissingError.__name__),
)


def common_exit_code(errors: Iterable[RunnerError]) -> ExitCode:
    """The exit code of a run of which nothing could be done: the one that all its errors share, else SOME_FAILED."""
    codes = {error.exit_code for error in errors}
    return ExitCode(codes.pop()) if len(codes) == 1 else ExitCode.SOME_FAILED


class Severity(StrEnum):
    """`error`: it will not work. `warning`: it will, otherwise than one might think."""

    ERROR = "error"
    WARNING = "warning"


BUDGET = "budget"
"""The rule of findings on the largest size that a library may have."""


APP_CODE = "app-code"
"""The rule of findings about what no code for apps can be written for."""


class Finding(Problem, frozen=True, kw_only=True):
    """One thing that speaks against something; what adds fields to it is one, too.

    The rule is what was looked at, in one word that programs decide by and SARIF names; texts are for people alone.
    """

    severity: Severity
    code: str = msgspec.field(default="", name="rule")


T = TypeVar("T")


class FindingRule(NamedTuple, Generic[T]):
    """A row of a table of findings: when it applies, and the texts, which take the words that `applies` gives."""

    applies: Callable[[T], Mapping[str, object] | bool | None]
    severity: Severity
    what: str
    why: str = ""
    remedy: str = ""
    code: str = ""


def findings(
    rules: Iterable[FindingRule[T]], subject: T, where: str, words: Mapping[str, object] = {}
) -> Iterator[Finding]:
    """What rules say of a subject, in their order; `words` are for the texts of all of them."""
    for rule in rules:
        if applies := rule.applies(subject):
            texts = words if applies is True else {**words, **applies}
            what, why, remedy = (text.format_map(texts) for text in (rule.what, rule.why, rule.remedy))
            yield Finding(severity=rule.severity, what=what, where=where, why=why, remedy=remedy, code=rule.code)


def finding_of(error: RunnerError, where: str, severity: Severity = Severity.ERROR) -> Finding:
    """An error of one thing as what speaks against it, where several are looked at."""
    return Finding(severity=severity, what=error.what, where=where, why=error.why, remedy=error.remedy)


def warning(what: str, where: str = "") -> Finding:
    """What works otherwise than one might think, where all that is to say of it is one sentence."""
    return Finding(severity=Severity.WARNING, what=what, where=where)


def errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those that will not work."""
    return tuple(finding for finding in findings if finding.severity is Severity.ERROR)
