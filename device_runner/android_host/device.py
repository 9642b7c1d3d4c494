"""The device `android-host:LIBRARY`: an Android library of ONNX Runtime in a process of this computer; driver profiles.

Its name may carry options behind a question mark, as in `android-host:app.aar?api_level=29&driver=pixel.json`.
Its times say nothing about a phone; every result is marked so.
"""

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from device_runner import custom_ops as runner_custom_ops
from device_runner import device as runner_device
from device_runner import files as runner_files
from device_runner import host_device, untrusted_files
from device_runner import library as ort_library
from device_runner import local as local_device
from device_runner import providers as runner_providers
from device_runner import result as run_result
from device_runner import spec as run_spec
from device_runner.android_host.build import build_host, check_imports
from device_runner.device import DeviceFacts
from device_runner.errors import SpecError
from device_runner.probe import elf as elf_file
from device_runner.spec import RunSpec

SOURCES = Path(__file__).parent / "nnapi"
PROFILE_VERSION = 1
NEWEST_BELOW_RUNTIME = 30
"""Up to this API level NNAPI's feature level is the API level; from 31 on the runtime tells its own."""

Word = Annotated[str, Meta(pattern=r"^[!#-\[\]-~]{1,63}$")]
"""Printable ASCII without blanks, quotes and backslashes: it goes into lines and JSON as it is."""
Level = Annotated[int, Meta(ge=27, le=2_000_000_000)]
Nanoseconds = Annotated[int, Meta(ge=0, le=600_000_000_000)]


class DriverStage(StrEnum):
    """Where delays and faults happen: finishing a model, compiling it, starting a run, waiting for it."""

    MODEL = "model"
    COMPILE = "compile"
    RUN = "run"
    WAIT = "wait"


class FaultKind(StrEnum):
    """`fail` returns the code, `hang` never returns, `lost` kills the driver for good.

    `crash`, `abort` and `illegal` end the process by SIGSEGV, SIGABRT and SIGILL; `slow` takes `delay_ns` more. The
    rest is what a run gives: one NaN, zeros, noise of -12 to -17 dB, elements moved by one place.
    """

    FAIL = "fail"
    HANG = "hang"
    LOST = "lost"
    CRASH = "crash"
    ABORT = "abort"
    ILLEGAL = "illegal"
    NAN = "nan"
    ZEROS = "zeros"
    NOISE = "noise"
    PERMUTED = "permuted"
    SLOW = "slow"


WRONG_OUTPUTS = frozenset({FaultKind.NAN, FaultKind.ZEROS, FaultKind.NOISE, FaultKind.PERMUTED})
"""Faults of the stage run alone."""


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


class DriverRefusal(run_spec.StrictStruct, frozen=True, kw_only=True):
    """An operation that is refused when the types of its operands (scalars too) are exactly these."""

    operation: str
    operand_types: tuple[str, ...]


class Driver(run_spec.StrictStruct, frozen=True, kw_only=True):
    """One NNAPI device. `operations` and `operand_types` None accept all that its feature level has.

    `refuses` has what it does not take although both lists have it.
    """

    name: Word
    type: runner_device.DriverType = runner_device.DriverType.ACCELERATOR
    feature_level: Level
    version: Word = "1"
    operations: tuple[str, ...] | None = None
    operand_types: tuple[str, ...] | None = None
    refuses: Annotated[tuple[DriverRefusal, ...], Meta(max_length=256)] = ()


class Fault(run_spec.StrictStruct, frozen=True, kw_only=True):
    """What goes wrong from call number `first` of a stage on (1 is the first), `count` times; 0: for ever."""

    stage: DriverStage
    kind: FaultKind = FaultKind.FAIL
    result: ResultCode = ResultCode.OP_FAILED
    first: Annotated[int, Meta(ge=1)] = 1
    count: Annotated[int, Meta(ge=0)] = 0
    delay_ns: Nanoseconds = 0


class DriverProfile(run_spec.StrictStruct, frozen=True, kw_only=True):
    """A phone's NNAPI. `feature_level` is the runtime's and counts from API level 31 on (31, or 1000006 and more).

    `api_level` is the phone's, for a device that is given none; `phone` says for people which one was asked.
    """

    devices: Annotated[tuple[Driver, ...], Meta(max_length=16)]
    feature_level: Level = 31
    delays_ns: dict[DriverStage, Nanoseconds] = {}
    faults: Annotated[tuple[Fault, ...], Meta(max_length=32)] = ()
    version: int = PROFILE_VERSION
    api_level: Annotated[int, Meta(ge=21, le=99)] | None = None
    phone: str = ""


def default_profile(api_level: int) -> DriverProfile:
    """A phone with one accelerator that takes everything, and Android's own reference device beside it."""
    level = max(27, min(api_level, 31))
    accelerator = Driver(name="android-host", feature_level=level)
    reference = Driver(name="nnapi-reference", type=runner_device.DriverType.CPU, feature_level=level)
    return DriverProfile(devices=(accelerator, reference))


