"""Which precisions are made of each model, and from what data ranges are taken."""

from collections.abc import Sequence
from itertools import product

import msgspec

from pipeline import config as configs
from pipeline import dataset as datasets
from pipeline.campaign import run_options
from pipeline.config import Config
from pipeline.convert import precisions as convert_precisions
from pipeline.core import providers as provider_rules
from pipeline.dataset import Dataset
from pipeline.job import attachment as job_attachment
from pipeline.job.targets import CommonTarget, abi_of
from pipeline.model import sources as model_sources
from pipeline.passes import precisions as passes_precisions
from pipeline.passes import registry


def precision_orders(
    config: Config, models: Sequence[tuple[model_sources.NamedModel, configs.ModelConfig]], common: CommonTarget
) -> list[convert_precisions.Conversion]:
    """What is wanted of each model: precisions by their own names, and passes before everything else.

    ConfigError, with the place in the config, for a precision or pass that there is not and for wrong options.
    """
    level = common.api_level
    general = passes_precisions.resolve_precisions(config.variants.precisions, level, "[variants] precisions")
    names: dict[tuple[str, ...], tuple[str, ...]] = {}
    for number, table in enumerate(config.shipped):
        where = f"models[{number}]"
        names[table.precisions] = (
            passes_precisions.resolve_precisions(table.precisions, level, f"{where}.precisions") or general
        )
        for at, step in enumerate(table.transforms):
            registry.options_of(step, f"{where}.transforms[{at}]")
    attachments = [job_attachment.attachment_of(table, f"models, {model.name}") for model, table in models]
    return [
        convert_precisions.Conversion(
            model=model,
            base=convert_precisions.ModelInPrecision(
                model=model, steps=(*table.transforms, *([attached.step] if attached else [])), error=model.error
            ),
            precisions=names[table.precisions],
            data=calibration_data(config, table),
            api_level=common.nnapi_level,
            keep_float=table.keep_float,
        )
        for (model, table), attached in zip(models, attachments, strict=True)
    ]


LEAST_DIVIDED = 20
"""Samples of which one in four gives ranges even where nothing is decided: five, as few as are of use."""


def calibration_data(config: Config, table: configs.ModelConfig) -> Dataset:
    """What ranges are taken from: never evaluation data that are labelled, named, or decide, or are enough to divide.

    Fewer samples than LEAST_DIVIDED serve both where accuracy is only shown: few people have more than three at first.
    """
    decides = config.accuracy.has_budget or table.labels or table.calibration or table.evaluation
    apart = datasets.part_of(table, datasets.Part.CALIBRATION)
    return apart if decides else msgspec.structs.replace(apart, least=LEAST_DIVIDED)


def auto_providers(config: Config, common: CommonTarget) -> convert_precisions.AutoProviders:
    """What `auto` chooses precisions for: the providers of the runs that targets have, the CPU by its processor."""
    precisions = [config.variants.precisions, *(model.precisions for model in config.shipped)]
    if not any(passes_precisions.AUTO in names for names in precisions):
        return {}
    settings = {setting.provider: setting for setting in common.settings()}
    names: dict[str, None] = {}
    for target, run in product(config.targets, config.runs):
        for options in run_options.run_options(run):
            rules = provider_rules.rules_of_run(options.provider, options.provider_options)
            if options.on_cpu:
                names[convert_precisions.cpu_of_abi(abi_of([target]))] = None
            elif rules and not rules.run.never_on(target.platform.value):
                names[rules.name] = None
    return {name: settings.get(name) for name in names}
