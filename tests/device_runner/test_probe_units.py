"""What the probe parses and prints, function by function under the address and undefined behaviour sanitizers."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_runner.probe.build import SOURCES, STANDARD
from device_runner.probe.protocol import encode_inspection

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="cc is not installed, and its sanitizers are needed")

UNITS = ("answer", "checksum", "json", "request")
SANITIZE = ("-g", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
TEXTS = st.lists(st.binary(max_size=40).map(lambda text: text.replace(b"\0", b"")), min_size=1, max_size=30)
NUMBERS = st.lists(st.integers(0, 2**63 - 1), max_size=64)


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of units.c."""
    path = tmp_path_factory.mktemp("units") / "units"
    sources = [Path(__file__).with_name("units.c"), *(SOURCES / f"{unit}.c" for unit in UNITS)]
    subprocess.run(["cc", *STANDARD, *SANITIZE, f"-I{SOURCES}", "-o", str(path), *map(str, sources)], check=True)
    return path


def call(units: Path, part: str, content: bytes) -> list[bytes]:
    """The lines for a file of that content; a finding of a sanitizer ends the program with another code than 0."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        done = subprocess.run([str(units), part, file.name], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.split(b"\n")[:-1]


@settings(max_examples=40)
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


@settings(max_examples=40)
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


@settings(max_examples=60)
@given(data=st.data())
def test_a_changed_request_is_refused(units: Path, data: st.DataObject) -> None:
    request = bytearray(encode_inspection([("question", "a", ""), ("operand", "3", "1,2")], limit_seconds=1.0))
    place = data.draw(st.integers(0, len(request) - 1))
    request[place] ^= data.draw(st.integers(1, 255))
    (line,) = call(units, "request", bytes(request[: data.draw(st.integers(0, len(request)))]))
    assert not line.startswith(b"ok ")
    assert json.loads(line)
