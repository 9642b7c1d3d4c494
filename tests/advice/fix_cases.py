"""One small model for each fix, in which the fix has something to do."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from pipeline.advice.fixes import fixes_for
from pipeline.advice.trial import State, TrialContext, attempt, judged
from pipeline.advice.verdict import FixResult
from pipeline.check.reference import make_reference
from pipeline.dataset import Dataset
from pipeline.model.onnx_model import load_model
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import Settings
from pipeline.partition.judge import PartitionRequest
from tests.onnx_samples import parsed_nodes
from tests.partition_samples import Dims, model, value

Model = onnx.ModelProto
Make = Callable[[], Model]

RANDOM = np.random.Generator(np.random.PCG64(7))


def weights(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def f32(*numbers: float) -> Any:
    return np.array(numbers, np.float32)


def i64(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def one(
    op_type: str,
    dims: Dims = (1, 4, 6, 6),
    *,
    opset: int = 17,
    constants: Mapping[str, Any] | None = None,
    inputs: tuple[str, ...] = (),
    between: bool = True,
    **attributes: Any,
) -> Model:
    """Relu -> the operator -> Relu; `inputs` are the operator's inputs after the first."""
    node = helper.make_node(op_type, ["pre" if between else "x", *inputs], ["post"], name="node", **attributes)
    around = [helper.make_node("Tanh", ["x"], ["pre"]), node, helper.make_node("Tanh", ["post"], ["y"])]
    return model(
        around if between else [node], [value("x", dims)], ["y" if between else "post"], constants, opset=opset
    )


def overridable(made: Model) -> Model:
    for tensor in made.graph.initializer:
        made.graph.input.append(value(tensor.name, list(tensor.dims), tensor.data_type))
    return made


def wide_weights() -> Model:
    """Weights of 16 bits, which become float ones without a difference: an Add of them, opset 21."""
    nodes = parsed_nodes("pre = Tanh (x)  wide = DequantizeLinear (w, s)  y = Add (pre, wide)")
    constants = {"w": np.arange(6, dtype=np.uint16), "s": np.float32(0.25)}
    return model(nodes, [value("x", (1, 4, 6, 6))], ["y"], constants, opset=21)


def clip_of_computed_bounds() -> Model:
    nodes = [
        helper.make_node("Constant", [], ["five"], value=numpy_helper.from_array(i64(5))),
        *parsed_nodes("""
            wide = Cast <to = 1> (five)  high = Squeeze (wide)  b = Clip (x, low, high)  y = Tanh (b)"""),
    ]
    return model(nodes, [value("x", (2, 3))], ["y"], {"low": np.float32(0)})


def half() -> Model:
    made = model(
        parsed_nodes("a = Add (x, w)  y = Tanh (a)"),
        [value("x", (2, 3), TensorProto.FLOAT16)],
        ["y"],
        {"w": np.ones(3, np.float16)},
    )
    made.graph.output[0].CopyFrom(value("y", (2, 3), TensorProto.FLOAT16))
    return made


def mean_twice() -> Model:
    """ReduceMean whose axes CoreML's NeuralNetwork takes for none at all, with the attribute set."""
    axes = numpy_helper.from_array(i64(2, 3), "axes")
    made = one("ReduceMean", opset=18, inputs=("axes",), noop_with_empty_axes=1)
    made.graph.initializer.append(axes)
    return made


def gather() -> Model:
    nodes = parsed_nodes("a = Tanh (x)  b = Gather (a, i)  y = Tanh (b)")
    return model(nodes, [value("x", (5, 3)), value("i", (2,), TensorProto.INT64)], ["y"])


def windows() -> Model:
    """A value cut into windows and back by way of rank 6, and one of three parts taken from rank 5."""
    nodes = parsed_nodes("""
        a = Tanh (x)  b = Reshape (a, cut)  c = Transpose <perm = [0, 1, 3, 2, 4, 5]> (b)  d = Reshape (c, rows)
        e = Transpose <perm = [2, 0, 3, 1, 4]> (d)  f = Gather <axis = 0> (e, second)  y = Tanh (f)""")
    shapes = {"cut": i64(1, 2, 3, 2, 3, 6), "rows": i64(1, 12, 3, 2, 3), "second": np.int64(1)}
    return model(nodes, [value("x", (1, 6, 6, 6))], ["y"], shapes)


