"""The device `adb:SERIAL`: the probe on a phone (or a Linux device with adbd)."""

import contextlib
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from device_runner.adb.facts import facts_or_reason, read_conditions, read_facts
from device_runner.adb.lease import lease_key, take_lease
from device_runner.adb.link import (
    Link,
    LinkError,
    LinkLost,
    LinkTimeout,
    NoServer,
    Output,
    list_serials,
    reconnect,
    server_at,
)
from device_runner.adb.nnapi import SUFFIX as PROBE_SUFFIX
from device_runner.adb.quote import script
from device_runner.adb.settings import (
    FIRST_FIXED_PERFORMANCE_API,
    FIXED_PERFORMANCE,
    SCREEN_ON,
    hold,
    restore,
    restore_quietly,
)
from device_runner.adb.store import SLOWEST_BYTES_PER_SECOND, NoSpace, Store
from device_runner.device import DeviceFacts, Readiness
from device_runner.errors import MissingError, RunnerError
from device_runner.failures import ERROR_KINDS, explain, failure_of
from device_runner.files import keep_files, missing_input
from device_runner.library_source import find_archive, is_archive, name_of, open_library
from device_runner.local import GRACE_SECONDS, wheel_library
from device_runner.options import impossible_here
from device_runner.perf_test_adb import run_over_adb
from device_runner.probe.build import HOST, build_probe
from device_runner.probe.elf import NotElf, read_header
from device_runner.probe.protocol import Answer, Places, decode_answer, encode_inspection, encode_request, to_result
from device_runner.result import (
    Conditions,
    Failure,
    FailureKind,
    Mark,
    RunResult,
    status_of,
    utc_now,
    without_measurement,
)
from device_runner.selectors import on_network, parse_selector, split_server
from device_runner.spec import RunSpec
from device_runner.wheel import foreign_library

REMOTE_ROOT = "/data/local/tmp/ort-mobile"
"""Where everything of ours lies on a device: the shell user may write and execute there."""

CONDITIONS_AGE_SECONDS = 5.0
"""How long conditions count as those of now: heat and charge change slowly, and asking costs a round trip."""

TOMBSTONE_LINES = 60
"""Enough for signal, cause, registers and the upper part of the backtrace."""

RUN = """
rm -rf "$1" && mkdir -p "$1" && cd "$1" || exit 90
head -c "$2" > request || exit 91
echo $$ > pid
LD_LIBRARY_PATH="$4${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" ORT_DISABLE_TELEMETRY=1 exec "$3" request
"""
"""Run folder, bytes of the request on standard input, probe, folder of libraries before those of the device itself."""

KILL = 'kill -9 "$(cat "$1/pid")"; rm -rf "$1"'


def open_adb(text: str) -> "AdbDevice":
    """The device SERIAL, or SERIAL@HOST:PORT of another adb server.

    Raises MissingError when it is not there, not ready or in use; NoServer; SpecError.
    """
    serial, address = split_server(text)
    server = server_at(address)
    states = dict(list_serials(server))
    why = f"the adb server knows: {', '.join(states) or 'none at all'}"
    if on_network(serial) and states.get(serial) != "device":
        why = reconnect(server, serial)
        states = dict(list_serials(server))
    if serial not in states:
        raise MissingError(f"no device {serial!r}", why=why, remedy="see `ort-mobile devices`")
    link = Link(server, serial)
    facts = facts_or_reason(link, f"adb:{text}", states[serial], REMOTE_ROOT)
    if facts.readiness is not Readiness.READY:
        raise MissingError(f"device {serial} is not ready", why=facts.advice, remedy="see `ort-mobile devices`")
    return AdbDevice(link, name=facts.name)


def list_devices(text: str = "*") -> list[DeviceFacts]:
    """Facts of an adb server's devices that SELECTOR or SELECTOR@HOST:PORT means, ready or not, all asked at once.

    Raises NoServer without a server, SpecError for a selector that makes no sense.
    """
    selector, address = split_server(text)
    wanted = parse_selector(selector)
    server = server_at(address)
    at = f"@{address}" if address else ""

    def ask(listed: tuple[str, str]) -> DeviceFacts:
        serial, state = listed
        return facts_or_reason(Link(server, serial), f"adb:{serial}{at}", state, REMOTE_ROOT)

    with ThreadPoolExecutor(32) as pool:
        return [facts for facts in pool.map(ask, list_serials(server)) if wanted(facts)]


@dataclass(frozen=True, slots=True)
class Tools:
    """What runs on the device: the probe, and the library where a spec names none (Android has no default)."""

    probe: Path
    library: Path | None


