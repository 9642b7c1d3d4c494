"""Outputs that are texts: their errors beside a label, in words or characters."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.accuracy.outputs import Counts, Outputs, the_output
from pipeline.core import errors as core_errors
from pipeline.core.errors import ConfigError

BLANK = "<blank>"


def text_errors(by_words: bool, vocabulary: Sequence[str], outputs: Outputs, label: Any) -> tuple[int, int]:
    """Errors (substitutions, deletions, insertions) and length of the label, in words or characters."""
    try:
        import jiwer
    except ImportError as error:
        raise core_errors.missing_extra("metrics", "jiwer", "accuracy.metric: wer and cer", error) from error
    count = jiwer.process_words if by_words else jiwer.process_characters
    edits = count(str(np.asarray(label).reshape(-1)[0]), decoded(the_output(outputs), vocabulary))
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
        "the output is no text by this vocabulary",
        where="accuracy.vocabulary",
        why=f"it is {array.dtype} {list(array.shape)}, the vocabulary has {len(vocabulary)} symbols",
        remedy="give `vocabulary` with a line for each class of the output's last axis",
    )


def error_rate(contributions: Counts, weights: Counts) -> float:
    """Errors of all samples by the length of their labels."""
    errors, length = weights @ contributions
    return float(errors / length) if length else 0.0
