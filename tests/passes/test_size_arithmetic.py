"""Half precision leaves the arithmetic of sizes and positions in 32 bits: sizes beyond 2,048 stay what they are."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pipeline.passes.quantize import HalfOptions, fp16
from pipeline.passes.size_arithmetic import size_arithmetic
from tests.ort_models import parsed
from tests.passes.quantized_models import context, run, saved, sqnr

W = np.eye(8, dtype=np.float32)

RESIZED_BY_SIZES = """
g (float[1, 1, h, 8] x) => (float[p, q, r, t] y) {
  a = MatMul (x, w)  s = Shape (a)  f = Cast <to = 1> (s)  m = Mul (f, by)  d = Floor (m)  i = Cast <to = 7> (d)
  y = Resize <mode = "nearest"> (a, , , i) }
"""
RESIZED_BY_SCALES = """
g (float[1, 1, h, 8] x) => (float[p, q, r, t] y) {
  a = MatMul (x, w)  s = Shape (a)  f = Cast <to = 1> (s)  t = Add (f, three)  scales = Div (t, f)
  y = Resize <mode = "nearest"> (a, , scales) }
"""
WINDOWS = """
g (float[1, 1, h, 8] x) => (float[p, q, r, t] y) {
  a = MatMul (x, w)  s = Shape (a)  h1 = Gather (s, two)  f = Cast <to = 1> (h1)  d = Div (f, three)
  c = Ceil (d)  n = Mul (c, three)  more = Sub (n, f)  i = Cast <to = 7> (more)  u = Unsqueeze (i, zero)
  pads = Concat <axis = 0> (z2, z1, z3, u, z1)  p = Pad (a, pads)  y = Reshape (p, rows) }
"""
POSITIONS = """
g (float[1, 1, h, 8] x) => (float[p, q, r, t] y) {
  a = MatMul (x, w)  s = Shape (a)  n = Gather (s, two)  r = Range (i0, n, i1)  f = Cast <to = 1> (r)
  t = Unsqueeze (f, one1)  angle = Mul (t, rates)  e = Sin (angle)  y = Add (a, e) }
"""
FLOAT_RANGE = """
g (float[1, 1, h, 8] x) => (float[p, q, r, t] y) {
  a = MatMul (x, w)  s = Shape (a)  n = Gather (s, two)  f = Cast <to = 1> (n)  r = Range (f0, f, f1)
  t = Unsqueeze (r, one1)  angle = Mul (t, rates)  e = Cos (angle)  y = Mul (a, e) }
"""
ONES = """
g (float[1, 1, h, 8] x) => (float[p, q, r, t] y) {
  a = MatMul (x, w)  s = Shape (a)  n = Gather (s, two1)  o = ConstantOfShape (n)  q = Add (o, f1)  z = NonZero (q)
  k = Squeeze (z, zero)  f = Cast <to = 1> (k)  t = Unsqueeze (f, one1)  angle = Mul (t, rates)  e = Sin (angle)
  y = Add (a, e) }
"""
SHARED = """
g (float[1, 1, h, 8] x) => (float[p, q, r, t] y) {
  b = MatMul (x, w)  a = Mul (b, third)  s = Shape (a)  f = Cast <to = 1> (s)  d = Mul (f, third)  r = Round (d)
  one = Max (r, f1)  i = Cast <to = 7> (one)  y = Resize <mode = "nearest"> (a, , , i) }
"""
CONSTANTS = """
g (float[1, 1, h, 8] x) => (float[p, q, r, t] y) {
  a = MatMul (x, w)  s = Shape (a)  f = Cast <to = 1> (s)  by7 = Constant <value = float {0.7}> ()
  d = Mul (f, by7)  r = Ceil (d)  i = Cast <to = 7> (r)  y = Resize <mode = "nearest"> (a, , , i) }
"""
LENGTHS = """
g (float[1, h, 8] x) => (float[1, h, 8] y, int64[1] n) {
  a = MatMul (x, w)  p = Sigmoid (a)  q = Add (p, f1)  c = Ceil (q)  t = ReduceSum <keepdims = 0> (c, axes)
  n = Cast <to = 7> (t)  y = Relu (a) }
