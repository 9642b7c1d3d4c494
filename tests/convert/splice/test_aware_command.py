"""`ort-mobile convert --ep`: options as for `partition`, what is made, what is told."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from pipeline.cli.main import cli
from pipeline.core.errors import ConfigError
from tests.convert.splice.test_splicing import digits, unbuildable
from tests.onnx_samples import save


def convert(tmp_path: Path, *options: str) -> tuple[Result, list[dict[str, object]]]:
    """Run the command on a small network; its result and the rows of its JSON.

    Files are spliced unless a reference is given: a library in the user's cache must not decide what is tested here.
    """
    path = save(digits(), tmp_path / "digits.onnx")
    answer = tmp_path / "answer.json"
    command = ["convert", str(path), "--output", str(tmp_path / "out"), "--json", str(answer)]
    command += options if "--reference" in options else [*options, "--reference", "none"]
    result = CliRunner().invoke(cli, command)
    return result, json.loads(answer.read_text())["artifacts"] if answer.exists() else []


def test_levels_of_one_provider(tmp_path: Path) -> None:
    result, rows = convert(tmp_path, "--ep", "nnapi", "--level", "none,basic,extended,all", "--api-level", "30")
    assert result.exit_code == 0, result.output
    assert [row["variant"] for row in rows] == [
        "none-fixed", "basic-fixed-nnapi", "extended-fixed-nnapi", "all-fixed-nnapi",
    ]  # fmt: skip
    assert [row["claimed"] for row in rows] == [{}, *[{"nnapi": 8}] * 3]
    assert "com.microsoft:FusedConv" not in rows[2]["operators"]  # type: ignore[operator] # a mapping in JSON


def test_options_of_the_provider_count(tmp_path: Path) -> None:
    _, rows = convert(tmp_path, "--ep", "nnapi", "--level", "extended", "--stop-ops", "Conv")
    assert rows[0]["claimed"] == {"nnapi": 0}
    assert "com.microsoft:FusedConv" in rows[0]["operators"]  # type: ignore[operator] # a mapping in JSON


def test_an_option_that_the_provider_would_refuse_is_a_usage_error(tmp_path: Path) -> None:
    result, rows = convert(tmp_path, "--ep", "coreml-nn", "--coreml-options", "EnableOnSubgraph=1")
    assert rows == []
    assert isinstance(result.exception, ConfigError)
    assert result.exception.remedy == "did you mean EnableOnSubgraphs?"


def test_a_provider_that_is_none_is_told(tmp_path: Path) -> None:
    result, rows = convert(tmp_path, "--ep", "nnap")
    assert (result.exit_code, rows) == (2, [])
    assert "did you mean nnapi?" in result.output


def test_claims_that_cannot_be_built_are_told(tmp_path: Path) -> None:
    path = save(unbuildable(), tmp_path / "model.onnx")
    command = ["convert", str(path), "--ep", "nnapi", "--level", "basic", "--output", str(tmp_path / "out")]
    command += ["--reference", "none"]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 0
    assert "--safe leaves such nodes to the CPU" in " ".join(result.output.split())


def test_a_library_has_no_coreml(tmp_path: Path) -> None:
    """Refused before the library is looked for: it need not be on this computer."""
    result, rows = convert(tmp_path, "--ep", "coreml-nn", "--reference", "99.0.0", "--level", "basic")
    assert not rows
    assert isinstance(result.exception, ConfigError)
    assert "NNAPI alone" in result.exception.what
    assert result.exception.remedy
