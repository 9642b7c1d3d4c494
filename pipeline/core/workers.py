"""Runs tasks in child processes, so that a crash or a hang of ONNX Runtime costs one task and never the run.

A task is the call of a top-level function, `partial(function, model, level=...)`. Its arguments and its result travel
as JSON over pipes and are checked against the function's annotations (no pickle). Children are reused; one that dies
is replaced.
"""

import contextlib
import functools
import gc
import importlib
import inspect
import os
import selectors
import signal
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from device_runner import untrusted_files
from device_runner.errors import RunnerError
from device_runner.problem import Problem
from pipeline.core.errors import CLASSES, ModelError, PipelineError, class_name
from pipeline.core.files import MORE_SPACE, os_error

RUNTIME_BYTES = 300 << 20
"""What a process needs for onnxruntime and onnx, before any model."""


MODEL_FACTOR = 1.7
"""Peak memory of a conversion relative to the model's bytes (measured by benchmarks/conversion.py: at most 1.6)."""


TIMEOUT_SECONDS = 120.0


SECONDS_PER_BYTE = 1e-6
"""What work on a model may take: two minutes, and a second more for each megabyte. A hang must be noticed."""


def time_limit(sizes_bytes: Iterable[int]) -> float:
    """Seconds that one task may take where the largest of the models has so many bytes."""
    return TIMEOUT_SECONDS + SECONDS_PER_BYTE * max(sizes_bytes, default=0)


def needed_bytes(model_bytes: int, factor: float = MODEL_FACTOR) -> int:
    """Peak memory of a worker on a model of that size."""
    return RUNTIME_BYTES + int(factor * model_bytes)


LIMIT_BYTES, LIMIT_FACTOR = (2 << 30) + 4 * RUNTIME_BYTES, 16
"""What a worker may allocate: 3.2 GiB, for inputs and values whose size no file tells, and 16 times what is foreseen
for the model: of attributes, in which tree ensembles lie, protobuf and sessions make 26 times the file (measured).
"""


def memory_limit(needed: int) -> int:
    """Bytes that a worker may allocate for a task that is foreseen to need so many, at most what the machine has.

    0, without a limit, where nothing is foreseen or the system does not say.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return min(LIMIT_BYTES + LIMIT_FACTOR * max(0, needed - RUNTIME_BYTES), machine) if needed else 0
    return 0


def memory_budget() -> int:
    """70 % of the memory that is free now; 0 (no budget) where the system does not say."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))) * 1024 * 7 // 10
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 5 // 10
    return 0


Result = TypeVar("Result")

CHILD = f"import sys; from {__name__} import serve; serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])"
"""What a child runs. Not `-m`: tasks import this module by its name, and would have another one than the child's."""

IN_PROCESS = "ORT_MOBILE_IN_PROCESS"
"""For developers: where it is set, tasks run in the caller's process, so that a breakpoint in them stops."""

HEADER = struct.Struct("<Q")
"""Length of the JSON message that follows, in bytes."""


VALUE, NOTE = "value", "note"
Reply = tuple[str, msgspec.Raw]
"""What a child sends: VALUE with what a task gave, NOTE with what it is at, or an error: the name of its class in
`pipeline.core.errors` with its problem.
"""

Call = tuple[str, msgspec.Raw, int]
"""What a parent sends: the function as `module:name`, its arguments by name, and what it may allocate (0: any)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Generic[Result]):
    """One piece of work, equal to itself only: `label` names it in errors, `memory_bytes` is what it may need at most.

    Where that is given, it cannot allocate more than `memory_limit` of it. `at_work` is what its process runs.
    """

    label: str
    at_work: str = "ONNX Runtime"
    call: partial[Result]
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome(Generic[Result]):
    """What became of a task: exactly one of `value` and `error` is set."""

    task: Task[Result]
    value: Result | None = None
    error: PipelineError | None = None


@dataclass(slots=True)
class _Child(Generic[Result]):
    """A child process, its pipes, and the task it works on."""

    process: subprocess.Popen[bytes]
    send: int
    receive: int
    task: Task[Result] | None = None
    deadline: float = 0.0
    waited: float = 0.0
    buffer: bytearray = field(default_factory=bytearray)

    def heard_of(self, timeout_seconds: float) -> None:
        """From now on it may say nothing for so long."""
        self.deadline, self.waited = time.monotonic() + timeout_seconds, waiting_seconds(self.process.pid)

    def is_overdue(self) -> bool:
        """Whether its time is over; what it waited for a processor since it was heard of is added to that first."""
        if self.deadline <= time.monotonic():
            before, self.waited = self.waited, waiting_seconds(self.process.pid)
            self.deadline += self.waited - before
        return self.deadline <= time.monotonic()

    def end(self, *, kill: bool = True) -> None:
        """Wait until it has ended; without `kill` by itself, so that its status says why."""
        os.close(self.send)
        os.close(self.receive)
        if kill:
            self.process.kill()
        self.process.wait()


def waiting_seconds(pid: int) -> float:
    """How long a process could have worked and had no processor; 0 where the system does not say.

    On Linux the second number of schedstat, in nanoseconds, of its main thread. One that hangs waits for none.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    return 0.0


