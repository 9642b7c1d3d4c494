"""Claims beside the stock usability checker: agreement with real builds on real models, time, growth with nodes.

The ground truth is that of tests/ground_truth (real.zip, ONNX Runtime 1.23.2); best run with that wheel, whose shapes
the labels saw. A model counts as right when the number of claimed nodes and of partitions are those of the real build.
"""

import logging
import statistics
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

SETTINGS = {"nnapi30@basic": "NNAPI", "coreml-nn7@basic": "CoreML NN", "coreml-mlprogram7@basic": "CoreML MLProgram"}
GROWTH_NODES = (1_000, 3_000, 10_000)


def stock_checks() -> dict[str, Callable[[Any, bool], Any]]:
    """The stock checker's function for each provider."""
    from onnxruntime.tools.mobile_helpers import usability_checker as stock

    return {
        "NNAPI": stock.check_nnapi_partitions,
        "CoreML NN": lambda m, fixed: stock.check_coreml_partitions(m, fixed, "coreml_supported_neuralnetwork_ops.md"),
        "CoreML MLProgram": lambda m, fixed: stock.check_coreml_partitions(
            m, fixed, "coreml_supported_mlprogram_ops.md"
        ),
    }


def stock_counts(path: Path, check: Callable[[Any, bool], Any], folder: Path) -> tuple[int, int] | None:
    """Claimed nodes and partitions as the stock checker has them, after level basic; None when it fails."""
    from onnxruntime.tools.mobile_helpers import usability_checker as stock
    from onnxruntime.tools.onnx_model_utils import ModelProtoWithShapeInfo

    optimized = folder / "optimized.onnx"
    try:
        stock.optimize_model(path, optimized, use_external_initializers=False)
        found = check(ModelProtoWithShapeInfo(optimized).model_with_shape_info, True)
    except Exception:  # noqa: BLE001 - whatever it raises is a model that it cannot judge
        return None
    return found.num_supported_nodes, found.num_partitions


def agreement() -> None:
    """Print how many real models each tool has right, and the median time for one."""
    from pipeline.model.sources import SourceModel
    from pipeline.partition.judge import judge
    from tests.ground_truth import ORACLE
    from tests.oracle_agreement import labels, request_for

    logging.disable(logging.ERROR)
    print("| provider | models | ours right | stock checker right | ours ms | stock ms |")
    print("| --- | --- | --- | --- | --- | --- |")
    for setting, name in SETTINGS.items():
        rows = [row for (s, _), row in labels(ORACLE, "real", "1.23").items() if s == setting and row["error"] is None]
        right, times = {"ours": 0, "stock": 0}, {"ours": [0.0], "stock": [0.0]}
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(ORACLE / "real.zip") as packed:
            for row in rows:
                path = Path(packed.extract(f"{row['id']}.onnx", folder))
                truth = (sum(map(len, row["claim"])), len(row["claim"]))
                start = time.perf_counter()
                answer = judge(request_for(SourceModel(path=str(path)), setting, "1.23"))
                middle = time.perf_counter()
                theirs = stock_counts(path, stock_checks()[name], Path(folder))
                times["stock"].append(time.perf_counter() - middle)
                times["ours"].append(middle - start)
                right["ours"] += truth == (answer.claimed, len(answer.partitions))
                right["stock"] += truth == theirs
                path.unlink()
        shares = [f"{right[who]} ({right[who] / len(rows):.0%})" for who in ("ours", "stock")]
        medians = [f"{statistics.median(times[who][1:]) * 1e3:.0f}" for who in ("ours", "stock")]
        print(f"| {name} | {len(rows)} | {' | '.join(shares)} | {' | '.join(medians)} |", flush=True)
    logging.disable(logging.NOTSET)


def chain(nodes: int) -> bytes:
    """A model of that many nodes with branches, of which every seventh is refused."""
    from onnx import TensorProto, helper

    made = []
    for number in range(nodes):
        kind = "Erf" if number % 7 == 6 else ("Relu", "Sigmoid", "Tanh")[number % 3]
        made.append(helper.make_node(kind, [f"v{max(0, number - number % 3)}"], [f"v{number + 1}"], name=f"n{number}"))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in ("v0", f"v{nodes}")]
    graph = helper.make_graph(made, "chain", ends[:1], ends[1:])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)])
    content: bytes = model.SerializeToString()
    return content


def growth() -> None:
    """Print the time for models of 1,000 to 10,000 nodes, loading included."""
    from pipeline.model.sources import SourceModel
    from pipeline.partition.answer import make_settings
    from pipeline.partition.judge import PartitionRequest, judge

    print("\n| nodes | seconds (median of 3) | ms a node |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for nodes in GROWTH_NODES:
            path = Path(folder) / "chain.onnx"
            path.write_bytes(chain(nodes))
            request = PartitionRequest(source=SourceModel(path=str(path)), settings=make_settings("nnapi"))
            taken = []
            for _ in range(3):
                start = time.perf_counter()
                answer = judge(request)
                taken.append(time.perf_counter() - start)
                assert answer.nodes == nodes, answer.error
            seconds = statistics.median(taken)
            print(f"| {nodes} | {seconds:.2f} | {seconds / nodes * 1e3:.2f} |", flush=True)


def main() -> None:
    """Both tables."""
    agreement()
    growth()


if __name__ == "__main__":
    main()
