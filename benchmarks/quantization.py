"""Static quantization beside onnxruntime.quantization called by hand with the same data: time and peak memory.

Each measurement is a process of its own, from the model's file to the quantized file: seconds of CPU and by the clock,
imports included, and MB that it held at most. By hand means quant_pre_process (without symbolic shapes, which fail on
too many models) and quantize_static, as ONNX Runtime's documentation has it.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import bert_base, resnet50_wide

METHODS = ("minmax", "entropy", "percentile")
ROUNDS = {8: 2, 80: 1}
"""Samples, and how often each is measured: the best round counts."""
MOST_BYTES = 8 << 30
"""The stock calibration keeps all activations: a process that needs more memory fails, and the table says so."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one quantization took."""

    cpu_s: float
    wall_s: float
    peak_mb: float


def samples(name: str, count: int) -> Iterator[dict[str, Any]]:
    """The same inputs for both, one at a time."""
    random = np.random.default_rng(0)
    for _ in range(count):
        if name == "bert_base":
            yield {"x": random.integers(0, 30522, (1, 128))}
        else:
            yield {"x": random.standard_normal((1, 3, 224, 224)).astype(np.float32)}


def ours(path: Path, folder: Path, method: str, count: int) -> Path:
    """Through the pass static-qdq."""
    from pipeline.model.onnx_model import load_model
    from pipeline.model.sources import SourceModel
    from pipeline.passes.base import PassContext, Step
    from pipeline.passes.registry import run_passes
    from pipeline.passes.save import save_model

    context = PassContext(folder=folder, where=path.name, samples=lambda: samples(path.stem, count))
    model = load_model(SourceModel(path=str(path)), folder)
    made = run_passes(model, [Step(do="static-qdq", options={"method": method, "per_channel": True})], context).model
    save_model(made, folder / "ours.onnx")
    return folder / "ours.onnx"


def stock(path: Path, folder: Path, method: str, count: int) -> Path:
    """Through onnxruntime.quantization."""
    import onnxruntime.quantization as tools
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(tools.CalibrationDataReader):  # type: ignore[misc]
        """One sample after the other."""

        def __init__(self) -> None:
            self.left = samples(path.stem, count)

        def get_next(self) -> dict[str, Any] | None:
            """The next sample, None at the end."""
            return next(self.left, None)

    kinds = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
    quant_pre_process(str(path), str(folder / "prepared.onnx"), skip_symbolic_shape=True)
    tools.quantize_static(
        str(folder / "prepared.onnx"), str(folder / "stock.onnx"), Reader(), per_channel=True,
        activation_type=tools.QuantType.QUInt8, weight_type=tools.QuantType.QInt8,
        calibrate_method=tools.CalibrationMethod[kinds[method]],
    )  # fmt: skip
    return folder / "stock.onnx"


def measured(who: str, path: Path, method: str, count: int) -> Cost | None:
    """What one quantization takes in a process of its own; None when it runs out of memory."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        command = [sys.executable, "-m", "benchmarks.quantization", who, str(path), folder, method, str(count)]
        began = time.monotonic()
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        wall = time.monotonic() - began
    if done.returncode:
        if "MemoryError" in done.stderr or "bad_alloc" in done.stderr or "Failed to allocate" in done.stderr:
            return None
        raise RuntimeError(done.stderr)
    found = json.loads(done.stdout.splitlines()[-1])
    return Cost(cpu_s=found["cpu_s"], wall_s=wall, peak_mb=found["peak_mb"])


def child(chosen: argparse.Namespace) -> None:
    """Quantize once and print what it took, imports included."""
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    {"ours": ours, "stock": stock}[chosen.who](Path(chosen.model), Path(chosen.folder), chosen.method, chosen.count)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"cpu_s": used.ru_utime + used.ru_stime, "peak_mb": peak_mb()}))


def peak_mb() -> float:
    """What this process held at most. Not `ru_maxrss`: it begins with what the parent held when it started this one."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM:"))) / 1024


def best(costs: list[Cost | None]) -> Cost | None:
    """The least of each figure over rounds; None when one ran out of memory."""
    known = [cost for cost in costs if cost]
    if len(known) < len(costs):
        return None
    return Cost(
        cpu_s=min(cost.cpu_s for cost in known),
        wall_s=min(cost.wall_s for cost in known),
        peak_mb=min(cost.peak_mb for cost in known),
    )


def row(path: Path, method: str, count: int) -> str:
    """Both in turns, as a line of the table."""
    turns = [[measured(who, path, method, count) for who in ("ours", "stock")] for _ in range(ROUNDS[count])]
    a, b = (best([turn[place] for turn in turns]) for place in (0, 1))
    if a is None:
        raise RuntimeError(f"ours ran out of memory: {path.stem}, {method}, {count} samples")
    size = path.stat().st_size / 1e6
    own = f"{path.stem} | {size:.0f} | {method} | {count} | {a.cpu_s:.1f} | {a.wall_s:.1f} | {a.peak_mb:.0f}"
    times_model = f"{a.peak_mb * 1.048576 / size:.1f}"
    if b is None:
        return f"| {own} | {times_model} | out of {MOST_BYTES >> 30} GiB | - | - | - |"
    by_hand = f"{b.cpu_s:.1f} | {b.wall_s:.1f} | {b.peak_mb:.0f}"
    return f"| {own} | {times_model} | {by_hand} | {a.cpu_s / b.cpu_s:.2f} |"


def main() -> None:
    """Print CPU seconds, seconds by the clock and peak memory of each method on each model."""
    rounds = " and ".join(f"{count} of {samples} samples" for samples, count in ROUNDS.items())
    print(f"Per channel, u8 with s8; best of rounds in turns: {rounds}. The ratio is of CPU seconds.\n")
    print("| model | MB | method | samples | CPU s | clock s | peak MiB | x model "
          "| by hand CPU s | clock s | peak MiB | ratio |")  # fmt: skip
    print("|" + " --- |" * 12)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / "bert_base.onnx", Path(folder) / "resnet50.onnx"]
        bert_base(paths[0])
        resnet50_wide(paths[1], factor=1)
        for path in paths:
            for method in METHODS:
                for count in ROUNDS:
                    print(row(path, method, count), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("who", "model", "folder", "method"):
        parser.add_argument(name)
    parser.add_argument("count", type=int)
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    child(parser.parse_args())
