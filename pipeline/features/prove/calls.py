"""What a run asked of NNAPI, and what flags cost there."""

from collections import Counter
from collections.abc import Iterator

from device_runner import device as runner_device
from device_runner import providers as runner_providers
from device_runner import spec as run_spec
from device_runner.android_host import device as android_host_device
from device_runner.android_host import inspection
from pipeline.check import library_proof
from pipeline.core.errors import Severity

NEEDS: dict[run_spec.NnapiFlag, tuple[int, str]] = {
    run_spec.NnapiFlag.USE_FP16: (
        runner_providers.NNAPI_RELAXED_API_LEVEL,
        "NNAPI can be allowed half precision from API level 28 on",
    ),
    run_spec.NnapiFlag.USE_NCHW: (runner_providers.NNAPI_DEVICES_API_LEVEL, "NNAPI takes NCHW from API level 29 on"),
    run_spec.NnapiFlag.CPU_DISABLED: (
        runner_providers.NNAPI_DEVICES_API_LEVEL,
        "NNAPI names its devices from API level 29 on",
    ),
    run_spec.NnapiFlag.CPU_ONLY: (
        runner_providers.NNAPI_DEVICES_API_LEVEL,
        "NNAPI names its devices from API level 29 on",
    ),
}
"""The API level from which a flag can do anything, and why (recorded from 1.28.0 and 1.29.0: nnapi-calls.md)."""

NOT_KNOWN = "the library asked NNAPI for the same with and without it; the cause is not known"


def claims_nothing(summary: inspection.CallSummary | None, api_level: int) -> library_proof.ProofFinding | None:
    """A finding when NNAPI was asked to take nothing at all."""
    if summary and summary.partitions:
        return None
    if api_level < runner_providers.NNAPI_API_LEVEL:
        why = f"NNAPI begins at API level {runner_providers.NNAPI_API_LEVEL}; below it everything runs on the CPU"
        remedy = "nothing to fix: phones of this level take no notice of the provider"
    else:
        why = "no node of this artifact is one that NNAPI takes; everything ran on the CPU"
        remedy = (
            "`ort-mobile partition FILE --ep nnapi` says why; ship level basic or a variant aware of nnapi, fix open "
            "dimensions, or leave nnapi out"
        )
    what = f"NNAPI takes nothing at API level {api_level}"
    return library_proof.ProofFinding(
        severity=Severity.WARNING, code=library_proof.FindingKind.NOTHING_CLAIMED, what=what, why=why, remedy=remedy
    )


def effect(
    flag: run_spec.NnapiFlag,
    phone: android_host_device.Phone,
    with_it: inspection.CallSummary,
    without_it: inspection.CallSummary,
) -> Iterator[library_proof.ProofFinding]:
    """Findings on one flag: it changed nothing, or NNAPI takes less with it."""
    api_level = phone.api_level
    since, why = NEEDS[flag]
    early = api_level < since
    remedy = f"leave {flag.value} out below API level {since}" if early else f"leave {flag.value} out"
    asked = [(calls.partitions, calls.relaxed, calls.nchw, calls.compiled_for) for calls in (with_it, without_it)]
    # Operations that compute something: transposes come and go with the layout.
    less, more = (
        Counter(name for names in calls.partitions for name in names if name != "TRANSPOSE")
        for calls in (with_it, without_it)
    )
    if asked[0] == asked[1]:
        # At a level at which it could do something, calls and the phone's devices may show why it did not.
        devices = (phone.driver or android_host_device.default_profile(api_level)).devices
        cpus = sum(device.type is runner_device.DriverType.CPU for device in devices)
        shown = {
            run_spec.NnapiFlag.USE_NCHW: with_it.nchw is None
            and "NNAPI takes no convolution and no pool, whose layout it decides",
            run_spec.NnapiFlag.CPU_DISABLED: (cpus == 0 and "NNAPI has no CPU device here that it could leave out")
            or (cpus == len(devices) and "no other device than a CPU is left to choose, so the system chooses"),
            run_spec.NnapiFlag.CPU_ONLY: (cpus == 0 and "NNAPI has no CPU device here, so the system chooses")
            or (cpus == len(devices) and "NNAPI has CPU devices only here"),
        }
        yield library_proof.ProofFinding(
            severity=Severity.WARNING,
            code=library_proof.FindingKind.FLAG_WITHOUT_EFFECT,
            what=f"{flag.value} has no effect at API level {api_level}",
            why=why if early else shown.get(flag) or NOT_KNOWN,
            remedy=remedy,
        )
    elif less.total() < more.total():
        gone = ", ".join(f"{name} ({count})" for name, count in sorted((more - less).items()))
        left = f"left to the CPU with it: {gone}"
        yield library_proof.ProofFinding(
            severity=Severity.WARNING,
            code=library_proof.FindingKind.FLAG_COSTS_NODES,
            what=f"with {flag.value} NNAPI takes {less.total()} operations at API level {api_level}, "
            f"{more.total()} without it",
            why=f"{why}; {left}" if early else left,
            remedy=remedy,
        )