"""
PATTERNS = {name: value for name, value in globals().items() if name.isupper() and "=> (" in str(value)}


def constants() -> dict[str, Any]:
    floats = {"three": 3.0, "f0": 0.0, "f1": 1.0, "third": 1 / 3}
    whole = {"two": 2, "i0": 0, "i1": 1}
    vectors = {
        "zero": [0], "one1": [1], "two1": [2], "z1": [0], "z2": [0, 0], "z3": [0, 0, 0], "rows": [1, -1, 3, 8],
        "axes": [1, 2],
    }  # fmt: skip
    return {
        "w": W, "by": np.array([1, 1, 1.001, 1], np.float32), "rates": np.array([1, 0.5, 0.25, 0.1] * 2, np.float32),
        **{name: np.array(value, np.float32) for name, value in floats.items()},
        **{name: np.array(value, np.int64) for name, value in whole.items()},
        **{name: np.array(value, np.int64) for name, value in vectors.items()},
    }  # fmt: skip


def made(text: str) -> onnx.ModelProto:
    graph = onnx.parser.parse_graph(text)
    read = {name for node in graph.node for name in node.input}
    graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in constants().items() if name in read
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("rows", [2051, 3333, 5003])
@pytest.mark.parametrize("name", PATTERNS)
def test_sizes_beyond_2048_are_those_of_float(tmp_path: Path, name: str, rows: int) -> None:
    model = saved(made(PATTERNS[name]), tmp_path)
    half = fp16(model, HalfOptions(), context(tmp_path))
    onnx.checker.check_model(half.proto, full_check=True)
    shape = (1, rows, 8) if name == "LENGTHS" else (1, 1, rows, 8)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    wanted, given = run(model, {"x": x}), run(half, {"x": x})
    assert [array.shape for array in given] == [array.shape for array in wanted]
    assert sqnr(wanted, given) > 50
    weight = next(tensor for tensor in half.proto.graph.initializer if tensor.name == "w")
    assert weight.data_type == TensorProto.FLOAT16, "the rest is in half precision"


def test_in_a_branch_they_stay_float_too(tmp_path: Path) -> None:
    inner = onnx.parser.parse_graph(
        "b () => (float[1, 1, m, 8] t) { s = Shape (a)  f = Cast <to = 1> (s)  k = Mul (f, by)  d = Floor (k) "
        'i = Cast <to = 7> (d)  t = Resize <mode = "nearest"> (a, , , i) }'
    )
    other = onnx.parser.parse_graph("c () => (float[1, 1, m, 8] e) { e = Relu (a) }")
    model = made("g (float[1, 1, h, 8] x, bool c) => (float[1, 1, m, 8] y) { a = MatMul (x, w) }")
    model.graph.node.append(helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=other))
    model.graph.initializer.append(numpy_helper.from_array(constants()["by"], "by"))
    loaded = saved(model, tmp_path)
    half = fp16(loaded, HalfOptions(), context(tmp_path))
    sample = {"x": np.ones((1, 1, 3333, 8), np.float32), "c": np.array(True)}
    (wanted,), (given,) = run(loaded, sample), run(half, sample)
    assert given.shape == wanted.shape == (1, 1, 3336, 8)


def test_what_computes_data_is_none() -> None:
    assert (
        size_arithmetic(parsed("g (float[1, 8] x) => (float[1, 8] y) { a = MatMul (x, w)  y = Mul (a, a) }", w=W)) == []
    )
    large = np.ones((300, 64), np.float32)  # learned queries that are repeated for each sample are weights
    queries = parsed(
        "g (float[b, 8] x) => (float[p, q, r] y) { [s] s = Shape (x)  [q] q = Expand (e, s2)  [m] y = MatMul (q, q2) }",
        e=large, s2=np.array([1, 300, 64]), q2=np.ones((64, 8), np.float32),
    )  # fmt: skip
    assert size_arithmetic(queries) == ["s"]
