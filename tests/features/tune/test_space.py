"""Factors of candidates, the defaults among them, models of values over factors, and races."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from device_runner.device import DeviceFacts
from device_runner.spec import ExecutionMode, NnapiFlag, RunOptions
from pipeline.campaign.planned import PlannedRun, run_of
from pipeline.campaign.record import Skipped
from pipeline.campaign.run_options import run_options
from pipeline.config import RunConfig, TuneConfig
from pipeline.core.errors import ConfigError
from pipeline.core.variant import Artifact, Level, Style, Variant
from pipeline.features.tune.effects import drift_columns, forecast
from pipeline.features.tune.race import Lap, next_round, run_race
from pipeline.features.tune.space import ORT_DEFAULTS, factors, searched_runs, space_of
from tests.features.tune.simulated import simulated_table
from tests.values import present

race = functools.partial(run_race, delta=0.05, within=0.02)


def planned(options: RunOptions, level: Level = Level.ALL, **more: object) -> PlannedRun:
    variant = Variant(level=level, **more)  # type: ignore[arg-type] # the tests name real fields
    digest = f"{hash(variant.name) & 0xFFFFFFFF:064x}"
    artifact = Artifact(
        model="m", variant=variant, file=f"{variant.name}.ort", size_bytes=1, sha256=digest, semantic_digest=digest,
        operators={}, source_operators={},
    )  # fmt: skip
    return run_of("local", artifact, options)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, {"precision": "", "providers": ""}),
        ({"precision": "u8s8pc"}, {"precision": "u8s8pc", "providers": ""}),
        ({"providers": ("coreml-nn",)}, {"precision": "", "providers": "coreml-nn"}),
        (
            {"precision": "fp16", "providers": ("nnapi", "coreml-mlprogram"), "style": Style.RUNTIME},
            {"precision": "fp16", "providers": "nnapi+coreml-mlprogram", "style": "runtime"},
        ),
    ],
)
def test_the_parts_of_a_variants_name_are_factors(more: dict[str, object], expected: dict[str, str]) -> None:
    found = factors(planned(RunOptions(), Level.EXTENDED, **more))
    assert {name: found[name] for name in expected} == expected
    assert found["level"] == "extended"


def test_a_file_that_has_no_variant_is_a_level_of_its_own() -> None:
    one = PlannedRun(
        device="local", model="m", variant="my-model.ort", source="m", file="my-model.ort", sha256="0" * 64,
        size_bytes=1, options=RunOptions(),
    )  # fmt: skip
    assert factors(one)["level"] == "my-model.ort"


def test_run_options_are_factors_under_the_names_of_the_config() -> None:
    (options,) = run_options(
        RunConfig(
            provider="cpu", threads=3, spinning=False, affinities="1;2", memory_arena=False, prepacking=False,
            dynamic_block_base=4, strict=True, session_config={"session.made_up": "1"},
        )
    )  # fmt: skip
    found = factors(planned(options))
    expected = {
        "threads": "3", "spinning": "off", "affinities": "1;2", "memory_arena": "off", "prepacking": "off",
        "dynamic_block_base": "4", "strict": "on", "session_config.session.made_up": "1",
        "memory_pattern": "on", "execution_mode": "sequential",
    }  # fmt: skip
    assert {name: found.get(name) for name in expected} == expected


def test_a_plain_session_has_the_defaults_of_onnx_runtime() -> None:
    assert factors(planned(RunOptions())) == ORT_DEFAULTS


def test_spinning_of_one_kind_of_threads_is_no_short_word() -> None:
    options = RunOptions(session_config={"session.intra_op.allow_spinning": "0"})
    found = factors(planned(options))
    assert found["spinning"] == ""
    assert found["session_config.session.intra_op.allow_spinning"] == "0"


def test_the_documentations_default_is_an_accelerator_on_basic_or_the_cpu_on_all() -> None:
    cpu = [planned(RunOptions(intra_op_threads=n), level) for level in (Level.BASIC, Level.ALL) for n in (2, 0)]
    space = space_of(cpu)
    assert space.candidates[space.default].way == "all-fixed/cpu"
    assert space.ort_default == space.default
    nnapi = [
        planned(RunOptions(provider="nnapi", flags=flags), level)
        for level in (Level.ALL, Level.BASIC)
        for flags in ((NnapiFlag.USE_FP16,), ())
    ]
    space = space_of([*cpu, *nnapi])
    assert space.candidates[space.default].way == "basic-fixed/nnapi"
    assert space.ort_default is not None
    assert space.candidates[space.ort_default].way == "all-fixed/cpu"


def test_without_the_default_the_nearest_takes_its_place() -> None:
    runs = [
        planned(RunOptions(intra_op_threads=4, execution_mode=ExecutionMode.PARALLEL)),
        planned(RunOptions(intra_op_threads=4)),
        planned(RunOptions(), precision="u8u8"),
    ]
    space = space_of(runs)
    assert (space.default, space.ort_default) == (1, None)


def test_what_runs_the_same_is_one_candidate_and_no_candidate_is_an_error() -> None:
    one = planned(RunOptions())
    assert len(space_of([one, replace(one, variant="basic-fixed")])) == 1
    with pytest.raises(ConfigError) as caught:
        space_of([], [Skipped(what="API 26: NNAPI needs 27")])
    assert "API 26: NNAPI needs 27" in caught.value.why


def test_the_model_predicts_what_was_not_measured_through_drift_and_outliers() -> None:
    world = simulated_table(24, 5)
    random = np.random.default_rng(1)
    some = random.permutation(len(world.space))[:300]
    drift = 0.1 * np.sin(np.arange(300) / 40)
    noise = random.normal(0, 0.01, 300) + 0.06 * (random.random(300) < 0.1)
    values = np.log(world.seconds[some]) + drift + noise
    mean, deviation = forecast(world.space, some.tolist(), values, list(range(300)))
    others = np.setdiff1d(np.arange(len(world.space)), some)
    off = mean[others] - np.log(world.seconds[others])
    assert np.std(off) < np.std(np.log(world.seconds[others])) / 5
    assert int(np.argmin(world.seconds)) in np.argsort(mean)[:20]
    within = np.abs(off - np.median(off)) < 2 * deviation[others]
    assert 0.9 < within.mean() < 0.995


def laps(values: dict[int, float], rounds: int, seed: int = 0) -> list[Lap]:
    random = np.random.default_rng(seed)
    order = [arm for _ in range(rounds) for arm in random.permutation(list(values)).tolist()]
    return [Lap(arm, values[arm] + random.normal(0, 0.01), number) for number, arm in enumerate(order)]


def test_the_level_of_the_device_is_one_line_of_steps() -> None:
    columns = drift_columns([0, 5, 10, 7])
    assert columns.shape[0] == 4
    assert columns[2].sum() == 2.0
    assert columns[3].sum() == pytest.approx(1.4)


def test_a_race_drops_what_is_slower_and_ends_when_nothing_can_be_better() -> None:
    run = laps({1: 0.0, 2: 0.2, 3: 0.005}, 20)
    standing = present(race([1, 2, 3], run, {}))
    assert standing.leader in (1, 3)
    assert "worse than the best so far" in standing.dropped[2].text
    assert "can be more than 2% better" in standing.done


def test_a_race_before_its_first_look_knows_nothing() -> None:
    run = laps({1: 0.0, 2: 0.2}, 2)
    assert race([1, 2], run, {}) is None
    assert next_round([1, 2], None, run[:3], set()) == [run[3][0]]


def test_a_gpu_is_searched_by_the_options_that_change_its_times() -> None:
    here = DeviceFacts(name="local", platform="linux")
    runs = searched_runs([RunConfig(provider="webgpu")], TuneConfig(), here)
    given = [options.provider_options for run in runs for options in run_options(run)]
    assert {} in given
    assert {options.get("preferredLayout") for options in given} == {None, "NHWC", "NCHW"}
    assert {options.get("enableGraphCapture") for options in given} == {None, "0", "1"}
    stays = searched_runs([RunConfig(provider="webgpu", device_tensors=(False, True))], TuneConfig(), here)
    assert {options.device_tensors for run in stays for options in run_options(run)} == {False, True}
    own = RunConfig(provider="webgpu", options={"preferredLayout": "NCHW"})
    assert {str(run.options) for run in searched_runs([own], TuneConfig(), here)} == {str(own.options)}
