"""CoreML's rules on small models, where no recorded label tells, and what is foreseen on load."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pipeline.partition.answer import Decision, Settings
from tests.onnx_samples import parsed_nodes
from tests.partition_samples import answer, chain, claims, model, one, ones, value
from tests.values import present

F16, I32, I64, BOOL = TensorProto.FLOAT16, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL


def coreml(provider: str, release: tuple[int, int] = (1, 23), **options: Any) -> Settings:
    """Settings of one of CoreML's two formats."""
    return Settings(provider=provider, ort_release=release, **options)


NN, MLP = coreml("coreml-nn"), coreml("coreml-mlprogram")
BOTH, NEITHER = (True, True), (False, False)
ONLY_NN, ONLY_MLP = (True, False), (False, True)


def decision(made: onnx.ModelProto, folder: Path, settings: Settings) -> Decision:
    """What became of the last node."""
    given = answer(made, folder, settings)
    assert given.error is None, given.error
    return given.decisions[-1]


def resize(mode: str, *scales: float) -> onnx.ModelProto:
    constants = {"scales": np.array([1, 1, *scales], np.float32)}
    return one("Resize", inputs=["x", "", "scales"], constants=constants, mode=mode)


@pytest.mark.parametrize(
    ("made", "claimed"),
    [
        (resize("linear", 0.5, 0.5), ONLY_MLP),
        (resize("linear", 0.5, 2), NEITHER),
        (resize("cubic", 2, 2), NEITHER),
        (one("Gemm", (4, 3), constants={"b": ones(4, 5)}, transA=1), NEITHER),
        (one("Split", (4, 6), outputs=["y"], axis=0, num_outputs=1, opset=18), NEITHER),
        (one("Split", (4, 6), outputs=["y", "z"], axis=0), BOTH),
    ],
)
def test_what_no_recorded_graph_has(made: onnx.ModelProto, claimed: tuple[bool, bool], tmp_path: Path) -> None:
    found = (decision(made, tmp_path, NN), decision(made, tmp_path, MLP))
    assert (found[0].claimed, found[1].claimed) == claimed, found
    for given in found:
        assert given.claimed or (given.code and given.reason and given.remedy)


def test_types_of_mlprogram_by_release(tmp_path: Path) -> None:
    half, long = one("Relu", kind=F16), one("Add", (2, 3), kind=I64, inputs=["x", "x"])
    taken = {
        (release, apple): (
            decision(half, tmp_path, coreml("coreml-mlprogram", release, coreml6_types=apple)).claimed,
            decision(long, tmp_path, coreml("coreml-mlprogram", release, coreml6_types=apple)).claimed,
        )
        for release in ((1, 19), (1, 20), (1, 21), (1, 22), (1, 23), (1, 24))
        for apple in (False, True)
    }
    f16 = {key for key, found in taken.items() if found[0]}
    assert f16 == {((1, 20), False), ((1, 20), True), ((1, 21), False), ((1, 21), True), ((1, 24), True)}
    assert {key for key, found in taken.items() if found[1]} == {((1, 24), True)}