def concat(*sizes: int) -> Model:
    """Along the last axis: of rank 4 the Transpose behind it takes the place of the output itself."""
    nodes = parsed_nodes("a = Tanh (x)  b = Concat <axis = -1> (a, x, a)  y = Tanh (b)")
    return model(nodes, [value("x", sizes or (2, 3))], ["y"])


def many(op_type: str) -> Model:
    nodes = [helper.make_node("Tanh", ["x"], ["a"]), helper.make_node(op_type, ["a", "x", "w"], ["b"]),
             helper.make_node("Tanh", ["b"], ["y"])]  # fmt: skip
    return model(nodes, [value("x", (2, 3))], ["y"], {"w": weights(3)})


def reflect(
    dims: Dims = (1, 2, 5, 6), pads: tuple[int, ...] = (0, 0, 1, 2, 0, 0, 3, 1), mode: str = "reflect"
) -> Model:
    return one("Pad", dims, inputs=("pads",), constants={"pads": np.array(pads, np.int64)}, mode=mode)


def einsum(equation: str, *shapes: tuple[int, ...]) -> Model:
    nodes = [*parsed_nodes("a = Tanh (x)  b = Tanh (z)"),
             helper.make_node("Einsum", ["a", "b"], ["c"], equation=equation),
             helper.make_node("Tanh", ["c"], ["y"])]  # fmt: skip
    return model(nodes, [value("x", shapes[0]), value("z", shapes[1])], ["y"])


NNAPI, NN, MLP, GPU = "nnapi", "coreml-nn", "coreml-mlprogram", "webgpu"
LAYER_NORM = {"scale": weights(6), "bias": weights(6)}
CHANNELS = {"scale": weights(4), "bias": weights(4)}
STATISTICS = {**CHANNELS, "mean": weights(4), "var": np.abs(weights(4))}
BATCH_NORM = ("scale", "bias", "mean", "var")

