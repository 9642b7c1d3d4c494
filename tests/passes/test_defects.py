"""Each defect of onnxruntime.quantization and of its neighbours that docs/facts/quantization.md lists (Q.3, Q.4)."""

import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from pipeline.core.errors import ConfigError, MissingError, ModelError
from pipeline.passes.base import Feeds, NotApplicable
from pipeline.passes.calibration import Method, calibrate
from pipeline.passes.optimize import PreprocessOptions, preprocess
from pipeline.passes.quantize import DynamicOptions, HalfOptions, WeightOnlyOptions, dynamic_int8, fp16, weight_only
from pipeline.passes.registry import parse_step, run_passes
from pipeline.passes.static import StaticOptions, prepare, static_qdq
from tests import onnx_samples
from tests.onnx_samples import parsed_nodes
from tests.passes.quantized_models import context, feeds, run, saved, sqnr


def square(text: str) -> onnx.ModelProto:
    """Nodes that make y of x [2, 16] and a matrix w [16, 16]."""
    values = [onnx_samples.value(name, [2, 16]) for name in "xy"]
    return onnx_samples.make(parsed_nodes(text), values[:1], values[1:], [onnx_samples.weight("w", 16, 16)])


def gemm(bias: list[int], *, trans_b: bool = False) -> onnx.ModelProto:
    """One Gemm [4, 16] x [16, 8] with a bias of that shape."""
    shape = (8, 16) if trans_b else (16, 8)
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=int(trans_b))]
    weights = [onnx_samples.weight("w", *shape), onnx_samples.weight("b", *bias, seed=1)]
    return onnx_samples.make(nodes, [onnx_samples.value("x", [4, 16])], [onnx_samples.value("y", [4, 8])], weights)


@pytest.mark.parametrize("activations", ["u8", "s8"])
@pytest.mark.parametrize("bias", [[1, 8], [4, 8], [4, 1], [8]], ids=str)
def test_biases_of_any_shape(tmp_path: Path, activations: str, bias: list[int]) -> None:
    """[1, N] becomes [N]; with a bias for each row the node stays float, which is then nothing to quantize."""
    model = saved(gemm(bias), tmp_path)
    samples = feeds(model, 8)
    options = msgspec.convert({"per_channel": True, "activations": activations}, StaticOptions)
    if bias in ([4, 8], [4, 1]):
        with pytest.raises(NotApplicable, match="no node can be quantized"):
            static_qdq(model, options, context(tmp_path, samples))
        return
    made = static_qdq(model, options, context(tmp_path, samples))
    assert sqnr(run(model, samples[0]), run(made, samples[0])) > 25


@pytest.mark.parametrize("shape", [[8], [1, 8], [], [1]], ids=str)
@pytest.mark.parametrize("factors", [{"beta": 2.0}, {"beta": 0.5, "alpha": 0.5, "transB": 1}, {"beta": 0.0}], ids=str)
def test_gemms_factor_of_the_bias_is_kept(tmp_path: Path, shape: list[int], factors: dict[str, float]) -> None:
    proto = gemm(shape, trans_b=bool(factors.get("transB")))
    del proto.graph.node[0].attribute[:]
    proto.graph.node[0].attribute.extend(helper.make_attribute(name, value) for name, value in factors.items())
    model = saved(proto, tmp_path)
    samples = feeds(model, 8)
    for form in (StaticOptions(per_channel=True, activations="s8"), StaticOptions()):
        made = static_qdq(model, form, context(tmp_path, samples))
        assert sqnr(run(model, samples[0]), run(made, samples[0])) > 30


def test_a_bias_that_is_computed_and_multiplied_stays_float(tmp_path: Path) -> None:
    proto = square("b = Tan (x)  [scaled] g = Gemm <beta = 2.0> (x, w, b)  [plain] y = MatMul (g, w)")
    model = saved(proto, tmp_path)
    samples = feeds(model, 8)
    made = static_qdq(model, StaticOptions(per_channel=True), context(tmp_path, samples))
    (scaled,) = [node for node in made.proto.graph.node if node.name == "scaled"]
    makers = {name: node.op_type for node in made.proto.graph.node for name in node.output}
    assert "DequantizeLinear" not in {makers.get(name) for name in scaled.input[1:]}


