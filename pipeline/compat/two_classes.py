"""Classifiers that decide between two classes by one score, which releases compute differently; trees of version 5.

Where TreeEnsembleClassifier has two labels, all its weights are of one class, and none is negative, the score is a
probability: above 0.5 it means the second label, and the first one's score is 1 less it. 1.26 and 1.27 decide at 0, as
where weights may be negative, and give the first class the score of the second with the sign changed. With LOGISTIC,
releases before 1.26 leave the transformation out where the class is the first (onnxruntime issues 28557, 27533).
So do those before 1.27 of a LinearClassifier of one row, and of an SVMClassifier without parameters of probabilities.
1.21 to 1.23 take a root of TreeEnsemble whose branches are a node and a leaf of the same number for a leaf.
Measured with 3,569 made-up classifiers and the wheels of 1.17 to 1.32 (release_tables.md).
"""

import math
from array import array
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from pipeline.model import ort_format
from pipeline.model import types as onnx_types

DOMAIN = "ai.onnx.ml"
DECIDES = 0.5
"""The probability above which the second label is meant."""
LOGISTIC = "LOGISTIC"
BOTH_ALIKE = frozenset({LOGISTIC, "PROBIT"})
"""Transformations of which the two ways of deciding differ in labels alone."""
ARRAYS = {onnx_types.CODES["f32"]: "f", onnx_types.CODES["f64"]: "d"}


class OneScore(NamedTuple):
    """A classifier of two labels by one score, whose values before the transformation lie between two.

    `known` is False where weights or base values are a tensor whose values nobody read: weights may be negative, too.
    `lone_base`: whether there is one base value at most, and not one for each class.
    """

    node: ort_format.OrtNode
    class_id: int
    transform: str
    lowest: float
    highest: float
    lone_base: bool
    known: bool

    @property
    def decided_at_zero(self) -> bool:
        """Whether 1.26 and 1.27 give it other labels or scores for some input."""
        other_scores = self.class_id == 0 and self.lone_base and self.transform not in BOTH_ALIKE
        return other_scores or (self.lowest <= DECIDES and self.highest > 0)

    @property
    def left_plain(self) -> bool:
        """Whether releases before 1.26 leave its scores without LOGISTIC."""
        return self.class_id == 0 and self.lone_base and self.transform == LOGISTIC


def plain_machines(model: ort_format.OrtModel) -> Iterator[ort_format.OrtNode]:
    """The linear classifiers and support vector machines of one score whose LOGISTIC releases before 1.27 leave out."""
    for node in _nodes(model, "LinearClassifier", "SVMClassifier"):
        two = len(_list(node, "classlabels_strings") or _list(node, "classlabels_ints")) == 2
        if node.op_type == "LinearClassifier":
            one_score = len(_list(node, "intercepts")) == 1
        else:
            one_score = bool(_list(node, "vectors_per_class")) and not _list(node, "prob_a")
        if two and one_score and _transform(node) == LOGISTIC:
            yield node


def unwritten(model: ort_format.OrtModel) -> Iterator[ort_format.OrtNode]:
    """The classifiers of which no release writes all scores, whatever the input.

    Those with PROBIT that decide between two classes by one score get one number a row, and so do support vector
    machines of one class without parameters of probabilities; the others are what the memory held.
    """
    for node in _nodes(model, "TreeEnsembleClassifier", "LinearClassifier", "SVMClassifier"):
        probit = _transform(node) == "PROBIT"
        if node.op_type == "SVMClassifier":
            classes = len(_list(node, "vectors_per_class"))
            lacking = not _list(node, "prob_a") and (classes == 1 or (classes == 2 and probit))
        elif node.op_type == "LinearClassifier":
            lacking = probit and _labels(node) == 2 and len(_list(node, "intercepts")) == 1
        else:
            first = set(_list(node, "class_ids")) == {0}
            lacking = probit and first and _labels(node) == 2 and _count(node, "base_values") < 2
        if lacking:
            yield node


def partly_unwritten(model: ort_format.OrtModel) -> Iterator[ort_format.OrtNode]:
    """The classifiers of trees that write one of two scores of a row for which no leaf votes for the second class.

    So with one base value, or with PROBIT and none, where each tree has a leaf without such a vote.
    """
    for node in _nodes(model, "TreeEnsembleClassifier"):
        bases = _count(node, "base_values")
        lone = bases == 1 or (bases == 0 and _transform(node) == "PROBIT")
        if _labels(node) != 2 or set(_list(node, "class_ids")) != {0, 1} or not lone:
            continue
        votes = zip(*(_list(node, f"class_{name}") for name in ("treeids", "nodeids", "ids")), strict=False)
        second = {(tree, leaf) for tree, leaf, class_id in votes if class_id == 1}
        nodes = zip(*(_list(node, f"nodes_{name}") for name in ("treeids", "nodeids", "modes")), strict=False)
        leaves = [(tree, leaf) for tree, leaf, mode in nodes if mode == "LEAF"]
        if {tree for tree, _ in leaves} == {leaf[0] for leaf in leaves if leaf not in second}:
            yield node


