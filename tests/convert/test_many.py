"""Names of many models: readable, no two equal, and it is said which model has which."""

import re
import shutil
from pathlib import Path

import pytest

from pipeline.model.ort_format import read_ort
from pipeline.model.sources import MOST_LINES, SourceModel, name_models, numbered_lines
from tests.command import ort_mobile

ROOT = Path(__file__).parents[2]
MNIST = ROOT / "build_configs/examples/mnist/mnist.onnx"

CONFIG = """
name = "job"
[[models]]
path = "models"
[[targets]]
name = "phone"
platform = "android"
"""


def names_of(*paths: str) -> list[str]:
    models = name_models([SourceModel(path=path) for path in paths], [None] * len(paths), [{}] * len(paths))
    return [model.name for model in models]


def test_equal_names_get_numbers_that_no_other_model_has() -> None:
    assert names_of("a/m.onnx", "b/m.onnx", "c/n.onnx") == ["m-1", "m-2", "n"]
    assert names_of("a/m.onnx", "m-1.onnx", "b/M.onnx") == ["m-2", "m-1", "M-3"]
    assert names_of("a/my model.onnx", "a/my_model.onnx") == ["my_model-1", "my_model-2"]


def test_lines_name_those_of_equal_names_only_and_not_thousands() -> None:
    paths = ["a/m.onnx", "n.onnx", "b/m.onnx"]
    models = name_models([SourceModel(path=path) for path in paths], [None] * 3, [{}] * 3)
    assert numbered_lines(models) == ("m-1 is a/m.onnx", "m-2 is b/m.onnx")
    many = [SourceModel(path=f"{number}/m.onnx") for number in range(MOST_LINES + 3)]
    lines = numbered_lines(name_models(many, [None] * len(many), [{}] * len(many)))
    assert (len(lines), lines[-1]) == (MOST_LINES + 1, "and 3 more with equal names")


@pytest.fixture
def twins(tmp_path: Path) -> Path:
    """A folder with two models of the same file name."""
    for name in ("a", "b"):
        (tmp_path / "models" / name).mkdir(parents=True)
        shutil.copy(MNIST, tmp_path / "models" / name / "m.onnx")
    return tmp_path


@pytest.mark.long
def test_convert_and_run_say_which_is_which(twins: Path) -> None:
    converted = ort_mobile(
        "convert", "models", "--level", "basic", "--style", "fixed", "--output", "out", cwd=twins
    ).out
    (twins / "job.toml").write_text(CONFIG)
    job = ort_mobile("run", "job.toml", "--quick", "--convert-only", "--output", "job", cwd=twins).out
    assert "m-1 is models/a/m.onnx\nm-2 is models/b/m.onnx" in converted
    told = re.search(r"Warnings\n(.*)\n\n", job, re.DOTALL)
    assert told
    assert re.search(r"- m-1 is \S*models/a/m.onnx", told[1])
    assert re.search(r"- m-2 is \S*models/b/m.onnx", told[1])


def test_models_that_all_fail_leave_no_line_of_totals(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").touch()
    (tmp_path / "b.onnx").touch()
    ended = ort_mobile("convert", "a.onnx", "b.onnx", "--output", "out", cwd=tmp_path, code=1)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.count("the file is empty") == 2


@pytest.mark.long
def test_precisions_become_files_of_their_own_and_auto_says_what_it_kept(tmp_path: Path) -> None:
    shown = ort_mobile(
        "convert", MNIST, "--precision", "float,auto", "--test-data", str(MNIST.parent),
        "--level", "all", "--style", "fixed", "--check", "--output", "out", cwd=tmp_path,
    ).out  # fmt: skip
    assert {path.name for path in (tmp_path / "out").glob("*.ort")} == {
        "mnist.all-fixed.ort", "mnist.all-fixed-s8s8pc.ort", "mnist.all-fixed-dyn8.ort",
    }  # fmt: skip
    nodes = read_ort(tmp_path / "out/mnist.all-fixed-s8s8pc.ort").graph.nodes
    assert {node.op_type for node in nodes if "Conv" in node.op_type} == {"QLinearConv"}, "int8 on ARM, its target"
    assert "for arm64-v8a: out" in shown
    assert "3 of 3 give the outputs of the model in their precision (at worst " in shown
    (quantized,) = (line for line in shown.splitlines() if "all-fixed-s8s8pc " in line)
    assert re.search(r"ok \S+, \d+\.\d dB from float$", quantized), "beside the distance from the float original"
    assert "precision cpu-arm64: int8 (s8s8pc) kept" in shown
    assert "precision cpu-arm64: dynamic int8 (dyn8) kept: beside s8s8pc" in shown


@pytest.mark.long
def test_auto_chooses_for_the_abi(tmp_path: Path) -> None:
    """Files for x86_64 may not keep int8 values as they are: uint8 ones are computed as integers there."""
    shown = ort_mobile(
        "convert", MNIST, "--precision", "auto", "--test-data", str(MNIST.parent),
        "--level", "all", "--style", "fixed", "--abi", "x86_64", "--output", "out", cwd=tmp_path,
    ).out  # fmt: skip
    assert "precision cpu-x86_64: int8 (u8s8pc) kept" in shown
    nodes = read_ort(tmp_path / "out/mnist.all-fixed-u8s8pc.ort").graph.nodes
    assert {node.op_type for node in nodes if "Conv" in node.op_type} == {"QLinearConv"}
