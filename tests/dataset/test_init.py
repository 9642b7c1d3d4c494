"""`ort-mobile init` writes a config that `ort-mobile run` takes as it is, or says which line to fill in."""

import re
import tomllib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from pipeline.advice.fitness import check_models
from pipeline.cli.run import config_of_model
from pipeline.config import Range, read_config
from pipeline.core.errors import ConfigError
from pipeline.core.releases import Release
from pipeline.dataset import Dataset
from pipeline.job.template import config_for_model
from pipeline.partition.answer import make_settings
from pipeline.release.shipped import shipped_library
from tests.command import Done, ort_mobile
from tests.dataset.test_guess import embedded, encoded, flattened, impossible, mapped, model, state_and_speed, switched
from tests.onnx_samples import parsed_nodes


def write(folder: Path, proto: onnx.ModelProto, *options: str, code: int | None = 0) -> Done:
    onnx.save(proto, folder / "m.onnx")
    return ort_mobile("init", folder / "m.onnx", "--output", folder / "m.toml", *options, code=code)


def test_what_is_guessed_is_marked_and_printed(tmp_path: Path) -> None:
    result = write(tmp_path, flattened(3 * 48 * 320, ["?", 3, "?", "?"]))
    assert "x float32 [?, 3, ?, ?]" in result.text
    assert "guessed: x[2] = 48" in result.text
    text = (tmp_path / "m.toml").read_text()
    assert 'dimensions = { "x[0]" = 1, "x[2]" = 48, "x[3]" = 320 }  # GUESSED' in text
    (table,) = read_config(tmp_path / "m.toml").models
    assert table.dimensions == {"x[0]": 1, "x[2]": 48, "x[3]": 320}
    assert table.guessed == ("x[0]", "x[2]", "x[3]")
    assert "is left out stays open, for the CPU only" in text


def test_an_input_is_said_to_be_one_whatever_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = flattened(3 * 48 * 320, ["?", 3, "?", "?"])
    made.graph.input[0].name = "guessed"
    for node in made.graph.node:
        node.input[:] = ["guessed" if name == "x" else name for name in node.input]
    onnx.save(made, tmp_path / "m.onnx")
    config_of_model(tmp_path / "m.onnx", Dataset(), {})
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("input guessed float32")
    assert all(line.startswith("guessed: ") for line in lines[1:])


@pytest.mark.parametrize(
    ("installed", "release"), [(Release(1, 32), "1.29"), (Release(1, 29), None)], ids=["newer", "as new"]
)
def test_the_release_is_one_of_which_a_package_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: Release, release: str | None
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # no caches of build tools
    monkeypatch.setattr("pipeline.core.releases.installed_release", lambda: installed)
    write(tmp_path, embedded(178))
    (target,) = read_config(tmp_path / "m.toml").targets
    assert target.ort_release == release
    assert config_for_model(tmp_path / "m.onnx", Dataset())[0].targets[0].ort_release == release


def test_the_target_for_ios_needs_its_comment_signs_removed_alone(tmp_path: Path) -> None:
    write(tmp_path, embedded(178))
    before, marked, rest = (tmp_path / "m.toml").read_text().partition("# [[targets]]")
    ios, blank, rest = (marked + rest).partition("\n\n")
    (tmp_path / "m.toml").write_text(before + ios.replace("\n# ", "\n").removeprefix("# ") + blank + rest)
    config = read_config(tmp_path / "m.toml")
    assert [(target.platform, target.ort_release) for target in config.targets][1:] == [("ios", "1.24")]
    assert shipped_library(config.targets[1], config, "1.32.0").findings == ()


def test_values_of_inputs_are_written(tmp_path: Path) -> None:
    write(tmp_path, embedded(178))
    (table,) = read_config(tmp_path / "m.toml").models
    assert table.inputs == {"tokens": Range(low=0, high=178)}
    write(tmp_path, switched(), "--force", "--input", "sr=16000")
    (table,) = read_config(tmp_path / "m.toml").models
    assert table.inputs == {"sr": 16000}
    assert "GUESSED" not in (tmp_path / "m.toml").read_text().partition("labels")[0]


def test_a_state_and_guessed_constants_are_written(tmp_path: Path) -> None:
    write(tmp_path, state_and_speed())
    (table,) = read_config(tmp_path / "m.toml").models
    assert (table.state, table.inputs) == ({"stateN": "state"}, {"state": 0.0, "speed": 1.0})
    assert table.guessed == ("state[1]", "speed")
    (found,) = config_for_model(tmp_path / "m.onnx", Dataset())[0].models
    assert (found.state, found.guessed) == (table.state, table.guessed)


