"""What artifacts need, with ONNX Runtime's own config maker as the judge, and its defects shown."""

import logging
from pathlib import Path

import pytest

from pipeline.core.errors import ModelError
from pipeline.model.ort_format import OrtModel, read_ort
from pipeline.required_ops import RequiredOps, covers, needs_of, parse, render, union_of
from pipeline.required_ops.value import OPTIMIZER_OPS
from tests.ort_models import LEVELS, MODELS, convert, converted, parsed
from tests.required_ops.proving import from_model

# The stock tool never closes the files that it reads.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

IN0, IN1, OUT0 = ("inputs", 0), ("inputs", 1), ("outputs", 0)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("needs")


@pytest.fixture(autouse=True)
def silent_stock_tools() -> None:
    logging.getLogger("ort_format_model.utils").setLevel(logging.ERROR)


def stock_config(artifacts: list[Path], target: Path, *, types: bool) -> RequiredOps:
    from onnxruntime.tools.ort_format_model import create_config_from_models

    create_config_from_models(artifacts, target, types)
    return parse(target.read_text(encoding="utf-8"), "stock")


def written(required: RequiredOps) -> RequiredOps:
    """A value as the stock tool writes it: without the arguments that nothing is known of."""
    types = {key: {slot: names for slot, names in slots.items() if names} for key, slots in required.types.items()}
    return RequiredOps(operators=required.operators, types={key: slots for key, slots in types.items() if slots})


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"four_bits"}))
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("types", [False, True])
def test_needs_are_those_of_the_stock_tool(folder: Path, name: str, level: str, types: bool) -> None:
    artifact = converted(folder, name, level=level)
    assert written(from_model(read_ort(artifact), types=types)) == stock_config([artifact], folder / "c", types=types)


@pytest.mark.parametrize("name", ["mnist.base", "mnist.qdq_u8u8", "mlp_tabular.dyn", "silero_like_vad_if.base"])
@pytest.mark.parametrize("types", [False, True])
def test_real_models_at_once_need_what_the_stock_tool_says(folder: Path, oracle: Path, name: str, types: bool) -> None:
    import zipfile

    with zipfile.ZipFile(oracle / "real.zip") as archive:
        member = next(entry for entry in archive.namelist() if entry.endswith(f"{name}.onnx"))
        source = folder / f"{name}.onnx"
        source.write_bytes(archive.read(member))
    artifacts = [convert(source, folder / f"{name}.{level}.ort", level=level) for level in LEVELS]
    ours = union_of(from_model(read_ort(artifact), types=types) for artifact in artifacts)
    assert written(ours) == stock_config(artifacts, folder / "c", types=types)


def test_four_bit_weights_leave_their_operator_whole(folder: Path) -> None:
    """The stock tool breaks on them (KeyError 22); a restricted DequantizeLinear would lack their kernel."""
    artifact = converted(folder, "four_bits", level="none")
    with pytest.raises(KeyError):
        stock_config([artifact], folder / "c", types=True)
    needs = needs_of(read_ort(artifact))
    required = from_model(read_ort(artifact), types=True)
    assert required.operators == {
        ("ai.onnx", 13): {"MatMul"},
        ("ai.onnx", 21): {"DequantizeLinear"},
    }
    assert required.types == {("ai.onnx", "MatMul"): {IN0: {"float"}}}
    restricted = RequiredOps(
        operators=required.operators, types={("ai.onnx", "DequantizeLinear"): {IN0: frozenset({"uint8_t"})}}
    )
    (missing,) = covers(restricted, needs)
    assert "no config can name" in missing.why
    assert missing.line == "ai.onnx;21;DequantizeLinear"


def test_types_of_sequences_triples_and_casts(folder: Path) -> None:
    def types(name: str) -> dict[str, dict[tuple[str, int], set[str]]]:
        required = from_model(read_ort(converted(folder, name, level="none")), types=True)
        return {op: {slot: set(names) for slot, names in slots.items()} for (_, op), slots in required.types.items()}

    assert types("sequences") == {"SplitToSequence": {IN0: {"float"}}}
    assert types("one_hot") == {"OneHot": {("custom", 0): {"int64_t,float,int64_t"}}}
    assert types("casts") == {"Cast": {IN0: {"float", "int32_t"}, OUT0: {"int64_t", "float", "double"}}}


