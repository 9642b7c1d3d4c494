"""Classifiers of two labels by one score: `CASES` has what wheels compute otherwise than 1.32.0, as measured."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from device_runner.spec import RunOptions
from pipeline.compat.defects import Runtime
from pipeline.compat.rules import check_artifact, facts_of
from pipeline.core.errors import Severity
from pipeline.core.releases import Release
from pipeline.model.ort_format import read_artifact
from tests.ort_models import convert

Case = tuple[str, int, tuple[float, ...], tuple[float, ...]]

CASES: dict[Case, str] = {
    # transformation, class, weights of each of two trees' two leaves, base values: what differs
    ("NONE", 0, (0.4, 0.1, 0.4, 0.1), ()): "1.26",
    ("NONE", 1, (0.4, 0.1, 0.4, 0.1), ()): "1.26",
    ("NONE", 0, (0.4, 0.3, 0.4, 0.3), ()): "1.26",
    ("NONE", 1, (0.4, 0.3, 0.4, 0.3), ()): "",
    ("NONE", 0, (0.4, -0.1, 0.4, 0.1), ()): "",
    ("NONE", 0, (0.0, 0.0, 0.0, 0.0), ()): "1.26",
    ("NONE", 1, (0.0, 0.0, 0.0, 0.0), ()): "",
    ("SOFTMAX", 0, (0.4, 0.3, 0.4, 0.3), ()): "1.26",
    ("SOFTMAX_ZERO", 0, (0.4, 0.3, 0.4, 0.3), ()): "1.26",
    ("PROBIT", 0, (0.4, 0.3, 0.4, 0.3), ()): "",
    ("PROBIT", 0, (0.4, 0.1, 0.4, 0.1), ()): "1.26",
    ("LOGISTIC", 0, (0.4, 0.3, 0.4, 0.3), ()): "1.25",
    ("LOGISTIC", 0, (0.4, 0.1, 0.4, 0.1), ()): "1.25 1.26",
    ("LOGISTIC", 1, (0.4, 0.1, 0.4, 0.1), ()): "1.26",
    ("LOGISTIC", 0, (0.4, -0.1, 0.4, 0.1), ()): "",
    ("LOGISTIC", 0, (0.4, 0.3, 0.4, 0.3), (-0.4,)): "1.25 1.26",
    ("LOGISTIC", 0, (0.4, 0.3, 0.4, 0.3), (0.1, 0.2)): "",
    ("NONE", 0, (0.4, 0.1, 0.4, 0.1), (0.8, 0.2)): "",
    ("NONE", 1, (0.4, 0.3, 0.4, 0.3), (0.1, 0.2)): "1.26",
    ("NONE", 1, (0.4, 0.1, 0.4, 0.1), (0.1, 0.8)): "",
    ("NONE", 1, (0.4, 0.3, 0.4, 0.3), (-0.4,)): "",
}  # fmt: skip


def forest(
    case: Case, *, version: int = 3, labels: tuple[str, ...] = ("no", "yes"), double: bool = False
) -> onnx.ModelProto:
    """Two trees that ask whether a feature is at most 0.5; inputs [N, 2] of 0 and 1 reach all sums of leaves."""
    transform, class_id, weights, bases = case
    modes, trees, leaves = ["BRANCH_LEQ", "LEAF", "LEAF"] * 2, [0, 0, 0, 1, 1, 1], [0, 0, 1, 1]
    given: dict[str, Any] = {
        "nodes_treeids": trees, "nodes_nodeids": [0, 1, 2] * 2, "nodes_featureids": trees, "nodes_modes": modes,
        "nodes_truenodeids": [1, 0, 0] * 2, "nodes_falsenodeids": [2, 0, 0] * 2, "class_treeids": leaves,
        "class_nodeids": [1, 2] * 2, "class_ids": [class_id] * 4, "post_transform": transform,
        "classlabels_strings": labels,
    }  # fmt: skip
    values = {"nodes_values": [0.5, 0.0, 0.0] * 2, "class_weights": weights} | ({"base_values": bases} if bases else {})
    for name, numbers in values.items():
        if double:
            given[f"{name}_as_tensor"] = numpy_helper.from_array(np.array(numbers), name)
        else:
            given[name] = numbers
    node = helper.make_node("TreeEnsembleClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml", **given)
    kind = TensorProto.DOUBLE if double else TensorProto.FLOAT
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", kind, ["N", 2])],
        [helper.make_tensor_value_info("label", TensorProto.STRING, ["N"]),
         helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", "K"])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def told(file: Path, minor: int, words: str = "TreeEnsembleClassifier") -> list[Severity]:
    findings = check_artifact(facts_of(read_artifact(file), "m"), Runtime(release=Release(1, minor)), RunOptions())
    return [finding.severity for finding in findings if words in f"{finding.what} {finding.why}"]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_releases_compute_otherwise_is_an_error(case: Case, tmp_path: Path) -> None:
    onnx.save(forest(case), file := tmp_path / "m.onnx")
    for artifact in (file, convert(file, tmp_path / "m.ort")):
        for minor in (25, 26, 27, 28, 32):
            differs = f"1.{26 if minor == 27 else minor}" in CASES[case].split()
            assert told(artifact, minor, "onnxruntime issue") == [Severity.ERROR] * differs, (artifact.suffix, minor)


def test_others_are_not_named(tmp_path: Path) -> None:
    model = forest(("NONE", 0, (0.4, 0.1, 0.4, 0.1), ()), labels=("a", "b", "c"))
    both = forest(("NONE", 0, (0.4, 0.1, 0.4, 0.1), ()), version=1)
    next(given for given in both.graph.node[0].attribute if given.name == "class_ids").ints[:] = [0, 1, 0, 1]
    for name, other in (("three", model), ("both", both)):
        onnx.save(other, tmp_path / f"{name}.onnx")
        assert not told(tmp_path / f"{name}.onnx", 26)


def test_weights_that_are_not_read_are_no_pass(tmp_path: Path) -> None:
    onnx.save(forest(("NONE", 0, (0.4, 0.1, 0.4, 0.1), ()), double=True), file := tmp_path / "m.onnx")
    assert told(file, 26) == [Severity.ERROR], "a small tensor of an ONNX file is read"
    written = convert(file, tmp_path / "m.ort")
    assert [told(written, minor) for minor in (25, 26, 28)] == [[], [Severity.WARNING], []]


def test_releases_between_those_measured_are_a_warning(tmp_path: Path) -> None:
    onnx.save(forest(("LOGISTIC", 0, (0.4, 0.3, 0.4, 0.3), ())), file := tmp_path / "m.onnx")
    assert [told(file, minor) for minor in (20, 22)] == [[Severity.ERROR], [Severity.WARNING]]


def machine(operator: str, transform: str, **attributes: Any) -> onnx.ModelProto:
    """A linear classifier of one row, or a support vector machine of two vectors, with what attributes change."""
    usual: dict[str, dict[str, Any]] = {
        "LinearClassifier": {"coefficients": [0.5, -1.5], "intercepts": [0.25]},
        "SVMClassifier": {
            "coefficients": [0.5, -0.75], "support_vectors": [0.5, 1.0, 0.25, -1.0], "vectors_per_class": [1, 1],
            "kernel_type": "RBF", "kernel_params": [0.5, 0.0, 3.0], "rho": [0.125],
        },
    }  # fmt: skip
    given = usual[operator] | {"classlabels_ints": [0, 1], "post_transform": transform} | attributes
    node = helper.make_node(operator, ["x"], ["label", "scores"], domain="ai.onnx.ml", **given)
    model = forest(next(iter(CASES)))
    model.graph.node[0].CopyFrom(node)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    return model


def voting(transform: str, classes: list[int], bases: tuple[float, ...]) -> onnx.ModelProto:
    """Two trees of two leaves that vote for these classes."""
    model = forest((transform, 0, (0.4, 0.3, 0.4, 0.3), bases))
    next(given for given in model.graph.node[0].attribute if given.name == "class_ids").ints[:] = classes
    return model


@pytest.mark.parametrize(
    ("operator", "transform", "attributes", "differs"),
    [
        ("LinearClassifier", "LOGISTIC", {}, True),
        ("LinearClassifier", "NONE", {}, False),
        ("LinearClassifier", "SOFTMAX", {}, False),
        ("LinearClassifier", "LOGISTIC", {"coefficients": [0.5, -1.5] * 2, "intercepts": [0.25, 0.5]}, False),
        ("SVMClassifier", "LOGISTIC", {}, True),
        ("SVMClassifier", "NONE", {}, False),
        ("SVMClassifier", "LOGISTIC", {"prob_a": [-1.25], "prob_b": [0.125]}, False),
    ],
)
def test_machines_of_one_score_lack_logistic_before_1_27(
    operator: str, transform: str, attributes: dict[str, Any], differs: bool, tmp_path: Path
) -> None:
    onnx.save(machine(operator, transform, **attributes), file := tmp_path / "m.onnx")
    for artifact in (file, convert(file, tmp_path / "m.ort")):
        assert [told(artifact, minor, operator) for minor in (20, 26, 27)] == [[Severity.ERROR] * differs] * 2 + [[]]


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (machine("LinearClassifier", "PROBIT"), Severity.ERROR),
        (machine("LinearClassifier", "PROBIT", coefficients=[0.5, -1.5] * 2, intercepts=[0.25, 0.5]), None),
        (machine("SVMClassifier", "PROBIT"), Severity.ERROR),
        (machine("SVMClassifier", "PROBIT", prob_a=[-1.25], prob_b=[0.125]), None),
        (machine("SVMClassifier", "NONE", classlabels_ints=[7], vectors_per_class=[2]), Severity.ERROR),
        (machine("SVMClassifier", "NONE"), None),
        (forest(("PROBIT", 0, (0.4, 0.3, 0.4, 0.3), ())), Severity.ERROR),
        (forest(("PROBIT", 0, (0.4, -0.3, 0.4, 0.3), (0.5,))), Severity.ERROR),
        (forest(("PROBIT", 0, (0.4, 0.3, 0.4, 0.3), (0.5, 0.5))), None),
        (forest(("PROBIT", 1, (0.4, 0.3, 0.4, 0.3), ())), None),
        (voting("PROBIT", [0, 1, 1, 0], ()), Severity.WARNING),
        (voting("PROBIT", [1, 1, 1, 0], ()), None),
        (voting("NONE", [0, 1, 1, 0], ()), None),
        (voting("NONE", [0, 1, 1, 0], (0.5,)), Severity.WARNING),
        (voting("NONE", [0, 0, 1, 1], (0.5,)), None),
        (voting("PROBIT", [0, 1, 1, 0], (0.5, 0.5)), None),
    ],
)
def test_scores_that_no_release_writes(model: onnx.ModelProto, says: Severity | None, tmp_path: Path) -> None:
    onnx.save(model, file := tmp_path / "m.onnx")
    for artifact in (file, convert(file, tmp_path / "m.ort")):
        for minor in (17, 32):
            assert told(artifact, minor, "leaves out scores") == [says] * (says is not None), (artifact.suffix, minor)


@pytest.mark.parametrize("leaves", list(itertools.permutations(range(3))), ids=str)
@pytest.mark.parametrize("deep", [True, False])
def test_roots_that_1_21_to_1_23_take_for_leaves(leaves: tuple[int, int, int], deep: bool, tmp_path: Path) -> None:
    """A tree of two nodes, the second one behind the true or the false branch; measured with 1.21.1 to 1.24.4."""
    yes, no, other = leaves
    branches = [(1, other), (yes, no)], [(0, 1), (1, 1)]
    if not deep:
        branches = [(other, 1), (yes, no)], [(1, 0), (1, 1)]
    wrong = leaves in ((0, 2, 1), (2, 0, 1))
    check_trees(tmp_path, branches, wrong=wrong)


@pytest.mark.parametrize("number", [2, 3])
def test_nodes_below_a_root_are_never_taken_for_leaves(number: int, tmp_path: Path) -> None:
    """Three nodes in a row, the middle one with node 2 and a leaf, of the same number or not."""
    branches = [(1, 0), (2, number), (1, 5 - number)], [(0, 1), (0, 1), (1, 1)]
    check_trees(tmp_path, branches, wrong=False)


def check_trees(folder: Path, branches: tuple[list[tuple[int, int]], list[tuple[int, int]]], *, wrong: bool) -> None:
    """An ensemble of nodes with branches (true, false), which are leaves or not, is an error for 1.21 to 1.23."""
    count, leaves = len(branches[0]), len(branches[0]) + 1
    ids, are_leaves = zip(*branches[0], strict=True), zip(*branches[1], strict=True)
    yes, no = map(list, ids)
    yes_leaf, no_leaf = map(list, are_leaves)
    node = helper.make_node(
        "TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, tree_roots=[0],
        nodes_featureids=list(range(count)), leaf_targetids=[0] * leaves, nodes_truenodeids=yes, nodes_falsenodeids=no,
        nodes_trueleafs=yes_leaf, nodes_falseleafs=no_leaf,
        nodes_splits=numpy_helper.from_array(np.full(count, 0.5, "f4"), "s"),
        nodes_modes=numpy_helper.from_array(np.zeros(count, "u1"), "m"),
        leaf_weights=numpy_helper.from_array(np.arange(1, leaves + 1).astype("f4"), "w"),
    )  # fmt: skip
    info = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", size]) for name, size in (("x", count), ("y", 1))
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 5)]
    graph = helper.make_graph([node], "g", info[:1], info[1:])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), file := folder / "m.onnx")
    for artifact in (file, convert(file, folder / "m.ort")):
        said = [told(artifact, minor, "same number") for minor in range(20, 25)]
        assert said == [[], *[[Severity.ERROR] * wrong] * 3, []], artifact.suffix
