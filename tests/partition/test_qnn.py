"""The claims of a Snapdragon's NPU: hand-made answers of the compiler, and the compiler where it is installed."""

import importlib.util
import json
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from device_runner.chips import CHIPS, Chip
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import Settings
from pipeline.partition.graph import Graph
from pipeline.partition.judge import PartitionRequest, judge
from pipeline.partition.qnn import claims
from pipeline.partition.qnn.claims import NHWC, PROVIDER, CompilerAnswer, claim_on
from pipeline.partition.view import view
from tests.command import Done, ort_mobile
from tests.partition_samples import answer, chain

npu = pytest.mark.npu
V75, WITHOUT_FLOATS = CHIPS["SM8650"], CHIPS["SM8635"]
CPU = "CPUExecutionProvider"
MNIST = "build_configs/examples/mnist/mnist.onnx"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_MOBILE_CACHE", str(tmp_path / "cache"))


def graph_of(*op_types: str) -> Graph:
    return view(chain(*op_types))


def subgraph(provider: str, *nodes: str, domain: str = "") -> tuple[str, tuple[tuple[str, str, str], ...]]:
    return provider, tuple((name, domain, "") for name in nodes)


def groups(graph: Graph, *subgraphs: tuple[str, tuple[tuple[str, str, str], ...]]) -> tuple[tuple[str, ...], ...]:
    claim, load = claim_on(graph, CompilerAnswer(subgraphs=subgraphs), V75)
    assert load.partitions == len(claim.groups)
    return claim.names()


def test_partitions_are_those_of_the_answer() -> None:
    graph = graph_of("Relu", "Erf", "Tanh")
    parts = subgraph(PROVIDER, "y0"), subgraph(CPU, "y1"), subgraph(PROVIDER, "y2")
    assert groups(graph, *parts) == (("y0",), ("y2",))


def test_a_node_in_another_layout_is_the_node_that_it_stands_for() -> None:
    graph = graph_of("Relu", "Tanh")
    assert groups(graph, subgraph(PROVIDER, "y0_token_7", domain=NHWC), subgraph(CPU, "y1")) == (("y0",),)


def test_a_name_with_a_number_is_a_name_of_its_own_in_the_usual_layout() -> None:
    graph = graph_of("Relu", "Tanh")
    assert groups(graph, subgraph(CPU, "y0"), subgraph(PROVIDER, "y0_token_7"), subgraph(PROVIDER, "y1")) == (("y1",),)


def test_nodes_that_the_layout_change_took_away_go_with_the_partition_beside_them() -> None:
    graph = graph_of("Relu", "Tanh", "Relu", "Erf")
    assert groups(graph, subgraph(PROVIDER, "y0"), subgraph(CPU, "y3")) == (("y0", "y1", "y2"),)
    assert groups(graph, subgraph(CPU, "y0"), subgraph(CPU, "y3")) == ()


@pytest.mark.parametrize(
    ("reason", "code", "text"),
    [
        ("Operators of type `Erf` are not supported by QNN EP.Erf node `y0` will not be assigned to QNN EP.",
         "operator", "the NPU's provider has no Erf"),
        ("Operators of type `QLinearAdd` are not supported by QNN EP.", "operator", "no QLinearAdd"),
        ("QNN EP is configured to not take DQ nodes that generate a graph output.", "border", "no partition is cut"),
        ("Cannot get shape", "data", "depends on data"),
        ("QNN EP: Sqrt operator not supported by HTP backend.", "operator", "the NPU has no Sqrt"),
        ("Something new. Erf node `y0` will not be assigned to QNN EP.", "provider", "says: Something new."),
        ("", "unknown", "does not say why"),
    ],
)  # fmt: skip
def test_reasons_of_the_provider_are_causes(reason: str, code: str, text: str) -> None:
    given = CompilerAnswer(subgraphs=(subgraph(CPU, "y0"),), refusals={"y0": reason})
    claim, _ = claim_on(graph_of("Erf"), given, V75)
    (refusal,) = claim.refusals.values()
    assert refusal.code == code
    assert text in refusal.text


