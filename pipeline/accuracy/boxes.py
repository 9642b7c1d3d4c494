"""Mean average precision of detections, by COCO's rules: boxes are matched by overlap in order of their scores.

The definition is that of pycocotools' COCOeval for boxes (IoU 0.50 to 0.95 in steps of 0.05, 101 recall levels, at
most 100 detections a sample, all areas, no crowds); tests compare with it. Matching is done once for each sample, so
that a bootstrap only counts again.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.accuracy.outputs import Floats
from pipeline.core.errors import ConfigError

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
    """One class over all samples: its detections' samples and hits by falling score, and its labels' samples."""

    samples: npt.NDArray[np.int64]
    hits: Floats
    label_samples: npt.NDArray[np.int64]


def match_boxes(outputs: Mapping[str, npt.NDArray[Any]], label: Any) -> BoxMatches:
    """Detections of one sample, each with whether it is right at each overlap.

    The label is [N, 5]: class, x1, y1, x2, y2. ConfigError for another, and for outputs that are no detections.
    """
    labelled = np.asarray(label, np.float64) if np.size(label) else np.zeros((0, 5))
    if labelled.ndim != 2 or labelled.shape[1] != 5:
        raise ConfigError(
            "the label has no boxes",
            where="labels",
            why=f"its shape is {list(labelled.shape)}",
            remedy="give an array [N, 5] of class, x1, y1, x2, y2 (`label` in .npz files, or a function)",
        )
    # Rows x1, y1, x2, y2, score, class: one output of such rows, or three by their names
    rows = next((array for array in outputs.values() if array.ndim >= 2 and array.shape[-1] == 6), None)
    if rows is not None:
        detections = rows.reshape(-1, 6).astype(np.float64)
    else:
        parts = [
            next((array for name, array in outputs.items() if any(word in name.lower() for word in words)), None)
            for words in PARTS
        ]
        if any(part is None for part in parts):
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in outputs.items())
            raise ConfigError(
                "the outputs are no detections",
                where="accuracy.metric",
                why=f"they are {shapes}",
                remedy="needed: one [1, N, 6] of x1, y1, x2, y2, score, class, or three with boxes, scores and classes "
                "in their names; give the metric as module:function for other outputs",
            )
        boxes, scores, classes = (np.asarray(part, np.float64) for part in parts)
        detections = np.column_stack([boxes.reshape(-1, 4), scores.reshape(-1), classes.reshape(-1)])
    detections = detections[np.argsort(-detections[:, 4], kind="stable")]
    numbers = np.unique(detections[:, 5])
    best = [detections[detections[:, 5] == number][:MOST_DETECTIONS] for number in numbers]
    detections = np.concatenate([*best, np.zeros((0, 6))])
    hits = np.zeros((len(detections), len(OVERLAPS)), bool)
    for number in numbers:
        of_class, labels_of_class = detections[:, 5] == number, labelled[:, 0] == number
        hits[of_class] = _matched(overlap_of(detections[of_class, :4], labelled[labels_of_class, 1:]))
    classes_of_labels = labelled[:, 0].astype(np.int64)
    return BoxMatches(detections[:, 5].astype(np.int64), detections[:, 4], hits, classes_of_labels)


def overlap_of(boxes: Floats, others: Floats) -> Floats:
    """Intersection over union of each box with each other one; boxes are x1, y1, x2, y2."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    both = np.prod(np.clip(high - low, 0, None), axis=2)
    areas, other_areas = (np.prod(array[:, 2:] - array[:, :2], axis=1) for array in (boxes, others))
    either = areas[:, None] + other_areas[None] - both
    overlaps: Floats = np.divide(both, either, out=np.zeros_like(both), where=either > 0)
    return overlaps


def _matched(overlaps: Floats) -> npt.NDArray[np.bool_]:
    """For each detection (rows, best first) and each threshold: whether it gets a label that no better one has."""
    hits = np.zeros((len(overlaps), len(OVERLAPS)), bool)
    for column, threshold in enumerate(OVERLAPS):
        free = np.ones(overlaps.shape[1], bool)
        for detection, values in enumerate(overlaps):
            candidates = np.where(free & (values >= min(threshold, 1 - 1e-10)), values, -1.0)
            if candidates.size and candidates.max() >= 0:
                best = len(candidates) - 1 - int(candidates[::-1].argmax())  # of equal ones COCOeval takes the last
                free[best], hits[detection, column] = False, True
    return hits


def packed_matches(samples: Sequence[BoxMatches]) -> tuple[ClassMatches, ...]:
    """All samples by the classes that labels have, best detections first."""
    order = np.argsort(-np.concatenate([matches.scores for matches in samples]), kind="stable")
    detected = np.repeat(np.arange(len(samples)), [len(matches.scores) for matches in samples])[order]
    classes = np.concatenate([matches.classes for matches in samples])[order]
    hits = np.concatenate([matches.hits for matches in samples])[order].astype(np.float64)
    labelled = np.repeat(np.arange(len(samples)), [len(matches.labels) for matches in samples])
    label_classes = np.concatenate([matches.labels for matches in samples])
    return tuple(
        ClassMatches(detected[classes == number], hits[classes == number], labelled[label_classes == number])
        for number in np.unique(label_classes)
    )


def average_precision(classes: Sequence[ClassMatches], weights: npt.NDArray[np.int64]) -> float:
    """Mean of average precision over overlaps and the classes that labels have; each sample counts by its weight."""
    precisions = []
    for matches in classes:
        if not (labels := float(weights[matches.label_samples].sum())):
            continue
        # The best precision at each recall level or a higher one, mean over these and the overlaps
        drawn = weights[matches.samples]
        drawn, hits = drawn[drawn > 0], matches.hits[drawn > 0]
        right = np.cumsum(hits * drawn[:, None], axis=0)
        precision = np.maximum.accumulate((right / np.cumsum(drawn)[:, None])[::-1], axis=0)[::-1]
        recall = right / labels
        total = 0.0
        for column in range(len(OVERLAPS)):
            at = np.searchsorted(recall[:, column], RECALLS, side="left")
            total += float(precision[at[at < len(precision)], column].sum()) / len(RECALLS)
        precisions.append(total / len(OVERLAPS))
    return float(np.mean(precisions)) if precisions else 0.0
