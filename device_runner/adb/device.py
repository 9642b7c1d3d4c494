"""The device `adb:SERIAL`: the probe, or onnxruntime_perf_test, on a phone (or a Linux device with adbd)."""

import contextlib
import itertools
import re
import secrets
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec.structs import replace

import device_runner
from device_runner import build as runner_build
from device_runner import device as runner_device
from device_runner import failures, perf_test, plugins, shell_facts, wheels
from device_runner import files as runner_files
from device_runner import library as ort_library
from device_runner import local as local_device
from device_runner import options as runner_options
from device_runner import profile as ort_profile
from device_runner import result as run_result
from device_runner import run as device_run
from device_runner import spec as run_spec
from device_runner.adb import phone
from device_runner.adb import settings as adb_settings
from device_runner.adb.link import (
    Link,
    LinkError,
    LinkLost,
    LinkTimeout,
    NoServer,
    RunTimeout,
    lease_key,
    script,
    server_at,
)
from device_runner.adb.store import SLOWEST_BYTES_PER_SECOND, DeviceStore, NoSpace, StoreRefused
from device_runner.device import DeviceFacts
from device_runner.errors import RunnerError, UnavailableError
from device_runner.probe import protocol
from device_runner.result import RunResult
from device_runner.spec import RunSpec

REMOTE_ROOT = "/data/local/tmp/ort-mobile"
"""Where everything of ours lies on a device: the shell user may write and execute there."""

RUN = f"""
rm -rf "$1" && mkdir -p "$1" && cd "$1" || exit 90
head -c "$2" > request || exit 91
echo $$ > pid
probe=$3 libraries=$4
shift 4
if [ $# -gt 0 ]; then
libraries="$PWD:$libraries"
export ADSP_LIBRARY_PATH="$PWD${{ADSP_LIBRARY_PATH:+;$ADSP_LIBRARY_PATH}}"
fi
while [ $# -gt 0 ]; do ln -s "$1" "$2" || exit 91; shift 2; done
LD_LIBRARY_PATH="$libraries${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}" {device_runner.NO_TELEMETRY} exec "$probe" request
"""
"""Run folder, bytes of the request on standard input, probe, folder of libraries before those of the device itself; and
pairs of a stored file of a plugin and its name in the run folder, where the linker and Qualcomm's DSP look for it."""

KILL = 'kill -9 "$(cat "$1/pid")"; rm -rf "$1"'

Tools = tuple[Path, Path | None]
"""What runs on the device: the probe, and the library where a spec names none (Android has no default)."""


def abi_of_tools(facts: DeviceFacts) -> str:
    """The ABI of probe and library: the device's best one of 64 bits, else its best."""
    return next((abi for abi in facts.abis if abi in ("arm64-v8a", "x86_64")), facts.abis[0])


TOMBSTONE_LINES = 60
"""Enough for signal, cause, registers and the upper part of the backtrace."""

TOMBSTONE_LINE_LENGTH = 1000

LINK_KINDS: tuple[tuple[type[Exception], run_result.FailureKind], ...] = (
    (LinkLost, run_result.FailureKind.LOST_DEVICE),
    (RunTimeout, run_result.FailureKind.TIMEOUT),
    (LinkTimeout, run_result.FailureKind.LOST_DEVICE),
    (NoSpace, run_result.FailureKind.NO_SPACE),
    (StoreRefused, run_result.FailureKind.SET_UP),
    (NoServer, run_result.FailureKind.LOST_DEVICE),
    *failures.ERROR_KINDS,
)
"""Pushes, pulls and questions without an answer say nothing of the run."""

ENDS: dict[int, run_result.Failure] = {
    90: run_result.Failure(code=run_result.FailureKind.NO_SPACE, what="the run folder could not be made"),
    91: run_result.Failure(code=run_result.FailureKind.NO_SPACE, what="the request could not be written"),
    126: run_result.Failure(
        code=run_result.FailureKind.SET_UP,
        what="the device does not execute the probe",
        why="its folder is mounted noexec, its permissions or SELinux forbid it, or it is for another processor",
        remedy=f"let its shell user execute files in {REMOTE_ROOT} (`adb shell` with mount and ls -ldZ says what "
        "forbids it), or use another device",
    ),
    127: run_result.Failure(code=run_result.FailureKind.DEVICE_ERROR, what="the probe is not there"),
    137: run_result.Failure(code=run_result.FailureKind.OUT_OF_MEMORY, what="the probe was killed"),
}
"""Exit codes of the shell where there is no document (RUN's own, POSIX's, 128 + SIGKILL)."""


