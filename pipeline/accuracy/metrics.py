"""Metrics by name in one table: what each needs, and how the contributions of samples become its value; sure drops.

A metric is computed in two steps, so that a bootstrap can draw samples again without running a model again:
`measure` makes a contribution of each sample, `value` one number of contributions and of how often each counts.
For 0/1 metrics the interval is Tango's score interval of a difference of paired proportions (Statistics in Medicine 17,
1998), which holds where few or no samples differ; else a paired percentile bootstrap over samples with a fixed seed.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from device_runner.files import read_regular
from pipeline.accuracy.result import DropVerdict
from pipeline.check.compare import decibel, unequal_places
from pipeline.config import AccuracyConfig, MetricName
from pipeline.config.tables import is_function
from pipeline.core.errors import ConfigError, missing_extra
from pipeline.dataset.values import load_function

CONFIDENCE = 0.95
Z = 1.959963984540054
"""The 97.5 % quantile of the normal distribution: two-sided 95 %."""
RESAMPLES = 2000
"""Of a bootstrap; metrics that take milliseconds to count again have fewer."""
SEED = 0
LEAST_SAMPLES = 10
"""With fewer a bootstrap cannot leave the few values that it draws from."""
MOST_SAMPLES = 100_000_000
"""More are no answer to how many are needed."""


DropInterval = tuple[float, float]
"""Bounds of a drop, low and high; positive is worse than the original."""


def paired_interval(lost: float, gained: float, count: int) -> DropInterval:
    """The interval of (lost - gained) / count, where so many of `count` samples are right with the original only, and
    with the other model only. Rates instead of whole numbers are fine.
    """
    observed = (lost - gained) / count
    low = _where(lambda drop: _score(lost, gained, count, drop) <= Z, -1.0, observed)
    high = _where(lambda drop: _score(lost, gained, count, drop) < -Z, observed, 1.0)
    return low, high


def _score(lost: float, gained: float, count: int, drop: float) -> float:
    """Tango's z for a supposed drop, with the constrained estimate of the share that is gained."""
    b = -lost - gained + (2 * count - lost + gained) * drop
    c = -gained * drop * (1 - drop)
    share = (math.sqrt(max(b * b - 8 * count * c, 0.0)) - b) / (4 * count)
    variance = count * (2 * share + drop * (1 - drop))
    distance = lost - gained - count * drop
    if variance <= 0:
        return math.copysign(math.inf, distance) if distance else 0.0
    return float(distance / math.sqrt(variance))


def _where(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Where a condition begins to hold between two bounds; the upper one where it never does."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def mcnemar(lost: int, gained: int) -> float:
    """Exact two-sided p of as uneven a split of the samples that differ, were either model as good."""
    total, least = lost + gained, min(lost, gained)
    tail = sum(math.comb(total, k) for k in range(least + 1))
    return min(1.0, 2.0 * tail / (1 << total))


def bootstrap_interval(
    drop: Callable[[npt.NDArray[np.int64]], float], count: int, span: float = 1.0, resamples: int = RESAMPLES
) -> DropInterval | None:
    """Percentiles of a drop over samples drawn again, each counting as often as it is drawn; None for too few samples.

    Where no sample differs a bootstrap is sure of nothing: the bounds are then those of a share that was never seen,
    times the `span` by which one sample can change the metric. It is 0 for metrics of numbers, which equal outputs keep
    as surely as those that differ a little.
    """
    if count < LEAST_SAMPLES:
        return None
    generator = np.random.Generator(np.random.PCG64(SEED))
    drops = np.array(
        [drop(np.bincount(generator.integers(0, count, count), minlength=count)) for _ in range(resamples)]
    )
    if not np.isfinite(drops).all():
        return None
    low, high = (float(bound) for bound in np.quantile(drops, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]))
    if low == high:
        unseen = span * unseen_share(count)
        return low - unseen, high + unseen
    return low, high


def unseen_share(count: int) -> float:
    """The largest share of samples of which so many may well have none: its bound falls as one by the samples."""
    return float(1 - ((1 - CONFIDENCE) / 2) ** (1 / count))


