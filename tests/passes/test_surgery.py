"""Surgery passes on real models: what they change, that outputs stay, what they refuse."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from pipeline.core.errors import ConfigError, MissingError, ModelError
from pipeline.passes.base import NotApplicable
from tests.command import ROOT
from tests.partition_samples import model, value
from tests.passes.real_models import assert_same, extract, loaded, run

PRUNED = {
    "lstm_classifier.base": ("hn",),
    "silero_like_vad_if.base": ("stateN",),
    "blazeface.base": ("regressors",),
    "mlp_tabular.ir3": ("probabilities",),
    "yolov8n_nms.base": ("scores",),
}


@pytest.mark.parametrize("name", PRUNED)
def test_named_outputs_stay_with_what_they_need(name: str, tmp_path: Path) -> None:
    path = extract(name, tmp_path)
    outputs = PRUNED[name]
    result = run(path, tmp_path, f"prune-outputs:outputs={'+'.join(outputs)}")
    assert tuple(value.name for value in result.model.proto.graph.output) == outputs
    assert result.changes[0].nodes_after <= result.changes[0].nodes_before
    assert {check.output for check in assert_same(path, result, tmp_path)} == set(outputs)


@pytest.mark.parametrize("name", ["mobilenet_v1.base", "mnist.op7", "face_embedding.fp16", "unet.base", "mnist.op12"])
def test_a_model_is_cut_at_an_inner_value(name: str, tmp_path: Path) -> None:
    path = extract(name, tmp_path)
    graph = onnx.load(path).graph
    inner = [node.output[0] for node in graph.node if node.op_type in ("Conv", "Relu", "Clip")][3]
    result = run(path, tmp_path, f"prune-outputs:outputs={inner}")
    assert result.changes[0].nodes_after < result.changes[0].nodes_before
    assert result.changes[0].bytes_after < result.changes[0].bytes_before, "weights go too"
    (value,) = result.model.proto.graph.output
    assert value.type.tensor_type.elem_type
    assert value.type.tensor_type.HasField("shape")
    assert_same(path, result, tmp_path)


def test_pruning_takes_inputs_that_nothing_reads_along(tmp_path: Path) -> None:
    path = extract("lstm_classifier.base", tmp_path)
    embedded = next(node.output[0] for node in onnx.load(path).graph.node if node.op_type == "Gather")
    result = run(path, tmp_path, f"prune-outputs:outputs={embedded}")
    assert [value.name for value in result.model.proto.graph.input] == ["tokens"]
    assert_same(path, result, tmp_path)


EXTERNAL = ["mobilenet_v1.base", "vit_tiny.base", "mnist.op7", "face_embedding.qdq_u8s8pc", "face_embedding.fp16"]


@pytest.mark.parametrize("name", EXTERNAL)
def test_weights_go_to_a_file_and_back(name: str, tmp_path: Path) -> None:
    path = extract(name, tmp_path)
    (tmp_path / "out").mkdir()
    result = run(path, tmp_path / "out", "external-data")
    assert result.model.outside
    checks = assert_same(path, result, tmp_path / "out")
    assert {check.max_abs_error for check in checks} == {0.0}
    saved = tmp_path / "out/result.onnx"
    assert saved.stat().st_size < path.stat().st_size / 2
    (tmp_path / "back").mkdir()
    back = run(saved, tmp_path / "back", "inline-data")
    assert_same(path, back, tmp_path / "back")
    assert not (tmp_path / "back/result.onnx.data").exists()
    assert (tmp_path / "back/result.onnx").stat().st_size > saved.stat().st_size


def test_weights_in_constant_nodes_go_to_the_file(tmp_path: Path) -> None:
    path = extract("mnist.op7", tmp_path)
    proto = onnx.load(path)
    for tensor in proto.graph.initializer:
        node = helper.make_node("Constant", [], [tensor.name], value=tensor)
        proto.graph.node.insert(0, node)
    del proto.graph.initializer[:]
    kept = [value for value in proto.graph.input if value.name == "Input3"]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    made = tmp_path / "constants.onnx"
    onnx.save(proto, made)
    result = run(made, tmp_path, "external-data")
    assert_same(made, result, tmp_path)
    assert (tmp_path / "result.onnx.data").stat().st_size > 20_000


OPSETS = [
    "mnist.op7",
    "mobilenet_v1.base",
    "vit_tiny.dyn",
    "ssd_mobilenet.base",
    "silero_like_vad_if.op13",
    "mlp_tabular.ir3",
]


@pytest.mark.parametrize("name", OPSETS)
def test_models_become_newer_opsets(name: str, tmp_path: Path) -> None:
    path = extract(name, tmp_path)
    result = run(path, tmp_path, "opset:version=21")
    (entry,) = [entry for entry in result.model.proto.opset_import if entry.domain in ("", "ai.onnx")]
    assert entry.version == 21
    assert_same(path, result, tmp_path)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(("op_type", "scale"), [("Resize", 0.4), ("Resize", 1.5), ("Upsample", 1.5), ("Upsample", 2.0)])
def test_what_old_resizes_count_from_stays(op_type: str, scale: float, mode: str, tmp_path: Path) -> None:
    """ONNX's converter makes half_pixel of it: other pixels."""
    node = helper.make_node(op_type, ["x", "s"], ["y"], mode=mode)
    scales = {"s": np.array([1, 1, scale, scale], np.float32)}
    made = model([node], [value("x", (1, 2, 10, 10))], ["y"], scales, opset=10 if op_type == "Resize" else 9)
    path = tmp_path / "old.onnx"
    onnx.save(made, path)
    assert_same(path, run(path, tmp_path, "opset:version=17"), tmp_path)


