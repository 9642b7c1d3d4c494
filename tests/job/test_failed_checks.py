"""A job whose numeric check fails or cannot judge: every place where a user looks says so, with the figure."""

import json
from pathlib import Path

import pytest

from tests.command import ort_mobile
from tests.onnx_samples import quiet_map, save

CONFIG = """
name = "demo"
[[models]]
path = "{model}"
name = "m"
[[targets]]
name = "phone"
platform = "android"
abis = ["arm64-v8a"]
[variants]
levels = [{levels}]
styles = ["fixed"]
[check]
max_relative_error = {error}
"""


def job(folder: Path, bias: float, *, levels: str, error: float = 1e-3, gain: float = 300.0) -> Path:
    path = folder / "demo.toml"
    model = save(quiet_map(bias, gain=gain), folder / "m.onnx")
    path.write_text(CONFIG.format(model=model, levels=levels, error=error))
    return path


@pytest.mark.long
def test_a_failed_check_is_everywhere_though_nothing_is_measured(tmp_path: Path) -> None:
    config, out = job(tmp_path, 0.0, levels='"none", "basic", "all"', error=1e-9), tmp_path / "out"
    ended = ort_mobile("run", config, "--convert-only", "--output", out, code=4)
    for text in (ended.out, (out / "report.md").read_text(), (out / "report.html").read_text()):
        words = " ".join(text.split())
        assert "2 variants failed the numeric check and are left out" in words
        assert "not what the original model computes: relative error up to" in words
        assert "basic-fixed, all-fixed failed the numeric check" in words or "all-fixed, basic-fixed failed" in words
        assert "documentation" not in words
    (choice,) = json.loads((out / "results.json").read_text())["choices"]
    assert choice["variant"] == "none-fixed"


@pytest.mark.long
def test_nothing_to_ship_says_why(tmp_path: Path) -> None:
    config, out = job(tmp_path, 0.0, levels='"basic", "all"', error=1e-9), tmp_path / "out"
    ended = ort_mobile("run", config, "--convert-only", "--output", out, code=4)
    assert "no artifact may ship (m: " in ended.err
    assert "failed the numeric check (largest relative error " in ended.err
    assert "Do not ship: nothing of m may ship to phone" in " ".join(ended.out.split())
    assert not (out / "bundle").exists()
    again = ort_mobile("bundle", "rebuild", out, code=4)
    assert "failed the numeric check (largest relative error " in again.err


def test_what_cannot_be_judged_ships_with_a_warning(tmp_path: Path) -> None:
    config, out = job(tmp_path, 60.0, levels='"all"'), tmp_path / "out"
    ended = ort_mobile("run", config, "--convert-only", "--output", out)
    words = " ".join(ended.out.split())
    assert "outputs of 1 variant that ships cannot be judged on random inputs: give test data" in words
    (checked,) = json.loads((out / "results.json").read_text())["checks"]
    (check,) = checked["checks"]
    assert (check["passed"], check["unknown"]) == (False, True)
    assert (out / "bundle" / "manifest.json").is_file()
