"""Operator configs: one file of 3,000 nodes, and the union and proof over 1,000 artifacts, beside the stock tool."""

import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from onnx import ModelProto, TensorProto, helper

OPS = ("Relu", "Exp", "Abs", "Neg", "Sigmoid", "Tanh", "Sqrt", "Ceil", "Floor", "Erf", "Softplus", "Sign")
ARTIFACTS = 1000
DISTINCT = 20
ROUNDS = 5


def chain(length: int, offset: int = 0) -> ModelProto:
    """A chain of unary operators with names as long as exporters make them; `offset` picks other operators."""
    names = [f"/model/layers.{k}/block/activation/Output_{k}" for k in range(length + 1)]
    nodes = [
        helper.make_node(OPS[(k * (offset + 1)) % len(OPS)], [names[k]], [names[k + 1]], name=f"/model/layers.{k}/node")
        for k in range(length)
    ]
    shape = [1, 3, 224, 224]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in (names[0], names[-1])]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])


def save(model: ModelProto, target: Path) -> Path:
    """Convert without optimizations by the installed wheel."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = str(target)
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return target


def stock_config(paths: list[Path]) -> None:
    """What users have today: the wheel's own function, with types."""
    from onnxruntime.tools.ort_format_model import create_config_from_models

    with tempfile.TemporaryDirectory() as folder:
        create_config_from_models(paths, Path(folder) / "required.config", True)


def our_config(paths: list[Path]) -> None:
    """Read, join, write, parse again and prove for every artifact."""
    from pipeline.required_ops import covers, from_needs, parse, render, union_of
    from pipeline.required_ops.text import needs_of_artifacts

    found, errors = needs_of_artifacts(paths)
    required = parse(render(union_of(from_needs(needs, types=True) for needs in found.values())), "bench")
    if errors or any(covers(required, needs) for needs in found.values()):
        raise SystemExit("the config does not cover its own artifacts")


def median_seconds(work: Callable[[list[Path]], None], paths: list[Path]) -> float:
    """Median wall time of some rounds, after one to warm up."""
    times = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        work(paths)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def main() -> None:
    """Print the table."""
    logging.getLogger("ort_format_model.utils").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        large = [save(chain(3000), Path(folder) / "large.ort")]
        contents = [save(chain(75, k), Path(folder) / f"{k}.ort").read_bytes() for k in range(DISTINCT)]
        many = [Path(folder) / f"artifact{k}.ort" for k in range(ARTIFACTS)]
        for k, path in enumerate(many):
            path.write_bytes(contents[k % DISTINCT])
        print("| files | what | ours, s | stock, s | ratio |\n|---|---|---|---|---|")
        for name, paths in (("one of 3,000 nodes", large), (f"{ARTIFACTS:,} of 75 nodes", many)):
            ours, stock = median_seconds(our_config, paths), median_seconds(stock_config, paths)
            print(f"| {name} | config (ours also proven) | {ours:.3f} | {stock:.3f} | {ours / stock:.2f} |")


if __name__ == "__main__":
    main()
