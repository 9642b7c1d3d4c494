"""Conversion side by side with ONNX Runtime's own tool: time, peak memory, and what the numeric check costs.

`python -m benchmarks.conversion [--small real.zip] [--large FOLDER] [--rounds 3] [--json FILE]`; without --small the
real models beside the checkout are taken where there are any, without --large the large models are made anew.

Every round runs all commands of a case one after the other, so that a slow minute of the machine meets them all. Ratios
are of medians. Peak memory is the resident memory of the whole process tree, file-backed pages included, seen every
10 ms (Linux only). `noise` is the spread of a fixed piece of work that is done in each round.
"""

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.models import write_large
from tests.ground_truth import ORACLE

SMALL_BYTES = 5 << 20
REAL_MODELS = ORACLE / "real.zip"
STOCK = ["-m", "onnxruntime.tools.convert_onnx_models_to_ort", "--enable_type_reduction"]
EIGHT = "none,basic,extended,all"
STOCK_TOOL, TWO, EIGHT_VARIANTS, CHECKED = "stock, 2 variants", "ours, 2 variants", "ours, 8 variants", "ours, checked"
OUTPUTS_DIFFER = 4
"""Exit code of a check that says no: quantized models of random weights amplify single steps beyond any tolerance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run of one command."""

    seconds: float
    peak_bytes: int


@dataclass(slots=True, kw_only=True)
class Case:
    """Models to convert, and what the commands took."""

    name: str
    path: Path
    model_bytes: int
    runs: dict[str, list[Sample]] = field(default_factory=dict)

    def seconds(self, command: str) -> float:
        """Median wall time."""
        return statistics.median(s.seconds for s in self.runs[command])

    def peak(self, command: str) -> float:
        """Median peak memory in bytes."""
        return statistics.median(s.peak_bytes for s in self.runs[command])


def commands(case: Case, output: Path) -> dict[str, list[str]]:
    """The command lines of a case; each writes to a folder of its own."""
    ours = ["-m", "pipeline", "convert", str(case.path), "--json", os.devnull, "--style", "fixed,runtime"]
    return {
        STOCK_TOOL: [*STOCK, "--output_dir", str(output / "stock"), str(case.path)],
        TWO: [*ours, "--level", "all", "--output", str(output / "two")],
        EIGHT_VARIANTS: [*ours, "--level", EIGHT, "--output", str(output / "eight")],
        CHECKED: [*ours, "--level", "all", "--check", "--output", str(output / "checked")],
    }


def tree_bytes(root: int) -> int:
    """Resident bytes of a process and all its descendants."""
    total, stack = 0, [root]
    while stack:
        pid = stack.pop()
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
            for task in Path(f"/proc/{pid}/task").iterdir():
                stack += map(int, (task / "children").read_text(encoding="ascii").split())
        except OSError:
            continue
    return total * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def watched(pid: int) -> Iterator[list[int]]:
    """Sees the memory of a process tree until the block ends; the peak is the list's only element."""
    peak, done = [0], threading.Event()

    def look() -> None:
        while not done.wait(0.01):
            peak[0] = max(peak[0], tree_bytes(pid))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def run(arguments: Sequence[str]) -> Sample:
    """Run a command of this Python to its end; its failure ends the benchmark."""
    start = time.perf_counter()
    with (
        subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process,
        watched(process.pid) as peak,
    ):
        _, complaint = process.communicate()
    seconds = time.perf_counter() - start
    if process.returncode not in (0, OUTPUTS_DIFFER):
        sys.exit(f"{' '.join(arguments)}\nexit {process.returncode}: {complaint.decode(errors='replace')[-2000:]}")
    return Sample(seconds=seconds, peak_bytes=peak[0])


def fixed_work() -> float:
    """Seconds for a piece of work that is always the same: what the machine's noise does to it, it does to all."""
    data = bytes(32 << 20)
    start = time.perf_counter()
    for _ in range(4):
        hashlib.sha256(data).digest()
    return time.perf_counter() - start


def measure(case: Case, rounds: int) -> float:
    """Fill the case's runs; the noise, as standard deviation over mean of the fixed work."""
    calibration = []
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            lines = list(commands(case, Path(folder)).items())
            for name, line in lines if number % 2 == 0 else reversed(lines):
                calibration.append(fixed_work())
                case.runs.setdefault(name, []).append(run(line))
                shutil.rmtree(folder, ignore_errors=True)
                Path(folder).mkdir(exist_ok=True)
    return statistics.stdev(calibration) / statistics.mean(calibration)


def small_case(source: Path, folder: Path) -> Case:
    """All models under SMALL_BYTES of an archive or folder, as one folder."""
    target = folder / "small"
    target.mkdir()
    if source.is_dir():
        for path in source.glob("*.onnx"):
            if path.stat().st_size < SMALL_BYTES:
                shutil.copy(path, target)
    else:
        with zipfile.ZipFile(source) as archive:
            for info in archive.infolist():
                if info.filename.endswith(".onnx") and info.file_size < SMALL_BYTES:
                    (target / Path(info.filename).name).write_bytes(archive.read(info))
    models = list(target.glob("*.onnx"))
    return Case(name=f"{len(models)} small", path=target, model_bytes=sum(m.stat().st_size for m in models))


def show(case: Case, noise: float) -> None:
    """One table a case."""
    print(f"\n{case.name}: {case.model_bytes / 1e6:.0f} MB, noise {100 * noise:.0f} %\n")
    print("| command | median s | of stock | peak MB | of the model |\n| --- | --- | --- | --- | --- |")
    for name in case.runs:
        taken, peak = case.seconds(name), case.peak(name)
        share, memory = taken / case.seconds(STOCK_TOOL), peak / case.model_bytes
        print(f"| {name} | {taken:.2f} | {share:.2f} | {peak / 1e6:.0f} | {memory:.2f} |")
    print(f"\nThe check costs {case.seconds(CHECKED) - case.seconds(TWO):.2f} s.", flush=True)


def main(arguments: Sequence[str] = ()) -> None:
    """Measure all cases and print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=Path, default=REAL_MODELS, help="archive or folder of real models")
    parser.add_argument("--large", type=Path, help="folder of the generated models; made where they are not there")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        cases = [small_case(options.small, Path(folder))] if options.small.exists() else []
        large = write_large(options.large or Path(folder, "large"))
        cases += [Case(name=path.stem, path=path, model_bytes=path.stat().st_size) for path in large]
        for case in cases:
            show(case, measure(case, options.rounds))
    if options.json:
        options.json.write_text(json.dumps([{**asdict(case), "path": case.path.name} for case in cases], indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
