"""The preflight against releases: tables by hand, and the installed onnxruntime as the judge."""

from importlib.metadata import version
from pathlib import Path

import msgspec
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from device_runner.providers import PROVIDERS
from device_runner.spec import RunOptions
from pipeline.compat.defects import Runtime
from pipeline.compat.release_table import Demand, DemandKind, release_table
from pipeline.compat.rules import (
    DEFAULT_USE,
    SESSION_KEYS,
    ArtifactFacts,
    check_artifact,
    check_onnx,
    check_use,
    facts_of,
    loadable_by,
)
from pipeline.config.tables import BuildKind
from pipeline.core.errors import Severity, errors
from pipeline.core.releases import NEWEST_KNOWN, Release, line_of
from pipeline.model.ort_format import parse_ort
from tests.onnx_samples import parsed_nodes

HERE = line_of(version("onnxruntime"))


def artifact(format_version: str = "6", opset: int = 13, *demands: Demand, replays: bool = False) -> ArtifactFacts:
    return ArtifactFacts(name="m.ort", format_version=format_version, opset=opset, replays=replays, demands=demands)


MATRIX = {
    (1, 7): "3", (1, 8): "4", (1, 12): "4", (1, 13): "5", (1, 14): "345", (1, 15): "345", (1, 16): "3456",
    (1, 31): "3456",
}  # fmt: skip
"""What stock wheels loaded when tried, by release (full builds)."""


@pytest.mark.parametrize(("release", "loaded"), MATRIX.items())
@pytest.mark.parametrize("format_version", "3456")
def test_the_measured_load_matrix(release: tuple[int, int], loaded: str, format_version: str) -> None:
    found = errors(check_artifact(artifact(format_version), Runtime(release=Release(*release))))
    assert bool(found) is (format_version not in loaded)
    assert all("does not load ORT format version" in finding.what and finding.remedy for finding in found)


def test_the_releases_that_load_a_version() -> None:
    assert loadable_by(4, BuildKind.FULL) == ("1.8 to 1.12", "1.14 to 1.15", "1.16 and later")
    assert loadable_by(4, BuildKind.MINIMAL) == ("1.8 to 1.12",)
    assert loadable_by(6, BuildKind.MINIMAL) == ("1.16 and later",)


@given(text=st.text())
def test_a_format_version_that_is_none_is_an_error_and_no_crash(text: str) -> None:
    found = check_artifact(artifact(text), Runtime(release=Release(1, 23)))
    assert bool(errors(found)) is (text not in set("123456"))


def test_a_release_from_before_the_table_is_judged_by_its_opset() -> None:
    old = Runtime(release=Release(1, 15))
    assert [finding.what for finding in check_onnx(artifact("", 20), old)] == [
        "ONNX Runtime 1.15 does not take opset 20"
    ]
    (finding,) = check_onnx(artifact("", 19), old)
    assert (finding.severity, finding.what) == (
        Severity.WARNING, "whether ONNX Runtime 1.15 opens this was not judged"
    )  # fmt: skip


def test_minimal_builds_ask_for_operators_not_for_what_a_file_says_of_itself() -> None:
    newest = release_table().bit(NEWEST_KNOWN)
    attribute = Demand(kind=DemandKind.ATTRIBUTE, what="attribute", having=newest)
    operator = Demand(kind=DemandKind.OPERATOR, what="operator", having=newest)
    minimal, full = (Runtime(release=Release(1, 21), kind=kind) for kind in (BuildKind.MINIMAL, BuildKind.FULL))
    both = artifact("6", 13, attribute, operator)
    assert [finding.what for finding in check_artifact(both, minimal)] == ["ONNX Runtime 1.21 operator"]
    assert len(check_artifact(both, full)) == 2
    assert check_artifact(both, Runtime(release=NEWEST_KNOWN)) == ()