def run_tasks(
    tasks: Collection[Task[Result]],
    *,
    processes: int = 0,
    memory_bytes: int = 0,
    timeout_seconds: float = 600.0,
    heard: Callable[[Task[Result], str], None] = lambda _task, _note: None,
) -> Iterator[TaskOutcome[Result]]:
    """Yield an outcome for each task as it ends, in any order; `heard` gets what tasks say meanwhile (`note`).

    `processes` 0 means as many as there are tasks, at most the usable cores. Tasks whose `memory_bytes` together pass
    the budget (0: none) wait for one another; a task that passes it alone runs alone. A task that says nothing for
    `timeout_seconds` (`note`, `still_at_work`) is killed; while others have the processors its time does not pass. When
    the caller stops early or is interrupted, no child is left behind; idle ones serve further calls inside
    `shared_children`.
    """
    if os.environ.get(IN_PROCESS):
        yield from map(_run_here, tasks)
        return
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    pool = _Pool(processes or min(len(tasks), cores), memory_bytes, timeout_seconds, heard)
    try:
        yield from pool.run(deque(tasks))
    finally:
        pool.close()


def _run_here(task: Task[Result]) -> TaskOutcome[Result]:
    """The outcome of a task whose work was done in this process; what is no error of ours is raised as it is."""
    try:
        return TaskOutcome(task=task, value=task.call())
    except RunnerError as error:
        return TaskOutcome(task=task, error=_told(class_name(error), error.problem))


def _told(name: str, problem: Problem) -> PipelineError:
    """The error of a task by the name of its class; those of device_runner are about the model that it was given."""
    return CLASSES.get(name, ModelError).of(problem)


class _Shared:
    """Idle children that wait for the next call of `run_tasks`; None outside of `shared_children`."""

    idle: "list[_Child[Any]] | None" = None


@contextlib.contextmanager
def shared_children(*modules: str) -> Iterator[None]:
    """Let calls of `run_tasks` in the block use the same children: each new one would import onnxruntime again.

    Where `modules` are given, the first one starts at once and imports them while the caller prepares its tasks. None
    is left after the block.
    """
    if _Shared.idle is not None:
        yield
        return
    _Shared.idle = []
    try:
        if modules and not os.environ.get(IN_PROCESS):
            _Shared.idle.append(_start(modules))
        yield
    finally:
        idle, _Shared.idle = _Shared.idle, None
        for child in idle:
            child.end()


def _idle_child() -> "_Child[Any] | None":
    """A shared child that still lives."""
    while _Shared.idle:
        child = _Shared.idle.pop()
        if child.process.poll() is None:
            return child
        child.end()
    return None


def _start(modules: Iterable[str] = ()) -> "_Child[Any]":
    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(in_read), str(out_write), *modules],
        pass_fds=(in_read, out_write),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    os.close(in_read)
    os.close(out_write)
    return _Child(process, in_write, out_read)


