"""The parts of a splice on their own: order, borders, clean-ups, what is given up, what leads to a Transpose."""

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from pipeline.convert.splice.claims import WholeGraph
from pipeline.convert.splice.cut import PREFIX, OptimizedPart, cut, merge, without_readers
from pipeline.convert.splice.edits import key, reads, remove_cancelling_pairs, remove_duplicate_casts, sorted_nodes
from pipeline.convert.splice.splicing import given_up, pushed_to
from pipeline.model.onnx_model import LeanModel
from pipeline.partition.graph import Graph, Node, Value
from pipeline.partition.onnx_view import view
from tests.onnx_samples import make, value


def lean(model: onnx.ModelProto, tmp_path=None) -> LeanModel:  # type: ignore[no-untyped-def] # no folder is looked at
    return LeanModel(proto=model, folder=tmp_path, weights={})


def ops(model: LeanModel) -> list[str]:
    return [node.op_type for node in model.proto.graph.node]


@given(st.lists(st.sets(st.integers(0, 11), max_size=3), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_sorted_nodes_come_after_what_they_read(producers: list[set[int]], random) -> None:  # type: ignore[no-untyped-def] # hypothesis's own
    nodes = [
        helper.make_node("Op", [f"v{other}" for other in sorted(before) if other < place], [f"v{place}"])
        for place, before in enumerate(producers)
    ]
    shuffled = random.sample(nodes, len(nodes))
    order = sorted_nodes(shuffled)
    assert sorted(map(key, order)) == sorted(map(key, nodes))
    seen: set[str] = set()
    for node in order:
        assert set(node.input) <= seen
        seen.update(node.output)


def test_reads_tells_what_bodies_take_from_around_them() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["a", "own"], ["t"]), helper.make_node("Mul", ["t", "b"], ["out"])],
        "body", [], [value("out", [1])], [numpy_helper.from_array(np.ones(1, np.float32), "own")],
    )  # fmt: skip
    node = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    assert reads(node) == ["c", "a", "b", "a", "b"]


def chain() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Erf", ["a"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Add", ["a", "c"], ["y"]),
    ]
    return make(nodes, [value("x", ["batch", 3])], [value("y", ["batch", 3]), value("c", ["batch", 3])], [])


def whole(model: onnx.ModelProto, kept: set[str]) -> WholeGraph:
    return WholeGraph(model=lean(model), graph=view(model), kept=frozenset(kept), claimed={})


def test_a_part_has_its_borders_as_inputs_and_stand_ins() -> None:
    part = cut(whole(chain(), {"a", "c"}), {"b", "y"}).proto.graph
    dims = {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in part.input}
    assert dims == {"x": ["batch", 3], "a": ["batch", 3], "c": ["batch", 3]}
    stand_ins = [node for node in part.node if node.output[0].startswith(PREFIX)]
    assert [(node.op_type, node.input[0]) for node in stand_ins] == [("Size", "x"), ("Size", "b")]
    assert [v.name for v in part.output][:1] == ["y"], "c is a graph output that the other part gives"


def test_parts_make_the_whole_again() -> None:
    source = whole(chain(), {"a", "c"})
    parts = []
    for inside in ({"a", "c"}, {"b", "y"}):
        part = cut(source, inside)
        parts.append(without_readers(part, part))
    merged = merge(source.model, parts).proto
    assert sorted(n.SerializeToString() for n in merged.graph.node) == sorted(
        n.SerializeToString() for n in source.model.proto.graph.node
    )
    assert list(merged.graph.output) == list(source.model.proto.graph.output)
    onnx.checker.check_model(merged)


def test_a_reader_follows_a_value_that_an_optimizer_moved() -> None:
    before = cut(whole(chain(), {"a", "c"}), {"b", "y"})
    after = onnx.ModelProto()
    after.CopyFrom(before.proto)
    nodes = [node for node in after.graph.node if key(node) != "b"]
    for node in nodes:
        node.input[:] = ["a" if name == "b" else name for name in node.input]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del after.graph.node[:]
    after.graph.node.extend(copies)
    assert without_readers(lean(after), before).moved == {"b": "a"}


def test_names_that_clash_are_made_new() -> None:
    source = make([helper.make_node("Relu", ["x"], ["y"])], [value("x", [2])], [value("y", [2])], [])
    parts = []
    for number in (1.0, 2.0):
        constant = numpy_helper.from_array(np.array([number, number], np.float32), "k")
        nodes = [helper.make_node("Add", ["x", "k"], ["same"]), helper.make_node("Relu", ["same"], [f"y{number}"])]
        model = make(nodes, [value("x", [2])], [value("y", [2])], [constant])
        parts.append(OptimizedPart(lean(model), frozenset({f"y{number}"}), {}))
    merged = merge(lean(source), parts).proto.graph
    constants = {t.name: float(numpy_helper.to_array(t)[0]) for t in merged.initializer}
    made = {node.output[0]: node for node in merged.node}
    for number in (1.0, 2.0):
        adding = made[made[f"y{number}"].input[0]]
        assert constants[adding.input[1]] == number


