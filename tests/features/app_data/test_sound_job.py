"""From recordings to a release: a small model of features of sound, in float and in int8."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from pipeline.config.app_data import SampleKind, SoundFeatures, Takes
from tests.command import ort_mobile
from tests.features.app_data.sounds import speech
from tests.features.app_data.test_claims import PROVIDERS, answer
from tests.features.app_data.test_windows import attached, recording

SOUND = Takes(samples=SampleKind.INT16, rate=16000, divide=32768, features=SoundFeatures.LOG_MEL)
TEXT = """<ir_version: 8, opset_import: ["" : 17]>
words (float[batch, 80, 200] features) => (float[batch, 10] y) {
    seen = Conv<kernel_shape = [3], strides = [2], pads = [1, 1]>(features, kernel)
    kept = Relu(seen)
    pooled = GlobalAveragePool(kept)
    flat = Flatten(pooled)
    y = Gemm(flat, weight)
}"""
CONFIG = """name = "words"

[[models]]
path = "words.onnx"
test_data = "recordings"
takes = { samples = "int16", rate = 16000, divide = 32768, features = "log-mel" }
gives = { classes = "labels.txt", softmax = true, top = 3 }
oracle = "makers:classify"

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
MAKERS = """import sys
sys.path.insert(0, {root!r})
import numpy as np
from tests.features.app_data.test_sound_features import whisper
from tests.features.app_data.test_sound_job import classified


def classify(samples):
    filled = np.zeros(32_000)
    filled[: len(samples)] = samples[:32_000] / 32768
    return classified({folder!r}, whisper(filled, 80)[None])
"""


def words() -> onnx.ModelProto:
    generator = np.random.default_rng(0)
    model = onnx.parser.parse_model(TEXT)
    for name, shape in (("kernel", (32, 80, 3)), ("weight", (32, 10))):
        values = generator.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    return model


def classified(folder: str, features: Any) -> dict[str, Any]:
    """The labels and shares of the plain model."""
    session = onnxruntime.InferenceSession(f"{folder}/words.onnx", providers=["CPUExecutionProvider"])
    values = session.run(None, {"features": features.astype(np.float32)})[0][0]
    shares = np.exp(values - values.max()) / np.exp(values - values.max()).sum()
    best = np.argsort(-shares)[:3]
    return {"labels": [f"word {number}" for number in best], "scores": shares[best]}


def job(folder: Path) -> Path:
    onnx.save(words(), folder / "words.onnx")
    (folder / "labels.txt").write_text("".join(f"word {number}\n" for number in range(10)))
    (folder / "recordings").mkdir()
    for number in range(10):
        sound = speech(1 + number / 4, seed=number)
        recording(folder / f"recordings/{number}.wav", sound, rate=16_000)
    root = Path(__file__).parents[3]
    (folder / "makers.py").write_text(MAKERS.format(folder=str(folder), root=str(root)))
    (folder / "words.toml").write_text(CONFIG)
    return folder / "words.toml"


@pytest.mark.long
def test_recordings_of_any_length_become_labels_and_int8_leaves_features_alone(tmp_path: Path) -> None:
    done = ort_mobile("run", job(tmp_path), "--output", tmp_path / "out", "--device", "local")
    results = json.loads((tmp_path / "out/results.json").read_text("utf-8"))
    assert {(row["variant"], row["status"]) for row in results["rows"]} == {
        ("basic-fixed", "ok"),
        ("basic-fixed-s8s8pc", "ok"),
    }
    assert "makers:classify gives the same for 10 samples" in json.dumps(results)
    assert "open dimensions" not in done.out + done.err
    (signature,) = json.loads((tmp_path / "out/bundle/manifest.json").read_text("utf-8"))["content"]["models"]
    assert (signature["rate"], signature["answer"], signature["state"]) == (16_000, "classes", {})
    readme = (tmp_path / "out/bundle/README.md").read_text("utf-8")
    assert "takes a recording of any length, one channel of 16000 samples a second" in readme


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_provider_takes_as_much_of_a_model_with_features(tmp_path: Path, provider: str) -> None:
    attached(tmp_path, words(), SOUND)
    plain = words()
    for value in (*plain.graph.input, *plain.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(plain, tmp_path / "plain.onnx")
    with_ends, without = (answer(tmp_path / name, provider) for name in ("made.onnx", "plain.onnx"))
    for name in ("nodes", "claimed", "copies", "refused_operators", "dynamic", "fixed", "operators", "cuts"):
        assert getattr(with_ends, name) == getattr(without, name), name
    assert len(with_ends.ends) > 20