class _Pool(Generic[Result]):
    """The children of one `run_tasks` call, and the loop that keeps them busy."""

    def __init__(
        self,
        processes: int,
        memory_bytes: int,
        timeout_seconds: float,
        heard: Callable[[Task[Result], str], None],
    ) -> None:
        self.processes = processes
        self.memory_bytes = memory_bytes
        self.timeout_seconds = timeout_seconds
        self.heard = heard
        self.children: list[_Child[Result]] = []
        self.selector = selectors.DefaultSelector()

    def run(self, waiting: deque[Task[Result]]) -> Iterator[TaskOutcome[Result]]:
        """Feed idle children and wait for answers until nothing is left."""
        while waiting or any(child.task for child in self.children):
            while waiting and self._fits(waiting[0]):
                child = next((c for c in self.children if c.task is None), None)
                if child is None:
                    child = _idle_child() or _start()
                    self.children.append(child)
                    self.selector.register(child.receive, selectors.EVENT_READ, child)
                child.task = waiting.popleft()
                child.heard_of(self.timeout_seconds)
                call = _encoded(child.task.call, memory_limit(child.task.memory_bytes))
                with contextlib.suppress(BrokenPipeError):  # its end of file says so to the reader, which reports it
                    write_message(child.send, msgspec.json.encode(call))
            deadlines = [child.deadline for child in self.children if child.task]
            patience = max(0.0, min(deadlines, default=0.0) - time.monotonic())
            for key, _ in self.selector.select(timeout=patience):
                outcome = self._read(key.data)
                if outcome is not None:
                    yield outcome
            for child in [child for child in self.children if child.task and child.is_overdue()]:
                if outcome := self._lost(child, "overdue"):
                    yield outcome

    def _fits(self, task: Task[Result]) -> bool:
        busy = [child.task for child in self.children if child.task]
        if len(busy) >= self.processes:
            return False
        used = sum(other.memory_bytes for other in busy)
        return not busy or not self.memory_bytes or used + task.memory_bytes <= self.memory_bytes

    def _read(self, child: _Child[Result]) -> TaskOutcome[Result] | None:
        """Take in what a child wrote; an outcome once its message is whole, or when the child has died."""
        chunk = os.read(child.receive, 1 << 20)
        if not chunk:
            return self._lost(child, "ended")
        child.buffer += chunk
        while len(child.buffer) >= HEADER.size:
            (length,) = HEADER.unpack_from(child.buffer)
            if len(child.buffer) < HEADER.size + length:
                break
            kind, content = untrusted_files.decode_json(
                bytes(child.buffer[HEADER.size : HEADER.size + length]), tuple[str, msgspec.Raw]
            )
            del child.buffer[: HEADER.size + length]
            if kind != NOTE:
                task, child.task = child.task, None
                assert task is not None, "a child answers only what it was asked"  # noqa: S101 - an invariant, not a check of input
                if kind == VALUE:
                    return TaskOutcome(
                        task=task, value=untrusted_files.decode_json(content, _signature(task.call.func)[1])
                    )
                return TaskOutcome(task=task, error=_told(kind, untrusted_files.decode_json(content, Problem)))
            child.heard_of(self.timeout_seconds)
            text = untrusted_files.decode_json(content, str)
            if child.task and text != AT_WORK:
                self.heard(child.task, text)
        return None

    def _lost(self, child: _Child[Result], why: str) -> TaskOutcome[Result] | None:
        """Bury a child that died or must be killed; its task, if it had one, failed."""
        task = child.task
        if why == "overdue":
            child.process.kill()
        self.selector.unregister(child.receive)
        self.children.remove(child)
        child.end(kill=False)
        if task is None:
            return None
        status, limit = child.process.returncode, memory_limit(task.memory_bytes)
        if why == "overdue":
            error = ModelError(
                "no answer in time",
                where=task.label,
                why=f"a piece of the work on it took longer than {self.timeout_seconds:g} s and was stopped",
                remedy="on a busy computer try again; else look for endless loops and for functions nested deep in the "
                "model: the limit follows from its size",
            )
        elif status == -signal.SIGKILL:
            error = ModelError(
                "the machine ended the work on it",
                where=task.label,
                why="the process that worked on it ended with SIGKILL, most likely for want of memory",
                remedy="give it more memory or fewer processes at once",
            )
        else:
            ended = -status in set(signal.Signals) and status < 0
            name = signal.Signals(-status).name if ended else f"exit status {status}"
            # SIGABRT is what C++ does where a thread of its own cannot allocate. What finds no address space may end
            # with any signal: nobody tells then whether that or the file is the cause, so what is cheap to try is first
            limit, space = limit if status == -signal.SIGABRT else 0, address_space_bytes()
            memory = f"; {memory_text(limit)}" if limit or space else ""
            remedy = (
                "the file is malformed, or meets a defect of this onnxruntime: fix the file, or try another release"
            )
            error = ModelError(
                f"{task.at_work} crashed on it",
                where=task.label,
                why=f"the process that worked on it ended with {name}{memory}",
                remedy=f"{MORE_SPACE}; where it crashes all the same, {remedy}" if space else remedy,
            )
        return TaskOutcome(task=task, error=error)

    def close(self) -> None:
        """Kill what still works, leave the idle to the next call or let them go, and wait for all that go."""
        for child in self.children:
            if child.task is None and _Shared.idle is not None:
                _Shared.idle.append(child)
            else:
                child.end()
        self.selector.close()


def memory_text(limit: int) -> str:
    """What a limit of memory is, and that of the address space, in words; "" for none."""
    texts = [f"it may allocate {limit / 1e9:.1f} GB for a model of this size"] if limit else []
    if space := address_space_bytes():
        texts.append(f"the address space of a process is limited to {space / 1e9:.1f} GB here")
    return ", and ".join(texts)


