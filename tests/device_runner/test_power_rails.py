"""Readings of a phone's power rails out of a trace of perfetto."""

import random

from device_runner.adb import power_rails
from device_runner.result import RailReading

TRACE = bytes.fromhex(
    "0a1fc2021c0a1a0804120e53334d5f5644445f435055434c311a0363707520ff070a1140c38db701c2020912070804100318cd02"
    "0a3940c58db701c202310a170803120b5332535f5644445f4733441a0367707520fe07120708041005189a051205080318e7071206080410031800"
)
"""power_rails_well_known.textproto of Perfetto's own tests, encoded by its package: two rails, one read three times."""


def test_the_last_reading_of_each_rail_counts() -> None:
    assert power_rails.parse_trace(TRACE) == {
        "S3M_VDD_CPUCL1": RailReading(at_ms=5, microjoules=666),
        "S2S_VDD_G3D": RailReading(at_ms=0, microjoules=999),
    }


def test_a_trace_without_rails_gives_none() -> None:
    assert power_rails.parse_trace(b"") == {}
    assert power_rails.parse_trace(b"\x0a\x02\x40\x01") == {}


def test_damaged_traces_give_readings_or_none() -> None:
    numbers = random.Random(7)
    for _ in range(5000):
        damaged = bytearray(TRACE)
        for _ in range(numbers.randrange(1, 4)):
            damaged[numbers.randrange(len(damaged))] = numbers.randrange(256)
        for name, reading in power_rails.parse_trace(bytes(damaged)).items():
            assert name.isprintable()
            assert 0 <= reading.microjoules < 1 << 63
            assert 0 <= reading.at_ms < 1 << 63