def pairs(*, graph_output: bool, scale: float = 0.5) -> LeanModel:
    """Q -> DQ -> Q, whose last two cancel when the scales are equal."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("QuantizeLinear", ["d", "t", "z"], ["y" if graph_output else "r"]),
    ]
    if not graph_output:
        nodes.append(helper.make_node("Flatten", ["r"], ["y"]))
    weights = [numpy_helper.from_array(np.array(n, np.float32), name) for name, n in (("s", 0.5), ("t", scale))]
    weights.append(numpy_helper.from_array(np.array(7, np.uint8), "z"))
    return lean(make(nodes, [value("x", [2, 2])], [value("y", [2, 2], TensorProto.UINT8)], weights))


@pytest.mark.parametrize("graph_output", [False, True])
def test_pairs_that_cancel_go(graph_output: bool) -> None:
    model = pairs(graph_output=graph_output)
    remove_cancelling_pairs(model)
    assert ops(model) == ["QuantizeLinear", *([] if graph_output else ["Flatten"])]
    onnx.checker.check_model(model.proto)


def test_pairs_of_other_scales_stay() -> None:
    model = pairs(graph_output=False, scale=0.25)
    remove_cancelling_pairs(model)
    assert ops(model) == ["QuantizeLinear", "DequantizeLinear", "QuantizeLinear", "Flatten"]


@pytest.mark.parametrize(("kept", "left"), [({"h"}, ["Relu"]), (set(), ["Cast", "Cast", "Relu"])])
def test_casts_that_undo_a_kept_one_go(kept: set[str], left: list[str]) -> None:
    half, single = TensorProto.FLOAT16, TensorProto.FLOAT
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=single), helper.make_node("Cast", ["h"], ["b"], to=half),
        helper.make_node("Relu", ["b"], ["y"]),
    ]  # fmt: skip
    made = make(nodes, [value("x", [2], half)], [value("y", [2], half)], [])
    model = lean(made)
    remove_duplicate_casts(model, view(made), kept)
    assert ops(model) == left


def test_a_cast_that_loses_something_stays() -> None:
    whole_number, single = TensorProto.INT64, TensorProto.FLOAT
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=whole_number), helper.make_node("Cast", ["i"], ["y"], to=single)
    ]  # fmt: skip
    made = make(nodes, [value("x", [2])], [value("y", [2])], [])
    model = lean(made)
    remove_duplicate_casts(model, view(made), {"i"})
    assert ops(model) == ["Cast", "Cast"]


def node(index: int, op_type: str, inputs: list[str], output: str, **attributes: object) -> Node:
    return Node(
        index=index, name="", op_type=op_type, domain="", since_version=13, inputs=tuple(inputs), outputs=(output,),
        attributes=attributes,
    )  # fmt: skip


def graph(nodes: list[Node], outputs: tuple[str, ...] = ()) -> Graph:
    names = {name for n in nodes for name in (*n.inputs, *n.outputs)}
    return Graph(
        nodes={n.index: n for n in nodes}, values=dict.fromkeys(names, Value("f32", (2, 3, 4))), inputs=("x",),
        outputs=outputs, initializers={},
    )  # fmt: skip


def test_what_the_cpu_takes_without_asking_is_given_up() -> None:
    transpose = node(0, "Transpose", ["x"], "t", perm=(0, 2, 1))
    product = node(1, "MatMul", ["t", "x"], "y")
    assert given_up(graph([transpose, product]), frozenset({"t"})) == {"t"}
    assert given_up(graph([transpose, product]), frozenset({"t", "y"})) == frozenset(), "its reader is claimed too"
    assert given_up(graph([transpose, product], ("t",)), frozenset({"t"})) == frozenset(), "it is a graph output"
    turned = node(0, "Transpose", ["x"], "t", perm=(2, 1, 0))
    assert given_up(graph([turned, product]), frozenset({"t"})) == frozenset(), "it swaps other dimensions"


def test_a_scaled_integer_product_takes_its_cast_and_scale() -> None:
    nodes = [
        node(0, "MatMulInteger", ["x", "w"], "m"), node(1, "Cast", ["m"], "c"), node(2, "Mul", ["s", "r"], "k"),
        node(3, "Mul", ["c", "k"], "y"),
    ]  # fmt: skip
    assert given_up(graph(nodes), frozenset({"c", "k"})) == {"c", "k"}
    assert given_up(graph(nodes), frozenset({"c", "k", "y"})) == frozenset()
    assert given_up(graph([*nodes, node(4, "Relu", ["k"], "z")]), frozenset({"c", "k"})) == frozenset()


def test_a_shape_that_the_cpu_reads_is_given_up() -> None:
    nodes = [node(0, "Shape", ["x"], "s"), node(1, "Gather", ["s", "i"], "g")]
    assert given_up(graph(nodes), frozenset({"s"})) == {"s"}
    assert given_up(graph(nodes), frozenset({"s", "g"})) == frozenset()


def test_values_that_lead_to_a_transpose() -> None:
    nodes = [
        helper.make_node("Erf", ["x"], ["e"]),
        helper.make_node("Relu", ["e"], ["r"]),
        helper.make_node("Add", ["r", "e"], ["a"]),
        helper.make_node("Transpose", ["a"], ["y"], perm=[0, 2, 1]),
    ]
    made = make(nodes, [value("x", [1, 2, 3])], [value("y", [1, 3, 2])], [])
    assert pushed_to(made.graph, view(made), {"r"}) == {"e"}
    assert pushed_to(made.graph, view(made), {"y"}) == {"a"}
    nodes[2] = helper.make_node("MatMul", ["r", "e"], ["a"])
    stopped = make(nodes, [value("x", [1, 3, 3])], [value("y", [1, 3, 3])], [])
    assert pushed_to(stopped.graph, view(stopped), {"r"}) == frozenset()
