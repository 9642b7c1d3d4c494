"""Models of strings: a text from the command line or a file, in sessions here and in the probe."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, save

from device_runner.device import open_device
from device_runner.result import FailureKind, Status
from device_runner.spec import ElementType, RunSpec, TensorFile
from tests.command import ort_mobile
from tests.onnx_samples import parsed_nodes

WORDS = ["red", "green", "blå"]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with a model that numbers words."""
    node = helper.make_node(
        "LabelEncoder", ["words"], ["numbers"], domain="ai.onnx.ml", keys_strings=WORDS, values_int64s=[5, 6, 7]
    )
    words = helper.make_tensor_value_info("words", TensorProto.STRING, ["n"])
    numbers = helper.make_tensor_value_info("numbers", TensorProto.INT64, ["n"])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([node], "g", [words], [numbers])
    save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "words.onnx")
    return tmp_path


def probed(work: Path, content: bytes, count: int) -> tuple[Status, list[int], FailureKind | None]:
    (work / "words.bin").write_bytes(content)
    words = TensorFile(name="words", dtype=ElementType.STRING, shape=(count,), file=str(work / "words.bin"))
    spec = RunSpec(id="s", model=str(work / "words.onnx"), inputs=(words,), min_runs=1, outputs_folder=str(work / "o"))
    with open_device("local") as device:
        result = device.run(spec)
    numbers: list[int] = np.fromfile(result.outputs[0].file, "<i8").tolist() if result.outputs else []
    return result.status, numbers, result.failure.code if result.failure else None


def test_the_probe_gives_a_model_the_strings_of_a_file(work: Path) -> None:
    content = "".join(f"{word}\0" for word in ("blå", "red", "")).encode()
    assert probed(work, content, 3) == (Status.OK, [7, 5, -1], None)
    assert probed(work, b"", 0)[:2] == (Status.OK, [])


@pytest.mark.parametrize("content", [b"", b"red\0", b"red\0green\0blue\0", b"red\0green", b"\0"])
def test_a_file_without_the_strings_of_its_shape_is_a_failure(work: Path, content: bytes) -> None:
    assert probed(work, content, 2) == (Status.FAILED, [], FailureKind.BAD_INPUT)


def test_a_text_is_what_perf_and_checks_run_on(work: Path) -> None:
    text = ("--input", 'words="green"')
    done = ort_mobile("convert", "words.onnx", "--output", "out", "--level", "basic", "--check", *text, cwd=work)
    assert "2 of 2 give the original model's outputs" in done.out
    perf = ("perf", "out/words.basic-fixed.ort", "--rounds", "1", "--min-runs", "1")
    ort_mobile(*perf, *text, cwd=work)
    np.savez(work / "words.npz", words=np.array(WORDS))
    ort_mobile(*perf, "--test-data", "words.npz", cwd=work)
    said = ort_mobile("convert", "words.onnx", "--output", "o", "--check", "--input", "words=3", cwd=work, code=2)
    assert "give a text: --input 'words=" in said.text


def test_a_text_is_no_number(work: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph(parsed_nodes("y = Relu (x)"), "g", [x], [y])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), work / "relu.onnx")
    said = ort_mobile("perf", "relu.onnx", "--input", 'x="green"', cwd=work, code=2)
    assert "its type is float32" in said.err
    assert "give a number" in said.err
