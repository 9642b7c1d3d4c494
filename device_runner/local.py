"""The device `local`: this computer, with the probe, or onnxruntime_perf_test, in a process and folder of its own."""

import contextlib
import ctypes.util
import importlib.util
import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from device_runner import perf_test, vulkan
from device_runner.build import build_probe
from device_runner.device import GRACE_SECONDS, DeviceFacts, Waiting, no_waiting, read_options, zones_celsius
from device_runner.errors import SpecError, UnavailableError, pip_install
from device_runner.failures import explain
from device_runner.library import Library, LibraryFacts, resolve
from device_runner.plugins import with_plugin
from device_runner.probe import protocol
from device_runner.providers import PROVIDERS, provider_named
from device_runner.result import Conditions, Failure, FailureKind, Mark, RunResult
from device_runner.run import ProbeDevice, missing_input
from device_runner.spec import Allocator, RunSpec


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
        # A thread waits, as `Popen.wait` with a limit looks only every 50 ms, which would count as the run's.
        waiting = threading.Thread(target=process.wait, daemon=True)
        waiting.start()
        late = True
        try:
            waiting.join(limit_seconds)
            late = waiting.is_alive()
        finally:
            if late:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                waiting.join()
            _RUNNING.remove(process)
        if process in _ENDED:
            raise KeyboardInterrupt
        return None if late else process.returncode


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


def tail(path: Path, size: int = 2000) -> str:
    """The end of a text file."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        return file.read().decode("utf-8", "replace").strip()


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
            remedy=pip_install("onnxruntime") + ", or name a library in the spec",
        )
    return libraries[-1]


UNTIMED = {
    "open_ns": 0,
    "load_ns": 0,
    "first_run_ns": 0,
    "latencies_ns": (),
    "warmup_ns": (),
    "warmup": None,
    "sustained": None,
    "memory_before_load_bytes": 0,
    "memory_after_load_bytes": 0,
    "memory_peak_bytes": 0,
    "memory_private_bytes": 0,
    "elapsed_ns": 0,
}
"""What of a result is the emulator's own, or the software GPU's."""


def without_times(result: RunResult, mark: Mark) -> RunResult:
    """A result without times and memory, which are those of software in a phone's place, and without marks of them."""
    kept = (present for present in result.marks if present not in (Mark.SHORT, Mark.UNSETTLED))
    return replace(result, **UNTIMED, marks=(*kept, mark))


SOFTWARE_CRASH = {
    "why": "the library, the model, or the driver that plays a GPU ended the process",
    "remedy": "run it with the other driver (vulkan=swiftshader, vulkan=lavapipe): what ends both is not the driver",
}

OPTIONS = ("vulkan",)


PACKAGES = {Allocator.MIMALLOC: "libmimalloc2.0", Allocator.JEMALLOC: "libjemalloc2"}
"""Debian's packages of the allocators."""


def find_allocator(allocator: Allocator) -> str:
    """The library of an allocator as the linker of this computer finds it; "" where it is not installed."""
    return ctypes.util.find_library(allocator.value) or "" if machine_system() == "linux" else ""


def open_local(rest: str, _waiting: Waiting = no_waiting) -> "LocalDevice":
    """The device `local`, or `local?vulkan=DRIVER`; SpecError for another name, UnavailableError without a compiler."""
    text, _, query = rest.partition("?")
    if text:
        raise SpecError(f"unknown device 'local:{rest}'", remedy="write `local`")
    options = read_options(query, f"local{rest}", OPTIONS)
    return LocalDevice(build_probe(), name=f"local{rest}", vulkan=options.get("vulkan", ""))


