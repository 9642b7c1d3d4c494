"""From the head of a detector to boxes: the best class of each place, no two of one object, corners in the image.

What suppresses what is ONNX's NonMaxSuppression of each class by itself: a value above `score`, boxes that share more
than `overlap` of what they cover together. As Ultralytics does it with one label a box.
"""

from pipeline.config import app_data
from pipeline.features.app_data.ending import Ending
from pipeline.features.app_data.graph_end import GraphEnd

BOXES, SCORES, CLASSES, LABELS = "boxes", "scores", "classes", "labels"
"""The outputs, the best first: left, top, right, bottom; the value; the class by number and, with a file, its label."""

BEFORE_CLASSES = {app_data.BoxLayout.XYWH_CLASSES: 4, app_data.BoxLayout.XYWH_OBJECTNESS_CLASSES: 5}
"""How many values stand before those of the classes."""

WHOLE = 6
"""Values of a box of xyxy+score+class."""


def add_to(part: GraphEnd, ending: Ending) -> None:
    """The nodes from the head to the outputs; ConfigError where head, layout and labels do not fit."""
    ending.require("boxes", 3)
    if ending.gives.layout is app_data.BoxLayout.XYXY_SCORE_CLASS:
        corners, scores, classes = _finished(part, ending)
    else:
        corners, scores, classes = _suppressed(part, ending)
    if ending.original:
        corners = ending.original.corners(part, corners)
    if ending.names:
        labels = part.constant("labels", list(ending.names))
        part.give(part.add("Gather", [labels, classes], "named"), LABELS, "string", ["count"])
    part.give(corners, BOXES, "f32", ["count", 4])
    part.give(scores, SCORES, "f32", ["count"])
    part.give(classes, CLASSES, "i64", ["count"])


def _finished(part: GraphEnd, ending: Ending) -> list[str]:
    """Of [1, n, 6], where the model has suppressed boxes itself: corners, scores and classes."""
    if ending.size(2) not in (None, WHOLE):
        why = f"it is {ending.tensor}; [1, n, {WHOLE}] is wanted: left, top, right, bottom, value, class"
        raise _unfit(ending, why)
    every = part.flat(ending.tensor.name, "every box", -1, WHOLE)
    values = part.flat(part.columns(every, 4, 5, 1, "value"), "every value")
    above = part.add("Greater", [values, part.floats("least", ending.gives.score)], "above")
    good = part.add("Compress", [every, above], "good boxes", axis=0)
    scores, order = _best(part, part.flat(part.columns(good, 4, 5, 1, "good value"), "good values"), ending)
    rows = part.add("Gather", [good, order], "best boxes")
    classes = part.cast(part.flat(part.columns(rows, 5, 6, 1, "class"), "every class"), "classes", "i64")
    return [part.columns(rows, 0, 4, 1, "corners"), scores, classes]


def _suppressed(part: GraphEnd, ending: Ending) -> list[str]:
    """Of [1, 4 + classes, n] or [1, n, 5 + classes], n centres with width and height: corners, scores and classes."""
    gives = ending.gives
    channels_first = gives.layout is app_data.BoxLayout.XYWH_CLASSES
    count, first = _count(ending, 1 if channels_first else 2), BEFORE_CLASSES[gives.layout]
    every = ending.tensor.name
    if channels_first:
        every = part.add("Transpose", [every], "every box", perm=[0, 2, 1])
    centres = part.columns(every, 0, 4, 2, "centres and sizes")
    values = part.columns(every, first, first + count, 2, "values of classes")
    if not channels_first:
        values = part.add("Mul", [values, part.columns(every, 4, 5, 2, "objectness")], "values")
    best = part.add("ArgMax", [values], "best class", axis=2, keepdims=1)  # the first of equals
    value = part.flat(part.add("GatherElements", [values, best], "best value", axis=2), "best values")
    every_class = part.integers("every class", *range(count))
    is_best = part.cast(part.add("Equal", [best, every_class], "is best"), "one or none", "f32")
    alone = part.add("Transpose", [part.add("Mul", [values, is_best], "best alone")], "by class", perm=[0, 2, 1])
    limits = [
        part.integers("most", gives.most),
        part.floats("most overlap", [gives.overlap]),
        part.floats("least", [gives.score]),
    ]
    kept = part.add("NonMaxSuppression", [centres, alone, *limits], "kept", center_point_box=1)
    columns = [part.integers(f"column {number}", number) for number in (1, 2)]
    classes, places = (
        part.flat(part.add("Gather", [kept, column], f"{name} column", axis=1), f"kept {name}")
        for name, column in zip(("classes", "places"), columns, strict=True)
    )
    scores, order = _best(part, part.add("Gather", [value, places], "kept values"), ending, "most")
    rows = part.add("Gather", [places, order], "best places")
    chosen = part.add("Gather", [part.flat(centres, "rows", -1, 4), rows], "chosen")
    middle, sides = part.columns(chosen, 0, 2, 1, "middle"), part.columns(chosen, 2, 4, 1, "sides")
    half = part.add("Mul", [sides, part.floats("half", 0.5)], "half sides")
    ends = part.add("Sub", [middle, half], "first corner"), part.add("Add", [middle, half], "last corner")
    return [part.add("Concat", ends, "corners", axis=1), scores, part.add("Gather", [classes, order], "classes")]


def _best(part: GraphEnd, values: str, ending: Ending, most: str = "") -> tuple[str, str]:
    """The largest values, as many as are wanted, and where they are."""
    limit = part.named(most) if most else part.integers("most", ending.gives.most)
    count = part.add("Min", [part.add("Shape", [values], "how many"), limit], "how many at most")
    scores = part.add("TopK", [values, count], "largest", axis=0)
    order = part.named("order")
    part.nodes[-1].output.append(order)
    return scores, order


def _count(ending: Ending, axis: int) -> int:
    """How many classes the head has: as many as labels, which are as many as its shape says where it says so."""
    size, first, labels = ending.size(axis), BEFORE_CLASSES[ending.gives.layout], len(ending.names)
    if size is None and not labels:
        raise _unfit(ending, f"it is {ending.tensor}: how many classes it has is not said")
    if size is not None and (size <= first or (labels and size != first + labels)):
        wanted = f"{first} + {labels} labels" if labels else f"more than {first}"
        raise _unfit(ending, f"it is {ending.tensor}; axis {axis} has {size}, {wanted} are wanted")
    return labels or (size or first) - first


def _unfit(ending: Ending, why: str) -> Exception:
    return ending.refusal(
        f"the output {ending.tensor.name!r} has no boxes of the layout {ending.gives.layout}",
        why,
        "set `gives.layout` to what the model gives, and a label a line in the order of the classes",
    )
