"""From a model's values for classes to the labels with the largest of them."""

from collections.abc import Sequence

from pipeline.config import app_data
from pipeline.features.app_data.graph_end import GraphEnd
from pipeline.model import edit as onnx_edit

TITLE = f"{onnx_edit.ENDS}gives"
LABELS, SCORES = "labels", "scores"
"""The outputs: the best labels, and the value of each, both of one row."""


def best_of(gives: app_data.Gives, values: str, labels: Sequence[str]) -> GraphEnd:
    """The part from `values`, float32 [1, classes], to the outputs LABELS and SCORES."""
    import numpy as np

    part = GraphEnd(TITLE)
    # Of a size that is open no other check sees that there are as many labels: here the first run fails
    shape = part.constant("shape", np.array([1, len(labels)], np.int64))
    values = part.add("Reshape", [values, shape], "values")
    if gives.softmax:
        values = part.add("Softmax", [values], "probabilities", axis=-1)
    most = part.constant("most", np.array([min(gives.top, len(labels))], np.int64))
    part.add("TopK", [values, most], "best", axis=-1)
    indices = part.named("indices")
    part.nodes[-1].output[:] = [SCORES, indices]
    part.add("Gather", [part.constant("labels", np.array(labels, str)), indices], "named")
    part.nodes[-1].output[:] = [LABELS]
    return part
