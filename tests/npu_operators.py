"""Every one-operator model on Snapdragons of several generations, beside sessions by hand and the recorded answers.

`python -m tests.npu_operators [--record] [--chips SM8650,…] [WORD…]` (`nox -s npu_operators`) prints what became of
the models by chip, and ends with 1 where an answer differs from the recorded one or from a session by hand on the chip
of `--beside`, or the compiler hangs. Words are parts of models' names. `--record` writes answers to PATH, and goes on
where a sweep was stopped.
"""

import argparse
import json
import lzma
import os
import re
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

import msgspec

from device_runner.providers import CHIPS
from pipeline.partition.answer import ModelAnswer
from pipeline.providers.qnn.claims import CompilerAnswer
from tests.ground_truth import ORACLE
from tests.npu_models import OPERATORS, answered, by_hand, cell, difference, model_names

PATH = ORACLE / "ops.npu.jsonl.xz"
ASKED = ("SM8650", "SM8350", "SM8450", "SM8550", "SM8635", "SM8750", "SM8850")
"""A chip of each generation from V68 to V81, and SM8635, whose V73 computes no floats."""

NO_ANSWER = "refused by ONNX Runtime"
PROCESSES = 2

BATCH = 200
"""Models between two times that answers are written."""


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model on a chip: our answer without what depends on the computer, and what the compiler said, if asked."""

    id: str
    chip: str
    text: str
    compiler: CompilerAnswer | None = None


Answers = dict[str, dict[str, Row]]
"""Rows by models' names and chips."""

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


def recorded(compiler: Mapping[str, str] | None = None) -> Answers:
    """The answers that were recorded, with this compiler if one is named; empty where there are none."""
    first, *lines = lzma.decompress(PATH.read_bytes()).splitlines() if PATH.is_file() else [b"{}"]
    answers: Answers = {}
    if compiler and json.loads(first) != compiler:
        return answers
    for line in lines:
        row = msgspec.json.decode(line, type=Row)
        answers.setdefault(row.id, {})[row.chip] = row
    return answers


def record(answers: Answers) -> None:
    """Write answers, in the order of their names."""
    rows = (row for name in sorted(answers) for _, row in sorted(answers[name].items()))
    lines = [json.dumps(_compiler()).encode(), *(msgspec.json.encode(row) for row in rows)]
    PATH.write_bytes(lzma.compress(b"\n".join(lines)))


def _compiler() -> dict[str, str]:
    return {package: metadata.version(package) for package in ("onnxruntime-qnn", "onnxruntime")}


def asked(name: str, chips: Iterable[str], beside: str) -> tuple[str, dict[str, Row], str]:
    """What becomes of a model on chips, and how the answer for the chip `beside` differs from a session by hand."""
    differing = ""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(OPERATORS) as opened:
            path = Path(opened.extract(name, folder))
        rows = {}
        for chip in chips:
            os.environ["ORT_MOBILE_CACHE"] = f"{folder}/{chip}"
            answer = answered(path, chip)
            kept = next(
                Path(folder, chip).glob("npu/*[!r].json"), None
            )  # beside it lies KEY.answer.json, which is ours
            rows[chip] = Row(name, chip, text_of(answer), _plain(kept.read_bytes()) if kept else None)
            if chip == beside:
                differing = difference(answer, by_hand(path, chip), chip)
    return name, rows, differing


def _plain(kept: bytes) -> CompilerAnswer:
    """What the compiler said, without names of scratch folders and hashes of them."""
    return msgspec.json.decode(re.sub(rb"\d{10,}|/[\w/-]*/(?=asked-)", b"", kept), type=CompilerAnswer)


def text_of(row: ModelAnswer) -> str:
    """An answer without what depends on the computer: partitions and nodes, or why no session is made."""
    return NO_ANSWER if row.error else cell(row)


def kind_of(text: str) -> str:
    """The kind of answers that a text belongs to."""
    if not text[0].isdigit():
        return text
    partitions, taken, nodes = (int(part) for part in text.replace("/", " ").replace("(", " ").rstrip(")").split())
    return "no node" if partitions == 0 else "wholly taken" if taken == nodes else "partly taken"


def table(answers: Mapping[str, Mapping[str, Row]], chips: Iterable[str]) -> str:
    """How many models there are of each kind, a column for a chip."""
    counts = {chip: Counter(kind_of(row[chip].text) for row in answers.values() if chip in row) for chip in chips}
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
    known, answers, wrong = recorded(), recorded(_compiler()) if given.record else {}, []
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
        wrong += [f"{name} on {chip}: {answer.text}" for chip, answer in row.items() if answer.text == "fails (hang)"]
        before = known.get(name, row)
        wrong += [
            f"{name} on {chip}: {row[chip].text}, recorded {before[chip].text}"
            for chip in row.keys() & before.keys()
            if row[chip].text != before[chip].text
        ]
    print(table(shown, given.chips), *wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