def test_groups_of_a_transposed_convolution_have_one_scale(tmp_path: Path) -> None:
    nodes = [helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], strides=[2, 2], group=2)]
    weights = [onnx_samples.weight("w", 8, 5, 3, 3), onnx_samples.weight("b", 10, seed=1)]
    ends = [onnx_samples.value("x", [1, 8, 6, 6])], [onnx_samples.value("y", [1, 10, 13, 13])]
    model = saved(onnx_samples.make(nodes, *ends, weights), tmp_path)
    samples = feeds(model, 8)
    made = static_qdq(model, StaticOptions(per_channel=True, activations="s8"), context(tmp_path, samples))
    assert sqnr(run(model, samples[0]), run(made, samples[0])) > 30


@pytest.mark.parametrize("step", ["static-qdq", "mixed-precision:evaluations=4", "qoperator", "dynamic-int8"])
def test_a_node_that_the_quantizer_cannot_take_stays_float_by_name(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onnxruntime.quantization.operators import matmul

    taken = matmul.QDQMatMul.quantize, matmul.QLinearMatMul.quantize, matmul.MatMulInteger.quantize

    def stumbling(quantize: Callable[[object], None]) -> Callable[..., None]:
        def stumble(operator: object) -> None:
            if operator.node.name == "odd":  # type: ignore[attr-defined]
                raise IndexError("list index out of range")
            quantize(operator)

        return stumble

    for kind, quantize in zip((matmul.QDQMatMul, matmul.QLinearMatMul, matmul.MatMulInteger), taken, strict=True):
        monkeypatch.setattr(kind, "quantize", stumbling(quantize))
    text = "[one] a = MatMul (x, w)  t = Tan (a)  [odd] b = MatMul (t, w)  u = Tan (b)  [two] y = MatMul (u, w)"
    model = saved(square(text), tmp_path)
    result = run_passes(model, [parse_step(step)], context(tmp_path, feeds(model, 8)))
    assert [node.name for node in result.model.proto.graph.node if node.op_type == "MatMul" and node.name == "odd"]
    assert result.notes[-1] == "the quantizer cannot take odd, which stays float: IndexError: list index out of range"


def test_an_error_that_no_node_is_to_blame_for_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxruntime.quantization.operators.matmul import QDQMatMul

    def fail(_operator: object) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr(QDQMatMul, "quantize", fail)
    model = saved(square("a = MatMul (x, w)  t = Tan (a)  y = MatMul (t, w)"), tmp_path)
    with pytest.raises(ModelError, match="IndexError"):
        static_qdq(model, StaticOptions(), context(tmp_path, feeds(model, 8)))


def test_weights_that_are_stored_in_half_are_quantized(tmp_path: Path) -> None:
    proto = square("f = Cast <to = 1> (w)  y = MatMul (x, f)")
    half = numpy_helper.to_array(proto.graph.initializer[0]).astype(np.float16)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(half, "w"))
    model = saved(proto, tmp_path)
    samples = feeds(model, 8)
    made = static_qdq(model, StaticOptions(), context(tmp_path, samples))
    assert sqnr(run(model, samples[0]), run(made, samples[0])) > 25


def old_convolution() -> onnx.ModelProto:
    """Opset 11, IR 3, initializers among the inputs."""
    model = onnx_samples.conv_bn(8)
    model.opset_import[0].version = 11
    model.ir_version = 3
    model.graph.input.extend(onnx_samples.value(t.name, list(t.dims)) for t in model.graph.initializer)
    return model


