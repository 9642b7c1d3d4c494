"""Mean average precision of detections, by COCO's rules: boxes are matched by overlap in order of their scores.

The definition is that of pycocotools' COCOeval for boxes (IoU 0.50 to 0.95 in steps of 0.05, 101 recall levels, at most
100 detections a sample, all areas, no crowds); tests compare with it. Matching is done once for each sample, so that a
bootstrap only counts again.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.core.errors import ConfigError

Floats = npt.NDArray[np.float64]

OVERLAPS: Floats = np.linspace(0.5, 0.95, 10)
RECALLS: Floats = np.linspace(0, 1, 101)
MOST_DETECTIONS = 100
PARTS = (("boxes",), ("scores",), ("classes", "labels"))
"""What three outputs must have in their names, one of these words each."""


class BoxMatches(NamedTuple):
    """One sample: the class, score and hits [overlaps] of each detection, and the classes of its labels."""

    classes: npt.NDArray[np.int64]
    scores: Floats
    hits: npt.NDArray[np.bool_]
    labels: npt.NDArray[np.int64]


class ClassMatches(NamedTuple):
    """One class over all samples: its detections by falling score, with the sample of each, and those of its labels."""

    sample: npt.NDArray[np.int64]
    hits: Floats
    label_sample: npt.NDArray[np.int64]


def match_boxes(outputs: Mapping[str, npt.NDArray[Any]], label: Any) -> BoxMatches:
    """Detections of one sample, each with whether it is right at each overlap.

    The label is [N, 5]: class, x1, y1, x2, y2. ConfigError for another, and for outputs that are no detections.
    """
    wanted = np.asarray(label, np.float64) if np.size(label) else np.zeros((0, 5))
    if wanted.ndim != 2 or wanted.shape[1] != 5:
        raise ConfigError(
            "the label has no boxes", where="labels", why=f"its shape is {list(wanted.shape)}",
            remedy="give an array [N, 5] of class, x1, y1, x2, y2 (`label` in .npz files, or a function)",
        )  # fmt: skip
    found = _detections(outputs)
    found = found[np.argsort(-found[:, 4], kind="stable")]
    best = [found[found[:, 5] == number][:MOST_DETECTIONS] for number in np.unique(found[:, 5])]
    kept = np.concatenate([*best, np.zeros((0, 6))])
    hits = np.zeros((len(kept), len(OVERLAPS)), bool)
    for number in np.unique(kept[:, 5]):
        own, theirs = kept[:, 5] == number, wanted[:, 0] == number
        hits[own] = _matched(overlap_of(kept[own, :4], wanted[theirs, 1:]))
    return BoxMatches(kept[:, 5].astype(np.int64), kept[:, 4], hits, wanted[:, 0].astype(np.int64))


def _detections(outputs: Mapping[str, npt.NDArray[Any]]) -> Floats:
    """Rows x1, y1, x2, y2, score, class: one output of such rows, or three by their names."""
    for array in outputs.values():
        if array.ndim >= 2 and array.shape[-1] == 6:
            return array.reshape(-1, 6).astype(np.float64)
    parts = [
        next((array for name, array in outputs.items() if any(word in name.lower() for word in words)), None)
        for words in PARTS
    ]
    if any(part is None for part in parts):
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in outputs.items())
        raise ConfigError(
            "the outputs are no detections", where="accuracy.metric", why=f"they are {shapes}",
            remedy="needed: one [1, N, 6] of x1, y1, x2, y2, score, class, or three with boxes, scores and classes in "
            "their names; give the metric as module:function for other outputs",
        )  # fmt: skip
    boxes, scores, classes = (np.asarray(part, np.float64) for part in parts)
    return np.column_stack([boxes.reshape(-1, 4), scores.reshape(-1), classes.reshape(-1)])


def overlap_of(boxes: Floats, others: Floats) -> Floats:
    """Intersection over union of each box with each other one; boxes are x1, y1, x2, y2."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    both = np.prod(np.clip(high - low, 0, None), axis=2)
    areas, other_areas = (np.prod(one[:, 2:] - one[:, :2], axis=1) for one in (boxes, others))
    either = areas[:, None] + other_areas[None] - both
    overlaps: Floats = np.divide(both, either, out=np.zeros_like(both), where=either > 0)
    return overlaps


def _matched(overlaps: Floats) -> npt.NDArray[np.bool_]:
    """For each detection (rows, best first) and each threshold: whether it gets a label that no better one has."""
    hits = np.zeros((len(overlaps), len(OVERLAPS)), bool)
    for place, threshold in enumerate(OVERLAPS):
        free = np.ones(overlaps.shape[1], bool)
        for row, values in enumerate(overlaps):
            candidates = np.where(free & (values >= min(threshold, 1 - 1e-10)), values, -1.0)
            if candidates.size and candidates.max() >= 0:
                best = len(candidates) - 1 - int(candidates[::-1].argmax())  # of equal ones COCOeval takes the last
                free[best], hits[row, place] = False, True
    return hits


def packed_matches(samples: Sequence[BoxMatches]) -> tuple[ClassMatches, ...]:
    """All samples by the classes that labels have, best detections first."""
    counts = [len(one.scores) for one in samples]
    order = np.argsort(-np.concatenate([one.scores for one in samples]), kind="stable")
    sample = np.repeat(np.arange(len(samples)), counts)[order]
    classes = np.concatenate([one.classes for one in samples])[order]
    hits = np.concatenate([one.hits for one in samples])[order].astype(np.float64)
    label_sample = np.repeat(np.arange(len(samples)), [len(one.labels) for one in samples])
    label_classes = np.concatenate([one.labels for one in samples])
    return tuple(
        ClassMatches(sample[classes == number], hits[classes == number], label_sample[label_classes == number])
        for number in np.unique(label_classes)
    )


def average_precision(classes: Sequence[ClassMatches], weights: npt.NDArray[np.int64]) -> float:
    """Mean of average precision over overlaps and the classes that labels have; each sample counts by its weight."""
    wanted = [float(weights[one.label_sample].sum()) for one in classes]
    found = [_precision(one, weights, count) for one, count in zip(classes, wanted, strict=True) if count]
    return float(np.mean(found)) if found else 0.0


def _precision(one: ClassMatches, weights: npt.NDArray[np.int64], wanted: float) -> float:
    """Mean over overlaps and recall levels of the best precision at that recall or a higher one, for one class."""
    drawn = weights[one.sample]
    drawn, hits = drawn[drawn > 0], one.hits[drawn > 0]
    right = np.cumsum(hits * drawn[:, None], axis=0)
    precision = np.maximum.accumulate((right / np.cumsum(drawn)[:, None])[::-1], axis=0)[::-1]
    recall = right / wanted
    total = 0.0
    for place in range(len(OVERLAPS)):
        at = np.searchsorted(recall[:, place], RECALLS, side="left")
        total += float(precision[at[at < len(precision)], place].sum()) / len(RECALLS)
    return total / len(OVERLAPS)
