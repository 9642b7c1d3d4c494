"""A phone behind adb: what it and its NNAPI say of themselves, which is text until it parses."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from device_runner import device as runner_device
from device_runner import files as runner_files
from device_runner import providers as runner_providers
from device_runner import result as run_result
from device_runner.adb.link import Link, LinkError, LinkLost, LinkTimeout, script
from device_runner.device import DeviceFacts
from device_runner.probe import protocol
from device_runner.result import Status

SUFFIX = ".probe"
"""Of the probe's name on the device, by which it is found again."""

ASK_SECONDS = 10.0
"""A driver that takes longer to name its devices is ended, and its devices stay unknown."""

ASK = """
request=$1/.inspect-$$
head -c "$2" > "$request" || exit 91
"$3" "$request"
rm -f "$request"
"""
"""Root, bytes of the request on standard input, probe."""

NOTE = """
boot=$(cat /proc/sys/kernel/random/boot_id) && rm -f "$1"/nnapi-* || exit 1
printf %s "$2" > "$1/.nnapi-$$" && mv -f "$1/.nnapi-$$" "$1/nnapi-$boot"
"""
"""Root and answer. An answer of an earlier boot is of other drivers, perhaps."""

GPU_BYTES = 1 << 19
"""The most that is read of what Vulkan says of itself, some 100 KB."""


def parse_gpu(text: str) -> runner_device.GraphicsProcessor | None:
    """The first GPU of `cmd gpu vkjson` (frameworks/native/vulkan/vkjson); None for what is no such document.

    WebGPU's shader-f16 needs shaderFloat16 and storageBuffer16BitAccess (Dawn, PhysicalDeviceVk.cpp).
    """
    try:
        document = runner_files.decode_json(text, dict[str, Any])
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
        name=_line(properties["deviceName"]),
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
    "nnapi": 'head -c 65536 "$root/nnapi-$(cat /proc/sys/kernel/random/boot_id)" | tr -d "\\000"',
    "probe": 'ls -t "$root"/store/*.probe',
}
"""Name to command; what a device does not have or allow gives nothing. The last two: NNAPI's answer of this boot, and
probes that lie there and can be asked for one."""

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


def ask(link: Link, sections: dict[str, str], properties: Sequence[str] = (), root: str = "/") -> dict[str, str]:
    """Output of each section and value of each property, all in one round trip. Raises LinkError."""
    lines = ["root=$1; shift", 'for key in "$@"; do getprop "$key" 2>/dev/null; printf "\\0"; done']
    lines += [f'{{ {command}; }} 2>/dev/null; printf "\\0"' for command in sections.values()]
    output = link.shell(script("\n".join(lines), root, *properties), seconds=30.0)
    text = output.stdout.decode("utf-8", "replace")
    values = [part.strip() for part in text.split("\0")]
    if output.returncode or len(values) != len(properties) + len(sections) + 1:
        raise LinkError(f"the device answers nonsense: {text[:100]!r} {output.stderr[:200]!r}")
    return dict(zip((*properties, *sections), values, strict=False))


def read_facts(link: Link, name: str, root: str, probe: str = "") -> DeviceFacts:
    """What the device is; NNAPI is asked by this probe on it, or by one that lies there. Raises LinkError."""
    answers = ask(link, SECTIONS, PROPERTIES, root)
    facts = parse_facts(name, answers)
    if not facts.abis:
        raise LinkError("the device does not say which processor it has")
    if facts.platform != "android" or facts.api_level < runner_providers.NNAPI_API_LEVEL:
        return msgspec.structs.replace(facts, nnapi=False)
    # NNAPI: as noted since the device started, else as a probe on it says; not known without one
    nnapi: protocol.NnapiAnswer | None = None
    with contextlib.suppress(msgspec.DecodeError):
        nnapi = runner_files.decode_json(answers.get("nnapi", "").encode("utf-8", "replace"), protocol.NnapiAnswer)
    probe = probe or next(iter(answers.get("probe", "").splitlines()), "")
    if nnapi is None and probe.startswith(f"{root}/store/"):
        # A driver's crash or hang ends a child of the probe. That counts as an answer without devices, noted on the
        # device: who asked again would meet the same. A probe that failed before it had opened NNAPI says nothing of
        # the device, and nothing is noted.
        request = protocol.encode_inspection(limit_seconds=ASK_SECONDS, watch_stdin=True)
        with contextlib.suppress(LinkError):
            output = link.shell(script(ASK, root, str(len(request)), probe), stdin=request, seconds=ASK_SECONDS + 5.0)
            answer = protocol.decode_answer(output.stdout)
            if isinstance(answer, protocol.ProbeAnswer) and (answer.status is Status.OK or answer.nnapi.is_there):
                named = answer.nnapi.devices if answer.status is Status.OK else ()
                nnapi = msgspec.structs.replace(answer.nnapi, devices=named)
                link.shell(script(NOTE, root, msgspec.json.encode(nnapi).decode()))
    if nnapi is None:
        return facts
    devices = tuple(
        runner_device.NnapiDevice(
            name=_line(device.name),
            type=runner_device.TYPES.get(device.type, runner_device.DriverType.OTHER),
            feature_level=device.level,
            version=_line(device.version),
        )
        for device in nnapi.devices
        if facts.api_level >= runner_providers.NNAPI_DEVICES_API_LEVEL
    )
    return msgspec.structs.replace(facts, nnapi=nnapi.is_there, nnapi_devices=devices)


