"""Sizes and values that are found for models, or given by the same names to every command; the error where none is."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from device_runner.spec import ElementType
from pipeline.check.compare import read_tensor
from pipeline.check.reference import make_reference
from pipeline.config import Range
from pipeline.core.errors import ConfigError
from pipeline.dataset import Dataset, TensorInfo, first_sample, usual_sizes
from pipeline.dataset.guess import (
    Guess,
    guess_inputs,
    guess_values,
    inputs_of_file,
    make_feeds,
)
from pipeline.dataset.lengths import full_lengths
from pipeline.dataset.states import states_of
from pipeline.model.signature import own_inputs
from pipeline.model.sources import SourceModel
from tests.command import Done, ort_mobile
from tests.onnx_samples import parsed_nodes

Dims = list[int | str | None]


def model(
    nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, Dims]], tensors: dict[str, Any] | None = None
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in inputs.items()],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(array, name) for name, array in (tensors or {}).items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def guess(folder: Path, made: onnx.ModelProto, **given: int) -> Guess:
    onnx.save(made, folder / "m.onnx")
    source = SourceModel(path=str(folder / "m.onnx"))
    return guess_inputs(source, given, Dataset(), str(folder))


def flattened(features: int, dims: Dims) -> onnx.ModelProto:
    """An image model whose fully connected layer fits one size alone."""
    nodes = parsed_nodes("flat = Flatten (x)  y = MatMul (flat, w)")
    return model(nodes, {"x": (TensorProto.FLOAT, dims)}, {"w": np.ones((features, 2), np.float32)})


def test_the_metadata_of_the_exporter_come_first(tmp_path: Path) -> None:
    made = model(parsed_nodes("y = Relu (x)"), {"x": (1, ["batch", 3, "height", "width"])})
    helper.set_model_props(made, {"imgsz": "[416, 640]"})
    found = guess(tmp_path, made)
    assert (found.dimensions["height"], found.dimensions["width"]) == (416, 640)
    assert "metadata" in found.reasons["height"]


def embedded(rows: int) -> onnx.ModelProto:
    nodes = parsed_nodes("y = Gather (table, tokens)")
    return model(nodes, {"tokens": (TensorProto.INT64, ["batch", "length"])}, {"table": np.ones((rows, 4), np.float32)})


def switched() -> onnx.ModelProto:
    """Runs with 100 or more samples, and only where `sr` is 16000."""

    def body(name: str, shape: str) -> onnx.GraphProto:
        return helper.make_graph(
            [helper.make_node("Reshape", ["x", shape], [name])], name, [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
        )  # fmt: skip

    nodes = [
        helper.make_node("Equal", ["sr", "rate"], ["same"]),
        helper.make_node("If", ["same"], ["y"], then_branch=body("a", "good"), else_branch=body("b", "bad")),
    ]
    inputs: dict[str, tuple[int, Dims]] = {"x": (1, ["batch", "samples"]), "sr": (TensorProto.INT64, [])}
    tensors = {
        "rate": np.array(16000, np.int64), "good": np.array([-1, 256], np.int64), "bad": np.array([3, 7], np.int64),
    }  # fmt: skip
    return model(nodes, inputs, tensors)


def channels_last() -> onnx.ModelProto:
    return model(parsed_nodes("y = Relu (x)"), {"x": (1, [None, None, None, 3])})


def connected() -> onnx.ModelProto:
    nodes = parsed_nodes("y = Gemm <transB = 1> (x, w)")
    return model(nodes, {"x": (1, ["batch", "features"])}, {"w": np.ones((2, 37), np.float32)})


def state_and_speed() -> onnx.ModelProto:
    made = model(parsed_nodes("y = Mul (state, speed)"), {"state": (1, [2, None, 8]), "speed": (1, [1])})
    made.graph.node.append(helper.make_node("Mul", ["y", "y"], ["stateN"]))
    made.graph.output.append(helper.make_tensor_value_info("stateN", 1, [2, None, 8]))
    return made


def heard(dims: Dims) -> onnx.ModelProto:
    """Takes signals of several lengths, which it compares with those of all."""
    nodes = parsed_nodes("sum = ReduceSum (waveforms)  floats = Cast <to = 1> (waveforms_lens)  y = Add (sum, floats)")
    return model(nodes, {"waveforms": (1, dims), "waveforms_lens": (TensorProto.INT64, ["N"])})


def slots(kind: int) -> onnx.ModelProto:
    """A network over graphs: as many slots as there are graphs, and the graph of each node."""
    nodes = parsed_nodes(
        "z = Cast <to = 1> (graph_slots)  s = ReduceMean <axes = [1], keepdims = 0> (h)  "
        'y = ScatterElements <reduction = "add"> (z, batch, s)'
    )
    return model(
        nodes, {"graph_slots": (kind, ["num_graphs"]), "h": (1, ["num_nodes", 8]), "batch": (7, ["num_nodes"])}
    )


def trees() -> onnx.ModelProto:
    """A tree that looks at column 300."""
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1,
        nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2], nodes_featureids=[300, 0, 0], nodes_values=[0.5, 0.0, 0.0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"], nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0],
        target_treeids=[0, 0], target_nodeids=[1, 2], target_ids=[0, 0], target_weights=[1.0, 2.0],
    )  # fmt: skip
    made = model([node], {"x": (1, ["rows", "columns"])})
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return made


def convolved(nodes: str) -> onnx.ModelProto:
    tensors = {
        "w": np.ones((2, 1, 5), np.float32), "one": np.array([1], np.int64), "two": np.array([2], np.int64),
        "four": np.array([0, 2, 0, 2], np.int64),
    }  # fmt: skip
    return model(parsed_nodes(nodes), {"x": (1, ["b", "n"])}, tensors)


GUESSES: dict[str, tuple[onnx.ModelProto, dict[str, int], dict[str, object]]] = {
    "an image has the size that the layers behind it demand": (
        flattened(3 * 96 * 96, ["batch", 3, "height", "width"]), {"batch": 1, "height": 96, "width": 96}, {}
    ),
    "placeholders of one name are different dimensions": (
        flattened(3 * 48 * 320, ["?", 3, "?", "?"]), {"x[0]": 1, "x[2]": 48, "x[3]": 320}, {}
    ),
    "channels may come last": (channels_last(), {"x[0]": 1, "x[1]": 224, "x[2]": 224}, {}),
    "features are what the connected layer takes": (connected(), {"batch": 1, "features": 37}, {}),
    "tokens stay within their embedding table": (
        embedded(178), {"batch": 1, "length": 128}, {"tokens": Range(low=0, high=178)}
    ),
    "a number that the graph compares with is given": (switched(), {"batch": 1, "samples": 512}, {"sr": 16000}),
    "states begin with zeros and single numbers are one": (
        state_and_speed(), {"state[1]": 1}, {"state": 0.0, "speed": 1.0}
    ),
    "N behind a batch is the length of a signal": (
        model(parsed_nodes("y = Relu (waveforms)"), {"waveforms": (1, ["batch_size", "N"])}),
        {"batch_size": 1, "N": 16000}, {},
    ),
    "a length is all of the axis it speaks of": (
        heard(["N", "T"]), {"N": 1, "T": 16000}, {"waveforms_lens": 16000}
    ),
    "lengths have a row for each of the batch": (
        model(
            parsed_nodes("floats = Cast <to = 1> (length)  y = Add (x, floats)"),
            {"x": (1, ["N", 4]), "length": (TensorProto.INT64, ["rows"])},
        ),
        {"N": 1, "rows": 1}, {"length": 4},
    ),
    "a length is no number of features": (heard(["N", "T", 80]), {"N": 1, "T": 100}, {"waveforms_lens": 100}),
    "names in any script are names": (
        model(parsed_nodes("y = Add (x, z)"), {name: (1, [None, "幅"]) for name in ("x", "z")}),
        {"x[0]": 1, "z[0]": 1, "幅": 64}, {},
    ),
    "slots of graphs are no sound": (slots(1), {"num_graphs": 64, "num_nodes": 1}, {}),
    "nor are slots that are whole numbers": (slots(7), {"num_graphs": 128, "num_nodes": 1}, {}),
    "nor are scores beside boxes": (
        model(parsed_nodes("y = Sigmoid (scores)"), {"scores": (1, ["detections"])}), {"detections": 64}, {}
    ),
    "nor are columns of a table": (
        model(parsed_nodes("y = Relu (x)"), {"x": (1, ["rows", "columns"])}), {"rows": 1, "columns": 64}, {}
    ),
    "a tree ensemble takes the columns that it looks at": (
        trees(), {"rows": 1, "columns": 301}, {}
    ),
    "what is convolved along its one axis is sound, whatever its name": (
        convolved("c = Unsqueeze (x, one)  y = Conv (c, w)"), {"b": 1, "n": 16000}, {}
    ),
    "so it is behind a padding and a mean": (
        convolved("m = Sub (x, x)  p = Pad (m, four)  c = Unsqueeze (p, one)  y = Conv (c, w)"),
        {"b": 1, "n": 16000}, {},
    ),
    "so is what goes into a Fourier transform": (
        convolved("c = Unsqueeze (x, two)  y = DFT (c)"), {"b": 1, "n": 16000}, {}
    ),
    "what is convolved across features is no sound": (
        model(
            parsed_nodes("c = Transpose <perm = [0, 2, 1]> (x)  y = Conv (c, w)"), {"x": (1, [1, "steps", 8])},
            {"w": np.ones((4, 8, 3), np.float32)},
        ), {"steps": 100}, {},
    ),
    "a factor between rates is no rate": (
        model(
            parsed_nodes("f = Cast <to = 1> (downsample_rate)  y = Mul (x, f)"),
            {"x": (1, [1, 4]), "downsample_rate": (7, [1])},
        ), {}, {},
    ),
    "samples a second are a rate": (
        model(
            parsed_nodes("f = Cast <to = 1> (audio_sample_rate)  y = Mul (x, f)"),
            {"x": (1, [1, 4]), "audio_sample_rate": (7, [1])},
        ), {}, {"audio_sample_rate": 16000},
    ),
    "of two open axes none is a whole signal": (
        model(parsed_nodes("y = Relu (x)"), {"x": (1, ["a", "rows", None])}), {"a": 1, "rows": 100, "x[2]": 100}, {}
    ),
}  # fmt: skip


def mapped(source: str, target: str, size: Dims, after: Dims | None = None) -> onnx.ModelProto:
    """Features that become others of the same size."""
    made = model(parsed_nodes("t = Relu (s)"), {"x": (1, [1, 4])})
    made.graph.node[0].input[0], made.graph.node[0].output[0] = source, target
    made.graph.input.append(helper.make_tensor_value_info(source, 1, size))
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info(target, 1, after or size))
    return made


def unnamed_recurrence(kind: str = "LSTM") -> onnx.ModelProto:
    """The two states of an LSTM in one input and one output, with names that say nothing."""
    nodes = parsed_nodes(
        "h0 = Gather <axis = 0> (in_3, zero)  c0 = Gather <axis = 0> (in_3, one)  "
        f"Y, h1, c1 = {kind} <hidden_size = 2> (x, W, R, , , h0, c0)  "
        "h2 = Unsqueeze (h1, zero)  c2 = Unsqueeze (c1, zero)  out_7 = Concat <axis = 0> (h2, c2)  y = Relu (Y)"
    )
    tensors = {
        "W": np.ones((1, 8, 3), np.float32), "R": np.ones((1, 8, 2), np.float32),
        "zero": np.array(0, np.int64), "one": np.array(1, np.int64),
    }  # fmt: skip
    made = model(nodes, {"x": (1, [1, 1, 3]), "in_3": (1, [2, 1, 1, 2])}, tensors)
    made.graph.output.append(helper.make_tensor_value_info("out_7", 1, [2, 1, 1, 2]))
    return made


def gated(*, with_data: bool) -> onnx.ModelProto:
    """A cell as its own nodes: a gate lets the last state through, to which new numbers are added."""
    nodes = parsed_nodes(
        "c = Slice (in_5, zero, one)  gate = Sigmoid (x)  kept = Mul (gate, c)  made = Add (kept, x)  "
        "out_9 = Transpose (made)  y = Relu (made)"
    )
    tensors = {"zero": np.zeros(1, np.int64), "one": np.array([4], np.int64)}
    inputs: dict[str, tuple[int, Dims]] = {"x": (1, [4, 4]), "in_5": (1, [4, 4])}
    made = model(nodes, inputs, tensors)
    made.graph.output.append(helper.make_tensor_value_info("out_9", 1, [4, 4]))
    if not with_data:
        del made.graph.output[0]
    return made


STATES: dict[str, tuple[onnx.ModelProto, dict[str, str]]] = {
    "a state and its next value": (mapped("state", "stateN", [2, 1, 8]), {"stateN": "state"}),
    "a cache of one size": (
        mapped("past_key_values.0.key", "present.0.key", [1, 2, 16, 4]), {"present.0.key": "past_key_values.0.key"}
    ),
    "the ends of an LSTM": (unnamed_recurrence(), {"out_7": "in_3"}),
    "the ends of an LSTM in 8 bits": (unnamed_recurrence("com.microsoft.DynamicQuantizeLSTM"), {"out_7": "in_3"}),
    "the ends of an LSTM with attention": (unnamed_recurrence("com.microsoft.AttnLSTM"), {"out_7": "in_3"}),
    "a cell as its nodes": (gated(with_data=True), {"out_9": "in_5"}),
    "a gate alone": (gated(with_data=False), {}),
    "no output of its size": (mapped("state", "stateN", [2, 1, 8], [2, 1, 9]), {}),
    "a cache that grows": (mapped("past_key", "present_key", [1, "past", 4], [1, "total", 4]), {}),
    "an encoder's features": (mapped("encoder_hidden_states", "last_hidden_state", [1, 16, 64]), {}),
    "features by another name": (mapped("hidden_states", "y", [1, 16, 64]), {}),
    "cells that are features": (mapped("cell_features", "logits", [1, 16]), {}),
    "an image of the same size": (mapped("image_in", "image_out", [1, 3, 8, 8]), {}),
}  # fmt: skip


@pytest.mark.parametrize("why", STATES)
def test_a_state_has_an_output_of_its_own(why: str) -> None:
    made, states = STATES[why]
    assert states_of(made, own_inputs(made)) == states
    zeros = [name for name, (value, _) in guess_values(made, own_inputs(made)).items() if value == 0.0]
    assert zeros == list(states.values())


COLUMN: Dims = ["n", 1]
VECTOR: Dims = ["n"]
SCALAR: Dims = [1]


@pytest.mark.parametrize(
    ("dims", "kind", "name", "value"),
    [
        (COLUMN, TensorProto.FLOAT, "age", None),
        (VECTOR, TensorProto.FLOAT, "act", None),
        ([1, 1], TensorProto.FLOAT, "income", None),
        (COLUMN, TensorProto.DOUBLE, "temperature_feature", None),
        (SCALAR, TensorProto.FLOAT, "speed", 1.0),
        ([], TensorProto.FLOAT16, "scale", 1.0),
        (["n", 8], TensorProto.BOOL, "mask", 1),
        (["n", 8], TensorProto.INT64, "mask", 1),
        (["n", 8], TensorProto.BOOL, "src_key_padding_mask", 0),
        (VECTOR, TensorProto.INT64, "sr", 16000),
    ],
)
def test_init_and_run_guess_the_same_values(
    dims: Dims, kind: int, name: str, value: float | None, tmp_path: Path
) -> None:
    """Also where a size that was fixed leaves one element of an input."""
    made = model(parsed_nodes(f"z = Cast <to = 1> ({name})  y = Add (x, z)"), {"x": (1, ["n", 8]), name: (kind, dims)})
    found = guess(tmp_path, made)
    assert found.values == ({} if value is None else {name: value})
    source, sizes = SourceModel(path=str(tmp_path / "m.onnx")), {"n": 1}
    run = make_reference(source, sizes, Dataset(), str(tmp_path / "out"), str(tmp_path))
    assert run.data.inputs == found.values
    assert guess(tmp_path, made, **sizes).values == found.values
    (given,) = (read_tensor(tensor) for tensor in run.inputs if tensor.name == name)
    assert value is None or (given == value).all()
    assert value is not None or (given != 1).all()


@pytest.mark.parametrize(
    ("given", "random", "constants"),
    [({"a": 0.5}, True, ("a", "speed")), ({"a": 0.5, "b": 2.0}, False, ("a", "b", "speed")), ({}, True, ("speed",))],
)
def test_inputs_are_random_only_where_some_are(
    given: dict[str, float], random: bool, constants: tuple[str, ...], tmp_path: Path
) -> None:
    """A guessed constant counts as one that was given; what nobody repeats is found with constants, too."""
    nodes = parsed_nodes("c = Add (a, b)  d = Mul (c, factor)  e = Sin (d)  y = Mul (e, speed)")
    inputs: dict[str, tuple[int, Dims]] = {"a": (1, [1, 8]), "b": (1, [1, 8]), "speed": (1, [1])}
    onnx.save(model(nodes, inputs, {"factor": np.array([1e7], np.float32)}), tmp_path / "m.onnx")
    source = SourceModel(path=str(tmp_path / "m.onnx"))
    run = make_reference(source, {}, Dataset(inputs={**given}), str(tmp_path / "out"), str(tmp_path))
    assert (run.random_inputs, tuple(sorted(run.constants))) == (random, constants)
    assert run.unsteady == ("y",)


def decoder(past: str, after: str, mask: int | str, read: str = "m = ReduceSum (mask)") -> onnx.ModelProto:
    """A decoder's step: a cache that has one more row afterwards, and a mask over both."""
    nodes = parsed_nodes(f"present_key = Concat <axis = 1> (past_key, x)  {read}  y = Add (present_key, m)")
    inputs: dict[str, tuple[int, Dims]] = {
        "past_key": (1, ["batch", past, 4]), "x": (1, ["batch", 1, 4]), "mask": (1, ["batch", mask, 1])
    }  # fmt: skip
    made = model(nodes, inputs)
    made.graph.output.append(helper.make_tensor_value_info("present_key", 1, ["batch", after, 4]))
    return made


