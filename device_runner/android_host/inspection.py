"""A driver profile from a phone: its NNAPI is asked about every operation that ONNX Runtime gives it.

The questions are models of one operation each. Their argument lists are those that ONNX Runtime's provider gives
(recorded from it over a few thousand models), in the operand types that it gives them. Which operations and types
exist, and from which feature level, is in the tables that the fake driver includes (nnapi/operations.def, types.def).
"""

import os
import re
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from device_runner import device as runner_device
from device_runner import files as runner_files
from device_runner import host_device, untrusted_files, vulkan
from device_runner import library as ort_library
from device_runner import providers as runner_providers
from device_runner import result as run_result
from device_runner import run as device_run
from device_runner import spec as run_spec
from device_runner.android_host.build import ASK, build_host, check_imports
from device_runner.android_host.device import (
    NEWEST_BELOW_RUNTIME,
    Driver,
    DriverProfile,
    DriverRefusal,
    Phone,
    definitions,
    operand_type_codes,
    operation_codes,
)
from device_runner.device import DeviceFacts
from device_runner.errors import RunnerError, UnavailableError
from device_runner.probe import protocol
from device_runner.result import Status
from device_runner.spec import OptimizationLevel

FLOAT, QUANT, CHANNELS = "float", "quant", "channels"

IMAGE = (1, 4, 4, 2)
"""Shape of a tensor where none is given: batch, height, width, channels."""

SIGNATURES: tuple[tuple[str, str, str], ...] = (
    ("float", "ABS EXP FLOOR LOG NEG RELU RELU1 RELU6 SIN SQRT TANH LOGISTIC", "t -> t"),
    ("quant", "LOGISTIC", "t -> p"),
    ("float quant", "ADD MUL", "t t i=0 -> t"),
    ("float", "DIV SUB", "t t i=0 -> t"),
    ("float", "MAXIMUM MINIMUM POW", "t t -> t"),
    ("float", "LESS GREATER", "t t -> q"),
    ("float", "PRELU", "t t[2]= -> t"),
    ("float", "ELU", "t r=1 -> t"),
    ("float", "SELECT", "q t t -> t"),
    ("float", "CAST", "t -> t"),
    ("float", "CAST", "t -> n"),
    ("float", "QUANTIZE", "t -> u"),
    ("float", "DEQUANTIZE", "u -> t"),
    ("float quant", "AVERAGE_POOL_2D MAX_POOL_2D", "t i=0 i=0 i=0 i=0 i=1 i=1 i=2 i=2 i=0 z=0 -> t[1,3,3,2]"),
    ("float quant", "AVERAGE_POOL_2D MAX_POOL_2D", "t i=0 i=0 i=0 i=0 i=1 i=1 i=2 i=2 i=0 -> t[1,3,3,2]"),
    ("float quant channels", "CONV_2D", "t w[3,1,1,2]= b[3]= i=0 i=0 i=0 i=0 i=1 i=1 i=0 z=0 -> t[1,4,4,3]"),
    ("float quant", "CONV_2D", "t w[3,1,1,2]= b[3]= i=0 i=0 i=0 i=0 i=1 i=1 i=0 -> t[1,4,4,3]"),
    (
        "float quant channels",
        "DEPTHWISE_CONV_2D",
        "t w[1,2,2,2]= b[2]= i=0 i=0 i=0 i=0 i=1 i=1 i=1 i=0 z=0 -> t[1,3,3,2]",
    ),
    ("float quant", "DEPTHWISE_CONV_2D", "t w[1,2,2,2]= b[2]= i=0 i=0 i=0 i=0 i=1 i=1 i=1 i=0 -> t[1,3,3,2]"),
    ("float", "GROUPED_CONV_2D", "t w[2,2,2,1]= b[2]= i=0 i=0 i=0 i=0 i=1 i=1 i=2 i=0 z=0 -> t[1,3,3,2]"),
    ("float quant", "FULLY_CONNECTED", "t[2,4] w[3,4]= b[3]= i=0 -> t[2,3]"),
    ("float quant", "CONCATENATION", "t t i=3 -> t[1,4,4,4]"),
    ("float", "SPLIT", "t i=3 i=2 -> t[1,4,4,1] t[1,4,4,1]"),
    ("float", "DEPTH_TO_SPACE", "t[1,2,2,4] i=2 -> t[1,4,4,1]"),
    ("float", "LOCAL_RESPONSE_NORMALIZATION", "t i=1 r=1 r=0.0001 r=0.75 -> t"),
    ("float", "MEAN", "t n[2]=1,2 i=1 -> t[1,1,1,2]"),
    ("float", "PAD", "t n[4,2]=0,0,1,1,1,1,0,0 -> t[1,6,6,2]"),
    ("float", "PAD_V2", "t n[4,2]=0,0,1,1,1,1,0,0 r=0 -> t[1,6,6,2]"),
    ("float quant", "RESHAPE", "t n[2]=4,8 -> t[4,8]"),
    ("float", "SQUEEZE", "t n[1]=0 -> t[4,4,2]"),
    ("float", "EXPAND_DIMS", "t[4,4,2] i=0 -> t"),
    ("float quant", "TRANSPOSE", "t n[4]=0,3,1,2 -> t[1,2,4,4]"),
    ("float", "RESIZE_BILINEAR", "t i=8 i=8 z=0 -> t[1,8,8,2]"),
    ("float", "RESIZE_BILINEAR", "t i=8 i=8 -> t[1,8,8,2]"),
    ("float quant", "RESIZE_NEAREST_NEIGHBOR", "t i=8 i=8 z=0 -> t[1,8,8,2]"),
    ("float quant", "SOFTMAX", "t r=1 i=3 -> p"),
    ("float quant", "SOFTMAX", "t[2,4] r=1 -> p[2,4]"),
    ("float", "GATHER", "t[3,4] i=0 n[2]=0,1 -> t[2,4]"),
    ("float", "SLICE", "t n[4]=0,0,0,0 n[4]=1,2,2,2 -> t[1,2,2,2]"),
    ("float", "STRIDED_SLICE", "t n[4]=0,0,0,0 n[4]=1,2,2,2 n[4]=1,1,1,1 i=0 i=0 i=0 -> t[1,2,2,2]"),
)
"""Kinds, operations, and their operands with the results behind the arrow.

A letter is an operand's role: t the kind's tensor, w weights, b a bias, p probabilities, u, n and q tensors of bytes,
integers and truth values, i, r and z scalars. Behind it stand the shape, and after = the values of a constant
(zeros where none are given).
"""