def verdict_of(interval: DropInterval | None, max_drop: float) -> DropVerdict:
    """Within only where the interval excludes a larger drop, over only where it excludes a smaller one."""
    if interval is None:
        return DropVerdict.CANNOT_TELL
    low, high = interval
    if high <= max_drop:
        return DropVerdict.WITHIN
    return DropVerdict.OVER if low > max_drop else DropVerdict.CANNOT_TELL


def paired_samples_needed(lost: int, gained: int, count: int, max_drop: float) -> int | None:
    """How many samples would tell, were the same shares of them to differ; None where no number does."""

    def tells(samples: int) -> bool:
        factor = samples / count
        interval = paired_interval(lost * factor, gained * factor, samples)
        return verdict_of(interval, max_drop) is not DropVerdict.CANNOT_TELL

    enough = count
    while not tells(enough):
        enough *= 2
        if enough > MOST_SAMPLES:
            return None
    few = enough // 2
    while enough - few > 1:
        middle = (enough + few) // 2
        few, enough = (few, middle) if tells(middle) else (middle, enough)
    return enough


def samples_needed(drop: float, interval: DropInterval | None, count: int, max_drop: float, span: float) -> int | None:
    """The same for a bootstrap: the distance from the drop to a bound shrinks with the root of the samples, and where
    no sample differs with their number (`unseen_share`, times `span`).
    """
    if interval is None:
        return None
    gap = max_drop - drop
    width = interval[1] - drop if gap > 0 else drop - interval[0]
    if gap == 0 or width <= 0:
        return None
    if math.isclose(width, span * unseen_share(count)) and 0 < gap < span:
        needed = math.ceil(math.log((1 - CONFIDENCE) / 2) / math.log1p(-gap / span))
    else:
        needed = math.ceil(count * (width / gap) ** 2) + 1
    return needed if needed <= MOST_SAMPLES else None


def finite(number: Any) -> float | None:
    """A number that JSON has; None for infinity and NaN."""
    return float(number) if number is not None and math.isfinite(number) else None


Outputs: TypeAlias = Mapping[str, npt.NDArray[Any]]
Floats: TypeAlias = npt.NDArray[np.float64]
Counts: TypeAlias = npt.NDArray[np.int64]

IGNORED = 255
"""The label of pixels that belong to no class, by the usage of Pascal VOC and Cityscapes."""
BLANK = "<blank>"


class Needs(StrEnum):
    """What a metric compares outputs with."""

    LABELS = "labels"
    REFERENCE = "reference"
    """The outputs of the original model on the same sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One row of the table.

    `measure` takes outputs by name and a label, or the original's outputs; ConfigError where these do not fit. `pack`
    makes what `value` takes of all contributions; weights are how often each sample counts. `perfect` is the original
    model's own value where outputs are compared with its own, None where no drop can be stated. `paired`: each
    contribution is 0 or 1 and the value their mean, so that exact statistics of pairs apply.
    """

    name: str
    needs: Needs
    measure: Callable[[Outputs, Any], Any]
    value: Callable[[Any, Counts], float]
    pack: Callable[[Sequence[Any]], Any] = np.asarray
    perfect: float | None = None
    higher_is_better: bool = True
    paired: bool = False
    share: bool = True
    """Whether the value is a share of 1, shown in percent; drops have a budget only then."""
    every_output: bool = False
    """Whether `measure` gets all outputs instead of one."""
    resamples: int = RESAMPLES


def _the_output(outputs: Outputs) -> npt.NDArray[Any]:
    return next(iter(outputs.values()))


def class_scores(array: npt.NDArray[Any]) -> Floats | None:
    """The scores of classes when an output is that, for one sample: a last axis of two or more, all others one; other
    axes of one may stand behind, as in [1, 1000, 1, 1].
    """
    if array.dtype.kind != "f" or array.size < 2 or array.size != max(array.shape, default=0):
        return None
    return array.reshape(-1).astype(np.float64)


