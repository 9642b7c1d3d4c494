"""Tasks in child processes: crashes, hangs and errors cost one task each."""

import os
import resource
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from device_runner import errors as runner
from pipeline.core import workers
from pipeline.core.errors import (
    CheckFailed,
    ConfigError,
    DiskError,
    MissingError,
    ModelError,
    PipelineError,
    common_exit_code,
)
from pipeline.core.workers import (
    Task,
    memory_limit,
    needed_bytes,
    note,
    run_tasks,
    shared_children,
    still_at_work,
)
from tests.values import present

starts_and_ends = pytest.mark.usefixtures("own_workers")
"""Of tests about when workers start and end, and of what ends one: the others take those of all tests."""

SPAN_NS = 300_000_000

RAISED: dict[str, tuple[type[runner.RunnerError], type[PipelineError]]] = {
    "model": (ModelError, ModelError),
    "config": (ConfigError, ConfigError),
    "missing-here": (MissingError, MissingError),
    "disk": (DiskError, DiskError),
    "check": (CheckFailed, CheckFailed),
    "spec": (runner.SpecError, ConfigError),
    "runner-missing": (runner.UnavailableError, MissingError),
    "runner": (runner.RunnerError, PipelineError),
}
"""What a child raises, and what its parent gets."""


class Order(msgspec.Struct, frozen=True):
    """What the child is to do."""

    deed: str
    number: int = 0


def tire(order: Order) -> int:
    """Take half a second for each piece, and say so."""
    for _ in range(order.number):
        time.sleep(0.5)
        still_at_work()
    return order.number


def rest(order: Order) -> int:
    """Take so many seconds, and say nothing."""
    time.sleep(order.number)
    return order.number


def burn(order: Order) -> int:
    """Compute for so many milliseconds of a processor, and say nothing."""
    begun = time.process_time()
    while (time.process_time() - begun) * 1e3 < order.number:
        pass
    return order.number


def allocate(order: Order) -> int:
    """Have so many bytes."""
    return len(bytes(order.number))  # which the system need not fill


def repeated(order: Order, word: str, *, times: int = 2, apart: bool = False) -> list[str]:
    """Arguments by place, by name and by default."""
    return [f"{order.deed}{' ' * apart}{word}"] * times


def obey(order: Order) -> int:
    """Return, fail, crash or hang as ordered."""
    if order.deed == "fail":
        raise ModelError("it is broken", where="here", why="because", remedy="mend it")
    if order.deed == "missing":
        raise runner.UnavailableError("no such library", where="there", why="nobody fetched it", remedy="fetch it")
    if order.deed in RAISED:
        raise RAISED[order.deed][0]("failed")
    if order.deed == "talk":
        for place in range(order.number):
            note(f"at {place}")
    if order.deed == "bug":
        raise ZeroDivisionError("unforeseen")
    if order.deed == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if order.deed == "hang":
        time.sleep(60)
    if order.deed == "exit":
        os._exit(7)
    if order.deed == "pid":
        return os.getpid()
    if order.deed == "span":
        time.sleep(SPAN_NS / 1e9)
        return time.monotonic_ns()
    return order.number * 2


def tasks(*orders: Order) -> list[Task[int]]:
    return [Task(label=f"{n}.onnx", call=partial(obey, order)) for n, order in enumerate(orders)]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (partial(repeated, Order("a"), "b"), ["ab", "ab"]),
        (partial(repeated, Order("a"), word="b", times=1, apart=True), ["a b"]),
    ],
)
def test_a_task_is_called_with_its_arguments(call: partial[list[str]], expected: list[str]) -> None:
    (outcome,) = run_tasks([Task(label="words", call=call)])
    assert outcome.value == expected


def test_arguments_that_the_function_does_not_take_are_refused() -> None:
    unchecked: Any = repeated
    (outcome,) = run_tasks([Task(label="words", call=partial(unchecked, Order("a"), 3))])
    assert "Expected `str`, got `int` - at `$.word`" in present(outcome.error).why


def test_every_task_gets_its_own_answer() -> None:
    orders = [Order("double", number) for number in range(40)]
    outcomes = list(run_tasks(tasks(*orders), processes=2))
    assert {o.task.call.args[0].number: o.value for o in outcomes} == {n: 2 * n for n in range(40)}


