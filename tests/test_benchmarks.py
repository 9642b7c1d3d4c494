"""What benchmarks build from the probe's sources must follow these: nobody else compiles it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks import probe

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not shutil.which("cc"), reason="cc is not installed, which builds the probe"),
]


def test_the_loop_of_the_probe_is_measured_beside_bare_calls(tmp_path: Path) -> None:
    request = probe.request_file(tmp_path, probe.null_model(tmp_path), 20)
    done = subprocess.run([probe.build_loop(tmp_path), request], capture_output=True, text=True, check=True)
    rows = [[float(word) for word in line.split()] for line in done.stdout.splitlines()]
    assert len(rows) == 60
    assert all(len(row) == 3 and min(row) > 0 for row in rows)
