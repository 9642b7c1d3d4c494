"""What of a file no WebGPU, no CUDA graph and no ARM kernel of int8 products takes, read without a library."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from device_runner.spec import RunOptions
from pipeline.compat.defects import Runtime, overflowing, weight_reader
from pipeline.compat.gpu import gpu_findings
from pipeline.compat.rules import check_artifact, facts_of, findings_for, read_artifacts
from pipeline.core.errors import Severity
from pipeline.core.releases import Release
from pipeline.model.ort_format import OrtGraph, OrtModel, OrtNode, RuntimeOptimization, Tensor, read_artifact, read_ort
from pipeline.model.types import INT8
from tests.command import ort_mobile
from tests.onnx_samples import parsed_nodes
from tests.ort_models import convert, parsed, residual


def test_quantized_activations_are_refused_with_their_copies(tmp_path: Path) -> None:
    model = parsed("""g (float[1, 4] x) => (float[1, 4] y) <float s = {0.1}, uint8 z = {128}> {
        a = Relu (x)  q = QuantizeLinear (a, s, z)  d = DequantizeLinear (q, s, z)  y = Sigmoid (d)
    }""")
    onnx.save(model, tmp_path / "m.onnx")
    (found,) = gpu_findings(tmp_path / "m.onnx", Release(1, 29), {}, "m")
    assert "QuantizeLinear 'q'" in found.what
    assert "copies per inference" in found.what
    assert "MatMulNBits" in found.remedy


@pytest.mark.parametrize(("dtype", "refused"), [("float16", True), ("float", False)])
def test_sums_of_squares_in_half_precision_are_refused(tmp_path: Path, dtype: str, refused: bool) -> None:
    onnx.save(parsed(f"g ({dtype}[1, 8] x) => ({dtype}[1, 1] y) {{ y = ReduceL2 (x) }}"), tmp_path / "m.onnx")
    rules = [finding.code for finding in gpu_findings(tmp_path / "m.onnx", Release(1, 29), {}, "m", half=True)]
    assert rules == ["webgpu-half-sums"] * refused


def test_types_that_a_file_does_not_say_are_asked_for(tmp_path: Path) -> None:
    ones = np.ones(4, np.float32)
    text = "g (float[1, 4] x) => (float[1, 4] y) { a = Relu (x)  y = BatchNormalization (a, s, b, m, v) }"
    model = parsed(text, s=ones, b=ones, m=ones, v=ones)
    assert not model.graph.value_info
    onnx.save(model, tmp_path / "m.onnx")
    rules = [row.code for row in gpu_findings(tmp_path / "m.onnx", Release(1, 29), {"preferredLayout": "NCHW"}, "m")]
    assert rules == ["webgpu-normalization"]


def test_a_file_that_a_gpu_computes_right_is_not_refused(tmp_path: Path) -> None:
    onnx.save(residual(), tmp_path / "m.onnx")
    nine = parsed(
        "g (float[1, 9, 6, 6] x) => (float[1, 4, 4, 4] y) { y = Conv (x, w) }", w=np.ones((4, 9, 3, 3), np.float32)
    )
    onnx.save(nine, tmp_path / "nine.onnx")
    assert list(gpu_findings(tmp_path / "nine.onnx", Release(1, 29), {"preferredLayout": "NCHW"}, "m")) == []
    for file in (tmp_path / "m.onnx", convert(tmp_path / "m.onnx", tmp_path / "m.ort", level="basic")):
        assert list(gpu_findings(file, Release(1, 29), {}, "m", half=False)) == []


@pytest.mark.parametrize(
    ("name", "remedy"), [("frist", "did you mean 'first'?"), ("none", "give names of nodes, one a line")]
)
def test_names_for_the_cpu_that_no_node_has_are_refused(tmp_path: Path, name: str, remedy: str) -> None:
    onnx.save(
        parsed("g (float[1, 4] x) => (float[1, 4] y) { [first] a = Relu (x)  y = Relu (a) }"), tmp_path / "m.onnx"
    )
    ort = convert(tmp_path / "m.onnx", tmp_path / "m.ort", level="none")
    for file in (tmp_path / "m.onnx", ort):
        fine = gpu_findings(file, Release(1, 29), {"forceCpuNodeNames": "first"}, "m")
        assert "webgpu-forced" not in [finding.code for finding in fine]
        found = next(gpu_findings(file, Release(1, 29), {"forceCpuNodeNames": f"first\n{name}"}, "m"))
        assert (found.code, found.remedy) == ("webgpu-forced", remedy)
        assert f"names {name!r}, and" in found.what
        for command in ("partition", "check"):
            error = ort_mobile(command, file, "--webgpu-options", f"forceCpuNodeNames={name}", code=1).err
            assert remedy in error


CAPTURING = {"cuda": "enable_cuda_graph", "tensorrt": "trt_cuda_graph_enable"}


def rules(file: Path, layout: str = "NHWC") -> list[str]:
    return [finding.code for finding in gpu_findings(file, Release(1, 29), {"preferredLayout": layout}, "m")]


@pytest.mark.parametrize(
    ("outputs", "group", "wrong"),
    [(12, 2, True), (24, 4, True), (50, 2, True), (24, 2, False), (24, 8, False), (12, 4, False), (12, 1, False)],
)
def test_outputs_of_groups_that_do_not_divide_as_all_do_are_wrong_in_nhwc(
    outputs: int, group: int, wrong: bool, tmp_path: Path
) -> None:
    model = parsed(
        f"g (float[1, 24, 4, 4] x) => (float[1, {outputs}, 2, 2] y) {{ y = Conv <group = {group}> (x, w) }}",
        w=np.ones((outputs, 24 // group, 3, 3), np.float32),
    )
    onnx.save(model, tmp_path / "m.onnx")
    assert rules(tmp_path / "m.onnx") == ["webgpu-groups"] * wrong
    assert rules(tmp_path / "m.onnx", "NCHW") == []


@pytest.mark.parametrize(
    ("ends", "garbage"),
    [
        ("int64[1, 1, 4, 4] y) { c = Conv (x, w)  y = ArgMax <axis = 1> (c)", True),
        ("int64[1, 4, 4] y) { c = Conv (x, w)  y = ArgMax <axis = 1, keepdims = 0> (c)", False),
        ("bool[1, 4, 4, 4] y) { c = Conv (x, w)  g = Greater (c, t)  y = Not (g)", True),
        ("float[1, 4, 4, 4] y) { c = Conv (x, w)  g = Greater (c, t)  y = Where (g, c, t)", False),
        ("uint8[1, 4, 3, 3] y) { c = MaxPool <kernel_shape = [4, 4]> (x)  a = Abs (c)  y = Cast <to = 2> (a)", True),
        ("int32[1, 4, 4, 4] y) { c = Conv (x, w)  y = Cast <to = 6> (c)", False),
        ("float[1, 4, 4, 4] y) { c = Conv (x, w)  d = DequantizeLinear (k, t)  y = Add (c, d)", True),
        ("float[1, 4, 4, 4] y) { c = Conv (x, w)  d = DequantizeLinear (k, t)  y = MatMul (c, d)", False),
    ],
)
def test_transposes_that_a_session_moves_to_the_cpu_need_an_onnx_file_or_nchw(
    ends: str, garbage: bool, tmp_path: Path
) -> None:
    constants = {"w": np.ones((4, 4, 3, 3), np.float32), "t": np.array(1, np.float32)}
    model = parsed(f"g (float[1, 4, 6, 6] x, uint8[1, 4, 4, 4] k) => ({ends} }}", 13, **constants)
    onnx.save(model, tmp_path / "m.onnx")
    file = convert(tmp_path / "m.onnx", tmp_path / "m.ort", level="basic")
    assert rules(file) == ["webgpu-moved"] * garbage
    assert rules(file, "NCHW") == rules(tmp_path / "m.onnx") == []


def test_a_dequantize_linear_before_a_conv_needs_an_onnx_file_or_nchw(tmp_path: Path) -> None:
    model = parsed(
        "g (uint8[1, 4, 6, 6] x) => (float[1, 4, 4, 4] y) { d = DequantizeLinear (x, s, z)  y = Conv (d, w) }",
        w=np.ones((4, 4, 3, 3), np.float32), s=np.array(0.1, np.float32), z=np.array(3, np.uint8), opset=13,
    )  # fmt: skip
    onnx.save(model, tmp_path / "m.onnx")
    file = convert(tmp_path / "m.onnx", tmp_path / "m.ort", level="basic")
    assert rules(file) == ["webgpu-moved"]
    assert rules(file, "NCHW") == rules(tmp_path / "m.onnx") == []
    assert "in ORT format: WebGPU fails at the first run" in ort_mobile("check", tmp_path / "m.onnx").out
    advised = ort_mobile("check", file).out
    assert "WebGPU, preferredLayout=NCHW" in advised
    assert "change what WebGPU fails on" not in advised
    assert "--webgpu-options preferredLayout=NCHW" in advised


@pytest.mark.parametrize(
    ("shape", "axis", "opset", "fails"),
    [("1, 1000, 1, 1", 1, 9, True), ("2, 3, 4, 5", 2, 11, True), ("2, 3, 4, 5", 3, 11, False),
     ("2, 8, 4, 4", 1, 11, False), ("1, 1000, 1, 1", 1, 13, False), ("1, 10", 1, 9, False)],
)  # fmt: skip
def test_an_old_softmax_over_several_axes_fails_where_the_last_does_not_divide(
    shape: str, axis: int, opset: int, fails: bool, tmp_path: Path
) -> None:
    text = f"g (float[{shape}] x) => (float[{shape}] y) {{ y = Softmax <axis = {axis}> (x) }}"
    onnx.save(parsed(text, opset=opset), tmp_path / "m.onnx")
    assert rules(tmp_path / "m.onnx") == ["webgpu-kernel"] * fails


def test_a_constant_in_half_precision_needs_a_gpu_with_it(tmp_path: Path) -> None:
    model = parsed("g (float[1, 4] x) => (float[1, 4] y) { y = Pow (x, e) }", e=np.array(3, np.float16))
    onnx.save(model, tmp_path / "m.onnx")
    for half, refused in ((False, True), (True, False)):
        told = [row.code for row in gpu_findings(tmp_path / "m.onnx", Release(1, 29), {}, "m", half=half)]
        assert told == ["webgpu-half"] * refused


@pytest.mark.parametrize(
    "text",
    ['(float[1, 1, 4, 4] x) => (float[1, 1, 2, 2] y) { y = Resize <mode = "cubic", antialias = 1> (x, , , z) }',
     "(float[1, 4] x, int64[k] s) => (int64[1] y) { r = Reshape (x, s)  y = ArgMax <axis = -1, keepdims = 0> (r) }"],
)  # fmt: skip
def test_what_a_kernel_lacks_is_refused(text: str, tmp_path: Path) -> None:
    constants = {"z": np.array([1, 1, 2, 2], np.int64)} if "z)" in text else {}
    onnx.save(parsed(f"g {text}", 18, **constants), tmp_path / "m.onnx")
    assert rules(tmp_path / "m.onnx") == ["webgpu-kernel"]


def test_a_second_output_of_max_pool_counts_without_a_name(tmp_path: Path) -> None:
    model = parsed("g (float[1, 1, 4, 4] x) => (float[1, 1, 2, 2] y) { y = MaxPool <kernel_shape = [3, 3]> (x) }")
    model.graph.node[0].output.append("")
    onnx.save(model, tmp_path / "m.onnx")
    assert rules(tmp_path / "m.onnx") == ["webgpu-kernel"]


GROUPS = "g (float[1, 12, 4, 4] x) => (float[1, 12, 2, 2] y) { y = Conv <group = 2> (x, w) }"
INDICES = """g (float[1, 1, 4, 4] x) => (float[1, 1, 2, 2] y, int64[1, 1, 2, 2] i) {
    y, i = MaxPool <kernel_shape = [3, 3]> (x)
}"""


@pytest.mark.parametrize(("text", "layout"), [(GROUPS, "preferredLayout=NCHW"), (INDICES, "")])
def test_what_is_refused_to_run_is_praised_nowhere(text: str, layout: str, tmp_path: Path) -> None:
    weights = {"w": np.ones((12, 6, 3, 3), np.float32)} if "w)" in text else {}
    onnx.save(parsed(text, 17, **weights), tmp_path / "m.onnx")
    (model,) = json.loads(ort_mobile("check", tmp_path / "m.onnx", "--json", "-").out)["models"]
    row = next(row for row in model["rows"] if row["ep"] == "webgpu")
    assert (row["as_is"]["verdict"], row["level"]) == ("yes" if layout else "no", layout)
    done = ort_mobile("partition", tmp_path / "m.onnx", "--ep", "webgpu", "--advise", code=0)
    assert "is refused at a run: WebGPU" in done.out
    assert "verdict: use the CPU" in done.out
    assert ("needs the setting --webgpu-options preferredLayout=NCHW" in done.out) == bool(layout)
    (answer,) = json.loads(ort_mobile("partition", tmp_path / "m.onnx", "--ep", "webgpu", "--json", "-").out)["models"]
    assert answer["load"]["at_run"]
    told = ort_mobile("convert", tmp_path / "m.onnx", "--ep", "webgpu", "--level", "basic", "--output", tmp_path).err
    assert ("remedy: open it with preferredLayout=NCHW" if layout else "why: so a run with it is refused") in told


BRANCHES = """(bool c, float[2] x) => (float[2] y) {
    y = If (c) <then_branch = t () => (float[2] a) { a = Relu (x) }, else_branch = e () => (float[2] b) { b = Neg (x) }>
}"""
COUNTS = "(float[2, 3] x) => (int64[2, n] y) { y = NonZero (x) }"
PLAIN = "(float[2, 3] x) => (float[2, 3] y) { y = Relu (x) }"


@pytest.mark.parametrize("provider", CAPTURING)
@pytest.mark.parametrize(
    ("text", "what", "why"),
    [(BRANCHES, "cannot capture If", "control flow"), (COUNTS, "cannot capture NonZero", "cannot change"),
     (PLAIN, "", "")],
)  # fmt: skip
def test_control_flow_and_changing_shapes_are_not_captured(
    text: str, what: str, why: str, provider: str, tmp_path: Path
) -> None:
    onnx.save(parsed(f"g {text}"), tmp_path / "m.onnx")
    runtime = Runtime(release=Release(1, 31), providers=frozenset({"cpu", *CAPTURING}), system="linux")
    for file in (tmp_path / "m.onnx", convert(tmp_path / "m.onnx", tmp_path / "m.ort", level="basic")):
        facts = msgspec.structs.replace(facts_of(read_artifact(file), file.name), file=str(file))
        for value in ("1", "0"):
            use = RunOptions(provider=provider, provider_options={CAPTURING[provider]: value})
            reasons = [f"{row.what}: {row.why}" for row in check_artifact(facts, runtime, use)]
            assert len(reasons) == (bool(what) and value == "1"), reasons
            assert all(what in reason and why in reason for reason in reasons)


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