def test_an_open_dimension_is_the_cause_where_inputs_have_some() -> None:
    given = CompilerAnswer(subgraphs=(subgraph(CPU, "y0"),), refusals={"y0": "Cannot get shape"})
    claim, _ = claim_on(view(chain("Relu", dims=("batch", 4))), given, V75)
    assert [refusal.code for refusal in claim.refusals.values()] == ["shape"]


def test_what_the_backend_refuses_is_told_with_types_and_shapes() -> None:
    given = CompilerAnswer(
        subgraphs=(subgraph(CPU, "y0"),), refusals={"y0": "Failed to add node."}, invalid={"y0": "ElementWiseErf"}
    )
    claim, _ = claim_on(graph_of("Erf"), given, V75)
    (refusal,) = claim.refusals.values()
    assert refusal.code == "backend"
    assert refusal.text.startswith("the NPU has no ElementWiseErf for 'x' f32 [")


LAYOUT = (
    "[ONNXRuntimeError] : 1 : FAIL : Node 'y0_token_1' OpType:Relu with domain:com.ms.internal.nhwc was inserted using "
    "the NHWC format as requested by QNNExecutionProvider, but was not selected by that EP."
)


@pytest.mark.parametrize(
    ("given", "chip", "code", "text"),
    [
        (CompilerAnswer(error=LAYOUT), V75, "layout", "takes Relu and refuses it"),
        (CompilerAnswer(error=LAYOUT), WITHOUT_FLOATS, "float", "the NPU of Snapdragon 8s Gen 3 has none"),
        (CompilerAnswer(error="Failed to finalize QNN graph. Error: QNN_COMMON_ERROR_MEM_ALLOC"), V75, "build",
         "no implementation"),
        (CompilerAnswer(error="Something new"), V75, "session", "no session is made: Something new"),
        (CompilerAnswer(ended_by="SIGFPE"), V75, "crash", "the compiler crashed (SIGFPE)"),
        (CompilerAnswer(ended_by="time"), V75, "hang", "no answer in time"),
        (CompilerAnswer(subgraphs=(subgraph(PROVIDER, "y0"),)), CHIPS["SM8350"], "float", "Relu 'y0' computes floats"),
    ],
)  # fmt: skip
def test_a_session_that_fails_is_an_answer(given: CompilerAnswer, chip: Chip, code: str, text: str) -> None:
    _, load = claim_on(graph_of("Relu"), given, chip)
    assert load.code == code
    assert text in (load.error or "")


def test_a_dimension_of_size_0_explains_a_crash() -> None:
    model = chain("Relu", dims=(0, 4))
    _, load = claim_on(view(model), CompilerAnswer(ended_by="SIGFPE"), V75)
    assert "'x' has a dimension of size 0" in (load.error or "")


def partition(*arguments: str, code: int = 0) -> Done:
    return ort_mobile("partition", *arguments, code=code)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--ep", "qnn"), "--chip"),
        (("--ep", "qnn", "--chip", "SM865"), "did you mean SM8650?"),
        (("--ep", "nnapi", "--chip", "SM8650"), "--chip is for qnn"),
        (("--ep", "qnn", "--chip", "SM8650", "--reference", "android:1.29.0"), "leave --reference out"),
    ],
)
def test_wrong_questions_are_one_clear_error(arguments: tuple[str, ...], text: str) -> None:
    assert text in partition(MNIST, *arguments, code=2).err


def test_without_the_compiler_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "PACKAGE", "no_such_compiler")
    done = partition(MNIST, "--ep", "qnn", "--chip", "SM8650", code=3)
    assert "Qualcomm's compiler for the NPU is not installed" in done.err


@pytest.fixture(name="compiler", scope="session")
def _compiler() -> None:
    if importlib.util.find_spec("onnxruntime_qnn") is None:
        pytest.skip("the package onnxruntime-qnn is not installed")


