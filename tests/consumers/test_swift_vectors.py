"""What a bundle keeps as vectors, the Swift classes of its package give again with the same release: equal bits."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from pipeline.release.manifest import read_manifest
from tests.command import ort_mobile
from tests.features.app_data import every_answer, samples
from tests.features.app_data.test_text_job import job
from tests.features.app_data.test_windows import recording
from tests.features.vectors import swift
from tests.features.vectors.test_classes import MEAN, SETTINGS, VOICES
from tests.npm_packages import library_entry

pytestmark = pytest.mark.consumer

RELEASE = "jvm:1.29.0"
"""Apple's libraries run nowhere here: that of Linux has the same kernels."""
TARGET = """
[[targets]]
name = "phone"
platform = "ios"
min_os_version = "15.1"
ort_release = "1.29"
"""
MODEL = """
[[models]]
path = "@NAME@.onnx"
test_data = "pictures"
takes = { image = "@FORM@", filter = "pillow-bilinear", divide = 255 }
gives = { @GIVES@ }
"""
MODELS = {
    "classifier": ("rgba", 'classes = "labels.txt", softmax = true, top = 3'),
    "labelled": ("rgba", 'boxes = "labels.txt", layout = "xyxy+score+class", score = 0.01'),
    "detector": ("rgb", 'boxes = true, layout = "xyxy+score+class", score = 0.01'),
    "reader": ("rgba", 'text = "characters.txt", softmax = true'),
    "embedder": ("rgb", "embedding = true, normalize = true"),
    "segmenter": ("rgba", "mask = true"),
    "scorer": ("rgba", "probability = true, softmax = true, index = 7"),
}
HEADS = {
    "labelled": every_answer.BOXES,
    "detector": every_answer.BOXES,
    "reader": every_answer.TEXT,
    "segmenter": every_answer.MASK,
}
WORDS = """
[[models]]
path = "words.onnx"
test_data = "texts.txt"
takes = { text = "tokenizer.json", ids = "ids", mask = "mask", most = 24 }
gives = { embedding = true }
"""
EXAMPLES = Path(__file__).parents[2] / "build_configs/features"


def ran(folder: Path, models: str) -> Path:
    """The bundle of a job whose vectors are made in a library that is at hand."""
    library_entry(RELEASE)
    (folder / "job.toml").write_text(f'name = "job"\n{models}{TARGET}{SETTINGS}', "utf-8")
    ort_mobile("run", folder / "job.toml", "--output", folder / "out", "--device", "local")
    bundle = folder / "out/bundle"
    assert {kept.place for kept in read_manifest(bundle).vectors} == {f"linux-host:{RELEASE}"}
    return bundle


def with_float_samples(models: str) -> str:
    """ONNX Runtime's API for Swift has no tensors of int16."""
    return models.replace('samples = "int16"', 'samples = "float"')


def test_each_answer_texts_and_a_stream(tmp_path: Path) -> None:
    samples.labels(tmp_path)
    samples.pictures(tmp_path, 3)
    (tmp_path / "characters.txt").write_text("é\nb\n \n", "utf-8")
    text = ""
    for name, (form, gives) in MODELS.items():
        head = HEADS.get(name)
        onnx.save(every_answer.headed(head) if head else samples.classifier(), tmp_path / f"{name}.onnx")
        text += MODEL.replace("@NAME@", name).replace("@FORM@", form).replace("@GIVES@", gives)
    job(tmp_path)
    onnx.save(onnx.parser.parse_model(MEAN), tmp_path / "voices.onnx")
    recording(tmp_path / "speech.wav", np.random.default_rng(0).integers(-9000, 9000, 400, np.int16), 8000)
    text += WORDS + with_float_samples("\n[[models]]" + VOICES.partition("[[models]]")[2])
    given_again = swift.equal(ran(tmp_path, text))
    assert given_again.keys() == {*MODELS, "words", "voices"}
    assert {given_again[name] for name in (*MODELS, "words")} == {3}


def test_the_examples(tmp_path: Path) -> None:
    """Their models in one job, so that Swift builds once; their oracles are asked in tests of each."""
    folder = tmp_path / "features"
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("fetched", "__pycache__"))
    names = ("captcha", "directions", "sentences", "squares", "voices")
    fetched = subprocess.run(
        [sys.executable, str(folder / "fetch.py"), *names], capture_output=True, text=True, check=False
    )
    if fetched.returncode:
        pytest.skip(f"no packages: {fetched.stderr.strip()[-200:]}")
    text = ""
    for name in names:
        _, head, rest = (folder / f"{name}.toml").read_text("utf-8").partition("[[models]]")
        text += head + rest.partition("[[targets]]")[0]
    text = re.sub(r"(?m)^oracle.*\n", "", with_float_samples(text))
    given_again = swift.equal(ran(folder, text))
    assert given_again.keys() == {"captcha", "directions", "minilm", "squares", "vad"}
    assert all(given_again.values())
