"""The device `local`: this computer, with the probe, or onnxruntime_perf_test, in a process and folder of its own."""

import contextlib
import importlib.util
import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from device_runner.device import GRACE_SECONDS, Device, DeviceFacts, Waiting, no_waiting, zones_celsius
from device_runner.errors import RunnerError, SpecError, UnavailableError
from device_runner.failures import explain, failure_of
from device_runner.files import RUN_PREFIX, keep_files, missing_input, scratch_folder
from device_runner.library import Library, resolve
from device_runner.perf_test import (
    OUTPUT_TAIL_BYTES,
    PROFILE_PREFIX,
    RESULT_FILE,
    FinishedProcess,
    input_files,
    measured_with,
    model_name,
    text_of,
    tool_of,
)
from device_runner.probe.build import build_probe
from device_runner.probe.protocol import (
    ProbeAnswer,
    ProbePaths,
    decode_answer,
    encode_inspection,
    encode_request,
    to_result,
)
from device_runner.result import Conditions, Failure, FailureKind, RunResult, utc_now, without_measurement
from device_runner.spec import RunSpec


def run_group(
    command: Sequence[str],
    folder: Path,
    limit_seconds: float,
    environment: Mapping[str, str],
    *,
    inside: bool = False,
) -> int | None:
    """The exit code of a command, negative for a signal; None at the limit. It runs in `folder` where `inside`.

    Output goes to the files `stdout` and `stderr` there, so that nothing it prints can fill our memory or block it.
    Everything of the group is dead when this returns or raises. Raises OSError when it cannot start.
    """
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        with _STARTING:  # a process that runs but is not in the list yet would outlive `end_runs`
            process = subprocess.Popen(
                command,
                cwd=folder if inside else None,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=dict(environment),
                start_new_session=True,
            )
            _RUNNING.append(process)
        try:
            code = _wait(process, limit_seconds)
        finally:
            _RUNNING.remove(process)
        if process in _ENDED:
            raise KeyboardInterrupt
        return code


_STARTING = threading.RLock()
_RUNNING: list["subprocess.Popen[bytes]"] = []
_ENDED: list["subprocess.Popen[bytes]"] = []


def end_runs() -> None:
    """Kill everything that runs here in any thread: its `run_group` raises KeyboardInterrupt, and no result is made.

    Ctrl-C reaches the main thread only, and the probe is in a session of its own.
    """
    with _STARTING:
        running = list(_RUNNING)
    for process in running:
        _ENDED.append(process)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _wait(process: subprocess.Popen[bytes], limit_seconds: float) -> int | None:
    """A thread waits, as `Popen.wait` with a limit looks only every 50 ms, which would count as the run's."""
    waiting = threading.Thread(target=process.wait, daemon=True)
    waiting.start()
    try:
        waiting.join(limit_seconds)
        late = waiting.is_alive()
    except BaseException:
        _kill(process, waiting)
        raise
    if late:
        _kill(process, waiting)
    return None if late else process.returncode


def _kill(process: subprocess.Popen[bytes], waiting: threading.Thread) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    waiting.join()


