"""`ort-mobile diff` on files that ONNX Runtime optimized: regions, who made them, and the pictures of the docs."""

from itertools import pairwise
from pathlib import Path

import onnx
import onnxruntime
import pytest
from numpy import float32, full, ones
from onnx import TensorProto, helper, numpy_helper

from pipeline.features.diff.changes import MS, NCHWC, diff_graphs
from pipeline.features.diff.drawing import MOST_NODES, draw_diff
from pipeline.features.diff.graph import FileGraph, read_graph
from pipeline.model.sources import SourceModel
from tests import onnx_samples
from tests.command import ROOT, ort_mobile
from tests.onnx_samples import parsed_nodes

MNIST = ROOT / "build_configs/examples/mnist/mnist.onnx"
PICTURES = ROOT / "docs/pictures"


def gelu() -> onnx.ModelProto:
    """The exact GELU as exporters write it: x/2 (1 + erf(x / sqrt 2)), behind a bias."""
    constants = {"two": 1.4142135, "whole": 1.0, "half": 0.5}
    nodes = parsed_nodes("""
        b = Add (x, bias)  d = Div (b, two)  e = Erf (d)  s = Add (e, whole)  p = Mul (b, s)  y = Mul (p, half)""")
    weights = [numpy_helper.from_array(full((), number, float32), name) for name, number in constants.items()]
    weights.append(onnx_samples.weight("bias", 8))
    return onnx_samples.make(nodes, [onnx_samples.value("x", [2, 8])], [onnx_samples.value("y", [2, 8])], weights)


def leftovers() -> onnx.ModelProto:
    """What rewriting rules take away: Identity in the middle, a constant sum, the same sum twice."""
    nodes = parsed_nodes("""
        i = Identity (x)  constant = Add (c, c)  first = Mul (i, constant)  second = Mul (i, constant)
        y = Sub (first, second)""")
    ends = [onnx_samples.value("x", [4])], [onnx_samples.value("y", [4])]
    return onnx_samples.make(nodes, *ends, [numpy_helper.from_array(ones(4, float32), "c")])


MODELS = {
    "mnist": lambda: onnx.load(MNIST),
    "conv_bn": onnx_samples.conv_bn,
    "quantized": onnx_samples.quantized,
    "gelu": gelu,
    "leftovers": leftovers,
}


def optimized(model: Path, level: str, *, off: tuple[str, ...] = ()) -> FileGraph:
    """The graph of a model as a session saves it, with some optimizers switched off."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(model.with_suffix(".saved.onnx"))
    onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], disabled_optimizers=list(off))
    return read_graph(SourceModel(path=options.optimized_model_filepath))


@pytest.mark.parametrize("level", ["EXTENDED", "ALL"])
@pytest.mark.parametrize("name", MODELS)
def test_without_the_optimizer_that_is_named_its_region_is_not_there(name: str, level: str, tmp_path: Path) -> None:
    """At level all the layout's transformer fuses what others were kept from: only it is switched off there."""
    model = onnx_samples.save(MODELS[name](), tmp_path / "model.onnx")
    before = read_graph(SourceModel(path=str(model)))
    regions = diff_graphs(before, optimized(model, level)).regions
    named = {text for _, _, by in regions for text in by}
    assert named
    assert all(by for _, _, by in regions)
    for text in named if level == "EXTENDED" else {text for text in named if "(layout)" in text}:
        without = diff_graphs(before, optimized(model, level, off=(text.partition(" ")[0],))).regions
        assert text not in {other for _, _, by in without for other in by}


def test_the_levels_of_mnist_change_what_the_guide_says(tmp_path: Path) -> None:
    """The pictures of docs/guide.md are what the command draws, and show what ONNX Runtime's guide says of MNIST."""
    ort_mobile("convert", MNIST, "--output", tmp_path, "--style", "fixed", "--no-config", "--target-platform", "amd64")
    seen = {}
    # Blocks of the amd64 layout have 16 channels with AVX-512, as in the picture; 8 without, which fit more of MNIST.
    drawn = {"basic", "extended", *(("all",) if "avx512f" in Path("/proc/cpuinfo").read_text() else ())}
    for level in ("none", "basic", "extended", "all"):
        files = (MNIST, tmp_path / f"mnist.{level}-fixed.ort")
        found = ort_mobile("diff", *files, "--json", "-", "--svg", tmp_path / f"mnist-{level}.svg").document()
        operators = [[[node["operator"] for node in row[side]] for side in ("gone", "new")] for row in found["regions"]]
        assert found["nodes_a"] == found["same"] + sum(len(gone) for gone, _ in operators)
        assert (
            level not in drawn
            or (tmp_path / f"mnist-{level}.svg").read_text() == (PICTURES / f"mnist-{level}.svg").read_text()
        )
        seen[level] = operators
    assert seen["none"] == []
    assert [["MatMul", "Add"], ["Gemm"]] in seen["basic"]
    assert seen["basic"].count([["Conv", "Add"], ["Conv"]]) == 2
    assert seen["extended"].count([["Conv", "Add", "Relu"], [f"{MS}FusedConv"]]) == 2
    in_blocks = [
        gone for gone, new in seen["all"] if new[:1] == [f"{NCHWC}Conv"] and new[-1] == f"{NCHWC}ReorderOutput"
    ]
    assert in_blocks
    assert all(gone[:3] == ["Conv", "Add", "Relu"] for gone in in_blocks)


