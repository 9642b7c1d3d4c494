"""The example of a release: what it needs to pass its gates is in its config."""

import json
import shutil
from pathlib import Path

import pytest

from tests.android_host.conftest import fetch
from tests.command import ROOT, ort_mobile

pytestmark = pytest.mark.android_host


def test_the_example_of_a_release_passes_its_gates(tmp_path: Path) -> None:
    fetch("1.29.0")
    shutil.copytree(ROOT / "build_configs", tmp_path / "build_configs")
    done = ort_mobile("release", "build_configs/release.toml", "--convert-only", cwd=tmp_path)
    assert "com.example:mnist-release-models:1.0.0 in " in done.out
    (proof,) = json.loads((tmp_path / "output/mnist-release/results.json").read_text())["proofs"]
    assert proof["rows"]
    assert (tmp_path / "output/mnist-release/swift/Package.swift").is_file()
