"""Texts as test data: what makes inputs of them is a feature's, since a tokenizer is no part of a model's graph."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pipeline.config import app_data
from pipeline.core import features
from pipeline.core.errors import ConfigError
from pipeline.dataset.dataset import Sample
from pipeline.model.signature import TensorInfo

ENDING = ".txt"
TEXTS = features.Place[Callable[[app_data.Takes, Path, Sequence[TensorInfo]], Iterator[Sample]]]("dataset.texts")


def text_files(path: Path) -> list[Path]:
    """The text files of test data: the file itself, or those of a folder; none where it has other data."""
    files = [path] if path.is_file() else list(path.iterdir()) if path.is_dir() else []
    return [file for file in files if file.suffix.lower() == ENDING and file.is_file()]


def text_samples(takes: app_data.Takes, file: Path, inputs: Sequence[TensorInfo]) -> Iterator[Sample]:
    """A sample for each line of a text file; ConfigError where nobody here makes inputs of texts, or for a bad file."""
    for samples in TEXTS:
        yield from samples(takes, file, inputs)
        return
    raise ConfigError(
        "nothing here makes inputs of texts",
        where=str(file),
        remedy="give .npz files with the inputs, or install ort-mobile whole",
    )
