"""Outputs that hold values of different scale, as boxes in pixels beside scores: their channels in parts of one scale.

An error that takes all scores is nothing beside the power of the boxes, so that such parts are compared by themselves.
What is of one scale is decided by the original's values over all samples.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[Any]"
Floats: TypeAlias = "npt.NDArray[np.float64]"

MOST_CHANNELS = 1024
"""An axis of more is one of places or anchors."""
MOST_KEPT = 512
"""Twice so many contributions are kept; samples are then added up by two, by four, and so on."""
APART = 10.0
"""What is so many times smaller than the rest is judged by itself: it has a hundredth of the power, which is what the
usual budget allows to lose.
"""
SHOWN = 0.25
"""A score that never gets so far is no detection, by the usual threshold of detectors; of larger values, the share of
the largest by which they must vary.
"""
SPARSE = 8.0
"""The largest value of a channel is more than so many RMS where it is mostly the same, as the scores of anchors are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePart:
    """Channels of one scale that is lost beside that of the others.

    `errors`, `powers` and `sums` are those of the squared difference, the original's squares and its values, each over
    so many `counts` of elements, by sample (or as many of them as `each` says). `quiet`: the original's values hardly
    vary there, so that nothing but rounding would be judged. `largest` is its largest magnitude, `zeroed` whether all
    values are 0 in place of them.
    """

    channels: tuple[int, ...]
    errors: Floats
    powers: Floats
    sums: Floats
    counts: Floats
    each: int
    largest: float
    quiet: bool
    zeroed: bool

    @property
    def name(self) -> str:
        """The channels in words: "channels 4 to 83"."""
        runs: list[list[int]] = []
        for channel in self.channels:
            if runs and channel == runs[-1][-1] + 1:
                runs[-1].append(channel)
            else:
                runs.append([channel])
        words = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
        shown = ", ".join(words[:MOST_RUNS])
        shown += f" and {sum(map(len, runs[MOST_RUNS:]))} more" if len(runs) > MOST_RUNS else ""
        return f"channel{'s' if len(self.channels) > 1 else ''} {shown}"


MOST_RUNS = 4
"""Runs of neighbouring channels that are written out."""


class _Axis:
    """The channels along one axis: what they add up to, by sample, and the original's range."""

    def __init__(self, axis: int, size: int) -> None:
        self.axis, self.size = axis, size
        self.kept: list[Floats] = []  # [channels, 5]: errors, powers, sums, squares of ours, count
        self.each = 1
        self.waiting: list[Floats] = []  # fewer than `each`
        self.low: Any = float("inf")
        self.high: Any = float("-inf")
        self.whole: Any = True

    def add(self, ours: Floats, original: Floats) -> None:
        import numpy as np

        mine, theirs = (np.moveaxis(array, self.axis, 0).reshape(self.size, -1) for array in (ours, original))
        error = mine - theirs
        sums = [np.einsum("ij,ij->i", array, array) for array in (error, theirs, mine)]
        count = np.full(self.size, float(theirs.shape[1]))
        self.waiting.append(np.stack([sums[0], sums[1], theirs.sum(axis=1), sums[2], count], axis=1))
        if len(self.waiting) == self.each:
            self.kept.append(np.sum(self.waiting, axis=0))
            self.waiting = []
        if len(self.kept) == 2 * MOST_KEPT:
            self.kept = [first + second for first, second in zip(self.kept[::2], self.kept[1::2], strict=True)]
            self.each *= 2
        self.low, self.high = np.minimum(self.low, theirs.min(axis=1)), np.maximum(self.high, theirs.max(axis=1))
        self.whole &= (theirs == np.round(theirs)).all(axis=1)

    def parts(self) -> tuple[ScalePart, ...]:
        """The largest scale is no part: whatever judges the output as a whole sees it."""
        import numpy as np

        kept = [*self.kept, *([np.sum(self.waiting, axis=0)] if self.waiting else [])]
        if not kept:
            return ()
        _, powers, sums, _, counts = np.sum(kept, axis=0).T
        spread = np.sqrt(np.maximum(powers / counts - np.square(sums / counts), 0))
        largest = np.maximum(np.abs(self.low), np.abs(self.high))
        if largest.max() <= 1:  # shares and probabilities: those of classes that never occur are of the same scale
            return ()
        quiet = self.high - self.low < SHOWN * np.maximum(1, largest)
        loud = np.flatnonzero(~quiet)
        numbers, sparse = self.whole[loud], (spread * SPARSE < largest)[loud]
        if numbers.all():
            numbers[:] = False
        classes = _by_gaps(loud[numbers], largest)  # by themselves, whatever their scale is
        kinds = (loud[~numbers & sparse], loud[~numbers & ~sparse])
        groups = [group for kind in kinds for group in _by_gaps(kind, largest)]
        if not groups:
            return ()
        levels = [float(np.sqrt(np.mean(np.square(spread[group])))) for group in (*groups, *classes)]
        lost = [group for group, level in zip(groups, levels, strict=False) if level * APART < max(levels)]
        lost += classes
        silent = np.flatnonzero(quiet & (spread * APART < max(levels)) & (largest > 0))
        found = []
        for group in (*lost, silent):
            if not len(group):
                continue
            added = np.array([contribution[group].sum(axis=0) for contribution in kept])
            found.append(
                ScalePart(
                    channels=tuple(sorted(group.tolist())),
                    errors=added[:, 0],
                    powers=added[:, 1],
                    sums=added[:, 2],
                    counts=added[:, 4],
                    each=self.each,
                    largest=float(largest[group].max()),
                    quiet=group is silent,
                    zeroed=not added[:, 3].any(),
                )
            )
        return tuple(found)


