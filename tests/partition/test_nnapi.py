"""NNAPI's rules on small models; expected claims are those of a real build of 1.23.2 (ep_rules J)."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.onnx_samples import parsed_nodes
from tests.partition_samples import NNAPI, NNAPI_NCHW, answer, chain, claims, model, one, quantized, value

F32, I32, I64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64


@pytest.mark.parametrize(
    ("made", "claimed"),
    [
        (one("Cast", to=I32), True),
        (one("Cast", kind=I32, to=F32), False),
        (one("Cast", to=I64), False),
        (one("Relu", (1, 2, 1, 2, 1, 2)), True),
        (one("Relu", ("batch", 4)), False),
        (one("Relu", None), False),
        (one("Relu", kind=TensorProto.FLOAT16), False),
        (one("Sigmoid", ()), False),
        (one("Tanh", ()), True),
        (one("Softmax", (1, 1, 2, 2, 2), opset=11, axis=1), True),
        (one("Softmax", (1, 1, 2, 2, 2), opset=13), False),
        (one("Clip", constants={"low": np.float32(0), "high": np.float32(6)}), True),
        (one("Clip", constants={"low": np.float32(-1), "high": np.float32(1)}), True),
        (one("Clip", constants={"low": np.float32(0), "high": np.float32(5)}), False),
        (one("Clip", constants={"low": np.float32(0)}), False),
        (one("Gather", (3, 4), constants={"i": np.array([0, 1])}), True),
        (one("Pad", (1, 1, 4, 4), constants={"p": np.array([0, 0, 1, 1, 0, 0, 1, 1])}), True),
        (one("Pad", (1, 1, 4, 4), constants={"p": np.array([0, 0, 1, 1, 0, 0, 1, 1])}, mode="reflect"), False),
        (one("Pad", (1, 1, 4, 4), constants={"p": np.array([0, 0, -1, 1, 0, 0, 1, 1])}), False),
        (one("MatMul", (3, 4), constants={"b": np.ones((4, 5), np.float32)}), True),
        (one("MatMul", (2, 3, 4), constants={"b": np.ones((4, 5), np.float32)}), False),
        (one("MatMul", (2, 3, 4), constants={"b": np.ones((2, 4, 5), np.float32)}), True),
        (one("MatMul", (2, 3, 4), constants={"b": np.ones((1, 4, 5), np.float32)}), False),
        (one("Add", (0, 4), constants={"b": np.ones((4,), np.float32)}), True),
        (one("Add", (1, 1, 1, 1, 4), constants={"b": np.ones((4,), np.float32)}), False),
        (one("MaxPool", kernel_shape=[2, 2]), True),
        (one("MaxPool", kernel_shape=[2, 2], ceil_mode=1), False),
        (one("MaxPool", (1, 4, 6), kernel_shape=[2]), False),
        (one("DepthToSpace", blocksize=2, mode="CRD"), False),
        (one("Erf"), False),
    ],
)  # fmt: skip
def test_one_operator(made: onnx.ModelProto, claimed: bool, tmp_path: Path) -> None:
    assert claims(made, tmp_path, NNAPI) == ([{"y"}] if claimed else [])


@pytest.mark.parametrize(
    ("bias", "claimed"), [((5,), True), ((1, 5), True), ((3, 5), False), ((1,), False), ((), False)]
)
def test_gemm_bias(bias: tuple[int, ...], claimed: bool, tmp_path: Path) -> None:
    constants = {"b": np.ones((4, 5), np.float32), "c": np.ones(bias, np.float32)}
    assert bool(claims(one("Gemm", (3, 4), constants=constants), tmp_path)) is claimed


@pytest.mark.parametrize(
    ("level", "mode", "claimed"),
    [(29, "half_pixel", False), (30, "half_pixel", True), (29, "asymmetric", True), (28, "asymmetric", False)],
)
def test_resize_by_level(level: int, mode: str, claimed: bool, tmp_path: Path) -> None:
    made = one(
        "Resize", (1, 2, 4, 4), inputs=["x", "", "s"], mode="linear", coordinate_transformation_mode=mode,
        constants={"s": np.array([1, 1, 2, 2], np.float32)},
    )  # fmt: skip
    assert bool(claims(made, tmp_path, msgspec.structs.replace(NNAPI, api_level=level))) is claimed


@pytest.mark.parametrize(("scales", "claimed"), [((0.5, 0.5), True), ((0.5, 1), False), ((0.3, 0.3), False)])
def test_resize_shrinks_by_divisors(scales: tuple[float, float], claimed: bool, tmp_path: Path) -> None:
    made = one(
        "Resize", (1, 2, 4, 4), inputs=["x", "", "s"], mode="nearest", nearest_mode="floor",
        coordinate_transformation_mode="asymmetric", constants={"s": np.array([1, 1, *scales], np.float32)},
    )  # fmt: skip
    assert bool(claims(made, tmp_path, NNAPI_NCHW)) is claimed


@pytest.mark.parametrize(
    ("ops", "groups"),
    [
        (("Identity",), []),
        (("Flatten",), []),
        (("Identity", "Identity"), [{"y0", "y1"}]),
        (("Flatten", "Relu"), [{"y0", "y1"}]),
        (("Relu", "Erf", "Relu", "Tanh"), [{"y0"}, {"y2", "y3"}]),
    ],
)
def test_vetoes_and_cuts(ops: tuple[str, ...], groups: list[set[str]], tmp_path: Path) -> None:
    assert claims(chain(*ops), tmp_path) == groups


@pytest.mark.parametrize(
    ("op", "group"), [("Transpose", {"d", "r", "q"}), ("Sigmoid", None), ("MaxPool", None), ("Softmax", None)]
)
def test_qdq_groups(op: str, group: set[str] | None, tmp_path: Path) -> None:
    extra: dict[str, Any] = {"kernel_shape": [2, 2]} if op == "MaxPool" else {}
    made = quantized([helper.make_node(op, ["d"], ["r"], **extra)])
    assert claims(made, tmp_path, NNAPI_NCHW) == ([group] if group else [])


def test_dequantize_before_a_refused_group_operator_is_claimed_alone(tmp_path: Path) -> None:
    nodes = parsed_nodes("d = DequantizeLinear (x, s, z)  y = Sigmoid (d)")
    made = model(nodes, [value("x", (1, 4), TensorProto.UINT8)], ["y"], {"s": np.float32(1), "z": np.uint8(0)})
    assert claims(made, tmp_path) == [{"d", "y"}]


@pytest.mark.parametrize(("zero_point", "size"), [(0, 5), (3, 5)])
def test_redundant_relu_belongs_to_the_unit(zero_point: int, size: int, tmp_path: Path) -> None:
    """With the type's minimum as zero point one unit of five nodes, else five single nodes in one group."""
    nodes = parsed_nodes("e = DequantizeLinear (x1, scale, zero)  a = Add (d, e)  r = Relu (a)")
    made = quantized(nodes, zero_point=zero_point)
    made.graph.input.append(value("x1", (1, 4, 6, 6), TensorProto.UINT8))
    (group,) = claims(made, tmp_path)
    assert len(group) == size


