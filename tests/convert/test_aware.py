"""Provider-aware conversion end to end: what is claimed stays, what is computed stays, nothing claimed is stock."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, patch

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from device_runner.errors import UnavailableError
from pipeline.compat.gpu import gpu_findings
from pipeline.convert import ConvertRequest, ConvertResult, convert_model, steps
from pipeline.convert.aware import find_claims, save_with_claims
from pipeline.convert.engine import Optimizer
from pipeline.convert.request import AwareSpec, SessionSettings
from pipeline.core.errors import ModelError
from pipeline.core.releases import Release
from pipeline.core.variant import Level, Variant
from pipeline.model import onnx_model
from pipeline.model.onnx_model import LeanModel, load_model, loadable, prepare_model
from pipeline.model.ort_format import read_ort
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import Settings, make_settings
from pipeline.partition.claiming import claim
from pipeline.partition.file_graph import view_of_file
from pipeline.passes.base import PassContext
from pipeline.providers.nnapi.load import build_refusal
from tests.android_host.test_gpu_legality import LOOP, around, branching
from tests.onnx_samples import conv_bn, linear, make, parsed_nodes, quantized, save, value, weight

NNAPI = Settings(provider="nnapi")
COREML = Settings(provider="coreml-mlprogram")
RELEASE = Release(1, 29)
WEBGPU = make_settings("webgpu", release=str(RELEASE))


def digits() -> onnx.ModelProto:
    """A small network like MNIST's: NNAPI claims all of it, and FusedConv would cut it."""
    nodes, x = [], "x"
    for layer in (0, 1):
        nodes += [
            helper.make_node("Conv", [x, f"w{layer}", f"b{layer}"], [f"c{layer}"], pads=[2, 2, 2, 2]),
            helper.make_node("Relu", [f"c{layer}"], [f"r{layer}"]),
            helper.make_node("MaxPool", [f"r{layer}"], [f"p{layer}"], kernel_shape=[2, 2], strides=[2, 2]),
        ]
        x = f"p{layer}"
    nodes += [
        helper.make_node("Flatten", [x], ["f"], axis=1),
        helper.make_node("Gemm", ["f", "g", "h"], ["y"]),
    ]
    weights = [weight("w0", 4, 1, 5, 5), weight("b0", 4, seed=1), weight("w1", 8, 4, 5, 5, seed=2)]
    weights += [weight("b1", 8, seed=3), weight("g", 32, 10, seed=4), weight("h", 10, seed=5)]
    return make(nodes, [value("x", [1, 1, 8, 8])], [value("y", [1, 10])], weights)


def mixed() -> onnx.ModelProto:
    """Claimed and unclaimed nodes by turns, with a fusion for the CPU on either side of a border."""
    nodes = parsed_nodes("""
        c = Conv <pads = [1, 1, 1, 1]> (x, w)  r = Relu (c)  e = Erf (r)  a = Add (e, one)  s = Softsign (a)
        mm = MatMul (s, m)  y = Add (mm, n)  z = Acos (e)""")
    one = numpy_helper.from_array(np.array(1, np.float32), "one")
    weights = [weight("w", 4, 4, 3, 3), weight("m", 8, 8, seed=1), weight("n", 8, seed=2), one]
    return make(nodes, [value("x", [1, 4, 8, 8])], [value("y", [1, 4, 8, 8]), value("z", [1, 4, 8, 8])], weights)


def branches() -> onnx.ModelProto:
    """An If whose body CoreML claims with EnableOnSubgraphs, beside a fusion for the CPU."""
    inner = parsed_nodes("ic = Conv <pads = [1, 1, 1, 1]> (x, w)  iy = Relu (ic)")
    then = helper.make_graph(inner, "then", [], [value("iy", [1, 4, 8, 8])])
    other = helper.make_graph(parsed_nodes("jy = Neg (x)"), "other", [], [value("jy", [1, 4, 8, 8])])
    nodes = [
        helper.make_node("If", ["c"], ["i"], then_branch=then, else_branch=other),
        helper.make_node("Acos", ["i"], ["y"]),
    ]
    inputs = [value("x", [1, 4, 8, 8]), value("c", [], TensorProto.BOOL)]
    return make(nodes, inputs, [value("y", [1, 4, 8, 8])], [weight("w", 4, 4, 3, 3)])


