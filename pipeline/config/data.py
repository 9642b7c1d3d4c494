"""What a model is run on, as a config says it: inputs, preprocessing, calibration and evaluation data, accuracy."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

from msgspec import Meta

from pipeline.config.table import Count, Table

Number: TypeAlias = bool | int | float


FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""The last part of a path that names a function; what stands before it is the folder to import from."""


def is_function(path: str) -> bool:
    """Whether a path names `module:function`, and not a file of such a name."""
    return bool(FUNCTION.fullmatch(Path(path).name)) and not Path(path).exists()


class Range(Table, frozen=True, kw_only=True):
    """Random numbers for one input: `low` and above, below `high`; whole numbers for integer inputs."""

    low: int | float
    """The least number."""
    high: int | float
    """The end of the range, itself not in it: for an embedding table of 178 rows, 178."""


InputValue: TypeAlias = Number | tuple[int | float, ...] | Range
"""A number for every element, the elements themselves, or a range to take random ones from."""


class Fit(StrEnum):
    """How an image becomes the size that `resize` asks for."""

    STRETCH = "stretch"
    COVER = "cover"
    PAD = "pad"


class ImageLayout(StrEnum):
    """Where the channels of an image stand."""

    NCHW = "NCHW"
    NHWC = "NHWC"


class Channels(StrEnum):
    """Channels of an image and their order."""

    RGB = "RGB"
    BGR = "BGR"
    GRAY = "GRAY"


class PreprocessConfig(Table, frozen=True, kw_only=True):
    """How files of a folder of images or WAV recordings become the tensor that a model takes; the app must do the same.

    Images, in this order: resize, crop, channels, then (value - mean) * scale with values from 0 to 255, then layout.
    Recordings: mono, sample rate, length, then (value - mean) * scale with values from -1 to 1.
    """

    input: str | None = None
    """The input that gets them; by default the only one without a value in `inputs`."""
    resize: tuple[Count, Count] | None = None
    """Height and width that images are resized to, bilinearly with antialiasing (Pillow's)."""
    fit: Fit = Fit.STRETCH
    """stretch both sides to `resize`; cover keeps the proportions and fills it; pad keeps them and adds black."""
    crop: tuple[Count, Count] | None = None
    """Height and width cut out of the middle after resizing."""
    layout: ImageLayout = ImageLayout.NCHW
    """NCHW or NHWC."""
    channels: Channels = Channels.RGB
    """RGB, BGR or GRAY."""
    mean: float | tuple[float, ...] = 0.0
    """Subtracted first: one number, or one for each channel."""
    scale: float | tuple[float, ...] = 1.0
    """Multiplied with then: one number, or one for each channel; 1/255 (0.0039215686) gives 0 to 1."""
    sample_rate: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """Samples a second that recordings are resampled to; by default their own."""
    mono: bool = True
    """Average the channels of a recording."""
    length: Count | None = None
    """Samples of a recording: longer ones are cut, shorter ones padded with zeros; by default the input's size."""


class PartConfig(Table, frozen=True, kw_only=True):
    """Data for one purpose: ranges of activations are taken from calibration data, accuracy is measured on evaluation
    data. Where only the model's `test_data` is given, its samples are divided between the two by their content.
    """

    test_data: str | None = None
    """Files or `module:function`, as the model's `test_data`, which is the default."""
    preprocess: PreprocessConfig | None = None
    """How images and recordings become the input; default: the model's `preprocess`."""
    labels: str | None = None
    """CSV file of labels, one line `file,label` for each sample. Not needed for folders by class (`0/a.png`), .npz
    files with an array `label`, one .npz with `inputs` and `labels`, and functions that give pairs."""
    samples: Count | None = None
    """At most so many samples; default: all."""


class MetricName(StrEnum):
    """The metrics that have a name; another is `module:function`."""

    TOP_1 = "top-1"
    TOP_5 = "top-5"
    F1 = "f1"
    MAP = "map"
    MIOU = "miou"
    WER = "wer"
    CER = "cer"
    AGREEMENT = "agreement"
    COSINE = "cosine"
    PSNR = "psnr"
    SQNR = "sqnr"
    MAX_ERROR = "max-error"


class AccuracyConfig(Table, frozen=True, kw_only=True):
    """The accuracy that artifacts must keep, measured on the evaluation data of each model."""

    metric: str | None = None
    """top-1, top-5, f1, map, miou, wer, cer (with labels); agreement, cosine, psnr, sqnr, max-error (compared with the
    original model); or a function as `module:function`. Default: top-1 with labels, else agreement."""
    max_drop: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Largest drop from the original model, as in 0.01 for one percentage point. Artifacts whose 95 % interval does not
    exclude a larger drop are refused."""
    output: str | None = None
    """The output that the metric is computed from; default: the first (`map` and functions get all)."""
    vocabulary: str | None = None
    """For wer and cer: text file with the symbol of each class, one a line, `<blank>` for the blank of CTC."""
