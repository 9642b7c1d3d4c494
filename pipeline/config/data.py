"""What a model is run on, as a config says it: values of inputs, and how images and recordings become tensors."""

from enum import StrEnum
from typing import Annotated, TypeAlias

from msgspec import Meta

from pipeline.config.table import Count, Table

Number: TypeAlias = bool | int | float


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
