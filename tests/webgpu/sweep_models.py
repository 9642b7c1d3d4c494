"""What the sweep of WebGPU runs: variants of Conv, chains of nodes, ONNX's tests of operators, archives."""

import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.ground_truth import ORACLE
from tests.ort_models import parsed

NODE_TEST = "node.onnx"
"""The name of a model whose inputs lie beside it."""


def conv_models() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Conv and ConvTranspose by channels, groups, kernels and dimensions."""
    channels = (1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 14, 16, 18, 20, 24, 30, 36, 40, 48, 50)
    pairs = [(a, b, g) for a, b in product(channels, channels) for g in (1, 2, 3, 4, 6, 8, a)
             if a % g == 0 and b % g == 0 and (g > 1 or (a * 7 + b) % 5 == 0)]  # fmt: skip
    for number, (features, outputs, group) in enumerate(sorted(set(pairs))):
        kernel = (3, 1, 2)[number % 3]
        spatial = 1 if number % 4 == 3 else 2
        yield (
            f"conv/{features}_{outputs}_g{group}_k{kernel}_{spatial}d",
            _windowed("Conv", (features, *[7] * spatial), (outputs, features // group, *[kernel] * spatial), group),
        )
    for features, outputs, group in ((4, 6, 1), (6, 6, 2), (12, 12, 2), (9, 4, 1), (8, 8, 8), (3, 8, 1), (12, 24, 4)):
        for spatial, kernel in ((1, 3), (2, 2), (2, 3)):
            yield (
                f"convtranspose/{features}_{outputs}_g{group}_k{kernel}_{spatial}d",
                _windowed(
                    "ConvTranspose",
                    (features, *[6] * spatial),
                    (features, outputs // group, *[kernel] * spatial),
                    group,
                ),
            )


CHAIN = "(float[1, 4, 6, 6] x, {extra}) => ({output} y) {{ {nodes} }}"
BEFORE = """
u8 | uint8[1, 4, 6, 6] q | d = DequantizeLinear (q, s, z)
s8 | int8[1, 4, 6, 6] q | d = DequantizeLinear (q, s, z)
i32 | int32[1, 4, 6, 6] q | d = DequantizeLinear (q, s)
u8cast | uint8[1, 4, 6, 6] q | d = Cast <to = 1> (q)
u8last | uint8[1, 6, 6, 4] q | e = DequantizeLinear (q, s, z) d = Transpose <perm = [0, 3, 1, 2]> (e)
u8relu | uint8[1, 4, 6, 6] q | e = DequantizeLinear (q, s, z) d = Relu (e)
i64cast | int64[1, 4, 6, 6] q | d = Cast <to = 1> (q)
"""
"""What gives a layer its input, by name: the model's input and the nodes."""
BETWEEN = """
conv | c = Conv <pads = [1, 1, 1, 1]> (D, w)
pool | c = AveragePool <kernel_shape = [2, 2]> (D)
transposed | c = ConvTranspose (D, v)
norm | c = BatchNormalization (D, m, m, m, m)
largest | c = GlobalMaxPool (D)
instance | c = InstanceNormalization (D, m, m)
"""
"""Layers that compute in a layout; D is their input."""
BEHIND = """
argmax | int64 | y = ArgMax <axis = 1> (c)
argmax0 | int64 | y = ArgMax <axis = 1, keepdims = 0> (c)
argmin3 | int64 | y = ArgMin <axis = 3, keepdims = 0> (c)
greater | bool | y = Greater (c, t)
not | bool | g = Greater (c, t) y = Not (g)
u8 | uint8 | a = Abs (c) y = Cast <to = 2> (a)
i64 | int64 | y = Cast <to = 7> (c)
i32 | int32 | y = Cast <to = 6> (c)
bool | bool | y = Cast <to = 9> (c)
i64i32 | int32 | a = ArgMax <axis = 1> (c) y = Cast <to = 6> (a)
where | float | g = Greater (c, t) y = Where (g, c, t)
mask | float | g = Greater (c, t) h = Cast <to = 1> (g) y = Mul (c, h)
given | float | y = Where (k, c, t)
both | bool | g = Less (c, t) y = And (g, k)
last | uint8 | a = Abs (c) b = Transpose <perm = [0, 2, 3, 1]> (a) y = Cast <to = 2> (b)
squeezed | bool | g = Greater (c, t) y = Squeeze (g, zero)
sliced | bool | g = Greater (c, t) y = Slice (g, zero, one)
flat | bool | g = Greater (c, t) y = Flatten (g)
reshaped | int64 | a = ArgMax <axis = 1> (c) y = Reshape (a, line)
sum | float | y = ReduceSum (c, one)
quantized | uint8 | y = QuantizeLinear (c, s, z8)
softsign | float | y = Softsign (c)
isnan | bool | y = IsNaN (c)
shape | int64 | y = Shape (c)
equal | bool | a = ArgMax <axis = 1> (c) y = Equal (a, n)
resized | uint8 | a = Abs (c) r = Resize (a, , f) y = Cast <to = 2> (r)
tiled | bool | g = Greater (c, t) y = Tile (g, four)
expanded | bool | g = Greater (c, t) y = Expand (g, wide)
concat | bool | g = Greater (c, t) l = Less (c, t) y = Concat <axis = 1> (g, l)
plain | float | y = Relu (c)
topk | int64 | best, y = TopK <axis = 1> (c, two)
onehot | float | p = ReduceMax <axes = [1]> (c) e = Equal (c, p) y = Cast <to = 1> (e)
"""
"""What comes behind a layer, by name: the type of the output and the nodes."""
BEHIND_ALL = ("argmax", "greater", "i64", "u8", "where", "plain", "given")
"""Of these, what comes behind layers other than a Conv."""


