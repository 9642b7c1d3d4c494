"""Outputs that are maps of classes, as of segmentation: the pixels in both and in either."""

from typing import Any

import numpy as np

from pipeline.accuracy.outputs import Counts, Outputs, the_output
from pipeline.core.errors import ConfigError

IGNORED = 255
"""The label of pixels that belong to no class, by the usage of Pascal VOC and Cityscapes."""


def regions(outputs: Outputs, label: Any) -> Counts:
    """Pixels in both and in either, by class: [2, classes]. The output has scores [1, C, H, W] or classes [1, H, W]."""
    array = the_output(outputs)
    array = array[0] if array.ndim in (3, 4) and array.shape[0] == 1 else array
    labelled = np.asarray(label)
    classes = len(array) if array.ndim == 3 else 0
    predicted = array.argmax(axis=0) if array.ndim == 3 else array
    if predicted.shape != labelled.shape or labelled.dtype.kind not in "iub":
        raise ConfigError(
            "the label is no map of classes for this output",
            where="labels",
            why=f"it is {labelled.dtype} {list(labelled.shape)}, the output gives {list(predicted.shape)}",
            remedy="give an array of class numbers [H, W] (`label` in .npz files, or a function)",
        )
    judged = labelled != IGNORED
    predicted, labelled = predicted[judged].astype(np.int64), labelled[judged].astype(np.int64)
    if labelled.size and not 0 <= labelled.min() <= labelled.max() < (classes or IGNORED):
        raise ConfigError(
            f"the label has classes from {labelled.min()} to {labelled.max()}",
            where="labels",
            why=f"the output has {classes or IGNORED} classes, from 0; {IGNORED} marks pixels without one",
            remedy="give the numbers of the classes",
        )
    both = np.bincount(labelled[predicted == labelled], minlength=classes or IGNORED)
    either = (
        np.bincount(labelled, minlength=len(both)) + np.bincount(predicted, minlength=len(both))[: len(both)] - both
    )
    return np.stack([both, either])


def mean_iou(regions: Counts, weights: Counts) -> float:
    """Mean over the classes that occur of the pixels in both by those in either; `regions` is [N, 2, classes]."""
    both, either = np.tensordot(weights, regions, 1)
    occurs = either > 0
    return float((both[occurs] / either[occurs]).mean()) if occurs.any() else 1.0