Quantization = tuple[float, int]
"""Scale and zero point; 0.0 for a type that has none."""

PLAIN: Quantization = (0.0, 0)
HALVES: Quantization = (0.5, 0)
PRODUCTS: Quantization = (0.25, 0)
PROBABILITIES: Quantization = (1 / 256, 0)
"""What NNAPI wants of the results of LOGISTIC and SOFTMAX; a bias has the product of its inputs' scales."""

Role = tuple[str, Quantization]
COMMON: dict[str, Role] = {
    "u": ("TENSOR_QUANT8_ASYMM", HALVES),
    "n": ("TENSOR_INT32", PLAIN),
    "q": ("TENSOR_BOOL8", PLAIN),
    "i": ("INT32", PLAIN),
    "r": ("FLOAT32", PLAIN),
    "z": ("BOOL", PLAIN),
}
BYTES: dict[str, Role] = {
    **COMMON,
    "t": ("TENSOR_QUANT8_ASYMM", HALVES),
    "p": ("TENSOR_QUANT8_ASYMM", PROBABILITIES),
    "w": ("TENSOR_QUANT8_ASYMM", HALVES),
    "b": ("TENSOR_INT32", PRODUCTS),
}
ROLES: dict[str, dict[str, Role]] = {
    FLOAT: {**COMMON, **dict.fromkeys("tpwb", ("TENSOR_FLOAT32", PLAIN))},
    QUANT: BYTES,
    CHANNELS: {**BYTES, "w": ("TENSOR_QUANT8_SYMM_PER_CHANNEL", PLAIN), "b": ("TENSOR_INT32", PLAIN)},
}
"""Kind to what each letter is there."""