def request(
    path: Path, folder: Path, *aware: Settings, levels: tuple[Level, ...] = (Level.EXTENDED,), safe: bool = False
) -> ConvertRequest:
    names = tuple(settings.provider for settings in aware)
    return ConvertRequest(
        source=SourceModel(path=str(path)), variants=tuple(Variant(level=level, providers=names) for level in levels),
        stem="model", output_folder=str(folder / "out"), work_folder=str(folder / "work"),
        aware=AwareSpec(providers=aware, safe=safe),
    )  # fmt: skip


def convert(
    path: Path, folder: Path, *aware: Settings, levels: tuple[Level, ...] = (Level.EXTENDED,), safe: bool = False
) -> ConvertResult:
    return convert_model(request(path, folder, *aware, levels=levels, safe=safe))


def outputs(path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return list(onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, feeds))


def unkernelled() -> onnx.ModelProto:
    """A half precision network: CoreML claims it all, and this computer's CPU has no kernel for Conv and Sigmoid."""
    nodes = parsed_nodes("c = Conv <pads = [1, 1, 1, 1]> (x, w)  f = Reshape (c, shape)  y = Sigmoid (f)")
    half = numpy_helper.from_array(numpy_helper.to_array(weight("w", 4, 4, 3, 3)).astype(np.float16), "w")
    shape = numpy_helper.from_array(np.array([1, -1]), "shape")
    kind = TensorProto.FLOAT16
    return make(nodes, [value("x", [1, 4, 8, 8], kind)], [value("y", [1, 256], kind)], [half, shape])


def test_claimed_nodes_without_a_kernel_here_are_stored_otherwise_and_told(tmp_path: Path) -> None:
    path = save(unkernelled(), tmp_path / "model.onnx")
    (artifact,) = convert(path, tmp_path, make_settings("coreml-mlprogram", release="1.29", coreml_version=7)).artifacts
    assert "2 claimed nodes have no kernel on this computer's CPU" in artifact.notes[-1]
    assert "Conv 'c'" in artifact.notes[-1]
    assert "Sigmoid 'y'" in artifact.notes[-1]
    feeds = {"x": random_input(1, 4, 8, 8)["x"].astype(np.float16)}
    ours, original = (outputs(file, feeds)[0] for file in (tmp_path / "out" / artifact.file, path))
    np.testing.assert_allclose(ours, original, atol=1e-2)


def no_compiler() -> None:
    raise UnavailableError("no C compiler", why="neither cc, gcc nor clang is on PATH", remedy="pip install ziglang")


def test_without_a_compiler_files_are_for_the_cpu_and_that_is_told_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(digits(), tmp_path / "model.onnx")
    wanted = msgspec.structs.replace(request(path, tmp_path, NNAPI), cache_folder=str(tmp_path / "cache"))
    with monkeypatch.context() as patched:
        patched.setattr("pipeline.partition.stand_in.claims_devices", no_compiler)
        (plain,) = convert_model(wanted).artifacts
    assert (plain.aware_by, plain.claimed) == (None, {})
    assert "optimized for the CPU alone, because no C compiler" in plain.notes[-1]
    assert "pip install ziglang" in plain.notes[-1]
    assert "com.microsoft:FusedConv" in plain.operators
    (aware,) = convert_model(wanted).artifacts
    assert "com.microsoft:FusedConv" not in aware.operators


def random_input(*shape: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(7).standard_normal(shape, dtype=np.float32)}


