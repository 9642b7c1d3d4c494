"""A finding: what a check has to say against something, with its reason and what to do about it."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """`error`: it will not work. `warning`: it will, otherwise than one might think."""

    ERROR = "error"
    WARNING = "warning"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong, in the four parts of our errors."""

    severity: Severity
    what: str
    where: str = ""
    why: str = ""
    remedy: str = ""


def errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those that will not work."""
    return tuple(finding for finding in findings if finding.severity is Severity.ERROR)
