"""Where the threads of a running process are, by /proc."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from device_runner.result import RunResult


def _children(process: int) -> Iterator[int]:
    """All processes below one."""
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            yield child
            yield from _children(child)


def _place(task: Path) -> tuple[str, int]:
    """The cores from 0 that a thread may run on, and its nice value (field 19 of stat, behind the name's bracket)."""
    status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
    return status["Cpus_allowed_list"].strip(), int((task / "stat").read_text().rpartition(")")[2].split()[16])


def places_during(run: Callable[[], RunResult]) -> tuple[RunResult, set[tuple[str, int]]]:
    """The result of a run, and where threads of processes below this one were until it came, first threads apart."""
    results: list[RunResult] = []
    runner = threading.Thread(target=lambda: results.append(run()))
    seen: set[tuple[str, int]] = set()
    runner.start()
    while runner.is_alive():
        try:
            for process in _children(os.getpid()):
                seen |= {_place(task) for task in Path(f"/proc/{process}/task").iterdir() if int(task.name) != process}
        except OSError:  # ended meanwhile
            continue
        runner.join(0.005)
    return results[0], seen
