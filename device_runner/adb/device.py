"""The device `adb:SERIAL`: the probe on a phone (or a Linux device with adbd)."""

import contextlib
import secrets
import time
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from device_runner.adb.endings import (
    ALL_THERE,
    EMPTIED,
    NO_LIBRARY,
    OF_MISSING_FILES,
    ended,
    failed_by,
    marks_of,
    refused,
    tombstone,
    wrong_library,
)
from device_runner.adb.facts import SUFFIX as PROBE_SUFFIX
from device_runner.adb.facts import facts_or_reason, read_conditions, read_facts
from device_runner.adb.link import (
    Link,
    LinkError,
    LinkLost,
    LinkTimeout,
    NoServer,
    RunTimeout,
    ShellOutput,
    list_serials,
    reconnect,
    script,
    server_at,
)
from device_runner.adb.settings import (
    FIRST_FIXED_PERFORMANCE_API,
    FIXED_PERFORMANCE,
    SCREEN_ON,
    hold,
    lease_key,
    restore,
    restore_quietly,
    take_lease,
)
from device_runner.adb.store import DeviceStore, fetch_from
from device_runner.adb.tools import KILL, REMOTE_ROOT, RUN, Tools, abi_of_tools, default_tools
from device_runner.device import (
    GRACE_SECONDS,
    DeviceFacts,
    Readiness,
    Waiting,
    no_waiting,
    on_network,
    parse_selector,
    split_server,
)
from device_runner.errors import RunnerError, UnavailableError
from device_runner.files import RUN_PREFIX, keep_files, scratch_folder
from device_runner.library_source import Library, resolve
from device_runner.perf_test_adb import run_over_adb
from device_runner.probe.protocol import (
    ANSWER_BYTES,
    ProbeAnswer,
    ProbePaths,
    answer_limit,
    decode_answer,
    encode_inspection,
    encode_request,
    to_result,
)
from device_runner.result import (
    Conditions,
    Failure,
    FailureKind,
    RunResult,
    status_of,
    utc_now,
    without_measurement,
)
from device_runner.spec import RunSpec

CONDITIONS_AGE_SECONDS = 5.0
"""How long conditions count as those of now: heat and charge change slowly, and asking costs a round trip."""


def open_adb(text: str, waiting: Waiting = no_waiting) -> "AdbDevice":
    """The device SERIAL, or SERIAL@HOST:PORT of another adb server.

    Raises UnavailableError when it is not there, not ready or in use; NoServer; SpecError.
    """
    serial, address = split_server(text)
    server = server_at(address)
    states = dict(list_serials(server))
    why = f"the adb server knows: {', '.join(states) or 'none at all'}"
    if on_network(serial) and states.get(serial) != "device":
        why = reconnect(server, serial)
        states = dict(list_serials(server))
    if serial not in states:
        raise UnavailableError(f"no device {serial!r}", why=why, remedy="see `ort-mobile devices`")
    link = Link(server, serial)
    facts = facts_or_reason(link, f"adb:{text}", states[serial], REMOTE_ROOT)
    if facts.readiness is not Readiness.READY and on_network(serial) and states[serial] == "device":
        reconnect(server, serial)  # a connection may hang for ever after a broken packet
        facts = facts_or_reason(link, f"adb:{text}", "device", REMOTE_ROOT)
    if facts.readiness is not Readiness.READY:
        raise UnavailableError(f"device {serial} is not ready", why=facts.advice, remedy="see `ort-mobile devices`")
    return AdbDevice(link, name=facts.name, waiting=waiting)


def list_devices(text: str = "*", without: Collection[str] = ()) -> list[DeviceFacts]:
    """Facts of an adb server's devices that SELECTOR or SELECTOR@HOST:PORT means, ready or not, all asked at once.

    Devices whose names are in `without` are not asked: questions disturb what is timed there. Raises NoServer without
    a server, SpecError for a selector that makes no sense.
    """
    selector, address = split_server(text)
    wanted = parse_selector(selector)
    server = server_at(address)
    at = f"@{address}" if address else ""

    def ask(name: str, serial: str, state: str) -> DeviceFacts:
        return facts_or_reason(Link(server, serial), name, state, REMOTE_ROOT)

    listed = ((f"adb:{serial}{at}", serial, state) for serial, state in list_serials(server))
    with ThreadPoolExecutor(32) as pool:
        asked = [pool.submit(ask, *one) for one in listed if one[0] not in without]
        return [facts for facts in (one.result() for one in asked) if wanted(facts)]


