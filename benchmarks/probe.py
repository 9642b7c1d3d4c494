"""What the probe adds to an inference, and how soon it has made its first one, beside onnxruntime's own Python.

The loop is measured in one process, bare Run calls and the probe's own loop in alternating blocks of a null model
(one Identity of four floats, one thread), in processor time. Times to the first inference are of
whole fresh processes, in alternating rounds: the probe's from its start to its end, Python's with its imports; and
from the moment on at which the library is loaded (session and first run), as both report it themselves.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from device_runner.build import SOURCES, STANDARD, build_probe, units
from device_runner.local import wheel_library
from device_runner.probe.protocol import ProbeAnswer, decode_answer, encode_request
from device_runner.spec import OptimizationLevel, RunOptions, RunSpec

BLOCK = 5_000
ROUNDS = 15

PYTHON = """
import json, sys, time
import numpy, onnxruntime
feeds = json.loads(sys.argv[2])
start = time.perf_counter_ns()
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
feeds = {name: numpy.zeros(shape, numpy.float32) for name, shape in feeds.items()}
session.run(None, feeds)
print(time.perf_counter_ns() - start)
"""


def null_model(folder: Path) -> Path:
    """One Identity of four floats."""
    import onnx
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "null", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "null.onnx")
    return folder / "null.onnx"


def perceptron(folder: Path) -> Path:
    """Eight MatMul and Relu of 512 wide: 8 MB of weights, so that loading is work."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((512, 512)).astype(np.float32), f"w{layer}") for layer in range(8)
    ]
    nodes = []
    for layer in range(8):
        nodes.append(helper.make_node("MatMul", ["x" if layer == 0 else f"r{layer - 1}", f"w{layer}"], [f"m{layer}"]))
        nodes.append(helper.make_node("Relu", [f"m{layer}"], [f"r{layer}"]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 512]) for name in ("x", "r7")]
    graph = helper.make_graph(nodes, "mlp", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "mlp.onnx")
    return folder / "mlp.onnx"


def request_file(folder: Path, model: Path, min_runs: int) -> Path:
    """A request for one thread, no warm-up."""
    options = RunOptions(intra_op_threads=1, optimization_level=OptimizationLevel.ALL)
    spec = RunSpec(
        id="bench", model=str(model), library=str(wheel_library()), options=options, warmup=0, min_runs=min_runs,
        min_seconds=0.0,
    )  # fmt: skip
    path = folder / f"request-{model.stem}-{min_runs}"
    path.write_bytes(encode_request(spec))
    return path


def build_loop(folder: Path) -> Path:
    """The probe with another main, which includes two units: the defaults and the steps are private to them."""
    program = folder / "probe_loop"
    others = [str(unit) for unit in units() if unit.name not in ("probe.c", "stages.c")]
    sources = [str(Path(__file__).with_name("probe_loop.c")), *others]
    command = ["cc", *STANDARD, "-Werror", "-O2", f"-I{SOURCES}", "-o", str(program), *sources, "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return program


def show_loop(folder: Path) -> None:
    """What the timed loop adds."""
    program = build_loop(folder)
    request = request_file(folder, null_model(folder), BLOCK)
    done = subprocess.run([program, request], capture_output=True, text=True, check=True)
    bare, loop, noted = zip(*(map(float, line.split()) for line in done.stdout.splitlines()), strict=True)
    added = [whole - alone for whole, alone in zip(loop, bare, strict=True)]
    print(f"Null model, {len(bare)} rounds of {BLOCK} inferences each way, nanoseconds per inference:\n")
    print("| what | median | min | max |\n| --- | --- | --- | --- |")
    rows = {
        "bare Run calls": bare,
        "the probe's loop": loop,
        "added by the loop": added,
        "median latency that it noted": noted,
    }
    for name, values in rows.items():
        print(f"| {name} | {statistics.median(values):.0f} | {min(values):.0f} | {max(values):.0f} |")


def timed(command: list[str]) -> tuple[float, bytes]:
    """Milliseconds of a fresh process, and its output."""
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, check=True)
    return (time.perf_counter() - start) * 1e3, done.stdout


def first_inference(folder: Path, model: Path, shape: list[int]) -> dict[str, list[float]]:
    """Milliseconds to the first inference, by row of the table."""
    request = request_file(folder, model, 0)
    probe = [str(build_probe()), str(request)]
    python = [sys.executable, "-c", PYTHON, str(model), json.dumps({"x": shape})]
    rows: dict[str, list[float]] = {name: [] for name in ("probe, process", "Python, process", "probe", "Python")}
    for _ in range(ROUNDS):
        whole, document = timed(probe)
        answer = decode_answer(document)
        assert isinstance(answer, ProbeAnswer), answer
        rows["probe, process"].append(whole)
        rows["probe"].append((answer.load_ns + answer.first_run_ns) / 1e6)
        whole, said = timed(python)
        rows["Python, process"].append(whole)
        rows["Python"].append(int(said) / 1e6)
    return rows


def main() -> None:
    """Print both tables."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        show_loop(folder)
        print(f"\nMilliseconds to the end of the first inference, {ROUNDS} alternating rounds:\n")
        print("| model | what | median | min |\n| --- | --- | --- | --- |")
        for model, shape in ((null_model(folder), [1, 4]), (perceptron(folder), [1, 512])):
            for row, values in first_inference(folder, model, shape).items():
                print(f"| {model.stem} | {row} | {statistics.median(values):.2f} | {min(values):.2f} |")


if __name__ == "__main__":
    main()
