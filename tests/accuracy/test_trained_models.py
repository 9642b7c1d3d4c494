"""Mixed precision on trained models out of registry packages; skips by name without network."""

import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from pipeline.accuracy.evaluate import AccuracyRequest, evaluate_model
from pipeline.accuracy.result import AccuracyResult, DropVerdict
from pipeline.config import AccuracyConfig
from pipeline.dataset import Dataset
from pipeline.dataset.dataset import Part
from pipeline.model.onnx_model import load_model
from pipeline.model.session import CpuSettings, open_session
from pipeline.model.sources import SourceModel
from pipeline.passes.base import MixedSearch, Model, PassContext
from pipeline.passes.mixed import MixedOptions, mixed_precision, search_of
from pipeline.passes.registry import parse_step
from pipeline.passes.run import transform_file
from pipeline.passes.static import StaticOptions, static_qdq
from tests.dataset.test_first_hour import take
from tests.python_packages import download
from tests.values import present

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


def words_in_lines(folder: Path, count: int) -> Path:
    """Lines of words for PP-OCR's recognizer, each as 48 x 320 with its text, in one folder of .npz files."""
    random = np.random.default_rng(7)
    folder.mkdir()
    for number in range(count):
        text = " ".join(random.choice(WORDS, 3))
        image = Image.new("RGB", (320, 48), (250, 250, 250))
        ImageDraw.Draw(image).text((6, 8), text, fill=(10, 10, 10), font=ImageFont.load_default(26))
        array = (np.asarray(image, np.float32).transpose(2, 0, 1) / 255 - 0.5) / 0.5
        np.savez(folder / f"{number}.npz", x=array[None], label=np.array(text))
    return folder


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


def several(folder: Path, ending: str, most: int = 15) -> list[Path]:
    paths = [path for path in sorted(folder.rglob(f"*.{ending}")) if 200 < path.stat().st_size < 5_000_000]
    return paths[:: max(1, len(paths) // most)][:most]


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
    found = present(search_of(made.proto))
    assert found.evaluations <= 60
    print(found.text)
    return made, found, context


def answers(model: Model, samples: list[dict[str, Any]]) -> Any:
    session = open_session(model, CpuSettings())
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


@pytest.fixture(scope="module")
def recognizer(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, AccuracyConfig]:
    """PP-OCR's recognizer, lines with their texts, and CER by the symbols that stand in the model."""
    folder = tmp_path_factory.mktemp("recognizer")
    model = model_of("rapidocr-onnxruntime==1.4.4", "ch_PP-OCRv4_rec_infer.onnx", wheels, folder)
    symbols = next(entry.value for entry in model.proto.metadata_props if entry.key == "character")
    (folder / "symbols.txt").write_text("\n".join(["<blank>", *symbols.splitlines(), " "]) + "\n", encoding="utf-8")
    config = AccuracyConfig(metric="cer", max_drop=0.02, vocabulary=str(folder / "symbols.txt"))
    return folder / "ch_PP-OCRv4_rec_infer.onnx", words_in_lines(folder / "lines", 160), config


RECOGNIZER_FORMS = {
    "every operator": "static-qdq:per_channel=true",
    "convolutions and matrices": "static-qdq:per_channel=true:op_types=Conv+MatMul",
    "16-bit values": "static-qdq:per_channel=true:activations=u16:op_types=Conv+MatMul",
    "worst layers float": "mixed-precision:per_channel=true:op_types=Conv+MatMul:goal_db=25",
}
"""From the usual form to the one that keeps the texts."""


def test_the_recognizer_keeps_its_texts_unless_every_operator_is_quantized(
    recognizer: tuple[Path, Path, AccuracyConfig], tmp_path: Path
) -> None:
    path, lines, config = recognizer
    found: dict[str, AccuracyResult] = {}
    for name, step in RECOGNIZER_FORMS.items():
        made = tmp_path / f"{name}.onnx"
        data = Dataset(test_data=str(lines), part=Part.CALIBRATION)
        report = transform_file(SourceModel(path=str(path)), [parse_step(step)], made, data=data, check=False)
        request = AccuracyRequest(
            model=str(made), reference=SourceModel(path=str(path)), accuracy=config, work_folder=str(tmp_path),
            data=Dataset(test_data=str(lines), part=Part.EVALUATION),
        )  # fmt: skip
        found[name] = one = evaluate_model(request)
        print(f"{name}: CER {one.value:.4f} of {one.reference_value:.4f}, {one.drop_low:.4f} to {one.drop_high:.4f},"
              f" {one.outputs[0].sqnr_db:.1f} dB, {report.saved.size_bytes} bytes, {one.verdict}, {one.samples} lines,"
              f" {report.search.text if report.search else ''}")  # fmt: skip
    verdicts = {name: one.verdict for name, one in found.items()}
    assert verdicts.pop("every operator") is DropVerdict.OVER
    assert set(verdicts.values()) == {DropVerdict.WITHIN}


def test_the_detector_of_text_is_reported_by_what_was_found(tmp_path: Path, wheels: Path) -> None:
    model = model_of("rapidocr-onnxruntime==1.4.4", "ch_PP-OCRv4_det_infer.onnx", wheels, tmp_path)
    options = MixedOptions(per_channel=True, op_types=("Conv", "ConvTranspose"))
    _, found, _ = searched(model, lambda: pages(6), tmp_path, options)
    gain = found.best.sqnr_db - found.start.sqnr_db
    assert found.spread == (gain < 1.0)
    assert ("the loss is spread" in found.text) == found.spread