def _split(table: str) -> Iterator[list[str]]:
    """The rows of a table as text."""
    yield from (line.split(" | ") for line in table.strip().splitlines())


def chain_models() -> Iterator[tuple[str, onnx.ModelProto]]:
    """What makes a value for a layout, what computes in it, and what comes behind, some of all combinations."""
    drawn = np.random.default_rng(3)
    constants = {
        "w": drawn.standard_normal((8, 4, 3, 3)).astype("f4"), "v": drawn.standard_normal((4, 8, 2, 2)).astype("f4"),
        "m": np.array([0.5, 1, 2, 0.25], "f4"), "t": np.array(0.1, "f4"), "s": np.array(0.02, "f4"),
        "zero": np.array([0], "i8"), "one": np.array([1], "i8"), "two": np.array([2], "i8"), "n": np.array(2, "i8"),
        "line": np.array([-1], "i8"), "f": np.array([1, 1, 2, 2], "f4"), "four": np.array([1, 2, 1, 1], "i8"),
        "wide": np.array([2, 1, 1, 1], "i8"), "z8": np.array(128, "u1"),
    }  # fmt: skip
    for kind, layer in _split(BETWEEN):
        for name, output, nodes in _split(BEHIND):
            if kind != "conv" and name not in BEHIND_ALL:
                continue
            extra = "bool[1, 1, 6, 6] k" if kind in ("conv", "norm", "instance") else "bool[1, 1, 1, 1] k"
            text = CHAIN.format(extra=extra, output=output, nodes=f"{layer} {nodes}".replace("D", "x"))
            yield f"chain/{kind}_{name}", _with(text, constants)
        for name, extra, nodes in _split(BEFORE):
            text = CHAIN.format(extra=extra, output="float", nodes=f"{nodes} {layer} y = Relu (c)".replace("(D", "(d"))
            yield (
                f"chain/{name}_{kind}",
                _with(text, constants | {"z": np.array(3, "i1" if name == "s8" else "u1")}),
            )


def _with(text: str, constants: Mapping[str, Any]) -> onnx.ModelProto:
    """The model of a text with those constants that it reads."""
    read = {name for name in constants if re.search(rf"\b{name}\b", text.partition("{")[2])}
    return parsed(f"g {text}", 17, **{name: constants[name] for name in read})


def _windowed(op_type: str, shape: Sequence[int], weights: Sequence[int], group: int) -> onnx.ModelProto:
    drawn = np.random.default_rng(0).standard_normal(weights).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x", "w"], ["y"], group=group)], "g",
        [helper.make_tensor_value_info("x", 1, [1, *shape])], [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(drawn, "w")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


MADE = {"convs": conv_models, "chains": chain_models}


def models(names: Iterable[str], folder: Path) -> Iterator[tuple[str, Path]]:
    """The models of these sets with their names."""
    for name in names:
        if name in MADE:
            for model_name, model in MADE[name]():
                path = folder / f"{model_name.replace('/', '.')}.onnx"
                onnx.save(model, path)
                yield model_name, path
        elif name == "nodes":
            yield from _node_tests(folder)
        else:
            with zipfile.ZipFile(ORACLE / f"{name}.zip") as packed:
                members = sorted(member for member in packed.namelist() if member.endswith(".onnx"))
                packed.extractall(folder, members)
            yield from ((member.removesuffix(".onnx"), folder / member) for member in members)


def _node_tests(folder: Path) -> Iterator[tuple[str, Path]]:
    """ONNX's own tests of operators, each with its inputs beside it."""
    from onnx.backend.test.case.node import collect_testcases

    for case in sorted(collect_testcases(None), key=lambda case: case.name):
        inputs, _ = case.data_sets[0] if case.data_sets else ((), ())
        if case.model is None or not all(isinstance(value, np.ndarray) for value in inputs):
            continue
        place = folder / case.name
        place.mkdir()
        onnx.save(case.model, place / NODE_TEST)
        np.savez(place / "inputs.npz", *inputs)
        yield f"node/{case.name}", place / NODE_TEST