def test_an_old_opset_is_raised_for_scales_of_channels(tmp_path: Path) -> None:
    model = saved(old_convolution(), tmp_path)
    samples = feeds(model, 8)
    inputs = {"x": samples[0]["x"]}
    made = static_qdq(model, StaticOptions(per_channel=True), context(tmp_path, [{"x": s["x"]} for s in samples]))
    assert made.proto.opset_import[0].version >= 13
    assert sqnr(run(model, inputs), run(made, inputs)) > 20


@pytest.mark.parametrize("option", ["method=distribution", "percentile=200", "percentile=0", "weights=s4", "bits=4"])
def test_wrong_options_are_refused(option: str) -> None:
    """The stock method Distribution ruins 8-bit models, and QDQ with 4 bits cannot become an ORT format file."""
    with pytest.raises(ConfigError, match="static-qdq"):
        parse_step(f"static-qdq:{option}")


def test_constants_in_nodes_and_normalization_are_quantized(tmp_path: Path) -> None:
    """Without preparation their weights stay float: here no float matrix or kernel is left."""
    model = onnx_samples.conv_bn(8)
    kernel = next(tensor for tensor in model.graph.initializer if tensor.name == "w0")
    model.graph.initializer.remove(kernel)
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w0"], value=kernel))
    loaded = saved(model, tmp_path)
    made = static_qdq(loaded, StaticOptions(), context(tmp_path, feeds(loaded, 8))).proto
    assert not [t.name for t in made.graph.initializer if t.data_type == onnx.TensorProto.FLOAT and len(t.dims) > 1]
    assert "BatchNormalization" not in {node.op_type for node in made.graph.node}


def test_nothing_is_left_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """quant_pre_process leaves files there when symbolic shapes are incomplete, as after NonZero."""
    nodes = parsed_nodes("""
        n = NonZero (x)  f = Cast <to = 1> (n)  y = MatMul (t, w)  t = Transpose <perm = [1, 0]> (f)""")
    nodes[2], nodes[3] = nodes[3], nodes[2]
    model = onnx_samples.make(
        nodes, [onnx_samples.value("x", [4, 4])], [onnx_samples.value("y", ["n", 8])], [onnx_samples.weight("w", 2, 8)]
    )
    loaded = saved(model, tmp_path)
    here, scratch = tmp_path / "here", tmp_path / "scratch"
    here.mkdir()
    scratch.mkdir()
    monkeypatch.chdir(here)
    static_qdq(loaded, StaticOptions(), context(scratch, feeds(loaded, 8)))
    dynamic_int8(loaded, DynamicOptions(), context(scratch))
    assert list(here.iterdir()) == []


def wide_activations() -> onnx.ModelProto:
    """A megabyte of activations at each of eight places, and few weights."""
    nodes = parsed_nodes("c = Conv (x, w)")
    nodes += [
        helper.make_node("Relu" if n % 2 else "Sigmoid", [f"v{n}" if n else "c"], [f"v{n + 1}"]) for n in range(8)
    ]
    shape: list[int | str] = [1, 4, 256, 256]
    return onnx_samples.make(
        nodes,
        [onnx_samples.value("x", shape)],
        [onnx_samples.value("v8", shape)],
        [onnx_samples.weight("w", 4, 4, 1, 1)],
    )


@pytest.mark.parametrize("method", list(Method))
def test_memory_does_not_grow_with_the_samples(tmp_path: Path, method: Method) -> None:
    """The stock calibration keeps all activations: 8 MB more for each of these samples."""
    model = saved(wide_activations(), tmp_path)
    ready = preprocess(model, PreprocessOptions(), context(tmp_path))

    def samples(count: int) -> Callable[[], Iterator[Feeds]]:
        random = np.random.default_rng(0)
        return lambda: ({"x": random.standard_normal((1, 4, 256, 256)).astype(np.float32)} for _ in range(count))

    calibrate(ready, samples(2), method)
    peaks = []
    for count in (2, 6):
        tracemalloc.start()
        calibrate(ready, samples(count), method)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + (2 << 20)


