"""What the probe parses and prints, function by function under the address and undefined behaviour sanitizers."""

import json
import shutil
import subprocess
import tempfile
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_runner.build import SOURCES, STANDARD
from device_runner.probe.protocol import BINS_KEPT, encode_inspection

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="cc is not installed, and its sanitizers are needed")

UNITS = (
    "answer",
    "bind",
    "cache",
    "callers",
    "checksum",
    "json",
    "measure",
    "platform",
    "plugin",
    "request",
    "sensors",
    "session",
    "sustain",
    "symbol",
    "tensors",
    "threads",
)
SANITIZE = ("-g", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
TEXTS = st.lists(st.binary(max_size=40).map(lambda text: text.replace(b"\0", b"")), min_size=1, max_size=30)
NUMBERS = st.lists(st.integers(0, 2**63 - 1), max_size=64)


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of units.c."""
    path = tmp_path_factory.mktemp("units") / "units"
    sources = [Path(__file__).with_name("units.c"), *(SOURCES / f"{unit}.c" for unit in UNITS)]
    subprocess.run(
        ["cc", *STANDARD, *SANITIZE, f"-I{SOURCES}", "-o", str(path), *map(str, sources), "-lpthread"], check=True
    )
    return path


def call(units: Path, part: str, content: bytes) -> list[bytes]:
    """The lines for a file of that content; a finding of a sanitizer ends the program with another code than 0."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        done = subprocess.run([str(units), part, file.name], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.split(b"\n")[:-1]


@settings(max_examples=15)
@given(texts=TEXTS)
def test_any_bytes_become_a_valid_json_string(units: Path, texts: list[bytes]) -> None:
    lines = call(units, "string", b"".join(text + b"\0" for text in texts))
    for text, line in zip(texts, lines, strict=True):
        quoted, full, kept = line.rsplit(b"\t", 2)
        told = json.loads(quoted.decode("utf-8"))
        try:
            assert told == text.decode("utf-8")
        except UnicodeDecodeError:
            assert "\ufffd" in told
        assert int(kept) <= 15
        assert (full == b"1") == (len(quoted) > 15)


@settings(max_examples=15)
@given(sizes=NUMBERS, texts=TEXTS)
def test_sizes_are_read_back_and_nothing_else_passes(units: Path, sizes: list[int], texts: list[bytes]) -> None:
    written = ",".join(map(str, sizes)).encode()
    first, *others = call(units, "sizes", b"".join(text + b"\0" for text in (written, *texts)))
    assert first == written
    for text, line in zip(texts, others, strict=True):
        assert line == b"no" or set(text) <= set(b"0123456789,+ \t\n\r\v\f")


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", "0"), ("9223372036854775807", "9223372036854775807"), ("9223372036854775808", "no"), ("-1", "no"),
     ("", "no"), ("1x", "no"), ("0x10", "no"), ("1 ", "no")],
)  # fmt: skip
def test_numbers(units: Path, text: str, number: str) -> None:
    assert call(units, "number", text.encode() + b"\0") == [number.encode()]


def test_a_request_is_read(units: Path) -> None:
    request = encode_inspection([("question", "a", ""), ("operand", "3", "1,2")], limit_seconds=1.0)
    (line,) = call(units, "request", request)
    assert line.startswith(b"ok ")


@settings(max_examples=20)
@given(data=st.data())
def test_a_changed_request_is_refused(units: Path, data: st.DataObject) -> None:
    request = bytearray(encode_inspection([("question", "a", ""), ("operand", "3", "1,2")], limit_seconds=1.0))
    place = data.draw(st.integers(0, len(request) - 1))
    request[place] ^= data.draw(st.integers(1, 255))
    (line,) = call(units, "request", bytes(request[: data.draw(st.integers(0, len(request)))]))
    assert not line.startswith(b"ok ")
    assert json.loads(line)


LATENCIES = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 10**9)), min_size=1, max_size=400)