def default_tools(facts: DeviceFacts) -> Tools:
    """Probe for a device's system and first ABI, and on Linux the wheel's library; raises RunnerError for none."""
    if facts.platform == "android":
        return Tools(build_probe(_abi_of_tools(facts)), None)
    own = read_header(wheel_library()).abi
    if facts.abis[0] == own:
        return Tools(build_probe(HOST), wheel_library())
    target = {"arm64-v8a": "linux-aarch64"}.get(facts.abis[0], f"linux-{facts.abis[0]}")
    return Tools(build_probe(target), foreign_library(facts.abis[0]))


def _abi_of_tools(facts: DeviceFacts) -> str:
    """The ABI of probe and library: the device's best one of 64 bits, else its best."""
    return next((abi for abi in facts.abis if abi in ("arm64-v8a", "x86_64")), facts.abis[0])


def tombstone(crash_log: str, root: str) -> tuple[str, ...]:
    """The last record of a crash log that speaks of something under `root`, as lines of a result's log."""
    records = re.split(r"^(?=.*\*\*\* \*\*\*)", crash_log, flags=re.MULTILINE)
    ours = [record for record in records if root in record]
    return tuple(f"crash log: {line}" for line in ours[-1].splitlines()[:TOMBSTONE_LINES]) if ours else ()


