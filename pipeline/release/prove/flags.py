"""What NNAPI flags did, from the calls that the library made with and without each. Pure functions."""

from collections.abc import Iterator

from device_runner.android_host.calls import CallSummary
from device_runner.nnapi import NNAPI_API_LEVEL
from device_runner.options import NNAPI_DEVICES_API_LEVEL
from device_runner.spec import NnapiFlag
from pipeline.check.library_proof import FindingKind, ProofFinding
from pipeline.core.finding import Severity

RELAXED_API_LEVEL = 28
"""From here on NNAPI can be told to compute in half precision (relaxComputationFloat32toFloat16)."""

NEEDS: dict[NnapiFlag, tuple[int, str]] = {
    NnapiFlag.USE_FP16: (RELAXED_API_LEVEL, "NNAPI can be allowed half precision from API level 28 on"),
    NnapiFlag.USE_NCHW: (NNAPI_DEVICES_API_LEVEL, "NNAPI takes NCHW from API level 29 on"),
    NnapiFlag.CPU_DISABLED: (NNAPI_DEVICES_API_LEVEL, "NNAPI names its devices from API level 29 on"),
    NnapiFlag.CPU_ONLY: (NNAPI_DEVICES_API_LEVEL, "NNAPI names its devices from API level 29 on"),
}
"""The API level from which a flag can do anything, and why (recorded from 1.28.0 and 1.29.0: nnapi-calls.md)."""

OTHERWISE: dict[NnapiFlag, str] = {
    NnapiFlag.USE_FP16: "nothing that NNAPI takes is computed in floating point",
    NnapiFlag.USE_NCHW: "nothing that NNAPI takes has a layout: no convolution, no pool",
    NnapiFlag.CPU_DISABLED: "no other device than a CPU is left to choose, so the system chooses",
    NnapiFlag.CPU_ONLY: "NNAPI has no CPU device here, so the system chooses",
}
"""Why a flag did nothing at a level at which it could."""


def claims_nothing(summary: CallSummary | None, api_level: int) -> ProofFinding | None:
    """A finding when NNAPI was asked to take nothing at all."""
    if summary and summary.partitions:
        return None
    if api_level < NNAPI_API_LEVEL:
        why = f"NNAPI begins at API level {NNAPI_API_LEVEL}; below it everything runs on the CPU"
        remedy = "nothing to fix: phones of this level take no notice of the provider"
    else:
        why = "no node of this artifact is one that NNAPI takes; everything ran on the CPU"
        remedy = (
            "`ort-mobile partition FILE --ep nnapi` says why; ship level basic or a variant aware of nnapi, fix open "
            "dimensions, or leave nnapi out"
        )
    what = f"NNAPI takes nothing at API level {api_level}"
    return ProofFinding(severity=Severity.WARNING, kind=FindingKind.NOTHING_CLAIMED, what=what, why=why, remedy=remedy)


def effect(flag: NnapiFlag, api_level: int, with_it: CallSummary, without_it: CallSummary) -> Iterator[ProofFinding]:
    """Findings on one flag: it changed nothing, or NNAPI takes less with it."""
    since, why = NEEDS[flag]
    remedy = f"leave {flag.value} out below API level {since}" if api_level < since else f"leave {flag.value} out"
    if _asked(with_it) == _asked(without_it):
        yield ProofFinding(
            severity=Severity.WARNING,
            kind=FindingKind.FLAG_WITHOUT_EFFECT,
            what=f"{flag.value} has no effect at API level {api_level}",
            why=why if api_level < since else OTHERWISE[flag],
            remedy=remedy,
        )
    elif (less := work(with_it)) < (more := work(without_it)):
        yield ProofFinding(
            severity=Severity.WARNING,
            kind=FindingKind.FLAG_COSTS_NODES,
            what=f"with {flag.value} NNAPI takes {less} operations at API level {api_level}, {more} without it",
            why=f"{why}; below it leaves to the CPU what has a layout" if api_level < since else "it refuses the rest",
            remedy=remedy,
        )


def _asked(summary: CallSummary) -> tuple[object, ...]:
    return summary.partitions, summary.relaxed, summary.nchw, summary.compiled_for


def work(summary: CallSummary) -> int:
    """Operations that compute something: transposes come and go with the layout."""
    return sum(name != "TRANSPOSE" for names in summary.partitions for name in names)
