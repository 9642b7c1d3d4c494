"""Less to measure, for a first look, and what is tried again where that leaves nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from pipeline import config as configs
from pipeline.config import Config
from pipeline.core.variant import Level, Style
from pipeline.job.models import sizes_of
from pipeline.job.prepare import Prepared

LEVELS = (Level.BASIC, Level.ALL)
"""What providers want and what the CPU wants (ONNX Runtime's documentation of the ORT format)."""

STYLES = (Style.FIXED,)

ROUNDS = 3

MIN_SECONDS = 0.05

MIN_RUNS = 5

QUICKER = f"Ctrl-C keeps what is done; `--quick` takes {ROUNDS} rounds of some {MIN_RUNS} inferences"
"""What a job that takes long says of a quick one."""


def quick(config: Config) -> Config:
    """The config with less to measure; what it names alone, as a level that LEVELS lacks, stays."""
    variants, measure = config.variants, config.measure
    fewer = msgspec.structs.replace(
        variants,
        levels=tuple(level for level in variants.levels if level in LEVELS) or variants.levels,
        styles=tuple(style for style in variants.styles if style in STYLES) or variants.styles,
    )
    return msgspec.structs.replace(config, variants=fewer, measure=shorter(measure))


def shorter(measure: configs.MeasureConfig) -> configs.MeasureConfig:
    """The same with fewer rounds of fewer inferences, for a first look."""
    return msgspec.structs.replace(
        measure,
        rounds=min(measure.timed_rounds, ROUNDS),
        min_seconds=min(measure.min_seconds, MIN_SECONDS),
        min_runs=min(measure.min_runs, MIN_RUNS),
        warmup=1 if isinstance(measure.warmup, str) else min(measure.warmup, 1),
    )


def left_out(config: Config, less: Config) -> str:
    """What the quick job with `less` does not do of a config, in one sentence for the terminal and the reports."""
    names = (*config.variants.levels, *config.variants.styles)
    kept = (*less.variants.levels, *less.variants.styles)
    missing = ", ".join(name.value for name in names if name not in kept)
    seconds = f"{less.measure.min_seconds:g} s instead of {config.measure.min_seconds:g} s each"
    variants = f"; not converted or measured: {missing}" if missing else ""
    return (
        f"quick: {less.measure.rounds} of {config.measure.timed_rounds} rounds, {seconds}{variants}. "
        "Run it without --quick before a release."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondTry:
    """The config with which some models are prepared again, and why."""

    config: Config
    why: str
    names: frozenset[str]


def with_none(config: Config, whole: Config, prepared: Sequence["Prepared"]) -> SecondTry | None:
    """A quick config with level none, where the levels of it leave a model nothing that is sound.

    Optimizers break some models, and level none is one of the `whole` config's that the quick one leaves out. Sizes of
    one model share their weights, and are prepared again together.
    """
    levels, none = config.variants.levels, Level.NONE
    tried = [
        prepared_model
        for prepared_model in prepared
        if not prepared_model.converted.error and (prepared_model.references or not prepared_model.artifacts)
    ]
    broken = [
        prepared_model.name for prepared_model in tried if not any(map(prepared_model.sound, prepared_model.artifacts))
    ]
    if not broken or none in levels or none not in whole.variants.levels:
        return None
    variants = msgspec.structs.replace(config.variants, levels=(none, *levels))
    named = ", ".join(level.value for level in levels)
    why = f"quick: level none was converted after all, since nothing of {', '.join(broken)} works at {named}"
    of_sizes = sizes_of({prepared_model.name: prepared_model.table for prepared_model in prepared})
    families = {of_sizes.get(name, name) for name in broken}
    return SecondTry(
        config=msgspec.structs.replace(config, variants=variants),
        why=why,
        names=frozenset(
            prepared_model.name
            for prepared_model in prepared
            if of_sizes.get(prepared_model.name, prepared_model.name) in families
        ),
    )
