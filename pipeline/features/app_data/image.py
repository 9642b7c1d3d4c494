"""From the bytes of an image of any size to the tensor of a model, in standard operators.

Each filter is what comes nearest to its library (app_data D.1): Pillow's is a Resize in bytes with antialiasing, which
leaves out what lies outside; OpenCV's linear one is written out; its cubic one and Android's are Resize in floats.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.config import app_data
from pipeline.config import tables as config_tables
from pipeline.features.app_data import opencv_linear
from pipeline.features.app_data.graph_end import GraphEnd
from pipeline.model import edit as onnx_edit
from pipeline.model import types as onnx_types


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeForm:
    """How a filter is written: attributes of Resize, none where it is not one, and whether it is of bytes, not floats.

    `in_planes`: ONNX Runtime makes images smaller so only where the channels stand before height and width.
    """

    attributes: dict[str, Any]
    in_bytes: bool = False
    in_planes: bool = False
    opset: int = 13


_PLAIN = {"coordinate_transformation_mode": "half_pixel"}

FORMS: Mapping[app_data.Filter | None, ResizeForm] = {
    app_data.Filter.PILLOW_BILINEAR: ResizeForm(
        attributes={**_PLAIN, "mode": "linear", "antialias": 1, "exclude_outside": 1}, in_bytes=True, opset=18
    ),
    app_data.Filter.OPENCV_LINEAR: ResizeForm(attributes={}, in_bytes=True),
    app_data.Filter.OPENCV_CUBIC: ResizeForm(
        attributes={**_PLAIN, "mode": "cubic", "cubic_coeff_a": -0.75}, in_planes=True
    ),
    app_data.Filter.ANDROID: ResizeForm(attributes={**_PLAIN, "mode": "linear"}),
}

TITLE = f"{onnx_edit.ENDS}takes"
INPUT = "image"


def tensor_of(takes: app_data.Takes, size: tuple[int, int]) -> GraphEnd:
    """The part from the input INPUT, uint8 [1, height, width, channels], to its last node: float32 of `size`.

    `size` is height and width of the model's input.
    """
    part = GraphEnd(TITLE)
    form = FORMS[takes.filter]
    pixels = INPUT if form.in_bytes else part.add("Cast", [INPUT], "floats", to=onnx_types.FLOAT)
    if takes.short_side:
        pixels = _cropped(part, _resized_short(part, pixels, takes), takes, size)
    elif takes.fit is app_data.Proportions.LETTERBOX:
        pixels = _letterboxed(part, pixels, takes, size)
    else:
        height, width = takes.resize if isinstance(takes.resize, tuple) else size
        sizes = part.constant("sizes", _integers(1, height, width, takes.channels_of_image))
        pixels = _resized(part, pixels, sizes, takes)
        pixels = _cropped(part, pixels, takes, size) if takes.crop else pixels
    order = [2, 1, 0] if takes.channels is app_data.ChannelOrder.BGR else [0, 1, 2]
    in_planes = takes.layout is config_tables.ImageLayout.NCHW
    if in_planes:
        pixels = part.add("Transpose", [pixels], "planes", perm=[0, 3, 1, 2])
    if order != list(range(takes.channels_of_image)):  # behind Resize: before it all pixels would be moved
        order_of = part.constant("order", _integers(*order))  # whole planes move three times as fast as bytes
        pixels = part.add("Gather", [pixels, order_of], "channels", axis=1 if in_planes else 3)
    if form.in_bytes:
        pixels = part.add("Cast", [pixels], "floats", to=onnx_types.FLOAT)
    for op_type, name, values in (
        ("Div", "divided", takes.divide),
        ("Sub", "centred", takes.mean),
        ("Mul", "scaled", takes.scale),
    ):
        if values is not None:
            pixels = part.add(op_type, [pixels, part.constant(f"{name} by", _channels(values, takes.layout))], name)
    return part


def _resized(part: GraphEnd, pixels: str, sizes: str, takes: app_data.Takes) -> str:
    """Resized, and rounded as the libraries do that compute in bytes in the end."""
    form = FORMS[takes.filter]
    if not form.attributes:
        return opencv_linear.add_to(part, pixels, sizes, takes.channels_of_image)
    if form.in_planes:
        pixels = part.add("Transpose", [pixels], "planes to resize", perm=[0, 3, 1, 2])
        sizes = part.add("Gather", [sizes, part.constant("axes of planes", _integers(0, 3, 1, 2))], "sizes of planes")
    pixels = part.add("Resize", [pixels, "", "", sizes], "resized", **form.attributes)
    if form.in_planes:
        pixels = part.add("Transpose", [pixels], "resized pixels", perm=[0, 2, 3, 1])
    if form.in_bytes:
        return pixels
    least, most = part.constant("least", _floats(0)), part.constant("most", _floats(255))
    return part.add("Clip", [part.add("Round", [pixels], "rounded"), least, most], "bytes")


def _lengths(part: GraphEnd, pixels: str) -> str:
    """Height and width of the app's image, in floats."""
    shape = part.add("Shape", [pixels], "shape")
    sides = part.add("Gather", [shape, part.constant("sides", _integers(1, 2))], "lengths")
    return part.add("Cast", [sides], "float lengths", to=onnx_types.FLOAT)


