"""Files of what an app has as test data: lines of a text, recordings or their steps."""

import wave
from collections.abc import Iterator, Sequence
from pathlib import Path

from device_runner import untrusted_files
from pipeline import dataset as datasets
from pipeline.config import app_data
from pipeline.core.errors import ConfigError
from pipeline.features.app_data import texts
from pipeline.model.signature import TensorInfo

MOST_SAMPLES = 1 << 27


def samples(takes: app_data.Takes, file: Path, inputs: Sequence[TensorInfo]) -> Iterator[datasets.Sample]:
    """The samples of a file; ConfigError for one that cannot be read."""
    return steps_of(takes, file, inputs) if takes.samples else texts.text_samples(takes, file, inputs)


def steps_of(takes: app_data.Takes, file: Path, inputs: Sequence[TensorInfo]) -> Iterator[datasets.Sample]:
    """A sample for each hop of a recording; a rest that is shorter is left out. States are zeros, as at its start.

    Without a hop the recording is one sample.

    ConfigError for a recording of another rate, with several channels, or of other than 16 bits: an app resamples none.
    """
    import numpy as np

    values = _recording(takes, file)
    hop = takes.hop or max(1, len(values))
    states = {
        given.name: np.zeros([size if isinstance(size, int) else 1 for size in given.shape or ()], given.dtype.value)
        for given in inputs
        if given.name != app_data.SAMPLES and given.dtype and given.dtype.value.startswith("float")
    }
    for step in range(len(values) // hop):
        new = values[None, step * hop : (step + 1) * hop]
        yield datasets.Sample(name=f"{file} step {step}", inputs={app_data.SAMPLES: new, **states})


def _recording(takes: app_data.Takes, file: Path) -> datasets.Array:
    """The samples of a WAV file as an app has them: int16, or float from -1 to 1."""
    import numpy as np

    try:
        with untrusted_files.open_regular(file) as opened, wave.open(opened) as recording:
            form = (recording.getframerate(), recording.getnchannels(), 8 * recording.getsampwidth())
            content = recording.readframes(min(recording.getnframes(), MOST_SAMPLES))
    except (OSError, EOFError, wave.Error) as error:
        raise ConfigError(
            "the recording cannot be read",
            where=str(file),
            why=str(error),
            remedy="give a WAV file of PCM",
        ) from error
    if form != (takes.rate, 1, 16):
        raise ConfigError(
            f"a recording of {form[0]} samples a second, {form[1]} channel{'s' * (form[1] > 1)}, {form[2]} bits",
            where=str(file),
            why=f"the app records {takes.rate} of one channel with 16 bits, and nothing here resamples",
            remedy=f"convert it, `ffmpeg -i IN.wav -ar {takes.rate} -ac 1 -sample_fmt s16 OUT.wav`, or correct `rate`",
        )
    values = np.frombuffer(content[: len(content) // 2 * 2], "<i2")
    return values if takes.samples is app_data.SampleKind.INT16 else values.astype(np.float32) / np.float32(1 << 15)
