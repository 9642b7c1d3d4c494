"""Static quantization on the trained model of the example and on small models."""

import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper

from pipeline.config.tables import Step
from pipeline.core.errors import ConfigError, MissingError, ModelError
from pipeline.model.onnx_model import LoadedModel, prepare_model
from pipeline.model.session import CpuSettings, open_session, run_session
from pipeline.passes.base import Feeds, Model, NotApplicable
from pipeline.passes.calibration import TensorRanges, calibrate
from pipeline.passes.registry import parse_step, run_passes
from pipeline.passes.static import StaticOptions, prepare, quantize, static_qdq
from tests import onnx_samples
from tests.ground_truth import ORACLE
from tests.onnx_samples import parsed_nodes
from tests.partition_samples import model as small
from tests.partition_samples import value
from tests.passes.quantized_models import EXAMPLE, accuracy, context, digits, feeds, load, run, saved, sqnr


@pytest.fixture
def mnist(tmp_path: Path) -> LoadedModel:
    return load(EXAMPLE / "mnist.onnx", tmp_path)


def images(model: LoadedModel, count: int = 20) -> list[Feeds]:
    name = model.proto.graph.input[0].name
    return [{name: image} for image in digits()[0][:count]]


FORMS: list[dict[str, Any]] = [
    {},
    {"weights": "u8"},
    {"per_channel": True},
    {"activations": "s8", "per_channel": True},
    {"activations": "u16"},
    {"activations": "s16", "per_channel": True},
    {"per_channel": True, "dense_weights": "u8", "op_types": ["Conv", "Relu", "Clip", "Add", "Gemm"]},
    {"per_channel": True, "reduce_range": True},
    {"method": "entropy"},
    {"method": "percentile", "percentile": 99.99},
]


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_the_trained_model_keeps_its_accuracy(mnist: LoadedModel, tmp_path: Path, options: dict[str, Any]) -> None:
    step = Step(do="static-qdq", options=options)
    made = run_passes(mnist, [step], context(tmp_path, images(mnist))).model
    assert accuracy(made) >= accuracy(mnist) - 0.01
    assert made.proto.ByteSize() < mnist.proto.ByteSize() / 2
    onnx.checker.check_model(made.proto)


def types_of(made: onnx.ModelProto) -> dict[str, tuple[int, int]]:
    """Of each DequantizeLinear of a constant: what reads it, with the type of the constant and the number of scales."""
    constants = {tensor.name: tensor for tensor in made.graph.initializer}
    readers = {name: node.op_type for node in made.graph.node for name in node.input}
    return {
        readers[node.output[0]]: (constants[node.input[0]].data_type, int(np.prod(constants[node.input[1]].dims)))
        for node in made.graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in constants
        and constants[node.input[0]].data_type != onnx.TensorProto.INT32
    }  # fmt: skip


def test_dense_weights_have_a_type_of_their_own(mnist: LoadedModel, tmp_path: Path) -> None:
    options = StaticOptions(per_channel=True, dense_weights="u8")
    made = static_qdq(mnist, options, context(tmp_path, images(mnist)))
    found = types_of(made.proto)
    assert found["Gemm"] == (onnx.TensorProto.UINT8, 1)
    assert found["Conv"][0] == onnx.TensorProto.INT8
    assert found["Conv"][1] > 1


def test_an_excluded_node_stays_float(mnist: LoadedModel, tmp_path: Path) -> None:
    made = static_qdq(mnist, StaticOptions(exclude=("conv1",)), context(tmp_path, images(mnist)))
    constants = {tensor.name: tensor.data_type for tensor in made.proto.graph.initializer}
    nodes = {node.name: node for node in made.proto.graph.node}
    assert constants[nodes["conv1"].input[1]] == onnx.TensorProto.FLOAT
    assert nodes["conv2"].input[1] not in constants


def test_ranges_quantize_again_without_data(mnist: LoadedModel, tmp_path: Path) -> None:
    options = StaticOptions(per_channel=True)
    there = context(tmp_path, images(mnist))
    ready = prepare(mnist, options, there)
    assert there.samples
    ranges = calibrate(ready, there.samples)
    kept = msgspec.json.decode(msgspec.json.encode(ranges), type=TensorRanges)
    first = quantize(ready, ranges, options)
    assert quantize(ready, kept, options).proto == first.proto
    assert accuracy(quantize(ready, kept, StaticOptions(activations="s8"))) >= accuracy(mnist) - 0.01