def tail(path: Path, size: int = 2000) -> str:
    """The end of a text file."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        return file.read().decode("utf-8", "replace").strip()


def run_here(
    spec: RunSpec, device: str, folder: Path, default_library: Path, environment: Mapping[str, str]
) -> RunResult:
    """Execute a spec in a folder of this computer; without a library in the spec, that beside the program goes first.

    Raises OSError.
    """
    tool = tool_of(spec)
    if isinstance(tool, Failure):
        return without_measurement(spec, device, tool)
    program, library_name = tool
    beside = program.parent / (library_name or ".none")
    library = Path(spec.library) if spec.library else beside if beside.is_file() else default_library
    (folder / model_name(spec)).symlink_to(Path(spec.model).absolute())
    if library_name:
        (folder / library_name).symlink_to(library.absolute())
    for name, data in input_files(spec):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)

    def execute(arguments: list[str]) -> FinishedProcess:
        (folder / RESULT_FILE).unlink(missing_ok=True)
        variables = {**os.environ, **environment}
        paths = ":".join(filter(None, (str(folder), variables.get("LD_LIBRARY_PATH"))))
        variables |= {"LD_LIBRARY_PATH": paths, "DYLD_LIBRARY_PATH": paths}
        code = run_group([str(program), *arguments], folder, spec.timeout_seconds, variables, inside=True)
        profiles = sorted(path.name for path in folder.glob(f"{PROFILE_PREFIX}_*.json"))
        return FinishedProcess(
            code=code,
            stdout=tail(folder / "stdout", OUTPUT_TAIL_BYTES),
            stderr=tail(folder / "stderr", OUTPUT_TAIL_BYTES),
            csv=text_of(folder / RESULT_FILE),
            profile=profiles[-1] if profiles else None,
        )

    result = measured_with(spec, device, execute, model_name(spec))
    return keep_files(spec, result, lambda name, path, _: shutil.move(folder / name, path))


SYSTEM = Path("/sys")
"""Where Linux has what it says of its devices."""

ABIS = {"x86_64": "x86_64", "AMD64": "x86_64", "aarch64": "arm64-v8a", "arm64": "arm64-v8a"}
"""platform.machine() to Android's name of the ABI."""


def wheel_library() -> Path:
    """The libonnxruntime of the installed onnxruntime, found without importing it; raises UnavailableError."""
    spec = importlib.util.find_spec("onnxruntime")
    folder = Path(spec.origin).parent / "capi" if spec and spec.origin else None
    names = sorted(folder.glob("libonnxruntime.*")) if folder else []
    libraries = [name for name in names if re.search(r"\.so(\.|$)|\.dylib$", name.name)]
    if not libraries:
        raise UnavailableError(
            "no libonnxruntime on this computer",
            where=str(folder or "site-packages"),
            why="the package onnxruntime is not installed, or is older than 1.19 (which has no C library in it)",
            remedy="pip install onnxruntime, or name a library in the spec",
        )
    return libraries[-1]


def open_local(rest: str, _waiting: Waiting = no_waiting) -> "LocalDevice":
    """The device `local`; raises SpecError when something follows the name, UnavailableError without a compiler."""
    if rest:
        raise SpecError(f"unknown device 'local:{rest}'", remedy="write `local`")
    return LocalDevice(build_probe())


