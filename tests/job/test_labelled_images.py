"""One command from a float model and a folder of labelled images to a bundle with an int8 artifact within budget."""

import json
from pathlib import Path

import pytest

from tests.command import ort_mobile
from tests.job.test_job import EXAMPLE
from tests.passes.quantized_models import write_digits

GRAY = 'channels = "GRAY"'


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's digits as a folder for each class, as people have them."""
    return write_digits(tmp_path_factory.mktemp("images") / "digits")


def job(folder: Path, *more: str | Path) -> tuple[int, str]:
    ended = ort_mobile(
        "run", "--model", EXAMPLE / "mnist.onnx", "--convert-only", "--quick", "--output", folder, *more, code=None
    )
    return ended.code, ended.err


@pytest.mark.long
def test_the_bundle_has_the_int8_artifact_that_keeps_the_budget(tmp_path: Path, digits: Path) -> None:
    code, stderr = job(
        tmp_path / "out", "--test-data", digits, "--preprocess", GRAY, "--precision", "int8-nnapi", "--max-drop", "0.02"
    )
    assert code == 0, stderr
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    found = [one["result"] for one in results["accuracy"]]
    assert {(one["metric"], one["labelled"], one["verdict"]) for one in found} == {("top-1", True, "within")}
    assert all(200 < one["samples"] < 320 for one in found), "one in four was for calibration"
    assert not [one for one in results["warnings"] if "calibration data" in one["what"]], "no sample served both"
    manifest = json.loads((tmp_path / "out" / "bundle" / "manifest.json").read_text())
    (shipped,) = manifest["content"]["ships"]
    assert shipped["variant"]["precision"] == "u8u8nnapi", "the default target begins below API level 29"
    assert "GRAY" in (tmp_path / "out" / "bundle" / "manifest.json").read_text(), "the app must do the same"


@pytest.mark.long
def test_a_budget_that_nothing_keeps_leaves_no_bundle(tmp_path: Path, digits: Path) -> None:
    code, stderr = job(
        tmp_path / "out",
        "--test-data",
        digits,
        "--preprocess",
        GRAY,
        "--precision",
        "int8-nnapi",
        "--max-drop",
        "0.0001",
    )
    assert code == 4, stderr
    assert not (tmp_path / "out" / "bundle").exists()


@pytest.mark.parametrize("option", [("--preprocess", GRAY), ("--labels", "labels.csv")])
def test_data_of_a_config_are_not_given_beside_it(tmp_path: Path, option: tuple[str, str]) -> None:
    (tmp_path / "c.toml").write_text('name = "c"\n')
    ended = ort_mobile("run", tmp_path / "c.toml", *option, code=2)
    assert "are for --model" in ended.err
