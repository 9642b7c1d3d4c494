"""Weights of mel filters over the bins of a Fourier transform, as Whisper and as Kaldi compute them.

ONNX's MelWeightMatrix has neither: its filters have edges on whole bins.
"""

from collections.abc import Callable
from typing import Any

BREAK_HZ, BREAK_MEL = 1000.0, 15.0
"""Where Slaney's scale, which Whisper has, goes from lines to logarithms."""


def slaney(bins: int, size: int, rate: int) -> Any:
    """float64 [bins, size // 2 + 1]: Slaney's filters from 0 to half the rate, each of area one (librosa's default)."""
    import numpy as np

    most = BREAK_MEL + np.log(rate / 2 / BREAK_HZ) / (np.log(6.4) / 27)
    mels = np.linspace(0, most, bins + 2)
    over = BREAK_HZ * np.exp((mels - BREAK_MEL) * np.log(6.4) / 27)
    edges = np.where(mels < BREAK_MEL, mels * BREAK_HZ / BREAK_MEL, over)
    weights = _triangles(edges, np.linspace(0, rate / 2, size // 2 + 1))
    return weights * (2 / (edges[2:] - edges[:-2]))[:, None]


def kaldi(bins: int, size: int, rate: int, low_freq: float, high_freq: float) -> Any:
    """float64 [bins, size // 2 + 1]: triangles of height one, straight on the mel scale; none has half the rate."""
    import numpy as np

    to_mel: Callable[[Any], Any] = lambda hertz: 1127 * np.log1p(np.asarray(hertz, np.float64) / 700)  # noqa: E731
    edges = np.linspace(to_mel(low_freq), to_mel(high_freq), bins + 2)
    weights = _triangles(edges, to_mel(np.arange(size // 2 + 1) * rate / size))
    weights[:, -1] = 0
    return weights


def _triangles(edges: Any, places: Any) -> Any:
    """From 0 at each edge to 1 at the next and 0 at the one behind it."""
    import numpy as np

    rises = (places[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falls = (edges[2:, None] - places[None]) / (edges[2:] - edges[1:-1])[:, None]
    return np.maximum(0, np.minimum(rises, falls))
