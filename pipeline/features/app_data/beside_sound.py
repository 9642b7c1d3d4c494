"""Keys of `takes` of what Transformers puts beside a model of sound: the preprocessor_config.json of Whisper."""

from collections.abc import Mapping
from typing import Any

from pipeline.config import app_data
from pipeline.features.app_data import frames as sound_frames
from pipeline.features.app_data import log_mel
from pipeline.model.signature import TensorInfo

EXTRACTOR = "feature_extractor_type"
"""The key that preprocessors of sound have, and those of images have not, but for old ones."""
WHISPER = "WhisperFeatureExtractor"

_FRAMES = sound_frames.frames_of(app_data.LOG_MEL_RATE)
ALWAYS = {"sampling_rate": app_data.LOG_MEL_RATE, "n_fft": _FRAMES.length, "hop_length": _FRAMES.shift, "dither": 0.0}
"""What the graph computes, which a file may say otherwise."""


def is_of_sound(config: Mapping[str, Any]) -> bool:
    """Whether a preprocessor makes features of sound."""
    return EXTRACTOR in config and ("sampling_rate" in config or config[EXTRACTOR] == WHISPER)


def takes_of(config: Mapping[str, Any], tensor: TensorInfo) -> dict[str, Any] | str:
    """The keys of `takes`, or why there are none, in words."""
    if config[EXTRACTOR] != WHISPER:
        return f"has the features of {config[EXTRACTOR]}, which no graph here computes"
    if other := next((key for key, value in ALWAYS.items() if config.get(key, value) != value), None):
        return f"has {other} {config[other]}, where log-mel has {ALWAYS[other]}"
    if config.get("do_normalize"):
        return "makes samples as loud as each other first (do_normalize)"
    bins, samples = config.get("feature_size", 80), config.get("n_samples", log_mel.USUAL_SAMPLES)
    if not all(isinstance(number, int) and 0 < number < 1 << 31 for number in (bins, samples)):
        return "has no numbers as feature_size and n_samples"
    takes: dict[str, Any] = {
        "samples": app_data.SampleKind.INT16.value,
        "rate": app_data.LOG_MEL_RATE,
        "divide": 32768,
        "features": app_data.SoundFeatures.LOG_MEL.value,
        "bins": bins,
    }
    own = tensor.shape[2] if tensor.shape else None
    return takes if isinstance(own, int) else takes | {"window": samples}
