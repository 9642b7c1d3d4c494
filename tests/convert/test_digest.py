"""The semantic digest knows what is computed, and nothing else."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from pipeline.convert import cache
from pipeline.convert.cache import semantic_digest
from pipeline.convert.request import SessionSettings
from pipeline.convert.steps import save_optimized
from pipeline.core.variant import Level
from pipeline.model.ort_format import read_ort
from tests.onnx_samples import conv_bn, linear, make, parsed_nodes, value, weight


def digest(model: onnx.ModelProto, folder: Path, level: Level = Level.NONE) -> str:
    path = folder / "m.ort"
    settings = SessionSettings(level=level)
    save_optimized(model.SerializeToString(), settings, path, {}, ort_format=True, where="sample")
    return semantic_digest(read_ort(path), path.read_bytes())


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Other names inside, another order of nodes and weights, another producer."""
    text = onnx.ModelProto()
    text.CopyFrom(model)
    outside = {v.name for v in (*model.graph.input, *model.graph.output)}
    for number, node in enumerate(text.graph.node):
        node.name = f"other {number}"
        for names in (node.input, node.output):
            names[:] = [name if name in outside else f"other_{name}" for name in names]
    for tensor in text.graph.initializer:
        tensor.name = f"other_{tensor.name}"
    text.graph.initializer.reverse()
    text.producer_name = "somebody else"
    text.doc_string = "said otherwise"
    return text


@pytest.mark.parametrize("model", [linear(), conv_bn()], ids=["linear", "conv_bn"])
def test_names_order_and_container_do_not_matter(model: onnx.ModelProto, tmp_path: Path) -> None:
    assert digest(model, tmp_path) == digest(renamed(model), tmp_path)


def branches(*, swapped: bool = False) -> onnx.ModelProto:
    """Two nodes that do not depend on each other, in either order; both feed a third."""
    nodes = parsed_nodes("a = Relu (x)  b = Neg (x)")
    last = helper.make_node("Add", ["a", "b"], ["y"])
    return make([*(nodes[::-1] if swapped else nodes), last], [value("x", [2])], [value("y", [2])], [])


def test_the_order_of_nodes_does_not_matter(tmp_path: Path) -> None:
    assert digest(branches(), tmp_path) == digest(branches(swapped=True), tmp_path)


def changed(what: str) -> onnx.ModelProto:
    """The convolution model with one thing changed."""
    model = conv_bn(8)
    node = model.graph.node
    if what == "a weight's byte":
        raw = bytearray(model.graph.initializer[0].raw_data)
        raw[0] ^= 1
        model.graph.initializer[0].raw_data = bytes(raw)
    elif what == "an attribute":
        node[1].attribute.append(helper.make_attribute("epsilon", 2e-5))
    elif what == "an operator":
        node[2].op_type = "Sigmoid"
    elif what == "an edge":
        node[4].input[2] = "scale1"
    elif what == "an input's name":
        model.graph.input[0].name = node[0].input[0] = "image"
    elif what == "an input's shape":
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
        model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 2
    elif what == "an output's name":
        model.graph.output[0].name = node[5].output[0] = "features"
    elif what == "since-version":
        model.opset_import[0].version = 13
    elif what == "a dead node":
        model.graph.node.append(helper.make_node("Neg", ["x"], ["unused"]))
    return model


CHANGES = [
    "a weight's byte", "an attribute", "an operator", "an edge", "an input's name", "an input's shape",
    "an output's name", "since-version", "a dead node",
]  # fmt: skip


def test_everything_that_is_computed_matters(tmp_path: Path) -> None:
    digests = {what: digest(changed(what), tmp_path) for what in ("nothing", *CHANGES)}
    assert len(set(digests.values())) == len(digests), digests


def conditional(branch: str) -> onnx.ModelProto:
    """If, with a constant of its own in each branch and a value of the outer scope."""
    other = numpy_helper.from_array(np.array([2.0], np.float32), "k")
    bodies = {}
    for name, op in (("then_branch", branch), ("else_branch", "Sub")):
        node = helper.make_node(op, ["v", "k"], [f"{name}_y"])
        bodies[name] = helper.make_graph([node], name, [], [value(f"{name}_y", [1])], [other])
    nodes = [helper.make_node("Neg", ["x"], ["v"]), helper.make_node("If", ["c"], ["y"], **bodies)]
    return make(nodes, [value("x", [1]), value("c", [], onnx.TensorProto.BOOL)], [value("y", [1])], [])


def test_bodies_matter(tmp_path: Path) -> None:
    assert digest(conditional("Add"), tmp_path) != digest(conditional("Mul"), tmp_path)
    assert digest(conditional("Add"), tmp_path) == digest(conditional("Add"), tmp_path)


def test_a_long_chain_is_no_depth(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(3000)]
    model = make(nodes, [value("v0", [1])], [value("v3000", [1])], [weight("w", 1)])
    assert len(digest(model, tmp_path)) == 64


def test_the_key_of_weights_in_blocks_names_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {}
    for flags in ("avx2", "avx2 avx512f"):
        (tmp_path / "cpuinfo").write_text(f"flags : {flags}\n")
        monkeypatch.setattr(cache, "PROCESSOR", tmp_path / "cpuinfo")
        keys[flags] = [
            cache.cache_key("0", SessionSettings(level=Level.ALL, nchwc=blocks), "1") for blocks in (True, False)
        ]
    first, second = keys.values()
    assert first[0] != second[0]
    assert first[1] == second[1]
