"""What runs on a device: the probe, its library, and the script that starts it."""

from dataclasses import dataclass
from pathlib import Path

from device_runner import NO_TELEMETRY
from device_runner.device import DeviceFacts
from device_runner.library_facts import foreign_library
from device_runner.local import wheel_library
from device_runner.probe.build import HOST, build_probe
from device_runner.probe.elf import read_header

REMOTE_ROOT = "/data/local/tmp/ort-mobile"
"""Where everything of ours lies on a device: the shell user may write and execute there."""


RUN = f"""
rm -rf "$1" && mkdir -p "$1" && cd "$1" || exit 90
head -c "$2" > request || exit 91
echo $$ > pid
LD_LIBRARY_PATH="$4${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}" {NO_TELEMETRY} exec "$3" request
"""
"""Run folder, bytes of the request on standard input, probe, folder of libraries before those of the device itself."""


KILL = 'kill -9 "$(cat "$1/pid")"; rm -rf "$1"'


@dataclass(frozen=True, slots=True)
class Tools:
    """What runs on the device: the probe, and the library where a spec names none (Android has no default)."""

    probe: Path
    library: Path | None


def default_tools(facts: DeviceFacts) -> Tools:
    """Probe for a device's system and first ABI, and on Linux the wheel's library; raises RunnerError for none."""
    if facts.platform == "android":
        return Tools(build_probe(abi_of_tools(facts)), None)
    own = read_header(wheel_library()).abi
    if facts.abis[0] == own:
        return Tools(build_probe(HOST), wheel_library())
    target = {"arm64-v8a": "linux-aarch64"}.get(facts.abis[0], f"linux-{facts.abis[0]}")
    return Tools(build_probe(target), foreign_library(facts.abis[0]))


def abi_of_tools(facts: DeviceFacts) -> str:
    """The ABI of probe and library: the device's best one of 64 bits, else its best."""
    return next((abi for abi in facts.abis if abi in ("arm64-v8a", "x86_64")), facts.abis[0])