def test_ranges_are_those_of_the_values(tmp_path: Path) -> None:
    """Minimum and maximum over all samples, and what only moves values has its source's range."""
    nodes = parsed_nodes("r = Reshape (x, s)  y = MatMul (r, w)")
    weights = [onnx_samples.weight("w", 4, 2), numpy_helper.from_array(np.array([2, 4], np.int64), "s")]
    model = onnx_samples.make(nodes, [onnx_samples.value("x", [8])], [onnx_samples.value("y", [2, 2])], weights)
    ready = preprocess(saved(model, tmp_path), PreprocessOptions(), context(tmp_path))
    samples = feeds(ready, 10)
    found = calibrate(ready, lambda: iter(samples))
    low, high = min(s["x"].min() for s in samples), max(s["x"].max() for s in samples)
    assert found.ranges["x"] == found.ranges["r"] == (low, high)
    results = [run(ready, sample)[0] for sample in samples]
    assert found.ranges["y"] == pytest.approx((min(r.min() for r in results), max(r.max() for r in results)))
    assert found.samples == 10


def test_outliers_are_cut_by_percentile_and_entropy(tmp_path: Path) -> None:
    """One value of 1000 among a hundred thousand around 1."""
    model = onnx_samples.linear(128)
    ready = preprocess(saved(model, tmp_path), PreprocessOptions(), context(tmp_path))
    data = np.random.default_rng(0).standard_normal((1024, 128)).astype(np.float32)
    data[7, 7] = 1000
    ranges = {m: calibrate(ready, lambda: iter([{"x": data}]), m, percentile=99.9).ranges["x"] for m in Method}
    assert ranges[Method.MINMAX] == (data.min(), 1000)
    for method in (Method.PERCENTILE, Method.ENTROPY):
        low, high = ranges[method]
        assert data.min() <= low <= -2
        assert 2 <= high < 200


def test_a_percentile_is_that_of_the_values(tmp_path: Path) -> None:
    ready = preprocess(saved(onnx_samples.linear(128), tmp_path), PreprocessOptions(), context(tmp_path))
    samples = [{"x": a} for a in np.random.default_rng(1).standard_normal((8, 512, 128)).astype(np.float32)]
    low, high = calibrate(ready, lambda: iter(samples), Method.PERCENTILE, percentile=99.0).ranges["x"]
    wanted = float(np.percentile(np.abs(np.stack([s["x"] for s in samples])), 99.0))
    assert high == pytest.approx(wanted, rel=0.01)
    assert low == pytest.approx(-wanted, rel=0.01)


def root_of(values: str) -> onnx.ModelProto:
    """y = (x W) + sqrt(x) W2: the second part is NaN where x is negative."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["good"], name="good"),
        helper.make_node(values, ["x"], ["root"]),
        *parsed_nodes("[bad] bad = MatMul (root, w2)  y2 = Softmax (bad)"),
    ]
    weights = [onnx_samples.weight("w", 8, 8), onnx_samples.weight("w2", 8, 8, seed=1)]
    outputs = [onnx_samples.value("good", [4, 8]), onnx_samples.value("y2", [4, 8])]
    return onnx_samples.make(nodes, [onnx_samples.value("x", [4, 8])], outputs, weights)


def test_what_is_not_finite_stays_float_and_is_named(tmp_path: Path) -> None:
    """ONNX Runtime's reductions pass over NaN that does not come first."""
    model = saved(root_of("Sqrt"), tmp_path)
    samples = [{"x": np.full((4, 8), 0.5, np.float32)} for _ in range(3)]
    samples[1]["x"][3, 7] = -1
    there = context(tmp_path, samples)
    found = calibrate(prepare(model, StaticOptions(), there), lambda: iter(samples))
    assert found.left["root"] == "not finite in calibration sample 1"
    assert "good" in found.ranges
    nodes = {node.name: node for node in static_qdq(model, StaticOptions(), there).proto.graph.node}
    constants = {t.name: t.data_type for t in static_qdq(model, StaticOptions(), there).proto.graph.initializer}
    assert constants[nodes["bad"].input[1]] == onnx.TensorProto.FLOAT
    (_, note) = run_passes(model, [parse_step("static-qdq")], there).notes
    assert note == (
        "2 of 3 operators that were to be quantized stay float: bad and 1 more; "
        "the value 'root' is not finite in calibration sample 1"
    )
    assert nodes["good"].input[1] not in constants


