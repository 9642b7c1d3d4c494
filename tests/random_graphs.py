"""Random ONNX models of real operators by seed: types, opsets, shared values, bodies, local functions, quantization.

Q and DQ may lack partners, be shared or chained, and have wrong types and scales; some models have no kernel on the CPU
(float16, odd types), as models of users do not either.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tests.onnx_samples import parsed_nodes

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
    ends: list[str] = field(default_factory=list)
    """Outputs of any type and shape, besides the values that nobody reads."""
    shared: dict[int, list[list[str]]] = field(default_factory=dict)
    """Scales and zero points by quantized type."""

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


def _copied(lists: dict[int, list[Any]]) -> dict[int, list[Any]]:
    return {kind: list(members) for kind, members in lists.items()}


def _body(w: Writer, name: str) -> onnx.GraphProto:
    inner = Writer(w.rng, w.opset, w.depth + 1, values=_copied(w.values), shared=_copied(w.shared))
    inner.prefix = f"{w.name()}_{name[0]}_"
    _grow(inner, w.rng.randint(1, 3))
    out = inner.node("Identity", [inner.value(FLOAT)])
    ends = [helper.make_tensor_value_info(out, FLOAT, IMAGE)]
    return helper.make_graph(inner.nodes, name, [], ends, inner.weights)


def _local(w: Writer) -> None:
    w.give(FLOAT, w.node("Swish", [w.value(FLOAT)], domain="local.functions"))


INT16, UINT16 = TensorProto.INT16, TensorProto.UINT16


def _kind(w: Writer) -> int:
    kind: int = w.rng.choice((UINT8, UINT8, UINT8, INT8, *((UINT16, INT16) if w.opset >= 21 else ())))
    return kind


TargetRow = tuple[Callable[[Writer, str], list[str]], dict[str, Any]]
TARGET_SINCE = {"CastLike": 15, "LayerNormalization": 17, "Mish": 18, "Gelu": 20}


def _parameters(w: Writer, kind: int) -> list[str]:
    """Scale and zero point as they should not be, but for most of the time."""
    number = helper.tensor_dtype_to_np_dtype(kind)
    odd = w.rng.random()
    scale: np.ndarray = np.array(w.rng.choice([0.05, 0.05, 0.05, 1 / 256, 0.1]), np.float32)
    zero: np.ndarray = np.array(w.rng.choice([0, 0, 0, 3]), number)
    if odd < 0.05:
        scale, zero = scale.reshape(1), zero.reshape(1)
    elif odd < 0.1:
        scale, zero = np.full(4, 0.1, np.float32), np.zeros(4, number)
    elif odd < 0.13:
        scale = np.array(w.rng.choice([0.0, -1.0, np.nan, np.inf]), np.float32)
    elif odd < 0.14 and w.opset >= 19:
        scale = scale.astype(np.float16)
    elif odd < 0.141:
        zero = np.array(1, np.int8 if kind == UINT8 else np.uint8)
    elif odd < 0.17:
        zero = zero.reshape(1)
    names = [w.constant(scale), w.constant(zero)]
    shape = w.rng.random()
    if shape < 0.03:
        return names[:1]
    if shape < 0.05:
        return [names[0], ""]
    if shape < 0.08:  # computed while the model runs
        return [w.node("Identity", [names[0]]), names[1]]
    if shape < 0.1:  # dequantized themselves
        parameters = [w.constant(np.array(0.01, np.float32)), w.constant(np.array(0, np.uint8))]
        return [w.node("DequantizeLinear", [w.constant(np.array(5, np.uint8)), *parameters]), names[1]]
    return names


def _shared(w: Writer, kind: int) -> list[str]:
    """The parameters that most of a graph has, or others."""
    known = w.shared.setdefault(kind, [])
    if not known or w.rng.random() < 0.3:
        known.append(_parameters(w, kind))
    return w.rng.choice(known)


def _converter(w: Writer, op: str, inputs: list[str]) -> str:
    domain = "com.microsoft" if w.rng.random() < 0.05 and "" not in inputs else ""
    odd_axis = {"axis": w.rng.choice([0, 1, -1])} if w.rng.random() < 0.1 and (domain or w.opset >= 13) else {}
    return w.node(op, inputs, domain=domain, **odd_axis)


def _bytes(w: Writer) -> tuple[int, str]:
    """Some quantized value: one that is there, which others may read too, else a new one."""
    kind = _kind(w)
    if w.values.get(kind) and w.rng.random() < 0.6:
        return kind, w.rng.choice(w.values[kind])
    if w.rng.random() < 0.15:
        return kind, w.constant(np.full(IMAGE, 3, helper.tensor_dtype_to_np_dtype(kind)))
    return kind, w.give(kind, _converter(w, "QuantizeLinear", [w.value(FLOAT), *_shared(w, kind)]))


def _dequantized(w: Writer) -> str:
    """A float for a target: behind a DequantizeLinear of its own or a shared one, or plain."""
    floats = w.values.get(FLOAT, ())
    if floats and w.rng.random() < 0.25:
        return w.rng.choice(floats)
    kind, value = _bytes(w)
    out = _converter(w, "DequantizeLinear", [value, *_shared(w, kind)])
    return w.give(FLOAT, out) if w.rng.random() < 0.5 else out


def _weight(w: Writer, array: np.ndarray) -> str:
    """A constant operand: float, or dequantized by tensor or by channel."""
    if w.rng.random() < 0.3:
        return w.constant(array.astype(np.float32))
    kind = w.rng.choice((UINT8, INT8, INT8))
    number = helper.tensor_dtype_to_np_dtype(kind)
    if w.rng.random() < 0.3 and array.ndim:
        channels = array.shape[0]
        parameters = [w.constant(np.full(channels, 0.1, np.float32)), w.constant(np.zeros(channels, number))]
        return w.node("DequantizeLinear", [w.constant(array.astype(number)), *parameters], axis=0)
    return w.node("DequantizeLinear", [w.constant(array.astype(number)), *_shared(w, kind)])


def _bias(w: Writer, size: int) -> str:
    if w.rng.random() < 0.4:
        return w.constant(np.zeros(size, np.float32))
    scale = w.constant(np.array(w.rng.choice([0.0025, 0.1]), np.float32))
    return w.node("DequantizeLinear", [w.constant(np.zeros(size, np.int32)), scale])


def _ints(w: Writer, *values: int) -> str:
    return w.constant(np.array(values, np.int64))


def _floats(w: Writer, *values: float) -> str:
    return w.constant(np.array(values, np.float32))


def _second(w: Writer, x: str) -> list[str]:
    """The other operand: the same, another or a constant."""
    drawn = w.rng.random()
    return [x, x if drawn < 0.1 else _dequantized(w) if drawn < 0.8 else _weight(w, np.array(3))]


def _clip_inputs(w: Writer, x: str) -> list[str]:
    bounds = [w.constant(np.array(bound, np.float32)) for bound in (0, w.rng.choice([6, 12.75, 1e9]))]
    return [x, *bounds[: w.rng.randint(0, 2)]]


def _weighted(w: Writer, x: str, weight: np.ndarray, bias: int) -> list[str]:
    return [x, _weight(w, weight), *([_bias(w, bias)] if bias and w.rng.random() < 0.6 else [])]


def _pad_inputs(w: Writer, x: str) -> list[str]:
    return [x, _ints(w, 0, 0, 1, 1, 0, 0, 1, 1), *([_weight(w, np.array(1))] if w.rng.random() < 0.5 else [])]


KERNEL = np.full((4, 4, 3, 3), 1)
WINDOW = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
PLAIN = (
    "Relu", "Sigmoid", "Softmax", "LeakyRelu", "Exp", "Sqrt", "Sign", "Elu", "Tanh", "Neg", "Abs", "Floor",
    "HardSigmoid", "HardSwish", "Gelu", "Mish", "Identity", "LogSoftmax", "Dropout",
)  # fmt: skip
SAME: Mapping[str, TargetRow] = {
    **dict.fromkeys(PLAIN, (lambda _, x: [x], {})),
    **dict.fromkeys(("Add", "Mul", "Sub", "Div", "Pow", "PRelu", "Max", "Min"), (_second, {})),
    "Clip": (_clip_inputs, {}),
    "MaxPool": (lambda _, x: [x], WINDOW),
    "AveragePool": (lambda _, x: [x], WINDOW),
    "Reshape": (lambda w, x: [x, _ints(w, *IMAGE)], {}),
    "Gather": (lambda w, x: [x, _ints(w, 3, 2, 1, 0)], {"axis": 1}),
    "Where": (lambda w, x: [w.value(BOOL), x, _dequantized(w)], {}),
    "MatMul": (lambda w, x: [x, _weight(w, np.full((6, 6), 2))], {}),
    "Conv": (lambda w, x: _weighted(w, x, KERNEL, 4), {"pads": [1, 1, 1, 1]}),
    "ConvTranspose": (lambda w, x: _weighted(w, x, KERNEL, 4), {"pads": [1, 1, 1, 1]}),
    "BatchNormalization": (lambda w, x: [x, *(_weight(w, np.full(4, 1)) for _ in range(4))], {}),
    "InstanceNormalization": (lambda w, x: [x, *(_weight(w, np.full(4, 1)) for _ in range(2))], {}),
    "LayerNormalization": (lambda w, x: _weighted(w, x, np.full(6, 1), 0), {}),
    "LRN": (lambda _, x: [x], {"size": 3}),
}
"""What stands between DequantizeLinear and QuantizeLinear, with rules of its own and without: inputs and attributes."""

OTHER: Mapping[str, TargetRow] = {
    **dict.fromkeys(("GlobalAveragePool", "Transpose", "ArgMax", "ReduceMean", "Shape"), (lambda _, x: [x], {})),
    **dict.fromkeys(("Less", "CastLike"), (_second, {})),
    "Resize": (lambda w, x: [x, "", _floats(w, 1, 1, 2, 2)], {}),
    "Slice": (lambda w, x: [x, _ints(w, 0), _ints(w, 2), _ints(w, 1)], {}),
    "Pad": (_pad_inputs, {}),
    "Squeeze": (lambda w, x: [x, _ints(w, 0)], {}),
    "TopK": (lambda w, x: [x, _ints(w, 6)], {}),
    "Split": (lambda w, x: [x, _ints(w, 2, 2)], {"axis": 1}),
    "Cast": (lambda _, x: [x], {"to": INT32}),
    "Concat": (lambda w, x: [x, *(_dequantized(w) for _ in range(w.rng.randint(0, 2)))], {"axis": 1}),
    "Gemm": (lambda w, x: _weighted(w, w.node("Flatten", [x]), np.full((144, 8), 1), 8), {}),
    "DepthToSpace": (lambda _, x: [x], {"blocksize": 2}),
    "Einsum": (lambda _, x: [x], {"equation": "abcd->abdc"}),
}
"""The same for what gives another shape or type."""
NO_FLOAT = frozenset({"ArgMax", "Shape", "Less", "TopK"})


def _target(w: Writer, op: str) -> list[str]:
    """One operator on dequantized values; its outputs."""
    inputs, attributes = {**SAME, **OTHER}[op]
    outs = [w.node(op, inputs(w, _dequantized(w)), **attributes)]
    if op in ("TopK", "Split"):
        outs.append(f"{outs[0]}_second")
        w.nodes[-1].output.append(outs[1])
    return outs


def _odd_unit(w: Writer) -> None:
    """An operator with what should stand around it, more, or less."""
    op = w.rng.choice([name for name in (*SAME, *OTHER) if TARGET_SINCE.get(name, 0) <= w.opset])
    for out in _target(w, op):
        last = w.node(w.rng.choice(["Relu", "Clip"]), [out]) if w.rng.random() < 0.2 else out
        behind, kind = w.rng.random(), _kind(w)
        if behind > 0.7 or op in NO_FLOAT:
            _leave(w, op, FLOAT, last)
            continue
        quantized = _converter(w, "QuantizeLinear", [last, *_shared(w, kind)])
        _leave(w, op, kind, quantized)
        if behind < 0.1:  # others read what is quantized
            _leave(w, op, kind, _converter(w, "QuantizeLinear", [last, *_shared(w, kind)]))
        elif behind < 0.2:
            _leave(w, op, FLOAT, w.node("Neg", [last]))
        elif behind < 0.5:
            _leave(w, op, FLOAT, _converter(w, "DequantizeLinear", [quantized, *_shared(w, kind)]))


def _leave(w: Writer, op: str, kind: int, name: str) -> None:
    """Let later nodes read a value where its shape allows that; some are outputs besides."""
    if op not in OTHER:
        w.give(kind, name)
    if op in OTHER or w.rng.random() < 0.1:
        w.ends.append(name)


def _odd_chain(w: Writer) -> None:
    """Conversions one behind the other, the first or last of them without a partner."""
    kind = _kind(w)
    value = w.value(FLOAT)
    for _ in range(w.rng.randint(1, 3)):
        value = _converter(w, "QuantizeLinear", [value, *_shared(w, kind)])
        if w.rng.random() < 0.2:
            _leave(w, "", kind, value)
            return
        value = _converter(w, "DequantizeLinear", [value, *_shared(w, kind)])
    _leave(w, "", FLOAT, value)


def _odd_linear(w: Writer) -> None:
    """An operator of com.microsoft on bytes."""
    kind, x = _bytes(w)
    parameters = _shared(w, kind)
    if len(parameters) < 2 or "" in parameters or kind not in (UINT8, INT8):
        return
    if w.rng.random() < 0.5:
        _, y = _bytes(w)
        op = w.rng.choice(["QLinearAdd", "QLinearMul"])
        out = w.node(op, [x, *parameters, y, *parameters, *parameters], domain="com.microsoft")
    else:
        op = w.rng.choice(["QLinearSigmoid", "QLinearLeakyRelu"])
        out = w.node(op, [x, *parameters, *parameters], domain="com.microsoft")
    _leave(w, "", kind, out)


STEPS: tuple[Callable[[Writer], None], ...] = (
    *(_odd_unit,) * 12, _odd_chain, _odd_chain, _odd_linear, _quantized, _if, _local, _unary, _binary,
)  # fmt: skip


def _grow(w: Writer, steps: int) -> None:
    for _ in range(steps):
        w.rng.choice(STEPS)(w)


def _swish(opset: int) -> onnx.FunctionProto:
    nodes = parsed_nodes("s = Sigmoid (x)  y = Mul (x, s)")
    return helper.make_function("local.functions", "Swish", ["x"], ["y"], nodes, [helper.make_opsetid("", opset)])


def odd_quantization(seed: int) -> onnx.ModelProto:
    """A model of 1 to 14 steps, each of one or a few nodes."""
    rng = random.Random(f"odd {seed}")
    w = Writer(rng, rng.choice(OPSETS), values={FLOAT: ["x"]})
    _grow(w, rng.randint(1, 14))
    used = {name for node in w.nodes for name in node.input}
    ends = [
        helper.make_tensor_value_info(name, kind, IMAGE)
        for kind, names in w.values.items()
        for name in names
        if name not in used and name != "x"
    ]
    given = {end.name for end in ends}
    ends += [onnx.ValueInfoProto(name=name) for name in w.ends if name not in given]
    ends = ends or [helper.make_tensor_value_info(w.nodes[-1].output[0], UINT8, None)]
    graph = helper.make_graph(w.nodes, "g", [helper.make_tensor_value_info("x", FLOAT, IMAGE)], ends, w.weights)
    opsets = [
        helper.make_opsetid("", w.opset), helper.make_opsetid("com.microsoft", 1),
        helper.make_opsetid("local.functions", 1),
    ]  # fmt: skip
    # A model with functions is viewed anew for every question: only where it calls them.
    functions = [_swish(w.opset)] if b"local.functions" in graph.SerializeToString() else []
    return helper.make_model(graph, ir_version=9, opset_imports=opsets, functions=functions)
