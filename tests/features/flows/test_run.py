"""A feature all the way: one command from two models to what ships."""

import json
from pathlib import Path

import pytest

from pipeline.core.errors import ExitCode
from tests.command import ort_mobile
from tests.features.flows import samples

pytestmark = pytest.mark.long

CONFIG = """name = "chain"
models = [{ path = "frames.onnx" }, { path = "embedding.onnx" }, { path = "score.onnx" }]
[[features]]
name = "Chain"
outputs = { value = "score.y" }
flow = [
  { run = "frames", inputs = { x = { from = "samples", window = 12, hop = 8 } } },
  { run = "embedding", inputs = { x = { from = "frames.y", rows = 2, window = 6, hop = 2, fill = 1 } } },
  { run = "score", inputs = { x = { from = "embedding.y", rows = 3, window = 5, hop = 1 }, h = { state = "hn" } } },
]
[variants]
levels = ["basic"]
styles = ["fixed"]
precisions = ["float", "int8"]
[[runs]]
provider = "cpu"
[measure]
rounds = 1
min_seconds = 0.05
"""


def test_a_feature_is_converted_quantized_streamed_and_shipped(tmp_path: Path) -> None:
    samples.tables(tmp_path)
    (tmp_path / "chain.toml").write_text(CONFIG, "utf-8")
    done = ort_mobile("run", tmp_path / "chain.toml", "--output", tmp_path / "out", "--device", "local")
    results = json.loads((tmp_path / "out/results.json").read_text("utf-8"))
    assert {(row["model"], row["status"]) for row in results["rows"]} == {("Chain", "ok")}
    assert "Ready to ship" in done.out
    (signature,) = json.loads((tmp_path / "out/bundle/manifest.json").read_text("utf-8"))["content"]["models"]
    assert [value["name"] for value in signature["inputs"]] == [
        "samples",
        "frames.x.kept",
        "embedding.x.kept",
        "score.x.kept",
        "score.h.kept",
    ]


def test_a_stage_that_does_not_fit_costs_no_file(tmp_path: Path) -> None:
    samples.tables(tmp_path)
    (tmp_path / "chain.toml").write_text(CONFIG.replace("frames.y", "frames.z"), "utf-8")
    done = ort_mobile("run", tmp_path / "chain.toml", "--output", tmp_path / "out", "--device", "local", code=None)
    assert done.code
    assert "frames.z" in done.err
    assert "remedy: " in done.err
    assert not (tmp_path / "out/bundle").exists()


def test_a_stage_that_is_no_model_costs_no_other_model(tmp_path: Path) -> None:
    samples.tables(tmp_path)
    (tmp_path / "frames.onnx").write_text("none")
    config = CONFIG.replace('{ path = "score.onnx" }', '{ path = "score.onnx" }, { path = "encoder.onnx" }')
    config = config.replace('["float", "int8"]', '["float"]')
    (tmp_path / "chain.toml").write_text(config, "utf-8")
    done = ort_mobile("run", tmp_path / "chain.toml", "--output", tmp_path / "out", "--device", "local", code=None)
    results = json.loads((tmp_path / "out/results.json").read_text("utf-8"))
    assert done.code == ExitCode.SOME_FAILED
    assert {(row["model"], row["status"]) for row in results["rows"]} == {("encoder", "ok")}
    assert [
        (model["name"], model["error"].startswith("stage frames: ")) for model in results["models"] if model["error"]
    ] == [("Chain", True)]
