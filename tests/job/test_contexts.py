"""A campaign with contexts for a Snapdragon's NPU: beside the CPU in one table, simulated where no phone is."""

import json
from pathlib import Path

import pytest

from tests.command import ROOT, ort_mobile

CONFIG = """
name = "digits"
[[models]]
path = "{mnist}"
test_data = "{data}"
[variants]
levels = ["basic"]
styles = ["fixed"]
contexts = ["SM8650"]
[[runs]]
provider = "cpu"
[[runs]]
provider = "qnn"
variants = ["qnn-*"]
[measure]
rounds = 2
min_runs = 1
min_seconds = 0.001
warmup = 0
[[targets]]
name = "phones"
platform = "android"
abis = ["arm64-v8a"]
min_api_level = 27
library = "android:1.29.0"
"""


@pytest.mark.npu
@pytest.mark.long
@pytest.mark.usefixtures("compiler", "own_cache")
def test_contexts_are_measured_beside_the_cpu(tmp_path: Path) -> None:
    example = ROOT / "build_configs/examples/mnist"
    (tmp_path / "npu.toml").write_text(
        CONFIG.format(mnist=example / "mnist.onnx", data=example / "evaluation.npz"), encoding="utf-8"
    )
    out = tmp_path / "out"
    ort_mobile("run", tmp_path / "npu.toml", "--output", out)
    results = json.loads((out / "results.json").read_bytes())
    rows = {(row["variant"], row["run"]): row for row in results["rows"]}
    assert set(rows) == {("basic-fixed", "cpu"), ("qnn-SM8650", "qnn+soc_model=SM8650")}
    on_npu = rows["qnn-SM8650", "qnn+soc_model=SM8650"]
    assert "not_a_phone" in {caution["doubt"] for caution in on_npu["cautions"]}
    assert on_npu["checks"][0]["passed"]
    assert [choice["variant"] for choice in results["choices"]] == ["basic-fixed"]
    assert [row["context"]["variant"]["chip"] for row in results["contexts"]] == ["SM8650"]
    for page in ("report.md", "report.html"):
        assert "Contexts for NPUs" in (out / page).read_text(encoding="utf-8")