def read_profile(path: Path) -> DriverProfile:
    """A profile from a JSON file; raises SpecError that names the key, the operation or the type that is wrong."""
    remedy = "docs/android-host.md lists the keys; names are NNAPI's, as CONV_2D and TENSOR_FLOAT32"
    try:
        profile = untrusted_files.decode_json(untrusted_files.read_regular(path), DriverProfile)
        encode_profile(profile, 31)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise SpecError("this is not a driver profile", where=str(path), why=str(error), remedy=remedy) from error
    if profile.version != PROFILE_VERSION:
        why = f"this release reads version {PROFILE_VERSION}"
        raise SpecError(f"this driver profile has version {profile.version}", where=str(path), why=why, remedy=remedy)
    return profile


NO_CODE = 255
"""A code that nothing has: a list with it alone accepts nothing."""


def encode_profile(profile: DriverProfile, api_level: int) -> str:
    """The lines that nnapi/profile.c reads; raises ValueError for an operation or a type that is not known.

    Also for faults of outputs in a stage that has none.
    """
    codes = {"operation": operation_codes(), "type": operand_type_codes()}

    def known(word: str, names: tuple[str, ...]) -> list[int]:
        if unknown := sorted(set(names) - set(codes[word])):
            raise ValueError(f"no {word} is called {', '.join(unknown)}; there are {', '.join(sorted(codes[word]))}")
        return [codes[word][name] for name in names]

    lines = [f"level {api_level if api_level <= NEWEST_BELOW_RUNTIME else profile.feature_level}"]
    for driver in profile.devices:
        lines.append(
            f"device {driver.name} {runner_device.TYPE_CODES[driver.type]} {driver.feature_level} {driver.version}"
        )
        for word, names in (("operation", driver.operations), ("type", driver.operand_types)):
            if names is not None:
                lines += [f"{word} {code}" for code in known(word, names) or [NO_CODE]]
        for refusal in driver.refuses:
            numbers = (*known("operation", (refusal.operation,)), *known("type", refusal.operand_types))
            lines.append(" ".join(map(str, ("refuse", *numbers))))
    lines += [f"delay {stage} {delay}" for stage, delay in profile.delays_ns.items()]
    for fault in profile.faults:
        if fault.kind in WRONG_OUTPUTS and fault.stage is not DriverStage.RUN:
            raise ValueError(f"the stage {fault.stage} has no outputs that could have {fault.kind}")
        numbers = (RESULT_CODES[fault.result], fault.first, fault.count, fault.delay_ns)
        lines.append(" ".join(map(str, ("fault", fault.stage, fault.kind, *numbers))))
    return "\n".join(lines) + "\n"


@lru_cache(maxsize=2)
def definitions(file: str) -> dict[str, tuple[int, int]]:
    """What a table of the fake driver (operations.def, types.def) defines, by name and in its order.

    NNAPI's number of an operation or an operand type, and the feature level that it came with.
    """
    rows = re.findall(
        r"^[A-Z]+\((\d+), (\w+),(?: \w+,)*? (\d\d)[,)]", (SOURCES / file).read_text("utf-8"), re.MULTILINE
    )
    return {name: (int(code), int(level)) for code, name, level in rows}


def operation_codes() -> dict[str, int]:
    """Names of the operations that the fake computes, and their NNAPI codes."""
    return {name: code for name, (code, _) in definitions("operations.def").items()}


def operand_type_codes() -> dict[str, int]:
    """Names of operand types, and their NNAPI codes."""
    return {name: code for name, (code, _) in definitions("types.def").items()}


SCHEME = "android-host"
DEFAULT_API_LEVEL = 31
API_LEVELS = range(21, 100)
OPTIONS = ("api_level", "driver", "calls", "abi", "cpu", "vulkan")


@dataclass(frozen=True, slots=True)
class Phone:
    """What the library is to believe about the phone; `calls` is a file for the record of NNAPI calls.

    `cpu` is the profile that an emulator plays (`host_device.CPUS`), "" for the ABI's usual one; `vulkan` names the
    driver that plays its GPU (`vulkan.find_driver`).
    """

    api_level: int = DEFAULT_API_LEVEL
    driver: DriverProfile | None = None
    calls: Path | None = None
    cpu: str = ""
    vulkan: str = ""

    def environment(self, folder: Path, processor: host_device.Processor | None = None) -> dict[str, str]:
        """Variables that shims and the fake NNAPI read; the profiles of driver and CPU are written into `folder`.

        Without a processor they are for this computer's own.

        A fake libneuralnetworks.so is always found: without one the provider calls null pointers from level 27 on.
        """
        profile = folder / "driver"
        profile.write_text(encode_profile(self.driver or default_profile(self.api_level), self.api_level), "ascii")
        record = {"ORT_MOBILE_NNAPI_RECORD": str(self.calls.absolute())} if self.calls else {}
        return {
            "LD_LIBRARY_PATH": str(build_host(processor)),
            "ORT_MOBILE_ANDROID_SDK": str(self.api_level),
            "ORT_MOBILE_NNAPI_PROFILE": str(profile),
            **(processor.environment(folder) if processor else {}),
            **record,
        }


