"""`ort-mobile accuracy`: tables, JSON and exit codes on the example's digits."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from PIL import Image

from tests.command import ort_mobile

EXAMPLE = Path(__file__).resolve().parents[2] / "build_configs" / "examples" / "mnist"
MODEL, DIGITS = EXAMPLE / "mnist.onnx", EXAMPLE / "evaluation.npz"


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with its last weights negated: it is wrong on nearly everything."""
    model = onnx.load(str(MODEL))
    (dense,) = (one for one in model.graph.initializer if one.name == "dense.weight")
    dense.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(dense), dense.name))
    path = tmp_path_factory.mktemp("spoiled") / "spoiled.onnx"
    onnx.save(model, str(path))
    return path


def accuracy(folder: Path, *arguments: str | Path) -> Any:
    return ort_mobile("accuracy", *arguments, "--reference", MODEL, cwd=folder, code=None)


@pytest.mark.long
def test_a_model_within_and_one_over_the_budget(tmp_path: Path, spoiled: Path) -> None:
    done = accuracy(tmp_path, MODEL, spoiled, "--test-data", DIGITS, "--max-drop", "0.02")
    assert done.code == 4, done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("top-1 on 360 samples of")
    rows = [line for line in lines if "pp" in line]
    assert rows[0].endswith("within")
    assert rows[0].split()[1:7] == ["98.61", "%", "98.61", "%", "0.00", "pp"]
    assert rows[1].endswith("over")
    assert accuracy(tmp_path, MODEL, "--test-data", DIGITS, "--max-drop", "0.02").code == 0


def test_too_few_samples_to_tell_is_exit_code_4_and_says_how_many_would(tmp_path: Path) -> None:
    done = accuracy(tmp_path, MODEL, "--test-data", DIGITS, "--max-drop", "0.001", "--json", "-")
    assert done.code == 4
    (found,) = done.document()["models"]
    assert (found["verdict"], found["samples"]) == ("cannot tell", 360)
    assert 3500 < found["samples_needed"] < 4200
    assert done.document()["version"] == 1


def test_one_model_that_fails_does_not_cost_the_other(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x07garbage")
    done = accuracy(tmp_path, MODEL, "broken.onnx", "--test-data", DIGITS, "--samples", "20", "--json", "-")
    assert done.code == 1
    good, bad = done.document()["models"]
    assert good["samples"] == 20
    assert "broken.onnx" in bad["error"]
    assert "broken.onnx" in done.err


def test_without_labels_nothing_is_called_accuracy(tmp_path: Path) -> None:
    done = accuracy(tmp_path, MODEL, "--test-data", EXAMPLE)
    assert done.code == 0
    assert "agreement with the original's top-1" in done.out
    assert "this is not accuracy" in done.out


def test_a_folder_of_labelled_images(tmp_path: Path) -> None:
    """One command line from a folder of images by class to a verdict."""
    with np.load(DIGITS) as data:
        for number, (image, label) in enumerate(zip(data["inputs"][:60], data["labels"][:60], strict=True)):
            folder = tmp_path / "digits" / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0]).save(folder / f"{number}.png")
    done = accuracy(
        tmp_path, MODEL, "--test-data", "digits", "--preprocess", "channels = 'GRAY'", "--part", "evaluation",
        "--json", "-",
    )  # fmt: skip
    assert done.code == 0, done.err
    (found,) = done.document()["models"]
    assert found["metric"] == "top-1"
    assert found["data"] == "digits, evaluation part"
    assert 30 <= found["samples"] <= 55
    assert found["value"] >= 0.9


@pytest.mark.long
def test_the_same_division_in_transform(tmp_path: Path) -> None:
    """What is calibrated on is not measured on: the parts of both commands are the same."""
    words = ("transform", MODEL, "int8.onnx", "--do", "static-qdq", "--test-data", DIGITS, "--part", "calibration")
    ort_mobile(*words, cwd=tmp_path)
    counts = [
        accuracy(tmp_path, "int8.onnx", "--test-data", DIGITS, "--part", part, "--json", "-").document()["models"][0]
        for part in ("calibration", "evaluation")
    ]
    assert sum(found["samples"] for found in counts) == 360
    assert counts[1]["value"] >= 0.97
