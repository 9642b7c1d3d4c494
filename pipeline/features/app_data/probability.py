"""From a model's values to one number: how likely something is."""

import math

from pipeline.features.app_data.ending import Ending
from pipeline.features.app_data.graph_end import GraphEnd

PROBABILITY = "probability"
"""The output: one number."""


def add_to(part: GraphEnd, ending: Ending) -> None:
    """The nodes from one value, or from one for each class, to the output; ConfigError where none is chosen."""
    ending.require("value")
    gives = ending.gives
    sizes = [size for size in ending.shape if isinstance(size, int)]
    count = math.prod(sizes) if ending.shape and len(sizes) == len(ending.shape) else None
    if gives.index is None and (count != 1 or gives.softmax):
        raise ending.refusal(
            f"which value of the output {ending.tensor.name!r} is meant is not said",
            f"it is {ending.tensor}" + ("; softmax is of several" if count == 1 else ""),
            "give the number of the class as `gives.index`, from 0 on",
        )
    if gives.index is not None and count is not None and gives.index >= count:
        raise ending.refusal(
            f"the output {ending.tensor.name!r} has no value {gives.index}",
            f"it is {ending.tensor}; the first is number 0",
            "give the number of another class as `gives.index`",
        )
    values = part.flat(ending.tensor.name, "values", 1, -1)
    if gives.softmax:
        values = part.add("Softmax", [values], "shares", axis=-1)
    if gives.index is not None:
        values = part.columns(values, gives.index, gives.index + 1, 1, "value of the class")
    if gives.sigmoid:
        values = part.add("Sigmoid", [values], "likely")
    # Of sizes that are open no other check sees that there is one value: here the first run fails
    part.give(part.flat(values, "one", 1), PROBABILITY, "f32", [1])