def open_android_host(rest: str, _waiting: runner_device.Waiting = runner_device.no_waiting) -> "AndroidHost":
    """The device that `android-host:REST` names; raises SpecError for a bad option, UnavailableError for no library."""
    text, _, query = rest.partition("?")
    options = runner_device.read_options(query, f"{SCHEME}:{rest}", OPTIONS)
    phone = parse_phone(options, f"{SCHEME}:{rest}")
    abi = options.get("abi") or host_device.default_abi()
    host_device.find_processor(abi, phone.cpu)
    if not text:
        raise SpecError(
            f"{SCHEME} needs a library",
            remedy=f"write `{SCHEME}:` and an AAR, a libonnxruntime.so, or a release such as 1.29.0",
        )
    return AndroidHost(f"{SCHEME}:{rest}", ort_library.resolve(text, abi).android(), phone)


def parse_phone(options: Mapping[str, str], where: str) -> Phone:
    """The phone that options describe; raises SpecError that names `where`."""
    driver = read_profile(Path(options["driver"])) if "driver" in options else None
    level = options.get("api_level", str((driver and driver.api_level) or DEFAULT_API_LEVEL))
    if not (level.isascii() and level.isdigit() and int(level) in API_LEVELS):
        remedy = (
            f"give a number from {API_LEVELS.start} to {API_LEVELS.stop - 1}; NNAPI begins at "
            f"{runner_providers.NNAPI_API_LEVEL}"
        )
        raise SpecError(f"api_level {level!r} does not exist", where=where, remedy=remedy)
    calls = Path(options["calls"]) if options.get("calls") else None
    return Phone(
        api_level=int(level), driver=driver, calls=calls, cpu=options.get("cpu", ""), vulkan=options.get("vulkan", "")
    )


FOLDER = "ort-mobile-android-"
"""Of the folders with what the library sees of a phone; one whose process was killed goes with the next."""


class AndroidHost(host_device.HostDevice):
    """Runs specs with an Android library, an AAR or a .so."""

    MARKS = (run_result.Mark.NOT_A_PHONE,)

    def __init__(self, name: str, library: ort_library.LibraryFacts, phone: Phone | None = None) -> None:
        """Raises UnavailableError for a library that needs what the shims do not give, or whose ABI cannot run here."""
        check_imports(library.imports, library.needed, where=library.path)
        self._phone = phone or Phone()
        with contextlib.ExitStack() as opened:
            folder = opened.enter_context(runner_files.scratch_folder(FOLDER))
            processor = host_device.find_processor(library.abi, self._phone.cpu)
            variables = self._phone.environment(folder, processor)
            super().__init__(name, library, processor, variables, self._phone.vulkan)
            self.opened = opened.pop_all()

    def _load(self, library: ort_library.Library) -> ort_library.LibraryFacts:
        facts = library.android()
        check_imports(facts.imports, facts.needed, where=facts.path)
        return facts

    def _fitting(self, spec: RunSpec, library: Path) -> tuple[runner_custom_ops.CustomLibrary, ...]:
        libraries = super()._fitting(spec, library)
        for custom_library in libraries:
            elf = elf_file.read_elf(custom_library.path)
            check_imports(elf.undefined, elf.needed, where=str(custom_library.path))
        return libraries

    def _has_gpu(self) -> bool:
        """Never: Dawn for Android is not used with a computer's own GPU, only with drivers in software."""
        return False

    def facts(self) -> DeviceFacts:
        """The phone that it plays, on the hardware that it runs on."""
        profile = self._phone.driver or default_profile(self._phone.api_level)
        level = self._phone.api_level
        drivers = profile.devices if level >= runner_providers.NNAPI_DEVICES_API_LEVEL else ()
        return msgspec.structs.replace(
            local_device.host_facts(self.name),
            platform="android",
            model=f"libonnxruntime {self.library.release} in a process of this computer, not a phone",
            soc=f"{self._processor.cpu} (emulated)" if self._processor.emulated else "",
            abis=(self.library.abi,),
            api_level=level,
            nnapi=level >= runner_providers.NNAPI_API_LEVEL,
            nnapi_devices=tuple(
                runner_device.NnapiDevice(
                    name=driver.name, type=driver.type, feature_level=driver.feature_level, version=driver.version
                )
                for driver in drivers
            ),
        )
