"""The example model: its digests, its accuracy, and that its script still makes it."""

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "build_configs" / "examples" / "mnist"


def digests(folder: Path) -> dict[str, str]:
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    return {name: digest for digest, name in (line.split("  ") for line in lines)}


@pytest.fixture(scope="module")
def make() -> ModuleType:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    spec = importlib.util.spec_from_file_location("example_mnist_make", EXAMPLE / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_data_file_has_its_stored_digest() -> None:
    stored = digests(EXAMPLE)
    files = [path for path in EXAMPLE.rglob("*") if path.suffix in {".onnx", ".pb", ".npz"}]
    assert {path.relative_to(EXAMPLE).as_posix() for path in files} == set(stored)
    assert all(hashlib.sha256(path.read_bytes()).hexdigest() == stored[path.relative_to(EXAMPLE).as_posix()]
               for path in files)  # fmt: skip


def test_gives_the_stored_outputs_and_the_stored_labels() -> None:
    run = onnxruntime.InferenceSession(EXAMPLE / "mnist.onnx").run
    for data_set in sorted(EXAMPLE.glob("test_data_set_*")):
        image = numpy_helper.to_array(onnx.load_tensor(str(data_set / "input_0.pb")))
        expected = numpy_helper.to_array(onnx.load_tensor(str(data_set / "output_0.pb")))
        np.testing.assert_allclose(run(["logits"], {"image": image})[0], expected, rtol=1e-4, atol=1e-4)
    evaluation = np.load(EXAMPLE / "evaluation.npz", allow_pickle=False)
    images, labels = evaluation["inputs"], evaluation["labels"]
    assert images.shape == (360, 1, 28, 28)
    assert images.dtype == labels.dtype == np.uint8
    answers = [run(["logits"], {"image": image[None].astype(np.float32)})[0].argmax() for image in images]
    assert (np.array(answers) == labels).mean() > 0.95


OF_32_DIGITS = "c4399b8aa4ae1bff965b41ba930b3105d4ae096b5a47a25733001d503efb15fa"
"""The digest of the model that 32 digits give."""


@pytest.mark.example
def test_script_makes_the_same_bytes_anywhere(
    make: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained with 32 digits; below with all, for a minute."""
    training, evaluation = make.split(make.load_digits())
    monkeypatch.setattr(make, "split", lambda _: (training.take(np.arange(32)), evaluation))
    make.make(tmp_path)
    ours, stored = digests(tmp_path), digests(EXAMPLE)
    assert ours["mnist.onnx"] == OF_32_DIGITS
    assert {name for name, digest in ours.items() if stored[name] != digest} == {
        "mnist.onnx", *(f"test_data_set_{number}/output_0.pb" for number in range(3))
    }  # fmt: skip


@pytest.mark.example
@pytest.mark.nightly
def test_script_makes_the_same_bytes_again(make: ModuleType, tmp_path: Path) -> None:
    accuracy = make.make(tmp_path)
    assert accuracy > 0.95
    assert digests(tmp_path) == digests(EXAMPLE)
