"""What the end of a run on a device means: errors of the link, exit codes, missing files, a wrong library, marks."""

import re
from collections.abc import Callable
from pathlib import Path

from device_runner.adb.link import LinkLost, LinkTimeout, NoServer, RunTimeout, ShellOutput
from device_runner.adb.store import NoSpace
from device_runner.device import DeviceFacts
from device_runner.failures import ERROR_KINDS, explain, failure_of
from device_runner.files import missing_input
from device_runner.options import impossible_here
from device_runner.probe.elf import NotElf, read_header
from device_runner.result import Conditions, Failure, FailureKind, Mark
from device_runner.spec import RunSpec

TOMBSTONE_LINES = 60
"""Enough for signal, cause, registers and the upper part of the backtrace."""

TOMBSTONE_LINE_LENGTH = 1000

LINK_KINDS: tuple[tuple[type[Exception], FailureKind], ...] = (
    (LinkLost, FailureKind.LOST_DEVICE),
    (RunTimeout, FailureKind.TIMEOUT),
    (LinkTimeout, FailureKind.LOST_DEVICE),
    (NoSpace, FailureKind.NO_SPACE),
    (NoServer, FailureKind.LOST_DEVICE),
    *ERROR_KINDS,
)
"""Pushes, pulls and questions without an answer say nothing of the run."""


def failed_by(error: Exception) -> Failure:
    """What an error on the way makes of a run."""
    return failure_of(error, LINK_KINDS)


ENDS: dict[int, tuple[FailureKind, str]] = {
    90: (FailureKind.NO_SPACE, "the run folder could not be made"),
    91: (FailureKind.NO_SPACE, "the request could not be written"),
    126: (FailureKind.WRONG_DEVICE, "the device cannot execute the probe"),
    127: (FailureKind.DEVICE_ERROR, "the probe is not there"),
    137: (FailureKind.OUT_OF_MEMORY, "the probe was killed"),
}
"""Exit codes of the shell where there is no document (RUN's own, POSIX's, 128 + SIGKILL)."""

SIGNALS: dict[int, str] = {
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
}
"""Linux's numbers: the host may be another system."""


def ended(output: ShellOutput, garbage: Failure) -> Failure:
    """What the end of a probe without a document means."""
    said = output.stderr[-1000:].decode("utf-8", "replace").strip()
    signal = SIGNALS.get(output.code - 128)
    crash = (FailureKind.CRASH, f"the probe ended by {signal}") if signal else None
    kind, text = ENDS.get(output.code) or crash or (garbage.kind, garbage.message)
    message = f"{text} (exit code {output.code}): {said}" if said else f"{text} (exit code {output.code})"
    return explain(Failure(kind=kind, message=message, signal=signal))


def marks_of(facts: DeviceFacts, before: Conditions) -> list[Mark]:
    """What a reader must know of the device: heat from `moderate` on throttles; Linux devices are no phones."""
    checks: tuple[tuple[Mark, Callable[[], bool | None]], ...] = (
        (Mark.NOT_A_PHONE, lambda: facts.platform != "android"),
        (Mark.THROTTLED, lambda: (before.thermal_status or 0) >= 2),
        (Mark.CHARGING, lambda: before.charging),
    )
    return [mark for mark, holds in checks if holds()]


def tombstone(crash_log: str, root: str) -> tuple[str, ...]:
    """The last record of a crash log that speaks of something under `root`, as lines of a result's log."""
    records = re.split(r"^(?=.*\*\*\* \*\*\*)", crash_log, flags=re.MULTILINE)
    ours = [record for record in records if root in record]
    lines = ours[-1].splitlines()[:TOMBSTONE_LINES] if ours else []
    return tuple(f"crash log: {line[:TOMBSTONE_LINE_LENGTH]}" for line in lines)


OF_MISSING_FILES = frozenset(
    {
        FailureKind.MODEL_LOAD,
        FailureKind.MISSING_LIBRARY,
        FailureKind.WRONG_LIBRARY,
        FailureKind.BAD_INPUT,
        FailureKind.GARBAGE,
        FailureKind.DEVICE_ERROR,
    }
)
"""What a probe or a shell says when files are gone."""

ALL_THERE = 'for file in "$@"; do [ -s "$file" ] || exit 1; done'

EMPTIED = Failure(
    kind=FailureKind.DEVICE_ERROR,
    message="files that were pushed are no longer on the device",
    cause="something emptied its folder for temporary files during the campaign",
    remedy="it is pushed again with the next run; turn off cleaners on the device",
)

NO_LIBRARY = Failure(
    kind=FailureKind.MISSING_LIBRARY,
    message="the spec names no library, and there is no default for this device",
    cause="Android has no libonnxruntime of its own",
    remedy="give the libonnxruntime.so of the device's ABI from the app's AAR",
)


def refused(spec: RunSpec, library: Path | None, facts: DeviceFacts) -> Failure | None:
    """Why a spec cannot be run on a device with these facts, as far as it is known before anything is pushed."""
    return impossible_here(spec.options, facts) or missing_input(spec) or wrong_library(library, facts)


def wrong_library(library: Path | None, facts: DeviceFacts) -> Failure | None:
    """Why a library cannot be loaded there, seen from its header: another ABI, or too small an alignment."""
    if library is None:
        return None
    try:
        elf = read_header(library)
    except (NotElf, OSError) as error:
        kind = FailureKind.MISSING_LIBRARY if isinstance(error, OSError) else FailureKind.WRONG_LIBRARY
        return Failure(
            kind=kind, message=f"{library}: {error}", cause="no library to push", remedy="check the path of the library"
        )
    if elf.abi not in facts.abis:
        return Failure(
            kind=FailureKind.WRONG_LIBRARY,
            message=f"{library} is for {elf.abi}; the device runs {', '.join(facts.abis)}",
            cause="the library is for another processor",
            remedy=f"give the library of {facts.abis[0]}",
        )
    if facts.page_bytes > elf.page_bytes:
        sizes = f"program alignment ({elf.page_bytes}) cannot be smaller than system page size ({facts.page_bytes})"
        return explain(Failure(kind=FailureKind.WRONG_LIBRARY, message=f"{library}: {sizes}"))
    return None
