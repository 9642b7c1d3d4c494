"""What to diagnose where, the files that remedies need, and how an app or a config sets each remedy."""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from device_runner.device import DeviceFacts
from device_runner.options import illegal
from device_runner.spec import RunOptions
from pipeline.campaign.options import options_name, run_options
from pipeline.config import ConditionsConfig, Config, MeasureConfig, RunConfig
from pipeline.convert.many import ConversionOrder, convert_paths
from pipeline.convert.request import OptimizerPlatform
from pipeline.core.errors import ConfigError, ModelError, PipelineError
from pipeline.core.releases import installed_release
from pipeline.dataset import Dataset
from pipeline.dataset.dataset import dataset_of
from pipeline.dataset.guess import no_size
from pipeline.features.doctor.diagnosis import MeasuredRemedy
from pipeline.features.doctor.subject import Remedy
from pipeline.job.prepare import find
from pipeline.job.template import data_beside, guess_for
from pipeline.model.sources import SourceModel
from pipeline.passes.registry import parse_step
from pipeline.passes.run import transform_file
from pipeline.release.app_code import code_for

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


FileKey = tuple[tuple[str, ...], bool]


def make_files(
    model: DoctorModel, remedies: Iterable[Remedy], facts: DeviceFacts, work: Path
) -> tuple[dict[FileKey, Path], dict[FileKey, str]]:
    """The file of each remedy by its key, made in `work`; and why one could not be made. Outputs are checked."""
    files: dict[FileKey, Path] = {((), False): model.path}
    failed: dict[FileKey, str] = {}
    for key in dict.fromkeys(remedy.file_key for remedy in remedies):
        if key not in files:
            try:
                files[key] = _made(model, key, facts, Path(tempfile.mkdtemp(dir=work)))
            except PipelineError as error:
                failed[key] = error.text
    return files, failed


def _made(model: DoctorModel, key: FileKey, facts: DeviceFacts, folder: Path) -> Path:
    steps, ort_format = key
    path = model.path
    if steps:
        parsed = [parse_step(step) for step in steps]
        path = folder / f"{model.path.stem}.{'+'.join(step.do for step in parsed)}.onnx"
        report = transform_file(SourceModel(path=str(model.path)), parsed, path, data=model.data)
        if report.verification and report.verification.failed:
            wrong = next(check for check in report.verification.checks if check.failed)
            raise ModelError("the changed model's outputs differ", why=wrong.reason)
    return _converted(path, model, facts, folder) if ort_format else path


def _converted(path: Path, model: DoctorModel, facts: DeviceFacts, folder: Path) -> Path:
    """The model in ORT format at level all, fixed style, for the device's processor."""
    platform = _platform_of(facts)
    order = ConversionOrder(
        levels=("all",), styles=("fixed",), release=str(installed_release()), abi=platform.abis[0], platform=platform,
        dimensions={}, output=folder, cache=None,
        check=False, config=False, processes=1, data=model.data,
    )  # fmt: skip
    (converted,) = convert_paths([str(path)], order).converted
    if converted.error:
        raise converted.error
    if not converted.artifacts:
        raise ModelError("it could not be converted", why="; ".join(failure.what for failure in converted.failures))
    return folder / converted.artifacts[0].file


def _platform_of(facts: DeviceFacts) -> OptimizerPlatform:
    on_x86 = any(abi.startswith("x86") for abi in facts.abis)
    return OptimizerPlatform.AMD64 if on_x86 else OptimizerPlatform.ARM


def shell_of(remedy: Remedy, start: RunOptions, facts: DeviceFacts, model: Path) -> MeasuredRemedy:
    """A remedy with how it is set, before it is measured."""
    options = remedy.options(start)
    before, after = (code_for(facts.platform, options_of_run, model.name)[0] for options_of_run in (start, options))
    return MeasuredRemedy(
        remedy=remedy,
        run=options_name(options),
        set=tuple(_set(remedy)),
        commands=tuple(_commands(remedy, model, _platform_of(facts))),
        calls=tuple(line for line in after.lines if line and line not in before.lines),
        language=after.title,
    )


def _set(remedy: Remedy) -> Iterator[str]:
    """The lines of a config that make the change."""
    if remedy.settings:
        yield "[[runs]]"
        yield from (f"{key} = {_toml(value)}" for key, value in remedy.settings.items())
    yield from (f"# [[runs]] session_config: leave out {key}" for key in remedy.without)
    if remedy.level:
        yield "[variants]"
        yield f'levels = ["{remedy.level.value}"]'


def _commands(remedy: Remedy, model: Path, platform: OptimizerPlatform) -> Iterator[str]:
    """The commands that make the change."""
    if remedy.steps:
        steps = " ".join(f"--do '{step}'" for step in remedy.steps)
        yield f"ort-mobile transform {model.name} {model.stem}.changed.onnx {steps}"
    if remedy.ort_format:
        processor = "" if platform is OptimizerPlatform.ARM else f" --target-platform {platform.value}"
        yield f"ort-mobile convert {model.name} --level all --style fixed{processor} --output converted"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_toml, value))}]"
    return msgspec.json.encode(value).decode()