SCALARS = "irz"
OPERAND = re.compile(r"([a-z])(?:\[([\d,]*)\])?(?:=([\d.,]*))?")
FORMATS = {"FLOAT32": "f", "TENSOR_FLOAT32": "f", "INT32": "i", "TENSOR_INT32": "i"}
"""How a value of a type is packed; all others are bytes."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand; `value` are a constant's bytes, None for a tensor that is given or computed."""

    type: str
    shape: tuple[int, ...]
    quantization: Quantization
    value: bytes | None
    channel_dimension: int | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A model of one operation, whose results are the last operands; `level` is the feature level that it needs."""

    operation: str
    operands: tuple[Operand, ...]
    results: int
    level: int

    @property
    def types(self) -> frozenset[str]:
        """Operand types that occur in it."""
        return frozenset(operand.type for operand in self.operands)

    def triples(self) -> Iterator[tuple[str, str, str]]:
        """It as lines of a request to the probe (probe/request.h)."""
        yield "question", self.operation, ""
        types = definitions("types.def")
        for operand in self.operands:
            scale, zero_point = operand.quantization
            if operand.quantization != PLAIN:
                yield "scale", _bits(scale), str(zero_point & 0xFFFF_FFFF)
            yield "operand", str(types[operand.type][0]), ",".join(map(str, operand.shape))
            if operand.channel_dimension is not None:
                channel = operand.channel_dimension
                yield "channels", str(channel), ",".join([_bits(HALVES[0])] * operand.shape[channel])
            if operand.value is not None:
                yield "value", "", operand.value.hex()
        yield "operation", str(definitions("operations.def")[self.operation][0]), str(self.results)


def _bits(number: float) -> str:
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    return str(bits)


@lru_cache(maxsize=1)
def questions() -> tuple[Question, ...]:
    """All questions, in the table's order."""
    rows = []
    types = definitions("types.def")
    for kinds, operations, text in SIGNATURES:
        given, _, results = text.partition(" -> ")
        for operation in operations.split():
            for kind in kinds.split():
                operands = tuple(_operand(kind, operation, word) for word in (*given.split(), *results.split()))
                levels = (
                    definitions("operations.def")[operation][1],
                    *(types[operand.type][1] for operand in operands),
                )
                rows.append(Question(operation, operands, len(results.split()), max(levels)))
    return tuple(rows)


def _operand(kind: str, operation: str, word: str) -> Operand:
    match = OPERAND.fullmatch(word)
    if match is None:
        raise ValueError(f"{operation}: {word!r} is no operand")
    letter, sizes, text = match.groups()
    name, quantization = ROLES[kind][letter]
    shape = tuple(map(int, sizes.split(","))) if sizes else () if letter in SCALARS else IMAGE
    value = None
    if text is not None:  # a constant in the byte order of all Android devices, zeros where no values are given
        code = FORMATS.get(name, "b")
        values = [float(number) for number in text.split(",")] if text else [0.0] * prod(shape)
        value = struct.pack(f"<{prod(shape)}{code}", *(number if code == "f" else int(number) for number in values))
    channels = None
    if name == "TENSOR_QUANT8_SYMM_PER_CHANNEL":  # first in OHWI, last in the 1HWO of depthwise weights
        channels = 3 if operation == "DEPTHWISE_CONV_2D" else 0
    return Operand(name, shape, quantization, value, channels)


DEVICE_SECONDS = 20.0
"""For all questions; a driver that is still silent then hangs."""

CRASHES = 8
"""Questions that may end the process before the rest is no longer asked."""

YES, ERROR, IMPOSSIBLE = "y", "e", "x"


def inspect_phone(device: device_run.ProbeDevice) -> DriverProfile:
    """What the phone's NNAPI is and supports, for android-host to replay.

    Below API level 29 NNAPI names no devices, so the profile has none. Raises UnavailableError for a device without
    NNAPI, RunnerError for one that does not answer.
    """
    facts = device.facts()
    if facts.platform != "android" or facts.api_level < runner_providers.NNAPI_API_LEVEL:
        raise UnavailableError(
            f"{device.name} has no NNAPI",
            why=f"it needs Android of API level {runner_providers.NNAPI_API_LEVEL}",
            remedy="use a phone",
        )
    asked = questions()
    return make_profile(facts, ask_device(device, asked), asked)


def ask_device(device: device_run.ProbeDevice, asked: Sequence[Question]) -> protocol.NnapiAnswer:
    """Each device's answers to all questions; one that ends the process counts as an error, and the rest is asked on.

    Raises UnavailableError where there is no NNAPI, RunnerError when the device gives no answers.
    """
    answer, rest = _ask_device(device, asked)
    letters = [driver.answers for driver in answer.devices]
    for _ in range(CRASHES):
        if not rest:
            break
        more, rest = _ask_device(device, rest)
        if [driver.name for driver in more.devices] != [driver.name for driver in answer.devices]:
            raise RunnerError(f"NNAPI of {device.name} named other devices when it was asked again")
        letters = [before + driver.answers for before, driver in zip(letters, more.devices, strict=True)]
    drivers = zip(answer.devices, letters, strict=True)
    return replace(answer, devices=tuple(replace(driver, answers=text + len(rest) * ERROR) for driver, text in drivers))