CLASSES_BY_NAME = re.compile("logit|prob|class|score", re.IGNORECASE)
"""What names of outputs say where their numbers are scores of classes, not normalized."""
NEAR_ONE = 0.01
"""A sum of probabilities is 1 up to this: a thousand of them in half precision are."""


def looks_like_classes(name: str, array: npt.NDArray[Any]) -> bool:
    """Whether the largest number of an output is an answer: scores by name, or probabilities or their logarithms.

    Nothing else tells logits from an embedding, whose largest number means nothing.
    """
    scores = class_scores(array)
    if scores is None or CLASSES_BY_NAME.search(name):
        return scores is not None
    if (scores >= 0).all():
        return abs(float(scores.sum()) - 1) < NEAR_ONE
    return bool((scores <= 0).all()) and abs(float(np.exp(scores).sum()) - 1) < NEAR_ONE


def _scores_of(outputs: Outputs) -> Floats:
    array = _the_output(outputs)
    scores = class_scores(array)
    if scores is None:
        name = next(iter(outputs))
        raise ConfigError(
            f"the output {name!r} has no scores of classes for one sample", where="accuracy.metric",
            why=f"it is {array.dtype} {list(array.shape)}; [1, classes] of floats is needed",
            remedy="name another output (`output`, --model-output), another metric, or give samples of batch 1",
        )  # fmt: skip
    return scores


def class_number(label: Any, classes: int) -> int:
    """The class that a label names: a number from 0; ConfigError for any other."""
    array = np.asarray(label)
    text = str(array.reshape(-1)[0]) if array.size == 1 else ""
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) >= classes:
        shown = repr(text) if text else f"an array of shape {list(array.shape)}"
        raise ConfigError(
            f"the label is no class: {shown}", where="labels", why=f"the output has {classes} classes, from 0",
            remedy="write the number of the class as the label",
        )  # fmt: skip
    return int(text)


def _best(scores: Floats) -> int:
    """The class of the largest score; -1, which is no class, where there is none."""
    return int(scores.argmax()) if _ranked(scores) else -1


def _ranked(scores: Floats) -> bool:
    """Whether there is a largest score: no NaN, no infinity but that of classes that are ruled out."""
    return bool(np.isfinite(scores.max()))


def _top(k: int, outputs: Outputs, label: Any) -> int:
    """Whether the label is among the k largest scores; of equal ones the smaller class comes first."""
    scores = _scores_of(outputs)
    right_class = class_number(label, len(scores))
    if not _ranked(scores):
        return 0
    better = (scores > scores[right_class]).sum() + (scores[:right_class] == scores[right_class]).sum()
    return int(better < k)


def _mean(contributions: Floats, weights: Counts) -> float:
    return float(weights @ contributions / weights.sum())


def _answer_and_label(outputs: Outputs, label: Any) -> tuple[int, int]:
    scores = _scores_of(outputs)
    return _best(scores), class_number(label, len(scores))


def macro_f1(pairs: Counts, weights: Counts) -> float:
    """Mean of F1 over the classes that are answers or labels; an answer of -1 counts as none."""
    answers, labels = pairs[:, 0], pairs[:, 1]
    size = int(pairs.max()) + 1
    predicted = np.bincount(answers[answers >= 0], weights[answers >= 0], minlength=size)
    labelled = np.bincount(labels, weights, minlength=size)
    hits = answers == labels
    right = np.bincount(labels[hits], weights[hits], minlength=size)
    occurs = predicted + labelled > 0
    return float((2 * right[occurs] / (predicted + labelled)[occurs]).mean())


