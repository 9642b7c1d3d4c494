"""The commands take sizes and data by the same names and in the same forms."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from pipeline.dataset.guess import make_feeds, ort_inputs
from pipeline.model.sources import SourceModel
from tests.command import Done, ort_mobile
from tests.dataset.test_guess import embedded, flattened, impossible, model
from tests.onnx_samples import parsed_nodes


def paddle(folder: Path) -> Path:
    """A model of images whose sizes have a placeholder for a name."""
    onnx.save(flattened(3 * 28 * 28, ["?", 3, "?", "?"]), folder / "m.onnx")
    return folder / "m.onnx"


SIZES = ("--dimension", "x[0]=1", "--dimension", "x[2]=28", "--dimension", "x[3]=28")


def converted(folder: Path, *options: object, code: int | None = 0) -> Done:
    words = (folder / "m.onnx", "--output", folder / "out", "--level", "basic", "--style", "fixed")
    return ort_mobile("convert", *words, *options, code=code)


def measured(file: Path, folder: Path, *options: object, code: int | None = 0) -> Done:
    words = (file, "--rounds", 1, "--min-runs", 1, "--min-seconds", 0.001, "--json", folder / "p.json")
    return ort_mobile("perf", *words, *options, code=code)


@pytest.mark.long
def test_conversion_and_measuring_take_the_same_names(tmp_path: Path) -> None:
    paddle(tmp_path)
    converted(tmp_path, "--check")
    for file in (tmp_path / "m.onnx", tmp_path / "out" / "m.basic-fixed.ort"):
        measured(file, tmp_path, *SIZES)
        assert json.loads((tmp_path / "p.json").read_text())["rows"]


def test_a_file_in_the_ort_format_says_its_inputs(tmp_path: Path) -> None:
    paddle(tmp_path)
    converted(tmp_path)
    (info,) = ort_inputs(tmp_path / "out" / "m.basic-fixed.ort")
    assert (info.name, len(info.shape or ()), (info.shape or ())[1]) == ("x", 4, 3)


@pytest.mark.parametrize("name", ["m.onnx", "out/m.basic-fixed.ort"])
def test_a_misspelt_dimension_is_refused_by_perf(tmp_path: Path, name: str) -> None:
    onnx.save(model(parsed_nodes("y = Relu (x)"), {"x": (1, ["batch", 3])}), tmp_path / "m.onnx")
    converted(tmp_path)
    result = measured(tmp_path / name, tmp_path, "--dimension", "bacth=3", code=2)
    assert "remedy: did you mean 'batch'?\n" in result.err


def test_a_file_in_the_ort_format_wants_sizes_by_name(tmp_path: Path) -> None:
    paddle(tmp_path)
    converted(tmp_path)
    result = measured(tmp_path / "out" / "m.basic-fixed.ort", tmp_path, "--dimension", "x[2]=4", code=2)
    assert "x[3]" in result.err


def test_what_is_measured_is_the_test_data(tmp_path: Path) -> None:
    values = np.arange(3 * 28 * 28, dtype=np.float32).reshape(1, 3, 28, 28)
    np.savez(tmp_path / "a.npz", x=values)
    paddle(tmp_path)
    measured(tmp_path / "m.onnx", tmp_path, "--test-data", tmp_path / "a.npz")


def test_values_of_inputs_become_the_feeds(tmp_path: Path) -> None:
    from pipeline.cli.options import dataset_from

    onnx.save(embedded(178), tmp_path / "m.onnx")
    data = dataset_from(None, {"tokens": {"low": 170, "high": 178}})
    source = SourceModel(path=str(tmp_path / "m.onnx"))
    (tensor,) = make_feeds(source, {"length": 9}, data, str(tmp_path))
    found = np.fromfile(tensor.file, "<i8")
    assert tensor.shape == (1, 9)
    assert ((found >= 170) & (found < 178)).all()


def test_a_check_runs_on_test_data_and_refuses_other_before_converting(tmp_path: Path) -> None:
    paddle(tmp_path)
    np.savez(tmp_path / "good.npz", x=np.ones((1, 3, 28, 28), np.float32))
    np.savez(tmp_path / "bad.npz", x=np.ones((1, 3, 28, 28), np.float64))
    converted(tmp_path, "--check", "--test-data", tmp_path / "good.npz")
    converted(tmp_path, "--check", "--test-data", tmp_path / "bad.npz", "--output", tmp_path / "b", code=2)
    assert not list((tmp_path / "b").glob("*.ort"))
    assert "--check and --precision; add one" in converted(tmp_path, "--input", "x=1", code=2).err


def test_a_check_without_any_size_names_the_option(tmp_path: Path) -> None:
    onnx.save(impossible(), tmp_path / "m.onnx")
    result = converted(tmp_path, "--check", code=2)
    assert "--dimension" in result.err.partition("remedy:")[2]


def test_advice_is_checked_on_test_data(tmp_path: Path) -> None:
    paddle(tmp_path)
    np.savez(tmp_path / "good.npz", x=np.ones((1, 3, 28, 28), np.float32))
    words = ("partition", tmp_path / "m.onnx", "--ep", "nnapi")
    ort_mobile(*words, "--advise", "--test-data", tmp_path / "good.npz", "--json", tmp_path / "a.json")
    assert "[1, 3, 28, 28]" in (tmp_path / "a.json").read_text()
    assert "add one" in ort_mobile(*words, "--input", "x=1", code=2).err


def test_conversion_names_dimensions_as_the_cause(tmp_path: Path) -> None:
    onnx.save(flattened(3 * 4 * 6, ["batch", 3, "height", "width"]), tmp_path / "m.onnx")
    result = converted(tmp_path, "--dimension", "height=5", "--dimension", "width=5", "--json", "-", code=1)
    assert result.code
    assert "sizes given for its dimensions" in result.text
    assert "check_model" not in result.text