def tombstone(crash_log: str, root: str) -> tuple[str, ...]:
    """The last record of a crash log that speaks of something under `root`, as lines of a result's log."""
    records = re.split(r"^(?=.*\*\*\* \*\*\*)", crash_log, flags=re.MULTILINE)
    ours = [record for record in records if root in record]
    lines = ours[-1].splitlines()[:TOMBSTONE_LINES] if ours else []
    return tuple(f"crash log: {line[:TOMBSTONE_LINE_LENGTH]}" for line in lines)


OF_MISSING_FILES = frozenset(
    {
        run_result.FailureKind.MODEL_LOAD,
        run_result.FailureKind.MISSING_LIBRARY,
        run_result.FailureKind.WRONG_LIBRARY,
        run_result.FailureKind.BAD_INPUT,
        run_result.FailureKind.GARBAGE,
        run_result.FailureKind.DEVICE_ERROR,
    }
)
"""What a probe or a shell says when files are gone."""

ALL_THERE = 'for file in "$@"; do [ -s "$file" ] || exit 1; done'

EMPTIED = run_result.Failure(
    code=run_result.FailureKind.DEVICE_ERROR,
    what="files that were pushed are no longer on the device",
    why="something emptied its folder for temporary files during the campaign",
    remedy="it is pushed again with the next run; turn off cleaners on the device",
)

NO_LIBRARY = run_result.Failure(
    code=run_result.FailureKind.MISSING_LIBRARY,
    what="the spec names no library, and there is no default for this device",
    why="Android has no libonnxruntime of its own",
    remedy="give the libonnxruntime.so of the device's ABI from the app's AAR",
)


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
LD_LIBRARY_PATH=. {device_runner.NO_TELEMETRY} "$@" </dev/null 3<&- &
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

FETCH_GRACE_SECONDS = 20.0
"""What fetching files may take beside their bytes."""

CONDITIONS_AGE_SECONDS = 5.0
"""How long conditions count as those of now: heat and charge change slowly, and asking costs a round trip."""


def open_adb(text: str, waiting: runner_device.Waiting = runner_device.no_waiting) -> "AdbDevice":
    """The device SERIAL, or SERIAL@HOST:PORT of another adb server.

    Raises UnavailableError when it is not there, not ready or in use; NoServer; SpecError.
    """
    from device_runner.adb.server import list_serials, reconnect

    serial, address = runner_device.split_server(text)
    server = server_at(address)
    states = dict(list_serials(server))
    why = f"the adb server knows: {', '.join(states) or 'none at all'}"
    if runner_device.on_network(serial) and states.get(serial) != "device":
        why = reconnect(server, serial)
        states = dict(list_serials(server))
    if serial not in states:
        raise UnavailableError(f"no device {serial!r}", why=why, remedy="see `ort-mobile devices`")
    link = Link(server, serial)
    facts = phone.facts_or_reason(link, f"adb:{text}", states[serial], REMOTE_ROOT)
    if (
        facts.readiness is not runner_device.Readiness.READY
        and runner_device.on_network(serial)
        and states[serial] == "device"
    ):
        reconnect(server, serial)  # a connection may hang for ever after a broken packet
        facts = phone.facts_or_reason(link, f"adb:{text}", "device", REMOTE_ROOT)
    if facts.readiness is not runner_device.Readiness.READY:
        raise UnavailableError(f"device {serial} is not ready", why=facts.advice, remedy="see `ort-mobile devices`")
    return AdbDevice(link, name=facts.name, waiting=waiting)


def list_devices(text: str = "*", without: Collection[str] = ()) -> list[DeviceFacts]:
    """Facts of an adb server's devices that SELECTOR or SELECTOR@HOST:PORT means, ready or not, all asked at once.

    Devices whose names are in `without` are not asked: questions disturb what is timed there. Raises NoServer without
    a server, SpecError for a selector that makes no sense.
    """
    from device_runner.adb.server import list_serials

    selector, address = runner_device.split_server(text)
    matches = runner_device.parse_selector(selector)
    server = server_at(address)
    at = f"@{address}" if address else ""
    listed = ((f"adb:{serial}{at}", Link(server, serial), state) for serial, state in list_serials(server))
    with ThreadPoolExecutor(32) as pool:
        asked = [
            pool.submit(phone.facts_or_reason, link, name, state, REMOTE_ROOT)
            for name, link, state in listed
            if name not in without
        ]
        return [facts for facts in (future.result() for future in asked) if matches(facts)]


