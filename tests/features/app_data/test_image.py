"""Graphs from an image's bytes to a tensor, against the libraries and the arithmetic that they stand for."""

import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper
from PIL import Image

from pipeline.config.app_data import ChannelOrder, Filter, ImageBytes, Proportions, Takes
from pipeline.config.tables import ImageLayout
from pipeline.features.app_data import image
from tests import python_packages

SIZES = ((300, 500), (64, 48), (31, 200), (600, 33), (224, 224), (97, 1001))
"""Heights and widths: larger and smaller than what is asked for, in one direction or both."""
SIZE = (64, 96)


def computing(takes: Takes, size: tuple[int, int] = SIZE, opset: int = 18) -> Callable[[Any], Any]:
    """A function of the bytes [height, width, channels] of an image."""
    part = image.tensor_of(takes, size)
    graph = helper.make_graph(
        part.nodes,
        "part",
        [helper.make_tensor_value_info(image.INPUT, 2, [1, "height", "width", takes.channels_of_image])],
        [helper.make_tensor_value_info(part.nodes[-1].output[0], 1, None)],
        part.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return lambda pixels: session.run(None, {image.INPUT: pixels[None]})[0][0]


def pictures(channels: int = 3) -> Iterator[Any]:
    """Smooth pictures and noise of every size."""
    generator = np.random.default_rng(0)
    for height, width in SIZES:
        yield generator.integers(0, 256, (height, width, channels), np.uint8)
        coarse = generator.integers(0, 256, (1 + height // 30, 1 + width // 30, channels), np.uint8)
        mode = "RGBA" if channels == 4 else "RGB"
        yield np.asarray(Image.fromarray(coarse, mode).resize((width, height), Image.Resampling.BICUBIC))


def planes(pixels: Any) -> Any:
    return np.asarray(pixels, np.float32).transpose(2, 0, 1)


def linear(pixels: Any, size: tuple[int, int]) -> Any:
    """What Android computes of a picture: two neighbours in each direction, in floats, then rounded."""
    values = pixels.astype(np.float64)
    for axis, length in enumerate(size):
        old = values.shape[axis]
        places = np.clip((np.arange(length) + 0.5) * old / length - 0.5, 0, old - 1)
        low = np.floor(places).astype(int)
        share = (places - low).reshape([-1 if number == axis else 1 for number in range(3)])
        values = (1 - share) * values.take(low, axis) + share * values.take(np.minimum(low + 1, old - 1), axis)
    return np.rint(values)


def cubic(pixels: Any, size: tuple[int, int]) -> Any:
    """As `linear`, of four neighbours in each direction with the weights of a = -0.75."""
    values = pixels.astype(np.float64)
    for axis, length in enumerate(size):
        old = values.shape[axis]
        places = (np.arange(length) + 0.5) * old / length - 0.5
        total = np.zeros((*values.shape[:axis], length, *values.shape[axis + 1 :]))
        for offset in (-1, 0, 1, 2):
            neighbours = np.floor(places).astype(int) + offset
            far = np.abs(places - neighbours)
            near = 1.25 * far**3 - 2.25 * far**2 + 1
            weights = np.where(far <= 1, near, -0.75 * (far**3 - 5 * far**2 + 8 * far - 4))
            shape = [-1 if number == axis else 1 for number in range(3)]
            total += weights.reshape(shape) * values.take(np.clip(neighbours, 0, old - 1), axis)
        values = total
    return np.clip(np.rint(values), 0, 255)


def test_stretched_as_pillow_does() -> None:
    compute = computing(Takes(image=ImageBytes.RGB, filter=Filter.PILLOW_BILINEAR))
    errors = [
        np.abs(compute(pixels) - planes(Image.fromarray(pixels).resize(SIZE[::-1], Image.Resampling.BILINEAR)))
        for pixels in pictures()
    ]
    assert max(error.max() for error in errors) <= 1
    assert np.mean(errors) < 0.05


def opencv_linear(pixels: Any, size: tuple[int, int]) -> Any:
    """INTER_LINEAR of OpenCV's resize.cpp, in its whole numbers."""
    weights, neighbours = [], []
    for axis, length in enumerate(size):
        old = pixels.shape[axis]
        places = ((np.arange(length) + 0.5) * (1 / (length / old)) - 0.5).astype(np.float32)
        low = np.floor(places)
        share = places - low
        if axis == 1:
            share[(low < 0) | (low >= old - 1)] = 0
        weights.append([np.rint(part * np.float32(2048)).astype(int) for part in (1 - share, share)])
        neighbours.append([np.clip(low.astype(int) + more, 0, old - 1) for more in (0, 1)])
    rows = []
    for line, weight in zip(neighbours[0], weights[0], strict=True):
        columns = zip(neighbours[1], weights[1], strict=True)
        total = sum(pixels[line].astype(int)[:, place] * share[:, None] for place, share in columns)
        rows.append((weight[:, None, None] * (total >> 4)) >> 16)
    return (rows[0] + rows[1] + 2) >> 2


@pytest.mark.parametrize("size", [SIZE, (64, 48), (150, 250), (400, 7)])
def test_stretched_as_opencv_does_in_all_bits(size: tuple[int, int]) -> None:
    compute = computing(Takes(image=ImageBytes.RGB, filter=Filter.OPENCV_LINEAR), size, opset=13)
    for pixels in pictures():
        np.testing.assert_array_equal(compute(pixels), planes(opencv_linear(pixels, size)))


COMPARED = """import sys
sys.path[:0] = sys.argv[1:3]
import cv2
import numpy as np
from tests.features.app_data.test_image import opencv_linear, pictures

for size in ((64, 96), (64, 48), (150, 250), (400, 7)):
    for pixels in pictures():
        np.testing.assert_array_equal(cv2.resize(pixels, size[::-1]), opencv_linear(pixels, size))
"""


@pytest.mark.trained
@pytest.mark.parametrize("release", ["4.14.0.94", "5.0.0.93"])
def test_whole_numbers_are_those_of_opencv(tmp_path: Path, release: str) -> None:
    with zipfile.ZipFile(python_packages.download(f"opencv-python-headless=={release}", tmp_path)) as wheel:
        wheel.extractall(tmp_path / "unpacked")
    folders = (str(tmp_path / "unpacked"), str(Path(__file__).parents[3]))
    subprocess.run([sys.executable, "-c", COMPARED, *folders], check=True)


def test_stretched_by_two_neighbours() -> None:
    compute = computing(Takes(image=ImageBytes.RGB, filter=Filter.ANDROID), opset=13)
    errors = [np.abs(compute(pixels) - planes(linear(pixels, SIZE))) for pixels in pictures()]
    assert max(error.max() for error in errors) <= 1
    assert np.mean(errors) < 0.02


def test_stretched_by_four_neighbours() -> None:
    """As OpenCV weighs them, and within bytes."""
    compute = computing(Takes(image=ImageBytes.RGB, filter=Filter.OPENCV_CUBIC), opset=13)
    errors = [np.abs(compute(pixels) - planes(cubic(pixels, SIZE))) for pixels in pictures()]
    assert max(error.max() for error in errors) <= 1
    assert np.mean(errors) < 0.02


def test_short_side_and_middle_as_torchvision_does() -> None:
    takes = Takes(image=ImageBytes.RGB, filter=Filter.PILLOW_BILINEAR, resize="short 80", crop=(64, 72))
    compute = computing(takes, (64, 72))
    for pixels in pictures():
        height, width = pixels.shape[:2]
        size = (80, int(80 * width / height)) if height <= width else (int(80 * height / width), 80)
        resized = Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BILINEAR)
        top, left = round((size[0] - 64) / 2), round((size[1] - 72) / 2)
        wanted = resized.crop((left, top, left + 72, top + 64))
        assert np.abs(compute(pixels) - planes(wanted)).max() <= 1


def test_letterbox_as_ultralytics_does() -> None:
    takes = Takes(
        image=ImageBytes.RGB, filter=Filter.OPENCV_LINEAR, resize=(128, 128), fit=Proportions.LETTERBOX, divide=255
    )
    compute = computing(takes, (128, 128), opset=13)
    for pixels in pictures():
        height, width = pixels.shape[:2]
        ratio = min(128 / height, 128 / width)
        size = (round(height * ratio), round(width * ratio))
        wanted = np.full((128, 128, 3), 114.0)
        top, left = (round((128 - length) / 2 - 0.1) for length in size)
        wanted[top : top + size[0], left : left + size[1]] = opencv_linear(pixels, size)
        assert np.abs(compute(pixels) * 255 - planes(wanted)).max() <= 1.01


def test_the_fourth_channel_is_left_out_and_the_order_is_the_models() -> None:
    takes = Takes(
        image=ImageBytes.RGBA, filter=Filter.PILLOW_BILINEAR, channels=ChannelOrder.BGR, layout=ImageLayout.NHWC
    )
    compute = computing(takes)
    plain = computing(Takes(image=ImageBytes.RGB, filter=Filter.PILLOW_BILINEAR))
    for pixels in pictures(4):
        assert np.array_equal(compute(pixels), plain(pixels[..., :3]).transpose(1, 2, 0)[..., ::-1])


def test_values_are_divided_then_centred_then_scaled() -> None:
    mean, scale = (0.485, 0.456, 0.406), (4.0, 5.0, 6.0)
    takes = Takes(image=ImageBytes.RGB, filter=Filter.PILLOW_BILINEAR, divide=255, mean=mean, scale=scale)
    compute = computing(takes)
    plain = computing(Takes(image=ImageBytes.RGB, filter=Filter.PILLOW_BILINEAR))
    first, last = (np.array(values, np.float32).reshape(3, 1, 1) for values in (mean, scale))
    for pixels in pictures():
        assert np.array_equal(compute(pixels), (plain(pixels) / np.float32(255) - first) * last)
