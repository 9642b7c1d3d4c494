"""What `init` writes of an app's data, by the files that Transformers puts beside a model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image

from pipeline.config import ModelConfig, read
from pipeline.config.app_data import SoundFeatures
from pipeline.features.app_data import attach
from pipeline.model.onnx_model import LeanModel
from pipeline.passes.base import PassContext
from pipeline.passes.saving import write_model
from tests.command import ort_mobile
from tests.features.app_data.samples import CLASSES, classifier
from tests.features.app_data.test_attach import picture, plain

PREPROCESSOR: dict[str, Any] = {
    "do_resize": True,
    "size": {"shortest_edge": 56},
    "resample": 2,
    "do_center_crop": True,
    "crop_size": {"height": 32, "width": 48},
    "do_rescale": True,
    "rescale_factor": 0.00392156862745098,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}
CONFIG = {
    "architectures": ["MobileNetV2ForImageClassification"],
    "id2label": {str(number): f"class {number}, é" for number in range(CLASSES)},
}


def written(
    folder: Path, preprocessor: dict[str, Any], config: dict[str, Any] | None = None, opset: int = 18
) -> tuple[ModelConfig, str]:
    """The table that `init` writes for the classifier with these files beside it, and the whole text."""
    model = classifier(opset)
    for value, axes in (
        (model.graph.input[0], ("batch", "channels", "height", "width")),
        (model.graph.output[0], ("batch",)),
    ):
        for dim, name in zip(value.type.tensor_type.shape.dim, axes, strict=False):
            dim.dim_param = name
    onnx.save(model, folder / "m.onnx")
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    ort_mobile("init", folder / "m.onnx", "--output", folder / "m.toml")
    (table,) = read.read_config(folder / "m.toml", existing=True).models
    return table, (folder / "m.toml").read_text("utf-8")


def test_a_graph_of_what_is_beside_a_model(tmp_path: Path) -> None:
    table, _ = written(tmp_path, PREPROCESSOR, CONFIG)
    assert table.takes
    assert table.gives
    assert not table.dimensions
    lean = LeanModel(proto=onnx.load(tmp_path / "m.onnx"), folder=tmp_path, weights={})
    options = attach.AttachOptions(takes=table.takes, gives=table.gives)
    write_model(attach.attach(lean, options, PassContext(folder=tmp_path, where="m.onnx")), tmp_path / "made.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "made.onnx", providers=["CPUExecutionProvider"])
    found, scores = session.run(None, {"image": picture()[None]})

    height, width = picture().shape[:2]
    short = Image.fromarray(picture()[..., :3]).resize((int(56 * width / height), 56), Image.Resampling.BILINEAR)
    left, top = round((short.width - 48) / 2), round((short.height - 32) / 2)
    values = np.asarray(short.crop((left, top, left + 48, top + 32)), np.float32) * PREPROCESSOR["rescale_factor"]
    values = ((values - PREPROCESSOR["image_mean"]) / PREPROCESSOR["image_std"]).astype(np.float32)
    logits = plain(classifier(), np.ascontiguousarray(values.transpose(2, 0, 1)[None]))[0]
    shares = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    best = np.argsort(-shares)[:5]
    assert list(found[0]) == [f"class {number}, é" for number in best]
    np.testing.assert_allclose(scores[0], shares[best], atol=0.01)


@pytest.mark.parametrize(
    ("changes", "resize", "crop"),
    [
        ({"size": {"height": 40, "width": 50}, "do_center_crop": False}, (40, 50), None),
        ({"size": 40, "do_center_crop": False}, (40, 40), None),
        ({"size": 56, "crop_size": 48}, "short 56", (48, 48)),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.875, "do_center_crop": False}, "short 256", (224, 224)),
        ({"size": {"shortest_edge": 384}, "crop_pct": 0.875, "do_center_crop": False}, (384, 384), None),
    ],
)
def test_each_form_of_a_size(tmp_path: Path, changes: dict[str, Any], resize: Any, crop: Any) -> None:
    takes = written(tmp_path, PREPROCESSOR | changes)[0].takes
    assert takes
    assert (takes.resize, takes.crop) == (resize, crop)


def test_what_is_left_out_is_not_done(tmp_path: Path) -> None:
    changes = {"do_normalize": False, "do_rescale": False, "do_flip_channel_order": True}
    takes = written(tmp_path, PREPROCESSOR | changes)[0].takes
    assert takes
    assert (takes.divide, takes.mean, takes.scale, takes.channels.value) == (None, None, None, "BGR")


def test_a_lower_opset_is_raised(tmp_path: Path) -> None:
    (step,) = written(tmp_path, PREPROCESSOR, opset=13)[0].transforms
    assert (step.do, step.options) == ("opset", {"version": 18})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"resample": 3}, "resizes by bicubic, which has no form in ONNX that is near"),
        ({"size": {"shortest_edge": 56}, "do_center_crop": False}, "resizes the short side and does not crop"),
        ({"size": {"longest_edge": 56, "shortest_edge": 5}}, "has a size of another form"),
        ({"image_mean": [0.5]}, "has no three numbers as image_mean"),
        ({"rescale_factor": "x"}, "has no number above 0 as rescale_factor"),
        ({"do_pad": True}, "fills images up"),
    ],
)
def test_what_no_graph_does_is_said(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    table, text = written(tmp_path, PREPROCESSOR | changes, CONFIG)
    assert table.takes is None
    assert f"# `takes` is not written: preprocessor_config.json {why}" in text


def test_a_file_that_is_no_json_costs_nothing(tmp_path: Path) -> None:
    written(tmp_path, PREPROCESSOR)
    (tmp_path / "config.json").write_text("{")
    ort_mobile("init", tmp_path / "m.onnx", "--output", tmp_path / "m.toml", "--force")
    assert "# `gives` is not written: config.json cannot be read" in (tmp_path / "m.toml").read_text("utf-8")
    (tmp_path / "preprocessor_config.json").write_text("[]")
    ort_mobile("init", tmp_path / "m.onnx", "--output", tmp_path / "m.toml", "--force")
    assert "# `takes` is not written: preprocessor_config.json is no object" in (tmp_path / "m.toml").read_text("utf-8")


def test_a_file_of_labels_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "m.labels.txt").write_text("mine\n")
    onnx.save(classifier(), tmp_path / "m.onnx")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    done = ort_mobile("init", tmp_path / "m.onnx", "--output", tmp_path / "m.toml", code=None)
    assert done.code
    assert "there is a file already" in done.err
    assert (tmp_path / "m.labels.txt").read_text() == "mine\n"
    assert not (tmp_path / "m.toml").exists()


WHISPER: dict[str, Any] = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "chunk_length": 30,
    "dither": 0.0,
    "feature_size": 80,
    "hop_length": 160,
    "n_fft": 400,
    "n_samples": 480000,
    "nb_max_frames": 3000,
    "sampling_rate": 16000,
}


def of_sound(folder: Path, frames: int | str, preprocessor: dict[str, Any]) -> tuple[ModelConfig, str]:
    """The table that `init` writes for a model of features, and the whole text."""
    text = f"""<ir_version: 8, opset_import: ["" : 14]>
    m (float[batch, 80, {frames}] input_features) => (float[batch, 80] y) {{
        y = ReduceMean<axes = [2], keepdims = 0>(input_features)
    }}"""
    (folder / "onnx").mkdir(exist_ok=True)
    onnx.save(onnx.parser.parse_model(text), folder / "onnx/m.onnx")
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    ort_mobile("init", folder / "onnx/m.onnx", "--output", folder / "m.toml", "--force")
    (table,) = read.read_config(folder / "m.toml", existing=True).models
    return table, (folder / "m.toml").read_text("utf-8")


@pytest.mark.parametrize(("frames", "window"), [(3000, None), ("frames", 480_000)])
def test_whispers_preprocessor_becomes_log_mel(tmp_path: Path, frames: int | str, window: int | None) -> None:
    table, _ = of_sound(tmp_path, frames, WHISPER)
    assert table.takes
    assert table.takes.features is SoundFeatures.LOG_MEL
    assert (table.takes.rate, table.takes.divide, table.takes.bins, table.takes.window) == (16_000, 32768, 80, window)
    assert not table.transforms
    assert not table.dimensions
    lean = LeanModel(proto=onnx.load(tmp_path / "onnx/m.onnx"), folder=tmp_path, weights={})
    options = attach.AttachOptions(takes=table.takes)
    write_model(attach.attach(lean, options, PassContext(folder=tmp_path, where="m.onnx")), tmp_path / "made.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "made.onnx", providers=["CPUExecutionProvider"])
    assert session.run(None, {"samples": np.zeros((1, 5), np.int16)})[0].shape == (1, 80)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"feature_extractor_type": "ASTFeatureExtractor"}, "has the features of ASTFeatureExtractor"),
        ({"hop_length": 200}, "has hop_length 200, where log-mel has 160"),
        ({"dither": 1e-5}, "has dither 1e-05, where log-mel has 0.0"),
        ({"do_normalize": True}, "makes samples as loud as each other first"),
        ({"feature_size": "x"}, "has no numbers as feature_size and n_samples"),
    ],
)
def test_features_that_no_graph_computes_are_said(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    table, text = of_sound(tmp_path, 3000, WHISPER | changes)
    assert table.takes is None
    assert f"# `takes` is not written: preprocessor_config.json {why}" in text
