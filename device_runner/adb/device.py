"""The device `adb:SERIAL`: the probe, or onnxruntime_perf_test, on a phone (or a Linux device with adbd)."""

import contextlib
import re
import secrets
import time
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from device_runner import NO_TELEMETRY
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
from device_runner.adb.phone import (
    FIRST_FIXED_PERFORMANCE_API,
    FIXED_PERFORMANCE,
    SCREEN_ON,
    facts_or_reason,
    hold,
    lease_key,
    read_conditions,
    read_facts,
    restore,
    restore_quietly,
    take_lease,
)
from device_runner.adb.phone import SUFFIX as PROBE_SUFFIX
from device_runner.adb.store import DeviceStore, NoSpace, fetch_from
from device_runner.device import (
    GRACE_SECONDS,
    Device,
    DeviceFacts,
    Readiness,
    Waiting,
    no_waiting,
    on_network,
    parse_selector,
    split_server,
)
from device_runner.errors import RunnerError, UnavailableError
from device_runner.failures import ERROR_KINDS, explain, failure_of
from device_runner.files import RUN_PREFIX, keep_files, missing_input, scratch_folder
from device_runner.library import Library, resolve
from device_runner.local import wheel_library
from device_runner.options import impossible_here
from device_runner.perf_test import (
    OUTPUT_TAIL_BYTES,
    RESULT_FILE,
    SIGNALS,
    FinishedProcess,
    input_files,
    measured_with,
    model_name,
    text_of,
    tool_of,
)
from device_runner.probe.build import HOST, build_probe
from device_runner.probe.elf import NotElf, read_header
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
    Mark,
    RunResult,
    status_of,
    utc_now,
    without_measurement,
)
from device_runner.spec import RunSpec
from device_runner.wheels import foreign_library

REMOTE_ROOT = "/data/local/tmp/ort-mobile"
"""Where everything of ours lies on a device: the shell user may write and execute there."""


RUN = f"""
rm -rf "$1" && mkdir -p "$1" && cd "$1" || exit 90
head -c "$2" > request || exit 91
echo $$ > pid
LD_LIBRARY_PATH="$4${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}" {NO_TELEMETRY} exec "$3" request
"""
"""Run folder, bytes of the request on standard input, probe, folder of libraries before those of the device itself."""


KILL = 'kill -9 "$(cat "$1/pid")"; rm -rf "$1"'


@dataclass(frozen=True, slots=True)
class Tools:
    """What runs on the device: the probe, and the library where a spec names none (Android has no default)."""

    probe: Path
    library: Path | None


def default_tools(facts: DeviceFacts) -> Tools:
    """Probe for a device's system and first ABI, and on Linux the wheel's library; raises RunnerError for none."""
    if facts.platform == "android":
        return Tools(build_probe(abi_of_tools(facts)), None)
    if facts.abis[0] == read_header(wheel_library()).abi:
        return Tools(build_probe(HOST), wheel_library())
    target = {"arm64-v8a": "linux-aarch64"}.get(facts.abis[0], f"linux-{facts.abis[0]}")
    return Tools(build_probe(target), foreign_library(facts.abis[0]))


def abi_of_tools(facts: DeviceFacts) -> str:
    """The ABI of probe and library: the device's best one of 64 bits, else its best."""
    return next((abi for abi in facts.abis if abi in ("arm64-v8a", "x86_64")), facts.abis[0])


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


def ended(output: ShellOutput, garbage: Failure) -> Failure:
    """What the end of a probe without a document means."""
    stderr = output.stderr[-1000:].decode("utf-8", "replace").strip()
    signal = SIGNALS.get(output.code - 128)
    crash = (FailureKind.CRASH, f"the probe ended by {signal}") if signal else None
    kind, text = ENDS.get(output.code) or crash or (garbage.kind, garbage.message)
    message = f"{text} (exit code {output.code}): {stderr}" if stderr else f"{text} (exit code {output.code})"
    return explain(Failure(kind=kind, message=message, signal=signal))


def marks_of(facts: DeviceFacts, before: Conditions) -> list[Mark]:
    """What a reader must know of the device: heat from `moderate` on throttles; Linux devices are no phones."""
    holds = {
        Mark.NOT_A_PHONE: facts.platform != "android",
        Mark.THROTTLED: (before.thermal_status or 0) >= 2,
        Mark.CHARGING: before.charging,
    }
    return [mark for mark, applies in holds.items() if applies]


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


OUTPUT_LIMIT_BYTES = 64 << 20
CSV_LIMIT_BYTES = 64 << 20
CSV_LINE_BYTES = 512
"""The result file: a line for each run, with the name of the run folder in it."""

