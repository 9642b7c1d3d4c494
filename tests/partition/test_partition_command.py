"""`ort-mobile partition` as a user calls it."""

import json
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from pipeline.core.providers import PROVIDER_RULES
from pipeline.model.flatbuffer import Reader, present
from tests.command import Done, ort_mobile
from tests.ort_models import parsed
from tests.partition_samples import chain


def call(*arguments: str) -> Done:
    return ort_mobile("partition", *arguments, code=None)


def test_answers_of_an_archive_name_its_members(tmp_path: Path) -> None:
    archive = tmp_path / "models.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("a/good.onnx", chain("Relu", "Erf").SerializeToString())
        packed.writestr("broken.onnx", b"no model")
        packed.writestr("notes.txt", "passed over")
    result = call(str(archive), "--ep", "nnapi", "--ort-release", "1.23", "--json", str(tmp_path / "out.json"))
    assert result.code == 1
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
    assert result.code == 0
    assert "3 of 4 nodes supported (75 %)" in result.text
    assert "partitions 2 → 1" in result.text


@pytest.mark.parametrize(
    ("level", "flag", "expected"),
    [
        (27, "USE_FP16", ["USE_FP16 is ignored below API level 28", "recommends NNAPI from API level 28 (Android 9)"]),
        (28, "USE_FP16", []),
        (28, "CPU_DISABLED", ["CPU_DISABLED is ignored below API level 29"]),
        (28, "CPU_ONLY", ["CPU_ONLY is ignored below API level 29"]),
        (29, "CPU_DISABLED", []),
    ],
)
def test_flags_and_api_levels_against_the_nnapi_guide_are_noted(
    tmp_path: Path, level: int, flag: str, expected: list[str]
) -> None:
    onnx.save(chain("Relu"), tmp_path / "m.onnx")
    out = tmp_path / "out.json"
    asked = ("--ep", "nnapi", "--api-level", str(level), "--nnapi-flags", flag)
    result = call(str(tmp_path / "m.onnx"), *asked, "--json", str(out))
    warnings = json.loads(out.read_bytes())["models"][0]["warnings"]
    assert len(warnings) == len(expected)
    assert all(text in warning and text in result.text for text, warning in zip(expected, warnings, strict=True))


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
    done = call(str(tmp_path / "m.onnx"), "--ep", "nnapi", *arguments)
    assert done.code == 2
    assert re.search(r"^remedy: .", done.err, re.MULTILINE)
    assert "Traceback" not in done.err


def test_names_with_newlines_and_markup_stay_text(tmp_path: Path) -> None:
    made = chain("Relu", "Erf", "Relu")
    made.graph.node[1].output[0] = made.graph.node[2].input[0] = "[bold]\n\x1b[31mred"
    onnx.save(made, tmp_path / "m.onnx")
    result = call(str(tmp_path / "m.onnx"), "--ep", "nnapi")
    assert result.code == 0
    assert "\x1b[31mred" not in result.text
    assert "[bold]" in result.text


DYNAMIC = chain("Relu", "Erf", "Relu", "Tanh", dims=("batch", 3, "height", "width"))


def document(*arguments: object) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(call(*map(str, arguments), "--json", "-").out)
    return made


@pytest.fixture
def dynamic(tmp_path: Path) -> Path:
    onnx.save(DYNAMIC, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (("--ep", "NNAPI,xnnpack"), ["nnapi", "xnnpack"]),
        (("--ep", "xnnpack", "--ep", "nnapi"), ["xnnpack", "nnapi"]),
        (("--ep", "CoreML"), ["coreml-nn", "coreml-mlprogram"]),
        ((), [name for name, rules in PROVIDER_RULES.items() if not rules.by_chip]),
    ],
)
def test_several_providers_have_one_entry_each(given: tuple[str, ...], asked: list[str], dynamic: Path) -> None:
    found = document(dynamic, *given)
    assert found["version"] == 1
    assert [entry["ep"] for entry in found["providers"]] == asked
    for entry in found["providers"]:
        alone = document(dynamic, "--ep", entry["ep"])
        assert entry["models"] == alone["models"]
        assert alone.keys() == {"version", "models"}


def test_an_unknown_provider_is_refused_with_a_suggestion(dynamic: Path) -> None:
    result = call(str(dynamic), "--ep", "nnapi,xnpack")
    assert result.code == 2
    assert "did you mean xnnpack?" in result.text


@pytest.mark.parametrize("option", ["--fix", "--svg", "--reference"])
def test_options_for_one_provider_refuse_several(option: str, dynamic: Path) -> None:
    done = call(str(dynamic), option, "x")
    assert (done.code, "is for one provider" in done.err) == (2, True)
    assert re.search(r"^remedy: .*--ep nnapi", done.err, re.MULTILINE)