class LocalDevice(Device):
    """Runs specs on this computer. Its numbers are this computer's: they rank what ships to such computers."""

    def __init__(
        self, probe: Path, *, environment: Mapping[str, str] | None = None, emulator: Sequence[str] = ()
    ) -> None:
        """`environment` is added to this process's own for every run; `emulator` stands before the probe."""
        super().__init__("local")
        self._probe = (*emulator, str(probe))
        self._environment = dict(environment or {})

    def facts(self) -> DeviceFacts:
        """What this computer is."""
        return host_facts(self.name)

    def library_for(self, given: str | None) -> Library:
        """The given library for this computer's ABI, else that of the installed onnxruntime."""
        return resolve(given or str(wheel_library()), machine_abi())

    def run(self, spec: RunSpec) -> RunResult:
        """Execute one spec in a fresh process and folder; the whole process group dies with it."""
        try:
            library = self.library_for(spec.library).path
            if failure := missing_input(spec):
                return without_measurement(spec, self.name, failure)
            with scratch_folder(RUN_PREFIX) as folder:
                started, before = utc_now(), host_conditions()
                if spec.perf_test:
                    result = run_here(spec, self.name, folder, library, self._environment)
                else:
                    paths = ProbePaths(
                        library=str(library.absolute()),
                        model=str(Path(spec.model).absolute()),
                        inputs=tuple(str(Path(tensor.file).absolute()) for tensor in spec.inputs),
                        labelled=str(Path(spec.labelled.file).absolute()) if spec.labelled else None,
                        outputs=None if spec.outputs_folder is None else str(folder / "output_"),
                        profile=str(folder / "profile") if spec.profile else None,
                    )
                    answer = self._ask(encode_request(spec, paths), folder, spec.timeout_seconds)
                    if isinstance(answer, Failure):
                        result = without_measurement(spec, self.name, answer)
                    else:
                        result = to_result(spec, self.name, answer)
                        result = keep_files(spec, result, lambda name, path, _: shutil.move(folder / name, path))
                return replace(result, started_at=started, before=before, after=host_conditions())
        except (RunnerError, OSError) as error:
            return without_measurement(spec, self.name, failure_of(error))

    def inspect(self, asked: Iterable[tuple[str, str, str]], limit_seconds: float) -> ProbeAnswer | Failure:
        """What NNAPI of the process's environment says to these questions (probe/inspect.h)."""
        with scratch_folder(RUN_PREFIX) as folder:
            return self._ask(encode_inspection(asked, limit_seconds=limit_seconds), folder, limit_seconds)

    def _ask(self, request: bytes, folder: Path, limit_seconds: float) -> ProbeAnswer | Failure:
        """The document of the probe in a process of its own; a Failure when there is none.

        Raises OSError, also when the disk is so full that it could write none.
        """
        (folder / "request").write_bytes(request)
        command = [*self._probe, str(folder / "request")]
        code = run_group(command, folder, limit_seconds + GRACE_SECONDS, {**os.environ, **self._environment})
        if code is None:
            text = "the probe did not end by itself"
            return explain(Failure(kind=FailureKind.TIMEOUT, message=text, signal="SIGKILL"))
        answer, stderr = decode_answer((folder / "stdout").read_bytes()), tail(folder / "stderr")
        if isinstance(answer, Failure) and code < 0:
            name = signal.Signals(-code).name
            return explain(Failure(kind=FailureKind.CRASH, message=f"the probe ended by {name}: {stderr}", signal=name))
        if isinstance(answer, Failure) or (answer.kind == FailureKind.CRASH and stderr):
            answer = replace(answer, message=f"{answer.message}; stderr: {stderr}")
        if isinstance(answer, Failure) and answer.kind is FailureKind.GARBAGE:
            (folder / "room").write_bytes(bytes(4096))  # on a full disk the probe cannot write its answer
        return answer


def machine_abi() -> str:
    """The ABI of this computer, by Android's name."""
    return ABIS.get(platform.machine(), platform.machine())


def host_facts(name: str) -> DeviceFacts:
    """What this computer is, as far as it says."""
    system = {"Darwin": "macos"}.get(platform.system(), platform.system().lower())
    return DeviceFacts(
        name=name,
        platform=system,
        model=_match("/proc/cpuinfo", r"model name\s*:\s*(.+)") or platform.processor() or platform.machine(),
        abis=(machine_abi(),),
        os_release=platform.release(),
        core_max_mhz=_core_mhz("cpuinfo_max_freq"),
        memory_bytes=_sysconf("SC_PHYS_PAGES") * _sysconf("SC_PAGE_SIZE"),
        page_bytes=_sysconf("SC_PAGE_SIZE"),
        free_bytes=shutil.disk_usage(tempfile.gettempdir()).free,
    )


def host_conditions(system: Path = SYSTEM) -> Conditions:
    """Clocks of the cores and temperatures now, where the kernel reports them under `system`."""
    zones = sorted(system.glob("class/thermal/thermal_zone*"))
    files = [f"{zone}/{kind}" for zone in zones for kind in ("type", "temp")]
    return Conditions(
        cpu_mhz=_core_mhz("scaling_cur_freq", system),
        zones_celsius=zones_celsius((file, _match(file, r"(.+)")) for file in files),
    )


def _core_mhz(name: str, system: Path = SYSTEM) -> tuple[int, ...]:
    files = system.glob(f"devices/system/cpu/cpu[0-9]*/cpufreq/{name}")
    paths = sorted(files, key=lambda path: int(path.parts[-3].removeprefix("cpu")))
    texts = [_match(str(path), r"(\d+)") for path in paths]
    return tuple(int(text) // 1000 for text in texts if text)


def _match(path: str, pattern: str) -> str:
    try:
        match = re.search(pattern, Path(path).read_text(errors="replace"))
    except OSError:
        return ""
    return match.group(1).strip() if match else ""


def _sysconf(name: str) -> int:
    ask: Callable[[str], int] = os.sysconf
    try:
        return ask(name)
    except (OSError, ValueError):
        return 0
