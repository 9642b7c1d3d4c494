"""Files that are larger than their model: said, with the form that is not, and not what ships unasked."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.command import ort_mobile

SIZE = 512


def model(path: Path, stored: str) -> Path:
    """y = x @ w with `w` in 8 bits behind Cast and Mul, in 16 behind Cast, or in 32."""
    weights = np.random.default_rng(0).integers(-127, 127, (SIZE, SIZE))
    nodes = {
        "i1": [
            helper.make_node("Cast", ["q"], ["c"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["c", "s"], ["w"]),
        ],
        "f2": [helper.make_node("Cast", ["q"], ["w"], to=TensorProto.FLOAT)],
        "f4": [helper.make_node("Identity", ["q"], ["w"])],
    }[stored]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, SIZE]) for name in "xy")
    constants = [
        numpy_helper.from_array(weights.astype(stored), "q"),
        numpy_helper.from_array(np.full((), 0.01, "f"), "s"),
    ]
    graph = helper.make_graph([*nodes, helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y])
    graph.initializer.extend(constants if stored == "i1" else constants[:1])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


@pytest.mark.parametrize(("stored", "times"), [("i1", "4.0"), ("f2", "2.0")])
def test_a_file_that_grew_is_a_warning_that_names_the_form_that_did_not(
    tmp_path: Path, stored: str, times: str
) -> None:
    grown = model(tmp_path / "m.onnx", stored)
    told = ort_mobile("convert", grown, "--output", tmp_path / "o", "--level", "none,all").err
    assert f"m.onnx: all-fixed, all-runtime: up to {times} times the size of the model" in told
    assert "where size matters: none-fixed has " in told
    alone = ort_mobile("convert", grown, "--output", tmp_path / "p", "--level", "all").err
    assert "where size matters: level none keeps it as it is" in alone


def test_a_file_of_the_size_of_its_model_is_none(tmp_path: Path) -> None:
    assert "times" not in ort_mobile("convert", model(tmp_path / "m.onnx", "f4"), "--output", tmp_path / "o").err


def test_a_precision_that_grew_names_the_file_that_was_given(tmp_path: Path) -> None:
    given = model(tmp_path / "m.onnx", "f4")
    told = ort_mobile("convert", given, "--output", tmp_path / "o", "--level", "none,all", "--precision", "fp16").err
    assert f"warning: {given}: all-fixed-fp16" in told
    assert "times the size of the model" in told


@pytest.mark.parametrize("name", ["m.bin", "m.onnx.data"])
def test_weights_in_a_file_of_their_own_count(tmp_path: Path, name: str) -> None:
    plain = onnx.load(model(tmp_path / "m.onnx", "i1"))
    onnx.save(plain, tmp_path / "m.onnx", save_as_external_data=True, location=name, size_threshold=1024)
    told = ort_mobile("convert", tmp_path / "m.onnx", "--output", tmp_path / "o", "--level", "none,all").err
    assert "m.onnx: all-fixed, all-runtime: up to 4.0 times the size of the model" in told


def trees() -> onnx.NodeProto:
    """An ensemble of 8,000 small trees."""
    count, nodes = 8000, range(3)
    return helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1,
        nodes_treeids=[tree for tree in range(count) for _ in nodes], nodes_nodeids=count * [0, 1, 2],
        nodes_featureids=count * [1, 0, 0], nodes_values=count * [0.5, 0.0, 0.0],
        nodes_modes=count * ["BRANCH_LEQ", "LEAF", "LEAF"], nodes_truenodeids=count * [1, 0, 0],
        nodes_falsenodeids=count * [2, 0, 0], target_treeids=[tree for tree in range(count) for _ in range(2)],
        target_nodeids=count * [1, 2], target_ids=count * [0, 0], target_weights=count * [1.0, 2.0],
    )  # fmt: skip


def classes() -> onnx.NodeProto:
    """A classifier of 400 small trees: far below what a model of layers may grow by."""
    count, nodes = 400, range(3)
    return helper.make_node(
        "TreeEnsembleClassifier", ["x"], ["y", "scores"], domain="ai.onnx.ml", classlabels_int64s=[0, 1],
        nodes_treeids=[tree for tree in range(count) for _ in nodes], nodes_nodeids=count * [0, 1, 2],
        nodes_featureids=count * [1, 0, 0], nodes_values=count * [0.5, 0.0, 0.0],
        nodes_modes=count * ["BRANCH_LEQ", "LEAF", "LEAF"], nodes_truenodeids=count * [1, 0, 0],
        nodes_falsenodeids=count * [2, 0, 0], class_treeids=[tree for tree in range(count) for _ in range(2)],
        class_nodeids=count * [1, 2], class_ids=count * [0, 1], class_weights=count * [1.0, 1.0],
    )  # fmt: skip


LISTS = {
    "classifier of small trees": (classes(), TensorProto.FLOAT, TensorProto.INT64),
    "trees": (trees(), TensorProto.FLOAT, TensorProto.FLOAT),
    "classes": (
        helper.make_node(
            "LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_int64s=range(50_000), values_int64s=50_000 * [1]
        ),
        TensorProto.INT64, TensorProto.INT64,
    ),
    "grams": (
        helper.make_node(
            "TfIdfVectorizer", ["x"], ["y"], mode="TF", min_gram_length=1, max_gram_length=1, max_skip_count=0,
            ngram_counts=[0], ngram_indexes=range(50_000), pool_int64s=range(50_000),
        ),
        TensorProto.INT64, TensorProto.FLOAT,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", LISTS)
def test_the_form_that_is_advised_for_lists_of_attributes_does_not_grow(tmp_path: Path, kind: str) -> None:
    node, takes, gives = LISTS[kind]
    x, y = (helper.make_tensor_value_info("x", takes, [1, 4]), helper.make_tensor_value_info("y", gives, None))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    given = tmp_path / "m.onnx"
    onnx.save(helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets, ir_version=8), given)
    for level in ("none", "basic"):
        told = ort_mobile("convert", given, "--output", tmp_path / level, "--level", level).err
        assert "the ORT format writes each element of an operator's lists in 4 or 8 bytes" in told
        assert "where size matters: ONNX files (style onnx) keep it as it is" in told
    ended = ort_mobile("run", "--model", given, "--convert-only", "--quick", "--output", tmp_path / "run")
    assert "times the size of the original: ONNX files (style onnx) keep it as it is" in ended.out
    told = ort_mobile("convert", given, "--output", tmp_path / "onnx", "--style", "onnx", "--level", "basic").err
    assert "times the size" not in told
    (file,) = (tmp_path / "onnx").glob("*.onnx")
    assert file.stat().st_size < 1.1 * given.stat().st_size


def test_nothing_ships_unmeasured_at_four_times_its_size(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(
        'name = "m"\n[[models]]\npath = "m.onnx"\n[[targets]]\nname = "a"\nplatform = "android"\nabis = ["arm64-v8a"]\n'
        '[variants]\nlevels = ["none", "all"]\nstyles = ["fixed"]\n'
    )
    model(tmp_path / "m.onnx", "i1")
    ended = ort_mobile("run", "m.toml", "--convert-only", "--output", "o", cwd=tmp_path)
    (choice,) = json.loads((tmp_path / "o" / "results.json").read_text())["choices"]
    assert choice["variant"] == "none-fixed"
    assert "level all makes it 4.0 times as large" in choice["reason"]
    assert "all-fixed: up to 4.0 times the size of the model" in ended.out
    assert "Size:     258.4 KiB, the original 256.1 KiB (+1 %)" in ended.out


def test_where_all_that_is_made_grew_that_is_a_reservation(tmp_path: Path) -> None:
    ended = ort_mobile(
        "run", "--model", model(tmp_path / "m.onnx", "i1"), "--convert-only", "--quick", "--output", "o", cwd=tmp_path
    )
    assert "- all-fixed of m has 4.0 times the size of the original: level none keeps it as it is" in ended.out