def test_bodies_are_searched_and_their_nodes_named(folder: Path) -> None:
    needs = needs_of(read_ort(converted(folder, "control_flow", level="none")))
    labels = {need.op: nodes for need, nodes in needs.items()}
    assert set(labels) == {"Exp", "If", "Cos", "Tan", "Neg"}
    assert labels["Tan"][0].split("/")[1::2] == ["then_branch", "then_branch"]
    assert len(labels["If"]) == 2


def test_an_operator_that_lost_an_input_restricts_nothing_there(folder: Path) -> None:
    """Slice of opset 9 has attributes where later ones have inputs of a restricted type."""
    import onnx

    old = onnx.parser.parse_model("""<ir_version: 4, opset_import: ["" : 9]>
        g (float[4] x) => (float[2] y) { y = Slice <starts = [0], ends = [2]> (x) }""")
    new = parsed("g (float[4] x, int64[1] s, int64[1] e) => (float[n] y) { y = Slice (x, s, e) }")
    artifacts = [convert(model, folder / f"slice{k}.ort", level="none") for k, model in enumerate((old, new))]
    first, second = (from_model(read_ort(artifact), types=True) for artifact in artifacts)
    assert first.types == {("ai.onnx", "Slice"): {IN0: {"float"}, IN1: set()}}
    assert first.union(second) == union_of([first, second])
    assert first.union(second).types == {("ai.onnx", "Slice"): {IN0: {"float"}, IN1: {"int64_t"}}}
    assert written(first.union(second)) == stock_config(artifacts, folder / "c", types=True)


# What saved runtime optimizations add -------------------------------------------------------------


def runtime(folder: Path, name: str) -> OrtModel:
    return read_ort(converted(folder, name, level="extended", runtime=True))


def test_fused_and_unfused_kernels_of_a_saved_optimization(folder: Path) -> None:
    required = from_model(runtime(folder, "conv_relu"), types=True)
    assert required.operators == {
        ("ai.onnx", 11): {"Conv"},
        ("ai.onnx", 14): {"Relu"},
        ("com.microsoft", 1): {"FusedConv"},
    }
    stock = stock_config([converted(folder, "conv_relu", level="extended", runtime=True)], folder / "c", types=True)
    assert required.contains(stock)
    assert not stock.contains(required)


