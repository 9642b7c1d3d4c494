"""Which library each device of a campaign runs with."""

from device_runner.device import DeviceFacts
from pipeline.config import Platform, Target
from pipeline.job.bench import libraries_by_device

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