@pytest.mark.parametrize(
    ("made", "first", "formats"),
    [
        (one("Elu"), (1, 24), ONLY_MLP),
        (one("HardSigmoid"), (1, 26), BOTH),
        (one("Sin"), (1, 27), ONLY_MLP),
        (one("Tile", (2, 3), constants={"r": np.array([2, 1])}), (1, 27), BOTH),
        (one("Gather", (3, 4), constants={"i": np.array(1)}), (1, 27), BOTH),
        (one("Pad", (2, 6), constants={"p": np.array([0, 2, 0, 1])}, mode="reflect"), (1, 26), ONLY_MLP),
        (one("Pad", (2, 6), constants={"p": np.array([1, 0, 0, 0])}), (1, 26), ONLY_MLP),
        (one("Split", (4, 6), outputs=["y", "z"], axis=0, opset=11), (1, 27), BOTH),
        (one("Where", (2, 3), kind=BOOL, constants={"a": ones(3), "b": ones(3)}), (1, 28), ONLY_MLP),
        (one("Unsqueeze", (2, 3), constants={"a": np.array([0])}), (1, 21), ONLY_MLP),
    ],
)  # fmt: skip
def test_rows_that_a_release_brought(
    made: onnx.ModelProto, first: tuple[int, int], formats: tuple[bool, bool], tmp_path: Path
) -> None:
    """A neighbour keeps the group from being trivial (ep_rules B.6)."""
    made = with_neighbours(made)
    before = first[0], first[1] - 1
    for release, wanted in ((first, formats), (before, NEITHER)):
        found = tuple(
            by_output(made, tmp_path, coreml(provider, release), "y").claimed
            for provider in ("coreml-nn", "coreml-mlprogram")
        )
        assert found == wanted, release


