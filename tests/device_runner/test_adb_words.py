"""What a device is told and what it says: quoting checked against real shells, parsing checked against nonsense."""

import json
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runner.adb.link import LONGEST, Link, remote_command, script
from device_runner.adb.phone import facts_or_reason
from device_runner.device import GraphicsProcessor, Readiness
from device_runner.errors import SpecError
from device_runner.options import Denied, class_for, denial
from device_runner.result import FailureKind
from device_runner.shell_facts import free_bytes, parse_conditions, parse_facts, parse_gpu
from device_runner.spec import RunOptions

SHELLS = [shell for shell in ("sh", "dash", "bash", "mksh", "busybox") if shutil.which(shell)]
ARGUMENT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


@pytest.mark.parametrize("shell", SHELLS)
@given(
    arguments=st.lists(
        ARGUMENT | st.sampled_from(["", "-n", "$(id)", "`id`", "a'b\"c", "\n", "*", "~", "\\"]), max_size=5
    )
)
def test_arguments_arrive_in_any_shell(shell: str, arguments: list[str]) -> None:
    command = remote_command(["printf", "%s\\0", *arguments, "end"])
    argv = [shell, "sh", "-c", command] if shell == "busybox" else [shell, "-c", command]
    said = subprocess.run(argv, capture_output=True, check=True).stdout
    assert said.split(b"\0")[:-1] == [argument.encode() for argument in (*arguments, "end")]


@given(value=ARGUMENT)
def test_values_never_become_part_of_a_script(value: str) -> None:
    command = remote_command(script('printf "%s" "$1"', value))
    assert subprocess.run(["sh", "-c", command], capture_output=True, check=True).stdout == value.encode()


@pytest.mark.parametrize("arguments", [[], ["a\0b"], ["x" * (LONGEST + 1)], ["\ud800"]])
def test_what_no_command_line_can_carry(arguments: list[str]) -> None:
    with pytest.raises(SpecError):
        remote_command(arguments)


SAMSUNG = """Current Battery Service state:
  AC powered: true
  USB powered: false
  Wireless powered: false
  Max charging current: 0
  status: 5
  level: 43
  scale: 50
  temperature: -12
  mSavedBatteryAsoc: 96
"""


def test_battery_of_a_vendor_with_its_own_scale() -> None:
    conditions = parse_conditions({"battery": SAMSUNG, "power": "mWakefulness=Dozing"})
    assert (conditions.battery_percent, conditions.battery_celsius) == (86, -1.2)
    assert (conditions.charging, conditions.screen_on, conditions.thermal_status) == (True, False, None)


THERMAL = "/sys/class/thermal/thermal_zone"
ZONES = f"""{THERMAL}0/type:cpu-0-0
{THERMAL}1/type:cpu-0-0
{THERMAL}2/type:battery
{THERMAL}3/type:broken
{THERMAL}9/type:no temp
{THERMAL}0/temp:41500
{THERMAL}1/temp:43200
{THERMAL}2/temp:-40000
{THERMAL}3/temp:2147483647
{THERMAL}4/temp:30000
/etc/passwd:root
"""


def test_thermal_zones_of_one_name_are_the_hottest_and_what_is_no_temperature_is_left_out() -> None:
    assert parse_conditions({"zones": ZONES}).zones_celsius == {"cpu-0-0": 43.2}


def test_nothing_said_is_nothing_known() -> None:
    conditions = parse_conditions({})
    assert conditions == type(conditions)()
    assert parse_facts("adb:1", {}).api_level == 0


@pytest.mark.parametrize(
    ("text", "free"),
    [
        ("Filesystem     1K-blocks     Used Available Use% Mounted on\n/dev/x 100 40 60 40% /data\n", 60 * 1024),
        ("Filesystem 1K-blocks Used Available Use% Mounted on\n/dev/block/long/name\n 100 40 60 40% /data", 60 * 1024),
        ("df: /x: Permission denied", 0),
    ],
)  # fmt: skip
def test_free_space(text: str, free: int) -> None:
    assert free_bytes(text) == free


