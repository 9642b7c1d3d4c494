"""Tensors that no test data gives as they are: constants, random numbers, images, recordings."""

import math
import wave
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from device_runner.spec import ElementType
from pipeline.config import tables as config_tables
from pipeline.core import errors as core_errors
from pipeline.core.errors import ConfigError, MissingError
from pipeline.model.signature import Array, TensorInfo

if TYPE_CHECKING:
    import numpy as np


MAX_BYTES = 4 << 30
"""A generated input above this is a mistake in its dimensions: ONNX Runtime takes it, most phones do not."""


def value_array(
    info: TensorInfo, value: config_tables.InputValue | None, sizes: Mapping[str, int], generator: "np.random.Generator"
) -> Array:
    """The tensor that a declared value, or None for random numbers, gives for an input.

    `sizes` are for open axes, by `input[axis]` or by symbolic name; others are 1. Random numbers are standard normal
    for floats, 0 and 1 for integers, so that they are indices of every table. ConfigError for what does not fit.
    """
    import numpy as np

    dtype = plain_dtype(info)
    if isinstance(value, str) != (dtype.kind == "U"):
        text = f"give a text: --input '{info.name}=\"…\"', or inputs in a config"
        raise _unfit(info, f"its type is {info.dtype}", text if dtype.kind == "U" else "give a number")
    if isinstance(value, tuple):
        return _elements(info, value, sizes, dtype)
    # A size for every axis: the model's own, that in `sizes`, else 1.
    shape = tuple(
        size if isinstance(size, int) else sizes.get(f"{info.name}[{axis}]") or (size and sizes.get(size)) or 1
        for axis, size in enumerate(info.shape or ())
    )
    if isinstance(value, str):
        return np.full(shape, value)
    if int(np.prod(shape, dtype=object)) * dtype.itemsize > MAX_BYTES:
        raise _unfit(info, f"{list(shape)} would be more than {MAX_BYTES >> 30} GiB", "give it smaller dimensions")
    if isinstance(value, config_tables.Range):
        low, high = _cast(info, (value.low, value.high), dtype, end=True)
        if not 0 < high - low < math.inf:
            why = f"the range from {value.low} to {value.high} is empty or endless"
            raise _unfit(info, why, "give finite numbers, `high` above `low`")
        if dtype.kind == "f":
            return generator.uniform(low, high, shape).astype(dtype)
        return generator.integers(int(low), int(high), shape).astype(dtype)
    if value is not None:
        return np.full(shape, _cast(info, (value,), dtype)[0], dtype)
    if dtype.kind == "f":
        return generator.standard_normal(shape).astype(dtype)
    return generator.integers(0, 2, shape).astype(dtype)


def check_padding(info: TensorInfo, number: float) -> None:
    """Raise ConfigError for a number that an input cannot be filled up with."""
    try:
        if (dtype := plain_dtype(info)).kind == "U":
            raise _unfit(info, "its elements are strings", "leave it out")
        _cast(info, (number,), dtype)
    except ConfigError as error:
        raise ConfigError(
            f"{number} cannot fill up the input {info.name!r}",
            where=f"padding.{info.name}",
            why=error.why,
            remedy=error.remedy,
        ) from error


def plain_dtype(info: TensorInfo) -> "np.dtype[Any]":
    """The numpy type of an input's elements; ConfigError for inputs that no file and no number can give."""
    import numpy as np

    if info.dtype is ElementType.STRING:
        return np.dtype(str)
    if info.dtype in (None, ElementType.BFLOAT16):
        why = f"its type is {info.dtype.value if info.dtype else 'no tensor'}, which no array here has"
        raise _unfit(info, why, "leave the model out")
    return np.dtype(info.dtype.value)


def _elements(
    info: TensorInfo, value: tuple[int | float, ...], sizes: Mapping[str, int], dtype: "np.dtype[Any]"
) -> Array:
    """A list of elements in the input's shape; one axis without a size takes what the others leave."""
    import numpy as np

    declared = [
        size if isinstance(size, int) else sizes.get(f"{info.name}[{axis}]") or (size and sizes.get(size)) or -1
        for axis, size in enumerate(info.shape if info.shape is not None else (len(value),))
    ]
    shape = [
        size if size != -1 or axis == max(i for i, s in enumerate(declared) if s == -1) else 1
        for axis, size in enumerate(declared)
    ]
    try:
        return np.array(_cast(info, value, dtype), dtype).reshape(shape)
    except ValueError as error:
        raise _unfit(info, f"{len(value)} elements do not fill {info}", "give one number, or all elements") from error


def _cast(
    info: TensorInfo, numbers: tuple[int | float, ...], dtype: "np.dtype[Any]", *, end: bool = False
) -> tuple[int | float, ...]:
    """The numbers, when the input's type has them; with `end` the last may be one more than its largest."""
    import numpy as np

    if dtype.kind == "f":
        limits = np.finfo(dtype)
        most = float(limits.max) * (1 + float(limits.eps) / 4)  # what is rounded to the largest fits
        if large := [number for number in numbers if most < abs(number) < math.inf]:
            raise _unfit(info, f"{large[0]} is no {dtype} number", f"numbers to {limits.max:g} fit")
        return numbers
    least, most = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    for index, number in enumerate(numbers):
        room = int(end and index == len(numbers) - 1)
        if not least <= number <= most + room or number != int(number):
            raise _unfit(info, f"{number} is no {dtype} number", f"whole numbers from {least} to {most} fit")
    return tuple(int(number) for number in numbers)


def _unfit(info: TensorInfo, why: str, remedy: str) -> ConfigError:
    return ConfigError(f"no value for the input {info.name!r}", where=f"inputs.{info.name}", why=why, remedy=remedy)