@pytest.mark.parametrize(
    ("bounds", "zero_point", "arm", "x86"),
    [
        ((0.0, None), 0, True, False),
        ((0.0, 1e30), 0, True, False),
        ((0.0, 127.5), 0, True, True),
        ((0.0, 127.0), 0, False, False),
        ((None, None), 0, True, False),
        ((-64.0, None), 128, False, False),
        ((-64.0, None), -128, True, True),
        ((-64.0, None), -1, True, True),
        ((None, 63.5), -1, False, False),
    ],
)
def test_a_clip_is_part_of_the_unit_where_quantizing_cuts_as_much(
    bounds: tuple[float | None, ...], zero_point: int, arm: bool, x86: bool, tmp_path: Path
) -> None:
    """Measured on both ABIs of android:1.29.0: a bound beyond int32 is its limit on ARM, the lowest number on x86.

    Adding the zero point then wraps around. Of a unit all or, for int8, nothing is claimed, else the Add alone.
    """
    kind = np.int8 if zero_point < 0 else np.uint8
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), (1, 4)) for name in "xy"
    ]
    given = {name: np.float32(bound) for name, bound in zip(("low", "high"), bounds, strict=True) if bound is not None}
    nodes = [
        *parsed_nodes("""
            d = DequantizeLinear (x, scale, zero)  e = DequantizeLinear (y, scale, zero)  a = Add (d, e)"""),
        helper.make_node("Clip", ["a", *(name if name in given else "" for name in ("low", "high"))], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "scale", "zero"], ["q"]),
    ]
    made = model(nodes, inputs, ["q"], {"scale": np.float32(0.5), "zero": kind(zero_point), **given})
    for abi, redundant in (("arm64-v8a", arm), ("armeabi-v7a", arm), ("x86_64", x86), ("x86", x86)):
        groups = claims(made, tmp_path, msgspec.structs.replace(NNAPI, abi=abi))
        assert redundant != any("a" in group and "c" not in group for group in groups), abi