def test_a_guessed_constant_is_a_reservation_by_name(tmp_path: Path) -> None:
    onnx.save(mapped("hidden_states", "y", [1, 4]), tmp_path / "free.onnx")
    masked = model(parsed_nodes("m = Cast <to = 1> (mask)  y = Mul (x, m)"), {"x": (1, [1, 4]), "mask": (7, [1, 4])})
    onnx.save(masked, tmp_path / "m.onnx")
    ended = ort_mobile("run", "--model", "m.onnx", "--convert-only", "--quick", "--output", "out", cwd=tmp_path)
    assert "mask was 1 in every sample by a guess" in ended.out
    ended = ort_mobile("run", "--model", "free.onnx", "--convert-only", "--quick", "--output", "out", cwd=tmp_path)
    assert "by a guess" not in ended.out


def data_set(folder: Path, *shapes: tuple[int, ...]) -> None:
    for number, shape in enumerate(shapes):
        (folder / f"test_data_set_{number}").mkdir(parents=True)
        tensor = numpy_helper.from_array(np.ones(shape, np.float32), "x")
        (folder / f"test_data_set_{number}" / "input_0.pb").write_bytes(tensor.SerializeToString())


def test_sizes_come_from_test_data_beside_the_model(tmp_path: Path) -> None:
    data_set(tmp_path, (2, 3, 8, 24), (2, 3, 24, 8))
    write(tmp_path, flattened(3 * 8 * 24, ["batch", 3, "height", "width"]))
    text = (tmp_path / "m.toml").read_text()
    document = tomllib.loads(text)["models"][0]
    assert document["test_data"] == "."
    assert document["dimensions"] == {"batch": 2}, "the samples have no other size in common"
    assert "guessed" not in document
    assert "GUESSED" not in text


def test_where_no_size_works_the_line_to_fill_in_is_named(tmp_path: Path) -> None:
    result = write(tmp_path, impossible(), code=2)
    path = tmp_path / "m.toml"
    (line,) = re.findall(rf"{re.escape(str(path))}:(\d+)", result.err)
    lines = (tmp_path / "m.toml").read_text().splitlines()
    assert lines[int(line) - 1] == '# dimensions = { "batch" = 1, "width_of_it" = 0 }  # FILL IN'
    with pytest.raises(ConfigError) as caught:
        read_config(tmp_path / "m.toml")
    assert caught.value.where == f"{path}:{line}"
    filled = lines[int(line) - 1].removeprefix("# ").replace("= 0", "= 5").removesuffix("# FILL IN")
    lines[int(line) - 1] = filled
    (tmp_path / "m.toml").write_text("\n".join(lines))
    assert read_config(tmp_path / "m.toml").models[0].dimensions == {"batch": 1, "width_of_it": 5}


def test_the_line_of_a_text_is_left_to_the_user_and_runs_once_it_is_filled_in(tmp_path: Path) -> None:
    said = write(tmp_path, encoded(), code=2).err
    path = tmp_path / "m.toml"
    (number,) = re.findall(rf"{re.escape(str(path))}:(\d+)", said)
    assert "no text is known for words" in said
    lines = path.read_text().splitlines()
    assert lines[int(number) - 1] == '# inputs = { "words" = "" }  # FILL IN'
    assert '"cat", "dog"' in lines[int(number) - 2]
    assert 'dimensions = { "b" = 1, "n" = 64 }  # GUESSED' in lines
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert caught.value.where == f"{path}:{number}"
    lines[int(number) - 1] = 'inputs = { "words" = "dog" }'
    path.write_text("\n".join(lines))
    ort_mobile("run", path, "--convert-only", "--quick", "--output", tmp_path / "out")


def test_texts_and_sizes_are_both_left_to_the_user(tmp_path: Path) -> None:
    made = impossible()
    made.graph.input.append(helper.make_tensor_value_info("text", onnx.TensorProto.STRING, [1]))
    said = write(tmp_path, made, code=2).err
    assert "no size was found for width_of_it, no text is known for text" in said
    lines = [line for line in (tmp_path / "m.toml").read_text().splitlines() if line.endswith("# FILL IN")]
    assert [line.split(" = ")[0] for line in lines] == ["# inputs", "# dimensions"]


def test_a_text_that_is_given_is_written(tmp_path: Path) -> None:
    write(tmp_path, encoded(), "--input", 'words="cat"')
    assert read_config(tmp_path / "m.toml").models[0].inputs == {"words": "cat"}


def test_a_run_without_a_config_finds_the_same(tmp_path: Path) -> None:
    onnx.save(switched(), tmp_path / "m.onnx")
    config, guess = config_for_model(tmp_path / "m.onnx", Dataset())
    assert config.models[0].inputs == {"sr": 16000} == guess.values
    onnx.save(impossible(), tmp_path / "m.onnx")
    with pytest.raises(ConfigError) as caught:
        config_for_model(tmp_path / "m.onnx", Dataset())
    assert "width_of_it" in caught.value.remedy


