"""`ort-mobile convert --ep`: options as for `partition`, what is made, what is told."""

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from pipeline.model.ort_format import TensorType, read_ort
from tests.command import Done, ort_mobile
from tests.convert.test_aware import digits, unbuildable
from tests.onnx_samples import make, parsed_nodes, save, value


def convert(tmp_path: Path, *options: str, code: int = 0) -> tuple[Done, list[dict[str, object]]]:
    """Run the command on a small network; its result and the rows of its JSON.

    Our claims are kept unless a reference is given: a library in the user's cache must not decide what is tested here.
    """
    path = save(digits(), tmp_path / "digits.onnx")
    answer = tmp_path / "answer.json"
    reference = () if "--reference" in options else ("--reference", "none")
    done = ort_mobile("convert", path, "--output", tmp_path / "out", "--json", answer, *options, *reference, code=code)
    return done, json.loads(answer.read_text())["artifacts"] if answer.exists() else []


def test_levels_of_one_provider(tmp_path: Path) -> None:
    _, rows = convert(tmp_path, "--ep", "nnapi", "--level", "none,basic,extended,all", "--api-level", "30")
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
    result, rows = convert(tmp_path, "--ep", "coreml-nn", "--coreml-options", "EnableOnSubgraph=1", code=2)
    assert rows == []
    assert "remedy: did you mean EnableOnSubgraphs?\n" in result.err


def test_a_provider_that_is_none_is_told(tmp_path: Path) -> None:
    result, rows = convert(tmp_path, "--ep", "nnap", code=2)
    assert rows == []
    assert "did you mean nnapi?" in result.err


@pytest.mark.parametrize("words", [("--format", "onnx"), ("--style", "runtime"), ("--style", "fixed,onnx")])
def test_styles_that_aware_files_do_not_have_are_refused(tmp_path: Path, words: tuple[str, str]) -> None:
    """They were left out without a word: files of style fixed were made."""
    result, rows = convert(tmp_path, "--ep", "nnapi", *words, code=2)
    assert "--ep makes files of style fixed alone" in " ".join(result.err.split())
    assert rows == []


def test_files_for_webgpu_are_its_own_and_plain_at_level_none(tmp_path: Path) -> None:
    result, rows = convert(tmp_path, "--ep", "webgpu,nnapi", code=2)
    assert rows == []
    assert not (tmp_path / "out").exists()
    assert "run the command twice, with --ep webgpu and with --ep nnapi" in " ".join(result.err.split())
    result, rows = convert(tmp_path, "--ep", "webgpu", "--level", "none,basic")
    plain = {str(row["variant"]): "a plain file" in str(row["findings"]) for row in rows}
    assert plain == {"none-fixed": True, "basic-fixed-webgpu": False}
    told = " ".join(result.err.split())
    assert "a plain file, not one for WebGPU (none-fixed) why: level none writes no copies" in told


def test_claims_that_cannot_be_built_are_told(tmp_path: Path) -> None:
    path = save(unbuildable(), tmp_path / "model.onnx")
    command = ("convert", path, "--ep", "nnapi", "--level", "basic", "--output", tmp_path / "out")
    result = ort_mobile(*command, "--reference", "none")
    assert "--safe leaves such nodes to the CPU" in " ".join(result.text.split())


def test_an_open_dimension_that_costs_every_node_is_told_with_its_name(tmp_path: Path) -> None:
    nodes = parsed_nodes("r = Relu (x)  y = Sigmoid (r)")
    path = save(make(nodes, [value("x", ["count", 8])], [value("y", ["count", 8])], []), tmp_path / "open.onnx")
    command = ["convert", str(path), "--ep", "nnapi", "--level", "basic", "--reference", "none"]
    for options, told in (([], True), (["--dimension", "count=1"], False)):
        text = " ".join(ort_mobile(*command, "--output", tmp_path / "out", *options).text.split())
        assert ("nnapi takes no node, because dimensions of the inputs have no size: count" in text) is told
        assert ("--dimension count=N" in text) is told


def test_a_library_has_no_coreml(tmp_path: Path) -> None:
    """Refused before the library is looked for: it need not be on this computer."""
    result, rows = convert(tmp_path, "--ep", "coreml-nn", "--reference", "99.0.0", "--level", "basic", code=2)
    assert not rows
    assert "NNAPI alone" in result.err.partition("\n")[0]
    assert "remedy: " in result.err


QUANTIZATION = {"scale": np.float32(0.05), "zero": np.int8(3)}


def test_int8_stays_int8_for_an_arm_abi(tmp_path: Path) -> None:
    """As the arm64 library's own default has it: on x86 level extended makes uint8 of it."""
    nodes = parsed_nodes("""
        q = QuantizeLinear (x, scale, zero)  d = DequantizeLinear (q, scale, zero)  s = Sigmoid (d)
        sq = QuantizeLinear (s, scale, zero)  y = DequantizeLinear (sq, scale, zero)""")
    constants = [numpy_helper.from_array(np.array(one), name) for name, one in QUANTIZATION.items()]
    path = save(make(nodes, [value("x", [1, 8])], [value("y", [1, 8])], constants), tmp_path / "s8.onnx")

    def types(name: str, *options: str) -> set[int]:
        folder = tmp_path / name
        ort_mobile("convert", path, "--output", folder, "--level", "extended", "--style", "fixed", *options)
        graph = read_ort(next(folder.glob("*.ort"))).graph
        return {found.elem_type for found in graph.node_args.values() if isinstance(found, TensorType)}

    plain, asked = types("x86", "--abi", "x86_64"), types("arm", "--abi", "arm64-v8a")
    assert TensorProto.UINT8 in plain
    assert TensorProto.UINT8 not in asked
    assert types("named", "--target-platform", "arm") == asked
    assert types("default") == asked
    assert types("amd64", "--target-platform", "amd64") == plain
