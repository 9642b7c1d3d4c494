"""The claims of a Snapdragon's NPU: hand-made answers of the compiler, and the compiler where it is installed."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from device_runner.providers import CHIPS, Chip
from pipeline.model.sources import SourceModel
from pipeline.partition import kept
from pipeline.partition.answer import Settings
from pipeline.partition.graph import Graph, view
from pipeline.partition.judge import PartitionRequest, judge
from pipeline.providers.qnn import claims
from pipeline.providers.qnn.claims import NHWC, PROVIDER, CompilerAnswer, claim_on, failure_of
from tests.command import Done, ort_mobile
from tests.npu_models import OPERATORS, REAL, asked_twice
from tests.onnx_samples import parsed_nodes
from tests.partition_samples import answer, chain, model, value

npu = pytest.mark.npu
V75, WITHOUT_FLOATS = CHIPS["SM8650"], CHIPS["SM8635"]
CPU = "CPUExecutionProvider"
MNIST = "build_configs/examples/mnist/mnist.onnx"


def graph_of(*op_types: str) -> Graph:
    return view(chain(*op_types))


Subgraph = tuple[str, tuple[tuple[str, str, str], ...]]


def subgraph(provider: str, *nodes: str, domain: str = "") -> Subgraph:
    return provider, tuple((name, domain, "") for name in nodes)


def groups(graph: Graph, *subgraphs: Subgraph) -> tuple[tuple[str, ...], ...]:
    claim, load = claim_on(graph, CompilerAnswer(subgraphs=subgraphs), V75)
    assert load.partitions == len(claim.groups)
    return claim.names()


@npu
def test_a_context_is_nothing_to_ask_about(tmp_path: Path) -> None:
    """Its .bin is not beside the copy that a question is asked with: the answer would be that it does not load."""
    node = helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", ep_cache_context="m.bin", embed_mode=0)
    made = model([node], [value("x", (1, 4))], ["y"])
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    made.graph.output[0].CopyFrom(value("y", (1, 4)))
    onnx.save(made, tmp_path / "m.onnx")
    settings = Settings(provider="qnn", chip="SM8650")
    got = judge(PartitionRequest(source=SourceModel(path=str(tmp_path / "m.onnx")), settings=settings))
    assert (got.error or "").startswith("a context is compiled already")
    assert "the model that it was made from" in (got.remedy or "")


@pytest.mark.parametrize(
    ("op_types", "parts", "names"),
    [
        ("Relu Erf Tanh", (subgraph(PROVIDER, "y0"), subgraph(CPU, "y1"), subgraph(PROVIDER, "y2")), [["y0"], ["y2"]]),
        # A node in another layout is the node that it stands for; elsewhere a name with a number is one of its own.
        ("Relu Tanh", (subgraph(PROVIDER, "y0_token_7", domain=NHWC), subgraph(CPU, "y1")), [["y0"]]),
        ("Relu Tanh", (subgraph(CPU, "y0"), subgraph(PROVIDER, "y0_token_7"), subgraph(PROVIDER, "y1")), [["y1"]]),
        # Nodes that the layout change took away go with the partition beside them.
        ("Relu Tanh Relu Erf", (subgraph(PROVIDER, "y0"), subgraph(CPU, "y3")), [["y0", "y1", "y2"]]),
        ("Relu Tanh Relu Erf", (subgraph(CPU, "y0"), subgraph(CPU, "y3")), []),
    ],
)
def test_partitions_are_those_of_the_answer(op_types: str, parts: tuple[Subgraph, ...], names: list[list[str]]) -> None:
    assert list(map(list, groups(graph_of(*op_types.split()), *parts))) == names


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
    assert text in refusal.what


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
    assert refusal.what.startswith("the NPU has no ElementWiseErf for 'x' f32 [")


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


def test_a_dimension_of_size_0_is_refused_before_the_compiler_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "ask", _never)
    monkeypatch.setattr(kept, "compiler_name", lambda: "a compiler")
    row = answer(chain("Relu", dims=(0, 4)), tmp_path, Settings(provider="qnn", chip="SM8650"))
    assert row.load is not None
    assert row.load.code == "empty"
    assert "'x' has a dimension of size 0" in (row.load.error or "")
    assert [decision.reason for decision in row.decisions] == ["not known, because no session is made"]


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        ("Failed to compose Qnn graph.", "build", "no implementation"),
        ("Unsupported FP64 data type in graph IO.", "type", "f64"),
        ("Dynamic shape is not supported yet, for input: x", "dynamic", "the input x"),
        ("Having zero graph inputs is not supported on this backend.", "trivial", "nothing but constants"),
        ("contextCreateFromBinary failed. Error: QNN_CONTEXT_ERROR_CREATE_FROM_BINARY", "context", "newer QAIRT"),
        ("The file path in ep_cache_context does not exist or is not accessible.", "context", ".bin of the context"),
        ("fallback to CPU EP has been explicitly disabled by the user.", "cpu", "the CPU is forbidden"),
        ("Expecting soc_model and htp_arch having equal number of values", "option", "does not suit the chip"),
        ("BF16 mode is enabled but SoC model is 87 (expected 88 and above).", "option", "does not suit the chip"),
        ("FP16 precision mode is enabled but soc_model is not specified.", "option", "does not suit the chip"),
        ("QNN graph execute error. Error: QNN_COMMON_ERROR_NOT_SUPPORTED Code: 1000", "run", "does not run it"),
    ],
)
def test_errors_of_the_provider_are_causes_with_remedies(error: str, code: str, words: str) -> None:
    failure = failure_of(f"[ONNXRuntimeError] : 1 : FAIL : {error}")
    assert failure.code == code
    assert words in failure.what
    assert failure.remedy


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


def use_compiler(monkeypatch: pytest.MonkeyPatch, **facts: str) -> None:
    """With other facts of the compiler."""
    compiler = replace(kept.compiler_facts(), **facts)
    monkeypatch.setattr(kept, "compiler_facts", lambda: compiler)


def test_without_the_compiler_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    use_compiler(monkeypatch, module="no_such_compiler")
    done = partition(MNIST, "--ep", "qnn", "--chip", "SM8650", code=3)
    assert "Qualcomm's compiler for the NPU is not installed" in done.err


@pytest.mark.parametrize(
    ("compiler", "release", "text"),
    [
        ({"module": "no_such_compiler"}, (1, 24), "is not installed"),
        ({"host": "another system"}, (1, 24), "offers no NPU on"),
        ({}, (1, 20), "it needs 1.24 or later, installed is 1.20"),
    ],
)
def test_what_keeps_the_compiler_from_being_asked_is_named(
    compiler: dict[str, str], release: tuple[int, int], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(monkeypatch, module="onnxruntime")
    monkeypatch.setattr(kept, "requires", lambda _: ["numpy>=1", "onnxruntime>=1.24.2"])
    monkeypatch.setattr("pipeline.core.releases.installed_release", lambda: (1, 24))
    assert kept.compiler_lacking() is None or sys.platform != "linux"
    use_compiler(monkeypatch, **compiler)
    monkeypatch.setattr("pipeline.core.releases.installed_release", lambda: release)
    error = kept.compiler_lacking()
    assert error
    assert text in error.text
    assert error.remedy


def answers(tmp_path: Path, *arguments: str) -> list[dict[str, object]]:
    partition(*arguments, "--json", str(tmp_path / "out.json"))
    document = json.loads((tmp_path / "out.json").read_bytes())
    rows = document.get("providers", [document])
    return [model for row in rows for model in row["models"]]


@npu
def test_floats_are_taken_where_the_chip_has_them(tmp_path: Path) -> None:
    taken, refused = answers(tmp_path, MNIST, "--ep", "qnn", "--chip", "SM8650,SM8635")
    assert (taken["chip"], taken["claimed"], taken["nodes"]) == ("SM8650", 12, 12)
    assert isinstance(refused["load"], dict)
    assert refused["load"]["code"] == "float"


@npu
def test_an_operator_that_the_provider_has_not_is_named(tmp_path: Path) -> None:
    onnx.save(chain("Relu", "Acos", "Tanh"), tmp_path / "m.onnx")
    (row,) = answers(tmp_path, str(tmp_path / "m.onnx"), "--ep", "qnn", "--chip", "SM8650")
    assert row["partitions"] == [["y0"], ["y2"]]
    assert isinstance(row["decisions"], list)
    assert row["decisions"][1]["reason"] == "the NPU's provider has no Acos"


def test_a_function_is_taken_where_all_its_parts_are() -> None:
    """They have no names, and are asked about after the nodes beside it."""
    parts, beside = ("QNNExecutionProvider", (("", "", "HardSigmoid"), ("", "", "Mul"))), subgraph(PROVIDER, "y0")
    graph = graph_of("Relu", "HardSwish")
    assert groups(graph, beside, parts) == (("y0",), ("y1",))
    given = CompilerAnswer(subgraphs=(beside, parts, (CPU, (("", "", "Cast"),))))
    claim, _ = claim_on(graph, given, V75)
    assert claim.names() == (("y0",),)
    assert [refusal.code for refusal in claim.refusals.values()] == ["inlined"]


@npu
@pytest.mark.parametrize(("name", "partitions"), [("mish/opset22", 1), ("mish/between", 3)])
def test_a_function_is_taken_as_in_a_session_by_hand(name: str, partitions: int, tmp_path: Path) -> None:
    row, differing = asked_twice(OPERATORS, f"{name}.onnx", "SM8650", tmp_path)
    assert not differing
    assert (len(row.partitions), row.claimed) == (partitions, row.nodes)


def wide(rank: int) -> onnx.ModelProto:
    shape = [1] + [2] * (rank - 1)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    graph = helper.make_graph(parsed_nodes("y = Add (x, x)"), "wide", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@npu
def test_the_backends_own_validation_gives_the_reason(tmp_path: Path) -> None:
    onnx.save(wide(6), tmp_path / "m.onnx")
    (row,) = answers(tmp_path, str(tmp_path / "m.onnx"), "--ep", "qnn", "--chip", "SM8650")
    assert isinstance(row["decisions"], list)
    (decision,) = row["decisions"]
    assert decision["code"] == "backend"
    assert "ElementWiseAdd for 'x' f32 [1, 2, 2, 2, 2, 2]" in decision["reason"]
    assert decision["remedy"] == "reshape it to at most 5 dimensions around the node"


def unnamed_bias() -> onnx.ModelProto:
    """A Gemm with an empty name in the place of its bias, on which the compiler crashes."""
    node = helper.make_node("Gemm", ["x", "w", ""], ["y"])
    return model([node], [value("x", (2, 4))], ["y"], {"w": np.ones((4, 4), np.float32)})


@npu
def test_a_crash_costs_one_answer(tmp_path: Path) -> None:
    onnx.save(unnamed_bias(), tmp_path / "a.onnx")
    onnx.save(chain("Relu"), tmp_path / "b.onnx")
    crashed, taken = answers(
        tmp_path, str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"), "--ep", "qnn", "--chip", "SM8650"
    )
    assert isinstance(crashed["load"], dict)
    assert crashed["load"]["code"] == "crash"
    assert taken["claimed"] == 1


@npu
def test_the_second_question_is_answered_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(provider="qnn", chip="SM8650")
    first = answer(chain("Relu", "Acos"), tmp_path, settings)
    monkeypatch.setattr(claims, "ask", _never)
    assert answer(chain("Relu", "Acos"), tmp_path, settings) == first
    assert first.claimed == 1


def without_imports(modules: str, tmp_path: Path, *arguments: str) -> Done:
    """A command in a process that importing one of the modules ends, in a home of its own."""
    for name in modules.split():
        (tmp_path / "first" / name).mkdir(parents=True)
        (tmp_path / "first" / name / "__init__.py").write_text(f"raise SystemExit('{name} is imported')\n")
    path = f"{tmp_path / 'first'}:{Path.cwd()}"
    return ort_mobile(*arguments, process=True, PYTHONPATH=path)


NAMES_IMPORTS = """
import os, sys
log = open(os.environ["IMPORTS"], "a", buffering=1)
sys.addaudithook(lambda event, given: event == "import" and print(given[0], file=log))
"""


@pytest.mark.parametrize("command", [pytest.param("partition", marks=pytest.mark.nightly), "check", "convert"])
def test_the_extra_changes_nothing_where_no_chip_is_named(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what is said nor what is imported, in this process or in workers."""
    said, imported = [], []
    for number, modules in enumerate(("", "onnxruntime_qnn")):
        folder = tmp_path / str(number)
        (folder / "first").mkdir(parents=True)
        (folder / "first/sitecustomize.py").write_text(NAMES_IMPORTS)
        monkeypatch.setenv("IMPORTS", str(folder / "imports"))
        output = ("--output", str(folder / "o")) if command == "convert" else ()
        done = without_imports(modules, folder, command, MNIST, *output)
        said.append(done.text.replace(str(folder), ""))
        imported.append(
            {
                name
                for name in (folder / "imports").read_text().split()
                if name.split(".")[0] in ("pipeline", "device_runner", "onnxruntime_qnn")
            }
        )
    assert said[0] == said[1]
    assert imported[0] == imported[1]
    assert "pipeline.core" in imported[0]
    assert not {name for name in imported[0] if name.startswith(("onnxruntime_qnn", "pipeline.providers.qnn.s"))}


