"""Kaldi's features of sound: the logarithm of mel filters' power, as `compute-fbank-feats` without dither."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pipeline.config import app_data
from pipeline.features.app_data import frames as sound_frames
from pipeline.features.app_data import mel_filters, spectrum
from pipeline.features.app_data.graph_end import GraphEnd

if TYPE_CHECKING:
    from pipeline.dataset import Array

PREEMPHASIS = 0.97
WINDOWS: Mapping[app_data.WindowType, Callable[["Array"], "Array"]] = {
    app_data.WindowType.POVEY: lambda cosines: (0.5 - 0.5 * cosines) ** 0.85,
    app_data.WindowType.HAMMING: lambda cosines: 0.54 - 0.46 * cosines,
    app_data.WindowType.HANNING: lambda cosines: 0.5 - 0.5 * cosines,
}
"""What a frame is multiplied with, of cosines over a whole turn."""


def add_to(part: GraphEnd, samples: str, takes: app_data.Takes, bins: int, known: int | None) -> str:
    """float32 [1, frames, bins] of samples [1, n]; `known` is n where it is fixed.

    A frame's mean is taken away by itself: within the product with cosines an offset of the microphone would cost
    digits of what is quiet (app_data D.7).
    """
    import numpy as np

    frames = sound_frames.frames_of(takes.rate or 0)
    if not takes.snip_edges:
        left, right = (frames.length - frames.shift) // 2, frames.length // 2
        samples = _mirrored(part, samples, left, right)
        known = known and known + left + right
    cut = frames.cut(part, samples, known)
    sums = part.add("ReduceSum", [cut, part.integers("axis of a frame", 2)], "sums of frames", keepdims=1)
    means = part.add("Div", [sums, part.floats("samples of a frame", frames.length)], "means of frames")
    centred = part.add("Sub", [cut, means], "centred")
    emphasis = np.eye(frames.length) - PREEMPHASIS * np.eye(frames.length, k=-1)
    emphasis[0, 0] -= PREEMPHASIS
    window = WINDOWS[takes.window_type](np.cos(np.linspace(0, 2 * np.pi, frames.length)))
    size = 1 << (frames.length - 1).bit_length()
    filters = mel_filters.kaldi(bins, size, takes.rate or 0, takes.low_freq, takes.highest_freq)
    power = spectrum.add_to(part, centred, window[:, None] * emphasis, filters)
    least = part.floats("least power", float(np.finfo(np.float32).eps))
    return part.add("Log", [part.add("Max", [power, least], "power above 0")], "fbank")


def _mirrored(part: GraphEnd, samples: str, left: int, right: int) -> str:
    """With so many samples more on both sides, as a mirror at the edge shows them."""
    axis, back = part.integers("axis of samples", 1), part.integers("backwards", -1)
    mirrored = []
    for side, start, end in (("left", left - 1, -sound_frames.END), ("right", -1, -1 - right)):
        bounds = part.integers(f"{side}: from", start), part.integers(f"{side}: to", end)
        mirrored.append(part.add("Slice", [samples, *bounds, axis, back], f"mirrored on the {side}"))
    return part.add("Concat", [mirrored[0], samples, mirrored[1]], "with mirrored edges", axis=1)