CASES: tuple[tuple[str, str, Make], ...] = (
    ("fixed-dimensions", NNAPI, lambda: one("Relu", ("batch", 3, None))),
    ("constant-initializers", NNAPI,
     lambda: overridable(one("Conv", inputs=("w",), constants={"w": weights(3, 4, 3, 3)}))),
    ("f32", NNAPI, half),
    ("drop-empty-inputs", GPU,
     lambda: one("ConvTranspose", inputs=("w", ""), constants={"w": weights(4, 2, 3, 3)})),
    ("in-float", GPU, wide_weights),
    ("constant-clip", MLP, clip_of_computed_bounds),
    ("clip-as-max-min", NNAPI, lambda: one("Clip", inputs=("", "high"), constants={"high": np.float32(0.25)})),
    ("clip-as-max-min", NNAPI, lambda: one("Clip", opset=10, min=0.0, max=0.5)),
    ("pad-as-concat", MLP, reflect),
    ("pad-as-concat", NN, reflect),
    ("pad-as-concat", NNAPI, lambda: reflect(mode="edge")),
    ("pad-as-concat", MLP, lambda: reflect(pads=(0, 1, 0, 2, 0, 0, 3, 0), mode="constant")),
    ("equal-resize", NNAPI, lambda: one("Resize", inputs=("", "s"), constants={"s": f32(1, 1, 3, 2)})),
    ("equal-resize", MLP, lambda: one("Resize", inputs=("", "s"), constants={"s": f32(1, 1, 2, 4)},
                                      coordinate_transformation_mode="half_pixel_symmetric", opset=19)),
    ("plain-gemm", NNAPI, lambda: one("Gemm", (3, 4), inputs=("b", "c"), alpha=0.5, beta=2.0, transB=1,
                                      constants={"b": weights(5, 4), "c": weights(1)})),
    ("plain-gemm", MLP, lambda: one("Gemm", (3, 4), inputs=("b", "c"), transA=1,
                                    constants={"b": weights(3, 5), "c": weights(4, 5)})),
    ("flat-matmul", NNAPI, lambda: one("MatMul", (2, 3, 4), inputs=("b",), constants={"b": weights(4, 5)})),
    ("conv-2d", NNAPI, lambda: one("Conv", (1, 4, 9), inputs=("w", "b"), pads=[1, 2], strides=[2],
                                   constants={"w": weights(6, 4, 3), "b": weights(6)})),
    ("cropped-conv-transpose", MLP, lambda: one("ConvTranspose", inputs=("w",), strides=[2, 2], pads=[1, 1, 2, 1],
                                                output_padding=[1, 1], constants={"w": weights(4, 3, 3, 3)})),
    ("cropped-conv-transpose", MLP, lambda: one("ConvTranspose", inputs=("w",), strides=[2, 2], auto_pad="SAME_UPPER",
                                                constants={"w": weights(4, 3, 3, 3)})),
    ("einsum-as-matmul", NNAPI, lambda: einsum("bqhd,bkhd->bhqk", (2, 3, 4, 5), (2, 6, 4, 5))),
    ("einsum-as-matmul", MLP, lambda: einsum("ij,kj->ki", (3, 4), (5, 4))),
    ("explicit-pads", NNAPI, lambda: one("MaxPool", (1, 2, 7, 8), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)),
    ("explicit-pads", NN, lambda: one("AveragePool", (1, 2, 7, 8), kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1,
                                      pads=[1, 0, 0, 0])),
    ("counted-pads", NNAPI, lambda: one("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)),
    ("scaled-batch-norm", MLP, lambda: one("BatchNormalization", (5, 4), inputs=BATCH_NORM, constants=STATISTICS)),
    ("reshape", MLP, lambda: one("Flatten")),
    ("reshape", NN, lambda: one("Unsqueeze", (2, 3), opset=11, axes=[1])),
    ("concat-on-channels", NN, concat),
    ("concat-on-channels", NN, lambda: concat(2, 3, 4)),
    ("concat-on-channels", NN, lambda: concat(1, 4, 6, 8)),
    ("fewer-axes", NNAPI, windows),
    ("gather-i32", NNAPI, gather),
    ("layer-norm", NNAPI, lambda: one("LayerNormalization", inputs=("scale", "bias"), constants=LAYER_NORM)),
    ("group-norm", NN, lambda: one("InstanceNormalization", inputs=("scale", "bias"), constants=CHANNELS)),
    ("group-norm", NNAPI, lambda: one("GroupNormalization", inputs=("scale", "bias"), constants=CHANNELS, opset=21,
                                      num_groups=2)),
    ("activations", NNAPI, lambda: one("HardSwish")),
    ("activations", NNAPI, lambda: one("HardSigmoid")),
    ("activations", NNAPI, lambda: one("Gelu", opset=20, approximate="tanh")),
    ("erf-by-exp", NNAPI, lambda: one("Erf")),
    ("erf-by-exp", NNAPI, lambda: one("Gelu", opset=20)),
    ("one-input", NNAPI, lambda: one("Reciprocal")),
    ("one-input", MLP, lambda: one("Neg")),
    ("one-input", MLP, lambda: one("Abs")),
    ("one-input", NNAPI, lambda: one("Softsign")),
    ("prelu-by-relu", MLP, lambda: one("PRelu", (2, 6), inputs=("s",), constants={"s": weights(6)})),
    ("pairwise", NNAPI, lambda: many("Max")),
    ("pairwise", MLP, lambda: many("Sum")),
    ("min-as-max", MLP, lambda: many("Min")),
    ("reductions", NNAPI, lambda: one("ReduceL2", axes=[1, 2])),
    ("reductions", MLP, lambda: one("ReduceSumSquare", opset=18, keepdims=0)),
    ("reductions", NNAPI, lambda: one("ReduceSum", axes=None, keepdims=1)),
    ("pool-as-mean", NNAPI, lambda: one("GlobalAveragePool", (2, 4, 7))),
    ("mean-as-pool", NN, mean_twice),
)  # fmt: skip


def start(made: Model, provider: str, folder: Path) -> tuple[State, TrialContext]:
    """The model saved and judged, and where fixes are tried on it."""
    path = folder / "original.onnx"
    onnx.save(made, path)
    source = SourceModel(path=str(path))
    reference = make_reference(source, {}, Dataset(), str(folder / "reference"), str(folder))
    bench = TrialContext(folder=folder, provider=provider, reference=reference)
    settings = Settings(provider=provider, ort_release=(1, 23), api_level=31)
    asked = PartitionRequest(source=source, settings=settings)
    return judged(load_model(source, folder), asked, None, dict(reference.data.sizes)), bench


def tried(name: str, made: Model, provider: str, folder: Path) -> tuple[FixResult, State | None]:
    """What the fix of that name gives on a model."""
    fix = next(fix for fix in fixes_for(provider) if fix.name == name)
    return attempt(fix, *start(made, provider, folder))


def outputs(made: Model, feeds: Mapping[str, Any]) -> list[Any]:
    """What a model computes without optimization."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: list[Any] = session.run(None, dict(feeds))
    return found