PERF_TEST_RUN = f"""
rm -rf "$1" && mkdir -p "$1/test_data_set_0" && cd "$1" || exit 90
shift
while [ "$1" != -- ]; do ln -s "$1" "$2" || exit 91; shift 2; done
shift
exec 3<&0
LD_LIBRARY_PATH=. {NO_TELEMETRY} "$@" </dev/null 3<&- &
run=$!
echo $run > pid
( while read -r line <&3; do :; done; kill -9 $run ) >/dev/null 2>&1 &
watch=$!
exec 3<&-
wait $run
code=$?
kill $watch
for file in profile_*; do [ -f "$file" ] && echo "profile file: $file"; done
exit $code
"""
"""Run folder, pairs of a stored file and its name there, --, the program and its arguments.

The end of standard input is the end of whoever asked: then it is killed. Its exit code is that of the script.
"""


def run_over_adb(
    spec: RunSpec, device: str, link: Link, store: DeviceStore, folder: str, library: Path | None, scratch: Path
) -> RunResult:
    """Execute a spec on a device; `folder` is its run folder there, `scratch` one here. Raises LinkError, OSError."""
    tool = tool_of(spec)
    if isinstance(tool, Failure):
        return without_measurement(spec, device, tool)
    links = [(store.put(Path(spec.model), Path(spec.model).suffix.lower()), model_name(spec))]
    local_program, library_name = tool
    if library and library_name:
        links.append((store.put(library, ".so"), library_name))
    for name, data in input_files(spec):
        path = scratch / Path(name).name
        path.write_bytes(data)
        links.append((store.put(path), name))
    program = store.put(local_program)
    pairs = [text for pair in links for text in pair]

    def execute(arguments: list[str]) -> FinishedProcess:
        command = script(PERF_TEST_RUN, folder, *pairs, "--", program, *arguments)
        try:
            output = link.shell(command, seconds=spec.timeout_seconds, limit_bytes=OUTPUT_LIMIT_BYTES)
        except LinkTimeout:
            link.shell(script(KILL, folder), seconds=5.0)
            return FinishedProcess(code=None, stdout="", stderr="")
        text = output.stdout[-OUTPUT_TAIL_BYTES:].decode("utf-8", "replace")
        profiles = re.findall(r"^profile file: (profile[\w.-]{1,100})$", text, re.MULTILINE)
        return FinishedProcess(
            code=128 - output.code if 128 < output.code < 160 else output.code,
            stdout=text,
            stderr=output.stderr[-OUTPUT_TAIL_BYTES:].decode("utf-8", "replace"),
            csv=_csv(spec, link, f"{folder}/{RESULT_FILE}", scratch / RESULT_FILE) if output.code == 0 else "",
            profile=profiles[-1] if profiles else None,
        )

    result = measured_with(spec, device, execute, model_name(spec))
    return keep_files(spec, result, fetch_from(link, folder, result))


def _csv(spec: RunSpec, link: Link, remote: str, path: Path) -> str:
    limit_bytes = max(CSV_LIMIT_BYTES, CSV_LINE_BYTES * spec.min_runs)
    link.pull(remote, path, seconds=60.0, limit_bytes=limit_bytes)
    return text_of(path)


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
        asked = [pool.submit(ask, name, serial, state) for name, serial, state in listed if name not in without]
        return [facts for facts in (future.result() for future in asked) if wanted(facts)]


