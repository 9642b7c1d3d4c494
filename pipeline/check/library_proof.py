"""Whether what a bundle ships runs in the library that ships: one row for each artifact, way to run and API level.

Plain data: the bundle's evidence, the report and `ort-mobile prove --json` have it. There are no times in it: the
library ran in a process of another machine than a phone.
"""

from enum import StrEnum
from typing import Final, Literal

import msgspec

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


CLAIMS = frozenset({FindingKind.NOTHING_CLAIMED, FindingKind.FLAG_WITHOUT_EFFECT, FindingKind.FLAG_COSTS_NODES})
"""What is known of a provider's claims: it says nothing against the outputs."""


class ProofFinding(Finding, frozen=True, kw_only=True):
    """A finding of a proof. `config_line` is the line of an operator config that brings a kernel that is missing."""

    code: FindingKind = msgspec.field(name="kind")
    config_line: str = ""


class ProofRow(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact that was loaded and run in one way at one API level.

    `targets` are those that it ships to so; `chosen`: it is the way that the bundle advises; `failed`: it must not ship
    like this. `partitions` are how many NNAPI operations each compiled partition has, None where NNAPI was not asked or
    did not get so far. `abi` is the library's that ran, `cpu` the profile that an emulator played, "" without one.
    `api_level` is 0 on other systems than Android. A context ran in the simulator of `chip`, that of QAIRT `qairt`.
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
    chip: str = ""
    qairt: str = ""
    chosen: bool = False
    failed: bool = False
    checks: tuple[OutputCheck, ...] = ()
    partitions: tuple[int, ...] | None = None
    findings: tuple[ProofFinding, ...] = ()

    @property
    def broken(self) -> bool:
        """Whether it did not run or gave wrong outputs, be it in a way that nothing ships in."""
        return any(finding.code not in CLAIMS | {FindingKind.NOT_COMPARED} for finding in self.findings)

    @property
    def passed(self) -> bool:
        """Whether it ran and its outputs were shown to be right."""
        return not self.failed and all(finding.code in CLAIMS for finding in self.findings)

    @property
    def undecided(self) -> bool:
        """Whether it ran, and nothing could show whether its outputs are right."""
        return not (self.failed or self.broken or self.passed)


class ProvenLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """The library that was run. `abis` are all that the archive has; the rows say which ran; `sha256` of the first."""

    file: str
    release: str = ""
    commit: str = ""
    sha256: str = ""
    abis: tuple[str, ...] = ()


PROOFS = "library_proofs"
"""The key of a bundle's evidence under which its proofs are."""


class LibraryProof(msgspec.Struct, frozen=True, kw_only=True):
    """What came of all rows, or why nothing was run for the `targets` that ship it (`not_run`, with its `remedy`).

    `bundle` is the content digest of the bundle; `left_out` names the targets of another platform than the library's.
    """

    version: Literal[1] = PROOF_VERSION
    bundle: str
    library: ProvenLibrary
    rows: tuple[ProofRow, ...] = ()
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    not_run: str = ""
    remedy: str = ""
    targets: tuple[str, ...] = ()

    @property
    def not_run_text(self) -> str:
        """Why nothing was run, with what to do; "" where it was."""
        return "; ".join(filter(None, (self.not_run, self.remedy)))

    @property
    def failed(self) -> bool:
        """Whether any row must not ship."""
        return any(row.failed for row in self.rows)

    def undecided(self, target: str) -> tuple[ProofRow, ...]:
        """The rows of a target whose outputs were judged in no place: another CPU or API level may have judged them."""
        rows = [row for row in self.rows if target in row.targets]
        judged = {(row.model, row.variant, row.run) for row in rows if row.passed or row.failed}
        return tuple(row for row in rows if row.undecided and (row.model, row.variant, row.run) not in judged)

    @property
    def objections(self) -> tuple[str, ...]:
        """Why it must not ship: what failed first in each row that failed, once for all API levels."""
        return tuple(dict.fromkeys(_objection(row) for row in self.rows if row.failed))


def _objection(row: ProofRow) -> str:
    what = next((finding.what for finding in row.findings if finding.severity is Severity.ERROR), "it failed")
    cpu = f", {row.cpu}" if row.cpu else ""
    return f"{row.model} {row.variant} ({row.run}{cpu}): {what}"