def test_the_aware_model_keeps_the_one_partition(tmp_path: Path) -> None:
    path = save(digits(), tmp_path / "model.onnx")
    aware = convert(path, tmp_path / "aware", NNAPI, levels=(Level.EXTENDED, Level.ALL))
    stock = convert(path, tmp_path / "stock")
    assert aware.failures == ()
    for artifact in aware.artifacts:
        graph = view_of_file(tmp_path / "aware" / "out" / artifact.file)
        assert [len(group) for group in claim(graph, NNAPI).groups] == [len(graph.nodes)]
        assert artifact.claimed == {"nnapi": len(graph.nodes)}
    cut = view_of_file(tmp_path / "stock" / "out" / stock.artifacts[0].file)
    assert len(claim(cut, NNAPI).groups) > 1, "FusedConv cuts the stock model, else this test shows nothing"


@pytest.mark.parametrize("level", [Level.BASIC, Level.EXTENDED, Level.ALL])
@pytest.mark.parametrize("settings", [NNAPI, COREML])
def test_outputs_stay_and_claimed_nodes_too(tmp_path: Path, level: Level, settings: Settings) -> None:
    path = save(mixed(), tmp_path / "model.onnx")
    result = convert(path, tmp_path, settings, levels=(level,))
    file = tmp_path / "out" / result.artifacts[0].file
    feeds = random_input(1, 4, 8, 8)
    for ours, original in zip(outputs(file, feeds), outputs(path, feeds), strict=True):
        np.testing.assert_allclose(ours, original, rtol=1e-4, atol=1e-5)
    made = {node.outputs[0]: node.op_type for node in read_ort(file).graph.nodes}
    assert made["c"] == "Conv"
    assert made["r"] == "Relu"
    assert list(read_ort(file).graph.outputs) == ["y", "z"]


def test_the_remainder_is_optimized(tmp_path: Path) -> None:
    nodes = parsed_nodes("""
        r = Relu (x)  s = Softsign (r)  c = Conv <pads = [1, 1, 1, 1]> (s, w)  y = LeakyRelu <alpha = 0.1> (c)""")
    model = make(nodes, [value("x", [1, 4, 8, 8])], [value("y", [1, 4, 8, 8])], [weight("w", 4, 4, 3, 3)])
    stop = Settings(provider="nnapi", stop_ops=("Softsign",))
    path = save(model, tmp_path / "model.onnx")
    result = convert(path, tmp_path, stop)
    assert result.artifacts[0].claimed == {"nnapi": 1}
    assert result.artifacts[0].operators == {
        "ai.onnx:Relu": 1, "ai.onnx:Softsign": 1, "com.microsoft:FusedConv": 1,
    }  # fmt: skip


@pytest.mark.parametrize("sample", [linear, conv_bn, quantized, digits, mixed])
@pytest.mark.parametrize("level", [Level.BASIC, Level.EXTENDED, Level.ALL])
def test_nothing_claimed_is_the_stock_result(
    tmp_path: Path, sample: Callable[[], onnx.ModelProto], level: Level
) -> None:
    path = save(sample(), tmp_path / "model.onnx")
    model = prepare_model(load_model(SourceModel(path=str(path)), tmp_path), {})
    optimizer = Optimizer(model, PassContext(folder=tmp_path, where="model"))
    found = find_claims(model, optimizer.basic, AwareSpec(providers=(NNAPI,)), tmp_path)
    settings = SessionSettings(level=level)
    ours, notes = save_with_claims(model, replace(found, claims=frozenset()), settings, optimizer.context)
    count = [Counter(node.operator for node in parts.read().graph.nodes) for parts in (ours, optimizer.parts(settings))]
    assert (count[0], notes) == (count[1], ())


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    path = save(mixed(), tmp_path / "model.onnx")
    files = [convert(path, tmp_path / name, NNAPI).artifacts[0].sha256 for name in ("one", "two")]
    assert files[0] == files[1]