def test_shared_dequantize_is_copied_for_each_consumer(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["d"]),
        *(helper.make_node("Relu", ["d"], [f"y{i}"]) for i in range(3)),
    ]
    constants = {"s": np.float32(1), "z": np.uint8(0)}
    made = model(nodes, [value("x", (1, 4), TensorProto.UINT8)], ["y0", "y1", "y2"], constants)
    assert claims(made, tmp_path) == [{"d", "d/duplicated", "d/duplicated_token_0", "y0", "y1", "y2"}]


def test_u8_transpose_needs_its_producer_in_the_same_wave(tmp_path: Path) -> None:
    alone = model(parsed_nodes("y = Transpose <perm = [1, 0]> (x)"), [value("x", (2, 3), TensorProto.UINT8)], ["y"])
    assert claims(alone, tmp_path, NNAPI_NCHW) == []
    nodes = parsed_nodes("q = QuantizeLinear (x, s, z)  y = Transpose <perm = [1, 0]> (q)")
    behind = model(nodes, [value("x", (2, 3))], ["y"], {"s": np.float32(1), "z": np.uint8(0)})
    assert claims(behind, tmp_path, NNAPI_NCHW) == [{"q", "y"}]


def test_opset_window_of_the_layout_transformation(tmp_path: Path) -> None:
    old = chain("Relu", opset=6)
    assert claims(old, tmp_path, NNAPI) == []
    assert claims(old, tmp_path, NNAPI_NCHW) == [{"y0"}]


@pytest.mark.parametrize(("release", "claimed"), [((1, 22), False), ((1, 23), True), ((1, 28), True)])
def test_opset_22_pooling_by_release(release: tuple[int, int], claimed: bool, tmp_path: Path) -> None:
    made = one("GlobalAveragePool", opset=22)
    assert bool(claims(made, tmp_path, msgspec.structs.replace(NNAPI, ort_release=release))) is claimed


def test_stop_operators_leave_all_that_follows_to_the_cpu(tmp_path: Path) -> None:
    made = chain("Relu", "Sigmoid", "Relu")
    assert claims(made, tmp_path, msgspec.structs.replace(NNAPI, stop_ops=("Sigmoid",))) == [{"y0"}]
    assert claims(made, tmp_path, msgspec.structs.replace(NNAPI, stop_ops=())) == [{"y0", "y1", "y2"}]