@npu
def test_the_cache_is_asked_before_anything_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chip = ("--ep", "qnn", "--chip", "SM8650")
    first = partition(MNIST, *chip)
    (tmp_path / "first").mkdir()
    (tmp_path / "first/sitecustomize.py").write_text(NAMES_IMPORTS)
    monkeypatch.setenv("IMPORTS", str(tmp_path / "imports"))
    again = without_imports("onnxruntime_qnn onnxruntime onnx numpy", tmp_path, "partition", MNIST, *chip)
    assert again.text == first.text
    imported = set((tmp_path / "imports").read_text().split())
    assert "pipeline.partition.kept" in imported
    judging = ("pipeline.partition.judge", "pipeline.passes", "pipeline.dataset", "pipeline.config")
    assert not imported.intersection(judging)


def _never(*_: object) -> CompilerAnswer:
    raise AssertionError("the compiler was asked again")


@npu
def test_fixes_are_tried_and_claimed_again(tmp_path: Path) -> None:
    onnx.save(chain("Relu", "Tanh", dims=("batch", 4)), tmp_path / "m.onnx")
    done = partition(str(tmp_path / "m.onnx"), "--ep", "qnn", "--chip", "SM8650", "--advise")
    assert "best together: fixed-dimensions: partitions 0 → 1, coverage 0 → 100 %" in done.text


