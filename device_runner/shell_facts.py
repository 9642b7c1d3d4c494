"""What the shell of Android or Linux says of its device: commands, and the facts and conditions in what they print.

All of it is text of a stranger until it parses: what makes no sense counts as not said.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from device_runner import device as runner_device
from device_runner import result as run_result
from device_runner import untrusted_files
from device_runner.device import DeviceFacts

GPU_BYTES = 1 << 19
"""The most that is read of what Vulkan says of itself, some 100 KB."""

PROPERTIES = (
    "ro.build.version.sdk",
    "ro.build.version.release",
    "ro.product.cpu.abilist",
    "ro.product.manufacturer",
    "ro.product.model",
    "ro.soc.manufacturer",
    "ro.soc.model",
    "ro.board.platform",
    "ro.hardware.chipname",
    "ro.chipname",
    "ro.hardware",
    "ro.build.fingerprint",
    "ro.serialno",
)

SECTIONS = {
    "machine": "uname -m",
    "meminfo": "cat /proc/meminfo",
    "page": "getconf PAGE_SIZE",
    "max_khz": "cat /sys/devices/system/cpu/cpu[0-9]*/cpufreq/cpuinfo_max_freq",
    "free": 'df -k "$root" || df -k "${root%/*}"',
    "kernel": "uname -r",
    "battery": "dumpsys battery",
    "thermal": "dumpsys thermalservice",
    "gpu": f"cmd gpu vkjson | head -c {GPU_BYTES}",
}
"""Name to command; what a device does not have or allow gives nothing. `root` is a folder of ours there."""

CONDITIONS = {
    "battery": "dumpsys battery",
    "thermal": "dumpsys thermalservice",
    "power": "dumpsys power",
    "now_khz": "cat /sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq",
    "zones": "grep -H . /sys/class/thermal/thermal_zone*/type /sys/class/thermal/thermal_zone*/temp",
}

ZONE_FILE = re.compile(r"^(/sys/class/thermal/thermal_zone[0-9]{1,4}/(?:type|temp)):(.*)$", re.MULTILINE)

ABI_NAME = re.compile(r"[A-Za-z0-9_-]{2,20}")

ABI_OF_MACHINE = {"x86_64": "x86_64", "aarch64": "arm64-v8a", "armv7l": "armeabi-v7a", "i686": "x86"}


SERIAL = re.compile(r"^(?!unknown$|0+$)[A-Za-z0-9._-]{4,64}$")
"""By which a device can be told from others; emulators say `unknown`."""


def parse_gpu(text: str) -> runner_device.GraphicsProcessor | None:
    """The first GPU of `cmd gpu vkjson` (frameworks/native/vulkan/vkjson); None for what is no such document.

    WebGPU's shader-f16 needs shaderFloat16 and storageBuffer16BitAccess (Dawn, PhysicalDeviceVk.cpp).
    """
    try:
        document = untrusted_files.decode_json(text, dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    devices = document.get("devices")
    device = devices[0] if isinstance(devices, list) and devices and isinstance(devices[0], dict) else {}
    properties = device.get("properties")
    if not isinstance(properties, dict) or not isinstance(properties.get("deviceName"), str):
        return None
    switches = dict(_switches(device, depth=8))
    needed = [switches.get(key) for key in ("shaderFloat16", "storageBuffer16BitAccess")]
    # Packed versions of Vulkan (VK_VERSION_MAJOR and its like) as 512.744.0
    driver, vulkan = (
        f"{number >> 22}.{number >> 12 & 0x3FF}.{number & 0xFFF}"
        if isinstance(number, int) and 0 < number < 1 << 32
        else ""
        for number in (properties.get("driverVersion"), properties.get("apiVersion"))
    )
    return runner_device.GraphicsProcessor(
        name=one_line(properties["deviceName"]),
        driver=driver,
        vulkan=vulkan,
        shader_f16=None if None in needed else all(needed),
    )


def _switches(value: Any, depth: int) -> Iterator[tuple[str, bool]]:
    """Every number and truth value in a document by its key, wherever releases of Android put it."""
    for key, inner in value.items() if isinstance(value, dict) and depth else ():
        if isinstance(inner, (int, bool)):
            yield str(key), bool(inner)
        yield from _switches(inner, depth - 1)


def parse_facts(name: str, answers: dict[str, str]) -> DeviceFacts:
    """Facts from what a device said; what makes no sense counts as not said."""
    api_level = _number_in(r"\A(\d{1,9})\Z", answers.get("ro.build.version.sdk", "")) or 0
    listed = [abi for abi in answers.get("ro.product.cpu.abilist", "").split(",")[:16] if ABI_NAME.fullmatch(abi)]
    machine = ABI_OF_MACHINE.get(answers.get("machine", ""), answers.get("machine", ""))
    conditions = parse_conditions(answers)
    return DeviceFacts(
        name=name,
        platform="android" if api_level else "linux",
        manufacturer=one_line(answers.get("ro.product.manufacturer", "")),
        model=one_line(answers.get("ro.product.model", "")),
        soc=one_line(
            f"{answers.get(runner_device.SOC_MAKER, '')} "
            f"{next(filter(None, map(answers.get, runner_device.SOC_PROPERTIES)), '')}"
        ),
        abis=tuple(listed or filter(ABI_NAME.fullmatch, [machine])),
        api_level=api_level,
        os_release=one_line(answers.get("ro.build.version.release", "") or answers.get("kernel", "")),
        fingerprint=one_line(answers.get("ro.build.fingerprint", "")),
        serial="".join(SERIAL.findall(answers.get("ro.serialno", ""))[:1]),
        core_max_mhz=_mhz(answers.get("max_khz", "")),
        memory_bytes=(_number_in(r"MemTotal:\s*(\d+) kB", answers.get("meminfo", "")) or 0) * 1024,
        page_bytes=_number_in(r"\A(\d{1,9})\Z", answers.get("page", "")) or 0,
        free_bytes=free_bytes(answers.get("free", "")),
        battery_percent=conditions.battery_percent,
        charging=conditions.charging,
        thermal_status=conditions.thermal_status,
        gpu=parse_gpu(answers.get("gpu", "")),
    )


def parse_conditions(answers: dict[str, str]) -> run_result.Conditions:
    """Conditions from `dumpsys battery`, `thermalservice` and `power`, and Linux's files; None for what is not said."""
    battery = answers.get("battery", "")
    level, scale = _number_in(r"^[ \t]*level: ([0-9]+)", battery), _number_in(r"^[ \t]*scale: ([0-9]+)", battery) or 100
    tenths = _number_in(r"^[ \t]*temperature: (-?[0-9]+)", battery)
    plugs = r"^[ \t]*(?:AC|USB|Wireless|Dock) powered: (true|false)"
    powered: list[str] = re.findall(plugs, battery, re.MULTILINE)
    awake = re.search(r"mWakefulness=(\w+)", answers.get("power", ""))
    return run_result.Conditions(
        thermal_status=_number_in(r"^Thermal Status: ([0-9])", answers.get("thermal", "")),
        battery_percent=None if level is None else min(100, level * 100 // scale),
        battery_celsius=None if tenths is None else tenths / 10,
        charging="true" in powered if powered else None,
        screen_on=awake and awake.group(1) == "Awake",
        cpu_mhz=_mhz(answers.get("now_khz", "")),
        zones_celsius=runner_device.zones_celsius(ZONE_FILE.findall(answers.get("zones", "")[:100_000])),
    )


def free_bytes(df: str) -> int:
    """Free bytes by the last line of `df -k`; 0 when it does not tell. A long name may stand on a line of its own."""
    numbers = re.findall(r"([0-9]{1,15})\s+([0-9]{1,15})\s+([0-9]{1,15})\s+[0-9]{1,3}%", df[:100_000])
    return int(numbers[-1][2]) * 1024 if numbers else 0


def one_line(text: str) -> str:
    """One short printable line."""
    return "".join(char for char in " ".join(text.split()) if char.isprintable())[:200]


def _mhz(text: str) -> tuple[int, ...]:
    return tuple(int(khz) // 1000 for khz in text.split()[:1024] if re.fullmatch(r"\d{3,9}", khz))


def _number_in(pattern: str, text: str) -> int | None:
    match = re.search(pattern, text[:100_000], re.MULTILINE)
    return int(match.group(1)[:10]) if match else None
