"""NNAPI of a device as the probe on it tells, asked once a boot: the answer stays beside what was pushed."""

import contextlib

import msgspec

from device_runner.adb.link import Link, LinkError
from device_runner.adb.quote import script
from device_runner.device import DeviceFacts
from device_runner.nnapi import DEVICES_API_LEVEL, NNAPI_API_LEVEL, TYPES, DriverType, NnapiDevice
from device_runner.probe.protocol import NnapiAnswer, ProbeAnswer, decode_answer, encode_inspection
from device_runner.result import Status

NNAPI_SECTIONS = {
    "nnapi": 'head -c 65536 "$root/nnapi-$(cat /proc/sys/kernel/random/boot_id)" | tr -d "\\000"',
    "probe": 'ls -t "$root"/store/*.probe',
}
"""What to ask a device together with its other facts: the answer of this boot, and probes that lie there."""

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


def add_nnapi(link: Link, facts: DeviceFacts, said: dict[str, str], root: str, probe: str = "") -> DeviceFacts:
    """Facts with NNAPI in them: as noted since the device started, else as a probe on it says; unknown without one."""
    if facts.platform != "android" or facts.api_level < NNAPI_API_LEVEL:
        return msgspec.structs.replace(facts, nnapi=False)
    told = _noted(said.get("nnapi", ""))
    probe = probe or next(iter(said.get("probe", "").splitlines()), "")
    if told is None and probe.startswith(f"{root}/store/"):
        told = _ask(link, root, probe)
    if told is None:
        return facts
    devices = _shown(told) if facts.api_level >= DEVICES_API_LEVEL else ()
    return msgspec.structs.replace(facts, nnapi=told.found, nnapi_devices=devices)


def _shown(told: NnapiAnswer) -> tuple[NnapiDevice, ...]:
    """The devices as facts; kinds that are not known count as other."""
    return tuple(
        NnapiDevice(
            name=_line(device.name),
            type=TYPES.get(device.type, DriverType.OTHER),
            feature_level=device.level,
            version=_line(device.version),
        )
        for device in told.devices
    )


def _noted(text: str) -> NnapiAnswer | None:
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(text.encode("utf-8", "replace"), type=NnapiAnswer)
    return None


def _ask(link: Link, root: str, probe: str) -> NnapiAnswer | None:
    """The probe's answer, noted on the device; None when there is none.

    A driver's crash or hang ends a child of the probe. That counts as an answer without devices: who asked again would
    meet the same. A probe that failed before it had opened NNAPI says nothing of the device, and nothing is noted.
    """
    request = encode_inspection(limit_seconds=ASK_SECONDS, watch_stdin=True)
    with contextlib.suppress(LinkError):
        output = link.shell(script(ASK, root, str(len(request)), probe), stdin=request, seconds=ASK_SECONDS + 5.0)
        answer = decode_answer(output.stdout)
        if isinstance(answer, ProbeAnswer) and (answer.status is Status.OK or answer.nnapi.found):
            named = answer.nnapi.devices if answer.status is Status.OK else ()
            told = msgspec.structs.replace(answer.nnapi, devices=named)
            link.shell(script(NOTE, root, msgspec.json.encode(told).decode()))
            return told
    return None
