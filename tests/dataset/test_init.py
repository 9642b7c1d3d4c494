"""`ort-mobile init` writes a config that `ort-mobile run` takes as it is, or says which line to fill in."""

import tomllib
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import helper, numpy_helper

from pipeline.cli.run import init, run
from pipeline.config import Range, read_config
from pipeline.core.errors import ConfigError
from pipeline.dataset import Dataset
from pipeline.job.template import config_for_model
from tests.dataset.test_guess import embedded, flattened, impossible, model, switched


def write(folder: Path, made: onnx.ModelProto, *options: str) -> Result:
    onnx.save(made, folder / "m.onnx")
    return CliRunner().invoke(init, [str(folder / "m.onnx"), "--output", str(folder / "m.toml"), *options])


def test_what_is_guessed_is_marked_and_printed(tmp_path: Path) -> None:
    result = write(tmp_path, flattened(3 * 48 * 320, ["?", 3, "?", "?"]))
    assert result.exit_code == 0, result.output
    assert "x float32 [?, 3, ?, ?]" in result.output
    assert "guessed: x[2] = 48" in result.output
    text = (tmp_path / "m.toml").read_text()
    assert 'dimensions = { "x[0]" = 1, "x[2]" = 48, "x[3]" = 320 }  # GUESSED' in text
    (table,) = read_config(tmp_path / "m.toml").models
    assert table.dimensions == {"x[0]": 1, "x[2]": 48, "x[3]": 320}


def test_values_of_inputs_are_written(tmp_path: Path) -> None:
    write(tmp_path, embedded(178))
    (table,) = read_config(tmp_path / "m.toml").models
    assert table.inputs == {"tokens": Range(low=0, high=178)}
    write(tmp_path, switched(), "--force", "--input", "sr=16000")
    (table,) = read_config(tmp_path / "m.toml").models
    assert table.inputs == {"sr": 16000}
    assert "GUESSED" not in (tmp_path / "m.toml").read_text().partition("labels")[0]


def data_set(folder: Path, *shapes: tuple[int, ...]) -> None:
    for number, shape in enumerate(shapes):
        (folder / f"test_data_set_{number}").mkdir(parents=True)
        tensor = numpy_helper.from_array(np.ones(shape, np.float32), "x")
        (folder / f"test_data_set_{number}" / "input_0.pb").write_bytes(tensor.SerializeToString())


def test_sizes_come_from_test_data_beside_the_model(tmp_path: Path) -> None:
    data_set(tmp_path, (2, 3, 8, 24), (2, 3, 24, 8))
    result = write(tmp_path, flattened(3 * 8 * 24, ["batch", 3, "height", "width"]))
    assert result.exit_code == 0, result.output
    text = (tmp_path / "m.toml").read_text()
    document = tomllib.loads(text)["models"][0]
    assert document["test_data"] == "."
    assert document["dimensions"] == {"batch": 2}, "the samples have no other size in common"
    assert "GUESSED" not in text


def test_where_no_size_works_the_line_to_fill_in_is_named(tmp_path: Path) -> None:
    result = write(tmp_path, impossible())
    assert isinstance(result.exception, ConfigError)
    path, _, line = result.exception.where.rpartition(":")
    assert path == str(tmp_path / "m.toml")
    lines = (tmp_path / "m.toml").read_text().splitlines()
    assert lines[int(line) - 1] == '# dimensions = { "batch" = 1, "width_of_it" = 0 }  # FILL IN'
    with pytest.raises(ConfigError) as caught:
        read_config(tmp_path / "m.toml")
    assert caught.value.where == f"{path}:{line}"
    filled = lines[int(line) - 1].removeprefix("# ").replace("= 0", "= 5").removesuffix("# FILL IN")
    lines[int(line) - 1] = filled
    (tmp_path / "m.toml").write_text("\n".join(lines))
    assert read_config(tmp_path / "m.toml").models[0].dimensions == {"batch": 1, "width_of_it": 5}


def test_a_run_without_a_config_finds_the_same(tmp_path: Path) -> None:
    onnx.save(switched(), tmp_path / "m.onnx")
    config, guess = config_for_model(tmp_path / "m.onnx", Dataset())
    assert config.models[0].inputs == {"sr": 16000} == guess.values
    onnx.save(impossible(), tmp_path / "m.onnx")
    with pytest.raises(ConfigError) as caught:
        config_for_model(tmp_path / "m.onnx", Dataset())
    assert "width_of_it" in caught.value.remedy


WRONG = {
    "test_data": ('test_data = "nope"', "nope"),
    "dimension": ("dimensions = { bacth = 1 }", "bacth"),
    "size": ("dimensions = { batch = 1, height = 1, width = 1 }", "sizes given for its dimensions"),
    "input": ("inputs = { y = 1 }", "'y'"),
    "value": ("inputs = { x = { low = 1, high = 0 } }", "empty"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_inputs_are_refused_before_converting(tmp_path: Path, name: str) -> None:
    line, words = WRONG[name]
    onnx.save(flattened(3 * 96 * 96, ["batch", 3, "height", "width"]), tmp_path / "m.onnx")
    (tmp_path / "m.toml").write_text(f'name = "m"\n[[models]]\npath = "m.onnx"\n{line}\n')
    result = CliRunner().invoke(run, [str(tmp_path / "m.toml"), "--output", str(tmp_path / "out"), "--convert-only"])
    assert isinstance(result.exception, ConfigError), result.output
    told = f"{result.exception.what} {result.exception.where} {result.exception.why}"
    assert words in told
    assert not list((tmp_path / "out").glob("artifacts/*.ort"))


def test_data_options_are_for_models_without_a_config(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text('name = "m"\n[[models]]\npath = "m.onnx"\n')
    result = CliRunner().invoke(run, [str(tmp_path / "m.toml"), "--input", "x=1"])
    assert result.exit_code == 2
    assert "--model" in result.output


@pytest.mark.parametrize("value", ["x", "=1", "x=", "x=1:2:3", "x=a"])
def test_values_that_are_none_are_refused(tmp_path: Path, value: str) -> None:
    result = write(tmp_path, model([helper.make_node("Relu", ["x"], ["y"])], {"x": (1, [3])}), "--input", value)
    assert result.exit_code == 2
    assert "NAME=VALUE" in result.output
