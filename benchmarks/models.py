"""Models of 200 to 500 MB for measurements: BERT-base, a ResNet-50 of twice the width, a wide MLP.

`python benchmarks/models.py FOLDER` writes them all. Only their shapes are real; the weights are random, seeded.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8


class Graph:
    """Collects nodes and weights; every method that adds a node returns the name of its output."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *shape: int, scale: float = 0.02) -> str:
        """A random float weight."""
        values = self.random.standard_normal(shape, dtype=np.float32) * np.float32(scale)
        return self.constant(values)

    def constant(self, values: np.ndarray) -> str:
        """An initializer with these values."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def save(self, path: Path, shape: Sequence[int], kind: int, output: str) -> None:
        """Write the model with one input `x` and one output."""
        x = helper.make_tensor_value_info("x", kind, list(shape))
        y = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, path.stem, [x], [y], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        path.write_bytes(model.SerializeToString())


def _linear(graph: Graph, x: str, inputs: int, outputs: int) -> str:
    return graph.node("Add", graph.node("MatMul", x, graph.weight(inputs, outputs)), graph.weight(outputs))


def _layer_norm(graph: Graph, x: str, width: int) -> str:
    return graph.node("LayerNormalization", x, graph.weight(width), graph.weight(width), axis=-1)


def _gelu(graph: Graph, x: str) -> str:
    half, one, root = (graph.constant(np.array(v, np.float32)) for v in (0.5, 1.0, 1.4142135))
    erf = graph.node("Add", graph.node("Erf", graph.node("Div", x, root)), one)
    return graph.node("Mul", graph.node("Mul", x, erf), half)


def _attention(graph: Graph, x: str, width: int, heads: int, length: int) -> str:
    shape = graph.constant(np.array([1, length, heads, width // heads], np.int64))
    q, k, v = (graph.node("Reshape", _linear(graph, x, width, width), shape) for _ in range(3))
    q, v = (graph.node("Transpose", t, perm=[0, 2, 1, 3]) for t in (q, v))
    scores = graph.node("MatMul", q, graph.node("Transpose", k, perm=[0, 2, 3, 1]))
    scores = graph.node("Div", scores, graph.constant(np.array((width // heads) ** 0.5, np.float32)))
    mixed = graph.node("Transpose", graph.node("MatMul", graph.node("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    flat = graph.node("Reshape", mixed, graph.constant(np.array([1, length, width], np.int64)))
    return _linear(graph, flat, width, width)


def bert_base(path: Path, *, layers: int = 12, width: int = 768, length: int = 128) -> None:
    """BERT-base: 110 million parameters, 434 MB; token ids in, hidden states out."""
    graph = Graph(1)
    words = graph.node("Gather", graph.weight(30522, width), "x")
    x = _layer_norm(graph, graph.node("Add", words, graph.weight(1, length, width)), width)
    for _ in range(layers):
        x = _layer_norm(graph, graph.node("Add", x, _attention(graph, x, width, 12, length)), width)
        hidden = _gelu(graph, _linear(graph, x, width, 4 * width))
        x = _layer_norm(graph, graph.node("Add", x, _linear(graph, hidden, 4 * width, width)), width)
    graph.save(path, (1, length), TensorProto.INT64, x)


def _conv_bn(graph: Graph, x: str, sizes: tuple[int, int, int], stride: int = 1, *, relu: bool = True) -> str:
    inputs, outputs, kernel = sizes
    pads, strides = [kernel // 2] * 4, [stride] * 2
    kernels = graph.weight(outputs, inputs, kernel, kernel)
    x = graph.node("Conv", x, kernels, kernel_shape=[kernel] * 2, pads=pads, strides=strides)
    scale, bias, mean = (graph.weight(outputs, scale=0.1) for _ in range(3))
    variance = graph.constant(np.abs(graph.random.standard_normal(outputs, dtype=np.float32)) + 1)
    x = graph.node("BatchNormalization", x, scale, bias, mean, variance)
    return graph.node("Relu", x) if relu else x


def resnet50_wide(path: Path, *, factor: int = 2) -> None:
    """ResNet-50 with `factor` times the channels (factor 2: 390 MB), batch normalization not yet folded."""
    graph = Graph(2)
    channels = 64 * factor
    x = _conv_bn(graph, "x", (3, channels, 7), 2)
    x = graph.node("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = 64 * factor << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = _conv_bn(graph, x, (channels, inner, 1))
            y = _conv_bn(graph, y, (inner, inner, 3), stride)
            y = _conv_bn(graph, y, (inner, 4 * inner, 1), relu=False)
            shortcut = _conv_bn(graph, x, (channels, 4 * inner, 1), stride, relu=False) if not block else x
            x = graph.node("Relu", graph.node("Add", y, shortcut))
            channels = 4 * inner
    x = graph.node("Flatten", graph.node("GlobalAveragePool", x))
    logits = graph.node("Gemm", x, graph.weight(1000, channels), graph.weight(1000), transB=1)
    graph.save(path, (1, 3, 224, 224), TensorProto.FLOAT, logits)


def wide_mlp(path: Path, *, width: int = 5120, layers: int = 3) -> None:
    """Few, very large matrices (315 MB): Gemm and Relu."""
    graph = Graph(3)
    x = "x"
    for _ in range(layers):
        x = graph.node("Relu", graph.node("Gemm", x, graph.weight(width, width), graph.weight(width), transB=1))
    graph.save(path, (1, width), TensorProto.FLOAT, x)


LARGE: dict[str, Callable[[Path], None]] = {
    "bert_base": bert_base,
    "resnet50_wide": resnet50_wide,
    "wide_mlp": wide_mlp,
}


def write_large(folder: Path) -> list[Path]:
    """The three models in a folder; those that are there already are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.onnx" for name in LARGE]
    for path in paths:
        if not path.exists():
            LARGE[path.stem](path)
    return paths


if __name__ == "__main__":
    for written in write_large(Path(sys.argv[1])):
        print(written, written.stat().st_size)
