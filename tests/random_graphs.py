"""Random ONNX models of real operators by seed: types, opsets, shared values, bodies, local functions, quantization.

All pass ONNX's checker; some have no kernel on the CPU (float16, odd types), as models of users do not either.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

OPSETS = (13, 14, 15, 16, 17, 18, 19, 20, 21)
FLOAT, DOUBLE, HALF = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16
INT8, UINT8, INT32, INT64, BOOL = (
    TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL,
)  # fmt: skip
FLOATS = (FLOAT, FLOAT, FLOAT, DOUBLE, HALF)
NUMBERS = (*FLOATS, INT32, INT64)
IMAGE = (1, 4, 6, 6)
"""The one shape that most values have, so that any two of them fit together."""


@dataclass(slots=True)
class Writer:
    """A graph as it grows: values by type (all of shape IMAGE), nodes, weights."""

    rng: random.Random
    opset: int
    depth: int = 0
    nodes: list[NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)
    values: dict[int, list[str]] = field(default_factory=dict)
    prefix: str = ""

    def name(self) -> str:
        """A new name."""
        return f"{self.prefix}v{len(self.nodes)}_{len(self.weights)}_{self.rng.randrange(1000)}"

    def constant(self, array: np.ndarray) -> str:
        """A weight."""
        name = f"{self.name()}_w"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op: str, inputs: Sequence[str], *, domain: str = "", **attributes: Any) -> str:
        """A node with one output."""
        out = self.name()
        named = f"{self.prefix}{op}_{len(self.nodes)}" if self.rng.random() < 0.8 else ""
        self.nodes.append(helper.make_node(op, inputs, [out], name=named, domain=domain, **attributes))
        return out

    def value(self, kind: int) -> str:
        """Some value of a type: one that is there, else a cast."""
        if kind not in self.values or self.rng.random() < 0.05:
            source = self.rng.choice(sorted(self.values))
            self.give(kind, self.node("Cast", [self.rng.choice(self.values[source])], to=kind))
        return self.rng.choice(self.values[kind])

    def give(self, kind: int, name: str) -> str:
        """Let later nodes use a value of shape IMAGE."""
        self.values.setdefault(kind, []).append(name)
        return name


def _unary(w: Writer) -> None:
    ops = "Relu Exp Abs Neg Sigmoid Tanh Sqrt Floor Ceil Erf Sin Softplus Elu LeakyRelu HardSigmoid Identity Round Sign"
    kind = w.rng.choice(FLOATS)
    w.give(kind, w.node(w.rng.choice(ops.split()), [w.value(kind)]))


def _binary(w: Writer) -> None:
    kind = w.rng.choice(NUMBERS)
    op = w.rng.choice(["Add", "Mul", "Sub", "Div", "Max", "Min", "Pow"])
    w.give(kind, w.node(op, [w.value(kind), w.value(kind)]))


def _logic(w: Writer) -> None:
    kind = w.rng.choice((FLOAT, DOUBLE, INT32, INT64))
    condition = w.node(w.rng.choice(["Less", "Greater", "Equal"]), [w.value(kind), w.value(kind)])
    w.give(BOOL, condition)
    other = w.rng.choice((FLOAT, INT64, UINT8))
    w.give(other, w.node("Where", [condition, w.value(other), w.value(other)]))


def _cast(w: Writer) -> None:
    source = w.rng.choice(sorted(w.values))
    target = w.rng.choice((*NUMBERS, BOOL, UINT8, INT8))
    w.give(target, w.node("Cast", [w.rng.choice(w.values[source])], to=target))


def _conv(w: Writer) -> None:
    group = w.rng.choice((1, 4))
    kernel = w.constant(np.full((4, 4 // group, 3, 3), 0.1, np.float32))
    out = w.node("Conv", [w.value(FLOAT), kernel], pads=[1, 1, 1, 1], group=group)
    if w.rng.random() < 0.5:
        scale, bias, mean, variance = (w.constant(np.full(4, v, np.float32)) for v in (1.5, 0.5, 0.1, 2))
        out = w.node("BatchNormalization", [out, scale, bias, mean, variance])
    if w.rng.random() < 0.5:
        out = w.node(w.rng.choice(["Relu", "Sigmoid", "LeakyRelu"]), [out])
    w.give(FLOAT, out)


def _pool(w: Writer) -> None:
    op = w.rng.choice(["MaxPool", "AveragePool", "LpPool"])
    w.give(FLOAT, w.node(op, [w.value(FLOAT)], kernel_shape=[3, 3], pads=[1, 1, 1, 1]))


def _product(w: Writer) -> None:
    kind = w.rng.choice((FLOAT, FLOAT, DOUBLE))
    number = helper.tensor_dtype_to_np_dtype(kind)
    out = w.node("MatMul", [w.value(kind), w.constant(np.full((6, 6), 0.2, number))])
    w.give(kind, w.node("Add", [out, w.constant(np.ones(6, number))]))


def _gemm(w: Writer) -> None:
    flat = w.node("Flatten", [w.value(FLOAT)])
    out = w.node(
        "Gemm", [flat, w.constant(np.full((144, 144), 0.01, np.float32)), w.constant(np.ones(144, np.float32))]
    )
    w.give(FLOAT, w.node("Reshape", [out, w.constant(np.array(IMAGE, np.int64))]))


def _layout(w: Writer) -> None:
    kind = w.rng.choice((FLOAT, INT64, UINT8, BOOL, HALF))
    there = w.node("Transpose", [w.value(kind)], perm=[0, 2, 3, 1])
    w.give(kind, w.node("Transpose", [there], perm=[0, 3, 1, 2]))


def _slices(w: Writer) -> None:
    kind = w.rng.choice((FLOAT, INT32, INT64))
    index = w.rng.choice((np.int32, np.int64))
    ends = [w.constant(np.array([value], index)) for value in (0, 2, 1)]
    half = w.node("Slice", [w.value(kind), *ends])
    w.give(kind, w.node("Concat", [half, half], axis=1))


def _gather(w: Writer) -> None:
    kind = w.rng.choice((FLOAT, INT64, HALF))
    indices = w.constant(np.array([3, 2, 1, 0], w.rng.choice((np.int32, np.int64))))
    w.give(kind, w.node("Gather", [w.value(kind), indices], axis=1))


def _reduce(w: Writer) -> None:
    kind = w.rng.choice((FLOAT, FLOAT, DOUBLE, INT32))
    inputs = [w.value(kind)]
    if w.opset >= 18:
        mean = w.node(w.rng.choice(["ReduceMean", "ReduceMax"]), [*inputs, w.constant(np.array([2, 3], np.int64))])
    else:
        mean = w.node(w.rng.choice(["ReduceMean", "ReduceMax"]), inputs, axes=[2, 3])
    w.give(kind, w.node("Sub", [w.value(kind), mean]))


def _shape(w: Writer) -> None:
    shape = w.node("Shape", [w.value(FLOAT)])
    some = w.node("ConstantOfShape", [shape], value=helper.make_tensor("c", INT64, [1], [3]))
    w.give(INT64, some)
    wide = w.node("Unsqueeze", [w.value(FLOAT), w.constant(np.array([0], np.int64))])
    w.give(FLOAT, w.node("Squeeze", [wide, w.constant(np.array([0], np.int64))]))


def _norm(w: Writer) -> None:
    value = w.value(FLOAT)
    if w.opset >= 17 and w.rng.random() < 0.5:
        ones, zeros = w.constant(np.ones(6, np.float32)), w.constant(np.zeros(6, np.float32))
        w.give(FLOAT, w.node("LayerNormalization", [value, ones, zeros]))
    else:
        w.give(FLOAT, w.node(w.rng.choice(["Softmax", "LogSoftmax", "LpNormalization"]), [value], axis=-1))


def _gelu(w: Writer) -> None:
    """What level extended fuses into com.microsoft:Gelu."""
    x = w.value(FLOAT)
    inner = w.node("Erf", [w.node("Div", [x, w.constant(np.array(1.4142135, np.float32))])])
    product = w.node("Mul", [x, w.node("Add", [inner, w.constant(np.array(1, np.float32))])])
    w.give(FLOAT, w.node("Mul", [product, w.constant(np.array(0.5, np.float32))]))


def _clip(w: Writer) -> None:
    kind = w.rng.choice((FLOAT, INT32, INT8))
    number = helper.tensor_dtype_to_np_dtype(kind)
    w.give(kind, w.node("Clip", [w.value(kind), w.constant(np.array(0, number)), w.constant(np.array(6, number))]))


def _resize(w: Writer) -> None:
    sizes = w.constant(np.array([1, 4, 12, 12], np.int64))
    large = w.node("Resize", [w.value(FLOAT), "", "", sizes], mode=w.rng.choice(["nearest", "linear"]))
    w.give(FLOAT, w.node("AveragePool", [large], kernel_shape=[2, 2], strides=[2, 2]))


def _select(w: Writer) -> None:
    k = w.constant(np.array([6], np.int64))
    out, indices = w.name(), f"{w.name()}_i"
    w.nodes.append(helper.make_node("TopK", [w.value(FLOAT), k], [out, indices]))
    w.give(FLOAT, out)
    w.give(INT64, indices)
    picked = w.node(w.rng.choice(["ArgMax", "ArgMin"]), [w.value(FLOAT)], axis=1)
    depth, ends = w.constant(np.array(4, np.int64)), w.constant(np.array([0, 1], np.float32))
    w.give(FLOAT, w.node("Squeeze", [w.node("OneHot", [picked, depth, ends], axis=2), w.constant(np.array([1]))]))


def _quantized(w: Writer) -> None:
    """A unit in QDQ form: what extended and runtime style turn into kernels on bytes."""
    number = w.rng.choice((np.uint8, np.int8))
    parameters = [w.constant(np.array(0.05, np.float32)), w.constant(np.array(0, number))]

    def through(value: str) -> str:
        return w.node("DequantizeLinear", [w.node("QuantizeLinear", [value, *parameters]), *parameters])

    x, unit = through(w.value(FLOAT)), w.rng.randrange(6)
    if unit == 0:
        kernel = w.node("DequantizeLinear", [w.constant(np.full((4, 4, 3, 3), 3, number)), *parameters])
        x = w.node("Conv", [x, kernel], pads=[1, 1, 1, 1])
    elif unit == 1:
        x = w.node(w.rng.choice(["Add", "Mul"]), [x, through(w.value(FLOAT))])
    elif unit == 2:
        x = w.node("MatMul", [x, w.node("DequantizeLinear", [w.constant(np.full((6, 6), 2, number)), *parameters])])
    elif unit == 3:
        x = w.node("MaxPool", [x], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    elif unit == 4:
        half = w.node("Slice", [x, *(w.constant(np.array([v], np.int64)) for v in (0, 2, 1))])
        x = w.node("Concat", [half, half], axis=1)
    else:
        x = w.node(w.rng.choice(["Sigmoid", "LeakyRelu", "Softmax"]), [x])
    w.give(FLOAT, through(x))


def _if(w: Writer) -> None:
    if w.depth >= 2:
        return
    condition = w.constant(np.array(True))
    if w.rng.random() < 0.7:  # one that is not known before the model runs
        flat = w.node("Reshape", [w.value(BOOL), w.constant(np.array([-1], np.int64))])
        first = w.node("Gather", [flat, w.constant(np.array(0, np.int64))])
        condition = first
    branches = {name: _body(w, name) for name in ("then_branch", "else_branch")}
    w.give(FLOAT, w.node("If", [condition], **branches))


def _body(w: Writer, name: str) -> onnx.GraphProto:
    inner = Writer(w.rng, w.opset, w.depth + 1, values={kind: list(names) for kind, names in w.values.items()})
    inner.prefix = f"{w.name()}_{name[0]}_"
    _grow(inner, w.rng.randint(1, 3))
    out = inner.node("Identity", [inner.value(FLOAT)])
    ends = [helper.make_tensor_value_info(out, FLOAT, IMAGE)]
    return helper.make_graph(inner.nodes, name, [], ends, inner.weights)


def _local(w: Writer) -> None:
    w.give(FLOAT, w.node("Swish", [w.value(FLOAT)], domain="local.functions"))


def _microsoft(w: Writer) -> None:
    op = w.rng.choice(["Gelu", "FastGelu", "QuickGelu"])
    w.give(FLOAT, w.node(op, [w.value(FLOAT)], domain="com.microsoft"))


STEPS: tuple[Callable[[Writer], None], ...] = (
    _unary, _unary, _binary, _binary, _logic, _cast, _conv, _conv, _pool, _product, _gemm, _layout, _slices, _gather,
    _reduce, _shape, _norm, _gelu, _clip, _resize, _select, _quantized, _quantized, _if, _local, _microsoft,
)  # fmt: skip


def _grow(w: Writer, steps: int) -> None:
    for _ in range(steps):
        w.rng.choice(STEPS)(w)


def _swish(opset: int) -> onnx.FunctionProto:
    nodes = [helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Mul", ["x", "s"], ["y"])]
    return helper.make_function("local.functions", "Swish", ["x"], ["y"], nodes, [helper.make_opsetid("", opset)])


def random_graph(seed: int) -> onnx.ModelProto:
    """A model of 1 to 14 steps, each of one or a few nodes."""
    rng = random.Random(seed)
    w = Writer(rng, rng.choice(OPSETS), values={FLOAT: ["x"]})
    _grow(w, rng.randint(1, 14))
    used = {name for node in w.nodes for name in node.input}
    ends = [
        helper.make_tensor_value_info(name, kind, IMAGE)
        for kind, names in w.values.items()
        for name in names
        if name not in used and name != "x"
    ] or [helper.make_tensor_value_info(w.nodes[-1].output[0], UINT8, None)]
    graph = helper.make_graph(w.nodes, "g", [helper.make_tensor_value_info("x", FLOAT, IMAGE)], ends, w.weights)
    opsets = [
        helper.make_opsetid("", w.opset), helper.make_opsetid("com.microsoft", 1),
        helper.make_opsetid("local.functions", 1),
    ]  # fmt: skip
    return helper.make_model(graph, ir_version=9, opset_imports=opsets, functions=[_swish(w.opset)])
