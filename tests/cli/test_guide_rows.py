"""Rows of docs/guides.toml on real models: the command as it is written there does what the sentence says."""

import importlib.metadata
import json
import shlex
import shutil
import tomllib
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from pipeline.model.ort_format import read_ort
from tests.command import ROOT, Done, ort_mobile
from tests.ort_models import convert, parsed
from tests.passes.real_models import extract

EXAMPLE = ROOT / "build_configs/examples/mnist"
COMMANDS = {
    row["told"]: row["command"]
    for row in tomllib.loads((ROOT / "docs/guides.toml").read_text("utf-8"))["rows"]
    if "command" in row
}
QUICK = ("--rounds", "1", "--min-runs", "2", "--min-seconds", "0.01")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """MNIST and its samples by the names that the rows have."""
    shutil.copy(EXAMPLE / "mnist.onnx", tmp_path / "my.onnx")
    for number in range(3):
        shutil.copytree(EXAMPLE / f"test_data_set_{number}", tmp_path / f"samples/test_data_set_{number}")
    return tmp_path


def told(sentence: str, folder: Path, *more: str, code: int | None = 0) -> Done:
    """Run the command of the row that says this."""
    program, *words = shlex.split(COMMANDS[sentence])
    assert program == "ort-mobile"
    return ort_mobile(*words, *more, cwd=folder, code=code)


def operators(model: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(model).graph.node)


def profiled(folder: Path) -> list[dict[str, int]]:
    """The nodes of each operator in each profile that a command left."""
    rows = json.loads((folder / "profiles/profiles.json").read_text())
    return [{row["operator"]: row["nodes"] for row in one["profile"]["operators"]} for one in rows]


def test_level_layout_is_for_releases_that_have_it(folder: Path) -> None:
    sentence = "Use level layout from the release that has it"
    told(sentence, folder)
    assert (folder / "out/my.layout-fixed.ort").is_file()
    words = [word.replace("1.29", "1.22") for word in shlex.split(COMMANDS[sentence])[1:]]
    refused = ort_mobile(*words, "--output", "older", cwd=folder, code=None)
    assert "level layout came with 1.23, the target runs 1.22" in refused.err
    assert not list(folder.glob("older/*.ort"))


def test_dynamic_quantization_needs_no_data(folder: Path) -> None:
    told("Quantize dynamically, without calibration data", folder)
    assert operators(folder / "int8.onnx")["MatMulInteger"] == 1


def test_operators_that_are_left_out_stay_float(folder: Path) -> None:
    told("Leave operators that lose accuracy out of the quantization", folder)
    graph = onnx.load(folder / "int8.onnx").graph
    dequantized = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    weights = {node.name: node.input[1] in dequantized for node in graph.node if node.op_type == "Conv"}
    assert weights == {"conv1": False, "conv2": True}


@pytest.mark.long
def test_the_bert_tool_fuses_attention(folder: Path) -> None:
    shutil.copy(extract("distilbert.base", folder), folder / "my.onnx")
    told("Fuse a transformer with the BERT optimization tool", folder)
    fused = operators(folder / "out.onnx")
    assert fused["Attention"] > 0
    assert fused["SkipLayerNormalization"] > 0
    assert sum(fused.values()) < sum(operators(folder / "my.onnx").values()) / 4


def with_initializers_as_inputs(path: Path) -> None:
    """Make them inputs of the model that an app may give other values."""
    model = onnx.load(path)
    model.graph.input.extend(
        helper.make_tensor_value_info(row.name, row.data_type, row.dims) for row in model.graph.initializer
    )
    onnx.save(model, path)


def test_initializers_are_no_inputs_any_more(folder: Path) -> None:
    with_initializers_as_inputs(folder / "my.onnx")
    told("Move initializers out of the inputs", folder)
    assert [value.name for value in onnx.load(folder / "out.onnx").graph.input] == ["image"]


def test_matmul_and_add_become_one_node_at_level_basic(folder: Path) -> None:
    ort_mobile("convert", "my.onnx", "--output", "out", "--level", "basic", "--no-config", cwd=folder)
    found = told("Merge MatMul with Add, and Transposes", folder, "--json", "-").document()
    merged = [row for row in found["regions"] if [node["operator"] for node in row["gone"]] == ["MatMul", "Add"]]
    assert [[node["operator"] for node in row["new"]] for row in merged] == [["Gemm"]]


def test_without_optimizations_the_profile_has_the_models_own_nodes(folder: Path) -> None:
    told("Turn optimizations off to debug a model", folder, *QUICK)
    own, fused = profiled(folder)
    assert own == operators(folder / "my.onnx")
    assert "Relu" not in fused


def test_the_layout_change_at_load_is_in_the_profile_and_not_in_the_file(folder: Path) -> None:
    steps = ("--do", "static-qdq", "--test-data", "samples")
    ort_mobile("transform", "my.onnx", "int8.onnx", *steps, cwd=folder)
    convert(folder / "int8.onnx", folder / "int8.ort", level="extended")
    told("See what the NHWC transformer changes when a file is loaded", folder, *QUICK)
    (ran,) = profiled(folder)
    in_file = Counter(node.op_type for node in read_ort(folder / "int8.ort").graph.nodes)
    assert (in_file["Transpose"], in_file["NhwcMaxPool"]) == (0, 0)
    assert ran["Transpose"] > 0


def test_the_key_that_replays_saved_optimizations_is_said(folder: Path) -> None:
    said = told("Load them where a release replays them, with the key that it wants from 1.30 on", folder).out
    assert "the app must set the session config entry session.enable_saved_runtime_optimizations to 1: " in said
    key = ("--session-config", "session.enable_saved_runtime_optimizations=1")
    fused = []
    for more in (key, ()) if importlib.metadata.version("onnxruntime") >= "1.30" else (key,):
        words = ("out/my.extended-runtime.ort", "--profile", "profiles", *QUICK, *more)
        ort_mobile("perf", *words, cwd=folder)
        fused += ["Relu" not in row for row in profiled(folder)]
    assert fused == [True, False][: len(fused)]


def test_the_summary_of_a_profile_is_saved_with_times_by_operator(folder: Path) -> None:
    convert(folder / "my.onnx", folder / "a.ort", level="all")
    told("Save a summary of the profile by operator", folder, *QUICK)
    (summary,) = json.loads((folder / "profiles/profiles.json").read_text())
    times = {row["operator"]: row["nanoseconds"] for row in summary["profile"]["operators"]}
    assert times.keys() >= {"MaxPool", "Gemm"}
    assert 0 < sum(times.values()) <= 1.01 * summary["profile"]["inference_ns"]


@pytest.mark.parametrize(
    ("sentence", "run"),
    [
        ("Set dynamic_block_base to 4 against variance of latency", "cpu+threads=4+dynamic_block_base=4"),
        ("Settings for little memory", "cpu+memory_arena=off+memory_pattern=off"),
        ("Settings for throughput", "cpu+threads=1"),
    ],
)
def test_presets_run_with_the_settings_that_they_name(sentence: str, run: str, tmp_path: Path) -> None:
    text = "g (float[1, 64] x) => (float[1, 64] y) { y = MatMul (x, w) }"
    convert(parsed(text, w=np.ones((64, 64), np.float32)), tmp_path / "a.ort", level="all")
    document = told(sentence, tmp_path, *QUICK, "--json", "-").document()
    callers = document.get("callers", [])
    assert [row["callers"] for row in callers] == [4] * ("--concurrent" in COMMANDS[sentence])
    assert {row["run"] for row in (*document["rows"], *callers)} == {run}
