"""What a job keeps as vectors, classes of apps give again with the same release, in a JVM and in C++: equal bits."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from device_runner.library import find_archive
from tests.command import ort_mobile
from tests.features.app_data import every_answer, samples
from tests.features.app_data.test_text_job import job
from tests.features.app_data.test_windows import recording
from tests.features.vectors import cpp, jvm
from tests.npm_packages import library_entry

pytestmark = pytest.mark.network

TARGET = """
[[targets]]
name = "phone"
platform = "android"
min_api_level = 24
library = "android:1.29.0"
"""

SETTINGS = """
[variants]
levels = ["basic"]
styles = ["fixed"]

[[runs]]
provider = "cpu"

[measure]
rounds = 1
min_seconds = 0.05
"""

CLASSIFIER = """
name = "pictures"

[[models]]
path = "classifier.onnx"
test_data = "pictures"
takes = { image = "rgba", resize = [32, 48], filter = "pillow-bilinear", divide = 255 }
gives = { classes = "labels.txt", softmax = true, top = 3 }
"""

VOICES = """
name = "voices"

[[models]]
path = "voices.onnx"
test_data = "speech.wav"
inputs = { h = 0.5 }
state = { hn = "h" }
takes = { samples = "int16", rate = 8000, divide = 32768, hop = 6, input = "x" }
"""
MEAN = """<ir_version: 8, opset_import: ["" : 17]>
m (float[1, 10] x, float[1, 2] h) => (float[1, 1] y, float[1, 2] hn) {
    mean = ReduceMean<axes = [1], keepdims = 1>(x)
    hn = Add(h, mean)
    y = ReduceSum<keepdims = 1>(hn)
}"""


def ran(folder: Path, config: str) -> Path:
    """The bundle of a job whose target ships Android's library."""
    library_entry("android:1.29.0")
    assert find_archive("android:1.29.0").is_file()
    (folder / "config.toml").write_text(config, "utf-8")
    ort_mobile("run", folder / "config.toml", "--output", folder / "out", "--device", "local")
    return folder / "out/bundle"


def test_pictures(tmp_path: Path) -> None:
    onnx.save(samples.classifier(), tmp_path / "classifier.onnx")
    samples.labels(tmp_path)
    samples.pictures(tmp_path)
    bundle = ran(tmp_path, CLASSIFIER + TARGET + SETTINGS)
    assert jvm.equal(bundle) == cpp.equal(bundle) >= 2
    assert "equal in all bits (android-host:" in ort_mobile("bundle", "replay", bundle).out


GIVES = {
    "boxes": (
        'boxes = "labels.txt", layout = "xyxy+score+class", score = 0.01',
        every_answer.headed(every_answer.BOXES),
    ),
    "mask": ("mask = true", every_answer.headed(every_answer.MASK)),
    "probability": ("probability = true, index = 7", samples.classifier()),
}
"""Of pictures beside labels: what a model gives, and one that does."""


@pytest.mark.parametrize("answer", GIVES)
def test_other_answers(tmp_path: Path, answer: str) -> None:
    gives, model = GIVES[answer]
    onnx.save(model, tmp_path / "classifier.onnx")
    samples.labels(tmp_path)
    samples.pictures(tmp_path, 3)
    config = CLASSIFIER.replace('classes = "labels.txt", softmax = true, top = 3', gives)
    bundle = ran(tmp_path, config + TARGET + SETTINGS)
    assert jvm.equal(bundle) == cpp.equal(bundle) == 3


def test_texts(tmp_path: Path) -> None:
    config = job(tmp_path).read_text("utf-8").replace("most = 24 }", "most = 24 }\ngives = { embedding = true }")
    bundle = ran(tmp_path, config + TARGET)
    assert jvm.equal(bundle) == cpp.equal(bundle) == 3


def test_sound(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(MEAN), tmp_path / "voices.onnx")
    sound = np.random.default_rng(0).integers(-9000, 9000, 400, np.int16)
    recording(tmp_path / "speech.wav", sound, 8000)
    bundle = ran(tmp_path, VOICES + TARGET + SETTINGS)
    assert jvm.equal(bundle) == cpp.equal(bundle) == 1