def test_weights_stay_external_while_the_opset_changes(tmp_path: Path) -> None:
    path = extract("mobilenet_v1.base", tmp_path)
    result = run(path, tmp_path, "opset:version=17")
    assert result.model.weights == loaded(path, tmp_path).weights
    assert result.model.proto.ByteSize() < 1 << 20


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("bert_base.base", marks=(pytest.mark.long, pytest.mark.nightly)),
        pytest.param("swin_slice.base", marks=pytest.mark.nightly),
        "vit_tiny.batch", "lstm_classifier.batch", "mnist.base", "yolov8n.fp16",
    ],
)  # fmt: skip
def test_computed_shapes_become_constants(name: str, tmp_path: Path) -> None:
    path = extract(name, tmp_path)
    steps = ["fixed-dimensions:rest=2"] if name.endswith(".batch") else []
    result = run(path, tmp_path, *steps, "fold-shapes")
    change = result.changes[-1]
    assert change.nodes_after < change.nodes_before
    operators = {node.op_type for node in result.model.proto.graph.node}
    assert "Constant" not in operators
    assert name == "bert_base.base" or "Shape" not in operators
    assert_same(path, result, tmp_path)


FUSED = {
    "distilbert.base": "bert", "vit_tiny.base": "vit", "conformer_block.base": "conformer",
    "convnext_tiny_slice.base": "bert", "swin_slice.base": "swin",
}  # fmt: skip


@pytest.mark.parametrize(
    "name", ["distilbert.base", "vit_tiny.base", "conformer_block.base", "convnext_tiny_slice.base",
             pytest.param("swin_slice.base", marks=pytest.mark.nightly)],
)  # fmt: skip
def test_parts_of_transformers_are_fused(name: str, tmp_path: Path) -> None:
    path = extract(name, tmp_path)
    newer = ["opset:version=17"] if onnx.load(path).opset_import[0].version < 17 else []
    result = run(path, tmp_path, *newer, f"transformer-fusions:model_type={FUSED[name]}")
    assert result.changes[-1].nodes_after < result.changes[-1].nodes_before / 1.2
    proto = result.model.proto
    domains = {node.domain for node in proto.graph.node}
    assert domains <= {entry.domain for entry in proto.opset_import}
    assert any(node.domain == "com.microsoft" or node.op_type == "LayerNormalization" for node in proto.graph.node)
    assert_same(path, result, tmp_path)


@pytest.mark.parametrize(
    ("name", "step", "error", "says"),
    [
        ("mnist.op12", "prune-outputs:outputs=Plus214_Output_0", NotApplicable, "outputs of the model"),
        ("mnist.op12", "prune-outputs:outputs=Plus214_Output", ConfigError, "Plus214_Output_0"),
        ("mnist.op12", "prune-outputs:outputs=", ConfigError, "no output is named"),
        ("mnist.op12", "external-data:min_bytes=100000000", NotApplicable, "100000000 bytes"),
        ("mnist.op12", "external-data:min_bytes=0", ConfigError, "not positive"),
        ("mnist.op12", "inline-data", NotApplicable, "no weight lies in another file"),
        ("mnist.op12", "opset:version=12", NotApplicable, "is opset 12"),
        ("mnist.op12", "opset:version=11", NotApplicable, "adapters"),
        ("mnist.op12", "opset:version=99", ConfigError, "no opset 99"),
        ("fsrcnn.base", "fold-shapes", NotApplicable, "no node computes"),
        ("mnist.op12", "transformer-fusions", NotApplicable, "fuses nothing"),
        ("conformer_block.base", "transformer-fusions", NotApplicable, "needs opset 17"),
        ("mnist.op12", "fixed-dimensions:rest=1", NotApplicable, "every input dimension"),
        ("mnist.op12", "constant-initializers", NotApplicable, "no initializer"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(
    name: str, step: str, error: type[ModelError | ConfigError], says: str, tmp_path: Path
) -> None:
    path = extract(name, tmp_path)
    with pytest.raises(error) as caught:
        run(path, tmp_path, step)
    assert says in " ".join(text for _, text in caught.value.lines())
    assert caught.value.where == path.name
    assert caught.value.remedy


def test_the_fusions_of_transformers_name_the_package_that_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sympy", None)
    with pytest.raises(MissingError, match="sympy is not installed") as caught:
        run(extract("distilbert.base", tmp_path), tmp_path, "transformer-fusions")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert set(extras["transformers"]) < set(extras["android"]), "README.md installs it"
    assert re.search(r"install.*('sympy>=|\[transformers\])", caught.value.remedy)


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = extract("mnist.base", tmp_path)
    monkeypatch.setitem(sys.modules, "onnxslim", None)
    with pytest.raises(MissingError) as caught:
        run(path, tmp_path, "fold-shapes")
    assert "onnxslim" in caught.value.remedy


def test_a_library_that_fails_costs_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxslim

    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("h")

    path = extract("mnist.base", tmp_path)
    monkeypatch.setattr(onnxslim, "slim", fail)
    with pytest.raises(ModelError, match="onnxslim cannot fold"):
        run(path, tmp_path, "fold-shapes")
