"""Which library each device of a campaign runs with."""

import pytest

from device_runner.device import DeviceFacts
from device_runner.errors import RunnerError
from pipeline.config import Platform, RunConfig, Target
from pipeline.core.variant import Level, Style, Variant
from pipeline.job.bench import libraries_by_device, opened_alone
from pipeline.job.choices import named_for_cpu

ARM = Target(name="arm", platform=Platform.ANDROID, abis=("arm64-v8a",), library="arm.aar")
INTEL = Target(name="intel", platform=Platform.ANDROID, abis=("x86_64",), library="android:1.29.0")
ANY = Target(name="any", platform=Platform.ANDROID, library="any.aar")
UNNAMED = Target(name="unnamed", platform=Platform.ANDROID, abis=("arm64-v8a",))
DESK = Target(name="desk", platform=Platform.LINUX, library="libonnxruntime.so")


def facts(name: str, *abis: str, platform: str = "android") -> DeviceFacts:
    return DeviceFacts(name=name, platform=platform, abis=abis)


FIELD = {
    one.name: one
    for one in (
        facts("adb:A", "arm64-v8a", "armeabi-v7a"),
        facts("adb:B", "x86_64"),
        facts("adb:C", "x86_64", platform="linux"),
        facts("local", "x86_64", platform="linux"),
        facts("android-host:x.aar", "x86_64"),
    )
}


def test_a_phone_runs_the_library_that_ships_to_it() -> None:
    assert libraries_by_device(FIELD, [DESK, UNNAMED, ARM, INTEL], None) == {
        "adb:A": "arm.aar", "adb:B": "android:1.29.0", "adb:C": None, "local": None, "android-host:x.aar": None,
    }  # fmt: skip


def test_a_target_without_abis_is_for_all_phones_and_the_first_counts() -> None:
    assert libraries_by_device(FIELD, [ANY, ARM], None)["adb:A"] == "any.aar"
    assert libraries_by_device(FIELD, [ARM, ANY], None)["adb:B"] == "any.aar"


def test_the_command_line_goes_first_and_no_library_is_none() -> None:
    assert set(libraries_by_device(FIELD, [ARM, INTEL], "given.so").values()) == {"given.so"}
    assert set(libraries_by_device(FIELD, [UNNAMED, DESK], None).values()) == {None}


@pytest.mark.parametrize(
    ("phones", "said"), [((), "no device is ready"), (("adb:A", "adb:B"), "2 devices are meant, and one is measured")]
)
def test_a_selector_stands_for_one_device_where_one_is_measured(
    phones: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.job.bench.found", lambda _names, **_: (list(phones), []))
    with pytest.raises(RunnerError, match=said), opened_alone("adb:*", 0.0, None):
        pass


def test_what_is_advised_without_a_measurement_is_what_runs_name_for_the_cpu() -> None:
    onnx, fixed = (Variant(level=Level.BASIC, style=style) for style in (Style.ONNX, Style.FIXED))
    runs = [RunConfig(variants=("basic-onnx",)), RunConfig(provider="nnapi", variants=("*",))]
    assert [named_for_cpu(variant, runs) for variant in (onnx, fixed)] == [True, False]
    assert named_for_cpu(fixed, [RunConfig()])
