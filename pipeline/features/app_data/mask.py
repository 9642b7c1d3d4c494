"""From values for classes at each pixel to a picture of the classes' numbers, as large as the app's own."""

from pipeline.config import app_data
from pipeline.config import tables as config_tables
from pipeline.features.app_data import image
from pipeline.features.app_data.ending import Ending
from pipeline.features.app_data.graph_end import GraphEnd

MASK = "mask"
"""The output: of each pixel the number of its class."""

MOST_CLASSES = 256


def add_to(part: GraphEnd, ending: Ending) -> None:
    """The nodes from [1, classes, height, width] to the output; ConfigError where they do not fit.

    `linear` resizes values and then compares them, as Transformers does it; `nearest` compares first, which needs a
    share of the memory. A single class is there where its value, or what sigmoid makes of it, is above one half.
    """
    ending.require("values for the classes of pixels", 4)
    last = ending.original is not None and ending.original.takes.layout is config_tables.ImageLayout.NHWC
    count = ending.size(3 if last else 1)
    if count is None or count > MOST_CLASSES or (ending.original and ending.original.cropped):
        whole = f"it is {ending.tensor}; 1 to {MOST_CLASSES} classes are wanted"
        cut = "a model that sees a part of a picture says nothing of the rest"
        raise ending.refusal(
            f"the output {ending.tensor.name!r} gives no mask of the picture",
            cut if ending.original and ending.original.cropped else whole,
            "resize without `crop`, and export the model with its number of classes",
        )
    values = ending.tensor.name
    if last:
        values = part.add("Transpose", [values], "planes", perm=[0, 3, 1, 2])
    if ending.gives.resize is app_data.MaskResize.LINEAR:
        chosen = _chosen(part, _placed(part, values, ending, count), ending, count)
    else:
        chosen = _placed(part, _chosen(part, values, ending, count), ending, 1)
    sides = ["height", "width"] if ending.original else [ending.size(-2) or "height", ending.size(-1) or "width"]
    shape = part.columns(part.add("Shape", [chosen], "shape of a mask"), 2, 4, 0, "sides of a mask")
    part.give(part.add("Reshape", [chosen, shape], "classes of pixels"), MASK, "u8", sides)


def _chosen(part: GraphEnd, values: str, ending: Ending, count: int) -> str:
    """The number of the class of each pixel, uint8 [1, 1, height, width]."""
    if count > 1:
        return part.cast(part.add("ArgMax", [values], "best class", axis=1, keepdims=1), "class", "u8")
    if ending.gives.sigmoid:
        values = part.add("Sigmoid", [values], "probability")
    return part.cast(part.add("Greater", [values, part.floats("half", 0.5)], "is there"), "class", "u8")


def _placed(part: GraphEnd, values: str, ending: Ending, count: int) -> str:
    """Values at the pixels of the app's picture, without what a letterbox filled up."""
    original = ending.original
    if not original:
        return values
    if original.takes.fit is app_data.Proportions.LETTERBOX:
        size = original.takes.resize if isinstance(original.takes.resize, tuple) else original.size
        values = _resized(part, values, part.integers("model's sides", *size), ending, count, "in the model's size")
        start = part.cast(f"{image.TITLE}/before", "margin", "i64")
        end = part.add("Add", [start, part.cast(f"{image.TITLE}/new lengths", "inner sides", "i64")], "end")
        values = part.add("Slice", [values, start, end, part.integers("sides", 2, 3)], "inside margins")
    return _resized(part, values, original.lengths(part), ending, count, "in the picture's size")


def _resized(part: GraphEnd, values: str, sides: str, ending: Ending, count: int, name: str) -> str:
    sizes = part.add("Concat", [part.integers(f"{name}: batch and classes", 1, count), sides], f"{name}: sizes", axis=0)
    form = (
        {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
        if ending.gives.resize is app_data.MaskResize.LINEAR
        else {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    )
    return part.add("Resize", [values, "", "", sizes], name, **form)