def _regions(outputs: Outputs, label: Any) -> Counts:
    """Pixels in both and in either, by class: [2, classes]. The output has scores [1, C, H, W] or classes [1, H, W]."""
    array = _the_output(outputs)
    array = array[0] if array.ndim in (3, 4) and array.shape[0] == 1 else array
    labelled = np.asarray(label)
    classes = len(array) if array.ndim == 3 else 0
    predicted = array.argmax(axis=0) if array.ndim == 3 else array
    if predicted.shape != labelled.shape or labelled.dtype.kind not in "iub":
        raise ConfigError(
            "the label is no map of classes for this output", where="labels",
            why=f"it is {labelled.dtype} {list(labelled.shape)}, the output gives {list(predicted.shape)}",
            remedy="give an array of class numbers [H, W] (`label` in .npz files, or a function)",
        )  # fmt: skip
    judged = labelled != IGNORED
    predicted, labelled = predicted[judged].astype(np.int64), labelled[judged].astype(np.int64)
    if labelled.size and not 0 <= labelled.min() <= labelled.max() < (classes or IGNORED):
        raise ConfigError(
            f"the label has classes from {labelled.min()} to {labelled.max()}", where="labels",
            why=f"the output has {classes or IGNORED} classes, from 0; {IGNORED} marks pixels without one",
            remedy="give the numbers of the classes",
        )  # fmt: skip
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


def _text_errors(by_words: bool, vocabulary: Sequence[str], outputs: Outputs, label: Any) -> tuple[int, int]:
    """Errors (substitutions, deletions, insertions) and length of the label, in words or characters."""
    try:
        import jiwer
    except ImportError as error:
        raise missing_extra("metrics", "jiwer", "accuracy.metric: wer and cer", error) from error
    count = jiwer.process_words if by_words else jiwer.process_characters
    edits = count(str(np.asarray(label).reshape(-1)[0]), decoded(_the_output(outputs), vocabulary))
    return edits.substitutions + edits.deletions + edits.insertions, edits.hits + edits.substitutions + edits.deletions


def decoded(array: npt.NDArray[Any], vocabulary: Sequence[str]) -> str:
    """The text of an output: strings as they are; class numbers by the vocabulary; scores [1, time, classes] by the
    best class of each step, where CTC's blank is in the vocabulary with repetitions and blanks taken out.
    """
    if array.dtype.kind in "OUS":
        return " ".join(str(part) for part in array.reshape(-1))
    if array.dtype.kind == "f" and array.ndim >= 2 and array.shape[-1] == len(vocabulary):
        steps = array.reshape(-1, len(vocabulary)).argmax(axis=1)
        if BLANK in vocabulary:
            steps = steps[np.append(True, steps[1:] != steps[:-1])]
        return "".join(vocabulary[step] for step in steps if vocabulary[step] != BLANK)
    if array.dtype.kind in "iu" and array.size and vocabulary and 0 <= array.min() <= array.max() < len(vocabulary):
        return "".join(vocabulary[step] for step in array.reshape(-1) if vocabulary[step] != BLANK)
    raise ConfigError(
        "the output is no text by this vocabulary", where="accuracy.vocabulary",
        why=f"it is {array.dtype} {list(array.shape)}, the vocabulary has {len(vocabulary)} symbols",
        remedy="give `vocabulary` with a line for each class of the output's last axis",
    )  # fmt: skip


def _error_rate(contributions: Counts, weights: Counts) -> float:
    errors, length = weights @ contributions
    return float(errors / length) if length else 0.0


def _same_answer(outputs: Outputs, expected: Outputs) -> int:
    expected_class = _best(_scores_of(expected))
    return int(expected_class >= 0 and _best(_scores_of(outputs)) == expected_class)


class Powers(IntEnum):
    """The columns of what `_powers` gives: of the product, squares of both and of their difference, the largest
    difference, the original's range, the number of elements, and the original's sum.
    """

    PRODUCT = 0
    OURS = 1
    REFERENCE = 2
    ERROR = 3
    LARGEST_ERROR = 4
    LOW = 5
    HIGH = 6
    COUNT = 7
    SUM = 8


