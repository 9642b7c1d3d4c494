"""The simulator of a Snapdragon's NPU: what it computes otherwise than the CPU is found, with the node at fault."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper

from pipeline.advice.fixes import MODEL_FIXES
from pipeline.advice.verdict import FixChoice, ProviderSupport, gain_of, improves, verdict
from pipeline.core.providers import on_any_chip
from pipeline.partition import kept
from pipeline.partition.answer import ModelAnswer, Simulation
from pipeline.partition.graph import view
from pipeline.providers.qnn.simulate import judged_form
from pipeline.providers.qnn.suspects import suspicions
from pipeline.report.partition import answer_parts
from pipeline.report.wording import Line
from tests.command import ort_mobile
from tests.onnx_samples import parsed_nodes
from tests.partition_samples import model, value

npu = pytest.mark.npu
DIMS = (1, 8, 16, 16)
MNIST = "build_configs/examples/mnist/mnist.onnx"


def pool(side: int = 2, **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[side, side], **attributes)
    return model([node], [value("x", DIMS)], ["y"])


def old_clip() -> onnx.ModelProto:
    return model(parsed_nodes("y = Clip <max = 6.0, min = 0.0> (x)"), [value("x", DIMS)], ["y"], opset=10)


def resize(rounding: str, coordinates: str) -> onnx.ModelProto:
    node = helper.make_node(
        "Resize", ["x", "", "s"], ["y"], mode="nearest", nearest_mode=rounding,
        coordinate_transformation_mode=coordinates,
    )  # fmt: skip
    return model([node], [value("x", DIMS)], ["y"], {"s": np.array([1, 1, 1.5, 1.5], np.float32)})


def old_resize() -> onnx.ModelProto:
    """Counted from the corner, as opset 10 does; scales that are inputs, too, as in IR version 3, cost nothing."""
    scales = np.array([1, 1, 2, 2], np.float32)
    node = helper.make_node("Resize", ["x", "s"], ["y"], mode="linear")
    made = model([node], [value("x", DIMS)], ["y"], {"s": scales}, opset=10)
    made.graph.input.append(value("s", (4,)))
    made.graph.output[0].CopyFrom(value("y", (1, 8, 32, 32)))
    return made


def wide_padding() -> onnx.ModelProto:
    weights = np.linspace(-1, 1, 8 * 8 * 9, dtype=np.float32).reshape(8, 8, 3, 3)
    return model(parsed_nodes("y = Conv <pads = [3, 3, 3, 3]> (x, w)"), [value("x", DIMS)], ["y"], {"w": weights})


def casts() -> onnx.ModelProto:
    nodes = parsed_nodes("i = Cast <to = 6> (x)  y = Cast <to = 1> (i)")
    return model(nodes, [value("x", DIMS)], ["y"])


def rows_from_the_end() -> onnx.ModelProto:
    node = helper.make_node("Gather", ["x", "i"], ["y"], axis=-1)
    return model([node], [value("x", DIMS)], ["y"], {"i": np.array([[-3]], np.int64)})


def large_norm() -> onnx.ModelProto:
    nodes = parsed_nodes("l = Mul (x, k)  y = ReduceL2 <axes = [1]> (l)")
    return model(nodes, [value("x", DIMS)], ["y"], {"k": np.float32(3000.0)})


WRONG = {
    "clip": (old_clip(), "Clip", "opset-13"),
    "resize": (resize("floor", "half_pixel"), "Resize", "gathered-resize"),
    "ties": (resize("round_prefer_floor", "half_pixel"), "Resize", "gathered-resize"),
    "corners": (resize("ceil", "align_corners"), "Resize", "gathered-resize"),
    "counted": (pool(pads=[1] * 4, count_include_pad=1), "AveragePool", "counted-pads"),
    "padding": (wide_padding(), "Conv", "wide-padding"),
    "casts": (casts(), "Cast", "floored-casts"),
    "gather": (rows_from_the_end(), "Gather", "flat-indices"),
    "norm": (large_norm(), "ReduceL2", "scaled-norm"),
}
"""Models that the NPU computes otherwise: the operator at fault, and the fix after which it is right."""


def some(names: Iterable[str], *chosen: str) -> list[Any]:
    """Parameters of which those that are not chosen are for the night: each asks the compiler for seconds."""
    return [pytest.param(name, marks=[] if name in chosen else pytest.mark.nightly) for name in names]


def test_every_rewrite_for_the_npu_alone_has_a_case() -> None:
    only = {fix.name for fix in MODEL_FIXES if not fix.helps & set(on_any_chip())}
    assert only <= {fix for _, _, fix in WRONG.values()}


@npu
@pytest.mark.parametrize("name", some(WRONG, "counted"))
def test_what_is_claimed_and_computed_otherwise_is_found_and_fixed(name: str, tmp_path: Path) -> None:
    made, op_type, fix = WRONG[name]
    onnx.save(made, tmp_path / "m.onnx")
    # Steps of 1/8: what is rounded to half precision is not cut off to another integer.
    np.savez(
        tmp_path / "data.npz", x=np.arange(-40, 40).repeat(26)[: 1 * 8 * 16 * 16].astype(np.float32).reshape(DIMS) / 8
    )
    options = ("--test-data", str(tmp_path / "data.npz"), "--advise")
    answer = simulated(str(tmp_path / "m.onnx"), tmp_path, *options)
    assert answer["claimed"] == answer["nodes"]
    assert (answer["simulated"]["passed"], answer["simulated"]["op_type"]) == (False, op_type), answer["simulated"]
    assert answer["simulated"]["remedy"]
    assert answer["advice"]["best"]["fixes"] == [fix]
    assert "computes what the original does" in answer["advice"]["best"]["gain"]


@npu
def test_a_crash_of_the_simulator_is_an_answer_that_names_the_node(tmp_path: Path) -> None:
    nodes = parsed_nodes("""
        a = Relu (x)  b = AveragePool <auto_pad = "SAME_UPPER", kernel_shape = [2, 2]> (a)  y = Add (a, b)""")
    onnx.save(model(nodes, [value("x", DIMS)], ["y"]), tmp_path / "m.onnx")
    answer = simulated(str(tmp_path / "m.onnx"), tmp_path)["simulated"]
    assert (answer["passed"], answer["reason"]) == (False, "the simulator ended (SIGSEGV)")
    assert (answer["op_type"], answer["first"]) == ("AveragePool", "b")
    assert "odd kernel" in answer["remedy"]


def of_negatives(op_type: str, power: float = 0.5, before: str = "") -> onnx.ModelProto:
    nodes = [helper.make_node(before, ["x"], ["a"])] if before else []
    powers = {"p": np.float32(power)} if op_type == "Pow" else {}
    nodes.append(helper.make_node(op_type, ["a" if before else "x", *powers], ["y"]))
    return model(nodes, [value("x", DIMS)], ["y"], powers)


@npu
@pytest.mark.parametrize("op_type", some(["Sqrt", "Log", "Pow"], "Log"))
def test_numbers_in_the_place_of_nan_are_found(op_type: str, tmp_path: Path) -> None:
    """Of random inputs it stays open whether the model is ever given such numbers; of test data it is wrong."""
    onnx.save(of_negatives(op_type), tmp_path / "m.onnx")
    np.savez(tmp_path / "data.npz", x=np.linspace(-4, 4, 2048, dtype=np.float32).reshape(DIMS))
    for data, passed in ((("--input", "x=-5:5"), None), (("--test-data", str(tmp_path / "data.npz")), False)):
        answer = simulated(str(tmp_path / "m.onnx"), tmp_path, *data)["simulated"]
        assert (answer["passed"], answer["op_type"], answer["first"]) == (passed, op_type, "y")
        assert "NaN on the CPU" in answer["reason"]
        assert "with Max or Clip" in answer["remedy"]


@npu
@pytest.mark.nightly
def test_resizes_of_old_opsets_are_found_and_fixed(tmp_path: Path) -> None:
    onnx.save(old_resize(), tmp_path / "m.onnx")
    answer = simulated(str(tmp_path / "m.onnx"), tmp_path, "--input", "x=-5:5", "--advise")
    assert (answer["simulated"]["passed"], answer["simulated"]["op_type"]) == (False, "Resize")
    assert "opset:version=13" in answer["simulated"]["remedy"]
    assert answer["advice"]["best"]["fixes"] == ["opset-13"]


@pytest.mark.parametrize(
    ("chip", "cpu", "passed", "noisy"),
    [(24.5, 27.0, True, False), (20.5, 27.0, True, True), (19.5, 27.0, False, False), (31.0, 80.0, True, False),
     (8.0, 10.0, True, False), (4.0, 10.0, False, False), (25.0, None, True, True), (None, None, True, False)],
)  # fmt: skip
def test_a_form_is_right_as_near_as_on_the_cpu_or_near_enough(
    chip: float | None, cpu: float | None, passed: bool, noisy: bool
) -> None:
    assert judged_form(chip, cpu) == (passed, noisy)


def test_less_noise_on_the_chip_is_a_gain() -> None:
    """What is right all the same is used; fixes go on until nothing is lost."""
    noisy = ProviderSupport(nodes=9, claimed=9, partitions=1, noisy=True)
    clean = msgspec.structs.replace(noisy, noisy=False)
    assert improves(clean, noisy, "qnn")
    assert not improves(noisy, clean, "qnn")
    assert verdict(noisy, "qnn").choice is FixChoice.USE
    assert "less noise" in gain_of(noisy, clean, "qnn")


@npu
def test_a_quantized_node_that_departs_is_named_by_its_own_name(tmp_path: Path) -> None:
    """Of 16-bit values a channel with nearly no weight is garbage, which no form of ours has."""
    text = """
        a = QuantizeLinear (x, s, z)  b = DequantizeLinear (a, s, z)  v = DequantizeLinear <axis = 0> (w, t, k)
        c = Conv (b, v)  d = QuantizeLinear (c, s, z)  e = DequantizeLinear (d, s, z)
        f = Sigmoid (e)  g = QuantizeLinear (f, s, z)  y = DequantizeLinear (g, s, z)"""
    scales, zero = np.array([1e-2, 1e-9], np.float32), np.uint16(1 << 15)
    constants = {"s": np.float32(2.0**-12), "z": zero, "t": scales, "k": np.zeros(2, np.int8)}
    constants["w"] = np.full((2, 8, 1, 1), 90, np.int8)
    made = model(parsed_nodes(text), [value("x", DIMS)], ["y"], constants, opset=21)
    onnx.save(made, tmp_path / "m.onnx")
    answer = simulated(str(tmp_path / "m.onnx"), tmp_path, "--input", "x=-5:5")["simulated"]
    assert (answer["passed"], answer["op_type"], answer["first"]) == (False, "Conv", "c")
    assert "scale" in answer["remedy"]


def branched(chosen: str) -> onnx.ModelProto:
    """A convolution or the negated input, each a branch, or both computed and one chosen."""
    weights = np.linspace(-1, 1, 8 * 8 * 9, dtype=np.float32).reshape(8, 8, 3, 3)
    held = onnx.numpy_helper.from_array(weights, "w")
    nodes = parsed_nodes("a = Conv <pads = [1, 1, 1, 1]> (x, w)  b = Neg (x)")
    condition = helper.make_tensor_value_info("p", onnx.TensorProto.BOOL, [])
    if chosen == "Where":
        nodes += parsed_nodes("y = Where (p, a, b)")
        return model(nodes, [value("x", DIMS), condition], ["y"], {"w": weights})
    then, other = (helper.make_graph([node], "body", [], [value(node.output[0], DIMS)], [held]) for node in nodes)
    node = helper.make_node("If", ["p"], ["y"], then_branch=then, else_branch=other)
    return model([node], [value("x", DIMS), condition], ["y"])


@npu
@pytest.mark.parametrize(("chosen", "passed"), [("If", False), ("Where", True)])
def test_a_convolution_in_a_branch_is_found(chosen: str, passed: bool, tmp_path: Path) -> None:
    """In a branch layouts are not changed: the NPU takes channels for the width there."""
    onnx.save(branched(chosen), tmp_path / "m.onnx")
    np.savez(tmp_path / "data.npz", x=np.linspace(-4, 4, 2048, dtype=np.float32).reshape(DIMS), p=np.array(True))
    answer = simulated(str(tmp_path / "m.onnx"), tmp_path, "--test-data", str(tmp_path / "data.npz"))
    assert answer["claimed"] == answer["nodes"]
    assert (answer["simulated"]["passed"], answer["simulated"]["op_type"]) == (passed, "" if passed else "If")
    assert passed or "choose with Where" in answer["simulated"]["remedy"]


SUSPECTED = {
    **{name: (made, op_type) for name, (made, op_type, _) in WRONG.items()},
    **{op_type: (of_negatives(op_type), op_type) for op_type in ("Sqrt", "Log", "Pow")},
    "old resize": (old_resize(), "Resize"),
    "branch": (branched("If"), "If"),
    "even kernel": (pool(auto_pad="SAME_UPPER"), "AveragePool"),
}
RIGHT = {
    "without bounds": model(parsed_nodes("y = Clip (x)"), [value("x", DIMS)], ["y"], opset=10),
    "up at ties": resize("round_prefer_ceil", "half_pixel"),
    "odd kernel": pool(3, pads=[1] * 4, count_include_pad=1),
    "not counted": pool(pads=[1] * 4),
    "both branches": branched("Where"),
    "square": of_negatives("Pow", 2.0),
    "not below 0": of_negatives("Sqrt", before="Abs"),
}
"""What the simulator found right, or is right of any numbers."""


def doubts(made: onnx.ModelProto) -> list[str]:
    """The operators that are named without simulating a model whose nodes are all taken."""
    graph = view(made)
    return [text.removeprefix("the NPU takes ").split(" '")[0] for text in suspicions(graph, set(graph.nodes))]


@pytest.mark.parametrize("name", SUSPECTED)
def test_what_may_be_computed_otherwise_is_said_beforehand(name: str) -> None:
    made, op_type = SUSPECTED[name]
    assert doubts(made) == [op_type]


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_said_of_what_is_right(name: str) -> None:
    assert doubts(RIGHT[name]) == []


@npu
def test_a_doubt_is_said_until_the_simulator_is_asked(tmp_path: Path) -> None:
    onnx.save(old_clip(), tmp_path / "m.onnx")
    for command in (("partition", "--ep", "qnn"), ("check",)):
        text = ort_mobile(*command, tmp_path / "m.onnx", "--chip", "SM8650").text
        assert "the NPU takes Clip 'y', and may compute something else" in text
    assert not simulated(str(tmp_path / "m.onnx"), tmp_path, "--input", "x=-5:5")["warnings"]


UNEVEN_SCALES = {
    "Reciprocal": ("d = Reciprocal (c)", 2.9e-6, 5.2e-3),
    "Max": ("e = DequantizeLinear (k, o, z)  d = Max (e, c)", 5e-7, 5e-7),
}


@npu
@pytest.mark.parametrize("op_type", UNEVEN_SCALES)
def test_scales_far_apart_of_16_bit_values_are_found(op_type: str, tmp_path: Path) -> None:
    """A Reciprocal, and a Max with a zero whose scale is 1, as stock quantizers write them."""
    node, before, after = UNEVEN_SCALES[op_type]
    text = f"""a = QuantizeLinear (x, s, z)  c = DequantizeLinear (a, s, z)  {node}
        f = QuantizeLinear (d, t, z)  g = DequantizeLinear (f, t, z)  h = MaxPool <kernel_shape = [1, 1]> (g)
        i = QuantizeLinear (h, u, z)  y = DequantizeLinear (i, u, z)"""
    scales = {"s": np.float32(before), "t": np.float32(after), "u": np.float32(after), "o": np.float32(1)}
    constants = {**scales, "z": np.uint16(0), "k": np.uint16(0)}
    onnx.save(model(parsed_nodes(text), [value("x", DIMS)], ["y"], constants, opset=21), tmp_path / "m.onnx")
    edge = 60000 * before
    answer = simulated(str(tmp_path / "m.onnx"), tmp_path, "--input", f"x={edge / 20}:{edge}")["simulated"]
    assert (answer["passed"], answer["op_type"]) == (False, op_type), answer


@npu
def test_right_numbers_pass(tmp_path: Path) -> None:
    assert simulated(MNIST, tmp_path)["simulated"]["passed"] is True


@npu
def test_numbers_beyond_half_precision_are_named(tmp_path: Path) -> None:
    onnx.save(large_norm(), tmp_path / "m.onnx")
    answer = simulated(str(tmp_path / "m.onnx"), tmp_path, "--input", "x=-50:50")
    assert "half precision ends at 65504" in answer["simulated"]["reason"]


@npu
def test_a_form_with_more_noise_than_signal_gives_way_to_a_more_exact_one(tmp_path: Path) -> None:
    """A step of 8 bits from 0 to 3000 is larger than all that the model gives."""
    nodes = [helper.make_node("Add", ["x", "far"], ["a"]), helper.make_node("Sub", ["a", "far"], ["y"])]
    onnx.save(model(nodes, [value("x", DIMS)], ["y"], {"far": np.full(DIMS, 3000, np.float32)}), tmp_path / "m.onnx")
    target = tmp_path / "out.json"
    ort_mobile("partition", tmp_path / "m.onnx", "--ep", "qnn", "--chip", "SM8635", "--simulate", "--advise",
               "--input", "x=0:1", "--json", target)  # fmt: skip
    advice = json.loads(target.read_bytes())["models"][0]["advice"]
    assert advice["best"]["fixes"] == ["qnn16"]
    (lost,) = [row["after"]["wrong"] for row in advice["fixes"] if row["name"] == "qnn"]
    assert "not even on the CPU is this form near the original" in lost


def accuracy(*arguments: str, code: int = 0) -> Any:
    data = ("--reference", MNIST, "--test-data", "build_configs/examples/mnist/evaluation.npz")
    return ort_mobile("accuracy", MNIST, *data, *arguments, code=code)


@npu
def test_accuracy_as_the_chip_computes_says_that_it_is_simulated(tmp_path: Path) -> None:
    chip, file = ("--ep", "qnn", "--chip", "SM8650", "--samples", "24"), tmp_path / "accuracy.json"
    text = accuracy(*chip, "--max-drop", "0.9", "--json", str(file)).text
    assert "simulated: the models as the NPU of SM8650 (Snapdragon 8 Gen 3) computes them" in text
    assert "within" in text
    (row,) = json.loads(file.read_bytes())["models"]
    assert (row["chip"], row["samples"], row["labelled"]) == ("SM8650", 24, True)
    assert 40 < row["outputs"][0]["sqnr_db"] < 90, "half precision, and neither float nor nothing"


@npu
def test_there_is_no_accuracy_where_the_chip_makes_no_session() -> None:
    assert (
        "computes floats, and the NPU of Snapdragon 8s Gen 3 has none"
        in accuracy("--ep", "qnn", "--chip", "SM8635", code=1).err
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--chip", "SM8650"), "--chip is for qnn"),
        (("--ep", "qnn"), "none is named"),
        (("--ep", "qnn", "--chip", "SM865"), "did you mean SM8650?"),
    ],
)
def test_wrong_questions_for_accuracy_are_one_clear_error(
    arguments: tuple[str, ...], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "compiler_name", lambda: "a compiler")
    assert text in accuracy(*arguments, code=2).err


def test_only_a_chips_compiler_has_a_simulator() -> None:
    assert "--simulate is for qnn" in ort_mobile("partition", MNIST, "--ep", "nnapi", "--simulate", code=2).err


def test_verdict_and_remedy_of_wrong_numbers_are_shown() -> None:
    simulation = Simulation(passed=False, output="y", error=3.0, limit=0.1, first="c", op_type="Clip", remedy="fix it")
    answer = ModelAnswer(path="m.onnx", ep="qnn", chip="SM8650", ort_release="1.32", nodes=1, claimed=1,
                         partitions=(("c",),), simulated=simulation)  # fmt: skip
    text = "".join(span for part in answer_parts([answer]) if isinstance(part, Line) for span, _ in part.spans)
    for words in ("computes something else", "off by 3, allowed is 0.1", "Clip with the output 'c'", "fix it"):
        assert words in text
    assert "use the CPU: the NPU computes something else" in text


def simulated(path: str, tmp_path: Path, *arguments: str) -> Any:
    target = tmp_path / "out.json"
    chip = ("--ep", "qnn", "--chip", "SM8650")
    ort_mobile("partition", path, *chip, "--simulate", *arguments, "--json", target)
    (answer,) = json.loads(target.read_bytes())["models"]
    return answer
