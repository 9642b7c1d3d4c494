"""Int8 products that ARM kernels get wrong: the marks of files, and what preflight says of them."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from device_runner.spec import RunOptions
from pipeline.compat.defects import Runtime, overflowing, weight_reader
from pipeline.compat.rules import findings_for, read_artifacts
from pipeline.core.errors import Severity
from pipeline.core.releases import Release
from pipeline.model.ort_format import OrtGraph, OrtModel, OrtNode, RuntimeOptimization, Tensor, read_ort
from pipeline.model.types import INT8
from tests.onnx_samples import parsed_nodes
from tests.ort_models import convert

S8, U8 = TensorProto.INT8, TensorProto.UINT8


def product(
    op: str, values: list[int], weights: np.ndarray[Any, Any], kind: int = S8, group: int = 0
) -> onnx.ModelProto:
    """One operator of int8 weights, by its quantized form or as MatMulInteger."""
    constants: dict[str, Any] = {"b": weights}
    inputs = ["a", "b"]
    if op != "MatMulInteger":
        constants |= {"s": np.float32(1), "z": np.int8(0), "za": np.uint8(0) if kind == U8 else np.int8(0)}
        inputs = ["a", "s", "za", "b", "s", "z", "s", "za"]
    result = TensorProto.INT32 if op == "MatMulInteger" else kind
    extra: dict[str, Any] = {"group": group} if group else {}
    graph = helper.make_graph(
        [helper.make_node(op, inputs, ["y"], name="product", **extra)], "g",
        [helper.make_tensor_value_info("a", kind, values)], [helper.make_tensor_value_info("y", result, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def found(model: onnx.ModelProto, folder: Path, *abis: str) -> list[tuple[Severity, str]]:
    target = folder / "m.ort"
    convert(model, target)
    read = read_artifacts({"m": target})
    return [
        (one.severity, one.what)
        for one in findings_for(read, "m", Runtime(release=Release(1, 29), abis=abis), RunOptions())
    ]


def column(*lowest: int, size: int = 32) -> np.ndarray[Any, Any]:
    weights = np.ones((size, 3), np.int8)
    weights[list(lowest), 1] = -128
    return weights


@pytest.mark.parametrize(
    ("lowest", "marked"), [((0, 8), True), ((23, 31), True), ((0, 7), False), ((8, 16), False), ((5,), False)]
)
def test_two_lowest_weights_eight_apart_in_a_block_of_sixteen(
    lowest: tuple[int, ...], marked: bool, tmp_path: Path
) -> None:
    """Measured with android:1.29.0 on a Cortex-A53: 16 of the 496 pairs of 32 weights are wrong, none on an A76."""
    for op in ("MatMulInteger", "QLinearMatMul"):
        told = found(product(op, [2, 32], column(*lowest)), tmp_path, "arm64-v8a", "x86_64")
        assert [severity for severity, _ in told] == [Severity.WARNING] * marked
        assert all("without dot product" in what and "(product)" in what for _, what in told)


def test_other_processors_are_not_concerned(tmp_path: Path) -> None:
    assert found(product("QLinearMatMul", [2, 32], column(0, 8)), tmp_path, "x86_64") == []
    assert found(product("QLinearMatMul", [2, 32], column(0, 8)), tmp_path) == []


def test_unsigned_values_are_made_signed_by_the_kernel(tmp_path: Path) -> None:
    """Measured on a Cortex-A53: values of 0 by these weights are 65,536 off; uint8 weights are right."""
    assert len(found(product("QLinearMatMul", [2, 32], column(0, 8), U8), tmp_path, "arm64-v8a")) == 1
    assert found(product("MatMulInteger", [2, 32], column(0, 8).astype(np.uint8)), tmp_path, "arm64-v8a") == []
    odd = product("MatMulInteger", [1, 20], column(size=20), U8)
    assert found(odd, tmp_path, "armeabi-v7a") == []


def convolution(place: tuple[slice | int, ...], *, group: int = 1) -> onnx.ModelProto:
    weights = np.ones((8, 8 // group, 3, 3), np.int8)
    weights[place] = -128
    return product("QLinearConv", [1, 8, 6, 6], weights, group=group)


def test_a_convolution_sums_channels_last(tmp_path: Path) -> None:
    beside, far = (3, 2, 0, slice(0, 2)), (3, slice(0, 2), 0, 0)
    assert len(found(convolution(beside), tmp_path, "arm64-v8a")) == 1
    assert found(convolution(far), tmp_path, "arm64-v8a") == []
    assert found(convolution((3, 0), group=8), tmp_path, "arm64-v8a") == []


@pytest.mark.parametrize(
    ("rows", "depth", "marked"), [(1, 20, True), (3, 17, True), (2, 20, False), (3, 32, False), (1, 16, False)]
)
def test_odd_rows_in_the_32_bit_library(rows: int, depth: int, marked: bool, tmp_path: Path) -> None:
    told = found(product("MatMulInteger", [rows, depth], column(size=depth)), tmp_path, "arm64-v8a", "armeabi-v7a")
    assert [severity for severity, _ in told] == [Severity.WARNING] * marked
    assert found(product("MatMulInteger", [rows, depth], column(size=depth)), tmp_path, "arm64-v8a") == []


def test_replayed_fusions_count_where_an_app_replays_them(tmp_path: Path) -> None:
    """Runtime style keeps the float operators: they become int8 products when the file is loaded."""
    constants: dict[str, Any] = {"b": column(0, 8), "s": np.float32(1), "z": np.int8(0)}
    nodes = parsed_nodes("""
        da = DequantizeLinear (a, s, z)  db = DequantizeLinear (b, s, z)  [product] m = MatMul (da, db)
        y = QuantizeLinear (m, s, z)""")
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("a", S8, [2, 32])], [helper.make_tensor_value_info("y", S8, [2, 3])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    target = convert(model, tmp_path / "m.ort")
    kept = read_ort(target)
    record = RuntimeOptimization("QDQSelectorActionTransformer", "MatMul", (0, 1, 2, 3), (":QLinearMatMul:10",))
    shown = msgspec.structs.replace(kept.graph, runtime_optimizations=(record,))
    recorded = msgspec.structs.replace(kept, graph=shown)
    found = {(one is recorded, r): overflowing(one, weight_reader(target), replayed=r)
             for one in (kept, recorded) for r in (False, True)}  # fmt: skip
    assert found == {(False, False): "", (False, True): "", (True, False): "", (True, True): "product"}


def test_damaged_weights_are_not_looked_at() -> None:
    """A file whose weights are not of their shape's size, and a convolution of a matrix: nothing is read."""
    one = OrtNode(
        index=0, name="", op_type="QLinearConv", domain="", since_version=10, inputs=("x", "s", "z", "w"),
        outputs=(), implicit_inputs=(), attributes={}, provider="",
    )  # fmt: skip
    for dims, length in (((4, 4, 3, 3), 7), ((4, 4), 16)):
        constants = {"x": Tensor("x", (), INT8), "w": Tensor("w", dims, INT8, length=length)}
        graph = OrtGraph(
            inputs=(), outputs=(), nodes=(one,), node_args={}, initializers=constants, sparse_initializers={},
            runtime_optimizations=(),
        )  # fmt: skip
        model = OrtModel(format_version="6", ir_version=9, opset_import={"": 13}, graph=graph)
        assert overflowing(model, weight_reader(Path("/dev/null")), replayed=False) == ""
