"""What to diagnose where: the models of a command line or a config, with data, sizes and options to start from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from device_runner.options import illegal
from device_runner.spec import RunOptions
from pipeline.campaign.options import options_name, run_options
from pipeline.config import ConditionsConfig, Config, MeasureConfig, RunConfig
from pipeline.core.errors import ConfigError
from pipeline.dataset import Dataset
from pipeline.dataset.dataset import dataset_of
from pipeline.dataset.guess import no_size
from pipeline.job.prepare import find
from pipeline.job.template import data_beside, guess_for

SUFFIXES = (".onnx", ".ort")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorModel:
    """A model to diagnose: its file, what it is run on, and the run options to start from."""

    path: Path
    start: RunOptions = field(default_factory=RunOptions)
    data: Dataset = field(default_factory=Dataset)
    dimensions: Mapping[str, int] = field(default_factory=dict)


def models_of_config(config: Config) -> list[DoctorModel]:
    """The models of a config with the first combination of its first [[runs]]; those in archives are no files."""
    start = run_options(config.runs[0] if config.runs else RunConfig())[0]
    return [
        DoctorModel(path=Path(model.source.name), start=start, data=dataset_of(table), dimensions=table.dimensions)
        for model, table in find(config)
    ]


def checked(model: DoctorModel) -> DoctorModel:
    """The model with data and sizes for its inputs, guessed where they are not given.

    ConfigError for a path that is no model file and for options that make no sense, ModelError for a broken model.
    """
    if not model.path.is_file():
        what = "this is a folder" if model.path.is_dir() else "no such model file"
        raise ConfigError(what, where=str(model.path), remedy="name one model; extract archives first")
    if model.path.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            "this is no model file", where=str(model.path), why=f"its name does not end in {' or '.join(SUFFIXES)}",
            remedy="name an .onnx or .ort file, or a config (.toml)",
        )  # fmt: skip
    if (failure := illegal(model.start)) is not None:
        raise ConfigError(failure.message, where=options_name(model.start), remedy=failure.remedy)
    if model.path.suffix.lower() != ".onnx":
        return model
    data = data_beside(model.path, msgspec.structs.replace(model.data, sizes=dict(model.dimensions)))
    if model.dimensions or data.test_data:
        return DoctorModel(path=model.path, start=model.start, data=data, dimensions=model.dimensions)
    guess = guess_for(model.path, data)
    if guess.missing:
        raise no_size(str(model.path), guess.missing, guess.why)
    values = msgspec.structs.replace(data, inputs=guess.values | data.inputs)
    return DoctorModel(path=model.path, start=model.start, data=values, dimensions=guess.dimensions)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOrder:
    """What to diagnose where, and in how many minutes for all models together."""

    models: tuple[DoctorModel, ...]
    device: str = "local"
    minutes: float = 5.0
    library: str | None = None
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    conditions: ConditionsConfig | None = None
    folder: Path | None = None
    """Where runs are stored; without one nothing is kept."""
    resume: bool = False
    """Whether to go on with the last diagnosis of the same model, device and settings that is stored there."""
    wait_seconds: float = 0.0
    """How long a device that another process has is waited for."""
