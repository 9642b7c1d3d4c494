"""The value that says what a model is run on, what a config says of it, and a sample."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from pipeline import config as configs
from pipeline.config import app_data
from pipeline.config import tables as config_tables
from pipeline.core.errors import ConfigError
from pipeline.model.signature import Array, TensorInfo


class Part(StrEnum):
    """Which samples of test data: all, or those for one purpose, chosen by content."""

    ALL = "all"
    CALIBRATION = "calibration"
    EVALUATION = "evaluation"


CALIBRATION_SHARE = 4
"""One sample in so many is for calibration: it needs some hundred, accuracy as many as there are."""


class Dataset(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is run on: plain data, so that it travels to worker processes and into results.

    `test_data` is a file, a folder or `module:function`; "" for none. `inputs` are declared values, which win over
    test data, and ranges of random numbers for inputs that these lack. What neither gives is random from `seed`, with
    open axes as in `sizes` (by `input[axis]` or symbolic name, else 1); with test data nothing is random that is not
    declared so.
    """

    test_data: str = ""
    inputs: dict[str, config_tables.InputValue] = {}
    preprocess: config_tables.PreprocessConfig | None = None
    sizes: dict[str, int] = {}
    seed: int = 0
    padding: dict[str, int | float] = {}
    """What apps fill up inputs with, which the inputs must be able to hold."""
    labels: str = ""
    """CSV file of labels; "" where samples come with their own, or have none."""
    part: Part = Part.ALL
    limit: int = 0
    """At most so many samples of the part; 0: all."""
    states: dict[str, str] = {}
    """Inputs of a stream that the model's own outputs give, by output: the samples are its steps."""
    takes: app_data.Takes | None = None
    """Where the app has texts or sound: how those of test data become inputs."""
    least: int = 0
    """With fewer samples they are not divided: every part is all of them."""

    def __post_init__(self) -> None:
        """Refuse numbers that JSON has no text for: workers would get none, and make random ones."""
        for name, value in self.inputs.items():
            numbers = (value.low, value.high) if isinstance(value, config_tables.Range) else value
            for number in numbers if isinstance(numbers, tuple) else (numbers,):
                if isinstance(number, float) and not math.isfinite(number):
                    raise ConfigError(
                        f"no value for the input {name!r}",
                        where=f"inputs.{name}",
                        why=f"{number} is no finite number",
                        remedy="give a finite number, such as -1e9 in a mask, or test data",
                    )

    @property
    def given(self) -> bool:
        """Whether anything but random numbers was asked for."""
        return bool(self.test_data or self.inputs)

    @property
    def file_bytes(self) -> int:
        """Bytes of a file that may be one sample, or all in one array; of folders one sample is in memory at a time."""
        path = Path(self.test_data)
        return path.stat().st_size if self.test_data and path.is_file() else 0

    def is_random(self, takes: Sequence[TensorInfo]) -> bool:
        """Whether any input of a model gets random numbers, in a declared range or not."""
        return not self.test_data and any(
            info.name not in self.inputs or isinstance(self.inputs[info.name], config_tables.Range) for info in takes
        )

    def constants(self, takes: Sequence[TensorInfo]) -> tuple[str, ...]:
        """The inputs of a model that get a declared value, and no test data."""
        names = [info.name for info in takes if info.name in self.inputs]
        return (
            ()
            if self.test_data
            else tuple(name for name in names if not isinstance(self.inputs[name], config_tables.Range))
        )

    @property
    def source(self) -> str:
        """Where the samples come from, for reports."""
        declared = f"declared values of {', '.join(self.inputs)}" if self.inputs else ""
        origin = self.test_data or f"random inputs of seed {self.seed}"
        origin += "" if self.part is Part.ALL else f", {self.part} part"
        return f"{origin}, {declared}" if declared else origin