def answers(tmp_path: Path, *arguments: str) -> list[dict[str, object]]:
    partition(*arguments, "--json", str(tmp_path / "out.json"))
    document = json.loads((tmp_path / "out.json").read_bytes())
    rows = document.get("providers", [document])
    return [model for row in rows for model in row["models"]]


@npu
@pytest.mark.usefixtures("compiler")
def test_floats_are_taken_where_the_chip_has_them(tmp_path: Path) -> None:
    taken, refused = answers(tmp_path, MNIST, "--ep", "qnn", "--chip", "SM8650,SM8635")
    assert (taken["chip"], taken["claimed"], taken["nodes"]) == ("SM8650", 12, 12)
    assert isinstance(refused["load"], dict)
    assert refused["load"]["code"] == "float"


@npu
@pytest.mark.usefixtures("compiler")
def test_an_operator_that_the_provider_has_not_is_named(tmp_path: Path) -> None:
    onnx.save(chain("Relu", "Acos", "Tanh"), tmp_path / "m.onnx")
    (row,) = answers(tmp_path, str(tmp_path / "m.onnx"), "--ep", "qnn", "--chip", "SM8650")
    assert row["partitions"] == [["y0"], ["y2"]]
    assert isinstance(row["decisions"], list)
    assert row["decisions"][1]["reason"] == "the NPU's provider has no Acos"


def wide(rank: int) -> onnx.ModelProto:
    shape = [1] + [2] * (rank - 1)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "wide", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@npu
@pytest.mark.usefixtures("compiler")
def test_the_backends_own_validation_gives_the_reason(tmp_path: Path) -> None:
    onnx.save(wide(6), tmp_path / "m.onnx")
    (row,) = answers(tmp_path, str(tmp_path / "m.onnx"), "--ep", "qnn", "--chip", "SM8650")
    assert isinstance(row["decisions"], list)
    (decision,) = row["decisions"]
    assert decision["code"] == "backend"
    assert "ElementWiseAdd for 'x' f32 [1, 2, 2, 2, 2, 2]" in decision["reason"]
    assert decision["remedy"] == "reshape it to at most 5 dimensions around the node"


@npu
@pytest.mark.usefixtures("compiler")
def test_a_crash_costs_one_answer(tmp_path: Path) -> None:
    onnx.save(chain("Softmax", dims=(0, 4)), tmp_path / "a.onnx")
    onnx.save(chain("Relu"), tmp_path / "b.onnx")
    crashed, taken = answers(
        tmp_path, str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"), "--ep", "qnn", "--chip", "SM8650"
    )
    assert isinstance(crashed["load"], dict)
    assert crashed["load"]["code"] in ("crash", "build")
    assert taken["claimed"] == 1


@npu
@pytest.mark.usefixtures("compiler")
def test_the_second_question_is_answered_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(provider="qnn", chip="SM8650")
    first = answer(chain("Relu", "Acos"), tmp_path, settings)
    monkeypatch.setattr(claims, "ask", _never)
    assert answer(chain("Relu", "Acos"), tmp_path, settings) == first
    assert first.claimed == 1


def _never(*_: object) -> CompilerAnswer:
    raise AssertionError("the compiler was asked again")


@npu
@pytest.mark.usefixtures("compiler")
def test_fixes_are_tried_and_claimed_again(tmp_path: Path) -> None:
    onnx.save(chain("Relu", "Tanh", dims=("batch", 4)), tmp_path / "m.onnx")
    done = partition(str(tmp_path / "m.onnx"), "--ep", "qnn", "--chip", "SM8650", "--advise")
    assert "best together: fixed-dimensions: partitions 0 → 1, coverage 0 → 100 %" in done.text


