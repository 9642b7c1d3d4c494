"""ABIs: the names that platforms and machines give them, and what of their processors decides on a graph."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Final

from pipeline.core.errors import ConfigError

ARM64: Final = "arm64-v8a"
ARM32: Final = "armeabi-v7a"
X86_64: Final = "x86_64"

ARM_ABIS = frozenset({ARM64, ARM32})

MACHINES: Mapping[str, str] = {"amd64": X86_64, "aarch64": ARM64, "arm64": ARM64, "armv7l": ARM32}
"""Names that machines and Apple's tools give to what Android has its own name for."""

PLATFORM_ABIS: Mapping[str, tuple[str, ...]] = {
    "android": (ARM64, ARM32, "x86", X86_64),
    "ios": ("arm64", X86_64),
    "macos": ("arm64", X86_64),
    "linux": (X86_64, "amd64", "aarch64", "arm64", "armv7l"),
}
"""Architectures by the names that each platform's tools use, the usual one first; x86_64 of iOS is the simulator's."""


def abi_of(name: str) -> str:
    """Android's name of an architecture, which also libraries are told by; an unknown name stays as it is."""
    return MACHINES.get(name, name)


def read_abi(name: str, option: str) -> str:
    """The ABI that a user gives to an option; ConfigError for a name that no platform has."""
    if abi_of(name) in PLATFORM_ABIS["android"]:
        return abi_of(name)
    abis = dict.fromkeys((*PLATFORM_ABIS["android"], *MACHINES))
    close = difflib.get_close_matches(name.lower(), abis, n=1)
    raise ConfigError(
        f"{option}: no ABI {name!r} is known",
        why=f"known are {', '.join(abis)}",
        remedy=f"did you mean {close[0]}?" if close else "name one of these",
    )


def abis_of_target(platform: str, named: Sequence[str]) -> tuple[str, ...]:
    """The ABIs of a target by Android's names; the platform's usual one where it names none."""
    return tuple(dict.fromkeys(abi_of(name) for name in named or PLATFORM_ABIS[platform][:1]))


def deciding_abi(abis: Sequence[str]) -> str:
    """The ABI whose rules count where there are several: phones are ARM, and an emulator's x86_64 stands beside it."""
    return next((abi for abi in abis if abi in ARM_ABIS), abis[0] if abis else X86_64)


INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


def as_int32(value: float, abi: str) -> int:
    """A whole f32 as the processor converts it to int32 (ep_rules C.2): what does not fit, and NaN, differs by ABI.

    ARM's fcvtzs gives the nearest bound, and 0 for NaN; x86's cvttss2si the lowest number for all of them.
    """
    if INT32_MIN <= value <= INT32_MAX:
        return int(value)
    if abi not in ARM_ABIS:
        return INT32_MIN
    return 0 if value != value else INT32_MAX if value > 0 else INT32_MIN


def wrapped_sum(left: int, right: int) -> int:
    """The sum of two int32 in 32 bits: the compiled code wraps around on both kinds of processors."""
    return (left + right - INT32_MIN) % 2**32 + INT32_MIN
