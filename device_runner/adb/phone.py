"""A phone behind adb: which it is, whether it is ready, and what its NNAPI says of itself."""

import contextlib
from collections.abc import Sequence

import msgspec

from device_runner import device as runner_device
from device_runner import providers as runner_providers
from device_runner import shell_facts, untrusted_files
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

SECTIONS = {
    **shell_facts.SECTIONS,
    "nnapi": 'head -c 65536 "$root/nnapi-$(cat /proc/sys/kernel/random/boot_id)" | tr -d "\\000"',
    "probe": 'ls -t "$root"/store/*.probe',
}
"""With NNAPI's answer of this boot, and probes that lie there and can be asked for one."""


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
    answers = ask(link, SECTIONS, shell_facts.PROPERTIES, root)
    facts = shell_facts.parse_facts(name, answers)
    if not facts.abis:
        raise LinkError("the device does not say which processor it has")
    if facts.platform != "android" or facts.api_level < runner_providers.NNAPI_API_LEVEL:
        return msgspec.structs.replace(facts, nnapi=False)
    # NNAPI: as noted since the device started, else as a probe on it says; not known without one
    nnapi: protocol.NnapiAnswer | None = None
    with contextlib.suppress(msgspec.DecodeError):
        nnapi = untrusted_files.decode_json(answers.get("nnapi", "").encode("utf-8", "replace"), protocol.NnapiAnswer)
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
            name=shell_facts.one_line(device.name),
            type=runner_device.TYPES.get(device.type, runner_device.DriverType.OTHER),
            feature_level=device.level,
            version=shell_facts.one_line(device.version),
        )
        for device in nnapi.devices
        if facts.api_level >= runner_providers.NNAPI_DEVICES_API_LEVEL
    )
    return msgspec.structs.replace(facts, nnapi=nnapi.is_there, nnapi_devices=devices)


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
        f"{shell_facts.one_line(state)}: this user may not open the USB device; add a udev rule",
    )
    readiness, advice = STATES.get(
        state, permission if "permission" in state else (runner_device.Readiness.UNUSABLE, shell_facts.one_line(state))
    )
    return DeviceFacts(name=name, platform="android", readiness=readiness, advice=advice)
