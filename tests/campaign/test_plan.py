"""The plan of a campaign: [[runs]] tables become every combination with a name of its own, legal or with its reason."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runner.device import DeviceFacts, GraphicsProcessor
from device_runner.options import AFFINITY_KEY, BLOCK_KEY, BYTES_KEY, FALLBACK_KEY
from device_runner.providers import CHIPS
from device_runner.spec import ElementType, ExecutionMode, NnapiFlag, OptimizationLevel, RunOptions, TensorFile
from pipeline.campaign.plan import baseline_of, matches, order_of_round, plan_runs, recorded, representatives
from pipeline.campaign.planned import Inputs, run_of
from pipeline.campaign.run_options import check_runs, options_name, run_options
from pipeline.campaign.specs import spec_of
from pipeline.compat.contexts import NpuContext
from pipeline.config import ADVISED_RUNS, MeasureConfig, RunConfig
from pipeline.core.errors import ConfigError
from pipeline.core.variant import Artifact, Level, Style, Variant, context_variant
from tests.scripted_devices import ARTIFACT

PHONE = DeviceFacts(name="adb:1", platform="android", api_level=30)
OLD_PHONE = DeviceFacts(name="adb:2", platform="android", api_level=26)
HERE = DeviceFacts(name="local", platform="linux")


def artifact(level: Level = Level.BASIC, model: str = "m", **more: object) -> Artifact:
    variant = Variant(level=level, style=Style.FIXED, **more)  # type: ignore[arg-type] # the tests name real fields
    return Artifact(
        model=model, variant=variant, file=f"{level}.ort", size_bytes=1, sha256="0" * 64, semantic_digest="1" * 64,
        operators={}, source_operators={}, session_options={"a": "1"},
    )  # fmt: skip


ALL = [artifact(level) for level in (Level.NONE, Level.BASIC, Level.ALL)]


def test_the_documented_advice_is_nnapi_and_the_gpu_on_basic_and_cpu_on_all() -> None:
    phone = msgspec.structs.replace(PHONE, gpu=GraphicsProcessor(name="Adreno (TM) 740"))
    lanes, skipped = plan_runs(ADVISED_RUNS, ALL, [phone])
    assert [lane.way for lane in lanes] == [
        "basic-fixed/nnapi",
        "basic-fixed/webgpu",
        "none-fixed/cpu",
        "basic-fixed/cpu",
        "all-fixed/cpu",
    ]
    assert skipped == []


def test_a_gpu_that_nobody_asked_for_runs_where_the_device_names_it() -> None:
    lanes, (skipped,) = plan_runs(ADVISED_RUNS, ALL, [PHONE])
    assert "webgpu" not in {lane.options.provider for lane in lanes}
    assert "where the device names it" in skipped.text
    assert 'compare = ["webgpu"]' in skipped.remedy
    asked, _ = plan_runs([RunConfig(provider="webgpu")], ALL, [PHONE])
    assert len(asked) == len(ALL)


@pytest.mark.parametrize(
    ("options", "facts", "reason"),
    [
        (RunOptions(provider="nnapi"), OLD_PHONE, "API 26: NNAPI needs 27"),
        (RunOptions(provider="nnapi", flags=(NnapiFlag.CPU_ONLY, NnapiFlag.CPU_DISABLED)), PHONE, "contradict"),
        (
            RunOptions(provider="nnapi", flags=(NnapiFlag.USE_NCHW,)),
            msgspec.structs.replace(PHONE, api_level=28),
            "API 28: USE_NCHW needs 29",
        ),
        (RunOptions(provider="cpu", flags=(NnapiFlag.USE_FP16,)), PHONE, "flags are NNAPI's"),
        (RunOptions(provider="coreml"), PHONE, "CoreML is Apple's"),
        (RunOptions(provider="nnapi"), msgspec.structs.replace(HERE, platform="macos"), "NNAPI is Android's"),
    ],
)
def test_illegal_runs_are_skipped_with_their_reason(options: RunOptions, facts: DeviceFacts, reason: str) -> None:
    run = RunConfig(provider=options.provider, flags=tuple(flag.value for flag in options.flags))
    lanes, skipped = plan_runs([run], ALL, [facts])
    assert lanes == []
    assert [reason in skip.text for skip in skipped] == [True] * 3
    assert all(skip.remedy for skip in skipped)


def test_aware_artifacts_run_with_their_provider_or_the_cpu() -> None:
    aware = artifact(Level.ALL, providers=("coreml-mlprogram",)).variant
    assert [matches(("*",), p, aware) for p in ("coreml", "cpu", "nnapi")] == [True, True, False]


@pytest.mark.parametrize(
    ("provider", "options", "what"),
    [
        ("coreml", {"ModelFormt": "MLProgram"}, "CoreML has no option ModelFormt: did you mean ModelFormat?"),
        ("coreml", {"MLComputeUnits": ("ALL", "NPU")}, "MLComputeUnits of CoreML does not take 'NPU'"),
        ("webgpu", {"preferredLayout": "nchw"}, "preferredLayout of WebGPU does not take 'nchw'"),
    ],
)
def test_options_that_a_provider_lacks_are_refused_before_anything_runs(
    provider: str, options: dict[str, str | tuple[str, ...]], what: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(what)) as caught:
        check_runs([RunConfig(provider=provider, options=options)])
    assert caught.value.remedy


def test_rounds_alternate_and_lose_nothing() -> None:
    lanes, _ = plan_runs(ADVISED_RUNS, ALL, [PHONE])
    assert order_of_round(lanes, 0) == lanes
    assert order_of_round(lanes, 1) == lanes[::-1]


def test_the_baseline_is_the_one_named_or_the_first_on_the_cpu() -> None:
    lanes, _ = plan_runs(ADVISED_RUNS, ALL, [PHONE])
    assert baseline_of(lanes, None).way == "none-fixed/cpu"
    assert baseline_of(lanes, "all-fixed").way == "all-fixed/cpu"
    assert baseline_of(lanes, "basic-fixed/nnapi").way == "basic-fixed/nnapi"


def test_specs_carry_the_artifacts_session_options_and_the_runs_go_before_them() -> None:
    lane = run_of("local", artifact(), RunOptions(session_config={"a": "2", "session.b": "3"}))
    spec = spec_of(
        lane, 3, model_file="m.ort", library=None, inputs=Inputs(dimensions={"n": 1}), measure=MeasureConfig()
    )
    assert spec.options.session_config == {"a": "2", "session.b": "3"}
    assert spec.id == "local/m/basic-fixed/cpu+config.a=2+session.b=3#3"
    assert spec.dimensions == {"n": 1}


def test_android_devices_load_files_mapped_as_apps_do_unless_a_run_says_no() -> None:
    by_path = RunConfig(session_config={BYTES_KEY: "0"})
    lanes, _ = plan_runs([RunConfig(), by_path], ALL[:1], [PHONE, HERE])
    assert [lane.run_options.session_config.get(BYTES_KEY) for lane in lanes] == ["1", "0", None, "0"]
    assert [run.mapped for run in recorded(lanes, None)] == [True, False, False, False]
    assert [lane.way for lane in lanes][::2] == ["none-fixed/cpu"] * 2


def test_the_labelled_set_is_answered_once() -> None:
    labelled = TensorFile(name="x", dtype=ElementType.FLOAT32, shape=(9, 1), file="labelled.bin")
    inputs = Inputs(labelled=labelled, dimensions={})
    specs = [
        spec_of(run_of("local", artifact(), RunOptions()), number, model_file="m.ort", library=None, inputs=inputs,
                measure=MeasureConfig())
        for number in range(3)
    ]  # fmt: skip
    assert [spec.labelled for spec in specs] == [labelled, None, None]


def test_the_same_bytes_with_the_same_options_are_run_once_on_each_device() -> None:
    other = msgspec.structs.replace(artifact(Level.ALL), sha256="1" * 64)
    replay = msgspec.structs.replace(artifact(Level.EXTENDED), session_options={"a": "0"})
    own_options = RunConfig(session_config={"a": "1"})
    artifacts = [*ALL[:2], other, replay, artifact(model="another")]
    lanes, _ = plan_runs([RunConfig(), own_options], artifacts, [HERE, PHONE])
    found = representatives(lanes)
    assert {name: lane.id for name, lane in found.items() if name != lane.id} == {
        f"{device}/{model}/{run}": f"{device}/{model}/{first}"
        for device in ("local", "adb:1")
        for model, run, first in (
            ("m", "basic-fixed/cpu", "none-fixed/cpu"),
            ("m", "none-fixed/cpu+config.a=1", "none-fixed/cpu"),
            ("m", "basic-fixed/cpu+config.a=1", "none-fixed/cpu"),
            ("m", "extended-fixed/cpu+config.a=1", "none-fixed/cpu"),
            ("m", "all-fixed/cpu+config.a=1", "all-fixed/cpu"),
            ("another", "basic-fixed/cpu+config.a=1", "basic-fixed/cpu"),
        )
    }


def context(chip: str, precision: str = "") -> NpuContext:
    soc = CHIPS[chip]
    return NpuContext(
        model="m", variant=context_variant(chip, precision), file=f"m.qnn-{chip}.onnx", size_bytes=1, sha256=chip,
        binary="m.bin", binary_bytes=2, binary_sha256="b",
        compatibility=f"v2:6:2.51.0:5.51.0:{soc.htp_arch}:{soc.soc_model}:0:0", plugin="2.7.0", onnxruntime="1.32.0",
        npu_nodes=1, partitions=1, cpu_nodes=0, seconds=0.1, memory_bytes=1,
    )  # fmt: skip


def test_contexts_run_on_phones_whose_loader_takes_them_and_in_simulators() -> None:
    phones = [
        msgspec.structs.replace(PHONE, name="adb:s24", soc="QTI SM8650"),
        msgspec.structs.replace(PHONE, name="adb:s23", soc="QTI SM8550-AC"),
        msgspec.structs.replace(PHONE, name="adb:pixel", soc="Google Tensor G3"),
    ]
    runs = [RunConfig(provider="cpu"), RunConfig(provider="qnn", variants=("qnn-*",))]
    contexts = [context("SM8650"), context("SM8550", "u8s8qnn")]
    lanes, skipped = plan_runs(runs, ALL[1:2], [*phones, HERE], contexts=contexts)
    assert [lane.text for lane in lanes if lane.variant.startswith("qnn")] == [
        "adb:s24/m/qnn-SM8650/qnn",
        "adb:s24/m/qnn-SM8550-u8s8qnn/qnn",
        "adb:s23/m/qnn-SM8550-u8s8qnn/qnn",
        "local/m/qnn-SM8650/qnn+soc_model=SM8650",
        "local/m/qnn-SM8550-u8s8qnn/qnn+soc_model=SM8550",
    ]
    assert {lane.device for lane in lanes if lane.variant == "basic-fixed"} == {*(row.name for row in phones), "local"}
    assert {(row.device, row.what) for row in skipped} == {
        ("adb:s23", "it is for V75, and SM8550 has V73"),
        ("adb:pixel", "no Snapdragon whose NPU is known: Google Tensor G3"),
    }


def test_a_simulator_of_another_chip_runs_no_context() -> None:
    run = RunConfig(provider="qnn", options={"soc_model": "SM8550"})
    lanes, skipped = plan_runs([run], [], [HERE], contexts=[context("SM8650")])
    assert not lanes
    assert [row.what for row in skipped] == ["the run asks for SM8550"]


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
        ('level = ["none", "all"]', ["cpu+level=none", "cpu"]),
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
    assert len({lane.id for lane in lanes}) == len(lanes)
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
