"""A [[runs]] table with lists becomes every combination; each has a name of its own; what cannot work is told."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runner.device import DeviceFacts
from device_runner.options import AFFINITY_KEY, BLOCK_KEY, FALLBACK_KEY
from device_runner.spec import ExecutionMode, NnapiFlag, OptimizationLevel, RunOptions
from pipeline.campaign.plan import options_name, plan_runs, run_options
from pipeline.config import RunConfig
from pipeline.core.errors import ConfigError
from tests.scripted_devices import ARTIFACT

PHONE = DeviceFacts(name="adb:1", platform="android", api_level=30)


def runs(text: str) -> list[RunOptions]:
    """The options of a table as TOML has it."""
    import tomllib

    return run_options(msgspec.convert(tomllib.loads(text), RunConfig))


def names(text: str) -> list[str]:
    return [options_name(options) for options in runs(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["cpu"]),
        ("threads = [1, 2]", ["cpu+threads=1", "cpu+threads=2"]),
        ('flags = ["USE_FP16", "USE_NCHW"]\nprovider = "nnapi"', ["nnapi+USE_FP16+USE_NCHW"]),
        ('flags = [[], ["NNAPI_FLAG_USE_FP16"]]\nprovider = "nnapi"', ["nnapi", "nnapi+USE_FP16"]),
        ('flags = "USE_FP16"\nprovider = "nnapi"', ["nnapi+USE_FP16"]),
        ("spinning = [true, false]", ["cpu+spinning=on", "cpu+spinning=off"]),
        ("prepacking = [true, false]", ["cpu", "cpu+prepacking=off"]),
        ("memory_arena = false\nmemory_pattern = false", ["cpu+memory_arena=off+memory_pattern=off"]),
        ('threads = 3\naffinities = "2;3"', ["cpu+threads=3+affinities=2;3"]),
        ("dynamic_block_base = [4, 8]", ["cpu+dynamic_block_base=4", "cpu+dynamic_block_base=8"]),
        ('provider = ["nnapi", "xnnpack"]\nstrict = true', ["nnapi+strict", "xnnpack+strict"]),
        (
            'execution_mode = "parallel"\ninter_op_threads = [0, 2]',
            ["cpu+execution_mode=parallel", "cpu+inter_op_threads=2+execution_mode=parallel"],
        ),
        (
            'provider = "coreml"\noptions = { ModelFormat = ["NeuralNetwork", "MLProgram"] }',
            ["coreml+ModelFormat=NeuralNetwork", "coreml+ModelFormat=MLProgram"],
        ),
        ('session_config = { "session.x" = ["0", "1"] }', ["cpu+session.x=0", "cpu+session.x=1"]),
    ],
)
def test_tables_and_their_names(text: str, expected: list[str]) -> None:
    assert names(text) == expected


def test_friendly_keys_are_onnx_runtimes_own() -> None:
    (options,) = runs(
        'threads = 2\naffinities = "2"\nspinning = false\nprepacking = false\ndynamic_block_base = 4\nstrict = true'
    )
    assert options.session_config == {
        "session.intra_op.allow_spinning": "0",
        "session.inter_op.allow_spinning": "0",
        "session.disable_prepacking": "1",
        AFFINITY_KEY: "2",
        BLOCK_KEY: "4",
        FALLBACK_KEY: "1",
    }


def test_a_matrix_runs_what_is_legal_and_tells_the_rest() -> None:
    run = RunConfig(provider=("cpu", "nnapi"), flags="all", threads=(0, 2))
    lanes, skipped = plan_runs([run], [ARTIFACT], [PHONE])
    assert len(lanes) == 2 * (1 + 12)
    assert len({lane.key for lane in lanes}) == len(lanes)
    reasons = [skip.text for skip in skipped]
    assert sum("contradict" in reason for reason in reasons) == 2 * (4 + 4)
    assert sum("flags are NNAPI's" in reason for reason in reasons) == 2 * 11
    assert len(lanes) + len(skipped) == 2 * 2 * 16


def test_threads_go_with_their_affinities_only() -> None:
    run = RunConfig(threads=(2, 4), affinities=("2", "2;3;4"))
    lanes, skipped = plan_runs([run], [ARTIFACT], [PHONE])
    assert [options_name(lane.options) for lane in lanes] == [
        "cpu+threads=2+affinities=2",
        "cpu+threads=4+affinities=2;3;4",
    ]
    assert ["one group fewer" in skip.text for skip in skipped] == [True, True]


@pytest.mark.parametrize(
    ("run", "told", "remedy"),
    [
        (RunConfig(flags=("USE_FP17",)), "unknown NNAPI flag", "USE_FP16"),
        (RunConfig(flags=(("USE_FP16",), "USE_NCHW")), "not both", "for two sets"),
        (RunConfig(spinning=False, session_config={"session.inter_op.allow_spinning": "1"}), "both set", "leave out"),
        (RunConfig(threads=tuple(range(100)), inter_op_threads=tuple(range(100))), "10000 combinations", "shorter"),
    ],
)
def test_what_makes_no_sense_is_refused(run: RunConfig, told: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_options(run)
    assert told in str(caught.value)
    assert remedy in caught.value.remedy


TEXT = st.sampled_from(
    ["", "a", "threads", "spinning", "strict", "a.b", "config.a", "option.a", "session.x"]
) | st.text("+=%.a", max_size=4)
OPTIONS = st.builds(
    RunOptions,
    provider=st.sampled_from(["cpu", "nnapi", "cpu+threads=1"]),
    provider_options=st.dictionaries(TEXT, TEXT, max_size=2),
    flags=st.lists(st.sampled_from(list(NnapiFlag)), unique=True).map(tuple),
    intra_op_threads=st.integers(0, 2),
    inter_op_threads=st.integers(0, 2),
    execution_mode=st.sampled_from(ExecutionMode),
    optimization_level=st.sampled_from(OptimizationLevel),
    cpu_arena=st.booleans(),
    memory_pattern=st.booleans(),
    session_config=st.dictionaries(
        TEXT | st.sampled_from(["session.intra_op.allow_spinning", "session.inter_op.allow_spinning", FALLBACK_KEY]),
        TEXT | st.sampled_from("01"),
        max_size=3,
    ),
)


def meaning(options: RunOptions) -> RunOptions:
    return msgspec.structs.replace(options, flags=tuple(sorted(options.flags)))


@given(OPTIONS, OPTIONS)
def test_equal_names_mean_equal_options(one: RunOptions, other: RunOptions) -> None:
    assert (options_name(one) == options_name(other)) == (meaning(one) == meaning(other))


@given(OPTIONS, st.sampled_from(["provider_options", "session_config"]), TEXT, TEXT)
def test_one_entry_more_is_another_name(options: RunOptions, field: str, key: str, value: str) -> None:
    entries = getattr(options, field)
    other = msgspec.structs.replace(options, **{field: {**entries, key: value}})
    swapped = msgspec.structs.replace(
        options, provider_options=options.session_config, session_config=options.provider_options
    )
    assert (options_name(other) == options_name(options)) == (entries.get(key) == value)
    assert (options_name(swapped) == options_name(options)) == (options.session_config == options.provider_options)