def test_ranges_of_another_model_are_refused(mnist: LoadedModel, tmp_path: Path) -> None:
    there = context(tmp_path, images(mnist))
    assert there.samples
    ranges = calibrate(prepare(mnist, StaticOptions(), there), there.samples)
    other = saved(onnx_samples.linear(), tmp_path)
    with pytest.raises(ModelError, match="of another model"):
        quantize(prepare(other, StaticOptions(), there), ranges, StaticOptions())


def test_softmax_has_the_scale_that_providers_know(tmp_path: Path) -> None:
    model = onnx_samples.linear(16)
    model.graph.node[-1].op_type = "Softmax"
    loaded = saved(model, tmp_path)
    for kind, zero in (("u8", 0), ("s8", -128)):
        options = msgspec.convert({"activations": kind}, StaticOptions)
        made = static_qdq(loaded, options, context(tmp_path, feeds(loaded, 8))).proto
        constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
        (last,) = [node for node in made.graph.node if node.output[0] == "y"]
        assert constants[last.input[1]] == 1 / 256
        assert constants[last.input[2]] == zero


@pytest.mark.parametrize("name", ["static-qdq", "qoperator", "mixed-precision"])
def test_what_no_data_help_is_said_before_that_data_lack(tmp_path: Path, name: str) -> None:
    step = parse_step(name)
    with pytest.raises(NotApplicable, match=f"{name}: the model is quantized already"):
        run_passes(saved(onnx_samples.quantized(), tmp_path), [step], context(tmp_path))
    nothing = onnx_samples.make(
        parsed_nodes("y = Tan (x)"), [onnx_samples.value("x", [4])], [onnx_samples.value("y", [4])], []
    )
    with pytest.raises(NotApplicable, match=f"{name}: the model has no operator to quantize"):
        run_passes(saved(nothing, tmp_path), [step], context(tmp_path))
    with pytest.raises(MissingError, match=f"{name} needs calibration data"):
        run_passes(saved(onnx_samples.linear(8), tmp_path), [step], context(tmp_path))


