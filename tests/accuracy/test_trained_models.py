"""Mixed precision on trained models out of registry packages; skips by name without network."""

import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from pipeline.core.ort_session import PREPACKING, HostSession, make_session
from pipeline.core.variant import Level
from pipeline.model.onnx_model import load_model, loadable
from pipeline.model.sources import SourceModel
from pipeline.passes.base import Model, PassContext
from pipeline.passes.mixed import MixedOptions, MixedSearch, mixed_precision, search_of
from pipeline.passes.static import StaticOptions, static_qdq
from tests.dataset.test_first_hour import download, take

pytestmark = pytest.mark.trained

WORDS = [
    "alpha",
    "beta",
    "gamma",
    "2024",
    "invoice",
    "total",
    "17.50",
    "station",
    "exit",
    "hotel",
    "museum",
    "street",
    "42",
]


def text_image(random: np.random.Generator, size: tuple[int, int], lines: int, height: int) -> Any:
    """Dark words on white, as RGB."""
    image = Image.new("RGB", size, (250, 250, 250))
    draw = ImageDraw.Draw(image)
    for line in range(lines):
        text = " ".join(random.choice(WORDS, 4))
        place = (4, 8 + line * size[1] // lines)
        draw.text(place, text, fill=(10, 10, 10), font=ImageFont.load_default(height))
    return image


def lines_of_text(count: int) -> list[dict[str, Any]]:
    """Lines for PP-OCR's classifier, every other one upside down."""
    random = np.random.default_rng(5)
    images = [text_image(random, (192, 48), 1, 26).rotate(180 * (number % 2)) for number in range(count)]
    arrays = [(np.asarray(image, np.float32).transpose(2, 0, 1) / 255 - 0.5) / 0.5 for image in images]
    return [{"x": array[None].astype(np.float32)} for array in arrays]


def pages(count: int) -> list[dict[str, Any]]:
    """Pages for PP-OCR's detector."""
    random = np.random.default_rng(5)
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    images = [np.asarray(text_image(random, (224, 224), 6, 18), np.float32) / 255 for _ in range(count)]
    return [{"x": ((image - mean) / deviation).transpose(2, 0, 1)[None].astype(np.float32)} for image in images]


def tokens(path: Path) -> Any:
    """The first and last 1,024 bytes without blanks at the ends, 256 where there are none: what Magika takes."""
    data = path.read_bytes().strip()
    first, last = list(data[:1024].lstrip()), list(data[-1024:].rstrip())
    padded = [*first, *[256] * (1024 - len(first)), *[256] * (1024 - len(last)), *last]
    return np.array([padded], np.int32)


def files() -> list[dict[str, Any]]:
    """Files of several kinds that every Python has, some of each."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    found = [path for ending in ("py", "pyc", "txt", "so", "h", "c", "xml", "csv") for path in several(folder, ending)]
    return [{"bytes": tokens(path)} for path in found]


def several(folder: Path, ending: str) -> list[Path]:
    paths = [path for path in sorted(folder.rglob(f"*.{ending}")) if 200 < path.stat().st_size < 5_000_000]
    return paths[:: max(1, len(paths) // 15)][:15]


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheels")


def model_of(package: str, name: str, wheels: Path, folder: Path) -> Model:
    path = folder / name
    path.write_bytes(take(download(package, wheels), name))
    return load_model(SourceModel(path=str(path)), folder)


def searched(
    model: Model, samples: Callable[[], list[dict[str, Any]]], folder: Path, options: MixedOptions
) -> tuple[Model, MixedSearch, PassContext]:
    kept = cache(samples)
    context = PassContext(folder=folder, where="model", samples=lambda: iter(kept()))
    made = mixed_precision(model, options, context)
    found = search_of(made.proto)
    assert found is not None
    assert found.evaluations <= 60
    print(found.text)
    return made, found, context


def answers(model: Model, samples: list[dict[str, Any]]) -> Any:
    settings = HostSession(level=Level.ALL, weights=model.folder, config=PREPACKING)
    session = make_session(loadable(model).SerializeToString(), settings)
    return np.array([session.run(None, one)[0].argmax() for one in samples])


def test_magika_comes_back_to_the_answers_of_float(tmp_path: Path, wheels: Path) -> None:
    """With every operator quantized it gives the answers of chance; without its sums and products float's."""
    model = model_of("magika==1.0.3", "model.onnx", wheels, tmp_path)
    made, found, context = searched(model, files, tmp_path, MixedOptions())
    samples = files()
    wanted = answers(model, samples)
    assert (answers(static_qdq(model, StaticOptions(), context), samples) == wanted).mean() < 0.5
    assert (answers(made, samples) == wanted).mean() > 0.97
    assert set(found.best.types) == {"Add", "Mul"}
    assert found.best.sqnr_db > 25 > found.start.sqnr_db


def test_the_classifier_of_text_comes_to_27_db(tmp_path: Path, wheels: Path) -> None:
    model = model_of("rapidocr-onnxruntime==1.4.4", "ch_ppocr_mobile_v2.0_cls_infer.onnx", wheels, tmp_path)
    options = MixedOptions(per_channel=True, op_types=("Conv", "Gemm", "MatMul"), goal_db=27)
    _, found, _ = searched(model, lambda: lines_of_text(40), tmp_path, options)
    assert found.best.sqnr_db >= 27 > found.start.sqnr_db


def test_the_detector_of_text_is_reported_by_what_was_found(tmp_path: Path, wheels: Path) -> None:
    model = model_of("rapidocr-onnxruntime==1.4.4", "ch_PP-OCRv4_det_infer.onnx", wheels, tmp_path)
    options = MixedOptions(per_channel=True, op_types=("Conv", "ConvTranspose"))
    _, found, _ = searched(model, lambda: pages(6), tmp_path, options)
    gain = found.best.sqnr_db - found.start.sqnr_db
    assert found.spread == (gain < 1.0)
    assert ("the loss is spread" in found.text) == found.spread