def test_names_do_not_matter_where_all_that_leads_to_a_node_is_the_same(tmp_path: Path) -> None:
    model = onnx_samples.conv_bn()
    before = read_graph(SourceModel(path=str(onnx_samples.save(model, tmp_path / "a.onnx"))))
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [name if name == "x" else f"other_{name}" for name in names]
    for value in (*model.graph.initializer, *model.graph.output):
        value.name = f"other_{value.name}"
    after = read_graph(SourceModel(path=str(onnx_samples.save(model, tmp_path / "b.onnx"))))
    found = diff_graphs(before, after)
    assert (found.regions, found.changed, found.same) == ((), (), len(before.nodes))


def test_other_weights_and_attributes_are_changes(tmp_path: Path) -> None:
    model = onnx_samples.conv_bn()
    ort_a = onnx_samples.save(model, tmp_path / "a.onnx")
    model.graph.initializer[0].CopyFrom(onnx_samples.weight("w0", 64, 3, 3, 3, seed=99))
    del model.graph.node[3].attribute[:]
    ort_b = onnx_samples.save(model, tmp_path / "b.onnx")
    found = ort_mobile("diff", ort_a, ort_b, "--json", "-").document()
    assert [(change["name"], len(change["what"])) for change in found["changed"]] == [("c0", 1), ("c1", 1)]
    assert "input 1: f32[64,3,3,3]" in found["changed"][0]["what"][0]
    assert found["changed"][1]["what"] == ["pads: [1, 1, 1, 1] → absent"]
    assert found["regions"] == []


def test_bodies_of_if_are_compared_too(tmp_path: Path) -> None:
    def model(operator: str) -> onnx.ModelProto:
        bodies = [
            helper.make_graph([helper.make_node(op, ["x"], ["inner"])], "b", [], [onnx_samples.value("inner", [4])])
            for op in (operator, "Abs")
        ]
        node = helper.make_node("If", ["condition"], ["y"], then_branch=bodies[0], else_branch=bodies[1])
        inputs = [onnx_samples.value("x", [4]), onnx_samples.value("condition", [], TensorProto.BOOL)]
        return onnx_samples.make([node], inputs, [onnx_samples.value("y", [4])], [])

    paths = [onnx_samples.save(model(op), tmp_path / f"{op}.onnx") for op in ("Neg", "Exp")]
    found = ort_mobile("diff", *paths, "--json", "-").document()
    (region,) = found["regions"]
    assert [node["operator"] for node in (*region["gone"], *region["new"])] == ["Neg", "Exp"]
    assert found["same"] == 2


def test_convert_shows_what_each_artifact_lost(tmp_path: Path) -> None:
    done = ort_mobile("convert", MNIST, "--output", tmp_path, "--level", "basic,extended", "--show-changes")
    assert "mnist → basic-fixed, basic-runtime: 12 → 8 nodes" in done.out
    assert "recorded for the device" in done.out
    assert "ConvActivationFusion ConvAct (2)" in done.out


def test_a_large_graph_has_a_box_for_each_run_without_change(tmp_path: Path) -> None:
    count = 2 * MOST_NODES
    values = ["x", *(f"v{place}" for place in range(count - 1)), "y"]

    def graph(at: int, operator: str) -> FileGraph:
        nodes = [
            helper.make_node(operator if place == at else "Abs", [a], [b])
            for place, (a, b) in enumerate(pairwise(values))
        ]
        ends = [onnx_samples.value("x", [1])], [onnx_samples.value("y", [1])]
        path = onnx_samples.save(onnx_samples.make(nodes, *ends, []), tmp_path / f"{operator}.onnx")
        return read_graph(SourceModel(path=str(path)))

    before, after = graph(100, "Neg"), graph(100, "Exp")
    picture = draw_diff(before, after, diff_graphs(before, after), ("a", "b<&>"))
    assert picture.count('<rect class="box"') == 6
    assert "b&lt;&amp;&gt;" in picture


@pytest.mark.parametrize(
    ("wrong", "why"),
    [("no.onnx", "no such"), ("text.onnx", "text file"), ("many", "one model"), ("refers.onnx", "axis")],
)
def test_what_is_no_model_is_an_error_and_leaves_no_picture(wrong: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("nothing of the kind")
    ends = [onnx_samples.value("x", [1, 2])], [onnx_samples.value("y", [1, 2])]
    refers = onnx_samples.make(parsed_nodes("y = Softmax <axis = 1> (x)"), *ends, [])
    refers.graph.node[0].attribute[0].ref_attr_name = "outer"
    onnx_samples.save(refers, tmp_path / "refers.onnx")
    (tmp_path / "many").mkdir()
    for name in ("a.onnx", "b.onnx"):
        (tmp_path / "many" / name).write_bytes(MNIST.read_bytes())
    picture = tmp_path / "picture.svg"
    done = ort_mobile("diff", MNIST, tmp_path / wrong, "--svg", picture, code=None)
    assert done.code in (1, 2)
    assert why in done.err
    assert not picture.exists()


def test_a_constant_without_a_name_is_none(tmp_path: Path) -> None:
    ends = [onnx_samples.value("x", [1, 2])], [onnx_samples.value("y", [1, 2])]
    model = onnx_samples.make(parsed_nodes("y = Relu (x)"), *ends, [onnx_samples.weight("", 2)])
    path = onnx_samples.save(model, tmp_path / "m.onnx")
    assert not read_graph(SourceModel(path=str(path))).constants
