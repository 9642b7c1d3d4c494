"""Small ONNX models that several test modules convert."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8


def weight(name: str, *shape: int, seed: int = 0) -> TensorProto:
    """A float initializer with seeded values."""
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return numpy_helper.from_array(values, name)


def value(name: str, shape: list[int | str] | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """A graph input or output."""
    return helper.make_tensor_value_info(name, kind, shape)


def parsed_nodes(text: str) -> list[onnx.NodeProto]:
    """Nodes in ONNX's text form, as `m = MatMul (x, w)  y = Softmax <axis = 1> (m)`."""
    return list(onnx.parser.parse_graph(f"g () => () {{ {text} }}").node)


def make(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: list[TensorProto],
) -> onnx.ModelProto:
    """A model of the default opset."""
    graph = helper.make_graph(nodes, "sample", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def linear(width: int = 128, *, seed: int = 0) -> onnx.ModelProto:
    """y = relu(x W + b): one large weight, one small one."""
    nodes = parsed_nodes("m = MatMul (x, w)  a = Add (m, b)  y = Relu (a)")
    weights = [weight("w", width, width, seed=seed), weight("b", width, seed=seed + 1)]
    return make(nodes, [value("x", ["batch", width])], [value("y", ["batch", width])], weights)


def conv_bn(channels: int = 64) -> onnx.ModelProto:
    """Two convolutions with batch normalization, which basic optimization folds into their weights."""
    nodes, weights, x = [], [], "x"
    for layer, inputs in enumerate((3, channels)):
        names = [f"{part}{layer}" for part in ("w", "scale", "bias", "mean", "variance")]
        weights += [weight(names[0], channels, inputs, 3, 3, seed=layer)]
        weights += [weight(name, channels, seed=10 * layer + k) for k, name in enumerate(names[1:4])]
        weights += [numpy_helper.from_array(np.full(channels, 2, np.float32), names[4])]
        nodes += [
            helper.make_node("Conv", [x, names[0]], [f"c{layer}"], pads=[1, 1, 1, 1]),
            helper.make_node("BatchNormalization", [f"c{layer}", *names[1:]], [f"n{layer}"]),
            helper.make_node("Relu", [f"n{layer}"], [f"r{layer}"]),
        ]
        x = f"r{layer}"
    return make(nodes, [value("x", [1, 3, 8, 8])], [value(x, [1, channels, 8, 8])], weights)


def quiet_map(bias: float = -12.0, *, gain: float = 3000.0) -> onnx.ModelProto:
    """A map of probabilities around sigmoid(`bias`), whose logits are small differences of large numbers.

    Two convolutions that cancel but for rounding add `gain` times that to the logits, and one of them has a
    normalization for the optimizer to fold: files of all levels differ from the original by some 1e-3 in the logits.
    """
    random = np.random.default_rng(0)
    kernel, scale = random.standard_normal((8, 3, 3, 3)), random.standard_normal(8)
    arrays = {
        "w": kernel, "scale": scale, "zero": np.zeros(8), "one": np.ones(8),
        "folded": kernel * scale.reshape(8, 1, 1, 1), "gain": np.full((1, 8, 1, 1), gain / 8),
        "signal": random.standard_normal((1, 3, 3, 3)) / 5, "bias": np.full(1, bias),
    }  # fmt: skip
    nodes = parsed_nodes("""
        c = Conv <pads = [1, 1, 1, 1]> (x, w)  n = BatchNormalization <epsilon = 0.0> (c, scale, zero, zero, one)
        f = Conv <pads = [1, 1, 1, 1]> (x, folded)  d = Sub (n, f)  g = Conv (d, gain)
        s = Conv <pads = [1, 1, 1, 1]> (x, signal, bias)  logits = Add (g, s)  y = Sigmoid (logits)""")
    weights = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    return make(nodes, [value("x", [1, 3, 32, 32])], [value("y", [1, 1, 32, 32])], weights)


def loud_spectrum(gain: float = 300.0) -> onnx.ModelProto:
    """The logarithm of powers of what a filter bank hears: small numbers made of some that half precision lacks.

    ONNX Runtime computes half precision in float on x86-64 and rounds where several nodes on end have
    kernels of halves: here to move values.
    """
    bank = numpy_helper.to_array(weight("bank", 16, 16)) * np.float32(gain)
    nodes = parsed_nodes("""
        [Filter] heard = MatMul (x, bank)  [Power] powers = Pow (heard, two)  [Turn] turned = Transpose (powers)
        [Flat] flat = Flatten (turned)  [Floor] floored = Add (flat, one)  [Loudness] y = Log (floored)""")
    weights = [
        numpy_helper.from_array(bank, "bank"),
        numpy_helper.from_array(np.array(2, np.float32), "two"),
        numpy_helper.from_array(np.array(1, np.float32), "one"),
    ]
    return make(nodes, [value("x", [1, 16])], [value("y", [16, 1])], weights)


def quantized(channels: int = 64) -> onnx.ModelProto:
    """A convolution in QDQ form whose quantized weight is large: runtime style records its fusion."""
    zero = numpy_helper.from_array(np.array(0, np.uint8), "zero")
    scale = numpy_helper.from_array(np.array(0.05, np.float32), "scale")
    random = np.random.default_rng(3)
    kernel = random.integers(0, 255, (channels, 16, 5, 5)).astype(np.uint8)
    nodes = parsed_nodes("""
        xq = QuantizeLinear (x, scale, zero)  xd = DequantizeLinear (xq, scale, zero)
        kd = DequantizeLinear (kernel, scale, zero)  c = Conv (xd, kd)  cq = QuantizeLinear (c, scale, zero)
        y = DequantizeLinear (cq, scale, zero)""")
    weights = [zero, scale, numpy_helper.from_array(kernel, "kernel")]
    return make(nodes, [value("x", [1, 16, 8, 8])], [value("y", [1, channels, 4, 4])], weights)


def save(model: onnx.ModelProto, path: Path) -> Path:
    """Write the model; gives the path."""
    path.write_bytes(model.SerializeToString())
    return path


def save_external(model: onnx.ModelProto, path: Path, location: str = "weights.bin") -> Path:
    """Write the model with all its weights in a file beside it; gives the path."""
    external = onnx.ModelProto()
    external.CopyFrom(model)
    (path.parent / location).parent.mkdir(parents=True, exist_ok=True)
    onnx.save_model(external, str(path), save_as_external_data=True, location=location, size_threshold=0)
    return path