def test_a_missing_kernel_is_a_warning_where_a_provider_may_take_the_node() -> None:
    newest = release_table().bit(NEWEST_KNOWN)
    facts = artifact("6", 13, Demand(kind=DemandKind.KERNEL, what="has no kernel", having=newest))
    runtime = Runtime(release=Release(1, 21))
    (finding,) = check_artifact(facts, runtime)
    assert finding.severity is Severity.ERROR
    assert finding.remedy == f"ship ONNX Runtime {NEWEST_KNOWN} or later"
    (finding,) = check_artifact(facts, runtime, RunOptions(provider="nnapi"))
    assert finding.severity is Severity.WARNING
    assert "only where nnapi takes the node" in finding.why
    claimed = artifact("6", 13, Demand(kind=DemandKind.KERNEL, what="has no kernel", having=newest, taken_by="nnapi"))
    assert not errors(check_artifact(claimed, runtime))


REPLAY_KEY = "session.enable_saved_runtime_optimizations"


@pytest.mark.parametrize(
    ("release", "kind", "config", "warned"),
    [
        ((1, 29), BuildKind.EXTENDED, {}, False),
        ((1, 29), BuildKind.MINIMAL, {}, True),
        ((1, 30), BuildKind.FULL, {}, True),
        ((1, 30), BuildKind.EXTENDED, {REPLAY_KEY: "1"}, False),
        ((1, 30), BuildKind.EXTENDED, {REPLAY_KEY: "0"}, True),
    ],
)
def test_saved_optimizations_that_would_be_ignored(
    release: tuple[int, int], kind: BuildKind, config: dict[str, str], warned: bool
) -> None:
    runtime = Runtime(release=Release(*release), kind=kind)
    found = check_artifact(artifact(replays=True), runtime, RunOptions(session_config=config))
    assert [finding.severity for finding in found] == ([Severity.WARNING] if warned else [])
    assert check_artifact(artifact(), runtime, RunOptions(session_config=config)) == ()


def test_a_missing_nnapi_names_what_has_it_where_no_build_can() -> None:
    """A library for Linux cannot have NNAPI; one for Android can be built with it."""
    has = frozenset({"cpu"})
    runtimes = [Runtime(release=Release(1, 23), providers=has, system=system) for system in ("linux", "android", "")]
    computer, *others = [check_use(RunOptions(provider="nnapi"), runtime)[0].remedy for runtime in runtimes]
    assert "--device adb:SERIAL" in computer
    assert "--device android-host:1.29.0" in computer
    assert "build it in" not in computer
    assert others == ["build it in ([build] providers), or take a library with nnapi"] * 2
    (finding,) = check_use(RunOptions(provider="xnnpack"), runtimes[0])
    assert "build it in" in finding.remedy
    (finding,) = check_use(RunOptions(provider="qnn"), runtimes[1])
    assert "give its plugin: --plugin qnn=libonnxruntime_providers_qnn.so" in finding.remedy
    (finding,) = check_use(RunOptions(provider="cuda"), runtimes[0])
    assert finding.remedy == PROVIDERS["cuda"].remedy  # no build of ours has it


def test_providers_against_the_library() -> None:
    library = Runtime(release=Release(1, 23), providers=frozenset({"nnapi"}))
    assert check_use(RunOptions(provider="nnapi"), library) == ()
    assert check_use(DEFAULT_USE, library) == ()
    (finding,) = check_use(RunOptions(provider="xnnpack"), library, "[[runs]]")
    assert (finding.severity, finding.where) == (Severity.ERROR, "[[runs]]")
    assert "it has: cpu, nnapi" in finding.why
    assert check_use(RunOptions(provider="xnnpack"), Runtime(release=Release(1, 23))) == ()
    coreml = RunOptions(provider="coreml", provider_options={"ModelFormat": "MLProgram"})
    assert errors(check_use(coreml, Runtime(release=Release(1, 20))))
    assert not check_use(coreml, Runtime(release=Release(1, 21)))


def test_a_library_from_before_webgpu_is_no_question_to_its_rules(tmp_path: Path) -> None:
    facts = msgspec.structs.replace(artifact(), file=str(tmp_path / "m.ort"))
    runtime = Runtime(release=Release(1, 17), providers=frozenset({"cpu"}))
    check_artifact(facts, runtime, RunOptions(provider="webgpu"))  # raises no ConfigError of the rules
    assert "this library has no webgpu" in check_use(RunOptions(provider="webgpu"), runtime)[0].what


def test_keys_that_a_release_does_not_know_yet_are_named() -> None:
    use = RunOptions(session_config={"session.use_memory_mapped_ort_model": "1"})
    (finding,) = check_use(use, Runtime(release=Release(1, 23)))
    assert "came with 1.26" in finding.why
    assert check_use(use, Runtime(release=Release(1, 26))) == ()