class AdbDevice(device_run.ProbeDevice):
    """Runs specs through an adb server. What goes wrong on the way is a typed failure of that run."""

    watch_stdin = True

    def __init__(
        self,
        link: Link,
        *,
        name: str = "",
        root: str = "",
        tools: Tools | None = None,
        waiting: runner_device.Waiting = runner_device.no_waiting,
    ) -> None:
        super().__init__(name or f"adb:{link.serial}")
        self.link = link
        self._root = root or REMOTE_ROOT
        self._tools = tools
        self.store = DeviceStore(link, self._root)
        self._folder = f"{self._root}/run-{secrets.token_hex(8)}"
        self._facts: DeviceFacts | None = None
        self._lost = False
        self._held: list[str] = []
        self._links: list[str] = []
        self._conditions = run_result.Conditions()
        self._conditions_at = -CONDITIONS_AGE_SECONDS
        self._lease = self.opened.enter_context(
            runner_device.take_lease(lease_key(link.server, link.serial), self.name, waiting)
        )
        self.opened.callback(self._give_back)

    def facts(self) -> DeviceFacts:
        """What it is; raises UnavailableError when it does not answer."""
        with self._answering():
            return self._known_facts()

    @property
    def shader_f16(self) -> bool | None:
        """What its Vulkan says; None from a device that does not answer."""
        with contextlib.suppress(LinkError):
            gpu = self._known_facts().gpu
            return gpu.shader_f16 if gpu else None
        return None

    def conditions(self) -> run_result.Conditions:
        """State of it, some seconds old at most; raises UnavailableError when it does not answer."""
        with self._answering():
            return self._conditions_now()

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except LinkError as error:
            raise UnavailableError(f"{self.name} does not answer", why=str(error), remedy="check its cable") from error

    def arrange(self, *, fixed_performance: bool, screen_on: bool) -> list[str]:
        """Set Android's fixed performance mode and keep the screen on, until it is closed; what it cannot do."""
        refused = []
        wanted = []
        try:
            api_level = self._known_facts().api_level
            if fixed_performance and api_level < adb_settings.FIRST_FIXED_PERFORMANCE_API:
                refused.append(f"no fixed performance mode: it needs API {adb_settings.FIRST_FIXED_PERFORMANCE_API}")
            elif fixed_performance:
                wanted.append((adb_settings.FIXED_PERFORMANCE, "no fixed performance mode"))
            if screen_on:
                wanted.append((adb_settings.SCREEN_ON, "the screen is not kept on"))
            for text, otherwise in wanted:
                self._conditions_at = -CONDITIONS_AGE_SECONDS
                self._held.append(text)
                if refusal := adb_settings.hold(self.link, self._root, text):
                    self._held.remove(text)
                    refused.append(f"{otherwise}: {refusal}")
        except LinkError as error:
            refused.append(f"settings are as they were: {error}")
        return refused

    def library_for(self, given: str | None) -> ort_library.Library:
        """The given library for the ABI of its probe, else Linux's own; raises UnavailableError where there is none."""
        facts = self.facts()
        given = given or str(self._known_tools(facts)[1] or "")
        if not given:
            raise UnavailableError(NO_LIBRARY.what, why=NO_LIBRARY.why, remedy=NO_LIBRARY.remedy)
        return ort_library.resolve(given, abi_of_tools(facts))

    def _failed(self, error: Exception) -> run_result.Failure:
        """A device that comes back after it was lost is used again, another one is not."""
        self._lost = self._lost or isinstance(error, LinkLost | LinkTimeout | NoServer)
        self.store.forget()
        return failures.failure_of(error, LINK_KINDS)

    def _give_back(self) -> None:
        """Restore its settings and remove the run folder."""
        if self._held:
            try:
                adb_settings.restore(self.link, self._root)
            except LinkError as error:  # nobody can be told any more: the note on the device stays for the next time
                text = "%s: settings could not be restored, and will be at the next start: %s"
                adb_settings.log.warning(text, self.link.serial, error)
        with contextlib.suppress(LinkError, RunnerError):
            self.link.shell(script('rm -rf "$1"', self._folder), seconds=5.0)

    def _prepare(self, spec: RunSpec) -> tuple[RunSpec, Path] | run_result.Failure:
        if self._lost:
            # Join it again, make sure that it is the same one, and believe nothing of what was pushed.
            if runner_device.on_network(self.link.serial):
                from device_runner.adb.server import reconnect

                reconnect(self.link.server, self.link.serial)
            facts, before = phone.read_facts(self.link, self.name, self._root), self._facts
            same = [facts.fingerprint, facts.model, facts.abis]
            if before and same != [before.fingerprint, before.model, before.abis]:
                raise LinkError(f"another device answers: {facts.model} {facts.fingerprint}, not {before.model}")
            self.store.forget()
            for text in self._held:
                adb_settings.hold(self.link, self._root, text)
            self._lost = False
            self._facts = facts
        facts = self._known_facts()
        probe, library = self._known_tools(facts)
        self.store.joiner = probe
        self.store.used.clear()
        self._links = []
        if spec.library:
            library = ort_library.resolve(spec.library, abi_of_tools(facts)).path
        failure = (
            runner_options.impossible_here(spec.options, facts)
            or device_run.missing_input(spec)
            or device_run.wrong_library(library, facts)
        )
        if failure or library is None:
            return failure or NO_LIBRARY
        if spec.perf_test and (program := Path(spec.perf_test)).is_file():
            failure = device_run.wrong_library(program, facts)
        elif spec.plugin:
            failure = plugins.refused(spec, ort_library.read_facts(library))
        return failure or (plugins.with_files(spec), library)

    @contextlib.contextmanager
    def _run_folder(self) -> Iterator[str]:
        yield self._folder  # made by the scripts, removed when the device is closed

    def _put(self, path: Path, suffix: str = "") -> str:
        begun = time.monotonic_ns()
        try:
            return self.store.put(path, suffix)
        finally:
            self.put_ns += time.monotonic_ns() - begun

    def _put_named(self, files: Sequence[str], folder: str) -> list[str]:
        paths = [Path(file) for file in files]
        self._links += [text for path in paths for text in (self._put(path, path.suffix), path.name)]
        return [f"{folder}/{Path(file).name}" for file in files]

    def _ask(
        self, request: bytes, folder: str, limit_seconds: float, limit_bytes: int
    ) -> protocol.ProbeAnswer | run_result.Failure:
        probe = self._put(self._known_tools(self._known_facts())[0], phone.SUFFIX)
        arguments = script(RUN, folder, str(len(request)), probe, f"{self._root}/store", *self._links)
        try:
            seconds = limit_seconds + runner_device.GRACE_SECONDS
            output = self.link.shell(arguments, stdin=request, seconds=seconds, limit_bytes=limit_bytes)
        except LinkTimeout as error:
            with contextlib.suppress(LinkError):
                self.link.shell(script(KILL, folder), seconds=5.0)
            raise RunTimeout(str(error)) from error
        answer = protocol.decode_answer(output.stdout)
        if not isinstance(answer, run_result.Failure):
            return answer
        # What the end of a probe without a document means
        stderr = output.stderr[-1000:].decode("utf-8", "replace").strip()
        signal = perf_test.SIGNALS.get(output.returncode - 128)
        crash = (
            run_result.Failure(code=run_result.FailureKind.CRASH, what=f"the probe ended by {signal}")
            if signal
            else None
        )
        end = ENDS.get(output.returncode) or crash or run_result.Failure(code=answer.code, what=answer.what)
        text = f"{end.what} (exit code {output.returncode})"
        return failures.explain(replace(end, what=f"{text}: {stderr}" if stderr else text, signal=signal))

    def _prepare_tool(
        self, spec: RunSpec, library: Path, folder: str, program: Path, library_name: str
    ) -> perf_test.Execute:
        links = [(self._put(Path(spec.model), Path(spec.model).suffix.lower()), perf_test.model_name(spec))]
        if library_name:
            links.append((self._put(library, ".so"), library_name))
        with runner_files.scratch_folder(runner_files.RUN_PREFIX) as scratch:
            for name, data in perf_test.input_files(spec):
                path = scratch / Path(name).name
                path.write_bytes(data)
                links.append((self._put(path), name))
        there = self._put(program)

        def execute(arguments: list[str]) -> perf_test.Ended:
            command = script(PERF_TEST_RUN, folder, *itertools.chain(*links), "--", there, *arguments)
            try:
                output = self.link.shell(command, seconds=spec.timeout_seconds, limit_bytes=OUTPUT_LIMIT_BYTES)
            except LinkTimeout as error:
                self.link.shell(script(KILL, folder), seconds=5.0)
                raise subprocess.TimeoutExpired(arguments, spec.timeout_seconds) from error
            csv = ""
            if output.returncode == 0:
                limit_bytes = max(CSV_LIMIT_BYTES, CSV_LINE_BYTES * spec.min_runs)
                with runner_files.scratch_folder(runner_files.RUN_PREFIX) as scratch:
                    file = scratch / perf_test.RESULT_FILE
                    self.link.pull(f"{folder}/{perf_test.RESULT_FILE}", file, seconds=60.0, limit_bytes=limit_bytes)
                    csv = file.read_text("utf-8", "replace")
            text = output.stdout[-perf_test.OUTPUT_TAIL_BYTES :].decode("utf-8", "replace")
            profiles = re.findall(r"^profile file: (profile[\w.-]{1,100})$", text, re.MULTILINE)
            code = 128 - output.returncode if 128 < output.returncode < 160 else output.returncode
            stderr = output.stderr[-perf_test.OUTPUT_TAIL_BYTES :].decode("utf-8", "replace")
            ended = subprocess.CompletedProcess(arguments, code, text, stderr)
            return ended, csv, profiles[-1] if profiles else None

        return execute

    def _fetch_from(self, folder: str, result: RunResult) -> device_run.Fetch:
        """The time for all files of a result is that of the slowest sound connection, from now on."""
        tensors = (*result.outputs, *((result.labelled_outputs,) if result.labelled_outputs else ()))
        size = sum(map(run_spec.tensor_bytes, tensors)) + (
            ort_profile.PROFILE_LIMIT_BYTES if result.profile_file else 0
        )
        deadline = time.monotonic() + FETCH_GRACE_SECONDS + size / SLOWEST_BYTES_PER_SECOND

        return lambda name, path, limit_bytes: self.link.pull(
            f"{folder}/{name}", path, seconds=max(0.0, deadline - time.monotonic()), limit_bytes=limit_bytes
        )

    def _looked_into(self, result: RunResult, before: run_result.Conditions) -> RunResult:
        """A crash with the device's crash log; for what files that are gone may cause, whether they are. And marks."""
        kind = result.failure and result.failure.code
        if kind is run_result.FailureKind.CRASH:
            with contextlib.suppress(LinkError):  # Android's crash log; other systems have none
                output = self.link.shell(("logcat", "-b", "crash", "-d", "-t", "400"), seconds=10.0)
                crash_log = output.stdout.decode("utf-8", "replace")
                result = replace(result, log=(*result.log, *tombstone(crash_log, self._root)))
        if kind in OF_MISSING_FILES:
            pushed = list(self.store.used)
            self.store.forget()  # cleaners of phones and their users empty /data/local/tmp
            if self.link.shell(script(ALL_THERE, *pushed)).returncode:
                result = replace(result, status=run_result.status_of(EMPTIED), failure=EMPTIED)
        is_phone = self._known_facts().platform == "android"  # Linux devices are none
        kind_marks = () if is_phone else (run_result.Mark.NOT_A_PHONE,)
        return replace(result, marks=(*result.marks, *kind_marks, *run_result.condition_marks(before)))

    def _known_tools(self, facts: DeviceFacts) -> Tools:
        """Probe for its system and first ABI, and on Linux the wheel's library; raises RunnerError for none."""
        if self._tools is None:
            abi, library = abi_of_tools(facts), None
            target = runner_build.target_of(facts.platform, abi)
            if facts.platform != "android":
                is_here = target == runner_build.HOST
                library = local_device.wheel_library() if is_here else wheels.foreign_library(abi)
            self._tools = runner_build.build_probe(target), library
        return self._tools

    def _known_facts(self) -> DeviceFacts:
        if self._facts is None:
            adb_settings.restore(self.link, self._root)
            facts = phone.read_facts(self.link, self.name, self._root)
            if facts.nnapi is None:  # not known yet: a probe on it is asked
                with contextlib.suppress(RunnerError, OSError):
                    probe = self._put(self._known_tools(facts)[0], phone.SUFFIX)
                    facts = phone.read_facts(self.link, self.name, self._root, probe)
            self._facts = facts
        return self._facts

    def _conditions_now(self) -> run_result.Conditions:
        if time.monotonic() - self._conditions_at >= CONDITIONS_AGE_SECONDS:
            fixed = adb_settings.FIXED_PERFORMANCE in self._held if self._held else None
            self._conditions = replace(
                shell_facts.parse_conditions(phone.ask(self.link, shell_facts.CONDITIONS)), fixed_performance=fixed
            )
            self._conditions_at = time.monotonic()
        return self._conditions

    def _rails_now(self) -> dict[str, run_result.RailReading]:
        from device_runner.adb import power_rails  # protobuf takes a while to load

        with contextlib.suppress(LinkError):  # information: a run of minutes is not lost for it
            return power_rails.read_rails(self.link)
        return {}