def test_values_that_are_always_zero_stay_float(tmp_path: Path) -> None:
    model = saved(root_of("Relu"), tmp_path)
    samples = [{"x": np.full((4, 8), -0.5, np.float32)} for _ in range(3)]
    there = context(tmp_path, samples)
    found = calibrate(prepare(model, StaticOptions(), there), lambda: iter(samples))
    assert found.left["root"] == "zero in all calibration samples"
    assert found.ranges["x"] == (-0.5, -0.5)
    made = static_qdq(model, StaticOptions(), there)
    assert sqnr(run(model, samples[0]), run(made, samples[0])) > 25


def test_a_wrong_sample_is_named(tmp_path: Path) -> None:
    """And so is that there are none."""
    model = saved(onnx_samples.linear(8), tmp_path)
    with pytest.raises(ConfigError, match="no calibration samples"):
        static_qdq(model, StaticOptions(), context(tmp_path, []))
    samples = [dict(one) for one in feeds(model, 40)]
    samples[37]["x"] = np.zeros((1, 9), np.float32)
    with pytest.raises(ModelError, match=r"calibration sample 37.*x \[1, 9\]"):
        static_qdq(model, StaticOptions(), context(tmp_path, samples))
    samples[37]["x"] = np.full((1, 8), np.nan, np.float32)
    with pytest.raises(ConfigError, match="calibration sample 37 has NaN in the input 'x'"):
        static_qdq(model, StaticOptions(), context(tmp_path, samples))


def test_few_samples_are_mentioned(tmp_path: Path) -> None:
    model = saved(onnx_samples.linear(8), tmp_path)
    made = run_passes(model, [parse_step("static-qdq")], context(tmp_path, feeds(model, 2)))
    assert made.notes == ("ranges come from 2 calibration samples; 20 to 100 are usual",)


def test_sixteen_bits_are_of_onnx_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """onnxruntime.quantization advises preprocessing through the root logger, and warns of 16 bits."""
    model = saved(onnx_samples.linear(8), tmp_path)
    options = msgspec.convert({"activations": "u16"}, StaticOptions)
    made = static_qdq(model, options, context(tmp_path, feeds(model, 8))).proto
    assert {node.domain for node in made.graph.node if node.op_type == "QuantizeLinear"} == {""}
    assert made.opset_import[0].version == 21
    assert [record for record in caplog.records if record.name == "root"] == [], "it is left alone"


@pytest.fixture
def nbits() -> str:
    """The source of the tool for weights in few bits; onnxruntime before 1.22 has none for 8."""
    found = Path(onnxruntime.__file__).parent / "quantization" / "matmul_nbits_quantizer.py"
    if not found.exists():
        pytest.skip(f"onnxruntime {onnxruntime.__version__} has no tool for weights in 4 and 8 bits")
    return found.read_text(encoding="utf-8")


@pytest.mark.usefixtures("nbits")
def test_weights_only_need_a_matrix(tmp_path: Path) -> None:
    """The tool returns such a model unchanged."""
    model = saved(onnx_samples.conv_bn(8), tmp_path)
    with pytest.raises(NotApplicable, match="no MatMul or Gemm has a constant matrix"):
        weight_only(model, WeightOnlyOptions(), context(tmp_path))
    with pytest.raises(NotApplicable, match="has a constant float weight"):
        dynamic_int8(model, DynamicOptions(), context(tmp_path))


