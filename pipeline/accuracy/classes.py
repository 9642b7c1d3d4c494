"""Outputs that are scores of classes: whether they look so, the answer, and F1 over classes."""

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.accuracy.outputs import Counts, Floats, Outputs, the_output
from pipeline.core.errors import ConfigError


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
    array = the_output(outputs)
    scores = class_scores(array)
    if scores is None:
        name = next(iter(outputs))
        raise ConfigError(
            f"the output {name!r} has no scores of classes for one sample",
            where="accuracy.metric",
            why=f"it is {array.dtype} {list(array.shape)}; [1, classes] of floats is needed",
            remedy="name another output (`output`, --model-output), another metric, or give samples of batch 1",
        )
    return scores


def class_number(label: Any, classes: int) -> int:
    """The class that a label names: a number from 0; ConfigError for any other."""
    array = np.asarray(label)
    text = str(array.reshape(-1)[0]) if array.size == 1 else ""
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) >= classes:
        shown = repr(text) if text else f"an array of shape {list(array.shape)}"
        raise ConfigError(
            f"the label is no class: {shown}",
            where="labels",
            why=f"the output has {classes} classes, from 0",
            remedy="write the number of the class as the label",
        )
    return int(text)


def _best(scores: Floats) -> int:
    """The class of the largest score; -1, which is no class, where there is none."""
    return int(scores.argmax()) if _ranked(scores) else -1


def _ranked(scores: Floats) -> bool:
    """Whether there is a largest score: no NaN, no infinity but that of classes that are ruled out."""
    return bool(np.isfinite(scores.max()))


def top(k: int, outputs: Outputs, label: Any) -> int:
    """Whether the label is among the k largest scores; of equal ones the smaller class comes first."""
    scores = _scores_of(outputs)
    right_class = class_number(label, len(scores))
    if not _ranked(scores):
        return 0
    better = (scores > scores[right_class]).sum() + (scores[:right_class] == scores[right_class]).sum()
    return int(better < k)


def answer_and_label(outputs: Outputs, label: Any) -> tuple[int, int]:
    """The class of the largest score, and that of the label."""
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


def same_answer(outputs: Outputs, expected: Outputs) -> int:
    """Whether the largest score is that of the original's class; 0 where either has none."""
    expected_class = _best(_scores_of(expected))
    return int(expected_class >= 0 and _best(_scores_of(outputs)) == expected_class)
