"""Outputs that are categorical: class numbers, indices, truth values. How far one is from another says nothing.

They are compared by the share of elements that differ. Where an index is that of the best score, the original's scores
say where others are as near to it as rounding: a file may choose another one there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pipeline.check.compare import MAX_RELATIVE_ERROR, Array, Categorical, OutputPrecision, Tie, is_categorical_by_type
from pipeline.model import edit as onnx_edit

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

DOMAINS = frozenset({"", "ai.onnx.ml", "com.microsoft"})
"""Whose operators have these names."""
CHOOSING = frozenset({
    "ArgMax", "ArgMin", "NonZero", "NonMaxSuppression", "Hardmax", "LabelEncoder", "Greater", "GreaterOrEqual", "Less",
    "LessOrEqual", "Equal", "And", "Or", "Not", "Xor", "IsNaN", "IsInf", "BeamSearch", "GreedySearch",
})  # fmt: skip
"""Operators whose outputs are categorical."""
CHOOSING_AT = frozenset(
    {
        ("TopK", 1),
        ("Unique", 1),
        ("Unique", 2),
        ("MaxPool", 1),
        ("LinearClassifier", 0),
        ("SVMClassifier", 0),
        ("TreeEnsembleClassifier", 0),
    }
)
"""Those with one such output, by its place."""
RANKING = frozenset({"ArgMax", "ArgMin", "TopK"})
"""Those that choose by scores, which are their first input."""
IN_ORDER = frozenset({"Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})
"""Operators that keep values and their order."""
MOVING = {
    **dict.fromkeys((
        "Transpose", "Slice", "Split", "Gather", "GatherElements", "GatherND", "Expand", "Tile", "Pad", "DepthToSpace",
        "SpaceToDepth", "Compress",
    ), (0,)),
    "Where": (1, 2), "ScatterElements": (0, 2), "ScatterND": (0, 2),
}  # fmt: skip
"""Operators that keep values at other places, with the inputs that have them; Concat has them in all."""
GATHERING = frozenset({"Gather", "GatherElements", "GatherND"})
"""Operators that take elements at the indices of their second input."""
COUNTING = frozenset({"Add", "Sub", "Mul", "Div", "Mod", "Neg", "Abs", "Min", "Max", "Clip"})
"""Arithmetic that makes indices of indices, as long as these are integers."""
MEASURED = frozenset(
    {"QuantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "Round", "Floor", "Ceil"}
)
"""Operators whose integers are numbers on a scale."""
MOST_HOPS = 200
MOST_SCORES = 1 << 23
"""Elements of scores that are looked through for ties."""
MOST_TIES = 1000
"""Positions with ties that are kept, the nearest; of more not all are known."""
NEAREST = 2
"""So many places further in the order of the scores another one is looked for."""
STEPS = 4 / 255
"""Scores of a quantized model that are nearer than so many steps may come in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What the elements of a value are: categorical, else numbers on a scale.

    `ranked` is the ArgMax, ArgMin or TopK whose indices these are, in its order; `computed`: arithmetic was done with
    them.
    """

    categorical: bool
    ranked: "NodeProto | None" = None
    computed: bool = False


def origins(graph: "GraphProto") -> dict[str, Origin]:
    """What the elements of a graph's outputs are, as far as the graph shows."""
    makers = {name: node for node in graph.node for name in node.output if name}
    by_output = {value.name: _origin(value.name, makers, MOST_HOPS) for value in graph.output}
    return {name: origin for name, origin in by_output.items() if origin}