class AdbDevice:
    """Runs specs through an adb server. What goes wrong on the way is a typed failure of that run."""

    def __init__(self, link: Link, *, name: str = "", root: str = REMOTE_ROOT, tools: Tools | None = None) -> None:
        self.link = link
        self.name = name or f"adb:{link.serial}"
        self._root = root
        self._tools = tools
        self._store = Store(link, root)
        self._folder = f"{root}/run-{secrets.token_hex(8)}"
        self._facts: DeviceFacts | None = None
        self._lost = False
        self._held: list[str] = []
        self._conditions = Conditions()
        self._conditions_at = -CONDITIONS_AGE_SECONDS
        self._lease: BinaryIO = take_lease(lease_key(link.server, link.serial), self.name)

    def facts(self) -> DeviceFacts:
        """What it is; raises MissingError when it does not answer."""
        try:
            return self._known_facts()
        except LinkError as error:
            raise MissingError(f"{self.name} does not answer", why=str(error), remedy="check its cable") from error

    def conditions(self) -> Conditions:
        """State of it, some seconds old at most; raises MissingError when it does not answer."""
        try:
            return self._current_conditions()
        except LinkError as error:
            raise MissingError(f"{self.name} does not answer", why=str(error), remedy="check its cable") from error

    def arrange(self, *, fixed_performance: bool, screen_on: bool) -> list[str]:
        """Set Android's fixed performance mode and keep the screen on, until it is closed; what it cannot do."""
        refused = []
        try:
            api_level = self._known_facts().api_level
            if fixed_performance and api_level < FIRST_FIXED_PERFORMANCE_API:
                refused.append(f"no fixed performance mode: it needs API {FIRST_FIXED_PERFORMANCE_API}")
            elif fixed_performance:
                refused.append(self._hold(FIXED_PERFORMANCE, "no fixed performance mode"))
            if screen_on:
                refused.append(self._hold(SCREEN_ON, "the screen is not kept on"))
        except LinkError as error:
            refused.append(f"settings are as they were: {error}")
        return [reason for reason in refused if reason]

    def _hold(self, text: str, otherwise: str) -> str:
        """Change a setting; "" or what that means that the device refuses."""
        self._conditions_at = -CONDITIONS_AGE_SECONDS
        self._held.append(text)
        said = hold(self.link, self._root, text)
        if said:
            self._held.remove(text)
        return f"{otherwise}: {said}" if said else ""

    @property
    def pushed_bytes(self) -> int:
        """Bytes that were pushed since it was opened."""
        return self._store.pushed_bytes

    def run(self, spec: RunSpec) -> RunResult:
        """Execute one spec; a device that comes back after it was lost is used again, another one is not."""
        try:
            return self._run(spec)
        except (LinkError, RunnerError, OSError) as error:
            self._lost = self._lost or isinstance(error, LinkLost | LinkTimeout | NoServer)
            self._store.forget()
            return without_measurement(spec, self.name, failure_of(error, LINK_KINDS))

    def inspect(self, asked: Iterable[tuple[str, str, str]], limit_seconds: float) -> Answer | Failure:
        """What the device's NNAPI says to these questions (probe/inspect.h)."""
        request = encode_inspection(asked, limit_seconds=limit_seconds, watch_stdin=True)
        try:
            tools = self._tools = self._tools or default_tools(self._known_facts())
            output = self._execute(request, self._store.put(tools.probe, PROBE_SUFFIX), limit_seconds)
        except (LinkError, RunnerError, OSError) as error:
            return failure_of(error, LINK_KINDS)
        answer = decode_answer(output.stdout)
        return _ended(output, answer) if isinstance(answer, Failure) else answer

    def close(self) -> None:
        """Restore its settings, remove the run folder and give the device back."""
        if self._held:
            restore_quietly(self.link, self._root)
        with contextlib.suppress(LinkError, RunnerError):
            self.link.shell(script('rm -rf "$1"', self._folder), seconds=5.0)
        self._lease.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, spec: RunSpec) -> RunResult:
        facts = self._found_again() if self._lost else self._known_facts()
        tools = self._tools = self._tools or default_tools(facts)
        self._store.joiner = tools.probe
        library = _given_library(spec.library, facts) if spec.library else tools.library
        failure = impossible_here(spec.options, facts) or missing_input(spec) or _wrong_library(library, facts)
        if failure or library is None:
            return without_measurement(spec, self.name, failure or _NO_LIBRARY)
        started, before = utc_now(), self._current_conditions()
        if spec.perf_test:
            result = self._by_perf_test(spec, library, facts)
        else:
            result = self._by_probe(spec, library, tools.probe)
        marks = (*result.marks, *_marks(facts, before))
        return msgspec.structs.replace(
            result, started_at=started, before=before, after=self._current_conditions(), marks=marks
        )

    def _by_probe(self, spec: RunSpec, library: Path, program: Path) -> RunResult:
        places = self._places(spec, library)
        probe = self._store.put(program, PROBE_SUFFIX)
        output = self._execute(encode_request(spec, places, watch_stdin=True), probe, spec.timeout_seconds)
        return self._doubted(self._result(spec, output), _pushed(probe, places))

    def _by_perf_test(self, spec: RunSpec, library: Path, facts: DeviceFacts) -> RunResult:
        program = Path(str(spec.perf_test))
        if program.is_file() and (failure := _wrong_library(program, facts)):
            return without_measurement(spec, self.name, failure)
        with tempfile.TemporaryDirectory(prefix="ort-mobile-run-") as scratch:
            result = run_over_adb(spec, self.name, self.link, self._store, self._folder, library, Path(scratch))
        crashed = result.failure is not None and result.failure.kind is FailureKind.CRASH
        return msgspec.structs.replace(result, log=self._tombstone()) if crashed else result

    def _places(self, spec: RunSpec, library: Path) -> Places:
        """Push what the run needs; its own files go under the run folder."""
        return Places(
            library=self._store.put(library, ".so"),
            model=self._store.put(Path(spec.model), Path(spec.model).suffix.lower()),
            inputs=tuple(self._store.put(Path(tensor.file)) for tensor in spec.inputs),
            labelled=self._store.put(Path(spec.labelled.file)) if spec.labelled else None,
            outputs=None if spec.outputs_folder is None else f"{self._folder}/output_",
            profile=f"{self._folder}/profile" if spec.profile else None,
        )

    def _execute(self, request: bytes, probe: str, limit_seconds: float) -> Output:
        arguments = script(RUN, self._folder, str(len(request)), probe, f"{self._root}/store")
        try:
            return self.link.shell(arguments, stdin=request, seconds=limit_seconds + GRACE_SECONDS)
        except LinkTimeout:
            with contextlib.suppress(LinkError):
                self.link.shell(script(KILL, self._folder), seconds=5.0)
            raise

    def _result(self, spec: RunSpec, output: Output) -> RunResult:
        answer = decode_answer(output.stdout)
        if isinstance(answer, Failure):
            return without_measurement(spec, self.name, _ended(output, answer))
        result = to_result(spec, self.name, answer)

        def fetch(name: str, path: Path, limit_bytes: int) -> None:
            seconds = 20.0 + limit_bytes / SLOWEST_BYTES_PER_SECOND
            self.link.pull(f"{self._folder}/{name}", path, seconds=seconds, limit_bytes=limit_bytes)

        if result.failure and result.failure.kind is FailureKind.CRASH:
            return msgspec.structs.replace(result, log=(*result.log, *self._tombstone()))
        return keep_files(spec, result, fetch)

    def _doubted(self, result: RunResult, pushed: Sequence[str]) -> RunResult:
        """The result; another failure where the device has lost files that were pushed, which is no fault of the run.

        Cleaners of phones and their users empty /data/local/tmp.
        """
        if result.failure is None or result.failure.kind not in OF_MISSING_FILES:
            return result
        self._store.forget()
        if self.link.shell(script(ALL_THERE, *pushed)).code == 0:
            return result
        return msgspec.structs.replace(result, status=status_of(_EMPTIED), failure=_EMPTIED)

    def _tombstone(self) -> tuple[str, ...]:
        """What Android's crash log says of the last crash of ours; nothing where there is no such log."""
        with contextlib.suppress(LinkError):
            output = self.link.shell(("logcat", "-b", "crash", "-d", "-t", "400"), seconds=10.0)
            return tombstone(output.text, self._root)
        return ()

    def _known_facts(self) -> DeviceFacts:
        if self._facts is None:
            restore(self.link, self._root)
            self._facts = self._looked_at(read_facts(self.link, self.name, self._root))
        return self._facts

    def _looked_at(self, facts: DeviceFacts) -> DeviceFacts:
        """Facts of a device whose NNAPI is not known yet, read again with the probe on it."""
        if facts.nnapi is None:
            with contextlib.suppress(RunnerError, LinkError, OSError):
                tools = self._tools = self._tools or default_tools(facts)
                probe = self._store.put(tools.probe, PROBE_SUFFIX)
                return read_facts(self.link, self.name, self._root, probe)
        return facts

    def _found_again(self) -> DeviceFacts:
        """After a loss: join it again, make sure that it is the same one, and believe nothing of what was pushed."""
        if on_network(self.link.serial):
            reconnect(self.link.server, self.link.serial)
        facts, before = read_facts(self.link, self.name, self._root), self._facts
        if before and (facts.fingerprint, facts.model, facts.abis) != (before.fingerprint, before.model, before.abis):
            raise LinkError(f"another device answers: {facts.model} {facts.fingerprint}, not {before.model}")
        self._store.forget()
        for text in self._held:
            hold(self.link, self._root, text)
        self._lost = False
        self._facts = facts
        return facts

    def _current_conditions(self) -> Conditions:
        if time.monotonic() - self._conditions_at >= CONDITIONS_AGE_SECONDS:
            fixed = FIXED_PERFORMANCE in self._held if self._held else None
            self._conditions = msgspec.structs.replace(read_conditions(self.link), fixed_performance=fixed)
            self._conditions_at = time.monotonic()
        return self._conditions