class AdbDevice(Device):
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
        super().__init__(name or f"adb:{link.serial}")
        self.link = link
        self._root = root
        self._tools = tools
        self._store = DeviceStore(link, root)
        self._folder = f"{root}/run-{secrets.token_hex(8)}"
        self._facts: DeviceFacts | None = None
        self._lost = False
        self._held: list[str] = []
        self._conditions = Conditions()
        self._conditions_at = -CONDITIONS_AGE_SECONDS
        self._lease = self.opened.enter_context(take_lease(lease_key(link.server, link.serial), self.name, waiting))
        self.opened.callback(self._give_back)

    def facts(self) -> DeviceFacts:
        """What it is; raises UnavailableError when it does not answer."""
        with self._answering():
            return self._known_facts()

    def conditions(self) -> Conditions:
        """State of it, some seconds old at most; raises UnavailableError when it does not answer."""
        with self._answering():
            return self._current_conditions()

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
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
        if refusal := hold(self.link, self._root, text):
            self._held.remove(text)
            return f"{otherwise}: {refusal}"
        return ""

    @property
    def pushed_bytes(self) -> int:
        """Bytes that were pushed since it was opened."""
        return self._store.pushed_bytes

    def library_for(self, given: str | None) -> Library:
        """The given library for the ABI of its probe, else Linux's own; raises UnavailableError where there is none."""
        facts = self.facts()
        if not given:
            given = str(self._known_tools(facts).library or "")
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
            probe = self._store.put(self._known_tools(self._known_facts()).probe, PROBE_SUFFIX)
            output = self._execute(request, probe, limit_seconds, ANSWER_BYTES)
        except (LinkError, RunnerError, OSError) as error:
            return failed_by(error)
        answer = decode_answer(output.stdout)
        return ended(output, answer) if isinstance(answer, Failure) else answer

    def _give_back(self) -> None:
        """Restore its settings and remove the run folder."""
        if self._held:
            restore_quietly(self.link, self._root)
        with contextlib.suppress(LinkError, RunnerError):
            self.link.shell(script('rm -rf "$1"', self._folder), seconds=5.0)

    def _run(self, spec: RunSpec) -> RunResult:
        facts = self._found_again() if self._lost else self._known_facts()
        tools = self._known_tools(facts)
        self._store.joiner = tools.probe
        library = resolve(spec.library, abi_of_tools(facts)).path if spec.library else tools.library
        failure = refused(spec, library, facts)
        if failure or library is None:
            return without_measurement(spec, self.name, failure or NO_LIBRARY)
        started, before, put_ns = utc_now(), self._current_conditions(), self._store.put_ns
        if spec.perf_test:
            result = self._by_perf_test(spec, library, facts)
        else:
            paths = ProbePaths(
                library=self._store.put(library, ".so"),
                model=self._store.put(Path(spec.model), Path(spec.model).suffix.lower()),
                inputs=tuple(self._store.put(Path(tensor.file)) for tensor in spec.inputs),
                labelled=self._store.put(Path(spec.labelled.file)) if spec.labelled else None,
                outputs=None if spec.outputs_folder is None else f"{self._folder}/output_",
                profile=f"{self._folder}/profile" if spec.profile else None,
            )
            probe = self._store.put(tools.probe, PROBE_SUFFIX)
            request = encode_request(spec, paths, watch_stdin=True)
            output = self._execute(request, probe, spec.timeout_seconds, answer_limit(spec))
            answer = decode_answer(output.stdout)
            if isinstance(answer, Failure):
                result = without_measurement(spec, self.name, ended(output, answer))
            else:
                result = to_result(spec, self.name, answer)
                if result.failure and result.failure.kind is FailureKind.CRASH:
                    result = replace(result, log=(*result.log, *self._tombstone()))
                else:
                    result = keep_files(spec, result, fetch_from(self.link, self._folder, result))
            pushed = (probe, paths.library, paths.model, *paths.inputs, paths.labelled)
            if result.failure and result.failure.kind in OF_MISSING_FILES and not self._has(pushed):
                result = replace(result, status=status_of(EMPTIED), failure=EMPTIED)
        return replace(
            result,
            started_at=started,
            push_ns=self._store.put_ns - put_ns,
            before=before,
            after=self._current_conditions(),
            marks=(*result.marks, *marks_of(facts, before)),
        )

    def _has(self, pushed: Iterable[str | None]) -> bool:
        """Whether the device has still what was pushed: cleaners of phones and their users empty /data/local/tmp."""
        self._store.forget()
        return self.link.shell(script(ALL_THERE, *filter(None, pushed))).code == 0

    def _by_perf_test(self, spec: RunSpec, library: Path, facts: DeviceFacts) -> RunResult:
        program = Path(str(spec.perf_test))
        if program.is_file() and (failure := wrong_library(program, facts)):
            return without_measurement(spec, self.name, failure)
        with scratch_folder(RUN_PREFIX) as scratch:
            result = run_over_adb(spec, self.name, self.link, self._store, self._folder, library, scratch)
        crashed = result.failure is not None and result.failure.kind is FailureKind.CRASH
        return replace(result, log=self._tombstone()) if crashed else result

    def _execute(self, request: bytes, probe: str, limit_seconds: float, limit_bytes: int) -> ShellOutput:
        arguments = script(RUN, self._folder, str(len(request)), probe, f"{self._root}/store")
        try:
            seconds = limit_seconds + GRACE_SECONDS
            return self.link.shell(arguments, stdin=request, seconds=seconds, limit_bytes=limit_bytes)
        except LinkTimeout as error:
            with contextlib.suppress(LinkError):
                self.link.shell(script(KILL, self._folder), seconds=5.0)
            raise RunTimeout(str(error)) from error

    def _tombstone(self) -> tuple[str, ...]:
        """What Android's crash log says of the last crash of ours; nothing where there is no such log."""
        with contextlib.suppress(LinkError):
            output = self.link.shell(("logcat", "-b", "crash", "-d", "-t", "400"), seconds=10.0)
            return tombstone(output.text, self._root)
        return ()

    def _known_tools(self, facts: DeviceFacts) -> Tools:
        self._tools = self._tools or default_tools(facts)
        return self._tools

    def _known_facts(self) -> DeviceFacts:
        if self._facts is None:
            restore(self.link, self._root)
            self._facts = self._looked_at(read_facts(self.link, self.name, self._root))
        return self._facts

    def _looked_at(self, facts: DeviceFacts) -> DeviceFacts:
        """Facts of a device whose NNAPI is not known yet, read again with the probe on it."""
        if facts.nnapi is None:
            with contextlib.suppress(RunnerError, LinkError, OSError):
                probe = self._store.put(self._known_tools(facts).probe, PROBE_SUFFIX)
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
            self._conditions = replace(read_conditions(self.link), fixed_performance=fixed)
            self._conditions_at = time.monotonic()
        return self._conditions
