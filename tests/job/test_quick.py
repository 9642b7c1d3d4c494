"""The quick job: less of the same config, and it says what it left out."""

import pytest

from pipeline.config import Config, MeasureConfig, MeasureMode, ModelConfig, VariantsConfig
from pipeline.core.variant import Level, Style
from pipeline.job.prepare import left_out, quick


def config(**more: object) -> Config:
    return Config(name="a", models=(ModelConfig(path="m.onnx"),), **more)  # type: ignore[arg-type] # real fields


def test_it_converts_and_measures_less() -> None:
    less = quick(config())
    assert (less.variants.levels, less.variants.styles) == ((Level.BASIC, Level.ALL), (Style.FIXED,))
    assert (less.measure.rounds, less.measure.min_seconds, less.measure.min_runs) == (3, 0.05, 5)
    assert left_out(config()) == (
        "quick: 3 of 5 rounds, 0.05 s instead of 0.2 s each; not converted or measured: none, extended, runtime. "
        "Run it without --quick before a release."
    )


def test_what_a_config_names_alone_stays_and_nothing_becomes_longer() -> None:
    own = config(
        variants=VariantsConfig(levels=(Level.EXTENDED,), styles=(Style.RUNTIME,)),
        measure=MeasureConfig(rounds=1, min_seconds=0.001, min_runs=1, warmup=0),
    )
    assert quick(own) == own
    assert "not converted" not in left_out(own)


@pytest.mark.parametrize(
    ("mode", "inference", "seconds"),
    [
        (MeasureMode.STEADY, 0.001, 2.002),
        (MeasureMode.STEADY, 1.5, 33.0),
        (MeasureMode.STEADY, 30.0, 120.0),
        (MeasureMode.COLD, 1.5, 1.5),
        (MeasureMode.SUSTAINED, 1.5, 300.0),
    ],
)
def test_how_long_a_process_takes_is_foreseen(mode: MeasureMode, inference: float, seconds: float) -> None:
    measure = MeasureConfig(warmup=2, min_runs=20, min_seconds=2.0)
    assert measure.seconds_of(mode, inference) == pytest.approx(seconds)
