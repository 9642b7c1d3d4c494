"""Every one-operator model on Snapdragons of several generations, beside sessions by hand and the recorded answers.

`python -m tests.npu_operators [--record] [--chips SM8650,…] [WORD…]` (`nox -s npu_operators`) prints what became of
the models by chip, and ends with 1 where an answer differs from the recorded one or from a session by hand on the chip
of `--beside`, or the compiler hangs. Words are parts of models' names. `--record` writes answers to PATH, and goes on
where a sweep was stopped.
"""

import argparse
import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from pathlib import Path

from device_runner.providers import CHIPS
from pipeline.partition.answer import ModelAnswer
from tests.ground_truth import ORACLE
from tests.npu_models import OPERATORS, PROCESSES, answered, by_hand, cell, difference, model_names

PATH = ORACLE / "ops.npu.jsonl.gz"
ASKED = ("SM8650", "SM8350", "SM8450", "SM8550", "SM8635", "SM8750", "SM8850")
"""A chip of each generation from V68 to V81, and SM8635, whose V73 computes no floats."""

BATCH = 200
"""Models between two times that answers are written."""

Answers = dict[str, dict[str, str]]
"""What became of models, by their names and by chips."""

LOADER = """
import ctypes, json, os, runpy, signal, sys
import numpy, onnxruntime, onnxruntime_qnn as qnn
for library in (qnn.get_qnn_htp_path(), qnn.get_library_path()):
    ctypes.CDLL(library)
print("ready", flush=True)
for line in sys.stdin:
    seconds, kind, subject, *arguments = json.loads(line)
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        sys.argv = [subject, *arguments]
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            runpy.run_module(subject, run_name="__main__") if kind == "-m" else exec(subject, {"__name__": "__main__"})
        finally:
            os._exit(1)
    print(os.waitpid(child, 0)[1], flush=True)
"""


class Loader:
    """Starts Python programs as forks of a process that has loaded the compiler: 0.1 s of processor each, not 0.8.

    That process itself makes no session, so that each program begins as in a process of its own.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", LOADER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout
        while b"ready" not in self._process.stdout.readline():
            assert self._process.poll() is None, "the compiler's packages cannot be imported"

    def run(self, command: list[str], *, timeout: float, **_: object) -> "subprocess.CompletedProcess[str]":
        """As `subprocess.run` of a Python program."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([timeout, *command[1:]]).encode() + b"\n")
        self._process.stdin.flush()
        code = os.waitstatus_to_exitcode(int(self._process.stdout.readline()))
        if code == -signal.SIGALRM:
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, code, "", "")


def fork_programs() -> None:
    """Let this process start its programs by a `Loader`."""
    subprocess.run = Loader().run  # type: ignore[assignment]


def recorded() -> Answers:
    """The answers that were recorded with this compiler; empty for another one."""
    if not PATH.is_file():
        return {}
    first, *lines = gzip.decompress(PATH.read_bytes()).splitlines()
    rows = [json.loads(line) for line in lines] if json.loads(first) == _compiler() else []
    return {row.pop("id"): row for row in rows}


def record(answers: Answers) -> None:
    """Write answers, in the order of their names."""
    lines = [json.dumps(_compiler()), *(json.dumps({"id": name, **answers[name]}) for name in sorted(answers))]
    PATH.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))


def _compiler() -> dict[str, str]:
    return {package: metadata.version(package) for package in ("onnxruntime-qnn", "onnxruntime")}


def asked(name: str, chips: Iterable[str], beside: str) -> tuple[str, dict[str, str], str]:
    """What becomes of a model on chips, and how the answer for the chip `beside` differs from a session by hand."""
    differing = ""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(OPERATORS) as opened:
            path = Path(opened.extract(name, folder))
        answers = {}
        for chip in chips:
            row = answered(path, chip)
            answers[chip] = text_of(row)
            if chip == beside:
                differing = difference(row, by_hand(path, chip), chip)
    return name, answers, differing


def text_of(row: ModelAnswer) -> str:
    """An answer without what depends on the computer: partitions and nodes, or why no session is made."""
    return "refused by ONNX Runtime" if row.error else cell(row)


def kind_of(text: str) -> str:
    """The kind of answers that a text belongs to."""
    if not text[0].isdigit():
        return text
    partitions, taken, nodes = (int(part) for part in text.replace("/", " ").replace("(", " ").rstrip(")").split())
    return "no node" if partitions == 0 else "wholly taken" if taken == nodes else "partly taken"


def table(answers: Mapping[str, Mapping[str, str]], chips: Iterable[str]) -> str:
    """How many models there are of each kind, a column for a chip."""
    counts = {chip: Counter(kind_of(row[chip]) for row in answers.values() if chip in row) for chip in chips}
    kinds = sorted({kind for count in counts.values() for kind in count}, key=lambda kind: (kind[:5] == "fails", kind))
    lines = ["| answer | " + " | ".join(f"V{CHIPS[chip].htp_arch} ({chip})" for chip in counts) + " |"]
    lines.append("|---|" + "---|" * len(counts))
    lines += [f"| {kind} | " + " | ".join(str(count[kind]) for count in counts.values()) + " |" for kind in kinds]
    return "\n".join(lines)


def main(*arguments: str) -> int:
    """Ask, print the table and what differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.npu_operators", description=__doc__)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--chips", default=",".join(ASKED), type=lambda text: text.split(","))
    parser.add_argument("--beside", default=ASKED[0], help="the chip whose answers are compared with sessions by hand")
    parser.add_argument("words", nargs="*")
    given = parser.parse_intermixed_args(arguments)
    os.environ["ORT_MOBILE_CACHE"] = tempfile.mkdtemp()  # no answer of another day
    known, answers, wrong = recorded(), recorded() if given.record else {}, []
    chosen = [name for name in model_names(OPERATORS) if not given.words or any(word in name for word in given.words)]
    waiting = {name: [chip for chip in given.chips if chip not in answers.get(name, {})] for name in chosen}
    with ProcessPoolExecutor(PROCESSES, initializer=fork_programs) as pool:
        futures = [pool.submit(asked, name, chips, given.beside) for name, chips in waiting.items() if chips]
        for number, future in enumerate(futures, start=1):
            name, row, differing = future.result()
            answers[name] = answers.get(name, {}) | row
            wrong += [f"{name} beside a session by hand: {differing}"] if differing else []
            if given.record and (number % BATCH == 0 or number == len(futures)):
                record(answers)
    shown = {name: row for name, row in answers.items() if name in waiting}
    for name, row in shown.items():
        wrong += [f"{name} on {chip}: {text}" for chip, text in row.items() if text == "fails (hang)"]
        before = known.get(name, row)
        wrong += [
            f"{name} on {chip}: {row[chip]}, recorded {before[chip]}"
            for chip in row.keys() & before.keys()
            if row[chip] != before[chip]
        ]
    print(table(shown, given.chips), *wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