class AdbDevice:
    """Runs specs through an adb server. What goes wrong on the way is a typed failure of that run."""

    def __init__(
        self,
        link: Link,
        *,
        name: str = "",
        root: str = REMOTE_ROOT,
        tools: Tools | None = None,
        waiting: Waiting = no_waiting,
    ) -> None:
        self.link = link
        self.name = name or f"adb:{link.serial}"
        self._root = root
        self._tools = tools
        self._store = DeviceStore(link, root)
        self._folder = f"{root}/run-{secrets.token_hex(8)}"
        self._facts: DeviceFacts | None = None
        self._lost = False
        self._held: list[str] = []
        self._conditions = Conditions()
        self._conditions_at = -CONDITIONS_AGE_SECONDS
        self._lease: BinaryIO = take_lease(lease_key(link.server, link.serial), self.name, waiting)

    def facts(self) -> DeviceFacts:
        """What it is; raises UnavailableError when it does not answer."""
        try:
            return self._known_facts()
        except LinkError as error:
            raise UnavailableError(f"{self.name} does not answer", why=str(error), remedy="check its cable") from error

    def conditions(self) -> Conditions:
        """State of it, some seconds old at most; raises UnavailableError when it does not answer."""
        try:
            return self._current_conditions()
        except LinkError as error:
            raise UnavailableError(f"{self.name} does not answer", why=str(error), remedy="check its cable") from error

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

    def library_for(self, given: str | None) -> Library:
        """The given library for the ABI of its probe, else Linux's own; raises UnavailableError where there is none."""
        facts = self.facts()
        if not given:
            tools = self._tools = self._tools or default_tools(facts)
            given = str(tools.library or "")
        if not given:
            raise UnavailableError(NO_LIBRARY.message, why=NO_LIBRARY.cause, remedy=NO_LIBRARY.remedy)
        return resolve(given, abi_of_tools(facts))

    def run(self, spec: RunSpec) -> RunResult:
        """Execute one spec; a device that comes back after it was lost is used again, another one is not."""
        try:
            return self._run(spec)
        except (LinkError, RunnerError, OSError) as error:
            self._lost = self._lost or isinstance(error, LinkLost | LinkTimeout | NoServer)
            self._store.forget()
            return without_measurement(spec, self.name, failed_by(error))

    def inspect(self, asked: Iterable[tuple[str, str, str]], limit_seconds: float) -> ProbeAnswer | Failure:
        """What the device's NNAPI says to these questions (probe/inspect.h)."""
        request = encode_inspection(asked, limit_seconds=limit_seconds, watch_stdin=True)
        try:
            tools = self._tools = self._tools or default_tools(self._known_facts())
            probe = self._store.put(tools.probe, PROBE_SUFFIX)
            output = self._execute(request, probe, limit_seconds, ANSWER_BYTES)
        except (LinkError, RunnerError, OSError) as error:
            return failed_by(error)
        answer = decode_answer(output.stdout)
        return ended(output, answer) if isinstance(answer, Failure) else answer

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
        library = resolve(spec.library, abi_of_tools(facts)).path if spec.library else tools.library
        failure = refused(spec, library, facts)
        if failure or library is None:
            return without_measurement(spec, self.name, failure or NO_LIBRARY)
        started, before, put_ns = utc_now(), self._current_conditions(), self._store.put_ns
        if spec.perf_test:
            result = self._by_perf_test(spec, library, facts)
        else:
            result = self._by_probe(spec, library, tools.probe)
        marks = (*result.marks, *marks_of(facts, before))
        return msgspec.structs.replace(
            result,
            started_at=started,
            push_ns=self._store.put_ns - put_ns,
            before=before,
            after=self._current_conditions(),
            marks=marks,
        )

    def _by_probe(self, spec: RunSpec, library: Path, program: Path) -> RunResult:
        places = self._places(spec, library)
        probe = self._store.put(program, PROBE_SUFFIX)
        request = encode_request(spec, places, watch_stdin=True)
        output = self._execute(request, probe, spec.timeout_seconds, answer_limit(spec))
        files = (probe, places.library, places.model, *places.inputs, places.labelled)
        return self._doubted(self._result(spec, output), [file for file in files if file])

    def _by_perf_test(self, spec: RunSpec, library: Path, facts: DeviceFacts) -> RunResult:
        program = Path(str(spec.perf_test))
        if program.is_file() and (failure := wrong_library(program, facts)):
            return without_measurement(spec, self.name, failure)
        with scratch_folder(RUN_PREFIX) as scratch:
            result = run_over_adb(spec, self.name, self.link, self._store, self._folder, library, scratch)
        crashed = result.failure is not None and result.failure.kind is FailureKind.CRASH
        return msgspec.structs.replace(result, log=self._tombstone()) if crashed else result

    def _places(self, spec: RunSpec, library: Path) -> ProbePaths:
        """Push what the run needs; its own files go under the run folder."""
        return ProbePaths(
            library=self._store.put(library, ".so"),
            model=self._store.put(Path(spec.model), Path(spec.model).suffix.lower()),
            inputs=tuple(self._store.put(Path(tensor.file)) for tensor in spec.inputs),
            labelled=self._store.put(Path(spec.labelled.file)) if spec.labelled else None,
            outputs=None if spec.outputs_folder is None else f"{self._folder}/output_",
            profile=f"{self._folder}/profile" if spec.profile else None,
        )

    def _execute(self, request: bytes, probe: str, limit_seconds: float, limit_bytes: int) -> ShellOutput:
        arguments = script(RUN, self._folder, str(len(request)), probe, f"{self._root}/store")
        try:
            seconds = limit_seconds + GRACE_SECONDS
            return self.link.shell(arguments, stdin=request, seconds=seconds, limit_bytes=limit_bytes)
        except LinkTimeout as error:
            with contextlib.suppress(LinkError):
                self.link.shell(script(KILL, self._folder), seconds=5.0)
            raise RunTimeout(str(error)) from error

    def _result(self, spec: RunSpec, output: ShellOutput) -> RunResult:
        answer = decode_answer(output.stdout)
        if isinstance(answer, Failure):
            return without_measurement(spec, self.name, ended(output, answer))
        result = to_result(spec, self.name, answer)
        if result.failure and result.failure.kind is FailureKind.CRASH:
            return msgspec.structs.replace(result, log=(*result.log, *self._tombstone()))
        return keep_files(spec, result, fetch_from(self.link, self._folder, result))

    def _doubted(self, result: RunResult, pushed: Sequence[str]) -> RunResult:
        """The result; another failure where the device has lost files that were pushed, which is no fault of the run.

        Cleaners of phones and their users empty /data/local/tmp.
        """
        if result.failure is None or result.failure.kind not in OF_MISSING_FILES:
            return result
        self._store.forget()
        if self.link.shell(script(ALL_THERE, *pushed)).code == 0:
            return result
        return msgspec.structs.replace(result, status=status_of(EMPTIED), failure=EMPTIED)

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