@starts_and_ends
@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system does not say who waits")
def test_time_without_a_processor_does_not_pass() -> None:
    """Seven sessions share one core (Linux gives each its part): what computes for 1.2 s takes over 5 s."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    line = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(line, start_new_session=True) for _ in range(6)]
    try:
        begun = time.monotonic()
        (outcome,) = run_tasks([Task(label="", call=partial(burn, Order("", 1200)))], timeout_seconds=5.0)
        assert outcome.value == 1200, outcome.error
        assert time.monotonic() - begun > 5
        (outcome,) = run_tasks([Task(label="m", call=partial(burn, Order("", 1 << 30)))], timeout_seconds=1.0)
        assert "longer than 1 s" in present(outcome.error).why
    finally:
        os.sched_setaffinity(0, cores)
        for process in others:
            process.kill()
            process.wait()


@pytest.mark.parametrize(("waiting", "value"), [(1.0, 2), (0.0, None)])
def test_what_a_task_waited_for_a_processor_is_added_to_its_time(
    waiting: float, value: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes 2 s, has half a second, and waits all the while, or not at all."""
    monkeypatch.setattr(workers, "waiting_seconds", lambda _: waiting * time.monotonic())
    (outcome,) = run_tasks([Task(label="", call=partial(rest, Order("", 2)))], timeout_seconds=0.5)
    assert outcome.value == value


@starts_and_ends
@pytest.mark.parametrize(
    ("deed", "why"),
    [
        ("fail", "because"),
        ("crash", "SIGSEGV"),
        ("exit", "exit status 7"),
        ("hang", "longer than 8 s"),
        ("bug", "ZeroDivisionError: unforeseen"),
    ],
)
def test_a_bad_task_costs_only_itself(deed: str, why: str) -> None:
    given = tasks(Order("double", 1), Order(deed), Order("double", 2))
    outcomes = list(run_tasks(given, processes=1, timeout_seconds=8 if deed == "hang" else 60))
    values = sorted(o.value for o in outcomes if o.value is not None)
    (error,) = [o.error for o in outcomes if o.error is not None]
    assert values == [2, 4]
    assert why in error.why
    assert error.remedy


def test_an_error_of_the_runner_keeps_its_four_parts() -> None:
    (outcome,) = run_tasks(tasks(Order("missing")))
    assert outcome.error is not None
    assert [text for _, text in outcome.error.lines()] == ["no such library", "there", "nobody fetched it", "fetch it"]


@pytest.mark.parametrize("deed", RAISED)
def test_an_error_keeps_its_class_and_exit_code(deed: str) -> None:
    raised, expected = RAISED[deed]
    (outcome,) = run_tasks(tasks(Order(deed)))
    assert type(outcome.error) is expected
    assert expected.exit_code == raised.exit_code


def test_work_in_the_callers_process_gives_the_same_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(workers.IN_PROCESS, "1")
    answer, failure = run_tasks(tasks(Order("pid"), Order("missing")))
    assert answer.value == os.getpid()
    assert type(failure.error) is MissingError
    assert [text for _, text in failure.error.lines()] == ["no such library", "there", "nobody fetched it", "fetch it"]


def test_a_defect_of_work_in_the_callers_process_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(workers.IN_PROCESS, "1")
    with pytest.raises(ZeroDivisionError, match="unforeseen"):
        list(run_tasks(tasks(Order("bug"))))


def test_one_handler_catches_what_either_package_misses() -> None:
    assert issubclass(MissingError, runner.UnavailableError)
    assert issubclass(ConfigError, runner.SpecError)


def test_the_exit_code_that_all_errors_share() -> None:
    assert common_exit_code([DiskError("a"), MissingError("b")]) == 3
    assert common_exit_code([ConfigError("a"), ModelError("b")]) == 1
    assert common_exit_code([]) == 1


@starts_and_ends
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits what a process allocates")
def test_a_task_may_allocate_what_follows_from_what_it_needs() -> None:
    order = Order("allocate", memory_limit(1) + 1)
    call = partial(allocate, order)
    limited, free = Task(label="big", call=call, memory_bytes=1), Task(label="big", call=call)
    first, second = (outcome for one in (limited, free) for outcome in run_tasks([one]))
    assert first.error is not None
    assert "not enough memory" in first.error.what
    assert f"{memory_limit(1) / 1e9:.1f} GB" in first.error.why
    assert second.value == order.number, "a limit is of one task"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits what a process allocates")