def test_sizes_count_without_advice(dynamic: Path) -> None:
    sizes = [word for size in ("batch=1", "height=8", "x[3]=8") for word in ("--dimension", size)]
    assert document(dynamic, "--ep", "nnapi")["models"][0]["claimed"] == 0
    (sized,) = document(dynamic, "--ep", "nnapi", *sizes)["models"]
    assert sized["claimed"] == 3
    assert sized["dynamic"] == []
    assert "advice" not in sized


def test_sizes_for_no_dimension_are_an_error_with_a_suggestion(dynamic: Path) -> None:
    """One for all providers."""
    result = call(str(dynamic), "--dimension", "heigth=8")
    assert result.code == 1
    assert result.text.count("no open dimension 'heigth'") == 1
    assert "did you mean 'height'?" in result.err


def test_dynamic_models_are_told_what_sizes_would_give(dynamic: Path) -> None:
    (found,) = document(dynamic, "--ep", "nnapi")["models"]
    assert found["dynamic"] == ["batch", "height", "width"]
    assert (found["fixed"]["claimed"], found["fixed"]["nodes"], found["fixed"]["partitions"]) == (3, 4, 2)
    output = call(str(dynamic), "--ep", "nnapi").text
    assert "dimensions are dynamic: batch, height, width" in output
    assert "3 of 4 nodes (75 %) in 2 partitions" in output
    assert output.count("has dynamic dimensions") == 1, "equal reasons stand there once"
    assert "3 x Relu, Tanh" in output


def test_sizes_of_partitions_are_listed(tmp_path: Path) -> None:
    onnx.save(chain("Relu", "Tanh", "Erf", "Relu"), tmp_path / "m.onnx")
    assert "2 partitions (2 and 1 nodes)" in call(str(tmp_path / "m.onnx"), "--ep", "nnapi").text


def test_a_later_release_is_named_with_the_rules_that_judge_it(dynamic: Path) -> None:
    (later,) = document(dynamic, "--ep", "nnapi", "--ort-release", "1.31")["models"]
    assert (later["ort_release"], later["rules_release"]) == ("1.31", "1.29")
    assert "1.31 (by the rules of 1.29)" in call(str(dynamic), "--ep", "nnapi", "--ort-release", "1.31").text
    own = call(str(dynamic), "--ep", "nnapi", "--ort-release", "1.29")
    assert "by the rules" not in own.text


def test_names_that_are_not_utf8_are_an_error_of_the_model(tmp_path: Path) -> None:
    content = chain("Relu", "Tanh").SerializeToString().replace(b"y0", b"\xff\xfe")
    (tmp_path / "m.onnx").write_bytes(content)
    result = call(str(tmp_path / "m.onnx"), "--ep", "nnapi")
    assert result.code == 1
    assert "UTF-8" in result.err
    assert "UnicodeDecodeError" not in result.err


def test_a_node_without_outputs_is_an_error_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(chain("Relu", "Tanh").SerializeToString())
    ort_mobile("convert", tmp_path / "m.onnx", "--output", tmp_path, "--level", "none", "--style", "fixed")
    data = bytearray((tmp_path / "m.none-fixed.ort").read_bytes())
    reader = Reader(bytes(data))
    graph, slots = reader.path((1, "model"), (7, "graph"))
    outputs = [reader.child(node, reader.table(node), 9) for node in reader.tables(graph, slots, 2)]
    struct.pack_into("<I", data, present(outputs[0], "outputs"), 0)
    (tmp_path / "m.ort").write_bytes(data)
    result = call(str(tmp_path / "m.ort"), "--ep", "nnapi")
    assert result.code == 1
    assert "a node has no outputs" in result.err


def test_bytes_that_go_into_partitions_and_out_of_them_are_counted(tmp_path: Path) -> None:
    graph = parsed(
        """g (float[2, 8] x) => (float[2, 8] y, float[2, 8] z)
        { a = Add (x, w) b = Relu (a) c = Softplus (b) y = Add (c, b) z = Relu (y) }""",
        w=np.ones(8, np.float32),
    )
    onnx.save(graph, tmp_path / "m.onnx")
    out = tmp_path / "out.json"
    text = call(str(tmp_path / "m.onnx"), "--ep", "nnapi", "--json", str(out)).text
    (answer,) = json.loads(out.read_bytes())["models"]
    assert answer["partitions"] == [["a", "b"], ["y", "z"]]
    assert (answer["given_bytes"], answer["taken_bytes"]) == (3 * 64, 3 * 64)  # x, c, b; b, y, z
    assert "per inference 192 B go into partitions, 192 B out" in text
    onnx.save(chain("Relu", dims=("n", 3)), tmp_path / "m.onnx")
    call(str(tmp_path / "m.onnx"), "--ep", "coreml-mlprogram", "--json", str(out))
    (answer,) = json.loads(out.read_bytes())["models"]
    assert answer["partitions"]
    assert answer["given_bytes"] is None
