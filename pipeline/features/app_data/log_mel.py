"""Whisper's features of sound: the logarithm of mel filters' power, as `log_mel_spectrogram` of openai/whisper."""

from pipeline.config import app_data
from pipeline.features.app_data import frames as sound_frames
from pipeline.features.app_data import mel_filters, spectrum
from pipeline.features.app_data.graph_end import GraphEnd

USUAL_SAMPLES = 30 * app_data.LOG_MEL_RATE
"""Of a recording, where neither the model nor the table says another number: Whisper's half a minute."""


def add_to(part: GraphEnd, samples: str, bins: int, length: int) -> str:
    """float32 [1, bins, n / shift] of samples [1, n], where n is `length`, a multiple of the shift.

    Frames are around their places, so that half a frame is reflected at both ends; what is more than 8 (80 dB) below
    the loudest becomes as loud as that.
    """
    import numpy as np

    frames = sound_frames.frames_of(app_data.LOG_MEL_RATE)
    before = frames.length // 2
    whole = frames.samples(length // frames.shift)
    pads = part.integers("half a frame", 0, before, 0, whole - length - before)
    reflected = part.add("Pad", [samples, pads], "reflected", mode="reflect")
    filters = mel_filters.slaney(bins, frames.length, app_data.LOG_MEL_RATE)
    window = np.diag(np.hanning(frames.length + 1)[:-1])
    power = spectrum.add_to(part, frames.cut(part, reflected, whole), window, filters)
    power = part.add("Max", [power, part.floats("least power", 1e-10)], "power above 0")
    values = part.add("Mul", [part.add("Log", [power], "log"), part.floats("1 by ln 10", 1 / np.log(10))], "log 10")
    loudest = part.add("ReduceMax", [values], "loudest", keepdims=0)
    floor = part.add("Sub", [loudest, part.floats("range", 8.0)], "floor")
    values = part.add("Add", [part.add("Max", [values, floor], "above the floor"), part.floats("four", 4.0)], "raised")
    values = part.add("Mul", [values, part.floats("a quarter", 0.25)], "scaled")
    return part.add("Transpose", [values], "log-mel", perm=[0, 2, 1])