def test_local_functions_are_inlined_before_the_question(tmp_path: Path) -> None:
    body = parsed_nodes("t = Relu (a)  b = Atan (t)")
    function = helper.make_function("local", "F", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    nodes = parsed_nodes("y0 = local.F (x)  y1 = local.F (y0)")
    made = model(nodes, [value("x", (1, 4))], ["y1"], functions=[function], domains=["local"])
    assert claims(made, tmp_path) == [{"_inlfunc_F_t"}, {"_inlfunc_F_token_0_t"}]


def test_local_functions_are_inlined_in_bodies_inside_bodies(tmp_path: Path) -> None:
    """Nodes that come of a call stand in its place there, with names that no graph around has."""
    body = parsed_nodes("t = Relu (a)  b = Atan (t)")
    function = helper.make_function("local", "F", ["a"], ["b"], body, [helper.make_opsetid("", 17)])

    def branching(inner: list[onnx.NodeProto], name: str) -> onnx.NodeProto:
        call = helper.make_node("F", ["x"], [f"{name}_f"], domain="local")
        behind = helper.make_node("Relu", [f"{name}_f"], [f"{name}_out"])
        graph = helper.make_graph([call, behind, *inner], name, [], [value(f"{name}_out", (1, 4))])
        return helper.make_node("If", ["c"], [f"{name}_y"], then_branch=graph, else_branch=graph)

    nodes = [helper.make_node("F", ["x"], ["y0"], domain="local"), branching([branching([], "inner")], "outer")]
    condition = value("c", (), TensorProto.BOOL)
    made = model(nodes, [value("x", (1, 4)), condition], ["y0", "outer_y"], functions=[function], domains=["local"])
    assert claims(made, tmp_path) == [{"_inlfunc_F_t"}]


def test_overridable_weights_are_refused_with_the_remedy(tmp_path: Path) -> None:
    made = one("Conv", (1, 4, 6, 6), constants={"w": np.ones((2, 4, 3, 3), np.float32)})
    assert claims(made, tmp_path) == [{"y"}]
    made.graph.input.append(value("w", (2, 4, 3, 3)))
    (decision,) = answer(made, tmp_path, NNAPI).decisions
    assert (decision.claimed, decision.code) == (False, "const")
    assert "graph inputs" in (decision.remedy or "")


def test_nothing_is_claimed_inside_bodies(tmp_path: Path) -> None:
    branches = {
        name: helper.make_graph([helper.make_node(op, ["x"], [name])], name, [], [value(name, (1, 4))])
        for name, op in (("then_branch", "Relu"), ("else_branch", "Tanh"))
    }
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("If", ["c"], ["y"], **branches)]
    made = model(nodes, [value("x", (1, 4)), value("c", (), TensorProto.BOOL)], ["y", "r"])
    given = answer(made, tmp_path, NNAPI)
    assert given.partitions == (("r",),)
    assert given.subgraphs == ()


def test_a_clip_that_processors_judge_otherwise_is_named(tmp_path: Path) -> None:
    """The same function with a bound that the quantized type holds is judged alike."""
    for high, told in ((None, True), (127.5, False)):
        nodes = [
            *parsed_nodes("e = DequantizeLinear (x1, scale, zero)  a = Add (d, e)"),
            helper.make_node("Clip", ["a", "low", *(["high"] if high else [])], ["r"]),
        ]
        made = quantized(nodes)
        made.graph.input.append(value("x1", (1, 4, 6, 6), TensorProto.UINT8))
        scale = next(onnx.numpy_helper.to_array(one) for one in made.graph.initializer if one.name == "scale")
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0, np.float32), "low"))
        if high:
            made.graph.initializer.append(onnx.numpy_helper.from_array(np.array(255 * scale, np.float32), "high"))
        warnings = answer(made, tmp_path, NNAPI).warnings
        assert [("Clip 'r'" in text, "--abi" in text) for text in warnings] == [(True, True)] * told


@pytest.mark.parametrize(
    ("opset", "abi", "told"), [(11, "arm64-v8a", True), (12, "arm64-v8a", False), (11, "x86_64", False)]
)
def test_half_precision_pools_without_a_kernel_on_arm_are_named(
    opset: int, abi: str, told: bool, tmp_path: Path
) -> None:
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2])
    made = model([node], [value("x", (1, 4, 6, 6), TensorProto.FLOAT16)], ["y"], {}, opset=opset)
    warnings = answer(made, tmp_path, msgspec.structs.replace(NNAPI, abi=abi)).warnings
    assert any("com.ms.internal.nhwc.MaxPool" in text for text in warnings) is told
