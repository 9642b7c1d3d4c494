"""The models of a config: made of their sources, with their tables, and what these name of them."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from device_runner import providers as runner_providers
from pipeline import config as configs
from pipeline.accuracy import score as accuracy_score
from pipeline.config import Config
from pipeline.config import tables as config_tables
from pipeline.core import workers
from pipeline.core.errors import ConfigError, ModelError
from pipeline.core.features import Place
from pipeline.dataset import guess as data_guess
from pipeline.model import sources as model_sources

SOURCES = Place[Callable[[str, Path], object]]("find.sources")
"""Who makes the ONNX file of a model's `source`."""


FLOWS = Place[Callable[[configs.FeatureConfig, Mapping[str, configs.ModelConfig]], configs.ModelConfig]]("find.flows")
"""Who joins the models of a feature."""


def joined(feature: configs.FeatureConfig, config: Config) -> configs.ModelConfig:
    """The feature with the path of its file; ConfigError where nobody here joins models."""
    for join in FLOWS:
        return join(feature, {model.own_name: model for model in config.models})
    raise ConfigError(
        "nothing here joins models to a feature",
        where=f"features, {feature.name}",
        remedy="leave out [[features]], or install ort-mobile whole",
    )


def find(config: Config) -> list[tuple[model_sources.NamedModel, configs.ModelConfig]]:
    """Every model of the config with its table, made of its source first; ConfigError for a path with no models.

    Where a dimension has several sizes there is one more for each of them, if providers want it fixed.
    """
    for table in config.models:
        if table.source:
            # The file is made where it is not there, or older than its source: a file, or the module of a function.
            path, (parent, _, function) = Path(table.path), table.source.rpartition("/")
            module = Path(parent, *function.partition(":")[0].split(".")).with_suffix(".py")
            made_of = module if config_tables.is_function(table.source) else Path(table.source)
            if not path.exists() or (made_of.exists() and made_of.stat().st_mtime_ns > path.stat().st_mtime_ns):
                for make in SOURCES:
                    make(table.source, path)
    pairs: list[tuple[model_sources.SourceModel, configs.ModelConfig]] = []
    broken: dict[str | None, ModelError] = {}
    for table in config.shipped:
        made = table
        if isinstance(table, configs.FeatureConfig):
            try:
                made = joined(table, config)
            except ModelError as error:  # it costs no other model
                broken[table.name] = error
                pairs.append((model_sources.SourceModel(path=error.where), table.as_model()))
                continue
        pairs += [(source, made) for source in model_sources.find_models([made.path])]
    models = model_sources.name_models(
        [source for source, _ in pairs], [table.name for _, table in pairs], [table.sizes for _, table in pairs]
    )
    fixed = any(runner_providers.provider_named(name).fixed_shapes for run in config.runs for name in run.providers)
    forms = []
    for plain, (_, table) in zip(models, pairs, strict=True):
        model = replace(plain, optional_inputs=table.optional_inputs, error=broken.get(table.name))
        forms.append((model, table))
        for name, sizes in table.sized(model.name).items() if fixed or config.variants.contexts else ():
            sized = replace(model, name=name, dimensions=sizes, numbered=False)
            forms.append((sized, msgspec.structs.replace(table, name=name, dimensions=sizes)))
    taken = Counter(model.name.lower() for model, _ in forms)
    for model, _ in forms:
        if taken[model.name.lower()] > 1:
            raise ConfigError(
                f"two models are called {model.name}",
                where="[[models]]",
                why="a list of sizes makes one of this name, and another has it",
                remedy="give that one another `name`",
            )
    return forms


def sizes_of(tables: Mapping[str, configs.ModelConfig]) -> dict[str, str]:
    """By the names of models of one size, the open model that they are of."""
    return {sized: name for name, table in tables.items() for sized in table.sized(name)}


def check_named_outputs(
    accuracy: configs.AccuracyConfig, models: Sequence[tuple[model_sources.NamedModel, configs.ModelConfig]], work: Path
) -> None:
    """Raise ConfigError for an output of [accuracy] that no model has, before any work is done."""
    named = [name for name in (accuracy.output, *accuracy.outputs) if name is not None]
    if not named:
        return
    work.mkdir(parents=True)
    tasks = [
        workers.Task(
            label=model.name,
            call=partial(data_guess.output_names, model.source, str(work)),
            memory_bytes=workers.needed_bytes(model.size_bytes),
        )
        for model, _ in models
    ]
    limit = workers.time_limit(model.size_bytes for model, _ in models)
    outcomes = list(workers.run_tasks(tasks, memory_bytes=workers.memory_budget(), timeout_seconds=limit))
    if all(outcome.value for outcome in outcomes):  # what is wrong with a model is said when it is converted
        accuracy_score.check_outputs(accuracy, [name for outcome in outcomes for name in outcome.value or ()])
