"""Small models of every shape that the ORT format can hold, converted by the installed wheel."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from pipeline.core.variant import Style
from tests.onnx_samples import parsed_nodes

ORT_STYLES = (Style.FIXED, Style.RUNTIME)
"""Those of the ORT format."""
IR_VERSION = 10
CONV_WEIGHTS = np.linspace(-1, 1, 4 * 4 * 9, dtype=np.float32).reshape(4, 4, 3, 3)
LEVELS = ("none", "basic", "extended", "all")


def parsed(text: str, opset: int = 17, **constants: np.ndarray) -> onnx.ModelProto:
    """A model from ONNX's text form: the header and the constants are added here."""
    header = f'<ir_version: {IR_VERSION}, opset_import: ["" : {opset}, "com.microsoft" : 1]>\n'
    model: onnx.ModelProto = onnx.parser.parse_model(header + text)
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    return model


def conv_relu() -> onnx.ModelProto:
    """Fused at extended, recorded for replay in runtime style."""
    model = parsed(
        "g (float[1, 1, 8, 8] x) => (float[1, 2, 8, 8] y) { c = Conv <pads = [1, 1, 1, 1]> (x, w) y = Relu(c) }"
    )
    weights = np.linspace(-1, 1, 18, dtype=np.float32).reshape(2, 1, 3, 3)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return model


def quantized() -> onnx.ModelProto:
    """A chain of quantized units with batch left symbolic."""
    return parsed("""
        g (float[batch, 4] x) => (float[batch, 4] y)
        <float s = {0.1}, uint8 z = {128}> {
            q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s, z)
            e = Sigmoid (d)
            p = QuantizeLinear (e, s, z)  y = DequantizeLinear (p, s, z)
        }""")


def control_flow() -> onnx.ModelProto:
    """If within If: captured outer values, and an operator that only the innermost body has."""
    return parsed("""
        g (bool c, float[2] x) => (float[2] y) {
            k = Exp (x)
            y = If (c) <
                then_branch = t () => (float[2] a) {
                    a = If (c) <
                        then_branch = tt () => (float[2] aa) { aa = Tan (k) },
                        else_branch = te () => (float[2] ab) { ab = Neg (x) }>
                },
                else_branch = e () => (float[2] b) { b = Cos (k) }>
        }""")


def sequences() -> onnx.ModelProto:
    """A value that is a sequence, not a tensor."""
    return parsed("""
        g (float[4] x, int64 i) => (float[n] y) <int64 two = {2}> {
            s = SplitToSequence (x, two)
            y = SequenceAt (s, i)
        }""")


def texts() -> onnx.ModelProto:
    """String tensors, string attributes, the ml domain."""
    label = helper.make_node(
        "LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml",
        keys_strings=["a", "ä", ""], values_floats=[1.0, 2.5, 0.0], default_float=-1.0,
    )  # fmt: skip
    graph = helper.make_graph(
        [label, helper.make_node("Identity", ["w"], ["z"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.STRING, [2])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("z", TensorProto.STRING, [2]),
        ],
        [numpy_helper.from_array(np.array(["one", "two"], dtype=object), "w")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets)


def four_bits() -> onnx.ModelProto:
    """Weights of type INT4, whose code (22) the format's own enum does not have."""
    weights = helper.make_tensor("w", TensorProto.INT4, [2, 4], [1, -2, 3, -4, 5, -6, 7, -8])
    graph = helper.make_graph(
        parsed_nodes("d = DequantizeLinear (w, s)  y = MatMul (x, d)"),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [weights, numpy_helper.from_array(np.array(0.5, dtype=np.float32), "s")],
    )
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", 21)])


def one_hot() -> onnx.ModelProto:
    """The operator whose types are a triple."""
    return parsed("g (int64[3] x, int64 depth, float[2] values) => (float[3, n] y) { y = OneHot (x, depth, values) }")


def sparse() -> onnx.ModelProto:
    """A sparse initializer."""
    model = parsed("g (float[2, 3] x) => (float[2, 3] y) { y = Add (x, w) }")
    values = numpy_helper.from_array(np.array([1.0, 2.0], dtype=np.float32), "w")
    indices = numpy_helper.from_array(np.array([1, 4], dtype=np.int64), "i")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2, 3]))
    return model


def casts() -> onnx.ModelProto:
    """One operator with several pairs of types."""
    return parsed("""
        g (float[n] x, int32[n] i) => (int64[n] y, float[n] z, double[n] w) {
            y = Cast <to = 7> (x)
            z = Cast <to = 1> (i)
            w = Cast <to = 11> (x)
        }""")


MODELS: Mapping[str, onnx.ModelProto] = {
    make.__name__: make()
    for make in (
        conv_relu, quantized, control_flow, sequences, texts, four_bits, one_hot, sparse, casts,
    )
}  # fmt: skip


def convert(model: onnx.ModelProto | Path, target: Path, *, level: str = "basic", runtime: bool = False) -> Path:
    """Save with the installed wheel, as its own converter does."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(target)
    options.graph_optimization_level = {
        "none": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
        "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
        "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    }[level]
    options.add_session_config_entry("session.save_model_format", "ORT")
    if runtime:
        options.add_session_config_entry("optimization.minimal_build_optimizations", "save")
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    onnxruntime.InferenceSession(
        source, options, providers=["CPUExecutionProvider"], disabled_optimizers=["NchwcTransformer"]
    )
    return target


def converted(folder: Path, name: str, *, level: str = "basic", runtime: bool = False) -> Path:
    """One of `MODELS` as an ORT format file below `folder`."""
    style = "runtime" if runtime else "fixed"
    return convert(MODELS[name], folder / f"{name}.{level}-{style}.ort", level=level, runtime=runtime)


def residual() -> onnx.ModelProto:
    """Level all fuses the sum into the second Conv."""
    return parsed(
        """g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w)  b = Relu (a)
            c = Conv <pads = [1, 1, 1, 1]> (b, w, v)  d = Add (c, b)  y = Relu (d)
        }""",
        w=CONV_WEIGHTS,
        v=np.zeros(4, np.float32),
    )