@npu
@pytest.mark.usefixtures("compiler")
def test_a_chip_without_floats_gets_a_quantized_form(tmp_path: Path) -> None:
    data = ("--test-data", "build_configs/examples/mnist/evaluation.npz")
    (row,) = answers(tmp_path, MNIST, "--ep", "qnn", "--chip", "SM8635", "--advise", "--simulate", *data)
    assert isinstance(row["advice"], dict)
    best = row["advice"]["best"]
    assert best["fixes"] == ["qnn"]
    assert (best["after"]["partitions"], best["after"]["load_error"], best["after"]["wrong"]) == (1, None, None)
    assert best["error"] < best["tolerance"] == 0.1


BY_HAND = """
import json, os, sys
import onnxruntime as ort, onnxruntime_qnn as qnn
model, answer, soc_model = sys.argv[1:]
ort.register_execution_provider_library("QNNExecutionProvider", qnn.get_library_path())
options = ort.SessionOptions()
options.log_severity_level = 4
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
(device, *_) = [row for row in ort.get_ep_devices() if row.ep_name == "QNNExecutionProvider"]
options.add_provider_for_devices([device], {"backend_path": qnn.get_qnn_htp_path(), "soc_model": soc_model})
try:
    parts = ort.InferenceSession(model, options, enable_fallback=0).get_provider_graph_assignment_info()
    known = [[part.ep_name, [node.name for node in part.get_nodes()]] for part in parts]
except Exception:
    known = None
open(answer, "w").write(json.dumps(known))
os._exit(0)
"""
SAMPLE = ("mnist.base.onnx", "mobilenet_v2.qdq_u8s8pc.onnx", "mobilenet_v2.qop.onnx", "fsrcnn.qdq_s8s8.onnx",
          "lstm_classifier.dyn.onnx", "silero_like_vad_if.base.onnx")  # fmt: skip
REAL = Path("tests/ground_truth/real.zip")


def model_names() -> list[str]:
    with zipfile.ZipFile(REAL) as archive:
        return [name for name in archive.namelist() if name.endswith(".onnx")]


@npu
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("name", "chip"),
    [
        pytest.param(name, chip, marks=() if name in SAMPLE and chip in ("SM8650", "SM8635") else pytest.mark.every_npu)
        for name in model_names()
        for chip in ("SM8350", "SM8450", "SM8550", "SM8635", "SM8650", "SM8750")
    ],
)
def test_partitions_are_those_of_a_session_by_hand(name: str, chip: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(REAL) as archive:
        path = Path(archive.extract(name, tmp_path))
    by_hand = [sys.executable, "-c", BY_HAND, str(path), str(tmp_path / "hand.json"), str(CHIPS[chip].soc_model)]
    ended = subprocess.run(by_hand, capture_output=True, check=False, timeout=600).returncode
    expected = json.loads((tmp_path / "hand.json").read_bytes()) if ended == 0 else None
    answer = judge(PartitionRequest(source=SourceModel(path=str(path)), settings=Settings(provider="qnn", chip=chip)))
    assert answer.load is not None
    if expected is None:
        assert answer.load.error
        return
    by_name = {name: provider == PROVIDER for provider, names in expected for name in names}
    names = Counter(row.name for row in answer.decisions)
    differing = [
        row.name
        for row in answer.decisions
        if names[row.name] == 1 and by_name.get(row.name, row.claimed) != row.claimed
    ]
    assert not differing
    assert len(answer.partitions) == [provider for provider, _ in expected].count(PROVIDER)
    assert bool(answer.load.error) == (answer.load.code == "float" and not CHIPS[chip].floats)


@npu
@pytest.mark.usefixtures("compiler")
def test_an_ort_format_file_cannot_be_asked_about(tmp_path: Path) -> None:
    ort_mobile("convert", MNIST, "--output", str(tmp_path / "out"))
    (path, *_) = sorted((tmp_path / "out").rglob("*.ort"))
    done = partition(str(path), "--ep", "qnn", "--chip", "SM8650", code=1)
    assert "says nothing about ORT format files" in done.err