MAX_PIXELS = 100_000_000
MAX_RECORDING_BYTES = 256 << 20


PILLOW_MODES = {config_tables.Channels.GRAY: "L", config_tables.Channels.RGBA: "RGBA"}
"""What Pillow calls the channels of an image that is not RGB."""


def image_tensor(file: Path, preprocess: config_tables.PreprocessConfig, info: TensorInfo) -> Array:
    """One image as the tensor of an input, with a batch axis where the input has one.

    ConfigError for a file that is no image; MissingError without Pillow.
    """
    import numpy as np

    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise MissingError(
            "images need Pillow", where=str(file), remedy=f"{core_errors.install_extra('images')}, or give .npy files"
        ) from error
    try:
        opened = Image.open(file)
        if opened.width * opened.height > MAX_PIXELS:
            why = f"it has {opened.width}x{opened.height} pixels"
            raise ConfigError("this image is too large", where=str(file), why=why)
        opened.load()
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ConfigError(
            "this image cannot be read", where=str(file), why=str(error)[:300], remedy="remove it, or save it again"
        ) from error
    with opened:
        image = opened.convert(PILLOW_MODES.get(preprocess.channels, "RGB"))
    if preprocess.resize:
        height, width = preprocess.resize
        ways: dict[config_tables.Fit, Callable[..., Image.Image]] = {
            config_tables.Fit.STRETCH: Image.Image.resize,
            config_tables.Fit.COVER: ImageOps.fit,
            config_tables.Fit.PAD: ImageOps.pad,
        }
        image = ways[preprocess.fit](image, (width, height), Image.Resampling.BILINEAR)
    if preprocess.crop:
        height, width = preprocess.crop
        left, top = (image.width - width) // 2, (image.height - height) // 2
        image = image.crop((left, top, left + width, top + height))
    pixels = np.asarray(image)
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    pixels = pixels[..., ::-1] if preprocess.channels is config_tables.Channels.BGR else pixels
    values = _scaled(pixels, preprocess, file)
    values = values.transpose(2, 0, 1) if preprocess.layout is config_tables.ImageLayout.NCHW else values
    return _as_input(values, info)


def _scaled(values: Array, preprocess: config_tables.PreprocessConfig, file: Path) -> Array:
    """(value - mean) * scale, with one number or one for each entry of the last axis."""
    import numpy as np

    mean, scale = np.asarray(preprocess.mean, np.float64), np.asarray(preprocess.scale, np.float64)
    if not all(part.size in (1, values.shape[-1]) for part in (mean, scale)):
        raise ConfigError(
            "`mean` and `scale` do not fit the channels",
            where=f"preprocess, for {file}",
            why=f"there are {values.shape[-1]} channels, {mean.size} means and {scale.size} scales",
            remedy="give one number, or one for each channel",
        )
    return (values.astype(np.float64) - mean) * scale


def wav_tensor(file: Path, preprocess: config_tables.PreprocessConfig, info: TensorInfo) -> Array:
    """One recording as the tensor of an input; ConfigError for a file that is no PCM WAV."""
    import numpy as np

    try:
        with wave.open(str(file)) as opened:
            width, channels, rate = opened.getsampwidth(), opened.getnchannels(), opened.getframerate()
            if opened.getnframes() * width * channels > MAX_RECORDING_BYTES:
                raise ConfigError("this recording is too long", where=str(file), remedy="cut it")
            data = opened.readframes(opened.getnframes())
    except (wave.Error, OSError, EOFError) as error:
        raise ConfigError(
            "this recording cannot be read",
            where=str(file),
            why=str(error) or "it ends early",
            remedy="save it as WAV with PCM samples",
        ) from error
    raw = np.frombuffer(data[: len(data) // (width * channels) * width * channels], np.uint8)
    if width == 1:
        values = raw.astype(np.float64) / 128 - 1
    else:  # little-endian two's complement of 2, 3 or 4 bytes, in the high bytes of 32 bits
        wide = np.zeros((raw.size // width, 4), np.uint8)
        wide[:, 4 - width :] = raw.reshape(-1, width)
        values = wide.view("<i4")[:, 0].astype(np.float64) / (1 << 31)
    if not values.size or rate <= 0:
        raise ConfigError("this recording has no samples", where=str(file), remedy="remove it")
    values = values.reshape(-1, channels)  # from -1 to 1, [time, channel]
    if preprocess.mono:
        values = values.mean(axis=1, keepdims=True)
    if preprocess.sample_rate and preprocess.sample_rate != rate:
        # Band-limited: the spectrum is cut, or filled with zeros
        count, spectrum = max(1, round(len(values) * preprocess.sample_rate / rate)), np.fft.rfft(values, axis=0)
        values = np.fft.irfft(spectrum[: count // 2 + 1], count, axis=0) * (count / len(values))
    # How many samples the input takes, when every axis has a size or is the batch
    sizes = [size for size in (info.shape or ())[-2:] if isinstance(size, int) and size > 2]
    if length := preprocess.length or (sizes[-1] if sizes else None):
        values = np.concatenate([values[:length], np.zeros((max(0, length - len(values)), values.shape[1]))])
    values = _scaled(values, preprocess, file)
    return _as_input(values[:, 0] if values.shape[1] == 1 else values.T, info)


def _as_input(values: Array, info: TensorInfo) -> Array:
    """The values in the input's type and rank: axes of one are put before, or behind where the model ends in one."""
    import numpy as np

    dtype = plain_dtype(info)
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        values = np.clip(np.round(values), bounds.min, bounds.max)
    missing = len(info.shape or values.shape) - values.ndim
    if info.shape and missing > 1 and info.shape[-1] == 1:
        values, missing = values[..., None], missing - 1
    for _ in range(missing):
        values = values[None]
    return np.ascontiguousarray(values.astype(dtype))