def _pushed(probe: str, places: Places) -> list[str]:
    """The files that a run finds in the store."""
    files = (probe, places.library, places.model, *places.inputs, places.labelled)
    return [file for file in files if file]


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

_EMPTIED = Failure(
    kind=FailureKind.DEVICE_ERROR,
    message="files that were pushed are no longer on the device",
    cause="something emptied its folder for temporary files during the campaign",
    remedy="it is pushed again with the next run; turn off cleaners on the device",
)

_NO_LIBRARY = Failure(
    kind=FailureKind.MISSING_LIBRARY,
    message="the spec names no library, and there is no default for this device",
    cause="Android has no libonnxruntime of its own",
    remedy="give the libonnxruntime.so of the device's ABI from the app's AAR",
)


def _given_library(text: str, facts: DeviceFacts) -> Path:
    """The file of a library, which may be given by name or in an archive too; raises MissingError for none."""
    path = Path(text)
    if name_of(text) or (path.is_file() and is_archive(path)):
        return Path(open_library(find_archive(text), _abi_of_tools(facts)).path)
    return path


def _wrong_library(library: Path | None, facts: DeviceFacts) -> Failure | None:
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


LINK_KINDS: tuple[tuple[type[Exception], FailureKind], ...] = (
    (LinkLost, FailureKind.LOST_DEVICE),
    (LinkTimeout, FailureKind.TIMEOUT),
    (NoSpace, FailureKind.NO_SPACE),
    (NoServer, FailureKind.LOST_DEVICE),
    *ERROR_KINDS,
)


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


def _ended(output: Output, garbage: Failure) -> Failure:
    """What the end of a probe without a document means."""
    said = output.stderr[-1000:].decode("utf-8", "replace").strip()
    signal = SIGNALS.get(output.code - 128)
    crash = (FailureKind.CRASH, f"the probe ended by {signal}") if signal else None
    kind, text = ENDS.get(output.code) or crash or (garbage.kind, garbage.message)
    message = f"{text} (exit code {output.code}): {said}" if said else f"{text} (exit code {output.code})"
    return explain(Failure(kind=kind, message=message, signal=signal))


def _marks(facts: DeviceFacts, before: Conditions) -> list[Mark]:
    """What a reader must know of the device: heat from `moderate` on throttles; Linux devices are no phones."""
    checks: tuple[tuple[Mark, Callable[[], bool | None]], ...] = (
        (Mark.NOT_A_PHONE, lambda: facts.platform != "android"),
        (Mark.THROTTLED, lambda: (before.thermal_status or 0) >= 2),
        (Mark.CHARGING, lambda: before.charging),
    )
    return [mark for mark, holds in checks if holds()]
