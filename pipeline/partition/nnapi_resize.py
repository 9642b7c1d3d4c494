"""What NNAPI asks of Resize (ep_rules D.5)."""

from collections.abc import Sequence

from pipeline.partition.answer import Refusal
from pipeline.partition.checks import constant, show, show_shape, shrinks_evenly
from pipeline.partition.rules import Case

CHANNELS_LAST = (0, 2, 3, 1)
EQUIVALENT = "export Resize as linear half_pixel, or nearest with asymmetric coordinates and floor"


def resize(case: Case) -> Refusal | None:
    """Two spatial dimensions, the few modes that NNAPI computes alike, scales or sizes known beforehand."""
    if case.rank(0) != 4:
        return Refusal("rank", f"input {show(case, 0)} {show_shape(case.shape(0))} is not of rank 4", "use rank 4")
    return _mode(case) or _since_18(case) or _target(case)


def _mode(case: Case) -> Refusal | None:
    mode = case.attribute("mode", "nearest")
    if mode not in ("linear", "nearest"):
        return Refusal("mode", f"mode {mode} is not taken", EQUIVALENT)
    if case.attribute("exclude_outside", 0) != 0:
        return Refusal("attr", "exclude_outside = 1 is not taken", "set it to 0")
    coordinates = case.attribute("coordinate_transformation_mode", "half_pixel")
    if mode == "nearest":
        rounding = case.attribute("nearest_mode", "round_prefer_floor")
        if (coordinates, rounding) != ("asymmetric", "floor"):
            return Refusal("coord", f"nearest with {coordinates} and {rounding} is not taken", EQUIVALENT)
    elif coordinates not in ("half_pixel", "align_corners", "asymmetric"):
        return Refusal("coord", f"linear with {coordinates} is not taken", EQUIVALENT)
    elif coordinates != "asymmetric" and case.settings.api_level < 30:
        return Refusal("coord", f"linear with {coordinates} needs API level 30", "target Android 11, or use asymmetric")
    return None


def _since_18(case: Case) -> Refusal | None:
    if case.ver < 18:
        return None
    if case.attribute("antialias", 0) != 0:
        return Refusal("attr", "antialias = 1 is not taken", "set it to 0")
    if case.attribute("axes"):
        return Refusal("attr", "attribute axes is not taken", "give scales or sizes for all four dimensions")
    if case.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        return Refusal("attr", "keep_aspect_ratio_policy other than stretch is not taken", "give the sizes themselves")
    return None


def _target(case: Case) -> Refusal | None:
    position = 2 if case.exists(2) else 3
    if not case.exists(position):
        return Refusal("const", "neither scales nor sizes are given", "give constant scales")
    refusal = constant(position, "scales" if position == 2 else "sizes")(case)
    found = case.constant(position)
    if refusal is not None or found is None:
        return refusal
    numbers = found.numbers()
    if len(numbers) < 4:
        return Refusal(
            "crash",
            f"Resize '{case.node.name}' lists {show(case, position)} with {len(numbers)} entries: ONNX Runtime "
            "reads four and the process ends",
            "leave the empty input out by an empty name, or give four entries",
            fatal=True,
        )
    shape = [dim or 0 for dim in case.shape(0) or ()]
    return _scales(case, shape, numbers) if position == 2 else _sizes(case, shape, numbers)


def permuted(case: Case) -> Refusal | None:
    """The same question after the layout transformation: shape and target in channels-last order (A.3)."""
    position = 2 if case.exists(2) else 3
    found, shape = case.constant(position), case.shape(0)
    if found is None or shape is None or found.count != 4 or len(shape) != 4:
        return None
    numbers = found.numbers()
    last = [numbers[axis] for axis in CHANNELS_LAST]
    sizes = [shape[axis] or 0 for axis in CHANNELS_LAST]
    return _scales(case, sizes, last) if position == 2 else _sizes(case, sizes, last)


def _scales(case: Case, shape: Sequence[int], scales: Sequence[float]) -> Refusal | None:
    nchw = scales[1] == 1.0
    channel, height, width = scales[1:] if nchw else (scales[3], scales[1], scales[2])
    if (scales[0], channel) != (1.0, 1.0):
        return Refusal("nc", f"scales {list(scales)} change batch or channels", "scale height and width only")
    if height < 1 or width < 1:
        rows, columns = (shape[2], shape[3]) if nchw else (shape[1], shape[2])
        if not (rows and columns and shrinks_evenly(rows, height) and shrinks_evenly(columns, width)):
            return Refusal(
                "factor",
                f"shrinking {rows}x{columns} by {height:g}, {width:g}: both must shrink by a whole divisor of the size",
                "give sizes in place of scales, or shrink by a divisor",
            )
    return _layout(case, nchw)


def _sizes(case: Case, shape: Sequence[int], sizes: Sequence[int]) -> Refusal | None:
    nchw = sizes[1] == shape[1]
    channel = 1 if nchw else 3
    if sizes[0] != shape[0] or sizes[channel] != shape[channel]:
        return Refusal(
            "nc", f"sizes {list(sizes)} of {list(shape)} change batch or channels", "resize height and width only"
        )
    return _layout(case, nchw)


def _layout(case: Case, nchw: bool) -> Refusal | None:
    if nchw and case.settings.api_level <= 28:
        return Refusal("nchw", "channels first needs API level 29", "target Android 10 or later")
    return None