def dataset_of(table: configs.ModelConfig) -> Dataset:
    """What a table of a config says that its models are run on."""
    sizes = {**_usual_sizes(table), **{name: max(sizes) for name, sizes in table.lists.items()}}
    return Dataset(
        test_data=table.test_data or "",
        inputs=table.inputs,
        preprocess=as_the_app_has(table) or table.preprocess,
        sizes=sizes,
        padding=table.padding,
        takes=_takes_files(table),
    )


def as_the_app_has(table: configs.ModelConfig) -> config_tables.PreprocessConfig | None:
    """How files of images become what a model takes that resizes them itself: their bytes as they are."""
    if not (table.takes and table.takes.image):
        return None
    return config_tables.PreprocessConfig(
        channels=config_tables.Channels(table.takes.image.value.upper()), layout=config_tables.ImageLayout.NHWC
    )


def _usual_sizes(table: configs.ModelConfig) -> dict[str, int]:
    """Open axes of made-up images and recordings."""
    return table.takes.usual_sizes if table.takes else {}


def _takes_files(table: configs.ModelConfig) -> app_data.Takes | None:
    return table.takes if table.takes and not table.takes.image else None


def part_of(table: configs.ModelConfig, part: Part) -> Dataset:
    """The calibration or evaluation data of a model, as its table says or by default (docs/guide.md).

    Two parts that come from the same test data have no sample in common; of others `overlap` reports it.
    """
    parts = {Part.CALIBRATION: table.calibration, Part.EVALUATION: table.evaluation}
    config = parts[part] or config_tables.PartConfig()
    labelled_set = (table.labels or "").lower().endswith(".npz")
    if labelled_set and part is Part.EVALUATION and not config.test_data:
        return Dataset(test_data=table.labels or "", inputs=table.inputs, limit=config.samples or 0)
    sources = [half.test_data if half and half.test_data else table.test_data for half in parts.values()]
    shared = sources[0] == sources[1] and not labelled_set
    labels = config.labels or (table.labels if not config.test_data and not labelled_set else None)
    sizes = {name: size if isinstance(size, int) else max(size) for name, size in table.dimensions.items()}
    sizes = {**_usual_sizes(table), **sizes}
    return Dataset(
        test_data=config.test_data or table.test_data or "",
        inputs=table.inputs,
        sizes=sizes,
        preprocess=as_the_app_has(table) or config.preprocess or preprocess_of(table),
        labels=labels or "",
        part=part if shared and sources[0] else Part.ALL,
        limit=config.samples or 0,
        states=table.state if part is Part.CALIBRATION else {},
        takes=_takes_files(table),
    )


def labelled_data(table: configs.ModelConfig) -> Dataset | None:
    """The evaluation data of a model whose table names labels, or evaluation data of their own; None for others."""
    return part_of(table, Part.EVALUATION) if table.labels or table.evaluation else None


def preprocess_of(table: configs.ModelConfig) -> config_tables.PreprocessConfig | None:
    """The preprocessing that the app must repeat, wherever in a model's table it is declared."""
    parts = (part.preprocess for part in (table.evaluation, table.calibration) if part)
    return table.preprocess or next((preprocess for preprocess in parts if preprocess), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One set of inputs in the model's order; `expected` are outputs that came with it, by the names in the files.

    `label` is a text, a number or an array; None for none.
    """

    name: str
    inputs: dict[str, Array]
    expected: list[tuple[str, Array]] = field(default_factory=list)
    label: Any = None
    text: str = ""
    """What the app has where the inputs were made of a text."""

    @property
    def digest(self) -> str:
        """sha256 of the inputs: names, types, shapes and elements."""
        import numpy as np

        total = hashlib.sha256()
        for name, array in sorted(self.inputs.items()):
            total.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
            total.update(np.ascontiguousarray(array).data)
        return total.hexdigest()

    @property
    def part(self) -> Part:
        """The part that the sample belongs to by its content alone, whatever else there is."""
        return Part.EVALUATION if int(self.digest[:8], 16) % CALIBRATION_SHARE else Part.CALIBRATION
