"""Sound artifacts that ONNX Runtime fails on: found by their marks, told for the releases and builds that fail."""

import contextlib
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from device_runner.spec import RunOptions
from pipeline.compat.defects import DEFECTS, SME_TRAPS, Runtime, marks_of
from pipeline.compat.rules import check_artifact, facts_of
from pipeline.config import REPLAY_KEY
from pipeline.config.tables import BuildKind
from pipeline.core.errors import errors
from pipeline.core.releases import Release
from pipeline.model.ort_format import (
    OrtGraph,
    OrtModel,
    OrtNode,
    RuntimeOptimization,
    Tensor,
    TensorType,
    read_artifact,
    read_ort,
)
from tests.onnx_samples import parsed_nodes
from tests.ort_models import convert
from tests.required_ops.required_ops_strategies import random_model

EXTENDED = Runtime(release=Release(1, 21), kind=BuildKind.EXTENDED)


def model(*nodes: OrtNode, outputs: tuple[str, ...] = (), records: tuple[RuntimeOptimization, ...] = ()) -> OrtModel:
    constants = {name: Tensor(name, (), 1 if name[0] == "s" else 2) for name in ("s", "s2", "z", "z2")}
    graph = OrtGraph(
        inputs=("x",), outputs=outputs, nodes=nodes, node_args={}, initializers=constants, sparse_initializers={},
        runtime_optimizations=records,
    )  # fmt: skip
    return OrtModel(format_version="6", ir_version=9, opset_import={"": 13}, graph=graph)


def node(index: int, op: str, inputs: str, outputs: str) -> OrtNode:
    return OrtNode(
        index=index, name="", op_type=op, domain="", since_version=13, inputs=tuple(inputs.split()),
        outputs=tuple(outputs.split()), implicit_inputs=(), attributes={}, provider="",
    )  # fmt: skip


def pair(q_parameters: str = "s z", *, source: str = "x", output: str = "y") -> tuple[OrtNode, OrtNode]:
    return node(0, "DequantizeLinear", f"{source} s z", "d"), node(1, "QuantizeLinear", f"d {q_parameters}", output)


@pytest.mark.parametrize(
    ("nodes", "outputs", "mark"),
    [
        (pair(), ("y",), "y"),
        (pair("s2 z2"), ("y",), "y"),
        (pair("z s"), ("y",), ""),
        (pair("q z"), ("y",), ""),
        (pair(), ("d", "y"), ""),
        (pair(), (), ""),
        ((*pair(), node(2, "Relu", "d", "r")), ("y", "r"), ""),
        ((*pair(), node(2, "Relu", "y", "r")), ("y", "r"), ""),
        ((*pair(source="a"), node(2, "Relu", "x", "a")), ("y",), ""),
        ((*pair(source="a"), node(2, "Relu", "x", "a"), node(3, "QuantizeLinear", "d s z", "y2")), ("y", "y2"), "y"),
    ],
)
def test_pairs_that_loading_takes_out(nodes: tuple[OrtNode, ...], outputs: tuple[str, ...], mark: str) -> None:
    assert marks_of(model(*nodes, outputs=outputs)).get("identity", "") == mark


def record(action: str, *produced: str) -> RuntimeOptimization:
    return RuntimeOptimization("QDQSelectorActionTransformer", action, (0, 1), produced)


@pytest.mark.parametrize(
    ("records", "marks"),
    [
        ((record("*DQ", "com.microsoft:QLinearConcat:1"),), {"uncounted": "com.microsoft:QLinearConcat"}),
        ((record("MatMul"),), {"unreplayable": "MatMul"}),
        ((record("1DQ_CPU", ":Softmax:13"),), {"young": "1DQ_CPU"}),
        ((record("Conv", ":QLinearConv:10"), record("MatMul", ":QLinearMatMul:10")), {}),
    ],
)
def test_records_that_fail(records: tuple[RuntimeOptimization, ...], marks: dict[str, str]) -> None:
    assert marks_of(model(records=records)) == marks


def found(subject: OrtModel, runtime: Runtime, **config: str) -> int:
    findings = check_artifact(facts_of(subject, "m"), runtime, RunOptions(session_config=config))
    return len(errors(findings))


