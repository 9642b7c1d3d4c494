"""A campaign with contexts for a Snapdragon's NPU: beside the CPU in one table, simulated where no phone is."""

import json
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest

from pipeline.features.prove.contexts import contexts_to_run
from pipeline.features.prove.plan import ProofOrder
from pipeline.release.manifest import read_manifest
from tests.command import ROOT, ort_mobile
from tests.features.android.samples import needs_java
from tests.onnx_samples import parsed_nodes
from tests.partition_samples import model, value

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
def test_contexts_are_measured_beside_the_cpu(tmp_path: Path) -> None:
    example = ROOT / "build_configs/examples/mnist"
    (tmp_path / "npu.toml").write_text(CONFIG.format(mnist=example / "mnist.onnx", data=example), encoding="utf-8")
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


SIZES = """
name = "sizes"
models = [{ path = "m.onnx", dimensions = { side = [16, 32] } }]
variants = { levels = ["basic"], styles = ["fixed"], contexts = ["SM8650"], share_weights = true }
targets = [{ name = "phones", platform = "android", abis = ["arm64-v8a"], min_api_level = 27, ort_release = "1.29" }]
"""
FILES = ["m-16.qnn-SM8650.onnx", "m-16.qnn-SM8650_qnn.bin", "m-32.qnn-SM8650.onnx"]


@pytest.mark.npu
@pytest.mark.long
def test_sizes_of_a_model_ship_with_one_binary_that_was_made_and_not_run(tmp_path: Path) -> None:
    """In the bundle, and once in the AAR and in each chip's part of an AI pack; the open model has no context."""
    needs_java()
    weights = np.random.default_rng(0).normal(0, 0.1, (64, 64, 3, 3)).astype(np.float32)
    nodes = parsed_nodes("a = Conv <pads = [1, 1, 1, 1]> (x, w)  y = Relu (a)")
    onnx.save(model(nodes, [value("x", (1, 64, "side", "side"))], ["y"], {"w": weights}), tmp_path / "m.onnx")
    (tmp_path / "sizes.toml").write_text(SIZES, encoding="utf-8")
    text = ort_mobile("run", "sizes.toml", "--output", "out", "--convert-only", cwd=tmp_path).out
    folder = "src/main/assets/ort_mobile/com.example/sizes-models#group_qti_sm8650"
    bundle, pack = tmp_path / "out/bundle", tmp_path / "pack" / folder
    assert "m-16 qnn-SM8650 for SM8650 (Snapdragon 8 Gen 3), QAIRT 2.51.0; made, not run here: it shares" in text
    assert sorted(path.name for path in (bundle / "models").glob("*qnn-*")) == FILES
    readme = (bundle / "README.md").read_text(encoding="utf-8")
    assert "for that very chip, and of m-16, m-32 it was made and run on no computer" in readme
    kept, notes = contexts_to_run(read_manifest(bundle), ProofOrder(library="x"), ["phones"])
    assert (kept, len(notes)) == ([], 2)
    assert "made, not run here: it shares its binary with m-32" in notes[0]
    common = ("--output", tmp_path / "repo", "--group", "com.example", "--version")
    ort_mobile("release", "android", bundle, *common, "1.0")
    ort_mobile("release", "android", bundle, *common, "1.1", "--ai-pack", tmp_path / "pack")
    with zipfile.ZipFile(next((tmp_path / "repo").rglob("*1.0.aar"))) as archive:
        names = [Path(name).name for name in archive.namelist()]
    assert sorted(name for name in names if "qnn-" in name) == FILES
    assert sorted(path.name for path in pack.iterdir() if "qnn-" in path.name) == FILES


@pytest.mark.parametrize(("part", "other"), [("[16, 32]", "16"), ('contexts = ["SM8650"], ', "")])
def test_weights_that_nothing_shares_are_refused(tmp_path: Path, part: str, other: str) -> None:
    (tmp_path / "m.onnx").touch()
    (tmp_path / "sizes.toml").write_text(SIZES.replace(part, other), encoding="utf-8")
    refused = ort_mobile("run", "sizes.toml", "--convert-only", cwd=tmp_path, code=2)
    assert "there are no weights to share" in refused.text
