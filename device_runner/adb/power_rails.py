"""Energy by power rail of a phone, out of perfetto's data source `android.power`: Pixels have some from the 6 on.

https://perfetto.dev/docs/data-sources/battery-counters; the numbers are fields of perfetto_trace.proto.
"""

from collections.abc import Iterator
from enum import IntEnum

from google.protobuf import empty_pb2, unknown_fields
from google.protobuf.message import DecodeError

from device_runner import result as run_result
from device_runner import shell_facts
from device_runner.adb import link as adb_link

CONFIG = b"""
buffers { size_kb: 256 }
data_sources {
  config { name: "android.power" android_power_config { battery_poll_ms: 250 collect_power_rails: true } }
}
duration_ms: 1000
"""
"""Four readings: the first has the names of the rails."""

COMMAND = 'head -c "$1" | perfetto --config - --txt --out -'
"""Bytes of CONFIG, which it reads on standard input; that is held open behind it."""

SECONDS = 20.0
TRACE_BYTES = 1 << 20
RAILS_MAX = 64


class TraceField(IntEnum):
    """Fields of a trace and its messages that are read here."""

    PACKET = 1
    POWER_RAILS = 40


class RailField(IntEnum):
    """Fields of PowerRails."""

    DESCRIPTOR = 1
    ENERGY = 2


class DescriptorField(IntEnum):
    """Fields of PowerRails.RailDescriptor."""

    INDEX = 1
    NAME = 2


class EnergyField(IntEnum):
    """Fields of PowerRails.EnergyData; time since the device started, energy in µWs since then."""

    INDEX = 1
    TIMESTAMP_MS = 2
    ENERGY = 3


def read_rails(link: adb_link.Link) -> dict[str, run_result.RailReading]:
    """The last reading of each rail by its name; none where a device has no perfetto or no rails. Raises LinkError."""
    output = link.shell(
        adb_link.script(COMMAND, str(len(CONFIG))), stdin=CONFIG, seconds=SECONDS, limit_bytes=TRACE_BYTES
    )
    return parse_trace(output.stdout)


def parse_trace(trace: bytes) -> dict[str, run_result.RailReading]:
    """The last reading of each rail that has a name in a trace; none of what is no trace."""
    names: dict[int, str] = {}
    readings: dict[int, run_result.RailReading] = {}
    try:
        for packet in _messages(trace, TraceField.PACKET):
            for rails in _messages(packet, TraceField.POWER_RAILS):
                for descriptor in _messages(rails, RailField.DESCRIPTOR):
                    fields = _fields(descriptor)
                    name = fields.get(DescriptorField.NAME, b"")
                    if isinstance(name, bytes) and len(names) < RAILS_MAX:
                        text = shell_facts.one_line(name.decode("utf-8", "replace"))
                        names[_number(fields, DescriptorField.INDEX)] = text
                for energy in _messages(rails, RailField.ENERGY):
                    fields = _fields(energy)
                    at_ms = _number(fields, EnergyField.TIMESTAMP_MS)
                    microjoules = _number(fields, EnergyField.ENERGY)
                    index = _number(fields, EnergyField.INDEX)
                    if index in names and (index not in readings or readings[index].at_ms <= at_ms):
                        readings[index] = run_result.RailReading(at_ms=at_ms, microjoules=microjoules)
    except DecodeError:
        return {}
    return {names[index]: reading for index, reading in readings.items() if names[index]}


def _fields(message: bytes) -> dict[int, bytes | int]:
    """The fields of a message whose type is not known here by their numbers; the last of several."""
    parsed = empty_pb2.Empty.FromString(message)
    return {field.field_number: field.data for field in unknown_fields.UnknownFieldSet(parsed)}


def _messages(message: bytes, number: int) -> Iterator[bytes]:
    """Every message in a field."""
    parsed = empty_pb2.Empty.FromString(message)
    for field in unknown_fields.UnknownFieldSet(parsed):
        if field.field_number == number and isinstance(field.data, bytes):
            yield field.data


def _number(fields: dict[int, bytes | int], number: int) -> int:
    """0 where a field is not there, as protobuf has it, or is no number."""
    value = fields.get(number, 0)
    return value if isinstance(value, int) and value < 1 << 63 else 0
