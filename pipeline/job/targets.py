"""What the targets and models of a config mean for conversion: release, processor, claims, precisions."""

from collections.abc import Iterator, Sequence

import msgspec

from pipeline.campaign.options import run_options
from pipeline.config import Config, ModelConfig, Platform, Target
from pipeline.convert.genuine import choose_reference
from pipeline.convert.precisions import AutoProvider, PrecisionOrder, cpu_of_abi
from pipeline.convert.request import AwareSource, OptimizerPlatform
from pipeline.core.abis import abis_of_target, deciding_abi
from pipeline.core.providers import on_any_chip, rules_of_run
from pipeline.core.releases import line_of
from pipeline.dataset import Dataset, Part, part_of
from pipeline.model.sources import NamedModel
from pipeline.partition.answer import Settings, make_settings
from pipeline.passes.precisions import AUTO, resolve_precisions
from pipeline.passes.registry import make_step
from pipeline.release.shipped import library_release


def oldest_release(config: Config) -> str:
    """The oldest release among the targets: artifacts must run on all of them; "" for the installed one.

    A target that names none has that of its library, where this can be read.
    """
    named = [target.ort_release or library_release(target) for target in config.targets]
    return min((release for release in named if release), key=line_of, default="")


def optimizer_platform(config: Config) -> OptimizerPlatform:
    """ARM where any target has an ARM processor."""
    return OptimizerPlatform.of_abi(_abi_of(*config.targets))


def _abi_of(*targets: Target) -> str:
    """The ABI that claims, graphs and precisions are made for: the first ARM one of the targets, if there is one."""
    return deciding_abi([abi for target in targets for abi in abis_of_target(target.platform, target.abis)])


COREML_VERSIONS = {15: 5, 16: 6, 17: 7, 18: 8}
"""iOS release to CoreML's version (ep_rules E.1); later ones have the last of these."""


def aware_settings(config: Config) -> tuple[Settings, ...]:
    """What provider-aware variants may count on: the lowest API level, OS version and release among the targets.

    Nothing where the config wants none: rules of claims begin with a later release than conversion.
    """
    return provider_settings(config) if config.variants.aware else ()


def aware_source(config: Config) -> AwareSource | None:
    """Whose session saves aware variants: that of an Android target's own library before others of its release."""
    ships = [t.library for t in config.targets if t.platform is Platform.ANDROID and t.library]
    return choose_reference(
        config.variants.reference.value, oldest_release(config), ships, abi=_abi_of(*config.targets)
    )


def provider_settings(config: Config) -> tuple[Settings, ...]:
    """The settings of every provider that hold on all targets; ConfigError for a release older than the rules."""
    release = oldest_release(config)
    systems = [t.min_os_version for t in config.targets if t.platform is Platform.IOS and t.min_os_version]
    oldest = min((int(text.partition(".")[0]) for text in systems), default=None)
    return tuple(
        make_settings(
            provider,
            release=release,
            abi=_abi_of(*config.targets),
            android=any(t.platform is Platform.ANDROID for t in config.targets),
            api_level=nnapi_level(config),
            coreml_version=COREML_VERSIONS.get(oldest, 8 if oldest > 18 else 5) if oldest else None,
        )
        for provider in on_any_chip()
    )


def lowest_api_level(config: Config) -> int | None:
    """The lowest API level of the Android targets; None where none names one."""
    levels = [t.min_api_level for t in config.targets if t.platform is Platform.ANDROID and t.min_api_level]
    return min(levels, default=None)


def nnapi_level(config: Config) -> int | None:
    """`lowest_api_level` as ONNX Runtime's NNAPI distinguishes them, 27 to 31."""
    level = lowest_api_level(config)
    return min(max(27, level), 31) if level else None


def precision_orders(config: Config, models: Sequence[tuple[NamedModel, ModelConfig]]) -> list[PrecisionOrder]:
    """What is wanted of each model: precisions by their own names, and passes before everything else.

    ConfigError, with the place in the config, for a precision or pass that there is not and for wrong options.
    """
    level = lowest_api_level(config)
    general = resolve_precisions(config.variants.precisions, level, "[variants] precisions")
    orders = {}
    for number, table in enumerate(config.models):
        where = f"models[{number}]"
        precisions = resolve_precisions(table.precisions, level, f"{where}.precisions") or general
        places = ((entry, f"{where}.transforms[{place}]") for place, entry in enumerate(table.transforms))
        steps = tuple(make_step(entry.do, entry.options, place) for entry, place in places)
        orders[msgspec.json.encode((table.precisions, table.transforms))] = precisions, steps
    return [
        PrecisionOrder(
            model=model,
            precisions=names,
            transforms=steps,
            data=calibration_data(config, table),
            api_level=nnapi_level(config),
            keep_float=table.keep_float,
        )
        for model, table in models
        for names, steps in [orders[msgspec.json.encode((table.precisions, table.transforms))]]
    ]


LEAST_DIVIDED = 20
"""Samples of which one in four gives ranges even where nothing is decided: five, as few as are of use."""


def calibration_data(config: Config, table: ModelConfig) -> Dataset:
    """What ranges are taken from: never evaluation data that are labelled, named, or decide, or are enough to divide.

    Fewer samples than LEAST_DIVIDED serve both where accuracy is only shown: few people have more than three at first.
    """
    decides = config.accuracy.max_drop is not None or table.labels or table.calibration or table.evaluation
    apart = part_of(table, Part.CALIBRATION)
    return apart if decides else msgspec.structs.replace(apart, least=LEAST_DIVIDED)


def auto_providers(config: Config) -> tuple[AutoProvider, ...]:
    """What `auto` chooses precisions for: the providers of the runs, on the targets that have them."""
    wanted = [config.variants.precisions, *(model.precisions for model in config.models)]
    if not any(AUTO in names for names in wanted):
        return ()
    names = dict.fromkeys(name for target in config.targets for name in _providers_of(target, config))
    settings = {row.provider: row for row in provider_settings(config)}
    return tuple(AutoProvider(name=name, settings=settings.get(name)) for name in names)


def _providers_of(target: Target, config: Config) -> Iterator[str]:
    """The providers of the runs that a target's platform has, the CPU with the name of its processor."""
    for run in config.runs:
        for options in run_options(run):
            if options.provider == "cpu":
                yield cpu_of_abi(_abi_of(target))
            elif (rules := rules_of_run(options.provider, options.provider_options)) and not rules.run.never_on(
                target.platform.value
            ):
                yield rules.name
