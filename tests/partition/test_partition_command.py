"""`ort-mobile partition` as a user calls it."""

import json
import zipfile
from pathlib import Path

import msgspec
import onnx
import pytest
from click.testing import CliRunner, Result

from pipeline.cli.partition import partition
from pipeline.errors import ConfigError
from tests.partition_samples import chain


def call(*arguments: str) -> Result:
    return CliRunner().invoke(partition, arguments, catch_exceptions=False)


def test_answers_of_an_archive_name_its_members(tmp_path: Path) -> None:
    archive = tmp_path / "models.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("a/good.onnx", chain("Relu", "Erf").SerializeToString())
        packed.writestr("broken.onnx", b"no model")
        packed.writestr("notes.txt", "passed over")
    result = call(str(archive), "--ep", "nnapi", "--ort-release", "1.23", "--json", str(tmp_path / "out.json"))
    assert result.exit_code == 1
    document = json.loads((tmp_path / "out.json").read_bytes())
    by_path = {model["path"]: model for model in document["models"]}
    assert set(by_path) == {f"{archive}/a/good.onnx", f"{archive}/broken.onnx"}
    good = by_path[f"{archive}/a/good.onnx"]
    assert (good["nodes"], good["claimed"], good["partitions"], good["error"]) == (2, 1, [["y0"]], None)
    assert good["decisions"][1]["reason"]
    assert by_path[f"{archive}/broken.onnx"]["error"]


def test_terminal_shows_coverage_cuts_and_remedies(tmp_path: Path) -> None:
    onnx.save(chain("Relu", "Softplus", "Relu", "Tanh"), tmp_path / "m.onnx")
    result = call(str(tmp_path / "m.onnx"), "--ep", "nnapi")
    assert result.exit_code == 0
    assert "3 of 4 nodes claimed (75%)" in result.output
    assert "partitions 2 → 1" in result.output


def test_level_basic_is_judged_after_its_fusions(tmp_path: Path) -> None:
    onnx.save(chain("Relu", "Identity", "Relu"), tmp_path / "m.onnx")
    for level, nodes in (("none", 3), ("basic", 2)):
        call(str(tmp_path / "m.onnx"), "--ep", "nnapi", "--optimize", level, "--json", str(tmp_path / "out.json"))
        assert json.loads((tmp_path / "out.json").read_bytes())["models"][0]["nodes"] == nodes


@pytest.mark.parametrize(
    "arguments",
    [
        ("--nnapi-flags", "USE_NHWC"),
        ("--ort-release", "1.18"),
        ("--ort-release", "newest"),
        ("--coreml-options", "RequireStaticShapes=1"),
        ("--coreml-options", "EnableOnSubgraphs=yes"),
        ("--nnapi-flags", "CPU_ONLY,CPU_DISABLED"),
    ],
)
def test_wrong_settings_are_refused_with_a_remedy(arguments: tuple[str, ...], tmp_path: Path) -> None:
    onnx.save(chain("Relu"), tmp_path / "m.onnx")
    with pytest.raises((ConfigError, msgspec.ValidationError)) as caught:
        call(str(tmp_path / "m.onnx"), "--ep", "nnapi", *arguments)
    assert isinstance(caught.value, ConfigError)
    assert caught.value.remedy


def test_names_with_newlines_and_markup_stay_text(tmp_path: Path) -> None:
    made = chain("Relu", "Erf", "Relu")
    made.graph.node[1].output[0] = made.graph.node[2].input[0] = "[bold]\n\x1b[31mred"
    onnx.save(made, tmp_path / "m.onnx")
    result = call(str(tmp_path / "m.onnx"), "--ep", "nnapi")
    assert result.exit_code == 0
    assert "\x1b[31mred" not in result.output
    assert "[bold]" in result.output