@pytest.mark.usefixtures("nbits")
@pytest.mark.parametrize("trans_b", [False, True])
def test_weights_only_take_gemm_too(tmp_path: Path, trans_b: bool) -> None:
    model = saved(gemm([8], trans_b=trans_b), tmp_path)
    made = weight_only(model, WeightOnlyOptions(bits=8, block=16), context(tmp_path))
    assert "MatMulNBits" in {node.op_type for node in made.proto.graph.node}
    one = feeds(model, 1)[0]
    assert sqnr(run(model, one), run(made, one)) > 35


@pytest.mark.usefixtures("nbits")
def test_weights_only_at_an_old_opset_load(tmp_path: Path) -> None:
    """The QDQ form declares opset 21 beside a ReduceMean that has its axes as an attribute, and does not load."""
    model = onnx_samples.linear(32)
    model.graph.node[-1].CopyFrom(helper.make_node("ReduceMean", ["a"], ["y"], axes=[1]))
    model.opset_import[0].version = 13
    loaded = saved(model, tmp_path)
    for bits in (4, 8):
        made = weight_only(loaded, msgspec.convert({"bits": bits}, WeightOnlyOptions), context(tmp_path))
        assert not {t.data_type for t in made.proto.graph.initializer} & {onnx.TensorProto.INT4, onnx.TensorProto.UINT4}
        one = feeds(loaded, 1)[0]
        assert np.isfinite(run(made, one)[0]).all()


def test_a_matrix_that_two_gemms_share_is_transposed_once(tmp_path: Path) -> None:
    """ONNX Runtime's replacement of Gemm transposes it for each of them."""
    loaded = saved(square("h = Gemm <transB = 1> (x, w)  y = Gemm <transB = 1> (h, w)"), tmp_path)
    one = feeds(loaded, 1)[0]
    made = dynamic_int8(loaded, DynamicOptions(), context(tmp_path))
    assert sqnr(run(loaded, one), run(made, one)) > 30


def cast_inside() -> onnx.ModelProto:
    """A mask of integers becomes float inside the graph."""
    model = square("m = MatMul (x, w)  f = Cast <to = 1> (mask)  y = Mul (m, f)")
    model.graph.input.append(onnx_samples.value("mask", [2, 16], onnx.TensorProto.INT64))
    return model


@pytest.mark.parametrize("keep_io", [True, False])
def test_half_precision_is_a_legal_graph(tmp_path: Path, keep_io: bool) -> None:
    """The tool appends Casts at the end, which the checker refuses, and once left Casts to float inside."""
    loaded = saved(cast_inside(), tmp_path)
    made = fp16(loaded, HalfOptions(keep_io=keep_io), context(tmp_path))
    onnx.checker.check_model(made.proto, full_check=True)
    kind = np.float32 if keep_io else np.float16
    x, mask = np.ones((2, 16), np.float32), np.ones((2, 16), np.int64)
    (given,) = run(made, {"x": x.astype(kind), "mask": mask})
    assert given.dtype == kind
    assert sqnr(run(loaded, {"x": x, "mask": mask}), [given]) > 50


def in_function(number: onnx.NodeProto) -> onnx.ModelProto:
    """A matrix product whose result a function multiplies by a number of its own."""
    model = square("m = MatMul (x, w)  y = local.act (m)")
    model.opset_import.append(helper.make_opsetid("local", 1))
    body = [number, helper.make_node("Mul", ["a", "k"], ["b"])]
    model.functions.append(helper.make_function("local", "act", ["a"], ["b"], body, model.opset_import[:1]))
    return model


def in_branch(number: onnx.NodeProto) -> onnx.ModelProto:
    """The same in a branch of an If."""
    model = square("m = MatMul (x, w)  y = Relu (m)")
    ends = [onnx_samples.value(name, [2, 16]) for name in ("t", "e")]
    then = helper.make_graph([number, helper.make_node("Mul", ["m", "k"], ["t"])], "then", [], ends[:1])
    other = helper.make_graph([helper.make_node("Neg", ["m"], ["e"])], "else", [], ends[1:])
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "c"))
    model.graph.node[1].CopyFrom(helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other))
    return model