def test_defects_show_where_they_were_measured() -> None:
    concat = model(records=(record("*DQ", "com.microsoft:QLinearConcat:1"),))
    assert found(concat, EXTENDED) == 1
    assert found(concat, Runtime(release=Release(1, 21))) == 0
    assert found(concat, Runtime(release=Release(1, 21), kind=BuildKind.MINIMAL)) == 0
    other = Runtime(release=Release(1, 23), kind=BuildKind.EXTENDED)
    assert found(concat, other) == 0
    assert any("(measured with 1.21)" in finding.why for finding in check_artifact(facts_of(concat, "m"), other))


def test_replay_that_nobody_asks_for_does_no_harm() -> None:
    broken = model(records=(record("MatMul"),))
    newest = Runtime(release=Release(1, 31))
    assert found(broken, newest) == 0
    assert found(broken, newest, **{REPLAY_KEY: "1"}) == 1
    assert found(broken, Runtime(release=Release(1, 28))) == 1
    told = check_artifact(facts_of(broken, "m"), newest)
    assert [finding.remedy for finding in told] == ["ship fixed style"], "nobody is told to ask for what does not open"
    young = model(records=(record("1DQ_CPU"),))
    assert [found(young, Runtime(release=Release(1, minor))) for minor in (22, 23, 24, 28)] == [1, 1, 0, 0]


def test_any_model_is_judged() -> None:
    for seed in range(200):
        facts = facts_of(random_model(seed), "m")
        check_artifact(facts, EXTENDED)


def _softmax() -> onnx.ModelProto:
    """A quantized Softmax of int8 before opset 13's meaning: newer releases record it as 1DQ_CPU."""
    constants = [
        helper.make_tensor("s", TensorProto.FLOAT, [], [1 / 256]),
        helper.make_tensor("sx", TensorProto.FLOAT, [], [0.1]),
        helper.make_tensor("z", TensorProto.INT8, [], [-128]),
    ]  # fmt: skip
    nodes = parsed_nodes("d = DequantizeLinear (x, sx, z)  p = Softmax (d)  y = QuantizeLinear (p, s, z)")
    ends = [helper.make_tensor_value_info(name, TensorProto.INT8, [1, 8]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)])


def _matmul() -> onnx.ModelProto:
    """A quantized product without a QuantizeLinear behind it: recorded without what it produces."""
    import numpy as np

    constants = [
        helper.make_tensor("s", TensorProto.FLOAT, [], [0.1]), helper.make_tensor("z", TensorProto.UINT8, [], [0]),
        numpy_helper.from_array(np.ones((8, 4), np.uint8), "w"),
    ]  # fmt: skip
    nodes = parsed_nodes("d = DequantizeLinear (x, s, z)  e = DequantizeLinear (w, s, z)  y = MatMul (d, e)")
    ends = [
        helper.make_tensor_value_info("x", TensorProto.UINT8, [1, 8]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4]),
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)])


def _loads(path: Path) -> bool:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry(REPLAY_KEY, "1")
    try:
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001 - onnxruntime raises its own kinds, which differ by release
        return False
    return True


