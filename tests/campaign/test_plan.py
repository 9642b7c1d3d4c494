"""The plan of a campaign: every run is legal or has its reason."""

import re

import msgspec
import pytest

from device_runner.device import DeviceFacts, GraphicsProcessor
from device_runner.options import BYTES_KEY
from device_runner.providers import CHIPS
from device_runner.spec import ElementType, NnapiFlag, RunOptions, TensorFile
from pipeline.campaign.plan import (
    Inputs,
    baseline_of,
    check_runs,
    matches,
    order_of_round,
    plan_runs,
    planned_id,
    recorded,
    representatives,
    run_of,
    spec_of,
)
from pipeline.compat.contexts import NpuContext
from pipeline.config import ADVISED_RUNS, MeasureConfig, RunConfig
from pipeline.core.errors import ConfigError
from pipeline.core.variant import Artifact, Level, Style, Variant, context_variant

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
    assert [lane.run_name for lane in lanes] == [
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
    assert baseline_of(lanes, None).run_name == "none-fixed/cpu"
    assert baseline_of(lanes, "all-fixed").run_name == "all-fixed/cpu"
    assert baseline_of(lanes, "basic-fixed/nnapi").run_name == "basic-fixed/nnapi"


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
    assert [lane.run_name for lane in lanes][::2] == ["none-fixed/cpu"] * 2


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
    assert {name: planned_id(lane) for name, lane in found.items() if name != planned_id(lane)} == {
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
    assert [lane.key for lane in lanes if lane.variant.startswith("qnn")] == [
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