def address_space_bytes() -> int:
    """What a process that this one starts may have in its address space, as `ulimit -v` sets it; 0 for no limit."""
    if sys.platform == "win32":
        return 0
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return 0 if soft == resource.RLIM_INFINITY else soft


def write_message(descriptor: int, payload: bytes) -> None:
    """Write one message with its length in front."""
    view = memoryview(HEADER.pack(len(payload)) + payload)
    while view:
        view = view[os.write(descriptor, view) :]


def _read_exactly(descriptor: int, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        chunk = os.read(descriptor, count - len(parts))
        if not chunk:
            return None
        parts += chunk
    return bytes(parts)


def _read_message(descriptor: int) -> bytes | None:
    header = _read_exactly(descriptor, HEADER.size)
    return None if header is None else _read_exactly(descriptor, HEADER.unpack(header)[0])


@functools.cache
def _signature(function: Callable[..., Any]) -> tuple[Any, Any]:
    """The types of a function's arguments, as a struct with a field for each, and of its result."""
    signature = inspect.signature(function)
    fields = [(name, parameter.annotation) for name, parameter in signature.parameters.items()]
    return msgspec.defstruct("Arguments", fields), signature.return_annotation


def _encoded(call: partial[Any], limit: int) -> Call:
    bound = inspect.signature(call.func).bind(*call.args, **call.keywords)
    bound.apply_defaults()
    arguments = msgspec.Raw(msgspec.json.encode(bound.arguments))
    return f"{call.func.__module__}:{call.func.__qualname__}", arguments, limit


def _answer(message: bytes) -> Reply:
    path, given, limit = untrusted_files.decode_json(message, tuple[str, msgspec.Raw, int])
    # Have the system refuse this process more memory of its own; 0 lifts the limit. RLIMIT_DATA counts what all threads
    # allocate, and no file that is mapped: weights stay out of it. It is Linux's; elsewhere there is no limit that the
    # address space that onnxruntime reserves would not break
    if sys.platform == "linux":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        lower = bool(limit) and (hard == resource.RLIM_INFINITY or limit < hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit if lower else hard, hard))
    module, _, name = path.partition(":")
    function = getattr(importlib.import_module(module), name)
    try:
        arguments = untrusted_files.decode_json(given, _signature(function)[0])
        value = function(**msgspec.structs.asdict(arguments))
    except (RunnerError, OSError) as error:  # not PipelineError alone: device_runner's have a problem, too
        return _failure(os_error(error) if isinstance(error, OSError) else error)
    except MemoryError:
        remedy = f"{MORE_SPACE}, or {MEMORY_REMEDY}" if address_space_bytes() else MEMORY_REMEDY
        return _failure(ModelError("not enough memory", why=memory_text(limit), remedy=remedy))
    except Exception as error:  # noqa: BLE001 - whatever a hostile file brings about must not cost the other files
        import traceback

        frame = traceback.extract_tb(error.__traceback__)[-1]
        return _failure(
            ModelError(
                "internal error",
                why=f"{type(error).__name__}: {error} ({frame.name}, line {frame.lineno})",
                remedy="this is a defect of ort-mobile: please report it with the model; the other models are done",
            )
        )
    return VALUE, msgspec.Raw(msgspec.json.encode(value))


def _failure(error: RunnerError) -> Reply:
    return class_name(error), msgspec.Raw(msgspec.json.encode(error.problem))


MEMORY_REMEDY = "give smaller dimensions or inputs; a model whose constants are computed may want any amount"


PR_SET_PDEATHSIG = 1


class _Parent:
    """Where a child's notes go; None in a process that is nobody's child."""

    pipe: int | None = None


def note(text: str) -> None:
    """Tell the parent what the task is at; nothing where the work is done in the parent's own process."""
    if _Parent.pipe is not None and text:
        write_message(_Parent.pipe, msgspec.json.encode((NOTE, text)))


AT_WORK = " "


def still_at_work() -> None:
    """Tell the parent that the task goes on: what takes long by the user's wish calls this between its pieces."""
    note(AT_WORK)


def serve(receive: int, send: int, modules: Iterable[str] = ()) -> None:
    """The life of a child: import what calls will need, and answer them until the parent closes the pipe."""
    # Have Linux kill this process when its parent ends: inside ONNX Runtime nobody sees the closed pipe
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _Parent.pipe = send
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides; it kills us when it is interrupted
    for module in modules:
        importlib.import_module(module)
    while (message := _read_message(receive)) is not None:
        reply = _answer(message)
        if reply[0] != VALUE:  # its traceback may hold mapped files in a cycle, which keep the blocks of a full disk
            gc.collect()
        write_message(send, msgspec.json.encode(reply))