class LocalDevice(ProbeDevice):
    """Runs specs on this computer. Its numbers are this computer's: they rank what ships to such computers."""

    plugins = frozenset(name for name, provider in PROVIDERS.items() if provider.plugin)
    """Those of the registry; without the package of one, its run says so."""

    def __init__(
        self,
        probe: Path,
        *,
        name: str = "local",
        environment: Mapping[str, str] | None = None,
        emulator: Sequence[str] = (),
        vulkan: str = "",
    ) -> None:
        """`environment` is added to this process's own for every run; `emulator` stands before the probe.

        `vulkan` names the driver that plays a GPU, "" the first there is where the computer has none.
        """
        super().__init__(name)
        self._probe = (*emulator, str(probe))
        self._environment = dict(environment or {})
        self._usual = self._environment
        self._vulkan = vulkan
        self.software_gpu = bool(vulkan) or not self._has_gpu()

    def facts(self) -> DeviceFacts:
        """What this computer is."""
        return host_facts(self.name)

    @property
    def shader_f16(self) -> bool | None:
        """That of the driver that plays a GPU, where one does."""
        if not self.software_gpu:
            return None
        try:
            return vulkan.find_driver(self._vulkan).name == vulkan.LAVAPIPE
        except UnavailableError:
            return None

    def library_for(self, given: str | None) -> Library:
        """The given library for this computer's ABI, else that of the installed onnxruntime."""
        return resolve(given or str(wheel_library()), machine_abi())

    def _load(self, library: Library) -> Library | LibraryFacts:
        """A library that this kind of device runs; raises RunnerError for any other."""
        return library

    def _prepare(self, spec: RunSpec) -> tuple[RunSpec, Path] | Failure:
        """The next process's environment has what it needs, too."""
        library = self.library_for(spec.library)
        path = Path(self._load(library).path)
        if failure := missing_input(spec):
            return failure
        self._environment = self._usual
        gpu = provider_named(spec.options.provider).gpu
        if gpu and len(self._probe) > 1:  # an emulated processor would need a driver of its own
            return Failure(
                code=FailureKind.WRONG_DEVICE,
                what=f"no Vulkan driver for {library.abi} runs in an emulator here",
                why="WebGPU needs a GPU, or a driver that computes on the CPU of this computer",
                remedy=f"leave abi= and cpu= out, so that the library for {machine_abi()} runs",
            )
        if gpu and self.software_gpu:
            try:
                variables = vulkan.vulkan_environment(
                    vulkan.find_driver(self._vulkan), self._usual.get("LD_LIBRARY_PATH", "")
                )
            except UnavailableError as error:
                return Failure(code=FailureKind.WRONG_DEVICE, what=error.what, why=error.why, remedy=error.remedy)
            self._environment = {**self._usual, **variables}
        allocator = spec.options.allocator
        if allocator is not Allocator.DEFAULT:
            file = find_allocator(allocator)
            if not file or len(self._probe) > 1:
                return Failure(
                    code=FailureKind.WRONG_DEVICE,
                    why="it stands in for the C library's before the process begins",
                    what=f"{allocator} is not installed" if not file else f"{allocator} would be the emulator's",
                    remedy=f"apt-get install {PACKAGES[allocator]}" if not file else "run it on such a computer",
                )
            preloaded = self._usual.get("LD_PRELOAD", os.environ.get("LD_PRELOAD", ""))
            self._environment = {**self._environment, "LD_PRELOAD": f"{file} {preloaded}".strip()}
        ready = with_plugin(spec, library)
        return ready if isinstance(ready, Failure) else (ready, path)

    def _has_gpu(self) -> bool:
        """Whether programs here can use a GPU: then no driver in software is used, unless it is named."""
        return platform.system() != "Linux" or any(Path("/dev/dri").glob("renderD*"))

    def run(self, spec: RunSpec) -> RunResult:
        """As any device; a plugin that is a package's may play a phone's accelerator here, a driver in software a GPU.

        Neither has times or memory that say anything: they are left out.
        """
        result = super().run(spec)
        provider = provider_named(spec.options.provider)
        if result.ep_devices and provider.plugin and provider.plugin.by_chip:
            return without_times(result, Mark.SIMULATED)
        if provider.gpu and vulkan.VARIABLE in self._environment:
            if result.failure and result.failure.code is FailureKind.CRASH:
                result = replace(result, failure=replace(result.failure, **SOFTWARE_CRASH))
            return without_times(result, Mark.SOFTWARE_GPU)
        return result

    def _conditions_now(self) -> Conditions:
        return host_conditions()

    def _ask(
        self, request: bytes, folder: str, limit_seconds: float, limit_bytes: int
    ) -> protocol.ProbeAnswer | Failure:
        """OSError also when the disk is so full that the probe could write no document."""
        work = Path(folder)
        (work / "request").write_bytes(request)
        command = [*self._probe, str(work / "request")]
        code = run_group(command, work, limit_seconds + GRACE_SECONDS, {**os.environ, **self._environment})
        if code is None:
            text = "the probe did not end by itself"
            return explain(Failure(code=FailureKind.TIMEOUT, what=text, signal="SIGKILL"))
        answer, stderr = protocol.decode_answer((work / "stdout").read_bytes()), tail(work / "stderr")
        if isinstance(answer, Failure) and code < 0:
            name = signal.Signals(-code).name
            return explain(Failure(code=FailureKind.CRASH, what=f"the probe ended by {name}: {stderr}", signal=name))
        # Dawn says on stderr alone what a driver lacks.
        if isinstance(answer, Failure):
            answer = replace(answer, what=f"{answer.what}; stderr: {stderr}")
        elif stderr and answer.kind and (answer.kind == FailureKind.CRASH or vulkan.VARIABLE in self._environment):
            answer = replace(answer, message=f"{answer.message}; stderr: {stderr}")
        if isinstance(answer, Failure) and answer.code is FailureKind.GARBAGE:
            (work / "room").write_bytes(bytes(4096))  # on a full disk the probe cannot write its answer
        return answer

    def _prepare_tool(
        self, spec: RunSpec, library: Path, folder: str, program: Path, library_name: str
    ) -> perf_test.Execute:
        """Without a library in the spec, that beside the program goes before the device's."""
        work = Path(folder)
        (work / perf_test.model_name(spec)).symlink_to(Path(spec.model).absolute())
        if library_name:
            beside = program.parent / library_name
            (work / library_name).symlink_to((beside if not spec.library and beside.is_file() else library).absolute())
        for name, data in perf_test.input_files(spec):
            (work / name).parent.mkdir(exist_ok=True)
            (work / name).write_bytes(data)

        def execute(arguments: list[str]) -> perf_test.Ended:
            csv = work / perf_test.RESULT_FILE
            csv.unlink(missing_ok=True)
            variables = {**os.environ, **self._environment}
            paths = ":".join(filter(None, (folder, variables.get("LD_LIBRARY_PATH"))))
            variables |= {"LD_LIBRARY_PATH": paths, "DYLD_LIBRARY_PATH": paths}
            code = run_group([str(program), *arguments], work, spec.timeout_seconds, variables, inside=True)
            if code is None:
                raise subprocess.TimeoutExpired(arguments, spec.timeout_seconds)
            profiles = sorted(path.name for path in work.glob(f"{perf_test.PROFILE_PREFIX}_*.json"))
            texts = (tail(work / name, perf_test.OUTPUT_TAIL_BYTES) for name in ("stdout", "stderr"))
            table = csv.read_text("utf-8", "replace") if csv.is_file() else ""
            return subprocess.CompletedProcess(arguments, code, *texts), table, profiles[-1] if profiles else None

        return execute


def machine_abi() -> str:
    """The ABI of this computer, by Android's name."""
    return ABIS.get(platform.machine(), platform.machine())


def machine_system() -> str:
    """The system of this computer, as `DeviceFacts` has it."""
    return {"Darwin": "macos"}.get(platform.system(), platform.system().lower())


def host_facts(name: str, system: Path = SYSTEM) -> DeviceFacts:
    """What this computer is, as far as it says, the kernel under `system`."""
    lists = sorted(system.glob("devices/system/node/node[0-9]*/cpulist"))
    nodes = [_match(str(file), r"^([\d,-]+)$") for file in lists]
    return DeviceFacts(
        name=name,
        platform=machine_system(),
        model=_match("/proc/cpuinfo", r"model name\s*:\s*(.+)") or platform.processor() or platform.machine(),
        abis=(machine_abi(),),
        os_release=platform.release(),
        core_max_mhz=_core_mhz("cpuinfo_max_freq", system),
        # The cores of each NUMA node that has any, counted from 1
        numa_nodes=tuple(re.sub(r"\d+", lambda core: str(int(core[0]) + 1), cores) for cores in nodes if cores),
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


def _core_mhz(name: str, system: Path) -> tuple[int, ...]:
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