def test_sizes_that_are_given_are_kept_and_the_others_found(tmp_path: Path) -> None:
    result = write(tmp_path, flattened(3 * 96 * 96, ["batch", 3, "height", "width"]), "--dimension", "batch=2")
    text = (tmp_path / "m.toml").read_text()
    assert read_config(tmp_path / "m.toml").models[0].dimensions == {"batch": 2, "height": 96, "width": 96}
    assert "batch: as given" in text
    assert "batch = 2 (" not in result.text, "it is no guess"


def test_a_run_without_a_config_takes_the_sizes_that_its_remedy_asks_for(tmp_path: Path) -> None:
    nodes = parsed_nodes("y = Reshape (x, shape)")
    made = model(nodes, {"x": (1, ["batch", "width_of_it", 7])}, {"shape": np.array([11, 91], np.int64)})
    write(tmp_path, made, code=2)
    config, _ = config_for_model(tmp_path / "m.onnx", Dataset(), {"width_of_it": 143})
    assert config.models[0].dimensions == {"batch": 1, "width_of_it": 143}
    result = ort_mobile("run", "--model", tmp_path / "m.onnx", "--dimension", "wdith_of_it=143", code=2)
    assert "wdith_of_it" in result.err


@pytest.mark.parametrize("option", [("--dimension", "batch=1"), ("--input", "x=1")])
def test_sizes_and_data_are_for_models_without_a_config(tmp_path: Path, option: tuple[str, str]) -> None:
    (tmp_path / "m.toml").write_text('name = "m"\n[[models]]\npath = "m.onnx"\n')
    result = ort_mobile("run", tmp_path / "m.toml", *option, code=2)
    assert "--dimension, --preprocess, --labels and --keep-float are for --model" in result.err


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
    result = ort_mobile("run", tmp_path / "m.toml", "--output", tmp_path / "out", "--convert-only", code=2)
    assert words in result.err.partition("remedy:")[0]
    assert not list((tmp_path / "out").glob("artifacts/*.ort"))


@pytest.mark.parametrize("value", ["x", "=1", "x=", "x=1:2:3", "x=a"])
def test_values_that_are_none_are_refused(tmp_path: Path, value: str) -> None:
    result = write(tmp_path, model(parsed_nodes("y = Relu (x)"), {"x": (1, [3])}), "--input", value, code=2)
    assert "NAME=VALUE" in result.err


def test_a_custom_domain_is_refused_at_once_in_the_words_of_convert(tmp_path: Path) -> None:
    nodes = parsed_nodes("y = my.domain.Foo (x)")
    takes, gives = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [takes], [gives])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("my.domain", 1)]
    result = write(tmp_path, helper.make_model(graph, opset_imports=imports, ir_version=9), code=1)
    expected = "operator Foo of domain my.domain is unknown: of a custom domain, or misspelt"
    assert result.code == 1
    assert expected in result.err
    assert not (tmp_path / "m.toml").exists()
    (answer,) = check_models([tmp_path / "m.onnx"], (make_settings("nnapi"),), {}).models
    assert str(answer.error).startswith(expected)
    assert str(answer.remedy).startswith("give the library that has it (--custom-ops")
    assert f"remedy: {answer.remedy}\n" in result.err


def test_a_check_guesses_the_same_sizes_although_its_inference_takes_others(tmp_path: Path) -> None:
    nodes = parsed_nodes("same = Equal (count, only)  shape = Concat <axis = 0> (one, count)  y = Reshape (x, shape)")
    tensors = {"only": np.array([256]), "one": np.array([1])}
    write(tmp_path, model(nodes, {"x": (1, ["batch", "samples"]), "count": (onnx.TensorProto.INT64, [1])}, tensors))
    assert '"samples" = 256' in (tmp_path / "m.toml").read_text()
    (answer,) = check_models([tmp_path / "m.onnx"], (make_settings("nnapi"),), {}).models
    assert answer.sizes == {"batch": 1, "samples": 256}


def test_a_name_cannot_turn_the_text_of_the_config(tmp_path: Path) -> None:
    name = "a\u202eb\x1b\x7f"
    write(tmp_path, model([onnx.helper.make_node("Relu", [name], ["y"])], {name: (1, ["n\u2066"])}))
    text = (tmp_path / "m.toml").read_text()
    assert "\u202e" not in text
    assert "\u2066" not in text
    assert tomllib.loads(text)["models"][0]["dimensions"] == {"n\u2066": 64}


def test_a_name_that_is_not_the_files_is_shown(tmp_path: Path) -> None:
    onnx.save(embedded(178), tmp_path / "mein Modell ä.onnx")
    result = ort_mobile("init", tmp_path / "mein Modell ä.onnx", "--output", tmp_path / "m.toml")
    assert "called mein_Modell_a in the config and in file names" in result.out
    assert "called" not in write(tmp_path, embedded(178), "--force").text