def test_one_file_for_two_providers_keeps_what_either_claims(tmp_path: Path) -> None:
    path = save(mixed(), tmp_path / "model.onnx")
    first = convert(path, tmp_path / "nnapi", NNAPI).artifacts[0]
    second = convert(path, tmp_path / "coreml", COREML).artifacts[0]
    both = convert(path, tmp_path / "both", NNAPI, COREML).artifacts[0]
    assert both.variant.name == "extended-fixed-nnapi+coreml-mlprogram"
    assert both.claimed == {**first.claimed, **second.claimed}
    graph = view_of_file(tmp_path / "both" / "out" / both.file)
    for settings, single, folder in ((NNAPI, first, "nnapi"), (COREML, second, "coreml")):
        alone = view_of_file(tmp_path / folder / "out" / single.file)
        names = {name for group in claim(alone, settings).names() for name in group}
        assert names <= {name for group in claim(graph, settings).names() for name in group}


def test_what_is_claimed_in_a_body_stays(tmp_path: Path) -> None:
    path = save(branches(), tmp_path / "model.onnx")
    inside = Settings(provider="coreml-mlprogram", enable_on_subgraphs=True)
    bodies = {}
    for name, settings in (("inside", inside), ("outside", COREML)):
        file = tmp_path / name / "out" / convert(path, tmp_path / name, settings).artifacts[0].file
        owner = next(node for node in read_ort(file).graph.nodes if node.op_type == "If")
        bodies[name] = {node.op_type for body in owner.subgraphs() for node in body.nodes}
    assert bodies["inside"] == {"Conv", "Relu", "Neg"}
    assert "FusedConv" in bodies["outside"]


def two_memories(*, sparse: bool) -> onnx.ModelProto:
    """Softsign and Mean have no kernel on the GPU; `one` and x are read on both sides."""
    nodes = parsed_nodes("""
        r = Relu (x)  s = Softsign (r)  a = Add (s, one)  b = Mean (x, one)  c = Softsign (x)
        d = Add (b, c)  y = Add (a, d)  z = Neg (r)""")
    made = make(nodes, [value("x", [1, 4])], [value("y", [1, 4]), value("z", [1, 4])], [weight("one", 4)])
    if sparse:
        places = numpy_helper.from_array(np.arange(4), "places")
        made.graph.sparse_initializer.append(helper.make_sparse_tensor(made.graph.initializer.pop(), places, [4]))
    return made


@pytest.mark.parametrize("sparse", [False, True])
def test_copies_stand_where_values_cross_between_gpu_and_cpu(sparse: bool, tmp_path: Path) -> None:
    path = save(two_memories(sparse=sparse), tmp_path / "model.onnx")
    result = convert(path, tmp_path, WEBGPU, levels=(Level.BASIC, Level.EXTENDED))
    assert result.failures == ()
    feeds = random_input(1, 4)
    for artifact in result.artifacts:
        file = tmp_path / "out" / artifact.file
        counted = Counter(node.op_type for node in read_ort(file).graph.nodes)
        assert (counted["MemcpyFromHost"], counted["MemcpyToHost"]) == (4, 1)  # b, c, s and x to the GPU; r from it
        for layout in ("NHWC", "NCHW"):
            assert list(gpu_findings(file, RELEASE, {"preferredLayout": layout}, "m")) == []
        for ours, original in zip(outputs(file, feeds), outputs(path, feeds), strict=True):
            np.testing.assert_array_equal(ours, original)


@pytest.mark.parametrize("text", [branching(""), branching("", deep=True), LOOP], ids=["if", "if in if", "loop"])
def test_copies_stand_in_bodies(text: str, tmp_path: Path) -> None:
    path = save(around(text), tmp_path / "model.onnx")
    (artifact,) = convert(path, tmp_path, WEBGPU, levels=(Level.BASIC,)).artifacts
    file = tmp_path / "out" / artifact.file
    for layout in ("NHWC", "NCHW"):
        assert list(gpu_findings(file, RELEASE, {"preferredLayout": layout}, "m")) == []
    for which in (False, True):
        feeds = {**random_input(1, 4), "which": np.array(which)}
        np.testing.assert_array_equal(outputs(file, feeds)[0], outputs(path, feeds)[0])