@npu
def test_a_chip_without_floats_gets_a_quantized_form(tmp_path: Path) -> None:
    data = ("--test-data", "build_configs/examples/mnist/evaluation.npz")
    (row,) = answers(tmp_path, MNIST, "--ep", "qnn", "--chip", "SM8635", "--advise", "--simulate", *data)
    assert isinstance(row["advice"], dict)
    best = row["advice"]["best"]
    assert best["fixes"] == ["qnn"]
    assert (best["after"]["partitions"], best["after"]["load_error"], best["after"]["wrong"]) == (1, None, None)
    assert best["error"] < best["tolerance"] == 0.1


SAMPLE = ("mnist.base.onnx", "mobilenet_v2.qdq_u8s8pc.onnx", "mobilenet_v2.qop.onnx", "fsrcnn.qdq_s8s8.onnx",
          "lstm_classifier.dyn.onnx", "silero_like_vad_if.base.onnx")  # fmt: skip


@npu
@pytest.mark.parametrize(
    ("name", "chip"),
    [
        *((name, "SM8650") for name in SAMPLE if name != SAMPLE[1]),
        *((name, "SM8635") for name in SAMPLE[:2]),
        *(pytest.param(name, "SM8635", marks=pytest.mark.nightly) for name in SAMPLE[2:]),
        pytest.param(SAMPLE[1], "SM8650", marks=pytest.mark.nightly),
    ],
)
def test_partitions_are_those_of_a_session_by_hand(name: str, chip: str, tmp_path: Path) -> None:
    assert not asked_twice(REAL, name, chip, tmp_path)[1]


@npu
def test_an_ort_format_file_cannot_be_asked_about(tmp_path: Path) -> None:
    ort_mobile("convert", MNIST, "--output", str(tmp_path / "out"))
    (path, *_) = sorted((tmp_path / "out").rglob("*.ort"))
    done = partition(str(path), "--ep", "qnn", "--chip", "SM8650", code=1)
    assert "says nothing about ORT format files" in done.err
