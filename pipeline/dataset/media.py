"""Images and WAV recordings as tensors, by a declared preprocessing that an app can repeat."""

import wave
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.tables import Channels, Fit, ImageLayout, PreprocessConfig
from pipeline.core.errors import ConfigError, MissingError, install_extra
from pipeline.dataset.values import plain_dtype
from pipeline.model.signature import Array, TensorInfo

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS = 100_000_000
MAX_RECORDING_BYTES = 256 << 20


def image_tensor(file: Path, wanted: PreprocessConfig, info: TensorInfo) -> Array:
    """One image as the tensor of an input, with a batch axis where the input has one.

    ConfigError for a file that is no image; MissingError without Pillow.
    """
    import numpy as np

    with _open_image(file) as image:
        pixels = np.asarray(_sized(image.convert("L" if wanted.channels is Channels.GRAY else "RGB"), wanted))
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    pixels = pixels[..., ::-1] if wanted.channels is Channels.BGR else pixels
    values = _scaled(pixels, wanted, file)
    values = values.transpose(2, 0, 1) if wanted.layout is ImageLayout.NCHW else values
    return _as_input(values, info)


def _open_image(file: Path) -> "Image":
    try:
        from PIL import Image as pillow  # noqa: N813 - `Image` is the name of the type
    except ImportError as error:
        raise MissingError(
            "images need Pillow",
            where=str(file),
            remedy=f"{install_extra('images')}, or give .npy files",
        ) from error
    try:
        image: Image = pillow.open(file)
        if image.width * image.height > MAX_PIXELS:
            raise ConfigError(
                "this image is too large", where=str(file), why=f"it has {image.width}x{image.height} pixels"
            )
        image.load()
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise ConfigError(
            "this image cannot be read", where=str(file), why=str(error)[:300], remedy="remove it, or save it again"
        ) from error
    return image


def _sized(image: "Image", wanted: PreprocessConfig) -> "Image":
    from PIL import Image, ImageOps

    bilinear = Image.Resampling.BILINEAR
    if wanted.resize:
        height, width = wanted.resize
        ways: dict[Fit, Any] = {
            Fit.STRETCH: lambda: image.resize((width, height), bilinear),
            Fit.COVER: lambda: ImageOps.fit(image, (width, height), bilinear),
            Fit.PAD: lambda: ImageOps.pad(image, (width, height), bilinear),
        }
        image = ways[wanted.fit]()
    if wanted.crop:
        height, width = wanted.crop
        left, top = (image.width - width) // 2, (image.height - height) // 2
        image = image.crop((left, top, left + width, top + height))
    return image


def _scaled(values: Array, wanted: PreprocessConfig, file: Path) -> Array:
    """(value - mean) * scale, with one number or one for each entry of the last axis."""
    import numpy as np

    mean, scale = np.asarray(wanted.mean, np.float64), np.asarray(wanted.scale, np.float64)
    if not all(part.size in (1, values.shape[-1]) for part in (mean, scale)):
        raise ConfigError(
            "`mean` and `scale` do not fit the channels", where=f"preprocess, for {file}",
            why=f"there are {values.shape[-1]} channels, {mean.size} means and {scale.size} scales",
            remedy="give one number, or one for each channel",
        )  # fmt: skip
    return (values.astype(np.float64) - mean) * scale


def wav_tensor(file: Path, wanted: PreprocessConfig, info: TensorInfo) -> Array:
    """One recording as the tensor of an input; ConfigError for a file that is no PCM WAV."""
    import numpy as np

    values, rate = _read_wav(file)
    if wanted.mono:
        values = values.mean(axis=1, keepdims=True)
    if wanted.sample_rate and wanted.sample_rate != rate:
        values = _resampled(values, max(1, round(len(values) * wanted.sample_rate / rate)))
    length = wanted.length or _length_of(info)
    if length:
        values = np.concatenate([values[:length], np.zeros((max(0, length - len(values)), values.shape[1]))])
    values = _scaled(values, wanted, file)
    return _as_input(values[:, 0] if values.shape[1] == 1 else values.T, info)


def _length_of(info: TensorInfo) -> int | None:
    """How many samples an input takes, when every axis has a size or is the batch."""
    sizes = [size for size in (info.shape or ())[-2:] if isinstance(size, int) and size > 2]
    return sizes[-1] if sizes else None


def _read_wav(file: Path) -> tuple[Array, int]:
    """Samples from -1 to 1, [time, channel], and their rate."""
    import numpy as np

    try:
        with wave.open(str(file)) as opened:
            width, channels, rate = opened.getsampwidth(), opened.getnchannels(), opened.getframerate()
            if opened.getnframes() * width * channels > MAX_RECORDING_BYTES:
                raise ConfigError("this recording is too long", where=str(file), remedy="cut it")
            data = opened.readframes(opened.getnframes())
    except (wave.Error, OSError, EOFError) as error:
        raise ConfigError(
            "this recording cannot be read", where=str(file), why=str(error) or "it ends early",
            remedy="save it as WAV with PCM samples",
        ) from error  # fmt: skip
    raw = np.frombuffer(data[: len(data) // (width * channels) * width * channels], np.uint8)
    if width == 1:
        values = raw.astype(np.float64) / 128 - 1
    else:  # little-endian two's complement of 2, 3 or 4 bytes, in the high bytes of 32 bits
        wide = np.zeros((raw.size // width, 4), np.uint8)
        wide[:, 4 - width :] = raw.reshape(-1, width)
        values = wide.view("<i4")[:, 0].astype(np.float64) / (1 << 31)
    if not values.size or rate <= 0:
        raise ConfigError("this recording has no samples", where=str(file), remedy="remove it")
    return values.reshape(-1, channels), rate


def _resampled(values: Array, length: int) -> Array:
    """Band-limited to another number of samples: the spectrum is cut or filled with zeros."""
    import numpy as np

    spectrum = np.fft.rfft(values, axis=0)
    return np.fft.irfft(spectrum[: length // 2 + 1], length, axis=0) * (length / len(values))


def _as_input(values: Array, info: TensorInfo) -> Array:
    """The values in the input's type and rank: axes of one are put before, or behind where the model ends in one."""
    import numpy as np

    dtype = plain_dtype(info)
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        values = np.clip(np.round(values), bounds.min, bounds.max)
    missing = len(info.shape or values.shape) - values.ndim
    behind = int(missing > 1 and bool(info.shape) and info.shape[-1] == 1) if info.shape else 0
    for _ in range(behind):
        values = values[..., None]
    for _ in range(missing - behind):
        values = values[None]
    return np.ascontiguousarray(values.astype(dtype))
