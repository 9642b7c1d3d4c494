"""Rows that a model sorts by a score, as a detector its boxes: where scores tie, another file may sort them otherwise.

Rows at ties are matched with the original's, whatever their places; then they are compared as every output is. What is
sorted otherwise without a tie is not matched: the score at each rank would differ.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.check.compare import Array, Floats

MOST_ROWS = 4096
"""Of a list: the distances of all its rows to each other are computed."""
ROWS, COLUMNS = -2, -1
"""Axes of an output with lists of rows; those before them are of the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedRows:
    """Rows of an output, each beside the original's that it stands for: both arrays are [rows, columns].

    `moved` so many of the rows have another place than the original's. `others` is how many more are left out of both:
    their scores are 0 but for rounding, so that which rows come last says nothing.
    """

    original: Array
    actual: Array
    moved: int
    others: int


def matched_rows(original: Array, actual: Array, share: float, floor: float) -> RankedRows | None:
    """The rows of two outputs that are sorted by a score, matched; None where they are not, or rows really differ.

    Only for outputs that the graph sorts (`categorical.sorted_by_score`): a column falls in many others, as a mask of 1
    and 0 does, whose rows have their places all the same. `share` is the largest error that passes, relative to the
    largest value, `floor` what passes whatever that is: scores tie where they differ by less.
    """
    if original.shape != actual.shape or original.ndim < 2 or original.dtype.kind != "f" or not share:
        return None
    if not 2 <= original.shape[ROWS] <= MOST_ROWS or original.shape[COLUMNS] < 2:
        return None
    if not (np.isfinite(original).all() and np.isfinite(actual).all()):
        return None
    shape = (-1, *original.shape[ROWS:])
    lists = [
        _match(expected, given, share, floor)
        for expected, given in zip(
            original.reshape(shape).astype(np.float64), actual.reshape(shape).astype(np.float64), strict=True
        )
    ]
    known = [matched for matched in lists if matched]
    if len(known) < len(lists) or not any(matched.moved or matched.others for matched in known):
        return None
    return RankedRows(
        original=np.concatenate([matched.original for matched in known]),
        actual=np.concatenate([matched.actual for matched in known]),
        moved=sum(matched.moved for matched in known),
        others=sum(matched.others for matched in known),
    )


def _match(original: Floats, actual: Floats, share: float, floor: float) -> RankedRows | None:
    scores = _scores(original, actual, share, floor)
    if scores is None:
        return None
    tie = max(share * float(np.abs(scores).max()), floor)
    limit = max(share * float(np.abs(original).max()), floor)
    places: list[int | None] = [None] * len(original)  # of the actual row that stands for each of the original's
    near = np.abs(original - actual).max(axis=COLUMNS) <= limit
    for row in np.flatnonzero(near).tolist():
        places[row] = row
    left = set(np.flatnonzero(~near).tolist())
    for row in np.flatnonzero(~near).tolist():
        candidates = [place for place in left if abs(scores[place] - scores[row]) <= tie]
        distances = np.abs(actual[candidates] - original[row]).max(axis=COLUMNS)
        if len(candidates) and distances.min() <= limit:
            place = candidates[int(distances.argmin())]
            places[row] = place
            left.remove(place)
    rows = [row for row, place in enumerate(places) if place is not None]
    lost = [row for row, place in enumerate(places) if place is None]
    # What comes last is decided by rounding where scores tie with the last one: unjudged it passes only as noise
    if any(scores[row] > tie for row in (*lost, *left)) or not rows:
        return None
    given = [place for place in places if place is not None]
    return RankedRows(
        original=original[rows],
        actual=actual[given],
        moved=sum(row != place for row, place in zip(rows, given, strict=True)),
        others=len(lost),
    )


def _scores(original: Floats, actual: Floats, share: float, floor: float) -> "npt.NDArray[np.float64] | None":
    """The column that both lists are sorted by, the largest first, and that is equal at each rank."""
    for column in range(original.shape[COLUMNS]):
        scores, given = original[:, column], actual[:, column]
        tie = max(share * float(np.abs(scores).max()), floor)
        falls = scores[0] - scores[-1] > tie and (np.diff(scores) <= 0).all()
        if falls and (np.diff(given) <= 0).all() and (np.abs(scores - given) <= tie).all():
            return scores
    return None