def _sizes(part: GraphEnd, lengths: str, channels: int) -> str:
    """What Resize wants, of height and width in floats."""
    whole = part.add("Cast", [lengths], "whole lengths", to=onnx_types.CODES["i64"])
    ends = part.constant("batch", _integers(1)), part.constant("depth", _integers(channels))
    return part.add("Concat", [ends[0], whole, ends[1]], "sizes", axis=0)


def _resized_short(part: GraphEnd, pixels: str, takes: app_data.Takes) -> str:
    """The short side has its length, the long one in proportion, without its fraction, as torchvision does."""
    short = part.constant("short side", _floats(takes.short_side))
    lengths = _lengths(part, pixels)
    shortest = part.add("ReduceMin", [lengths], "shortest", keepdims=0)
    exact = part.add("Div", [part.add("Mul", [lengths, short], "times"), shortest], "exact lengths")
    sizes = _sizes(part, part.add("Floor", [exact], "new lengths"), takes.channels_of_image)
    return _resized(part, pixels, sizes, takes)


def _cropped(part: GraphEnd, pixels: str, takes: app_data.Takes, size: tuple[int, int]) -> str:
    """The middle of it; where that has no middle, the even one of the two places, as torchvision does."""
    height, width = takes.crop or size
    sides = part.constant("cut", _integers(height, width))
    shape = part.add("Shape", [pixels], "resized shape")
    lengths = part.add("Gather", [shape, part.constant("cut sides", _integers(1, 2))], "resized lengths")
    left = part.add("Cast", [part.add("Sub", [lengths, sides], "left over")], "float left over", to=onnx_types.FLOAT)
    half = part.add("Round", [part.add("Mul", [left, part.constant("half", _floats(0.5))], "margin")], "whole margin")
    start = part.add("Cast", [half], "start", to=onnx_types.CODES["i64"])
    end = part.add("Add", [start, sides], "end")
    pixels = part.add("Slice", [pixels, start, end, part.constant("axes", _integers(1, 2))], "cropped")
    return part.add(
        "Reshape", [pixels, part.constant("cut size", _integers(1, height, width, takes.channels_of_image))], "cut out"
    )


def _letterboxed(part: GraphEnd, pixels: str, takes: app_data.Takes, size: tuple[int, int]) -> str:
    """As large as fits, in the middle of `fill`; where that has no middle, as Ultralytics does it."""
    height, width = takes.resize if isinstance(takes.resize, tuple) else size
    target = part.constant("target", _floats([height, width]))
    lengths = _lengths(part, pixels)
    ratio = part.add("ReduceMin", [part.add("Div", [target, lengths], "ratios")], "ratio", keepdims=0)
    new = part.add("Round", [part.add("Mul", [lengths, ratio], "exact lengths")], "new lengths")
    pixels = _resized(part, pixels, _sizes(part, new, takes.channels_of_image), takes)
    left = part.add("Sub", [target, new], "left over")
    half = part.add("Mul", [left, part.constant("half", _floats(0.5))], "margin")
    before = part.add("Round", [part.add("Sub", [half, part.constant("tenth", _floats(0.1))], "less")], "before")
    behind = part.add("Sub", [left, before], "behind")
    none = part.constant("none", _integers(0))
    first = part.add("Cast", [before], "before in pixels", to=onnx_types.CODES["i64"])
    last = part.add("Cast", [behind], "behind in pixels", to=onnx_types.CODES["i64"])
    pads = part.add("Concat", [none, first, none, none, last, none], "pads", axis=0)
    kind = "uint8" if FORMS[takes.filter].in_bytes else "float32"
    padded = part.add("Pad", [pixels, pads, part.constant("fill", _of_kind(takes.fill, kind))], "padded")
    shape = part.constant("target size", _integers(1, height, width, takes.channels_of_image))
    return part.add("Reshape", [padded, shape], "letterbox")


def _channels(values: float | tuple[float, ...], layout: config_tables.ImageLayout) -> Any:
    """One number, or one for each channel along its axis."""
    numbers = _floats(values)
    return numbers.reshape(1, -1, 1, 1) if numbers.size > 1 and layout is config_tables.ImageLayout.NCHW else numbers


def _integers(*values: int) -> Any:
    return _of_kind(values, "int64")


def _floats(values: Any) -> Any:
    return _of_kind(values, "float32")


def _of_kind(values: Any, kind: str) -> Any:
    import numpy as np

    return np.asarray(values, np.dtype(kind))