@settings(max_examples=15)
@given(pairs=LATENCIES)
def test_bins_hold_every_inference_by_when_it_began(units: Path, pairs: list[tuple[int, int]]) -> None:
    begun = accumulate(gap for gap, _ in pairs)
    timed = [(at, latency) for at, (_, latency) in zip(begun, pairs, strict=True)]
    lines = call(units, "bins", "\n".join(f"{at} {latency}" for at, latency in timed).encode())
    expected: dict[int, list[tuple[int, int]]] = {}
    for at, latency in timed:
        key = at // 1000 if len(expected) < BINS_KEPT or at // 1000 in expected else max(expected)
        expected.setdefault(key, []).append((at, latency))
    for line, found in zip(lines, expected.values(), strict=True):
        ordered = sorted(latency for _, latency in found)
        wanted = (found[0][0], len(found), sum(ordered), ordered[0], ordered[len(ordered) // 2], ordered[-1])
        assert tuple(map(int, line.split())) == wanted


def test_the_median_of_a_bin_that_is_thinned_out_is_near(units: Path) -> None:
    lines = call(units, "bins", "\n".join(f"5 {1 + number % 1000}" for number in range(100_000)).encode())
    (numbers,) = [list(map(int, line.split())) for line in lines]
    assert numbers[1] == 100_000
    assert 450 <= numbers[4] <= 550


def test_bins_never_become_more_than_there_is_room_for(units: Path) -> None:
    lines = call(units, "bins", "\n".join(f"{number * 1000} 7" for number in range(1000)).encode())
    assert len(lines) == BINS_KEPT
    assert int(lines[-1].split()[1]) == 1000 - BINS_KEPT + 1


def test_pages_of_a_file_are_dropped_or_counted(units: Path, tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(3_000_001))
    done = subprocess.run([units, "drop", path], capture_output=True, text=True, check=True)
    size, resident = map(int, done.stdout.split()[:2])
    assert size == 3_000_001
    assert 0 <= resident <= size


@pytest.mark.parametrize(("name", "said"), [("nothing", "-1 -1 No such file"), (".", ""), ("empty", "0 0")])
def test_what_has_no_pages_has_none_or_is_not_known(units: Path, tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "empty").touch()
    done = subprocess.run([units, "drop", tmp_path / name], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(said)


def sensors(units: Path, root: Path, files: dict[str, str], what: str = "sensors") -> list[int]:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return list(map(int, subprocess.check_output([units, what, root]).split()))


def test_clocks_and_temperatures_are_read(units: Path, tmp_path: Path) -> None:
    cpu, zone = "devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq", "class/thermal/thermal_zone{}/{}"
    files = {
        cpu.format(0): "1800000\n",
        cpu.format(7): "2600000\n",
        zone.format(0, "type"): "battery\n",
        zone.format(0, "temp"): "61000\n",
        zone.format(2, "type"): "cpu-1-0\n",
        zone.format(2, "temp"): "48500\n",
    }
    assert sensors(units, tmp_path / "phone", files) == [2200, 48500]
    assert sensors(units, tmp_path / "other", {k: v for k, v in files.items() if "zone2" not in k}) == [2200, 61000]


def test_fast_cores_are_faster_than_the_slowest(units: Path, tmp_path: Path) -> None:
    clocks = (1800, 1800, 0, 2400, 2900)
    files = {f"devices/system/cpu/cpu{i}/cpufreq/cpuinfo_max_freq": f"{mhz}000\n" for i, mhz in enumerate(clocks)}
    assert sensors(units, tmp_path / "phone", files, "fast") == [3, 4]
    assert sensors(units, tmp_path / "none", {}, "fast") == []


def test_what_no_sensor_says_is_zero(units: Path, tmp_path: Path) -> None:
    zone = "class/thermal/thermal_zone{}/{}"
    broken = {zone.format(0, "type"): "cpu", zone.format(0, "temp"): "-274000", zone.format(1, "type"): "cpu",
              zone.format(1, "temp"): "999999999999", zone.format(3, "type"): ""}  # fmt: skip
    assert sensors(units, tmp_path, {}) == [0, 0]
    assert sensors(units, tmp_path, broken) == [0, 0]
