"""What the app for iPhones writes of its device: KEY VALUE on a line each (templates/Device.swift)."""

from device_runner import result as run_result
from device_runner import safe_text
from device_runner.device import DeviceFacts

LINE = 200
"""The most characters that count of a value."""


def facts_of(content: bytes, name: str) -> DeviceFacts:
    """What a session says of its device; what makes no sense counts as not said."""
    words = _words(content)
    abi = words.get("abi", "")
    return DeviceFacts(
        name=name,
        platform=words.get("platform", ""),
        manufacturer="Apple" if words.get("platform") == "ios" else "",
        model=words.get("model", ""),
        soc=words.get("model", ""),
        abis=(abi,) if abi.isidentifier() else (),
        os_release=words.get("system", ""),
        fingerprint=words.get("identity", ""),
        memory_bytes=_number(words, "memory") or 0,
        nnapi=False,
    )


def conditions_of(content: bytes) -> run_result.Conditions:
    """The state around a turn."""
    words = _words(content)
    return run_result.Conditions(
        thermal_status=_number(words, "thermal"),
        battery_percent=_number(words, "battery"),
        charging=_truth(words, "charging"),
        low_power=_truth(words, "low_power"),
        quality_of_service=_number(words, "quality_of_service"),
    )


def process_of(content: bytes) -> str:
    """What the process of a turn is called."""
    return _words(content).get("process", "")


def _words(content: bytes) -> dict[str, str]:
    lines = content.decode("utf-8", "replace").splitlines()[:100]
    pairs = (safe_text.visible(line).partition(" ") for line in lines)
    return {key: value.strip()[:LINE] for key, _, value in pairs}


def _number(words: dict[str, str], key: str) -> int | None:
    text = words.get(key, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < len("1" + "0" * 15) else None


def _truth(words: dict[str, str], key: str) -> bool | None:
    return {"true": True, "false": False}.get(words.get(key, ""))
