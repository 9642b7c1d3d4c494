"""Devices, one a row."""

from collections.abc import Callable, Sequence

from device_runner import device as runner_device
from device_runner.device import DeviceFacts
from pipeline.report import wording
from pipeline.report.wording import Listing


def _processor(facts: DeviceFacts) -> str:
    cores = f"{len(facts.core_max_mhz)} cores to {max(facts.core_max_mhz) / 1000:.1f} GHz" if facts.core_max_mhz else ""
    return ", ".join(part for part in (facts.soc, cores) if part)


def _state(facts: DeviceFacts) -> str:
    if facts.readiness is not runner_device.Readiness.READY:
        return facts.advice or facts.readiness.value
    notes = ["ready"]
    if facts.platform == "android" and 0 < facts.api_level < 27:
        notes.append(f"API {facts.api_level}: NNAPI needs 27")
    if 0 < facts.free_bytes < 2**28:
        notes.append("little space")
    if (facts.thermal_status or 0) >= 2:
        notes.append("hot: numbers will be throttled")
    return "; ".join(notes)


DEVICE_COLUMNS: tuple[tuple[str, Callable[[DeviceFacts], str]], ...] = (
    ("device", lambda facts: facts.name),
    ("model", lambda facts: f"{facts.manufacturer} {facts.model}".strip()),
    ("processor", _processor),
    ("ABIs", lambda facts: ", ".join(facts.abis)),
    (
        "system",
        lambda facts: (
            f"{facts.platform} {facts.os_release}{f' (API {facts.api_level})' if facts.api_level else ''}".strip()
        ),
    ),
    ("memory", lambda facts: f"{facts.memory_bytes / 2**30:.1f} GiB" if facts.memory_bytes else ""),
    (
        "battery",
        lambda facts: (
            "" if facts.battery_percent is None else f"{facts.battery_percent} %{' charging' if facts.charging else ''}"
        ),
    ),
    ("NNAPI", wording.nnapi_devices),
    ("GPU", wording.gpu),
    ("state", _state),
)


def device_listing(devices: Sequence[DeviceFacts]) -> Listing:
    """One row a device, without columns that are empty everywhere."""
    rows = [[text(facts) for _, text in DEVICE_COLUMNS] for facts in devices]
    kept = [index for index in range(len(DEVICE_COLUMNS)) if any(row[index] for row in rows)]
    return Listing(
        title="",
        head=tuple(DEVICE_COLUMNS[index][0] for index in kept),
        rows=tuple(tuple(row[index] for index in kept) for row in rows),
    )
