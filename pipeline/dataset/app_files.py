"""Files of what an app has, as test data: what makes inputs of texts and recordings is a feature's."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pipeline.config import app_data
from pipeline.core import features
from pipeline.core.errors import ConfigError
from pipeline.dataset.dataset import Sample
from pipeline.model.signature import TensorInfo

SAMPLES = features.Place[Callable[[app_data.Takes, Path, Sequence[TensorInfo]], Iterator[Sample]]]("dataset.app_data")


def files_in(path: Path, takes: app_data.Takes) -> list[Path]:
    """The files of what the app has: the test data itself, or those of a folder; none where it has other data."""
    ending = ".txt" if takes.text else ".wav"
    files = [path] if path.is_file() else list(path.iterdir()) if path.is_dir() else []
    return [file for file in files if file.suffix.lower() == ending and file.is_file()]


def samples(takes: app_data.Takes, file: Path, inputs: Sequence[TensorInfo]) -> Iterator[Sample]:
    """The samples of a file; ConfigError where nobody here makes inputs of it, or for a bad file."""
    for samples_of in SAMPLES:
        yield from samples_of(takes, file, inputs)
        return
    raise ConfigError(
        "nothing here makes inputs of what the app has",
        where=str(file),
        remedy="give .npz files with the inputs, or install ort-mobile whole",
    )