@pytest.mark.parametrize("place", [in_function, in_branch])
@pytest.mark.parametrize("number", [{"value_float": 2.0}, {"value_floats": [0.5] * 16}], ids=["one", "many"])
def test_numbers_of_constant_nodes_become_halves(
    place: Callable[[onnx.NodeProto], onnx.ModelProto], number: dict[str, Any], tmp_path: Path
) -> None:
    model = saved(place(helper.make_node("Constant", [], ["k"], **number)), tmp_path)
    made = fp16(model, HalfOptions(), context(tmp_path))
    sample = feeds(model, 1)[0]
    assert sqnr(run(model, sample), run(made, sample)) > 60


@pytest.mark.parametrize("operator", ["ScatterND", "ScatterElements"])
def test_scatters_that_add_stay_in_32_bits(operator: str, tmp_path: Path) -> None:
    """The CPU loads them in 16 bits and cannot run them."""
    proto = square(f'm = MatMul (x, w)  y = {operator} <reduction = "add"> (m, i, u)')
    indices = np.array([[0], [0]]) if operator == "ScatterND" else np.zeros((2, 16))
    proto.graph.initializer.append(numpy_helper.from_array(indices.astype(np.int64), "i"))
    proto.graph.initializer.append(onnx_samples.weight("u", 2, 16))
    model = saved(proto, tmp_path)
    made = fp16(model, HalfOptions(), context(tmp_path))
    sample = feeds(model, 1)[0]
    assert sqnr(run(model, sample), run(made, sample)) > 60


def test_sums_of_squares_stay_in_32_bits(tmp_path: Path) -> None:
    """GPUs add them up in the type of the values, and 16 bits end at 65,504."""
    nodes = parsed_nodes("m = MatMul (x, w)  y = ReduceL2 (m)")
    inputs, outputs = [onnx_samples.value("x", [2, 16])], [onnx_samples.value("y", [1, 1])]
    loaded = saved(onnx_samples.make(nodes, inputs, outputs, [onnx_samples.weight("w", 16, 16)]), tmp_path)
    made = fp16(loaded, HalfOptions(keep_io=False), context(tmp_path)).proto
    inferred = onnx.shape_inference.infer_shapes(made)
    types = {row.name: row.type.tensor_type.elem_type for row in (*inferred.graph.value_info, *inferred.graph.input)}
    (norm,) = (node for node in made.graph.node if node.op_type == "ReduceL2")
    (product,) = (node for node in made.graph.node if node.op_type == "MatMul")
    assert types[norm.input[0]] == onnx.TensorProto.FLOAT
    assert types[product.input[0]] == onnx.TensorProto.FLOAT16


def test_blocked_operators_stay_in_32_bits(tmp_path: Path) -> None:
    loaded = saved(onnx_samples.linear(16), tmp_path)
    made = fp16(loaded, HalfOptions(block=("Add",)), context(tmp_path)).proto
    constants = {tensor.name: tensor.data_type for tensor in made.graph.initializer}
    assert constants["w"] == onnx.TensorProto.FLOAT16
    assert constants["b"] == onnx.TensorProto.FLOAT
    with pytest.raises(NotApplicable, match="no weight became"):
        fp16(loaded, HalfOptions(block=("Add", "MatMul")), context(tmp_path))


@pytest.mark.parametrize("step", ["fp16", "weight-only", "dynamic-int8", "static-qdq", "qoperator", "preprocess"])
def test_models_that_have_another_precision_are_refused(tmp_path: Path, step: str) -> None:
    model = saved(onnx_samples.quantized(), tmp_path)
    with pytest.raises(NotApplicable, match="quantized"):
        run_passes(model, [parse_step(step)], context(tmp_path, feeds(model, 1)))
    half = fp16(saved(onnx_samples.linear(16), tmp_path), HalfOptions(), context(tmp_path))
    with pytest.raises(NotApplicable):
        run_passes(half, [parse_step(step)], context(tmp_path, feeds(half, 1)))