KEYS = st.sampled_from(
    ["ro.build.version.sdk", "ro.product.cpu.abilist", "ro.product.model", "meminfo", "page", "max_khz", "free",
     "battery", "thermal", "power", "now_khz", "zones", "machine", "gpu"]
)  # fmt: skip
NONSENSE = st.text(max_size=80) | st.sampled_from(["9" * 40, "-1", "level: 99999999999", "scale: 0", "\x1b[2J", "²"])


@given(st.dictionaries(KEYS, NONSENSE))
def test_a_device_may_say_anything(said: dict[str, str]) -> None:
    facts = parse_facts("adb:1", said)
    assert facts.model.isprintable()
    assert len(facts.model) <= 200
    assert facts.api_level >= 0
    assert facts.battery_percent is None or 0 <= facts.battery_percent <= 100


@pytest.mark.parametrize(
    ("state", "readiness", "advice"),
    [
        ("unauthorized", Readiness.UNAUTHORIZED, "dialog"),
        ("offline", Readiness.OFFLINE, "reconnect"),
        ("no permissions (user in plugdev group; are your udev rules wrong?)", Readiness.UNUSABLE, "udev"),
        ("rescue", Readiness.UNUSABLE, "rescue"),
    ],
)
def test_states_have_advice(state: str, readiness: Readiness, advice: str) -> None:
    facts = facts_or_reason(Link(("127.0.0.1", 1), "1"), "adb:1", state, "/")
    assert facts.readiness is readiness
    assert advice in facts.advice


VKJSON = json.dumps(
    {
        "devices": [
            {
                "properties": {
                    "apiVersion": (1 << 22) | (3 << 12) | 128, "deviceName": "Adreno (TM) 740",
                    "driverVersion": (512 << 22) | (744 << 12) | 6,
                },
                "VK_KHR_shader_float16_int8": {"shaderFloat16Int8FeaturesKHR": {"shaderFloat16": 1, "shaderInt8": 1}},
                "core11": {"features": {"storageBuffer16BitAccess": 1}},
            }
        ]
    }
)  # fmt: skip


def test_a_phone_tells_its_gpu_and_the_driver() -> None:
    gpu = parse_facts("adb:1", {"gpu": VKJSON}).gpu
    assert gpu == GraphicsProcessor(name="Adreno (TM) 740", driver="512.744.6", vulkan="1.3.128", shader_f16=True)
    no_half = parse_gpu(VKJSON.replace('"storageBuffer16BitAccess": 1', '"storageBuffer16BitAccess": 0'))
    assert no_half
    assert no_half.shader_f16 is False
    unknown = parse_gpu(VKJSON.replace("storageBuffer16BitAccess", "other"))
    assert unknown
    assert unknown.shader_f16 is None


@pytest.mark.parametrize(
    "text", ["", "cmd: Can't find service: gpu", "[]", '{"devices": [1]}', "{" * 9999, VKJSON[:200]]
)
def test_what_is_no_description_of_a_gpu_is_no_gpu(text: str) -> None:
    assert parse_gpu(text) is None


def test_what_crashes_on_a_gpu_is_denied_for_its_driver_alone() -> None:
    facts = parse_facts("adb:1", {"gpu": VKJSON, "ro.soc.model": "SM8550", "ro.build.version.sdk": "33"})
    options = RunOptions(provider="webgpu")
    entry = Denied(
        devices=class_for(facts, options), options=options, ort_version="1.29.0", kind=FailureKind.CRASH, message="",
        seen_at="2026-01-01",
    )  # fmt: skip
    newer = parse_facts(
        "adb:1",
        {"gpu": VKJSON.replace(str((512 << 22) | (744 << 12) | 6), str(600 << 22)), "ro.soc.model": "SM8550",
         "ro.build.version.sdk": "33"},
    )  # fmt: skip
    assert denial(facts, options, [entry])
    assert denial(newer, options, [entry]) is None
    assert class_for(facts, RunOptions()).gpu == ""
