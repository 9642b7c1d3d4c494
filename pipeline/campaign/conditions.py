"""Whether a device is cool, charged and steady enough for the next run, and waiting until it is."""

import logging
import threading
import time
from collections.abc import Callable

from device_runner.device import Conditioned
from device_runner.errors import RunnerError
from device_runner.result import Conditions
from pipeline.config import ConditionsConfig


POLL_SECONDS = 5.0
"""Heat and charge change slowly."""

Rule = Callable[[ConditionsConfig, Conditions], str]


def _heat(wanted: ConditionsConfig, now: Conditions) -> str:
    hot = (now.thermal_status or 0) > wanted.max_thermal_status
    return f"thermal status {now.thermal_status}, at most {wanted.max_thermal_status} is wanted" if hot else ""


def _battery_heat(wanted: ConditionsConfig, now: Conditions) -> str:
    limit = wanted.max_battery_celsius
    hot = limit is not None and now.battery_celsius is not None and now.battery_celsius > limit
    return f"battery at {now.battery_celsius:g} °C, at most {limit:g} is wanted" if hot else ""


def _charge(wanted: ConditionsConfig, now: Conditions) -> str:
    low = now.battery_percent is not None and now.battery_percent < wanted.min_battery_percent
    return f"battery at {now.battery_percent} %, at least {wanted.min_battery_percent} is wanted" if low else ""


def _charging(wanted: ConditionsConfig, now: Conditions) -> str:
    if wanted.charging is None or now.charging in (None, wanted.charging):
        return ""
    return "not charging: plug it in" if wanted.charging else "charging: unplug it, or join it over the network"


RULES: tuple[Rule, ...] = (_heat, _battery_heat, _charge, _charging)


def unfit(wanted: ConditionsConfig, now: Conditions) -> list[str]:
    """What is not as wanted; what a device does not tell counts as it should be."""
    return [reason for rule in RULES if (reason := rule(wanted, now))]


def wait_until_fit(
    device: Conditioned, wanted: ConditionsConfig, stop: threading.Event, poll_seconds: float = POLL_SECONDS
) -> str:
    """Wait for the conditions, or `stop`; why the device must be left alone when they do not come in time, else "".

    A device that does not answer is for the next run to tell.
    """
    deadline = time.monotonic() + wanted.wait_seconds
    told = False
    while not stop.is_set():
        try:
            reasons = unfit(wanted, device.conditions())
        except RunnerError:
            return ""
        if not reasons:
            return ""
        if time.monotonic() >= deadline:
            return f"not fit for runs within {wanted.wait_seconds:g} s: {'; '.join(reasons)}"
        if not told:
            log.warning("%s: waits: %s", device.name, "; ".join(reasons))
        told = True
        stop.wait(min(poll_seconds, max(0.0, deadline - time.monotonic())))
    return ""


def arrange(device: Conditioned, wanted: ConditionsConfig) -> None:
    """Set what runs want of the device; a warning for what it cannot do. It restores everything when it is closed."""
    for reason in device.arrange(fixed_performance=wanted.stable, screen_on=wanted.keep_screen_on):
        log.warning("%s: %s", device.name, reason)