def _ask_device(
    device: device_run.ProbeDevice, asked: Sequence[Question]
) -> tuple[protocol.NnapiAnswer, Sequence[Question]]:
    """Answers, and the questions behind one that ended the process."""
    answer = device.inspect([line for question in asked for line in question.triples()], DEVICE_SECONDS)
    if isinstance(answer, run_result.Failure):
        raise _silent(device.name, answer.what, answer.remedy)
    if not answer.nnapi.is_there and answer.status is not Status.OK:
        raise _silent(device.name, answer.message)
    if not answer.nnapi.is_there:
        raise UnavailableError(
            f"{device.name} has no NNAPI", why="it has no libneuralnetworks.so", remedy="use a phone"
        )
    drivers = answer.nnapi.devices
    whole = min((len(driver.answers) for driver in drivers), default=len(asked))
    if answer.status is Status.OK and whole == len(asked):
        return answer.nnapi, ()
    if answer.status is Status.OK or not drivers:
        raise _silent(device.name, answer.message or "it did not answer all questions")
    ended = tuple(replace(driver, answers=(driver.answers + ERROR)[: whole + 1]) for driver in drivers)
    return replace(answer.nnapi, devices=ended), asked[whole + 1 :]


def _silent(name: str, why: str, remedy: str = "") -> RunnerError:
    return RunnerError(
        f"NNAPI of {name} gave no answers", why=why, remedy=remedy or "restart the phone, then try again"
    )


def make_profile(facts: DeviceFacts, answer: protocol.NnapiAnswer, asked: Sequence[Question]) -> DriverProfile:
    """The profile that answers as the phone did."""
    words = (facts.manufacturer, facts.model, facts.soc, facts.os_release, facts.fingerprint)
    return DriverProfile(
        devices=tuple(
            _driver(device, asked)
            for device in answer.devices
            if facts.api_level >= runner_providers.NNAPI_DEVICES_API_LEVEL
        ),
        feature_level=_level(answer.level) if facts.api_level > NEWEST_BELOW_RUNTIME else NEWEST_BELOW_RUNTIME + 1,
        api_level=facts.api_level,
        phone=", ".join(word for word in words if word),
    )


def _driver(device: protocol.NnapiDeviceAnswer, asked: Sequence[Question]) -> Driver:
    """The two lists are what occurs in supported models; what of their combinations is refused is told one by one."""
    level = _level(device.level)
    answers = zip(asked, device.answers, strict=True)
    judged = [
        (question, answer == YES) for question, answer in answers if question.level <= level and answer != IMPOSSIBLE
    ]
    accepted = [question for question, supported in judged if supported]
    operations = {question.operation for question in accepted}
    types = frozenset[str]().union(*(question.types for question in accepted))
    supported = {(question.operation, question.types) for question in accepted}
    combined = {
        (question.operation, question.types)
        for question, _ in judged
        if question.operation in operations and question.types <= types
    }
    refused = sorted(combined - supported, key=lambda pair: (pair[0], sorted(pair[1])))
    all_types = frozenset[str]().union(*(question.types for question, _ in judged))
    return Driver(
        name=_word(device.name),
        type=runner_device.TYPES.get(device.type, runner_device.DriverType.OTHER),
        feature_level=level,
        version=_word(device.version),
        operations=_listed(operations, {question.operation for question, _ in judged}, operation_codes()),
        operand_types=_listed(types, all_types, operand_type_codes()) if accepted else None,
        refuses=tuple(
            DriverRefusal(operation=operation, operand_types=_listed(kinds, frozenset(), operand_type_codes()) or ())
            for operation, kinds in refused
        ),
    )


def _listed(names: Iterable[str], everything: Iterable[str], codes: dict[str, int]) -> tuple[str, ...] | None:
    """Names in the order of their numbers; None, which is "all", when nothing that was asked is left out."""
    listed = set(names)
    return None if listed == set(everything) else tuple(sorted(listed, key=codes.__getitem__))