def _powers(outputs: Outputs, expected: Outputs) -> tuple[float, ...]:
    """What the measures of error are made of, for one output, in the order of `Powers`. A NaN stays one."""
    ours, reference = _the_output(outputs).astype(np.float64).ravel(), _the_output(expected).astype(np.float64).ravel()
    if ours.shape != reference.shape or not ours.size:
        return (np.nan,) * len(Powers)
    with np.errstate(invalid="ignore", over="ignore"):
        error = ours - reference
        return (
            float(ours @ reference), float(ours @ ours), float(reference @ reference), float(error @ error),
            float(np.abs(error).max()), float(reference.min()), float(reference.max()), float(ours.size),
            float(reference.sum()),
        )  # fmt: skip


def _equal_share(outputs: Outputs, expected: Outputs) -> float:
    """The share of elements that are the original's; 0 for another shape, 1 where neither has any."""
    ours, reference = _the_output(outputs), _the_output(expected)
    if ours.shape != reference.shape:
        return 0.0
    return 1 - len(unequal_places(reference, ours)) / reference.size if reference.size else 1.0


NO_VARIANCE = 1e-9
"""A share of the power below which what is left beside the mean is rounding."""


def _r2(powers: Floats, weights: Counts) -> float:
    """The coefficient of determination over all elements of all samples: 1 less the squared error by the original's
    squared deviation from its mean. Of an original that is the same everywhere, by its power.
    """
    error, power, total = (
        float(weights @ powers[:, column]) for column in (Powers.ERROR, Powers.REFERENCE, Powers.SUM)
    )
    spread = power - total**2 / float(weights @ powers[:, Powers.COUNT])
    signal = spread if spread > NO_VARIANCE * power else power
    if signal > 0 or math.isnan(signal):
        return 1 - error / signal
    return 1.0 if error == 0 else -math.inf


def _cosine(powers: Floats, weights: Counts) -> float:
    norms = np.sqrt(powers[:, Powers.OURS] * powers[:, Powers.REFERENCE])
    same = (powers[:, Powers.ERROR] == 0) & (norms == 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return _mean(np.where(same, 1.0, np.where(norms == 0, 0.0, powers[:, Powers.PRODUCT] / norms)), weights)


def _sqnr(powers: Floats, weights: Counts) -> float:
    return decibel(float(weights @ powers[:, Powers.REFERENCE]), float(weights @ powers[:, Powers.ERROR]))


def _psnr(powers: Floats, weights: Counts) -> float:
    """By the range of the original's output over all samples."""
    counted = powers[weights > 0]
    span = float(counted[:, Powers.HIGH].max() - counted[:, Powers.LOW].min())
    return decibel(span**2, float(weights @ powers[:, Powers.ERROR]) / float(weights @ powers[:, Powers.COUNT]))


def _labelled(name: MetricName, measure: Callable[[Outputs, Any], Any], value: Callable[[Any, Counts], float],
              **rest: Any) -> Metric:  # fmt: skip
    return Metric(name=name.value, needs=Needs.LABELS, measure=measure, value=value, **rest)


def _compared(name: MetricName, value: Callable[[Any, Counts], float], **rest: Any) -> Metric:
    return Metric(name=name.value, needs=Needs.REFERENCE, measure=rest.pop("measure", _powers), value=value, **rest)


# ---- Mean average precision of detections, by COCO's rules: boxes are matched by overlap in order of their scores.
# The definition is that of pycocotools' COCOeval for boxes (IoU 0.50 to 0.95 in steps of 0.05, 101 recall levels, at
# most 100 detections a sample, all areas, no crowds); tests compare with it. Matching is done once for each sample, so
# that a bootstrap only counts again.

OVERLAPS: Floats = np.linspace(0.5, 0.95, 10)
RECALLS: Floats = np.linspace(0, 1, 101)
MOST_DETECTIONS = 100
PARTS = (("boxes",), ("scores",), ("classes", "labels"))
"""What three outputs must have in their names, one of these words each."""


BoxMatches = tuple[npt.NDArray[np.int64], Floats, npt.NDArray[np.bool_], npt.NDArray[np.int64]]
"""One sample: the class, score and hits [overlaps] of each detection, and the classes of its labels."""

ClassMatches = tuple[npt.NDArray[np.int64], Floats, npt.NDArray[np.int64]]
"""One class over all samples: its detections' samples and hits by falling score, and its labels' samples."""


def match_boxes(outputs: Mapping[str, npt.NDArray[Any]], label: Any) -> BoxMatches:
    """Detections of one sample, each with whether it is right at each overlap.

    The label is [N, 5]: class, x1, y1, x2, y2. ConfigError for another, and for outputs that are no detections.
    """
    labelled = np.asarray(label, np.float64) if np.size(label) else np.zeros((0, 5))
    if labelled.ndim != 2 or labelled.shape[1] != 5:
        raise ConfigError(
            "the label has no boxes", where="labels", why=f"its shape is {list(labelled.shape)}",
            remedy="give an array [N, 5] of class, x1, y1, x2, y2 (`label` in .npz files, or a function)",
        )  # fmt: skip
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
                "the outputs are no detections", where="accuracy.metric", why=f"they are {shapes}",
                remedy="needed: one [1, N, 6] of x1, y1, x2, y2, score, class, or three with boxes, scores and classes "
                "in their names; give the metric as module:function for other outputs",
            )  # fmt: skip
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
    return detections[:, 5].astype(np.int64), detections[:, 4], hits, labelled[:, 0].astype(np.int64)


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
    of_samples, scores, all_hits, labels = zip(*samples, strict=True)
    order = np.argsort(-np.concatenate(scores), kind="stable")
    sample = np.repeat(np.arange(len(samples)), list(map(len, scores)))[order]
    classes = np.concatenate(of_samples)[order]
    hits = np.concatenate(all_hits)[order].astype(np.float64)
    label_sample = np.repeat(np.arange(len(samples)), list(map(len, labels)))
    label_classes = np.concatenate(labels)
    return tuple(
        (sample[classes == number], hits[classes == number], label_sample[label_classes == number])
        for number in np.unique(label_classes)
    )


