"""Limits that ONNX Runtime's releases moved for several providers (ep_rules A.3, D.2.7 and the supplement, part 1)."""

from collections.abc import Sequence

Release = tuple[int, int]
Steps = Sequence[tuple[Release, int]]
"""Values with the release that brought each, the newest first."""

MAX_VERSION: Steps = (((1, 28), 27), ((1, 24), 25), ((1, 23), 23), ((0, 0), 21))
"""Highest since_version that the op builders of NNAPI and CoreML take."""

LAYOUT_OPSETS: Steps = (((1, 28), 27), ((1, 25), 26), ((1, 24), 25), ((1, 23), 23), ((0, 0), 22))
"""Highest opset of the default domain that the layout transformation knows; the lowest is 7."""

LOWEST_LAYOUT_OPSET = 7


def by_release(steps: Steps, release: Release) -> int:
    """The value of the newest step that is not younger than a release."""
    return next(value for first, value in steps if first <= release)


def layout_window(opset: int | None, release: Release) -> str | None:
    """Why the layout transformation of a release does not know a model's opset; None when it does."""
    highest = by_release(LAYOUT_OPSETS, release)
    if opset is not None and LOWEST_LAYOUT_OPSET <= opset <= highest:
        return None
    window = f"{LOWEST_LAYOUT_OPSET} to {highest}"
    return f"opset {opset} is outside {window}, which the layout transformation of this release knows"
