"""OpenCV's INTER_LINEAR on bytes, in its whole numbers, which no form of ONNX's Resize computes with (app_data D.1).

A pixel is made of two columns and two rows. Weights have 11 bits; sums over columns lose 4 bits before rows are
weighed, as in HResizeLinear and VResizeLinear of OpenCV's resize.cpp. All numbers here are whole and fit their floats.
"""

from dataclasses import dataclass

from pipeline.features.app_data.graph_end import GraphEnd

ONE = 2.0**11
"""What both neighbours weigh together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """Of each place along an axis: the index of a neighbour, int64, and its weight, float32 up to ONE."""

    name: str
    index: str
    weight: str


def add_to(part: GraphEnd, pixels: str, sizes: str, channels: int) -> str:
    """uint8 [1, height, width, channels] of such pixels; `sizes` are the four sides that it gets, int64.

    Channels lie beside columns while it computes: a weight for each of both is as fast as one for all.
    """
    left, right = _neighbours(part, pixels, sizes, 2, ("left", "right"))
    weighed_rows = []
    for neighbour in _neighbours(part, pixels, sizes, 1, ("upper", "lower")):
        line = part.add("Gather", [pixels, neighbour.index], f"{neighbour.name} row", axis=1)
        columns = [_column(part, line, column, neighbour.name, channels) for column in (left, right)]
        kept = part.add("Floor", [part.add("Add", columns, f"{neighbour.name} sum")], f"{neighbour.name} kept bits")
        share = part.add(
            "Mul", [neighbour.weight, part.floats(f"{neighbour.name}: of 2^16", 2.0**-16)], f"{neighbour.name} share"
        )
        weights = part.flat(
            part.cast(share, f"{neighbour.name} double share", "f64"), f"{neighbour.name}: weights", -1, 1
        )
        exact = part.add(
            "Mul", [part.cast(kept, f"{neighbour.name} double", "f64"), weights], f"{neighbour.name} exact"
        )
        weighed_rows.append(part.cast(exact, neighbour.name, "i32"))  # a cast leaves out fractions
    total = part.cast(part.add("Add", weighed_rows, "sum of rows"), "sum in floats", "f32")
    rounded = part.add("Add", [total, part.floats("two", 2.0)], "sum to round")
    quarter = part.add("Mul", [rounded, part.floats("a quarter", 0.25)], "exact bytes")
    return part.add("Reshape", [part.cast(quarter, "bytes of rows", "u8"), sizes], "resized")


def _column(part: GraphEnd, line: str, column: Neighbour, name: str, channels: int) -> str:
    """float32 [1, rows, columns and channels]: pixels of a row, each by what its column weighs, without 4 bits."""
    name = f"{name} {column.name}"
    values = part.flat(part.add("Gather", [line, column.index], name, axis=2), f"{name} bytes", 0, 0, -1)
    weight = part.add("Mul", [column.weight, part.floats(f"{name}: 4 bits", 2.0**-4)], f"{name}: by 16")
    once = part.flat(weight, f"{name}: column", -1, 1)
    every = part.add("Expand", [once, part.integers(f"{name}: channels", 1, channels)], f"{name}: every channel")
    return part.add(
        "Mul", [part.cast(values, f"{name} in floats", "f32"), part.flat(every, f"{name}: weights")], f"{name} weighed"
    )


def _neighbours(
    part: GraphEnd, pixels: str, sizes: str, axis: int, names: tuple[str, str]
) -> tuple[Neighbour, Neighbour]:
    """Those of each place along an axis.

    Beyond an edge both are the pixel at the edge; of columns, and not of rows, the first then weighs all.
    """
    import numpy as np

    name = f"axis {axis}"
    number = part.constant(f"{name}: number", np.int64(axis))
    sides = part.add("Shape", [pixels], f"{name}: sides")
    old = part.add("Gather", [sides, number], f"{name}: old length", axis=0)
    new = part.add("Gather", [sizes, number], f"{name}: new length", axis=0)
    before, after = part.cast(old, f"{name}: old double", "f64"), part.cast(new, f"{name}: new double", "f64")
    start, step = part.constant(f"{name}: start", np.int64(0)), part.constant(f"{name}: step", np.int64(1))
    numbers = part.cast(part.add("Range", [start, new, step], f"{name}: numbers"), f"{name}: places", "f64")
    half, whole = (part.constant(f"{name}: {number}", np.float64(number)) for number in (0.5, 1.0))
    ratio = part.add("Div", [whole, part.add("Div", [after, before], f"{name}: growth")], f"{name}: scale")
    middle = part.add("Mul", [part.add("Add", [numbers, half], f"{name}: middles"), ratio], f"{name}: scaled")
    exact = part.cast(part.add("Sub", [middle, half], f"{name}: from"), f"{name}: exact", "f32")
    low = part.add("Floor", [exact], f"{name}: low")
    share = part.add("Sub", [exact, low], f"{name}: share")
    one, edge = part.floats(f"{name}: float one", 1.0), part.floats(f"{name}: edge", 0.0)
    last = part.add("Sub", [part.cast(old, f"{name}: float length", "f32"), one], f"{name}: last")
    if axis == 2:  # OpenCV's columns beyond an edge; its rows there keep both weights
        within = part.add(
            "And",
            [
                part.add("GreaterOrEqual", [low, edge], f"{name}: from the edge"),
                part.add("Less", [low, last], f"{name}: to the edge"),
            ],
            f"{name}: within",
        )
        share = part.add("Mul", [share, part.cast(within, f"{name}: inside", "f32")], f"{name}: share inside")
    rest = part.add("Sub", [one, share], f"{name}: rest")
    high = part.add("Add", [low, one], f"{name}: high")
    made = []
    for which, near, weight in ((names[0], low, rest), (names[1], high, share)):
        inside = part.add("Max", [part.add("Min", [near, last], f"{which}: to the last"), edge], f"{which}: inside")
        scaled = part.add("Mul", [weight, part.floats(f"{which}: bits", ONE)], f"{which}: scaled")
        index = part.cast(inside, f"{which}: index", "i64")
        made.append(Neighbour(name=which, index=index, weight=part.add("Round", [scaled], f"{which}: weight")))
    return made[0], made[1]