def average_precision(classes: Sequence[ClassMatches], weights: npt.NDArray[np.int64]) -> float:
    """Mean of average precision over overlaps and the classes that labels have; each sample counts by its weight."""
    precisions = []
    for sample, all_hits, label_sample in classes:
        if not (labels := float(weights[label_sample].sum())):
            continue
        # The best precision at each recall level or a higher one, mean over these and the overlaps
        drawn = weights[sample]
        drawn, hits = drawn[drawn > 0], all_hits[drawn > 0]
        right = np.cumsum(hits * drawn[:, None], axis=0)
        precision = np.maximum.accumulate((right / np.cumsum(drawn)[:, None])[::-1], axis=0)[::-1]
        recall = right / labels
        total = 0.0
        for place in range(len(OVERLAPS)):
            at = np.searchsorted(recall[:, place], RECALLS, side="left")
            total += float(precision[at[at < len(precision)], place].sum()) / len(RECALLS)
        precisions.append(total / len(OVERLAPS))
    return float(np.mean(precisions)) if precisions else 0.0


METRICS: dict[MetricName, Metric] = {
    MetricName(metric.name): metric
    for metric in (
        _labelled(MetricName.TOP_1, partial(_top, 1), _mean, paired=True),
        _labelled(MetricName.TOP_5, partial(_top, 5), _mean, paired=True),
        _labelled(MetricName.F1, _answer_and_label, macro_f1),
        _labelled(
            MetricName.MAP, match_boxes, average_precision, pack=packed_matches, every_output=True, resamples=500
        ),
        _labelled(MetricName.MIOU, _regions, mean_iou),
        _labelled(MetricName.WER, partial(_text_errors, True, ()), _error_rate, higher_is_better=False),
        _labelled(MetricName.CER, partial(_text_errors, False, ()), _error_rate, higher_is_better=False),
        _compared(MetricName.AGREEMENT, _mean, measure=_same_answer, paired=True, perfect=1.0),
        _compared(MetricName.R2, _r2, perfect=1.0),
        _compared(MetricName.EQUAL, _mean, measure=_equal_share, perfect=1.0),
        _compared(MetricName.COSINE, _cosine, perfect=1.0),
        _compared(MetricName.PSNR, _psnr, share=False),
        _compared(MetricName.SQNR, _sqnr, share=False),
        _compared(
            MetricName.MAX_ERROR,
            lambda powers, weights: float(powers[weights > 0, Powers.LARGEST_ERROR].max()),
            share=False,
            higher_is_better=False,
        ),
    )
}
"""Every metric that has a name."""


