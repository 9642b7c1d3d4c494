"""NNAPI's rules on small models, where no label of the ground truth (test_recorded_claims.py) tells."""

from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.onnx_samples import parsed_nodes
from tests.partition_samples import NNAPI, answer, chain, claims, model, one, quantized, value


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