@pytest.mark.parametrize(
    "names",
    [("past", "total", "total"), ("past", "past + 1", "past + 1"), ("p", "present_dim", "p + 1"), ("p", "", "p + 1")],
)
def test_what_grows_with_each_step_stays_open(names: tuple[str, str, str], tmp_path: Path) -> None:
    found = guess(tmp_path, decoder(*names))
    assert (found.fixable, found.to_fix) == (True, {"batch": 1})
    assert set(found.growing) == {names[0], names[2]}
    assert found.reasons[names[0]].endswith("grows with each step")


def test_what_grows_is_fixed_where_its_size_is_given(tmp_path: Path) -> None:
    assert guess(tmp_path, decoder("p", "q", "p + 1"), p=5).to_fix == {"batch": 1, "p": 5, "p + 1": 6}


def test_what_grows_in_test_data_stays_open(tmp_path: Path) -> None:
    past, x, mask = (np.ones((1, rows, columns), np.float32) for rows, columns in ((3, 4), (1, 4), (4, 1)))
    np.savez(tmp_path / "data.npz", past_key=past, x=x, mask=mask)
    onnx.save(decoder("past", "total", "total"), tmp_path / "m.onnx")
    data = Dataset(test_data=str(tmp_path / "data.npz"))
    assert guess_inputs(SourceModel(path=str(tmp_path / "m.onnx")), {}, data, str(tmp_path)).to_fix == {"batch": 1}