def _origin(name: str, makers: Mapping[str, "NodeProto"], hops: int) -> Origin | None:
    node = makers.get(name)
    if node is None or not hops or not node.input or onnx_edit.plain_domain(node.domain) not in DOMAINS:
        return None
    kind, slot = node.op_type, list(node.output).index(name)
    if kind in CHOOSING or (kind, slot) in CHOOSING_AT:
        return Origin(categorical=True, ranked=node if kind in RANKING else None)
    if kind in MEASURED or "QLinear" in kind:
        return Origin(categorical=False)
    if kind in IN_ORDER:
        return _origin(node.input[0], makers, hops - 1)
    if kind == "Concat" or kind in COUNTING:
        parts = list(range(len(node.input)))
    elif kind in MOVING:
        parts = [part for part in MOVING[kind] if part < len(node.input)]
    else:
        return None
    behind = [_origin(node.input[part], makers, (hops - 1) // len(parts)) for part in parts]
    chosen = [origin for origin in behind if origin and origin.categorical]
    if chosen and (kind in COUNTING or len(chosen) == len(behind)):
        return Origin(categorical=True, computed=kind in COUNTING or any(origin.computed for origin in chosen))
    return next((origin for origin in behind if origin and not origin.categorical), None)


def sorted_by_score(graph: "GraphProto") -> frozenset[str]:
    """The outputs with rows that a TopK sorts: its values are among their columns, or its indices gather the rows."""
    makers = {name: node for node in graph.node for name in node.output if name}
    return frozenset(value.name for value in graph.output if _is_sorted(value.name, makers, MOST_HOPS))


def _is_sorted(name: str, makers: Mapping[str, "NodeProto"], hops: int) -> bool:
    node = makers.get(name)
    if node is None or not hops or not node.input or onnx_edit.plain_domain(node.domain):
        return False
    if node.op_type == "TopK":
        return (
            node.output[0] == name
            and bool(onnx_edit.attribute(node, "largest", 1))
            and bool(onnx_edit.attribute(node, "sorted", 1))
        )
    if node.op_type in GATHERING:
        origin = _origin(node.input[1], makers, hops - 1)
        return bool(origin and origin.ranked is not None and origin.ranked.op_type == "TopK")
    if node.op_type in IN_ORDER:
        return _is_sorted(node.input[0], makers, hops - 1)
    return node.op_type == "Concat" and any(
        _is_sorted(part, makers, (hops - 1) // len(node.input)) for part in node.input
    )


def categorical_of(
    graph: "GraphProto",
    outputs: Mapping[str, Array],
    precision: OutputPrecision,
    values: Callable[[Sequence[str]], Mapping[str, Array]],
) -> dict[str, Categorical]:
    """The outputs that are categorical, with the ties of those whose scores are known.

    `values` computes inner values of the model by name; what it lacks has no ties.
    """
    origin_of = origins(graph)
    chosen = {
        name: origin_of.get(name) for name, array in outputs.items() if _is_categorical(array, origin_of.get(name))
    }
    ranked = {name: origin.ranked for name, origin in chosen.items() if origin and origin.ranked is not None}
    scores = values(list(dict.fromkeys(node.input[0] for node in ranked.values()))) if ranked else {}
    share = min(MAX_RELATIVE_ERROR[precision], STEPS)
    categorical = {}
    for name in chosen:
        node = ranked.get(name)
        array = scores.get(node.input[0]) if node else None
        categorical[name] = Categorical(elements=int(outputs[name].size))
        if node and array is not None and 0 < array.size <= MOST_SCORES:
            categorical[name] = _with_ties(node, array, outputs[name], share)
    return categorical


def _is_categorical(array: Array, origin: Origin | None) -> bool:
    if origin is None:
        return is_categorical_by_type(array)
    return origin.categorical and (array.dtype.kind in "iub" or not origin.computed)


class _Near(NamedTuple):
    """An element that may stand at a position of the output as well; the nearest come first in their order."""

    margin: float
    position: int
    other: int


def _with_ties(node: "NodeProto", scores: Array, chosen: Array, share: float) -> Categorical:
    """Where others than the chosen elements are as near to the best as `share` of the largest score."""
    import numpy as np

    top = node.op_type == "TopK"
    largest = node.op_type != "ArgMin" and bool(onnx_edit.attribute(node, "largest", 1))
    axis = int(onnx_edit.attribute(node, "axis", -1 if top else 0))
    count = chosen.size * scores.shape[axis] // scores.size  # of candidates that are chosen in each place
    ranked = np.moveaxis(scores.astype(np.float64), axis, -1)
    ranked = ranked if largest else -ranked
    if not 1 <= count <= ranked.shape[-1] or chosen.size != count * (scores.size // ranked.shape[-1]):
        return Categorical(elements=chosen.size)
    if not np.isfinite(ranked).all():
        return Categorical(elements=chosen.size)
    order = np.argsort(-ranked, axis=-1, kind="stable")[..., : count + NEAREST]
    best = np.take_along_axis(ranked, order, -1)
    limit, places = share * float(np.abs(ranked).max()), np.arange(count)
    ties: list[_Near] = []
    for step in range(-NEAREST, NEAREST + 1):
        at = places[(places + step >= 0) & (places + step < order.shape[-1])]
        margins = np.full((*order.shape[:-1], count), np.inf)
        margins[..., at] = np.abs(best[..., at] - best[..., at + step])
        others = np.zeros(margins.shape, np.int64)
        others[..., at] = order[..., at + step]
        margins, others = (np.moveaxis(array, -1, axis).ravel() for array in (margins, others))
        near = np.flatnonzero((margins <= limit) & (others != chosen.ravel()))
        ties += map(_Near, margins[near].tolist(), near.tolist(), others[near].tolist())
    kept: dict[int, tuple[int, ...]] = {}
    for tie in sorted(ties)[:MOST_TIES]:
        kept[tie.position] = (*kept.get(tie.position, ()), tie.other)
    known = tuple(Tie(position, others) for position, others in kept.items())
    return Categorical(elements=chosen.size, ties=known, all_ties=len(ties) <= MOST_TIES)
