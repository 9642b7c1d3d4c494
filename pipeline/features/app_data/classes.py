"""From a model's values for classes to the labels with the largest of them."""

from pipeline.core.errors import ConfigError
from pipeline.features.app_data.ending import Ending
from pipeline.features.app_data.graph_end import GraphEnd

LABELS, SCORES = "labels", "scores"
"""The outputs: the best labels, and the value of each, both of one row."""


def add_to(part: GraphEnd, ending: Ending) -> None:
    """The nodes from float32 [1, classes] to the outputs LABELS and SCORES; ConfigError where labels do not fit."""
    ending.require("value for each class", 2)
    gives, labels, count = ending.gives, ending.names, ending.size(1)
    if count is not None and count != len(labels):
        raise ConfigError(
            f"{len(labels):,} labels do not fit the output {ending.tensor.name!r}",
            where=gives.file,
            why=f"it has {count:,} classes",
            remedy="give a label a line, in the order of the classes",
        )
    # Of a size that is open no other check sees that there are as many labels: here the first run fails
    values = part.flat(ending.tensor.name, "values", 1, len(labels))
    if gives.softmax:
        values = part.add("Softmax", [values], "probabilities", axis=-1)
    most = min(gives.top, len(labels))
    scores = part.add("TopK", [values, part.integers("most", most)], "best", axis=-1)
    indices = part.named("indices")
    part.nodes[-1].output.append(indices)
    named = part.add("Gather", [part.constant("labels", list(labels)), indices], "named")
    part.give(named, LABELS, "string", [1, most])
    part.give(scores, SCORES, "f32", [1, most])
