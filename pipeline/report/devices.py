"""Devices as a table in the terminal."""

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from device_runner.device import DeviceFacts, Readiness
from pipeline.report import wording
from pipeline.report.console import open_console


def _processor(facts: DeviceFacts) -> str:
    cores = f"{len(facts.core_max_mhz)} cores to {max(facts.core_max_mhz) / 1000:.1f} GHz" if facts.core_max_mhz else ""
    return ", ".join(part for part in (facts.soc, cores) if part)


def _system(facts: DeviceFacts) -> str:
    api = f" (API {facts.api_level})" if facts.api_level else ""
    return f"{facts.platform} {facts.os_release}{api}".strip()


def _memory(facts: DeviceFacts) -> str:
    return f"{facts.memory_bytes / 2**30:.1f} GiB" if facts.memory_bytes else ""


def _battery(facts: DeviceFacts) -> str:
    charging = " charging" if facts.charging else ""
    return "" if facts.battery_percent is None else f"{facts.battery_percent} %{charging}"


def _state(facts: DeviceFacts) -> str:
    if facts.readiness is not Readiness.READY:
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
    ("system", _system),
    ("memory", _memory),
    ("battery", _battery),
    ("NNAPI", wording.nnapi_devices),
    ("state", _state),
)


def show_devices(devices: Sequence[DeviceFacts], console: Console | None = None) -> None:
    """Print one row a device, without columns that are empty everywhere; control characters are written out."""
    table = Table(box=None, pad_edge=False)
    rows = [[text(facts) for _, text in DEVICE_COLUMNS] for facts in devices]
    kept = [index for index in range(len(DEVICE_COLUMNS)) if any(row[index] for row in rows)]
    for index in kept:
        table.add_column(DEVICE_COLUMNS[index][0], overflow="fold")
    for row in rows:
        table.add_row(*(Text(wording.visible(row[index])) for index in kept))
    (console or open_console()).print(table)
