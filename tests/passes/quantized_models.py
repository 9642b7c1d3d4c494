"""Models to quantize, their data, and what a quantized model computes."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from PIL import Image

from pipeline.check.reference import PROCESSOR, processor_saturates
from pipeline.core.variant import Level
from pipeline.model.onnx_model import LoadedModel, load_model
from pipeline.model.session import CpuSettings, open_session
from pipeline.model.sources import SourceModel
from pipeline.passes.base import Feeds, Model, PassContext

EXAMPLE = Path(__file__).resolve().parents[2] / "build_configs" / "examples" / "mnist"


def load(path: Path, folder: Path) -> LoadedModel:
    """A model as a file has it."""
    return load_model(SourceModel(path=str(path)), folder)


def saved(proto: onnx.ModelProto, folder: Path) -> LoadedModel:
    """A model of a message, through a file."""
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return load(path, folder)


def feeds(model: Model, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Random samples for a model whose inputs are float tensors; open dimensions are 1."""
    random = np.random.default_rng(seed)
    shapes = {
        value.name: [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]
        for value in model.proto.graph.input
    }
    return [
        {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()} for _ in range(count)
    ]


def context(folder: Path, samples: Sequence[Feeds] | None = None) -> PassContext:
    """A scratch folder and calibration data."""
    walk: Callable[[], Iterator[Feeds]] | None = (lambda: iter(samples)) if samples is not None else None
    return PassContext(folder=folder, where="model", samples=walk)


def run(model: Model, one: Feeds) -> list[Any]:
    """What ONNX Runtime computes, fused only where that makes it the same on every processor (quantization Q.5)."""
    level = Level.EXTENDED if processor_saturates(PROCESSOR) else Level.NONE
    session = open_session(model, CpuSettings(level=level))
    return list(session.run(None, dict(one)))


def sqnr(wanted: Sequence[Any], given: Sequence[Any]) -> float:
    """Signal to quantization noise over all outputs, in dB."""
    signal = sum(float(np.square(a.astype(np.float64)).sum()) for a in wanted)
    noise = sum(float(np.square(a.astype(np.float64) - b).sum()) for a, b in zip(wanted, given, strict=True))
    return float(10 * np.log10(signal / max(noise, 1e-30)))


@cache
def digits() -> tuple[Any, Any]:
    """Images and labels of the example."""
    with np.load(EXAMPLE / "evaluation.npz") as data:
        return data["inputs"].astype(np.float32).reshape(-1, 1, 1, 28, 28), data["labels"]


def write_digits(folder: Path) -> Path:
    """The example's images as PNG files in a folder for each class, as people have them."""
    for number, (pixels, label) in enumerate(zip(*digits(), strict=True)):
        place = folder / str(label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.reshape(28, 28).astype(np.uint8)).save(place / f"{number}.png")
    return folder


def write_arrays(folder: Path, count: int, wrong: int = -1) -> Path:
    """So many of them as .npy files, one of another size, with their labels in labels.csv beside the folder."""
    images, labels = digits()
    folder.mkdir()
    for number in range(count):
        shape = (1, 1, 28, 27) if number == wrong else (1, 1, 28, 28)
        np.save(folder / f"{number}.npy", np.resize(images[number], shape))
    lines = [f"{number},{label}" for number, label in enumerate(labels[:count])]
    (folder.parent / "labels.csv").write_text("\n".join(lines))
    return folder


def accuracy(model: Model, first: int = 40) -> float:
    """The share of right answers over the example's images from `first` on."""
    images, labels = digits()
    session = open_session(model, CpuSettings())
    name = session.get_inputs()[0].name
    answers = [session.run(None, {name: image})[0].argmax() for image in images[first:]]
    return float((np.array(answers) == labels[first:]).mean())