def test_a_cache_that_makes_one_step_alone_gets_its_size(tmp_path: Path) -> None:
    """By its mask, whose size the file fixes."""
    found = guess(tmp_path, decoder("past", "total", 17, "m = Identity (mask)"))
    assert (found.growing, found.to_fix) == ((), {"batch": 1, "past": 16})


@pytest.mark.parametrize("why", GUESSES)
def test_sizes_and_values_are_those_that_a_model_suggests(tmp_path: Path, why: str) -> None:
    made, dimensions, values = GUESSES[why]
    found = guess(tmp_path, made)
    assert (found.dimensions, found.values) == (dimensions, values)


def impossible() -> onnx.ModelProto:
    nodes = parsed_nodes("y = Reshape (x, shape)")
    return model(nodes, {"x": (1, ["batch", "width_of_it", 7])}, {"shape": np.array([11, 13], np.int64)})


def test_where_no_size_works_nothing_is_guessed(tmp_path: Path) -> None:
    found = guess(tmp_path, impossible())
    assert found.dimensions == {}
    assert found.missing == ("width_of_it",)
    assert "Reshape" in found.why


def reference(folder: Path, made: onnx.ModelProto, sizes: dict[str, int] | None = None) -> list[tuple[int, ...]]:
    onnx.save(made, folder / "m.onnx")
    source = SourceModel(path=str(folder / "m.onnx"))
    inputs = make_reference(source, sizes or {}, Dataset(), str(folder / "r"), str(folder)).inputs
    return [tensor.shape for tensor in inputs]