def test_an_operator_type_without_a_quantized_form(mnist: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'LSTM' has no quantized form"):
        static_qdq(mnist, StaticOptions(op_types=("Conv", "LSTM")), context(tmp_path, images(mnist)))
    with pytest.raises(ConfigError) as caught:
        static_qdq(mnist, StaticOptions(op_types=("Gemm", "Cnov")), context(tmp_path, images(mnist)))
    assert caught.value.remedy == "did you mean 'Conv'?"


def test_an_excluded_node_that_there_is_not(mnist: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no node 'conv9'"):
        static_qdq(mnist, StaticOptions(exclude=("conv9",)), context(tmp_path, images(mnist)))


def test_float_readers_of_a_shared_weight_keep_it(tmp_path: Path) -> None:
    """Two layers of one weight, of which one is excluded: it computes with the float numbers."""
    model = onnx_samples.linear(16)
    nodes = parsed_nodes("[first] m = MatMul (x, w)  t = Tan (m)  [second] y = MatMul (t, w)")
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    loaded = saved(model, tmp_path)
    made = static_qdq(loaded, StaticOptions(exclude=("second",)), context(tmp_path, feeds(loaded, 8)))
    constants = {tensor.name: tensor for tensor in made.proto.graph.initializer}
    (second,) = [node for node in made.proto.graph.node if node.name == "second"]
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "w")
    assert np.array_equal(onnx.numpy_helper.to_array(constants[second.input[1]]), onnx.numpy_helper.to_array(weight))
    assert Counter(tensor.data_type for tensor in constants.values())[onnx.TensorProto.INT8] == 1 + 1  # and its zero


def test_large_weights_come_and_go_by_files(tmp_path: Path) -> None:
    """Weights beside the model: they are folded, quantized, and mapped from a file again."""
    path = onnx_samples.save_external(onnx_samples.linear(2048), tmp_path / "large.onnx")
    loaded = load(path, tmp_path)
    assert loaded.weights
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    samples = feeds(loaded, 8)
    made = static_qdq(loaded, StaticOptions(per_channel=True), context(scratch, samples))
    assert {tensor.data_type for tensor in made.proto.graph.initializer if tensor.name in made.weights} == {3}
    assert sqnr(run(loaded, samples[0]), run(made, samples[0])) > 30


def test_sessions_that_check_a_quantized_model_load(tmp_path: Path) -> None:
    """With AMX `session.x64quantprecision` makes ONNX Runtime fail on this one above level basic (quantization Q.5)."""
    with zipfile.ZipFile(ORACLE / "real.zip") as archive:
        (tmp_path / "m.onnx").write_bytes(archive.read("einsum_attention.op19.onnx"))
    model = load(tmp_path / "m.onnx", tmp_path)
    samples = feeds(model, 8)
    options = msgspec.convert({"activations": "s8", "per_channel": True}, StaticOptions)
    made = saved(static_qdq(model, options, context(tmp_path, samples)).proto, tmp_path)
    given = run_session(open_session(prepare_model(made, {}), CpuSettings()), samples[0], "m")
    assert sqnr(run(model, samples[0]), list(given.values())) > 20


def normalized() -> onnx.ModelProto:
    """Parts of a layer normalization, Sigmoid, Tanh and Softmax in a row: most have no quantized form of their own."""
    nodes = parsed_nodes("""
        mean = ReduceMean <axes = [-1]> (x)  centred = Sub (x, mean)  s = Sigmoid (centred)  t = Tanh (s)
        y = Softmax (t)""")
    graph = helper.make_graph(nodes, "g", [value("x", (1, 8, 16))], [value("y", (1, 8, 16))])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_every_type_leaves_no_operator_float(tmp_path: Path) -> None:
    model = saved(normalized(), tmp_path)
    with pytest.raises(NotApplicable):
        static_qdq(model, StaticOptions(op_types=("Conv",)), context(tmp_path, feeds(model, 8)))
    made = static_qdq(model, StaticOptions(every_type=True), context(tmp_path, feeds(model, 8)))
    dequantized = {name for node in made.proto.graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    plain = [node for node in made.proto.graph.node if "quantize" not in node.op_type.lower()]
    plain = [node for node in plain if not node.op_type.endswith("Linear")]
    assert len(plain) == 5
    assert all(set(node.input) <= dequantized for node in plain)
    assert sqnr(run(model, feeds(model, 1)[0]), run(made, feeds(model, 1)[0])) > 20


def test_outputs_of_16_bits_have_the_scales_of_the_npus_tables(tmp_path: Path) -> None:
    model = saved(normalized(), tmp_path)
    made = static_qdq(model, StaticOptions(activations="u16", every_type=True), context(tmp_path, feeds(model, 8)))
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in made.proto.graph.initializer}
    scales = {
        node.input[0]: (float(constants[node.input[1]]), int(constants[node.input[2]]))
        for node in made.proto.graph.node
        if node.op_type == "QuantizeLinear"
    }
    by_type = {node.op_type: scales[node.output[0]] for node in made.proto.graph.node if node.output[0] in scales}
    assert by_type["Sigmoid"] == (2**-16, 0)
    assert by_type["Tanh"] == (2**-15, 1 << 15)
    assert (2**-16, 0) in [scales[name] for name in scales if name.startswith("y")]


NPU = StaticOptions(per_channel=True, dense_weights="s8", every_type=True)
IMAGE = (1, 2, 6, 6)


def made_for_npu(
    text: str, constants: dict[str, Any], folder: Path, options: StaticOptions = NPU, shape: tuple[int, ...] = IMAGE
) -> tuple[LoadedModel, Model]:
    """A float model with the input x and the output y, and its form for an NPU."""
    model = saved(small(parsed_nodes(text), [value("x", shape)], ["y"], constants), folder)
    return model, static_qdq(model, options, context(folder, feeds(model, 8)))


def test_a_bias_of_several_convolutions_takes_the_name_of_no_value(tmp_path: Path) -> None:
    """The quantizer numbers its copies: that of the third would be b2, the name of an output."""
    random = np.random.default_rng(0)
    text = "b0 = Conv (x, w, b)  b1 = Conv (b0, w, b)  b2 = Conv (b1, w, b)  y = Relu (b2)"
    constants = {"w": random.normal(0, 0.5, (2, 2, 1, 1)).astype(np.float32), "b": np.array([0.5, -1], np.float32)}
    model, made = made_for_npu(text, constants, tmp_path)
    one = feeds(model, 1)[0]
    assert sqnr(run(model, one), run(made, one)) > 25


@pytest.mark.parametrize("constant", ["", "m = Constant <value_float = {}> ()"])
@pytest.mark.parametrize(("op_type", "bound"), [("Max", -np.inf), ("Min", np.inf)])
def test_a_bound_that_is_infinite_is_no_number_to_quantize(
    op_type: str, bound: float, constant: str, tmp_path: Path
) -> None:
    text = f"{constant.format(bound)} a = {op_type} (m, x)  y = Sigmoid (a)"
    model, made = made_for_npu(text, {} if constant else {"m": np.float32(bound)}, tmp_path)
    one = feeds(model, 1)[0]
    assert sqnr(run(model, one), run(made, one)) > 30
    assert all(np.isfinite(onnx.numpy_helper.to_array(tensor)).all() for tensor in made.proto.graph.initializer)


JOINED = ("y = Concat <axis = 1> (b, s)", "c = Concat <axis = 1> (b, s)  y = Transpose <perm = [0, 2, 3, 1]> (c)")


@pytest.mark.parametrize("last", JOINED)
def test_scores_joined_with_boxes_keep_their_steps(last: str, tmp_path: Path) -> None:
    """Of 0 to 1000 in 8 bits, all of a score is less than a step; other Concats keep 8 bits."""
    text = f"a = Concat <axis = 1> (x, x)  b = Mul (a, far)  s = Sigmoid (a)  {last}"
    model, made = made_for_npu(text, {"far": np.float32(400)}, tmp_path)
    one = feeds(model, 1)[0]
    (wanted,), (given,) = run(model, one), run(made, one)
    channels = wanted.shape.index(8)
    right, scores = (array.take(range(4, 8), channels) for array in (wanted, given))
    assert np.abs(right - scores).max() < 0.03
    types = Counter(
        tensor.data_type for tensor in made.proto.graph.initializer if tensor.name.endswith("_zero_point_convert")
    )
    assert types[onnx.TensorProto.UINT16] == 2
    onnx.checker.check_model(made.proto)


def test_zero_as_a_constant_has_a_scale_like_the_values_beside_it(tmp_path: Path) -> None:
    """Of 1 beside 1e-6 the NPU makes zeros; the least of what several nodes want."""
    text = "s = Mul (x, small)  a = Max (s, zero)  b = Max (x, zero)  y = Add (a, b)"
    constants = {"zero": np.float32(0), "small": np.float32(1e-4)}
    options = msgspec.structs.replace(NPU, activations="u16")
    _, made = made_for_npu(text, constants, tmp_path, options)
    scales = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in made.proto.graph.initializer}
    assert scales["zero_scale"] == pytest.approx(scales["a_scale"], rel=1e-3)


def test_a_channel_of_nearly_no_weight_has_a_scale_that_the_npu_takes(tmp_path: Path) -> None:
    """Between 16-bit values a factor of under 2**-24 makes garbage there; in 8 bits it does not."""
    weights = np.ones((3, 2, 1, 1), np.float32)
    weights[1], weights[2] = 1e-9, 0
    for activations, least in (("u16", 2.0**-24), ("u8", 0.0)):
        options = msgspec.structs.replace(NPU, activations=activations)
        model, made = made_for_npu("c = Conv (x, w)  y = Sigmoid (c)", {"w": weights}, tmp_path, options)
        scales = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in made.proto.graph.initializer}
        factors = scales["w_scale"] * scales["x_scale"] / scales["c_scale"]
        assert factors[1] > least
        assert (factors[1] > 2.0**-24) == (activations == "u16")
        one = feeds(model, 1)[0]
        assert sqnr(run(model, one), run(made, one)) > 30
