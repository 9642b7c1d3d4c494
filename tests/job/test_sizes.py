"""A dimension of several sizes: an open model, and one for each size where a provider wants it fixed."""

import json
from pathlib import Path

import pytest

from tests import onnx_samples
from tests.command import ort_mobile

CONFIG = """
name = "sizes"
[[models]]
path = "a.onnx"
dimensions = {{ {sizes} }}
[variants]
levels = ["basic"]
styles = ["fixed"]
[[runs]]
provider = {providers}
[measure]
rounds = 1
min_runs = 2
min_seconds = 0.01
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx_samples.save(onnx_samples.linear(64), tmp_path / "a.onnx")
    return tmp_path


def config(folder: Path, sizes: str, *providers: str) -> Path:
    file = folder / "c.toml"
    file.write_text(CONFIG.format(sizes=sizes, providers=json.dumps(providers)), "utf-8")
    return file


@pytest.mark.long
@pytest.mark.parametrize("style", ["fixed", "onnx"])
def test_each_size_is_converted_checked_measured_and_bundled_with_the_open_model(style: str, folder: Path) -> None:
    file = config(folder, "batch = [2, 4] }\npadding = { x = -1.5", "cpu", "nnapi")
    file.write_text(file.read_text("utf-8").replace("fixed", style), "utf-8")
    ort_mobile("run", file, "--output", folder / "out")
    document = json.loads((folder / "out" / "results.json").read_text("utf-8"))
    names = ["a", "a-2", "a-4"]
    assert [row["model"] for row in document["rows"]] == names
    assert all(check["passed"] for row in document["rows"] for check in row["checks"])
    inputs = {model["name"]: model["inputs"][0] for model in document["models"]}
    assert inputs["a"] == inputs["a-4"]  # the open one is checked with the largest
    assert inputs["a"] != inputs["a-2"]
    manifest = json.loads((folder / "out" / "bundle" / "manifest.json").read_text("utf-8"))
    assert len(list((folder / "out" / "bundle" / "models").glob("*.weights"))) == (style == "onnx")
    shapes = {model["model"]: model["inputs"][0]["shape"][0] for model in manifest["content"]["models"]}
    assert shapes == {"a": "batch", "a-2": 2, "a-4": 4}
    assert [(model["size_of"], model["padding"]) for model in manifest["content"]["models"]] == [
        ("", {"x": -1.5}), ("a", {"x": -1.5}), ("a", {"x": -1.5}),
    ]  # fmt: skip


@pytest.mark.long
def test_the_cpu_takes_the_open_model_alone(folder: Path) -> None:
    ort_mobile("run", config(folder, "batch = [2, 4]", "cpu"), "--convert-only", "--output", folder / "out")
    assert [file.name for file in (folder / "out" / "artifacts").glob("*.ort")] == ["a.basic-fixed.ort"]


@pytest.mark.long
def test_sizes_of_two_models_of_one_name_are_those_of_each(folder: Path) -> None:
    (folder / "b").mkdir()
    onnx_samples.save(onnx_samples.linear(64, seed=5), folder / "b" / "a.onnx")
    more = 'batch = [2, 4] }\n[[models]]\npath = "b/a.onnx"\ndimensions = { batch = [8, 16]'
    ort_mobile("run", config(folder, more, "cpu", "nnapi"), "--convert-only", "--output", folder / "out")
    manifest = json.loads((folder / "out" / "bundle" / "manifest.json").read_text("utf-8"))
    assert {row["model"]: row["size_of"] for row in manifest["content"]["models"]} == {
        "a-1": "", "a-1-2": "a-1", "a-1-4": "a-1", "a-2": "", "a-2-8": "a-2", "a-2-16": "a-2"
    }  # fmt: skip
    code = ort_mobile("release", "snippet", folder / "out" / "bundle", "--for", "cpp").out
    assert "size_of_a_1(" in code
    assert "size_of_a_2(" in code


def test_a_model_with_the_name_of_anothers_size_is_refused(folder: Path) -> None:
    more = 'batch = [2, 4] }\n[[models]]\npath = "a.onnx"\nname = "a-2"\ndimensions = { batch = 3'
    done = ort_mobile("run", config(folder, more, "nnapi"), "--output", folder / "out", code=2)
    assert "two models are called a-2" in done.err
    assert not (folder / "out" / "artifacts").exists()


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ("batch = []", "length >= 1"),
        ("batch = [1, 0]", ">= 1"),
        ("batch = [1, 2], width = [3]", "batch has 2, width has 1"),
        ("bach = [1, 2]", "did you mean 'batch'?"),
        ("batch = [2, 4, 2]", "the size 2 is there twice"),
        ("batch = [2, 4] }\npadding = { z = 0", "the model has no input 'z'"),
        ("batch = [2, 4] }\npadding = { x = 1e39", "1e+39 is no float32 number"),
        ("batch = [2, 4] }\npadding = { x = nan", "nan is no finite number"),
        ("batch = 2 }\npadding = { x = 0", "no dimension has a list of sizes"),
    ],
)
def test_sizes_that_cannot_be_are_one_error(sizes: str, why: str, folder: Path) -> None:
    for providers in (("cpu",), ("nnapi",)):
        done = ort_mobile("run", config(folder, sizes, *providers), "--output", folder / "out", code=2)
        assert why in done.err
        assert not (folder / "out" / "artifacts").exists()
