"""From what a model gives for each token, or for a picture, to one row of numbers that others are compared with."""

from pipeline.config import app_data
from pipeline.features.app_data.ending import Ending
from pipeline.features.app_data.graph_end import GraphEnd

EMBEDDING = "embedding"
"""The output: a row of numbers for each of the batch."""

MASKS = ("attention_mask", "mask")
"""What the input is called that says which tokens count, where nothing else is said."""


def add_to(part: GraphEnd, ending: Ending) -> None:
    """The nodes from [batch, tokens, numbers], [batch, numbers, height, width] or [batch, numbers] to the output."""
    ranks = {app_data.Pool.NONE: (2,), app_data.Pool.CLS: (3,), app_data.Pool.MEAN: (3, 4)}[ending.gives.pool]
    ending.require(f"embedding with `pool` {ending.gives.pool}", *ranks)
    if not ending.shape:
        raise ending.refusal(
            f"the output {ending.tensor.name!r} has no known shape",
            "what is to be pooled depends on it",
            "export the model with the shapes of its outputs",
        )
    values = ending.tensor.name
    if ending.gives.pool is app_data.Pool.CLS:
        values = part.add("Gather", [values, part.constant("first", 0)], "first token", axis=1)
    elif len(ending.shape) == len("NCHW"):
        values = part.add("Flatten", [part.add("GlobalAveragePool", [values], "means")], "mean", axis=1)
    elif ending.gives.pool is app_data.Pool.MEAN:
        values = _mean(part, values, ending.mask)
    if ending.gives.normalize:
        values = part.add("LpNormalization", [values], "of length one", axis=1, p=2)
    elif values == ending.tensor.name:
        values = part.add("Identity", [values], "as it is")
    batch = ending.shape[0]
    part.give(values, EMBEDDING, "f32", ["batch" if batch is None else batch, ending.size(_axis(ending)) or "numbers"])


def _axis(ending: Ending) -> int:
    """The axis of the numbers."""
    return 1 if len(ending.shape) == len("NCHW") else -1


def _mean(part: GraphEnd, values: str, mask: str) -> str:
    """Of the tokens that count: all where nothing says which do."""
    axis = part.integers("tokens", 1)
    if not mask:
        ones = part.add("Shape", [part.columns(values, 0, 1, 2, "first numbers")], "shape of a mask")
        counts = part.add("Expand", [part.floats("one", 1.0), ones], "every token")
    else:
        counts = part.add("Unsqueeze", [part.cast(mask, "float mask", "f32"), part.integers("last", 2)], "counts")
    total = part.add("ReduceSum", [part.add("Mul", [values, counts], "those that count"), axis], "total", keepdims=0)
    count = part.add("ReduceSum", [counts, axis], "how many count", keepdims=0)
    return part.add("Div", [total, part.add("Max", [count, part.floats("least", 1e-9)], "how many")], "mean")