def test_without_a_compiler_there_are_copies_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.partition.stand_in.claims_devices", no_compiler)
    path = save(two_memories(sparse=False), tmp_path / "model.onnx")
    (artifact,) = convert(path, tmp_path, WEBGPU).artifacts
    assert list(gpu_findings(tmp_path / "out" / artifact.file, RELEASE, {"preferredLayout": "NHWC"}, "m")) == []


def test_only_fusions_of_the_gpu_are_made_for_it(tmp_path: Path) -> None:
    """FusedMatMul has no kernel there; FusedConv has."""
    nodes = parsed_nodes("""
        c = Conv <pads = [1, 1, 1, 1]> (x, w)  r = Relu (c)  t = Transpose <perm = [0, 1, 3, 2]> (r)
        y = MatMul (t, r)""")
    made = make(nodes, [value("x", [1, 4, 8, 8])], [value("y", [1, 4, 8, 8])], [weight("w", 4, 4, 3, 3)])
    path = save(made, tmp_path / "model.onnx")
    operators = {
        name: convert(path, tmp_path / name, *aware).artifacts[0].operators
        for name, aware in (("cpu", ()), ("gpu", (WEBGPU,)))
    }
    assert "com.microsoft:FusedMatMul" in operators["cpu"]
    assert operators["gpu"] == {"com.microsoft:FusedConv": 1, "ai.onnx:MatMul": 1, "ai.onnx:Transpose": 1}


def unbuildable() -> onnx.ModelProto:
    """A quantized Concat of two model inputs: NNAPI learns a u8 input's scale from its reader's first place only."""
    nodes = parsed_nodes("""
        d = DequantizeLinear (x, scale, zero)  e = DequantizeLinear (x1, scale, zero)
        c = Concat <axis = 1> (d, e)  q = QuantizeLinear (c, scale, zero)  y = DequantizeLinear (q, scale, zero)""")
    weights = [
        numpy_helper.from_array(np.array(0.5, np.float32), "scale"),
        numpy_helper.from_array(np.array(3, np.uint8), "zero"),
    ]  # fmt: skip
    inputs = [value(name, [1, 4, 6, 6], TensorProto.UINT8) for name in ("x", "x1")]
    return make(nodes, inputs, [value("y", [1, 8, 6, 6])], weights)


@pytest.mark.parametrize("level", [Level.BASIC, Level.EXTENDED])
def test_safe_leaves_what_cannot_be_built(tmp_path: Path, level: Level) -> None:
    path = save(unbuildable(), tmp_path / "model.onnx")
    random = np.random.default_rng(3)
    feeds = {name: random.integers(0, 255, (1, 4, 6, 6)).astype(np.uint8) for name in ("x", "x1")}
    problems = {}
    for safe in (False, True):
        artifact = convert(path, tmp_path / str(safe), NNAPI, safe=safe, levels=(level,)).artifacts[0]
        file = tmp_path / str(safe) / "out" / artifact.file
        graph = view_of_file(file)
        problems[safe] = build_refusal(graph, claim(graph, NNAPI).groups, NNAPI)
        assert artifact.notes, "a claim that cannot be built, or a node left out, is told"
        np.testing.assert_array_equal(outputs(file, feeds)[0], outputs(path, feeds)[0])
    assert problems[False] is not None
    assert problems[True] is None


