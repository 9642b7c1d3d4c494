"""The devices of a campaign: found by name or selector, opened, and those that are not ready told with their reason."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from device_runner.device import Device, DeviceFacts, Readiness, open_device
from device_runner.errors import RunnerError, SpecError
from device_runner.selectors import is_selector
from pipeline.errors import MissingError
from pipeline.report.model import Skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Devices that are ready, their facts, and why the others are not used."""

    devices: dict[str, Device]
    facts: dict[str, DeviceFacts]
    unusable: tuple[Skipped, ...]


@contextlib.contextmanager
def opened(names: Sequence[str]) -> Iterator[Opened]:
    """Open the devices; those that cannot be used are left out with their reason.

    Raises SpecError for a name that no device can have, MissingError when no device is ready.
    """
    with contextlib.ExitStack() as stack:
        devices, facts, unusable = {}, {}, []
        for name in dict.fromkeys(expanded(names)):
            try:
                device = stack.enter_context(open_device(name))
                known = device.facts()
            except SpecError:
                raise
            except RunnerError as error:
                unusable.append(Skipped(device=name, reason=_told(error)))
                continue
            if known.readiness is not Readiness.READY:
                unusable.append(Skipped(device=name, reason=f"{known.readiness.value}: {known.advice}"))
                continue
            devices[device.name], facts[device.name] = device, known
        if not devices:
            raise MissingError(
                "no device is ready",
                where=", ".join(names),
                why="; ".join(f"{one.device}: {one.reason}" for one in unusable) or "none is connected",
                remedy="`ort-mobile devices` says what each one needs; `--convert-only` needs none",
            )
        yield Opened(devices=devices, facts=facts, unusable=tuple(unusable))


def expanded(names: Sequence[str]) -> list[str]:
    """The names with selectors such as `adb:*` or `adb:model=Pixel*,api=29-` replaced by the devices that they mean."""
    found: list[str] = []
    for name in names:
        scheme, _, rest = name.partition(":")
        if scheme == "adb" and is_selector(rest):
            from device_runner.adb.device import list_devices

            found += [facts.name for facts in list_devices(rest)]
        else:
            found.append(name)
    return found


def _told(error: RunnerError) -> str:
    return "; ".join(part for part in (error.what, error.why, error.remedy) if part)