def with_neighbours(made: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with a Relu beside the node."""
    made.graph.node.append(helper.make_node("Relu", ["beside"], ["relu"]))
    made.graph.input.append(value("beside", (2, 2)))
    made.graph.output.append(onnx.ValueInfoProto(name="relu"))
    return made


def by_output(made: onnx.ModelProto, folder: Path, settings: Settings, output: str) -> Decision:
    """What became of the node that gives an output."""
    given = answer(made, folder, settings)
    assert given.error is None, given.error
    return next(found for found in given.decisions if output in found.outputs)


def test_a_row_of_a_later_release_is_named_with_it(tmp_path: Path) -> None:
    refused = decision(one("Elu"), tmp_path, MLP)
    assert (refused.code, refused.remedy) == ("op", "ship release 1.24 or later")
    assert "Mod is not supported" in (decision(one("Mod", inputs=["x", "x"], fmod=1), tmp_path, MLP).reason or "")


def test_static_shapes_on_demand(tmp_path: Path) -> None:
    strict = coreml("coreml-nn", require_static_input_shapes=True)
    made = one("Relu", ("batch", 4))
    refused = decision(made, tmp_path, strict)
    assert refused.code == "dynamic"
    assert "'x' [?, 4]" in (refused.reason or "")
    assert decision(made, tmp_path, NN).claimed


def body_model() -> onnx.ModelProto:
    """An If whose branches compute Relu and Sigmoid of a value from outside."""
    branches = {
        name: helper.make_graph([helper.make_node(op, ["x"], [name])], name, [], [onnx.ValueInfoProto(name=name)])
        for name, op in (("then_branch", "Relu"), ("else_branch", "Sigmoid"))
    }
    node = helper.make_node("If", ["c"], ["y"], **branches)
    return model([node], [value("c", (), BOOL), value("x", (2, 3))], ["y"])


def test_bodies_on_demand(tmp_path: Path) -> None:
    assert answer(body_model(), tmp_path, NN).subgraphs == ()
    given = answer(body_model(), tmp_path, coreml("coreml-nn", enable_on_subgraphs=True))
    assert {body.owner for body in given.subgraphs} == {"y"}
    assert {body.partitions for body in given.subgraphs} == {(("then_branch",),), (("else_branch",),)}


def test_core_ml_version_gates(tmp_path: Path) -> None:
    same_lower = one("Conv", constants={"w": ones(2, 4, 3, 3)}, auto_pad="SAME_LOWER")
    assert decision(same_lower, tmp_path, coreml("coreml-mlprogram", coreml_version=5)).code == "version"
    assert decision(same_lower, tmp_path, coreml("coreml-mlprogram", coreml_version=6)).claimed
    too_old = answer(one("Relu"), tmp_path, coreml("coreml-nn", coreml_version=4))
    assert "below 5" in (present(too_old.load).error or "")
    assert claims(one("Flatten"), tmp_path, coreml("coreml-mlprogram", (1, 21), coreml_version=4)) == [{"y"}]


def test_pad_with_axes_under_an_empty_name(tmp_path: Path) -> None:
    constants = {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "v": np.float32(0)}
    made = one("Pad", (1, 1, 4, 4), inputs=["x", "p", "v", ""], constants=constants, opset=18)
    assert decision(made, tmp_path, NN).code == "const"
    fatal = answer(made, tmp_path, coreml("coreml-nn", (1, 26)))
    assert "throws" in (present(fatal.load).error or "")


def test_integer_clip_is_supported_without_bounds(tmp_path: Path) -> None:
    """MLProgram from 1.24 on, in libraries that Apple's tools built; measured on held-out graphs of 1.28."""
    free = one("Clip", (2, 3), kind=I64)
    bound = one("Clip", (2, 3), kind=I64, constants={"low": np.int64(0)})
    new, old = (coreml("coreml-mlprogram", release) for release in ((1, 24), (1, 23)))
    assert decision(free, tmp_path, new).claimed
    assert decision(bound, tmp_path, new).code == "type"
    assert not decision(free, tmp_path, old).claimed
    assert not decision(free, tmp_path, coreml("coreml-mlprogram", (1, 24), coreml6_types=False)).claimed
    assert not decision(free, tmp_path, coreml("coreml-nn", (1, 24))).claimed


UNKNOWN_RANK = model(parsed_nodes("y = Squeeze (x)"), [value("x", (1, None))], ["y"])
EMPTY_NAME = helper.make_node("Split", ["x", ""], ["y", "z"], axis=0, num_outputs=2)
EMPTY_SPLIT = model([EMPTY_NAME], [value("x", (4, 6))], ["y", "z"], opset=18)
DOUBLES = [value("x", (1, 2, 4, 4)), value("grid", (1, 3, 3, 2), TensorProto.DOUBLE)]
GRID_OF_DOUBLES = model(parsed_nodes("y = GridSample (x, grid)"), DOUBLES, ["y"], opset=16)
"""GridSample checks the type of its first input only."""


@pytest.mark.parametrize(
    ("made", "settings", "claimed", "words"),
    [
        (one("Shape", (2, 3), end=2, opset=15), MLP, False, "end = 2"),
        (one("Shape", ()), MLP, False, "rank 0"),
        (one("ConvTranspose", constants={"w": ones(4, 2, 3, 3)}), MLP, False, "no attribute pads"),
        (one("Unsqueeze", (2, 3), constants={"a": np.array(0)}), MLP, False, "single number"),
        (UNKNOWN_RANK, NN, True, "'y' leaves the Core ML model, and its rank is not known"),
        (UNKNOWN_RANK, MLP, True, "'y' leaves the Core ML model, and its rank is not known"),
        (EMPTY_SPLIT, NN, True, "under an empty name"),
        (EMPTY_SPLIT, MLP, True, "under an empty name"),
        (GRID_OF_DOUBLES, MLP, True, "'grid' goes between ONNX Runtime and the Core ML model"),
        (GRID_OF_DOUBLES, MLP, True, "is of type f64"),
    ],
)
def test_what_ends_the_session_is_foreseen(
    made: onnx.ModelProto, settings: Settings, claimed: bool, words: str, tmp_path: Path
) -> None:
    """Before anything is claimed, or where what is claimed is built."""
    given = answer(made, tmp_path, settings)
    assert given.error is None, given.error
    assert words in (present(given.load).error or "")
    assert present(given.load).remedy
    assert bool(given.partitions) is claimed


IN_HALF = parsed_nodes("h = Cast <to = 10> (x)  y = Softmax (h)")
BOOL_READ = parsed_nodes("r = Relu (x)  b = Cast <to = 9> (r)  y = Not (b)")


@pytest.mark.parametrize(
    ("made", "settings", "rounds"),
    [
        (chain("Relu", "Softsign", "Relu"), NN, (2,)),
        # A function is inlined, and asked about in a round of its own: HardSwish has no CPU kernel, its Mul is compiled
        # alone. Softmax-13 has none in f16, although Sub changed between opsets 13 and 17.
        (chain("Relu", "HardSwish", "Relu"), NN, (2, 1)),
        (model(IN_HALF, [value("x", (2, 3))], ["y"]), MLP, (0, 0)),
        (model(BOOL_READ, [value("x", (2, 3))], ["y"]), coreml("coreml-mlprogram", (1, 27)), (1,)),
    ],
)
def test_partitions_are_counted_by_round(
    made: onnx.ModelProto, settings: Settings, rounds: tuple[int, ...], tmp_path: Path
) -> None:
    found = present(answer(made, tmp_path, settings).load)
    assert (found.rounds, found.partitions, found.error) == (rounds, rounds[-1], None)


def batch_normalization(*, overridable: bool) -> onnx.ModelProto:
    """A BatchNormalization whose scale is an initializer, perhaps listed as input too."""
    constants = {name: ones(4) for name in ("s", "b", "m", "v")}
    made = one("BatchNormalization", constants=constants)
    if overridable:
        made.graph.input.append(value("s", (4,)))
    return made


def test_batch_normalization_takes_overridable_parameters(tmp_path: Path) -> None:
    for settings in (NN, MLP):
        assert decision(batch_normalization(overridable=True), tmp_path, settings).claimed
    made = batch_normalization(overridable=False)
    del made.graph.initializer[3]
    made.graph.input.append(value("v", (4,)))
    refused = decision(made, tmp_path, NN)
    assert (refused.claimed, refused.code) == (False, "const")
    assert "variance 'v'" in (refused.reason or "")


def test_a_constant_must_not_be_overridable(tmp_path: Path) -> None:
    made = one("Conv", constants={"w": ones(2, 4, 3, 3)})
    made.graph.input.append(value("w", (2, 4, 3, 3)))
    refused = decision(made, tmp_path, NN)
    assert refused.code == "const"
    assert "callers could replace it" in (refused.reason or "")
    assert decision(made, tmp_path, MLP).claimed


def test_cast_needs_a_producer_until_release_1_27(tmp_path: Path) -> None:
    alone, behind = one("Cast", to=I32), chain("Relu", "Cast")
    behind.graph.node[1].attribute.append(helper.make_attribute("to", I32))
    assert claims(alone, tmp_path, MLP) == []
    assert claims(behind, tmp_path, MLP) == [{"y0", "y1"}]
    newer = coreml("coreml-mlprogram", (1, 27))
    refused = decision(alone, tmp_path, newer)
    assert (refused.claimed, refused.code) == (False, "trivial")


def reduce_with_axes(*, raw: bool) -> onnx.ModelProto:
    """ReduceSum-13 with noop_with_empty_axes and axes stored in one way or the other."""
    made = one("ReduceSum", inputs=["x", "axes"], noop_with_empty_axes=1)
    axes = (
        numpy_helper.from_array(np.array([1]), "axes")
        if raw
        else helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    )
    made.graph.initializer.append(axes)
    return made


def test_axes_as_raw_bytes_are_empty_to_the_neural_network_builder(tmp_path: Path) -> None:
    assert decision(reduce_with_axes(raw=True), tmp_path, NN).code == "noop"
    assert decision(reduce_with_axes(raw=False), tmp_path, NN).claimed
    assert decision(reduce_with_axes(raw=True), tmp_path, MLP).claimed


def test_trivial_groups_are_dropped_since_release_1_27(tmp_path: Path) -> None:
    made = chain("Transpose", "Erf", "Transpose", "Relu")
    assert claims(made, tmp_path, NN) == [{"y0"}, {"y2", "y3"}]
    newer = answer(made, tmp_path, coreml("coreml-nn", (1, 27)))
    assert newer.partitions == (("y2", "y3"),)
    assert newer.decisions[0].code == "trivial"
