"""Contexts in a proof: which can be run here, and a bundle for three chips run in the genuine Android library."""

import importlib.util
from pathlib import Path
from unittest.mock import patch

import pytest

from device_runner.errors import pip_install
from pipeline.core.errors import ConfigError, MissingError
from pipeline.core.progress import NoProgress
from pipeline.features.prove import ProofOrder, prove_bundle
from pipeline.features.prove.contexts import contexts_to_run
from pipeline.release.manifest import read_manifest
from tests.android_host.conftest import fetch
from tests.command import ROOT, ort_mobile
from tests.features.android.samples import manifest, npu_context, shipped

EXAMPLE = ROOT / "build_configs/examples/mnist"


WITH_CONTEXT = manifest([shipped()], contexts=[npu_context("SM8650")])


def test_a_chip_that_the_bundle_has_no_context_for_is_refused() -> None:
    with pytest.raises(ConfigError, match="no context for SM8750") as caught:
        contexts_to_run(WITH_CONTEXT, ProofOrder(library="x", chips=("SM8750",)), ["phone"])
    assert "it has contexts for SM8650" in caught.value.why


def test_without_the_simulator_contexts_are_left_out_unless_they_are_asked_for() -> None:
    with patch.object(importlib.util, "find_spec", lambda _name: None):
        contexts, notes = contexts_to_run(WITH_CONTEXT, ProofOrder(library="x"), ["phone"])
        assert contexts == []
        assert "onnxruntime-qnn, which is not installed" in notes[0]
        with pytest.raises(MissingError, match="onnxruntime-qnn, which is not installed"):
            contexts_to_run(WITH_CONTEXT, ProofOrder(library="x", chips=("SM8650",)), ["phone"])


def test_a_simulator_of_another_qairt_than_the_contexts_is_named() -> None:
    with (
        patch("device_runner.plugins.installed_plugin"),
        patch("pipeline.features.prove.plan.library_abis", lambda _library: ["x86_64"]),
        patch("pipeline.compat.contexts.installed_qairt", lambda: "2.49.0"),
        pytest.raises(MissingError) as caught,
    ):
        contexts_to_run(WITH_CONTEXT, ProofOrder(library="x", chips=("SM8650",)), ["phone"])
    assert "are for QAIRT 2.51.0, and the simulator here is of 2.49.0" in caught.value.what
    assert caught.value.remedy == pip_install("onnxruntime-qnn==2.7.0")


@pytest.mark.npu
@pytest.mark.network
@pytest.mark.long
def test_three_chips_and_the_cpu_hold_in_the_library_that_ships(tmp_path: Path) -> None:
    if importlib.util.find_spec("onnxruntime_qnn") is None:
        pytest.skip("the package onnxruntime-qnn is not installed")
    library = fetch("1.29.0")
    config = f"""
name = "digits"
models = [{{ path = "{EXAMPLE / "mnist.onnx"}", test_data = "{EXAMPLE}" }}]
[variants]
levels = ["all"]
styles = ["fixed"]
precisions = ["float", "qnn"]
contexts = ["SM8650", "SM8750", "SM8635"]
[[targets]]
name = "phone"
platform = "android"
ort_release = "1.29"
abis = ["arm64-v8a"]
"""
    (tmp_path / "npu.toml").write_text(config)
    ort_mobile("run", tmp_path / "npu.toml", "--output", tmp_path / "out", "--convert-only")
    bundle = tmp_path / "out/bundle"
    content = read_manifest(bundle).content
    assert [(row.chip, row.variant.precision) for row in content.contexts] == [
        ("SM8650", ""), ("SM8750", ""), ("SM8635", "u8s8qnn"),
    ]  # fmt: skip
    assert not [file.path for file in content.files if "libQnn" in file.path]
    proof = prove_bundle(bundle, ProofOrder(library=library.path, abis=("x86_64",)), NoProgress())
    rows = {row.variant: row for row in proof.rows if row.passed}
    assert set(rows) == {"all-fixed", "qnn-SM8650", "qnn-SM8750", "qnn-SM8635-u8s8qnn"}
    assert rows["qnn-SM8650"].qairt == content.contexts[0].qairt
    ort_mobile("run", tmp_path / "npu.toml", "--output", tmp_path / "again", "--convert-only")
    assert read_manifest(tmp_path / "again/bundle").content == content, "the same inputs give the same contexts"