def test_large_weights_stay_where_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = parsed_nodes("""
        c = Conv <pads = [1, 1, 1, 1]> (x, w)  r = Relu (c)  p = MatMul (r, m)
        y = Einsum <equation = "abcd,de->abce"> (p, e)""")
    weights = [weight("w", 4, 4, 3, 3), weight("m", 8, 8, seed=1), weight("e", 8, 8, seed=2)]
    model = make(nodes, [value("x", [1, 4, 8, 8])], [value("y", [1, 4, 8, 8])], weights)
    path, levels = save(model, tmp_path / "model.onnx"), (Level.EXTENDED, Level.ALL)
    whole = convert(path, tmp_path / "whole", NNAPI, levels=levels).artifacts
    monkeypatch.setattr("pipeline.model.onnx_model.LEAN_MINIMUM_BYTES", 0)
    monkeypatch.setattr("pipeline.model.onnx_model.LARGE_BYTES", 64)
    shown = Mock(wraps=loadable)
    with patch("pipeline.convert.aware.onnx_model", SimpleNamespace(**{**vars(onnx_model), "loadable": shown})):
        lean = convert(path, tmp_path / "lean", NNAPI, levels=levels).artifacts
        safe = convert(path, tmp_path / "safe", NNAPI, levels=levels, safe=True).artifacts
    assert [set(call.args[0].weights) for call in shown.call_args_list] == [{"e"}] * 4, (
        "optimizers look at neither w nor m"
    )
    digests = [one.semantic_digest for one in whole]
    assert [[one.semantic_digest for one in made] for made in (lean, safe)] == [digests, digests]


def test_constants_that_only_an_inlined_function_reads(tmp_path: Path) -> None:
    """CastLike is shown to providers whole, its second input with it, though the CPU's session drops that one."""
    nodes = parsed_nodes("a = CastLike (x, like)  r = Relu (a)  same = Identity (like)  y = CastLike (r, same)")
    made = make(nodes, [value("x", [1, 4], TensorProto.INT32)], [value("y", [1, 4])], [weight("like", 2)])
    path = save(made, tmp_path / "model.onnx")
    result = convert(path, tmp_path, NNAPI, levels=(Level.BASIC, Level.EXTENDED))
    assert result.failures == ()
    feeds = {"x": np.array([[-2, 0, 3, 5]], np.int32)}
    for artifact in result.artifacts:
        np.testing.assert_array_equal(outputs(tmp_path / "out" / artifact.file, feeds)[0], [[0, 0, 3, 5]])


def swallowing(*, activation: str = "r = Relu (a)", to: str = "r", two: bool = False) -> onnx.ModelProto:
    """A Conv that NNAPI refuses, before an Add that it claims: ConvAddActivationFusion asks about the Conv alone."""
    other = "d = Conv <pads = [1, 1, 1, 1]> (x, w, b)" if two else "d = Sigmoid (s)"
    nodes = parsed_nodes(f"""
        s = Sigmoid (x)  c = Conv <pads = [1, 1, 1, 1]> (s, w, b)  {other}  a = Add (c, d)  {activation}
        y = MaxPool <kernel_shape = [2, 2]> ({to})  """)
    inputs = [value("x", [1, 4, 8, 8]), value("w", [4, 4, 3, 3])]
    return make(nodes, inputs, [value("y", [1, 4, 7, 7])], [weight("b", 4)])