def test_a_reference_without_sizes_runs_on_likely_ones(tmp_path: Path) -> None:
    assert reference(tmp_path, flattened(3 * 96 * 96, ["batch", 3, "height", "width"])) == [(1, 3, 96, 96)]


def test_a_reference_without_any_size_names_the_line_to_write(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        reference(tmp_path, impossible())
    assert "width_of_it" in caught.value.what
    assert 'dimensions = { "batch" = …, "width_of_it" = … }' in caught.value.remedy


@pytest.mark.parametrize("sizes", [{"batch": 1, "height": 1, "width": 1}, {"height": 97}])
def test_sizes_that_make_the_model_fail_are_the_cause(tmp_path: Path, sizes: dict[str, int]) -> None:
    with pytest.raises(ConfigError) as caught:
        reference(tmp_path, flattened(3 * 96 * 96, ["batch", 3, "height", "width"]), sizes)
    assert "sizes given for its dimensions" in caught.value.what
    assert "left open it runs, as with batch = 1, height = 96, width = 96" in caught.value.why
    assert "model" not in caught.value.remedy


def test_a_model_that_fails_anyway_is_not_excused_by_its_dimensions(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"fails on these inputs|not known") as caught:
        reference(tmp_path, impossible(), {"width_of_it": 3, "batch": 1})
    assert "sizes given for its dimensions" not in str(caught.value)


def test_not_enough_memory_names_the_inputs(tmp_path: Path) -> None:
    nodes = parsed_nodes("y = MatMul (a, b)")
    made = model(nodes, {"a": (1, ["n", 1]), "b": (1, [1, "m"])})
    with pytest.raises(Exception, match=r"memory|GiB|fails") as caught:
        reference(tmp_path, made, {"n": 1 << 20, "m": 1 << 20})
    assert "a [1048576, 1]" in caught.value.why  # type: ignore[attr-defined] # one of the pipeline's errors


def test_sums_follow_from_their_parts() -> None:
    assert usual_sizes.with_sums({"past": 16, "seq": 4}, ["past + seq", "past + 1", "x + y"]) == {
        "past": 16, "seq": 4, "past + seq": 20, "past + 1": 17,
    }  # fmt: skip


def paddle(folder: Path) -> Path:
    """A model of images whose sizes have a placeholder for a name."""
    onnx.save(flattened(3 * 28 * 28, ["?", 3, "?", "?"]), folder / "m.onnx")
    return folder / "m.onnx"


SIZES = ("--dimension", "x[0]=1", "--dimension", "x[2]=28", "--dimension", "x[3]=28")


def converted(folder: Path, *options: object, code: int | None = 0) -> Done:
    words = (folder / "m.onnx", "--output", folder / "out", "--level", "basic", "--style", "fixed")
    return ort_mobile("convert", *words, *options, code=code)


def measured(file: Path, folder: Path, *options: object, code: int | None = 0) -> Done:
    words = (file, "--rounds", 1, "--min-runs", 1, "--min-seconds", 0.001, "--json", folder / "p.json")
    return ort_mobile("perf", *words, *options, code=code)


@pytest.mark.long
def test_conversion_and_measuring_take_the_same_names(tmp_path: Path) -> None:
    paddle(tmp_path)
    converted(tmp_path, "--check")
    for file in (tmp_path / "m.onnx", tmp_path / "out" / "m.basic-fixed.ort"):
        measured(file, tmp_path, *SIZES)
        assert json.loads((tmp_path / "p.json").read_text())["rows"]


def test_a_file_in_the_ort_format_says_its_inputs(tmp_path: Path) -> None:
    paddle(tmp_path)
    converted(tmp_path)
    (info,) = inputs_of_file(tmp_path / "out" / "m.basic-fixed.ort")
    assert (info.name, len(info.shape or ()), (info.shape or ())[1]) == ("x", 4, 3)


@pytest.mark.parametrize("name", ["m.onnx", "out/m.basic-fixed.ort"])
def test_a_misspelt_dimension_is_refused_by_perf(tmp_path: Path, name: str) -> None:
    onnx.save(model(parsed_nodes("y = Relu (x)"), {"x": (1, ["batch", 3])}), tmp_path / "m.onnx")
    converted(tmp_path)
    result = measured(tmp_path / name, tmp_path, "--dimension", "bacth=3", code=2)
    assert "remedy: did you mean 'batch'?\n" in result.err


def test_a_file_in_the_ort_format_wants_sizes_by_name(tmp_path: Path) -> None:
    paddle(tmp_path)
    converted(tmp_path)
    result = measured(tmp_path / "out" / "m.basic-fixed.ort", tmp_path, "--dimension", "x[2]=4", code=2)
    assert "x[3]" in result.err


def test_what_nobody_sizes_is_measured_on_likely_sizes(tmp_path: Path) -> None:
    path = paddle(tmp_path)
    converted(tmp_path)
    done = measured(path, tmp_path, tmp_path / "out" / "m.basic-fixed.ort")
    document = json.loads((tmp_path / "p.json").read_text())
    assert [row["status"] for row in document["rows"]] == ["ok", "ok"]
    assert [row["what"] for row in document["warnings"]] == 2 * ["sizes were guessed: x[0] = 1, x[2] = 28, x[3] = 28"]
    assert "--dimension 'x[0]=1' --dimension 'x[2]=28'" in done.out


def test_what_no_size_suits_is_not_measured(tmp_path: Path) -> None:
    onnx.save(impossible(), tmp_path / "m.onnx")
    done = measured(tmp_path / "m.onnx", tmp_path, code=2)
    assert "the sizes of batch, width_of_it are not known" in done.err
    assert "--dimension" in done.err.partition("remedy:")[2]


@pytest.mark.parametrize(
    ("names", "shape", "lengths"),
    [
        (("x", "x_lens"), (1, 100, 80), [80]),  # either axis may be meant: the shorter is within both
        (("audio_signal", "length"), ("b", 80, "frames"), [7]),
        (("x", "strength"), ("b", "n"), [0]),
        (("x", "y_lens"), ("b", "n"), [9]),
    ],
)
def test_lengths_are_full_where_names_and_shapes_say_of_what(
    names: tuple[str, str], shape: tuple[int | str, ...], lengths: list[int]
) -> None:
    takes = (
        TensorInfo(name=names[0], dtype=ElementType.FLOAT32, shape=shape),
        TensorInfo(name=names[1], dtype=ElementType.INT64, shape=("b",)),
    )
    data = Dataset(sizes={"b": 1, "n": 9, "frames": 7}, seed=1)
    assert first_sample(data, takes).inputs[names[1]].tolist() == lengths


def test_lengths_of_an_input_of_unknown_rank_are_not_guessed() -> None:
    takes = [
        TensorInfo(name="x", dtype=ElementType.FLOAT32, shape=None),
        TensorInfo(name="x_lens", dtype=ElementType.INT64, shape=(1,)),
    ]
    assert full_lengths(takes, {"x": np.ones((1, 9), np.float32), "x_lens": np.zeros(1, np.int64)}) == {}


def test_what_is_measured_is_the_test_data(tmp_path: Path) -> None:
    values = np.arange(3 * 28 * 28, dtype=np.float32).reshape(1, 3, 28, 28)
    np.savez(tmp_path / "a.npz", x=values)
    paddle(tmp_path)
    measured(tmp_path / "m.onnx", tmp_path, "--test-data", tmp_path / "a.npz")


def test_values_of_inputs_become_the_feeds(tmp_path: Path) -> None:
    from pipeline.cli.data_options import dataset_from

    onnx.save(embedded(178), tmp_path / "m.onnx")
    data = dataset_from(None, {"tokens": {"low": 170, "high": 178}})
    source = SourceModel(path=str(tmp_path / "m.onnx"))
    (tensor,) = make_feeds(source, {"length": 9}, data, str(tmp_path))
    found = np.fromfile(tensor.file, "<i8")
    assert tensor.shape == (1, 9)
    assert ((found >= 170) & (found < 178)).all()


def test_a_check_runs_on_test_data_and_refuses_other_before_converting(tmp_path: Path) -> None:
    paddle(tmp_path)
    np.savez(tmp_path / "good.npz", x=np.ones((1, 3, 28, 28), np.float32))
    np.savez(tmp_path / "bad.npz", x=np.ones((1, 3, 28, 28), np.float64))
    converted(tmp_path, "--check", "--test-data", tmp_path / "good.npz")
    converted(tmp_path, "--check", "--test-data", tmp_path / "bad.npz", "--output", tmp_path / "b", code=2)
    assert not list((tmp_path / "b").glob("*.ort"))
    assert "--check and --precision; add one" in converted(tmp_path, "--input", "x=1", code=2).err


def test_a_check_without_any_size_names_the_option(tmp_path: Path) -> None:
    onnx.save(impossible(), tmp_path / "m.onnx")
    result = converted(tmp_path, "--check", code=2)
    assert "--dimension" in result.err.partition("remedy:")[2]


def test_advice_is_checked_on_test_data(tmp_path: Path) -> None:
    paddle(tmp_path)
    np.savez(tmp_path / "good.npz", x=np.ones((1, 3, 28, 28), np.float32))
    words = ("partition", tmp_path / "m.onnx", "--ep", "nnapi")
    ort_mobile(*words, "--advise", "--test-data", tmp_path / "good.npz", "--json", tmp_path / "a.json")
    assert "[1, 3, 28, 28]" in (tmp_path / "a.json").read_text()
    assert "add one" in ort_mobile(*words, "--input", "x=1", code=2).err


def test_conversion_names_dimensions_as_the_cause(tmp_path: Path) -> None:
    onnx.save(flattened(3 * 4 * 6, ["batch", 3, "height", "width"]), tmp_path / "m.onnx")
    result = converted(tmp_path, "--dimension", "height=5", "--dimension", "width=5", "--json", "-", code=1)
    assert result.code
    assert "sizes given for its dimensions" in result.text
    assert "check_model" not in result.text


def normalized() -> onnx.ModelProto:
    return model(
        [helper.make_node("StringNormalizer", ["s"], ["y"], locale="C")], {"s": (TensorProto.STRING, ["texts"])}
    )


def encoded() -> onnx.ModelProto:
    """Numbers of words, in a table with an axis that names say nothing of; one row alone runs."""
    nodes = [
        helper.make_node(
            "LabelEncoder", ["words"], ["e"], domain="ai.onnx.ml", keys_strings=["cat", "dog"], values_floats=[1.0, 2.0]
        ),
        helper.make_node("Add", ["e", "x"], ["y"]),
    ]
    made = model(nodes, {"words": (TensorProto.STRING, ["b", "n"]), "x": (1, ["b", "n"])})
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return made


@pytest.mark.parametrize(
    ("made", "sizes", "texts"),
    [(normalized(), {"texts": 64}, {"s": ()}), (encoded(), {"b": 1, "n": 64}, {"words": ("cat", "dog")})],
    ids=["of any text", "of known texts"],
)
def test_an_input_of_strings_needs_a_text_and_has_sizes(
    tmp_path: Path, made: onnx.ModelProto, sizes: dict[str, int], texts: dict[str, tuple[str, ...]]
) -> None:
    found = guess(tmp_path, made)
    assert (found.missing, found.texts, found.dimensions) == ((), texts, sizes)
    assert not set(texts) & set(found.values), "texts are not guessed"


@pytest.mark.parametrize(
    "command", [("run", "--convert-only", "--model"), ("convert", "--check", "--output", "out"), ("perf",)]
)
def test_a_text_that_is_missing_is_asked_for_and_no_size(tmp_path: Path, command: tuple[str, ...]) -> None:
    onnx.save(encoded(), tmp_path / "m.onnx")
    said = ort_mobile(*command, "m.onnx", cwd=tmp_path, code=2).err
    assert "the input words needs a text" in said
    assert "--input 'words=\"…\"'" in said.partition("remedy:")[2]
    assert "size" not in said


def test_combinations_of_many_dimensions_are_made_as_they_are_asked_for() -> None:
    """Seven sizes for each of 40 dimensions are 10**33 combinations."""
    tried = tuple(((f"d{number}",), tuple(((size,), "usual") for size in range(7))) for number in range(40))
    first = list(itertools.islice(usual_sizes.assignments(tried), 42))
    ranks = [tuple(size for size, _ in sizes.values()) for sizes in first]
    assert ranks[0] == (0,) * 40
    assert ranks[1] == (*(0,) * 39, 1)
    assert ranks[40] == (1, *(0,) * 39)
    assert ranks[41] == (*(0,) * 39, 2)


def test_combinations_come_in_the_order_of_their_ranks() -> None:
    counts = {("a",): 3, ("h", "w"): 2, ("b",): 1, ("c",): 4}
    tried = tuple(
        (names, tuple(((size,) * len(names), "usual") for size in range(count))) for names, count in counts.items()
    )
    every = itertools.product(*map(range, counts.values()))
    wanted = [{"a": a, "h": h, "w": h, "b": b, "c": c} for a, h, b, c in sorted(every, key=sum)]
    assert [{name: size for name, (size, _) in sizes.items()} for sizes in usual_sizes.assignments(tried)] == wanted
