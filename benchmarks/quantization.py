"""Static quantization beside onnxruntime.quantization called by hand with the same data: time and peak memory.

Each measurement is a process of its own, from the model's file to the quantized file: seconds of CPU, imports included,
and MB that it held at most. By hand means quant_pre_process (without symbolic shapes, which fail on too many
models) and quantize_static, as ONNX Runtime's documentation has it.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import bert_base, resnet50_wide

ROUNDS = 3
METHODS = ("minmax", "entropy", "percentile")
SAMPLES = (5, 20, 80)
STOCK_MOST_MB = 3_000
"""The stock calibration keeps all activations: it is not run where it would need more."""


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


def measured(who: str, path: Path, method: str, count: int) -> tuple[float, float]:
    """CPU seconds and peak MB of one quantization, in a process of its own."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        command = [sys.executable, "-m", "benchmarks.quantization", who, str(path), folder, method, str(count)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return found["seconds"], found["peak_mb"]


def child(chosen: argparse.Namespace) -> None:
    """Quantize once and print what it took, imports included."""
    made = {"ours": ours, "stock": stock}[chosen.who](
        Path(chosen.model), Path(chosen.folder), chosen.method, chosen.count
    )
    used = resource.getrusage(resource.RUSAGE_SELF)
    figures = {"seconds": used.ru_utime + used.ru_stime, "peak_mb": peak_mb(), "bytes": made.stat().st_size}
    print(json.dumps(figures))


def peak_mb() -> float:
    """What this process held at most. Not `ru_maxrss`: it begins with what the parent held when it started this one."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM:"))) / 1024


def times(paths: list[Path], count: int = 8) -> None:
    """Print CPU time and memory of each method on each model, best of the rounds, in turns."""
    print(f"\nPer channel, u8 with s8, {count} samples, best of {ROUNDS} rounds in turns; CPU seconds, peak MB:\n")
    print("| model | MB | method | ours s | by hand s | ratio | ours MB | by hand MB |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for path in paths:
        for method in METHODS:
            rounds = [[measured(who, path, method, count) for who in ("ours", "stock")] for _ in range(ROUNDS)]
            (a, a_mb), (b, b_mb) = ((min(r[k][0] for r in rounds), min(r[k][1] for r in rounds)) for k in (0, 1))
            cells = f"{path.stat().st_size / 1e6:.0f} | {method} | {a:.1f} | {b:.1f} | {a / b:.2f}"
            print(f"| {path.stem} | {cells} | {a_mb:.0f} | {b_mb:.0f} |", flush=True)


def growth(path: Path) -> None:
    """Print peak memory at more and more samples."""
    print(f"\nPeak MB of {path.stem} ({path.stat().st_size / 1e6:.0f} MB) by samples:\n")
    print(f"| method | who | {' | '.join(map(str, SAMPLES))} |")
    print(f"| --- | --- |{' --- |' * len(SAMPLES)}")
    for method in METHODS[1:]:
        for who in ("ours", "stock"):
            found: list[float] = []
            for count in SAMPLES:
                if who == "stock" and found and found[-1] * count / SAMPLES[len(found) - 1] > STOCK_MOST_MB:
                    break
                found.append(measured(who, path, method, count)[1])
            cells = [f"{mb:.0f}" for mb in found] + ["not run"] * (len(SAMPLES) - len(found))
            print(f"| {method} | {who} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """All tables."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / "bert_base.onnx", Path(folder) / "resnet50.onnx"]
        bert_base(paths[0])
        resnet50_wide(paths[1], factor=1)
        times(paths)
        growth(paths[1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("who", "model", "folder", "method"):
        parser.add_argument(name)
    parser.add_argument("count", type=int)
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    child(parser.parse_args())