def quantized_activation() -> onnx.ModelProto:
    """A Relu that CoreML claims, between a Conv that it refuses and a QuantizeLinear that clips as well."""
    nodes = parsed_nodes("""
        xq = QuantizeLinear (x, s, z)  xd = DequantizeLinear (xq, s, z)  wd = DequantizeLinear (w, s, z)
        bd = DequantizeLinear (b, s2)  c = Conv <pads = [1, 1, 1, 1]> (xd, wd, bd)  r = Relu (c)
        rq = QuantizeLinear (r, s, z)  y = DequantizeLinear (rq, s, z)""")
    scale = numpy_helper.from_array(np.array(0.1, np.float32), "s")
    weights = [scale, numpy_helper.from_array(np.array(0, np.uint8), "z")]
    weights.append(numpy_helper.from_array(np.ones((4, 4, 3, 3), np.uint8), "w"))
    weights.append(numpy_helper.from_array(np.ones(4, np.int32), "b"))
    weights.append(numpy_helper.from_array(np.array(0.01, np.float32), "s2"))
    return make(nodes, [value("x", [1, 4, 8, 8])], [value("y", [1, 4, 8, 8])], weights)


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (swallowing(), NNAPI),
        (swallowing(activation="", to="a"), NNAPI),
        (swallowing(two=True), NNAPI),
        (quantized_activation(), COREML),
    ],
)
def test_no_fusion_swallows_a_claimed_neighbour(tmp_path: Path, model: onnx.ModelProto, settings: Settings) -> None:
    path = save(model, tmp_path / "model.onnx")
    result = convert(path, tmp_path, settings, levels=(Level.BASIC, Level.EXTENDED, Level.ALL))
    for artifact in result.artifacts:
        graph = view_of_file(tmp_path / "out" / artifact.file)
        claimed = {node.first_output for group in claim(graph, settings).groups for node in group}
        assert len(claimed) == artifact.claimed[settings.provider] > 0, artifact.variant
        assert all(note.startswith("it is of level basic") for note in artifact.notes)
        assert not artifact.notes or onnxruntime.__version__.startswith("1.23.")


def test_a_file_whose_claims_cannot_be_kept_is_of_level_basic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(swallowing(), tmp_path / "model.onnx")
    monkeypatch.setattr("pipeline.convert.swallowed.MOST_TRIES", 1)
    basic, full = convert(path, tmp_path, NNAPI, levels=(Level.BASIC, Level.ALL)).artifacts
    assert full.semantic_digest == basic.semantic_digest
    assert "level all would take 2 claimed nodes from the provider (Add 'a', Relu 'r')" in full.notes[-1]


def test_what_cannot_be_optimized_again_is_saved_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which weights optimizations leave alone is a side question: a file is made without its answer."""
    path = save(mixed(), tmp_path / "model.onnx")
    monkeypatch.setattr("pipeline.model.onnx_model.LEAN_MINIMUM_BYTES", 0)
    monkeypatch.setattr("pipeline.model.onnx_model.LARGE_BYTES", 64)
    optimize = steps.optimize

    def refuse(model: LeanModel, settings: SessionSettings, context: PassContext) -> LeanModel:
        if settings.level is Level.EXTENDED:
            raise ModelError("refused", where="model", why="a name is there already", remedy="")
        return optimize(model, settings, context)

    monkeypatch.setattr("pipeline.convert.steps.optimize", refuse)
    result = convert(path, tmp_path, Settings(provider="nnapi", stop_ops=("Softsign",)))
    assert result.failures == ()


def test_a_file_for_an_old_api_level_says_what_it_costs_on_new_phones(tmp_path: Path) -> None:
    nodes = parsed_nodes("r = Relu (x)  c = Conv <pads = [1, 1, 1, 1]> (r, w)  y = Clip (c, low, high)")
    bounds = [numpy_helper.from_array(np.array(end, np.float32), name) for name, end in (("low", 0), ("high", 5))]
    made = make(nodes, [value("x", [1, 4, 8, 8])], [value("y", [1, 4, 8, 8])], [weight("w", 4, 4, 3, 3), *bounds])
    path = save(made, tmp_path / "model.onnx")
    old = Settings(provider="nnapi", api_level=27)
    basic, extended = convert(path, tmp_path, old, levels=(Level.BASIC, Level.EXTENDED)).artifacts
    assert basic.notes == ()
    (note,) = extended.notes
    assert "made for API level 27: of 2 nodes that NNAPI takes at 31, 1 are fused for the CPU in it" in note
    (new,) = convert(path, tmp_path / "new", NNAPI).artifacts
    assert new.notes == ()