def parse_facts(name: str, answers: dict[str, str]) -> DeviceFacts:
    """Facts from what a device said; what makes no sense counts as not said."""
    api_level = _number_in(r"\A(\d{1,9})\Z", answers.get("ro.build.version.sdk", "")) or 0
    listed = [abi for abi in answers.get("ro.product.cpu.abilist", "").split(",")[:16] if ABI_NAME.fullmatch(abi)]
    machine = ABI_OF_MACHINE.get(answers.get("machine", ""), answers.get("machine", ""))
    conditions = parse_conditions(answers)
    return DeviceFacts(
        name=name,
        platform="android" if api_level else "linux",
        manufacturer=_line(answers.get("ro.product.manufacturer", "")),
        model=_line(answers.get("ro.product.model", "")),
        soc=_line(
            f"{answers.get(runner_device.SOC_MAKER, '')} "
            f"{next(filter(None, map(answers.get, runner_device.SOC_PROPERTIES)), '')}"
        ),
        abis=tuple(listed or filter(ABI_NAME.fullmatch, [machine])),
        api_level=api_level,
        os_release=_line(answers.get("ro.build.version.release", "") or answers.get("kernel", "")),
        fingerprint=_line(answers.get("ro.build.fingerprint", "")),
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


def _line(text: str) -> str:
    """One short printable line."""
    return "".join(char for char in " ".join(text.split()) if char.isprintable())[:200]


def _mhz(text: str) -> tuple[int, ...]:
    return tuple(int(khz) // 1000 for khz in text.split()[:1024] if re.fullmatch(r"\d{3,9}", khz))


def _number_in(pattern: str, text: str) -> int | None:
    match = re.search(pattern, text[:100_000], re.MULTILINE)
    return int(match.group(1)[:10]) if match else None


SERIAL = re.compile(r"^(?!unknown$|0+$)[A-Za-z0-9._-]{4,64}$")
"""By which a device can be told from others; emulators say `unknown`."""

STATES: dict[str, tuple[runner_device.Readiness, str]] = {
    "device": (runner_device.Readiness.READY, ""),
    "unauthorized": (runner_device.Readiness.UNAUTHORIZED, "unauthorized: unlock the device and accept the dialog"),
    "authorizing": (runner_device.Readiness.UNAUTHORIZED, "waiting for the device: unlock it and accept the dialog"),
    "offline": (runner_device.Readiness.OFFLINE, "offline: plug it in again, or `adb reconnect offline`"),
    "connecting": (runner_device.Readiness.OFFLINE, "still connecting: try again in a moment"),
    "bootloader": (runner_device.Readiness.UNUSABLE, "in its bootloader: start Android on it"),
    "recovery": (runner_device.Readiness.UNUSABLE, "in recovery: start Android on it"),
    "sideload": (runner_device.Readiness.UNUSABLE, "in sideload: start Android on it"),
}
"""The adb server's word for a device to ours, and what to do."""


def facts_or_reason(link: Link, name: str, state: str, root: str) -> DeviceFacts:
    """Facts of a listed device, or why it gives none."""
    if state == "device":
        try:
            return read_facts(link, name, root)
        except LinkTimeout:
            state = "does not answer"
        except LinkLost:
            state = "offline"
        except LinkError as error:
            state = str(error)
    permission = (
        runner_device.Readiness.UNUSABLE,
        f"{_line(state)}: this user may not open the USB device; add a udev rule",
    )
    readiness, advice = STATES.get(
        state, permission if "permission" in state else (runner_device.Readiness.UNUSABLE, _line(state))
    )
    return DeviceFacts(name=name, platform="android", readiness=readiness, advice=advice)