LEVELS_FROM = 65
"""Elements of 8 bits with so many different values are levels, as of an image, not numbers of classes."""


def usual_metric(name: str, array: npt.NDArray[Any]) -> Metric:
    """What compares an output with the original's by default: none that a wrong scale would pass, but for classes,
    whose scale the floor of the signal to noise sees.
    """
    if array.dtype.kind not in "fiub":
        return METRICS[MetricName.EQUAL]
    if array.dtype.kind != "f":
        levels = array.dtype.itemsize == 1 and array.dtype.kind in "iu" and len(np.unique(array)) >= LEVELS_FROM
        # Of a single number the share is 0 or 1, so that exact statistics of pairs apply
        return METRICS[MetricName.R2] if levels else replace(METRICS[MetricName.EQUAL], paired=array.size == 1)
    return METRICS[MetricName.AGREEMENT if looks_like_classes(name, array) else MetricName.R2]


def find_metric(config: AccuracyConfig, *, labelled: bool) -> Metric | None:
    """The metric that a config asks for, or top-1 where there are labels; None for the usual one of each output.

    ConfigError for a name that is none, for labels that are not there, and for a budget without a drop.
    """
    if config.metric is None and not labelled:
        return None
    name = config.metric or MetricName.TOP_1
    if is_function(name):
        metric = _of_function(name)
    elif name in list(MetricName):
        metric = METRICS[MetricName(name)]
    else:
        names = ", ".join(MetricName)
        raise ConfigError(f"there is no metric {name!r}", where="accuracy.metric", why=f"metrics: {names}",
                          remedy="take one of them, or a function as module:function")  # fmt: skip
    if metric.needs is Needs.LABELS and not labelled:
        raise ConfigError(
            f"{metric.name} needs labels", where="accuracy.metric", why="the evaluation data have none",
            remedy="give `labels` (--labels), or a metric that compares with the original model: agreement, r2",
        )  # fmt: skip
    if config.max_drop is not None and not metric.share:
        raise ConfigError(
            f"{metric.name} has no drop", where="accuracy.max_drop", why="the original model's own is not a number",
            remedy="leave max_drop out, or take another metric: agreement and r2 need no labels",
        )  # fmt: skip
    if metric.name in (MetricName.WER, MetricName.CER):
        symbols: tuple[str, ...] = ()
        if config.vocabulary:
            try:
                text = read_regular(Path(config.vocabulary)).decode("utf-8-sig")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(
                    "the vocabulary cannot be read", where=str(Path(config.vocabulary)), why=str(error)[:300],
                    remedy="give a text file in UTF-8 with the symbol of a class in each line",
                ) from error  # fmt: skip
            symbols = tuple(text.removesuffix("\n").split("\n"))
        return replace(metric, measure=partial(_text_errors, metric.name == MetricName.WER, symbols))
    return metric


def _of_function(path: str) -> Metric:
    """A user's function of outputs by name and a label, which gives a number for each sample: its mean, higher is
    better.
    """
    function = load_function(path, "the metric")

    def measure(outputs: Outputs, label: Any) -> float:
        try:
            return float(function(dict(outputs), label))
        except Exception as error:
            raise ConfigError(
                "the function for the metric failed", where=path, why=f"{type(error).__name__}: {error}"[:500],
                remedy="it gets outputs by name and the label of one sample, and gives a number",
            ) from error  # fmt: skip

    return Metric(name=Path(path).name, needs=Needs.LABELS, measure=measure, value=_mean, every_output=True)