def _by_gaps(channels: Array, largest: Floats) -> list[Array]:
    """Channels by their largest values, apart where the next is so many times smaller."""
    import numpy as np

    ordered = channels[np.argsort(-largest[channels], kind="stable")]
    values = largest[ordered]
    groups = np.split(ordered, np.flatnonzero(values[:-1] > APART * values[1:]) + 1)
    return groups if len(ordered) else []


class Scales:
    """The parts of one output, of samples that are added one by one.

    Channels are the second axis or the last, as in [1, 84, N], [1, 3, H, W, 85] and [N, 6].
    """

    def __init__(self) -> None:
        self.axes: list[_Axis] | None = None

    def add(self, ours: Array, original: Array) -> None:
        """Add a sample; one that has no numbers to compare is left to the judgement of the whole."""
        import numpy as np

        shape = original.shape
        if original.dtype.kind != "f" or ours.dtype.kind not in "fiub" or ours.shape != shape or not original.size:
            return
        if not (np.isfinite(original).all() and np.isfinite(ours).all()):
            return
        if self.axes is None:
            places = sorted({axis for axis in (1, len(shape) - 1) if 0 <= axis < len(shape)})
            if len(shape) == 4:  # the sides of an image, as a rule of one length, are no channels
                places = [axis for axis in places if shape[axis] != shape[2]]
            self.axes = [_Axis(axis, shape[axis]) for axis in places if 2 <= shape[axis] <= MOST_CHANNELS]
        # An axis whose size changes is one of boxes that were found
        self.axes = [axis for axis in self.axes if axis.axis < len(shape) and shape[axis.axis] == axis.size]
        mine, theirs = ours.astype(np.float64), original.astype(np.float64)
        for axis in self.axes:
            axis.add(mine, theirs)

    def parts(self) -> tuple[ScalePart, ...]:
        """Those of the axis that shows some; of two the shorter one, since there are more places than channels."""
        of_axes = [axis.parts() for axis in sorted(self.axes or (), key=lambda axis: axis.size)]
        judged = (parts for parts in of_axes if any(not part.quiet for part in parts))
        return next(judged, next(filter(None, of_axes), ()))


def parts_of(original: Array, actual: Array) -> tuple[ScalePart, ...]:
    """The parts of an output on one sample."""
    scales = Scales()
    scales.add(actual, original)
    return scales.parts()
