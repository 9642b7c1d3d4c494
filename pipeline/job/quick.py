"""The quick job: fewer variants and shorter rounds of the same config, and what that leaves out in words."""

import msgspec

from pipeline.config import Config, MeasureConfig
from pipeline.core.variant import Level, Style

LEVELS = (Level.BASIC, Level.ALL)
"""What providers want and what the CPU wants (ONNX Runtime's documentation of the ORT format)."""

STYLES = (Style.FIXED,)
ROUNDS = 3
MIN_SECONDS = 0.05
MIN_RUNS = 5


def quick(config: Config) -> Config:
    """The config with less to measure; what it names alone, as a level that LEVELS lacks, stays."""
    variants = config.variants
    fewer = msgspec.structs.replace(
        variants,
        levels=tuple(level for level in variants.levels if level in LEVELS) or variants.levels,
        styles=tuple(style for style in variants.styles if style in STYLES) or variants.styles,
    )
    return msgspec.structs.replace(config, variants=fewer, measure=_shorter(config.measure))


def _shorter(measure: MeasureConfig) -> MeasureConfig:
    return msgspec.structs.replace(
        measure,
        rounds=min(measure.rounds, ROUNDS),
        min_seconds=min(measure.min_seconds, MIN_SECONDS),
        min_runs=min(measure.min_runs, MIN_RUNS),
        warmup=min(measure.warmup, 1),
    )


def left_out(config: Config) -> str:
    """What the quick job does not do of a config, in one sentence for the terminal and the reports."""
    less = quick(config)
    names = (*config.variants.levels, *config.variants.styles)
    kept = (*less.variants.levels, *less.variants.styles)
    missing = ", ".join(name.value for name in names if name not in kept)
    seconds = f"{less.measure.min_seconds:g} s instead of {config.measure.min_seconds:g} s each"
    variants = f"; not converted or measured: {missing}" if missing else ""
    return (
        f"quick: {less.measure.rounds} of {config.measure.rounds} rounds, {seconds}{variants}. "
        "Run it without --quick before a release."
    )