def _level(level: int) -> int:
    """Drivers that tell no level, or one that NNAPI never had, count as the first."""
    return max(level, runner_providers.NNAPI_API_LEVEL)


def _word(text: str) -> str:
    """A name as driver profiles have it: printable ASCII without blanks, quotes and backslashes."""
    return re.sub(r"[^!#-\[\]-~]", "_", text)[:63] or "_"


PREFIX = "ANeuralNetworks"
DEVICE_CALLS = frozenset({"_getDeviceCount", "_getDevice", "Device_getName", "Device_getType"})

Call = dict[str, Any]
"""One call: `call` is its name without prefix, `result` its code, the rest its arguments."""


class CallSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What one session and its runs asked of NNAPI. `partitions` has the operations of each model in their order.

    `compiled_for` is how many devices a compilation was made for; 0 leaves the choice to the system. `nchw` is None
    where no convolution or pool was asked for.
    """

    asked_devices: bool = False
    partitions: tuple[tuple[str, ...], ...] = ()
    relaxed: bool = False
    nchw: bool | None = None
    compiled_for: int | None = None
    runs: int = 0


def read_calls(path: Path, caller: str = ort_library.LIBRARY) -> list[Call]:
    """The provider's calls in their order, without those of the probe; raises msgspec.DecodeError, OSError.

    `caller` is the file name of the library that the provider is in.
    """
    calls = [untrusted_files.decode_json(line, Call) for line in path.read_bytes().splitlines()]
    for call in calls:
        call["call"] = call["call"].removeprefix(PREFIX)
    return [call for call in calls if call.get("caller", caller) == caller]


def summarize(calls: Sequence[Call]) -> CallSummary:
    """The calls of one process, summed up."""

    def named(name: str) -> list[Call]:
        return [call for call in calls if call["call"] == name]

    models = [call["model"] for call in named("Model_create")]
    operations = named("Model_addOperation")
    names = {op["operation"] for op in operations}
    compilations = [call for call in calls if call["call"].startswith("Compilation_create")]
    return CallSummary(
        asked_devices=any(call["call"] in DEVICE_CALLS for call in calls),
        partitions=tuple(tuple(op["operation"] for op in operations if op["model"] == model) for model in models),
        relaxed=any(call["allow"] for call in named("Model_relaxComputationFloat32toFloat16")),
        # On the model's own layout nothing is transposed around convolutions and pools.
        nchw="TRANSPOSE" not in names if any(name.endswith(("CONV_2D", "POOL_2D")) for name in names) else None,
        compiled_for=max((call["devices"] for call in compilations), default=None),
        runs=len(named("Execution_startCompute")),
    )


RECORD_CLAIMS = "session.record_ep_graph_assignment_info"
STOP_OPS = "ep.nnapi.partitioning_stop_ops"
LIMIT_SECONDS = 120.0
"""A library that says nothing for so long hangs on its model."""
LOOK_SECONDS = 1.0
HANG = "hang"
"""Stands for the signal of a process that was ended because it hung."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """How every session is made. `provider` is cpu, nnapi or a name of the generic append call."""

    provider: str = "nnapi"
    flags: tuple[run_spec.NnapiFlag, ...] = ()
    level: OptimizationLevel = OptimizationLevel.NONE
    config: dict[str, str] = field(default_factory=dict)
    verbose: bool = False
    phone: Phone = field(default_factory=Phone)


ModelQuestion = tuple[str, Path, Path | None]
"""An id, a model to make a session of, and where what the library made of it goes (None: nowhere)."""


AssignedNode = tuple[str, str, str]
"""One claimed node by its name in the model, domain and operator; inlined nodes have no name."""


class Subgraph(msgspec.Struct, frozen=True):
    """Nodes that a provider took as one."""

    provider: str
    nodes: tuple[AssignedNode, ...]


class LibraryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one question. `signal` is set when the library crashed; `code` is ONNX Runtime's, 0 for success.

    `recorded` is False where the library is older than 1.24 and cannot say what it assigned. `resident_bytes` is the
    memory of the process with the session in it. `begun` is the id of a question that is only begun.
    """

    id: str = ""
    begun: str = ""
    code: int = 0
    message: str = ""
    signal: str = ""
    resident_bytes: int = 0
    recorded: bool = False
    subgraphs: tuple[Subgraph, ...] = ()
    log: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether no session could be made."""
        return bool(self.code or self.message or self.signal)


def ask(
    library: ort_library.LibraryFacts,
    questions: Sequence[ModelQuestion],
    session: Session,
    *,
    limit_seconds: float = LIMIT_SECONDS,
) -> Iterator[LibraryAnswer]:
    """One answer for each question, in their order; a crash or a hang is an answer too.

    `limit_seconds` is for one model, ten times as long under an emulator. WebGPU needs the phone's Vulkan driver.
    Raises UnavailableError without one, for a library that needs what the shims do not give or whose ABI does not run
    here, RunnerError when the program itself cannot work.
    """
    check_imports(library.imports, library.needed, where=library.path)
    processor = host_device.find_processor(library.abi, session.phone.cpu)
    limit = limit_seconds * (host_device.SLOWNESS if processor.emulated else 1)
    rest = list(questions)
    with runner_files.scratch_folder() as folder:
        environment = {**os.environ, **session.phone.environment(folder, processor)}
        if session.provider == runner_providers.PROVIDERS["webgpu"].append_name:
            driver = vulkan.find_driver(session.phone.vulkan)
            environment |= vulkan.vulkan_environment(driver, environment["LD_LIBRARY_PATH"])
        command = (*processor.command, str(build_host(processor) / ASK))
        while rest:
            answers = _ask_once(library, rest, session, folder, command, environment, limit)
            yield from answers
            rest = rest[len(answers) :]


def _ask_once(
    library: ort_library.LibraryFacts,
    questions: Sequence[ModelQuestion],
    session: Session,
    folder: Path,
    command: tuple[str, ...],
    environment: dict[str, str],
    limit_seconds: float,
) -> list[LibraryAnswer]:
    """The answers of one process: to all questions, or up to one that ended it."""
    triples = [
        ("set", "library", str(Path(library.path).absolute())),
        ("set", "provider", session.provider),
        ("set", "flags", str(sum(protocol.FLAG_BITS[flag] for flag in set(session.flags)))),
        ("set", "level", str(protocol.LEVEL_NUMBERS[session.level])),
        ("set", "log", str(int(session.verbose))),
        ("config", RECORD_CLAIMS, "1"),
        *(("config", key, value) for key, value in session.config.items()),
    ]
    for name, model, saved in questions:
        triples.append(("save", str(saved.absolute()) if saved else "", ""))
        triples.append(("model", name, str(model.absolute())))
    request = folder / "request"
    request.write_bytes(
        b"".join(text.encode("utf-8", "surrogateescape") + b"\0" for triple in triples for text in triple)
    )
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            [*command, str(request)], stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment
        )
        try:
            code = _wait(process, folder / "out", limit_seconds)
        except BaseException:
            process.kill()
            process.wait()
            raise
    answers: list[LibraryAnswer] = []
    begun = ""  # the id of a model that was begun but not answered
    for line in (folder / "out").read_bytes().splitlines():
        try:
            answer = untrusted_files.decode_json(line, LibraryAnswer)
        except (msgspec.DecodeError, UnicodeDecodeError):
            break
        if not (answer.id or answer.begun):
            break
        begun = answer.begun
        if not begun:
            answers.append(answer)
    stderr = (folder / "err").read_bytes()[-2000:].decode("utf-8", "replace").strip()
    if begun:
        end = HANG if code is None else signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return [*answers, LibraryAnswer(id=begun, message=stderr, signal=end)]
    if len(answers) < len(questions):
        raise RunnerError(
            "the library could not be asked",
            where=library.path,
            why=stderr or ("it did not begin in time" if code is None else f"exit code {code}"),
        )
    return answers


def _wait(process: "subprocess.Popen[bytes]", out: Path, limit_seconds: float) -> int | None:
    """The exit code; None when the process was ended because `out` did not grow for `limit_seconds`."""
    waiting = threading.Thread(target=process.wait, daemon=True)  # wait() with a time limit polls, and so comes late
    waiting.start()
    size, deadline = 0, time.monotonic() + limit_seconds
    while time.monotonic() < deadline:
        waiting.join(min(LOOK_SECONDS, limit_seconds))
        if not waiting.is_alive():
            return process.returncode
        grown = out.stat().st_size
        if grown != size:
            size, deadline = grown, time.monotonic() + limit_seconds
    process.kill()
    process.wait()
    return None