def test_misspelt_keys_and_wrong_values_are_named() -> None:
    runtime = Runtime(release=Release(1, 31))
    (finding,) = check_use(RunOptions(session_config={"session.disable_prepackin": "1"}), runtime)
    assert "did you mean session.disable_prepacking?" in finding.remedy
    (finding,) = check_use(RunOptions(session_config={"session.disable_prepacking": "yes"}), runtime)
    assert finding.remedy == "it takes 0 or 1"
    assert check_use(RunOptions(session_config={"my.own": "x"}), runtime) == ()


def test_every_key_has_values_that_fit_its_pattern() -> None:
    assert all(since <= NEWEST_KNOWN for since, _ in SESSION_KEYS.values())
    assert len(SESSION_KEYS) > 50


def converted(folder: Path, opset: int) -> bytes:
    """A Relu of this opset as the installed onnxruntime saves it; raises what it says when it cannot."""
    import onnxruntime
    from onnx import TensorProto, helper

    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph(parsed_nodes("y = Relu (x)"), "g", value[:1], value[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.save_model_format", "ORT")
    options.optimized_model_filepath = str(folder / "m.ort")
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return (folder / "m.ort").read_bytes()


def loads(data: bytes) -> bool:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001 -- onnxruntime raises its own kinds, which differ by release
        return False
    return True


@pytest.mark.skipif(HERE > NEWEST_KNOWN, reason="the installed onnxruntime is newer than what was measured")
def test_the_installed_onnxruntime_takes_the_opset_of_the_table_and_no_more(tmp_path: Path) -> None:
    highest = release_table().highest_opset(HERE)
    facts = facts_of(parse_ort(converted(tmp_path, highest), "m.ort"), "m.ort")
    assert facts.opset == highest
    assert check_artifact(facts, Runtime(release=HERE)) == ()
    with pytest.raises(Exception, match="under development"):
        converted(tmp_path, highest + 1)


def version_place(data: bytes) -> int:
    """Where the text of the format version begins: field 0 of the root table, behind its length."""

    def number(at: int, size: int = 4) -> int:
        return int.from_bytes(data[at : at + size], "little", signed=size == 4)

    root = number(0)
    field = root + number(root - number(root) + 4, 2)
    return field + number(field) + 4


@pytest.mark.parametrize("version_text", ["5", "6", "7"])
def test_the_installed_onnxruntime_agrees_on_format_versions(version_text: str, tmp_path: Path) -> None:
    data = converted(tmp_path, 13)
    facts = facts_of(parse_ort(data, "m.ort"), "m.ort")
    at = version_place(data)
    assert data[at : at + 1] == b"6"
    patched = data[:at] + version_text.encode() + data[at + 1 :]
    claimed = ArtifactFacts(
        **{name: getattr(facts, name) for name in facts.__struct_fields__} | {"format_version": version_text}
    )
    assert loads(patched) is not bool(errors(check_artifact(claimed, Runtime(release=HERE))))


def four_bit_weight() -> onnx.ModelProto:
    """A matrix product with a 4-bit weight behind DequantizeLinear."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 4))]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 4))]
    weights = [
        helper.make_tensor("w", TensorProto.INT4, (4, 4), list(range(-8, 8))),
        helper.make_tensor("scale", TensorProto.FLOAT, (), [0.1]),
    ]
    nodes = parsed_nodes("plain = DequantizeLinear (w, scale)  y = MatMul (x, plain)")
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_four_bit_initializers_are_refused_as_onnxruntime_does(tmp_path: Path) -> None:
    onnx.save(four_bit_weight(), tmp_path / "m.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = str(tmp_path / "m.ort")
    onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), options, providers=["CPUExecutionProvider"])
    facts = facts_of(parse_ort((tmp_path / "m.ort").read_bytes(), "m.ort"), "m.ort")
    (found,) = errors(check_artifact(facts, Runtime(release=HERE)))
    assert "w (int4)" in found.why
    with pytest.raises(Exception, match="Unsupported tensor data type"):
        onnxruntime.InferenceSession(str(tmp_path / "m.ort"), providers=["CPUExecutionProvider"])
