"""ABIs: their names, the one that decides, and int32 as processors make it."""

import pytest

from pipeline.core.abis import abis_of_target, as_int32, deciding_abi, read_abi, wrapped_sum
from pipeline.core.errors import ConfigError


@pytest.mark.parametrize(
    ("platform", "named", "expected"),
    [("linux", ("aarch64",), ("arm64-v8a",)), ("android", (), ("arm64-v8a",)), ("linux", (), ("x86_64",)),
     ("ios", ("arm64", "x86_64"), ("arm64-v8a", "x86_64"))],
)  # fmt: skip
def test_a_target_has_the_abis_it_names_or_the_platforms_usual_one(
    platform: str, named: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert abis_of_target(platform, named) == expected


def test_an_arm_target_decides_beside_an_emulators() -> None:
    assert deciding_abi(["x86_64", "armeabi-v7a", "arm64-v8a"]) == "armeabi-v7a"
    assert deciding_abi(["x86"]) == "x86"
    assert deciding_abi([]) == "x86_64"


def test_an_unknown_abi_is_an_error_that_names_the_close_one() -> None:
    assert read_abi("aarch64", "--abi") == "arm64-v8a"
    with pytest.raises(ConfigError, match="--abi") as caught:
        read_abi("arm64-v8", "--abi")
    assert "arm64-v8a" in caught.value.remedy


@pytest.mark.parametrize(
    ("value", "arm", "x86"),
    [
        (-7.0, -7, -7),
        (2147483520.0, 2147483520, 2147483520),
        (2147483648.0, 2**31 - 1, -(2**31)),
        (-3e38, -(2**31), -(2**31)),
        (float("inf"), 2**31 - 1, -(2**31)),
        (float("nan"), 0, -(2**31)),
    ],
)
def test_what_does_not_fit_into_int32_differs_by_processor(value: float, arm: int, x86: int) -> None:
    assert (as_int32(value, "arm64-v8a"), as_int32(value, "x86_64")) == (arm, x86)
    assert (as_int32(value, "armeabi-v7a"), as_int32(value, "x86")) == (arm, x86)


def test_sums_wrap_around() -> None:
    assert wrapped_sum(2**31 - 1, 1) == -(2**31)
    assert wrapped_sum(-(2**31), -128) == 2**31 - 128
    assert wrapped_sum(5, -8) == -3