@pytest.mark.parametrize("make", [_softmax, _matmul])
def test_the_installed_onnxruntime_agrees(make: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    import onnxruntime

    path = convert(make(), tmp_path / "m.ort", level="all", runtime=True)
    major, minor, *_ = onnxruntime.__version__.split(".")
    here = Runtime(release=Release(int(major), int(minor)))
    facts = facts_of(read_ort(path), "m")
    told = errors(check_artifact(facts, here, RunOptions(session_config={REPLAY_KEY: "1"})))
    assert _loads(path) is not bool(told)
    assert facts.replays


def test_models_of_the_oracle_load_unless_told(oracle: Path, tmp_path: Path) -> None:
    """Quantized one-operator models in runtime style: what the full build of the installed release says to each."""
    import onnxruntime

    major, minor, *_ = onnxruntime.__version__.split(".")
    here = Runtime(release=Release(int(major), int(minor)))
    asked = RunOptions(session_config={REPLAY_KEY: "1"})
    wrong, tried = [], 0
    with zipfile.ZipFile(oracle / "ops.zip") as archive:
        names = [name for name in sorted(archive.namelist()) if name.startswith("qdq_") and name.endswith(".onnx")]
        for place, name in enumerate(names[:: max(1, len(names) // 60)]):
            source, target = tmp_path / "m.onnx", tmp_path / f"{place}.ort"
            source.write_bytes(archive.read(name))
            with contextlib.suppress(Exception):  # not all of them have kernels on the CPU
                convert(source, target, level="all", runtime=True)
            if target.exists():
                tried += 1
                told = errors(check_artifact(facts_of(read_ort(target), name), here, asked))
                if _loads(target) is bool(told):
                    wrong.append((name, told))
    assert tried > 20
    assert wrong == []


def half(op: str, version: int) -> OrtModel:
    shown = model(msgspec.structs.replace(node(0, op, "x", "y"), since_version=version))
    types = {name: TensorType(TensorProto.FLOAT16, (1,)) for name in ("x", "y")}
    return msgspec.structs.replace(shown, graph=msgspec.structs.replace(shown.graph, node_args=types))


@pytest.mark.parametrize(
    ("op", "version", "abis", "told"),
    [
        ("Relu", 6, ("arm64-v8a",), ["half precision without Casts"]),
        ("Relu", 6, ("x86_64",), ["half precision without Casts"]),
        ("MaxPool", 8, ("arm64-v8a",), ["half precision without Casts", "MaxPool in half precision before opset 12"]),
        ("MaxPool", 12, ("arm64-v8a",), ["half precision without Casts"]),
        ("Relu", 6, (), []),
        ("Reshape", 5, ("arm64-v8a",), []),
        ("Clip", 13, ("arm64-v8a",), []),
        ("Clip", 13, ("x86_64",), []),
    ],
)
def test_half_precision_needs_a_processor_that_computes_it(
    op: str, version: int, abis: tuple[str, ...], told: list[str]
) -> None:
    runtime = Runtime(release=Release(1, 29), abis=abis)
    findings = check_artifact(facts_of(half(op, version), "m"), runtime)
    assert len(findings) == len(told)
    assert all(text in finding.what for text, finding in zip(told, findings, strict=True))
    assert all(finding.remedy for finding in findings)
    assert not errors(findings)


@pytest.mark.parametrize(
    ("release", "features", "names"),
    [
        (Release(1, 23), None, {"sme-crash"}),
        (Release(1, 24), frozenset({"asimddp", "sme"}), {"sme-crash"}),
        (Release(1, 23), frozenset({"asimddp"}), set()),
        (Release(1, 27), None, {"sme-values"}),
        (Release(1, 28), None, set()),
        (Release(1, 28), frozenset({"asimddp", "sme"}), set()),
        (Release(1, 28), frozenset({"asimddp", "sme", SME_TRAPS}), {"sme-traps"}),
        (Release(1, 23), frozenset({"asimddp", "sme", SME_TRAPS}), {"sme-crash"}),
    ],
)
def test_products_on_processors_with_sme_by_release(
    release: Release, features: frozenset[str] | None, names: set[str]
) -> None:
    here = Runtime(release=release, abis=("arm64-v8a",), features=features)
    assert {defect.name for defect in DEFECTS if defect.name.startswith("sme") and defect.shows(here)} == names
    on_iphones = msgspec.structs.replace(here, system="ios")
    assert not [defect.name for defect in DEFECTS if defect.name.startswith("sme") and defect.shows(on_iphones)]


@pytest.mark.parametrize(("channels", "told"), [(24, True), (32, False)])
def test_convolutions_with_sums_in_onnx_files_fail_where_channels_fill_no_blocks(
    channels: int, told: bool, tmp_path: Path
) -> None:
    node = helper.make_node("FusedConv", ["x", "w", "", "x"], ["y"], domain="com.microsoft", activation="Relu")
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, channels, 4, 4]) for name in "xy"]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [channels, channels, 1, 1], [0.5] * channels**2)
    graph = helper.make_graph([node], "g", info[:1], info[1:], [weight])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    facts = facts_of(read_artifact(tmp_path / "m.onnx"), "m")
    for release, abi, expected in (
        ((1, 26), "x86_64", told),
        ((1, 27), "x86_64", False),
        ((1, 26), "arm64-v8a", False),
    ):
        findings = errors(check_artifact(facts, Runtime(release=Release(*release), abis=(abi,))))
        assert bool(findings) is expected