def taken_for_leaves(model: ort_format.OrtModel) -> Iterator[ort_format.OrtNode]:
    """The TreeEnsembles that have a root whose branches, one a leaf and one not, have the same number."""
    for node in _nodes(model, "TreeEnsemble"):
        names = ("truenodeids", "falsenodeids", "trueleafs", "falseleafs")
        branches = list(zip(*(_list(node, f"nodes_{name}") for name in names), strict=False))
        roots = {int(root) for root in _list(node, "tree_roots")}
        starts = (branches[root] for root in roots if 0 <= root < len(branches))
        if any(yes == no and bool(leaf) != bool(other) for yes, no, leaf, other in starts):
            yield node


def _nodes(model: ort_format.OrtModel, *operators: str) -> Iterator[ort_format.OrtNode]:
    for graph in model.graph.walk():
        yield from (node for node in graph.nodes if node.op_type in operators and node.domain == DOMAIN)


def _labels(node: ort_format.OrtNode) -> int:
    names = ("strings", "ints", "int64s")
    return max(len(_list(node, f"classlabels_{name}")) for name in names)


def _count(node: ort_format.OrtNode, name: str) -> int:
    """How many numbers a list or its tensor has."""
    given = node.attributes.get(f"{name}_as_tensor")
    tensor = given.value if given else None
    return math.prod(tensor.dims) if isinstance(tensor, ort_format.Tensor) else len(_list(node, name))


def _transform(node: ort_format.OrtNode) -> str:
    given = node.attributes.get("post_transform")
    return str(given.value) if given else "NONE"


def one_scores(model: ort_format.OrtModel) -> Iterator[OneScore]:
    """The classifiers by one score that no weight is known to make negative."""
    yield from filter(None, map(_one_score, _nodes(model, "TreeEnsembleClassifier")))


def _one_score(node: ort_format.OrtNode) -> OneScore | None:
    classes = set(_list(node, "class_ids"))
    labels = _list(node, "classlabels_strings") or _list(node, "classlabels_int64s")
    weights = _numbers(node, "class_weights")
    if len(labels) != 2 or len(classes) != 1 or (weights and min(weights) < 0):
        return None
    bases = _numbers(node, "base_values")
    lowest, highest = _bounds(node, weights) if weights is not None else (0.0, float("inf"))
    class_id = int(classes.pop())
    base, adds = _base(class_id, bases or ())
    return OneScore(
        node,
        class_id,
        _transform(node),
        base + (lowest if adds else 0.0),
        base + (highest if adds else 0.0),
        lone_base=len(bases or ()) < len(labels),
        known=weights is not None and bases is not None,
    )


def _base(class_id: int, bases: tuple[float, ...]) -> tuple[float, bool]:
    """What is added to the sum of the leaves, and whether that sum counts, as all releases compute it."""
    if class_id == 0:
        return (bases[0] if bases else 0.0), True
    return (0.0, True) if len(bases) < 2 else (bases[1], False)


def _bounds(node: ort_format.OrtNode, weights: tuple[float, ...]) -> tuple[float, float]:
    """The least and the greatest sum of one leaf of each tree; a leaf without a weight is 0."""
    leaves: dict[object, dict[object, float]] = defaultdict(lambda: defaultdict(float))
    nodes = (_list(node, f"nodes_{name}") for name in ("treeids", "modes", "nodeids"))
    for tree, mode, leaf in zip(*nodes, strict=False):
        if mode == "LEAF":
            leaves[tree][leaf] = 0.0
    for tree, leaf, weight in zip(_list(node, "class_treeids"), _list(node, "class_nodeids"), weights, strict=False):
        leaves[tree][leaf] += weight
    trees = [leaf.values() for leaf in leaves.values()]
    return sum(map(min, trees)), sum(map(max, trees))


def _list(node: ort_format.OrtNode, name: str) -> tuple[int | float | str, ...]:
    value = node.attributes[name].value if name in node.attributes else ()
    return (
        tuple(element for element in value if isinstance(element, int | float | str))
        if isinstance(value, tuple)
        else ()
    )


def _numbers(node: ort_format.OrtNode, name: str) -> tuple[float, ...] | None:
    """A list of floats or its tensor of doubles; None for a tensor whose values nobody read."""
    given = node.attributes.get(f"{name}_as_tensor")
    if given is None or not isinstance(given.value, ort_format.Tensor):
        return tuple(map(float, _list(node, name)))
    if 0 in given.value.dims:
        return ()
    code = ARRAYS.get(given.value.data_type)
    return tuple(array(code, given.value.content)) if code and given.value.content else None
