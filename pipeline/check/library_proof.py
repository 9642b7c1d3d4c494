"""Whether what a bundle ships runs in the library that ships: one row for each artifact, way to run and API level.

Plain data: the bundle's evidence, the report and `ort-mobile prove --json` have it. There are no times in it: the
library ran in a process of another machine than a phone.
"""

from enum import StrEnum
from typing import Final, Literal

from device_runner.result import Struct
from device_runner.spec import RunOptions
from pipeline.check.compare import OutputCheck
from pipeline.core.errors import Finding, Severity

PROOF_VERSION: Final = 1


class FindingKind(StrEnum):
    """What a finding is about, in one word that a program can decide on."""

    MISSING_KERNEL = "missing_kernel"
    UNKNOWN_OPERATOR = "unknown_operator"
    REFUSED_FORMAT = "refused_format"
    CRASH = "crash"
    HANG = "hang"
    PROVIDER_MISSING = "provider_missing"
    PROVIDER_REFUSED = "provider_refused"
    CANNOT_RUN = "cannot_run"
    """Anything else that the library refused."""
    OUTPUTS_DIFFER = "outputs_differ"
    NOT_COMPARED = "not_compared"
    NOTHING_CLAIMED = "nothing_claimed"
    FLAG_WITHOUT_EFFECT = "flag_without_effect"
    FLAG_COSTS_NODES = "flag_costs_nodes"


class ProofFinding(Finding, frozen=True, kw_only=True):
    """A finding of a proof. `config_line` is the line of an operator config that brings a kernel that is missing."""

    kind: FindingKind
    config_line: str = ""


class ProofRow(Struct, frozen=True, kw_only=True):
    """An artifact that was loaded and run in one way at one API level.

    `targets` are those that it ships to so; `chosen`: it is the way that the bundle advises; `failed`: it must not ship
    like this. `partitions` are how many NNAPI operations each compiled partition has, None where NNAPI was not asked or
    did not get so far. `abi` is the library's that ran, `cpu` the profile that an emulator played, "" without one.
    `api_level` is 0 on other systems than Android.
    """

    targets: tuple[str, ...]
    model: str
    variant: str
    file: str
    run: str
    options: RunOptions
    api_level: int
    abi: str = "x86_64"
    cpu: str = ""
    chosen: bool = False
    failed: bool = False
    checks: tuple[OutputCheck, ...] = ()
    partitions: tuple[int, ...] | None = None
    findings: tuple[ProofFinding, ...] = ()


class ProvenLibrary(Struct, frozen=True, kw_only=True):
    """The library that was run. `abis` are all that the archive has; the rows say which ran; `sha256` of the first."""

    file: str
    release: str = ""
    commit: str = ""
    sha256: str = ""
    abis: tuple[str, ...] = ()


PROOFS = "library_proofs"
"""The key of a bundle's evidence under which its proofs are."""


class LibraryProof(Struct, frozen=True, kw_only=True):
    """What came of all rows, or why nothing was run (`not_run`, "" where it was) for the `targets` that ship it.

    `bundle` is the content digest of the bundle; `left_out` names the targets of another platform than the library's.
    """

    version: Literal[1] = PROOF_VERSION
    bundle: str
    library: ProvenLibrary
    rows: tuple[ProofRow, ...] = ()
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    not_run: str = ""
    targets: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether any row must not ship."""
        return any(row.failed for row in self.rows)

    @property
    def objections(self) -> tuple[str, ...]:
        """Why it must not ship: what failed first in each row that failed, once for all API levels."""
        return tuple(dict.fromkeys(_objection(row) for row in self.rows if row.failed))


def _objection(row: ProofRow) -> str:
    what = next((finding.what for finding in row.findings if finding.severity is Severity.ERROR), "it failed")
    cpu = f", {row.cpu}" if row.cpu else ""
    return f"{row.model} {row.variant} ({row.run}{cpu}): {what}"
