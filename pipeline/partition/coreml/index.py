"""What CoreML's op builders ask of nodes that pick, split, repeat and reshape (ep_rules E.3, E.4, G.3)."""

from collections.abc import Sequence

from pipeline.partition.answer import Refusal
from pipeline.partition.rules import Case, constant, first_refusal, given, rank, show, show_shape, when

INTEGERS = ("i32", "i64")
MAX_RANK = 5
FIX = "fix the model's dynamic dimensions"


def static(case: Case) -> Refusal | None:
    """The shape of input 0 is known in full."""
    if case.value(0).static:
        return None
    return Refusal("dynamic", f"input {show(case, 0)} {show_shape(case.shape(0))} is not static", FIX)


def gather(case: Case) -> Refusal | None:
    """A result of at most five dimensions; a single index since release 1.27."""
    data, indices = case.rank(0), case.rank(1)
    if case.settings.ort_release >= (1, 27) and case.dtype(1) not in INTEGERS:
        return Refusal("type", f"indices {show(case, 1)} are {case.dtype(1)}", "use i32 or i64 indices")
    if indices == 0:
        return _scalar_index(case)
    if data + indices - 1 > MAX_RANK:
        return Refusal(
            "rank", f"the result would have rank {data + indices - 1}, Core ML has at most 5", "gather from fewer"
        )
    return None


def _scalar_index(case: Case) -> Refusal | None:
    if case.settings.ort_release < (1, 27):
        return Refusal(
            "rank",
            f"the index {show(case, 1)} is a single number, which releases before 1.27 do not take",
            "use an index of shape [1] and Squeeze the result",
        )
    return static(case) or rank(0, 0, MAX_RANK - 1)(case)


def gather_nd(case: Case) -> Refusal | None:
    """Constant indices into dimensions that are known."""
    if case.attribute("batch_dims", 0) != 0:
        return Refusal("attr", "batch_dims is not taken", "gather without batch_dims")
    if case.dtype(1) not in INTEGERS:
        return Refusal("type", f"indices {show(case, 1)} are {case.dtype(1)}", "use i32 or i64 indices")
    refusal = constant(1, "indices")(case)
    if refusal is not None:
        return refusal
    data, indices = case.shape(0) or (), case.shape(1) or ()
    depth = indices[-1] if indices else None
    if depth is None or depth > len(data):
        return Refusal("rank", f"indices {show_shape(indices)} do not fit data {show_shape(data)}", "fix the indices")
    if None in data[:depth]:
        return Refusal("dynamic", f"indexed dimensions of {show(case, 0)} {show_shape(data)} are not known", FIX)
    return None


def slice_(case: Case) -> Refusal | None:
    """Everything about the slice is known beforehand, and it is not empty."""
    refusal = first_refusal(
        case,
        (
            static,
            constant(1, "starts"),
            constant(2, "ends"),
            when(given(3), constant(3, "axes")),
            when(given(4), constant(4, "steps")),
        ),
    )
    return refusal or _plan(case, [dim or 0 for dim in case.shape(0) or ()])


def _indices(case: Case, position: int) -> list[int] | None:
    """An index tensor's numbers, None when it is of another type."""
    found = case.constant(position)
    return found.numbers() if found is not None and found.dtype in INTEGERS else None


def _plan(case: Case, shape: list[int]) -> Refusal | None:
    starts, ends = _indices(case, 1), _indices(case, 2)
    axes = _indices(case, 3) if case.exists(3) else list(range(len(starts or ())))
    steps = _indices(case, 4) if case.exists(4) else [1] * len(starts or ())
    malformed = Refusal("slice", "starts, ends, axes and steps do not fit together", "export the slice anew")
    if starts is None or ends is None or axes is None or steps is None:
        return Refusal("type", "starts, ends, axes and steps must be i32 or i64", "export the slice anew")
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        return malformed
    places = [axis + len(shape) if axis < 0 else axis for axis in axes]
    if len(set(places)) < len(places) or not all(0 <= place < len(shape) for place in places):
        return malformed
    for place, start, end, step in zip(places, starts, ends, steps, strict=True):
        if _empty(shape[place], start, end, step):
            return Refusal(
                "empty",
                f"from {start} to {end} by {step} along dimension {place} of {show_shape(tuple(shape))} is nothing",
                "leave the empty slice out",
            )
    return None


def _empty(size: int, start: int, end: int, step: int) -> bool:
    """ONNX's clamping of start and end, then whether anything lies between."""
    start, end = (value + size if value < 0 else value for value in (start, end))
    if step > 0:
        return min(max(start, 0), size) >= min(max(end, 0), size)
    return min(max(start, 0), size - 1) <= min(max(end, -1), size - 1)


def split(case: Case) -> Refusal | None:
    """Parts that are known: given as a constant (or, since release 1.27, an attribute), counted, or even."""
    if case.exists(1):
        refusal = constant(1, "the list of parts")(case)
        found = case.constant(1)
        return refusal or _parts(case, found.numbers() if found else [])
    if case.ver >= 18:
        return _counted(case)
    if case.settings.ort_release < (1, 27):
        return None
    parts = case.attribute("split") if case.ver < 13 else None
    return _even(case) if parts is None else _parts(case, parts)


def _axis(case: Case) -> int | None:
    """The size of the dimension that is split, None when it is not known."""
    shape = case.shape(0) or ()
    axis = case.attribute("axis", 0)
    return shape[axis] if -len(shape) <= axis < len(shape) else None


def _refused(text: str) -> Refusal:
    return Refusal("split", text, "fix the dimension, and split into two or more parts that add up to it")


def _parts(case: Case, parts: Sequence[int]) -> Refusal | None:
    size = _axis(case)
    if len(parts) < 2:
        return _refused("it splits into a single part")
    if size is None or sum(parts) != size or 0 in parts:
        return _refused(f"parts {list(parts)} of a dimension of size {size or 'unknown'}")
    return None


def _counted(case: Case) -> Refusal | None:
    count, size = case.attribute("num_outputs"), _axis(case)
    if count is None or count < 2 or count != len(case.node.outputs) or size is None or count > size:
        return _refused(f"num_outputs {count}, {len(case.node.outputs)} outputs, dimension of size {size or 'unknown'}")
    return None


def _even(case: Case) -> Refusal | None:
    count, size = len(case.node.outputs), _axis(case)
    if count < 2 or size is None or size % count:
        return _refused(f"{count} equal parts of a dimension of size {size or 'unknown'}")
    return None