def test_a_model_whose_numbers_are_attributes_may_take_many_times_its_bytes() -> None:
    """As a tree ensemble does, as protobuf and in a session; the machine's memory is the end of it."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for size in (200 << 20, 1 << 30):
        assert memory_limit(needed_bytes(size)) >= min(26 * size, machine)
    assert memory_limit(needed_bytes(1)) < min(4 << 30, machine), "a small one cannot fill the machine"


@pytest.mark.parametrize(("deed", "number"), [("crash", 0), ("allocate", 1 << 40)])
def test_a_limited_address_space_is_named_before_the_file(deed: str, number: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 39, hard))  # what no test needs
    try:
        call = partial({"crash": obey, "allocate": allocate}[deed], Order(deed, number))
        (outcome,) = run_tasks([Task(label="m.onnx", call=call)])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    error = present(outcome.error)
    assert "the address space of a process is limited to 549.8 GB here" in error.why
    assert error.remedy.startswith("lift the limit of the address space (`ulimit -v unlimited`)")


def test_only_silence_is_limited() -> None:
    (outcome,) = run_tasks([Task(label="", call=partial(tire, Order("", 6)))], timeout_seconds=2.5)
    assert outcome.value == 6


@starts_and_ends
def test_tasks_run_side_by_side_only_within_the_memory_budget() -> None:
    def most_at_once(memory_bytes: int) -> int:
        given = [Task(label="big", call=partial(obey, Order("span")), memory_bytes=6) for _ in range(8)]
        ends = [o.value or 0 for o in run_tasks(given, processes=2, memory_bytes=memory_bytes)]
        return max(sum(end - SPAN_NS < other <= end for other in ends) for end in ends)

    assert most_at_once(memory_bytes=12) == 2
    assert most_at_once(memory_bytes=10) == 1


@starts_and_ends
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_killed_parent_takes_its_children_along() -> None:
    code = (
        "import os; from test_workers import *\n"
        "tasks_ = [Task(label='x', call=partial(obey, Order(deed))) for deed in ('pid', 'hang')]\n"
        "for outcome in run_tasks(tasks_, processes=1):\n"
        "    print(outcome.value, flush=True)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        child = int(present(parent.stdout).readline())
        parent.kill()
    for _ in range(3000):
        if not alive(child):
            break
        time.sleep(0.02)
    assert not alive(child)


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except OSError:
        return False


def workers_of_this_process() -> set[str]:
    parents = {
        stat.parent.name: stat.read_text().rpartition(")")[2].split()[1] for stat in Path("/proc").glob("[0-9]*/stat")
    }
    mine = {pid for pid, parent in parents.items() if parent == str(os.getpid())}
    return {pid for pid in mine if b"pipeline.core.workers" in Path(f"/proc/{pid}/cmdline").read_bytes()}


@starts_and_ends
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system has no /proc to see processes in")
def test_stopping_early_leaves_no_child_behind() -> None:
    running = run_tasks(tasks(Order("double", 1), Order("hang")), processes=2)
    next(running)
    assert workers_of_this_process()
    running.close()  # type: ignore[attr-defined] # it is a generator, which the signature need not promise
    assert not workers_of_this_process()


@starts_and_ends
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system has no /proc to see processes in")
def test_calls_share_children_and_leave_none_behind() -> None:
    with shared_children("json"):
        (first,) = run_tasks(tasks(Order("pid")))
        (second,) = run_tasks(tasks(Order("pid")))
        assert first.value == second.value
        assert first.value is not None
        os.kill(first.value, signal.SIGKILL)
        os.waitid(os.P_PID, first.value, os.WEXITED | os.WNOWAIT)
        (third,) = run_tasks(tasks(Order("pid")))
        assert third.value not in (None, first.value)
        running = run_tasks(tasks(Order("double", 1), Order("hang")), processes=2)
        next(running)
        running.close()  # type: ignore[attr-defined] # it is a generator, which the signature need not promise
        assert len(workers_of_this_process()) == 1
    assert not workers_of_this_process()


def test_what_tasks_say_is_heard_in_order_before_they_end() -> None:
    heard: list[tuple[str, str]] = []
    tasks = [Task(label=name, call=partial(obey, Order("talk", count))) for name, count in (("a", 500), ("b", 3))]
    for outcome in run_tasks(tasks, heard=lambda task, text: heard.append((task.label, text))):
        count = outcome.task.call.args[0].number
        own = [text for label, text in heard if label == outcome.task.label]
        assert own == [f"at {place}" for place in range(count)]
        assert outcome.value == 2 * count


def test_without_a_parent_nobody_hears(capfd: pytest.CaptureFixture[str]) -> None:
    note("at home")
    assert capfd.readouterr() == ("", "")
