"""Driver profiles: what the fake NNAPI says that it is, what it takes, how it fails. JSON for people, lines for C."""

import re
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from device_runner.errors import SpecError

SOURCES = Path(__file__).parent / "nnapi"
PROFILE_VERSION = 1
NEWEST_BELOW_RUNTIME = 30
"""Up to this API level NNAPI's feature level is the API level; from 31 on the runtime tells its own."""

Word = Annotated[str, Meta(pattern=r"^[!#-\[\]-~]{1,63}$")]
"""Printable ASCII without blanks, quotes and backslashes: it goes into lines and JSON as it is."""
Level = Annotated[int, Meta(ge=27, le=2_000_000_000)]
Nanoseconds = Annotated[int, Meta(ge=0, le=600_000_000_000)]


class DriverType(StrEnum):
    """Kinds of NNAPI devices; the numbers are in `TYPE_CODES`."""

    OTHER = "other"
    CPU = "cpu"
    GPU = "gpu"
    ACCELERATOR = "accelerator"


TYPE_CODES = {kind: code for code, kind in enumerate(DriverType, start=1)}


class Stage(StrEnum):
    """Where delays and faults happen: finishing a model, compiling it, starting a run, waiting for it."""

    MODEL = "model"
    COMPILE = "compile"
    RUN = "run"
    WAIT = "wait"


class FaultKind(StrEnum):
    """`fail` returns the code, `hang` never returns, `lost` kills the driver for good, `crash` the process."""

    FAIL = "fail"
    HANG = "hang"
    LOST = "lost"
    CRASH = "crash"


class ResultCode(StrEnum):
    """What a failing call returns; the numbers are in `RESULT_CODES`."""

    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    INCOMPLETE = "INCOMPLETE"
    UNEXPECTED_NULL = "UNEXPECTED_NULL"
    BAD_DATA = "BAD_DATA"
    OP_FAILED = "OP_FAILED"
    BAD_STATE = "BAD_STATE"
    UNMAPPABLE = "UNMAPPABLE"
    OUTPUT_INSUFFICIENT_SIZE = "OUTPUT_INSUFFICIENT_SIZE"
    UNAVAILABLE_DEVICE = "UNAVAILABLE_DEVICE"
    MISSED_DEADLINE_TRANSIENT = "MISSED_DEADLINE_TRANSIENT"
    MISSED_DEADLINE_PERSISTENT = "MISSED_DEADLINE_PERSISTENT"
    RESOURCE_EXHAUSTED_TRANSIENT = "RESOURCE_EXHAUSTED_TRANSIENT"
    RESOURCE_EXHAUSTED_PERSISTENT = "RESOURCE_EXHAUSTED_PERSISTENT"
    DEAD_OBJECT = "DEAD_OBJECT"


RESULT_CODES = {kind: code for code, kind in enumerate(ResultCode, start=1)}


class Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A strict, unchanging value."""


class Driver(Struct, frozen=True, kw_only=True):
    """One NNAPI device. `operations` and `operand_types` None accept all that its feature level has."""

    name: Word
    type: DriverType = DriverType.ACCELERATOR
    feature_level: Level
    version: Word = "1"
    operations: tuple[str, ...] | None = None
    operand_types: tuple[str, ...] | None = None


class Fault(Struct, frozen=True, kw_only=True):
    """What goes wrong from call number `first` of a stage on (1 is the first), `count` times; 0: for ever."""

    stage: Stage
    kind: FaultKind = FaultKind.FAIL
    result: ResultCode = ResultCode.OP_FAILED
    first: Annotated[int, Meta(ge=1)] = 1
    count: Annotated[int, Meta(ge=0)] = 0


class DriverProfile(Struct, frozen=True, kw_only=True):
    """A phone's NNAPI. `feature_level` is the runtime's and counts from API level 31 on (31, or 1000006 and more)."""

    devices: Annotated[tuple[Driver, ...], Meta(max_length=16)]
    feature_level: Level = 31
    delays_ns: dict[Stage, Nanoseconds] = {}
    faults: Annotated[tuple[Fault, ...], Meta(max_length=32)] = ()
    version: int = PROFILE_VERSION


def default_profile(api_level: int) -> DriverProfile:
    """A phone with one accelerator that takes everything, and Android's own reference device beside it."""
    level = max(27, min(api_level, 31))
    accelerator = Driver(name="android-host", feature_level=level)
    reference = Driver(name="nnapi-reference", type=DriverType.CPU, feature_level=level)
    return DriverProfile(devices=(accelerator, reference))


def read_profile(path: Path) -> DriverProfile:
    """A profile from a JSON file; raises SpecError that names the key, the operation or the type that is wrong."""
    remedy = "docs/android-host.md lists the keys; names are NNAPI's, as CONV_2D and TENSOR_FLOAT32"
    try:
        profile = msgspec.json.decode(path.read_bytes(), type=DriverProfile)
        encode_profile(profile, 31)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise SpecError("this is not a driver profile", where=str(path), why=str(error), remedy=remedy) from error
    if profile.version != PROFILE_VERSION:
        why = f"this release reads version {PROFILE_VERSION}"
        raise SpecError(f"this driver profile has version {profile.version}", where=str(path), why=why, remedy=remedy)
    return profile


def encode_profile(profile: DriverProfile, api_level: int) -> str:
    """The lines that nnapi/profile.c reads; raises ValueError for an operation or a type that is not known."""
    level = api_level if api_level <= NEWEST_BELOW_RUNTIME else profile.feature_level
    lines = [f"level {level}"]
    for driver in profile.devices:
        lines.append(f"device {driver.name} {TYPE_CODES[driver.type]} {driver.feature_level} {driver.version}")
        lines += _codes("operation", driver.operations, operation_codes())
        lines += _codes("type", driver.operand_types, operand_type_codes())
    lines += [f"delay {stage} {delay}" for stage, delay in profile.delays_ns.items()]
    lines += [
        f"fault {fault.stage} {fault.kind} {RESULT_CODES[fault.result]} {fault.first} {fault.count}"
        for fault in profile.faults
    ]
    return "\n".join(lines) + "\n"


NO_CODE = 255
"""A code that nothing has: a list with it alone accepts nothing."""


def _codes(word: str, names: tuple[str, ...] | None, codes: dict[str, int]) -> list[str]:
    unknown = sorted(set(names or ()) - set(codes))
    if unknown:
        raise ValueError(f"no {word} is called {', '.join(unknown)}; there are {', '.join(sorted(codes))}")
    if names is None:
        return []
    return [f"{word} {codes[name]}" for name in names] or [f"{word} {NO_CODE}"]


@lru_cache(maxsize=1)
def operation_codes() -> dict[str, int]:
    """Names of the operations that the fake computes, and their NNAPI codes."""
    return _definitions("operations.def", "OPERATION")


@lru_cache(maxsize=1)
def operand_type_codes() -> dict[str, int]:
    """Names of operand types, and their NNAPI codes."""
    return _definitions("types.def", "TYPE")


def _definitions(name: str, macro: str) -> dict[str, int]:
    text = (SOURCES / name).read_text("utf-8")
    return {name: int(code) for code, name in re.findall(rf"^{macro}\((\d+), (\w+),", text, re.MULTILINE)}
