"""What an Android library does with NNAPI: the record of its calls, and what its providers claim.

`ask` runs many models in one process and may save EP-aware models. A model that crashes the library costs its own
answer only: a new process goes on with the next.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from device_runner.android_host.build import ASK, build_host, check_imports
from device_runner.android_host.device import Phone
from device_runner.errors import RunnerError
from device_runner.files import scratch_folder
from device_runner.host_device import SLOWNESS, find_processor
from device_runner.library import LIBRARY, LibraryFacts
from device_runner.probe.protocol import FLAG_BITS, LEVEL_NUMBERS
from device_runner.providers import PROVIDERS
from device_runner.reading import decode_json
from device_runner.spec import NnapiFlag, OptimizationLevel
from device_runner.vulkan import find_driver, vulkan_environment

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


def read_calls(path: Path, caller: str = LIBRARY) -> list[Call]:
    """The provider's calls in their order, without those of the probe; raises msgspec.DecodeError, OSError.

    `caller` is the file name of the library that the provider is in.
    """
    calls = [decode_json(line, Call) for line in path.read_bytes().splitlines()]
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
    flags: tuple[NnapiFlag, ...] = ()
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
    library: LibraryFacts, questions: Sequence[ModelQuestion], session: Session, *, limit_seconds: float = LIMIT_SECONDS
) -> Iterator[LibraryAnswer]:
    """One answer for each question, in their order; a crash or a hang is an answer too.

    `limit_seconds` is for one model, ten times as long under an emulator. WebGPU needs the phone's Vulkan driver.
    Raises UnavailableError without one, for a library that needs what the shims do not give or whose ABI does not run
    here, RunnerError when the program itself cannot work.
    """
    check_imports(library.imports, library.needed, where=library.path)
    processor = find_processor(library.abi, session.phone.cpu)
    limit = limit_seconds * (SLOWNESS if processor.emulated else 1)
    rest = list(questions)
    with scratch_folder() as folder:
        environment = {**os.environ, **session.phone.environment(folder, processor)}
        if session.provider == PROVIDERS["webgpu"].append_name:
            driver = find_driver(session.phone.vulkan)
            environment |= vulkan_environment(driver, environment["LD_LIBRARY_PATH"])
        command = (*processor.command, str(build_host(processor) / ASK))
        while rest:
            answers = _ask_once(library, rest, session, folder, command, environment, limit)
            yield from answers
            rest = rest[len(answers) :]


def _ask_once(
    library: LibraryFacts,
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
        ("set", "flags", str(sum(FLAG_BITS[flag] for flag in set(session.flags)))),
        ("set", "level", str(LEVEL_NUMBERS[session.level])),
        ("set", "log", str(int(session.verbose))),
        ("config", RECORD_CLAIMS, "1"),
        *(("config", key, value) for key, value in session.config.items()),
    ]
    for name, model, saved in questions:
        triples.append(("save", str(saved.absolute()) if saved else "", ""))
        triples.append(("model", name, str(model.absolute())))
    request = folder / "request"
    request.write_bytes(b"".join(text.encode("utf-8", "surrogateescape") + b"\0" for row in triples for text in row))
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
            answer = decode_json(line, LibraryAnswer)
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