def loaded(artifact: Path, target: Path) -> OrtModel:
    """What ONNX Runtime makes of an artifact on the device, where it replays saved optimizations and its own."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.enable_saved_runtime_optimizations", "1")
    options.add_session_config_entry("session.save_model_format", "ORT")
    options.optimized_model_filepath = str(target)
    onnxruntime.InferenceSession(str(artifact), options, providers=["CPUExecutionProvider"])
    return read_ort(target)


QUANTIZED_POOL = """
    g (float[1, 2, 8, 8] x) => (float[1, 2, 4, 4] y)
    <float s = {0.1}, uint8 z = {128}> {
        q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s, z)
        m = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (d)
        p = QuantizeLinear (m, s, z)  y = DequantizeLinear (p, s, z)
    }"""
QLINEAR_CONV = """
    g (uint8[1, 1, 4, 4] x) => (uint8[1, 1, 2, 2] y)
    <float s = {0.1}, uint8 z = {128}, uint8[1, 1, 3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}> {
        y = QLinearConv (x, s, z, w, s, z, s, z)
    }"""
QUANTIZED_PAIR = """
    g (uint8[4] x) => (uint8[4] y, float[4] a) <float s = {0.1}, uint8 z = {128}> {
        d = DequantizeLinear (x, s, z)  y = QuantizeLinear (d, s, z)  a = Abs (d)
    }"""


@pytest.mark.parametrize("text", [QUANTIZED_POOL, QLINEAR_CONV, QUANTIZED_PAIR])
@pytest.mark.parametrize("saved", [True, False])
def test_what_loading_adds_is_covered(folder: Path, text: str, saved: bool) -> None:
    """ONNX Runtime itself is the judge: it saves what it has made of the artifact."""
    artifact = convert(parsed(text), folder / "saved.ort", level="extended", runtime=saved)
    model = read_ort(artifact)
    changed = loaded(artifact, folder / "loaded.ort")
    required = from_model(model, types=True, extended=True)
    assert covers(required, needs_of(changed)) == ()
    assert parse(render(required), "x") == required


def test_loading_adds_something(folder: Path) -> None:
    """Guards the test above: what the nodes alone need is not enough."""
    artifact = convert(parsed(QLINEAR_CONV), folder / "saved.ort", level="basic")
    missing = covers(from_model(read_ort(artifact), types=True), needs_of(loaded(artifact, folder / "loaded.ort")))
    assert {(item.domain, item.op) for item in missing} == {("com.microsoft", "QLinearConv"), ("ai.onnx", "Transpose")}


@pytest.mark.parametrize("name", ["conv_relu", "quantized", "four_bits"])
def test_a_replayed_model_is_covered(folder: Path, name: str) -> None:
    """The fixed style shows what replaying gives, also of 4-bit files, which release 1.31.1 does not load."""
    artifact = converted(folder, name, level="extended", runtime=True)
    required = from_model(read_ort(artifact), types=True)
    assert covers(required, needs_of(read_ort(converted(folder, name, level="extended")))) == ()
    if name != "four_bits":
        assert covers(required, needs_of(loaded(artifact, folder / "replayed.ort"))) == ()


def test_types_of_replayed_operators_are_those_before_and_behind(folder: Path) -> None:
    """DequantizeLinear -> MaxPool -> QuantizeLinear becomes MaxPool of bytes; the record does not say so."""
    artifact = convert(parsed(QUANTIZED_POOL), folder / "pool.ort", level="extended", runtime=True)
    required = from_model(read_ort(artifact), types=True)
    assert required.types["ai.onnx", "MaxPool"] == {IN0: {"float", "uint8_t"}}
    assert required.types["ai.onnx", "Transpose"] == {IN0: {"float", "uint8_t"}}
    assert "NhwcMaxPool" in required.operators["com.microsoft", 1]


# What layout changes add -------------------------------------------------------------------------


def test_a_change_of_layout_needs_transposes_of_what_is_computed(folder: Path) -> None:
    model = read_ort(converted(folder, "conv_relu", level="none"))
    plain = from_model(model, types=True)
    changed = from_model(model, types=True, providers=["nnapi"])
    assert from_model(model, types=True, providers=["coreml"]) == plain
    assert changed.contains(plain)
    added = changed.difference(plain)
    assert added.operators == {
        ("ai.onnx", 13): {"Gather", "Squeeze", "Transpose", "Unsqueeze"},
        ("ai.onnx", 16): {"Identity"},
    }
    assert added.types["ai.onnx", "Transpose"] == {IN0: {"float"}}
    assert parse(render(changed), "x") == changed


def test_no_layout_change_without_a_sensitive_node(folder: Path) -> None:
    model = read_ort(converted(folder, "control_flow", level="none"))
    assert from_model(model, types=True, providers=["xnnpack"]) == from_model(model, types=True)


def test_versions_of_the_operators_that_are_added_are_those_of_onnx() -> None:
    from onnx import defs

    for op, versions in OPTIMIZER_OPS.items():
        known = {schema.since_version for schema in defs.get_all_schemas_with_history() if schema.name == op}
        assert set(versions) == {version for version in known if version <= max(versions)}


def test_names_that_no_config_can_hold_are_refused(folder: Path) -> None:
    model = read_ort(converted(folder, "conv_relu", level="none"))
    data = converted(folder, "conv_relu", level="none").read_bytes()
    from pipeline.model.ort_format import parse_ort

    hostile = parse_ort(data.replace(b"Relu\0", b"R,u;\0"), "hostile")
    assert hostile != model
    with pytest.raises(ModelError, match="R,u;"):
        needs_of(hostile)
