"""The programs of a package that the shell of Android and Linux runs, and what they write of the device."""

import msgspec

from device_runner import result as run_result
from device_runner import shell_facts
from device_runner.device import DeviceFacts
from pipeline import config as configs

FACTS = {name: shell_facts.SECTIONS[name] for name in ("machine", "page", "max_khz", "kernel", "gpu")}
FACTS |= {"meminfo": "grep MemTotal: /proc/meminfo"}
"""What is asked of a device beside its properties: nothing that changes from one minute to the next, since a session
that goes on compares it."""

CONDITIONS = {**shell_facts.CONDITIONS, "power": "dumpsys power | grep mWakefulness="}

RUN = """#!/bin/sh
# Runs what of `turns` has no result yet, each in a process of its own, and writes all into session/. It may be killed
# and started again. It needs no network, and nothing but this folder and the shell of Android or Linux.
cd "${{0%/*}}" || exit 2
probe=${{PROBE:-./probe}}
chmod 755 "$probe" 2>/dev/null
mkdir -p session || exit 2
{{
{facts}
}} > session/device.now 2>/dev/null
if [ -f session/device ] && ! cmp -s session/device session/device.now; then
  echo "this session was begun on another device or system: move session/ away to begin a new one" >&2
  exit 4
fi
mv session/device.now session/device
[ -f session/package ] || cp package session/package
[ -f session/session ] || cat /proc/sys/kernel/random/uuid > session/session
libraries=${{LIBRARIES:-$PWD/lib}}
export LD_LIBRARY_PATH="$libraries${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}" ORT_DISABLE_TELEMETRY=1
"$probe" turns . {wait_seconds}
code=$?
case $code in
  0) echo "all turns have ended: bring the folder session/ home and collect it" ;;
  3) echo "another runner is at work in this folder" >&2 ;;
  *) echo "the turns could not be run ($code)" >&2 ;;
esac
exit $code
"""
"""Exit codes: those of `probe turns`, and 4 for a session of another device.

Where the probe and the libraries may not lie in this folder, PROBE and LIBRARIES say where they are.
"""

STATE = """# What the device says of itself around a run, each part ended by a NUL; 75 while it is not fit to begin one.
part() {{ printf '%s\\0' "$1"; }}
number() {{ printf '%s\\n' "$2" | sed -n "s/^[[:blank:]]*$1: *\\([0-9][0-9]*\\).*/\\1/p" | head -n 1; }}
battery=$({battery} 2>/dev/null)
thermal=$({thermal} 2>/dev/null)
part "$battery"; part "$thermal"
{others}
status=$(number 'Thermal Status' "$thermal") level=$(number level "$battery") tenths=$(number temperature "$battery")
powered=$(printf '%s\\n' "$battery" | grep -c 'powered: true')
[ "${{status:-0}}" -le {max_thermal_status} ] || exit 75
[ "${{level:-100}}" -ge {min_battery_percent} ] || exit 75
{more}exit 0
"""


def run_script(plan_wait_seconds: int) -> str:
    """run.sh of a package."""
    lines = [f"getprop {name}; printf '\\0'" for name in shell_facts.PROPERTIES]
    lines += [f"{command}; printf '\\0'" for command in FACTS.values()]
    return RUN.format(facts="\n".join(lines), wait_seconds=plan_wait_seconds)


STATE_FILES = {name: f"cat ../state.{name}" for name in ("battery", "thermal", "power")}
"""What asks in place of dumpsys, which answers the shell and no app: the app writes these files."""


def state_script(limits: configs.ConditionsConfig, *, of_app: bool = False) -> str:
    """state.sh of a package, which waits for these conditions; that `of_app` runs inside one."""
    commands = {**CONDITIONS, **(STATE_FILES if of_app else {})}
    others = [f'part "$({command} 2>/dev/null)"' for name, command in commands.items() if name not in STATED]
    more = ""
    if limits.max_battery_celsius is not None:
        more += f'[ "${{tenths:-0}}" -le {round(10 * limits.max_battery_celsius)} ] || exit 75\n'
    if limits.charging is not None:
        wanted = "-gt" if limits.charging else "-eq"
        more += f'[ -z "$battery" ] || [ "$powered" {wanted} 0 ] || exit 75\n'
    return STATE.format(
        battery=commands["battery"],
        thermal=commands["thermal"],
        others="\n".join(others),
        max_thermal_status=limits.max_thermal_status,
        min_battery_percent=limits.min_battery_percent,
        more=more,
    )


STATED = ("battery", "thermal")
"""Of CONDITIONS, what state.sh decides by."""


def facts_of(content: bytes, name: str) -> DeviceFacts:
    """What a session says of its device; what makes no sense counts as not said."""
    facts = shell_facts.parse_facts(name, _answers((*shell_facts.PROPERTIES, *FACTS), content))
    return msgspec.structs.replace(facts, nnapi=None if facts.platform == "android" else False)


def conditions_of(content: bytes) -> run_result.Conditions:
    """The state that state.sh has written."""
    return shell_facts.parse_conditions(
        _answers((*STATED, *(part for part in CONDITIONS if part not in STATED)), content)
    )


def _answers(names: tuple[str, ...], content: bytes) -> dict[str, str]:
    parts = content.decode("utf-8", "replace").split("\0")
    return {name: part.strip() for name, part in zip(names, parts, strict=False)}
