"""A whole recording, however long: cut or filled up with silence to the length that a model takes."""

from pipeline.features.app_data.graph_end import GraphEnd


def add_to(part: GraphEnd, samples: str, window: int | None, least: int) -> str:
    """float32 [1, window] of samples [1, n]; without a window they stay as they are, and are filled up to `least`."""
    shape = part.add("Shape", [samples], "recording's shape")
    given = part.columns(shape, 1, 2, 0, "recording's length")
    lacking = part.add("Sub", [part.integers("wanted length", window or least), given], "silence")
    if window is None:
        lacking = part.add("Max", [lacking, part.integers("no silence", 0)], "silence behind")
    pads = part.add("Concat", [part.integers("nothing before", 0, 0, 0), lacking], "pads of a recording", axis=0)
    filled = part.add("Pad", [samples, pads], "filled recording")  # a negative pad cuts
    return part.flat(filled, "recording", 1, window) if window else filled