def test_the_extra_is_named(nbits: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "import onnx_ir" not in nbits:
        pytest.skip(f"onnxruntime {onnxruntime.__version__} does not need onnx-ir")
    monkeypatch.setitem(sys.modules, "onnx_ir", None)
    monkeypatch.delitem(sys.modules, "onnxruntime.quantization.matmul_nbits_quantizer", raising=False)
    with pytest.raises(MissingError, match="onnx-ir") as raised:
        weight_only(saved(onnx_samples.linear(16), tmp_path), WeightOnlyOptions(), context(tmp_path))
    assert " 'onnx-ir>=" in raised.value.remedy


@pytest.mark.parametrize(
    ("step", "found"),
    [("qoperator:activations=s8", "u8 activations"), ("qoperator:activations=u16", "u8 activations"),
     ("qoperator:dense_weights=u8", "neither dense_weights nor every_type")],
)  # fmt: skip
def test_forms_that_operators_lack(tmp_path: Path, step: str, found: str) -> None:
    model = saved(onnx_samples.linear(16), tmp_path)
    with pytest.raises(NotApplicable, match=found):
        run_passes(model, [parse_step(step)], context(tmp_path, feeds(model, 8)))


def test_functions_are_inlined_before_the_opset_is_raised(tmp_path: Path) -> None:
    """ONNX's converter loses them; the basic level has inlined them by then."""
    body = parsed_nodes("b = MatMul (a, w)")
    function = helper.make_function("own", "Dense", ["a", "w"], ["b"], body, [helper.make_opsetid("", 12)])
    model = square("y = own.Dense (x, w)")
    model.functions.append(function)
    model.opset_import[0].version = 12
    model.opset_import.append(helper.make_opsetid("own", 1))
    loaded = saved(model, tmp_path)
    made = static_qdq(loaded, StaticOptions(), context(tmp_path, feeds(loaded, 8)))
    assert made.proto.opset_import[0].version >= 13


def test_pads_that_share_a_constant(tmp_path: Path) -> None:
    """In operator form the tool removes it with the first of them."""
    nodes = parsed_nodes("""
        [c1] c = Conv (x, w)  [p1] p = Pad (c, pads, zero)  [c2] d = Conv (p, v)  [p2] y = Pad (d, pads, zero)""")
    pads = numpy_helper.from_array(np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64), "pads")
    # weights of their own: quantized ones that are shared cannot be exact on every processor (quantization Q.5)
    kernels = [onnx_samples.weight(name, 4, 4, 3, 3) for name in ("w", "v")]
    weights = [*kernels, pads, numpy_helper.from_array(np.array(0, np.float32), "zero")]
    model = onnx_samples.make(
        nodes, [onnx_samples.value("x", [1, 4, 8, 8])], [onnx_samples.value("y", [1, 4, 8, 8])], weights
    )
    loaded = saved(model, tmp_path)
    samples = feeds(loaded, 8)
    for step in ("qoperator", "static-qdq"):
        made = run_passes(loaded, [parse_step(step)], context(tmp_path, samples)).model
        assert sqnr(run(loaded, samples[0]), run(made, samples[0])) > 25


def test_large_activations_are_taken_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The histograms are the same, however many walks over the samples they take."""
    ready = preprocess(saved(wide_activations(), tmp_path), PreprocessOptions(), context(tmp_path))
    walks = []

    def samples() -> Iterator[Feeds]:
        walks.append(1)
        return iter(feeds(ready, 2))

    whole = calibrate(ready, samples, Method.ENTROPY)
    assert len(walks) == 2
    monkeypatch.setattr("pipeline.passes.calibration.GROUP_BYTES", 3 << 20)
    assert calibrate(ready, samples, Method.ENTROPY) == whole
    assert len(walks) == 2 + 1 + 4
