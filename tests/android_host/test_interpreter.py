"""The fake NNAPI's operations against numpy, and what it refuses."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from device_runner.errors import UnavailableError
from device_runner.host_device import check_host
from tests.android_host.fake_nnapi import FakeModel, compute

try:
    check_host()
except UnavailableError as missing:
    pytest.skip(f"android-host: {missing}", allow_module_level=True)

Array = NDArray[Any]
RNG = np.random.default_rng(5)
IMAGE = RNG.standard_normal((2, 5, 6, 4)).astype(np.float32)
SMALL = settings(max_examples=15, deadline=None)


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


UNARY: dict[str, Any] = {
    "ABS": np.abs, "FLOOR": np.floor, "NEG": np.negative, "SIN": np.sin, "EXP": np.exp, "TANH": np.tanh,
    "RELU": lambda x: np.maximum(x, 0), "RELU1": lambda x: np.clip(x, -1, 1), "RELU6": lambda x: np.clip(x, 0, 6),
    "LOGISTIC": lambda x: 1 / (1 + np.exp(-x)), "DEQUANTIZE": lambda x: x, "RESHAPE": lambda x: x,
}  # fmt: skip
BINARY: dict[str, Any] = {
    "ADD": np.add, "SUB": np.subtract, "MUL": np.multiply, "DIV": np.divide, "MAXIMUM": np.maximum,
    "MINIMUM": np.minimum, "PRELU": lambda a, b: np.where(a < 0, a * b, a),
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_one_operand(name: str) -> None:
    x = floats(3, 4) * 4
    np.testing.assert_allclose(compute(name, [x], x.shape), UNARY[name](x), rtol=2e-6, atol=2e-6)


def test_positive_operands() -> None:
    x = np.abs(floats(7)) + 0.1
    np.testing.assert_allclose(compute("LOG", [x], x.shape), np.log(x), rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(compute("SQRT", [x], x.shape), np.sqrt(x), rtol=2e-6)
    np.testing.assert_allclose(compute("POW", [x, x], x.shape), np.power(x, x), rtol=2e-6)


@pytest.mark.parametrize("name", BINARY)
@given(
    shapes=st.sampled_from([((2, 3), (2, 3)), ((2, 3), (3,)), ((4, 1, 3), (2, 1)), ((1,), (2, 2)), ((3, 1), (1, 5))])
)
@SMALL
def test_broadcasting(name: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = floats(*shapes[0]), floats(*shapes[1])
    want = BINARY[name](a, b)
    arguments: list[Any] = [a, b] if name in ("MAXIMUM", "MINIMUM", "PRELU") else [a, b, 0]
    np.testing.assert_allclose(compute(name, arguments, want.shape), want, rtol=1e-6)


@pytest.mark.parametrize(("code", "low", "high"), [(1, 0, np.inf), (2, -1, 1), (3, 0, 6)])
def test_fused_activations(code: int, low: float, high: float) -> None:
    a, b = floats(9) * 5, floats(9) * 5
    np.testing.assert_allclose(compute("ADD", [a, b, code], (9,)), np.clip(a + b, low, high), rtol=1e-6)


def test_elu_softmax_and_select() -> None:
    x = floats(3, 5)
    np.testing.assert_allclose(compute("ELU", [x, 0.5], x.shape), np.where(x < 0, 0.5 * np.expm1(x), x), atol=1e-6)
    for axis in (0, 1, -1):
        powers = np.exp(x - x.max(axis, keepdims=True))
        want = powers / powers.sum(axis, keepdims=True)
        np.testing.assert_allclose(compute("SOFTMAX", [x, 1.0, axis], x.shape), want, atol=1e-6)
    assert (compute("LESS", [x, np.zeros(1, np.float32)], x.shape, np.bool_) == (x < 0)).all()


@given(order=st.permutations(range(4)))
@SMALL
def test_transpose(order: list[int]) -> None:
    want = IMAGE.transpose(order)
    assert (compute("TRANSPOSE", [IMAGE, np.array(order, np.int32)], want.shape) == want).all()


@given(axis=st.integers(-4, 3), data=st.data())
@SMALL
def test_concatenation_split_and_gather(axis: int, data: st.DataObject) -> None:
    whole = compute("CONCATENATION", [IMAGE, IMAGE, axis], np.concatenate([IMAGE, IMAGE], axis).shape)
    assert (whole == np.concatenate([IMAGE, IMAGE], axis)).all()
    indices = data.draw(st.lists(st.integers(0, IMAGE.shape[axis] - 1), min_size=1, max_size=4))
    taken = np.take(IMAGE, indices, axis)
    assert (compute("GATHER", [IMAGE, axis, np.array(indices, np.int32)], taken.shape) == taken).all()
    with FakeModel() as model:
        source = model.input(whole)
        halves = [np.empty_like(IMAGE), np.empty_like(IMAGE)]
        targets = [model.operand("TENSOR_FLOAT32", IMAGE.shape) for _ in halves]
        model.operation("SPLIT", [source, model.scalar(axis), model.scalar(2)], targets)
        assert model.run(dict(zip(targets, halves, strict=True))) == 0
    assert all((half == IMAGE).all() for half in halves)


@given(data=st.data())
@SMALL
def test_slices_and_pads(data: st.DataObject) -> None:
    begin = [data.draw(st.integers(0, size - 1)) for size in IMAGE.shape]
    sizes = [data.draw(st.integers(1, size - at)) for size, at in zip(IMAGE.shape, begin, strict=True)]
    window = tuple(slice(at, at + size) for at, size in zip(begin, sizes, strict=True))
    arguments = [IMAGE, np.array(begin, np.int32), np.array(sizes, np.int32)]
    assert (compute("SLICE", arguments, sizes) == IMAGE[window]).all()
    pads = [(data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))) for _ in range(4)]
    want = np.pad(IMAGE, pads, constant_values=1.5)
    assert (compute("PAD_V2", [IMAGE, np.array(pads, np.int32), 1.5], want.shape) == want).all()


def test_strided_slice() -> None:
    want = IMAGE[:, 4:0:-2, 1::3, 2]
    ints = [np.array(values, np.int32) for values in ([0, 4, 1, 2], [2, 0, 6, 3], [1, -2, 3, 1])]
    assert (compute("STRIDED_SLICE", [IMAGE, *ints, 0b0001, 0b0001, 0b1000], want.shape) == want).all()


def convolve(
    x: Array, weights: Array, bias: Array, strides: tuple[int, int], pads: tuple[int, ...], groups: int
) -> Array:
    """NHWC by definition; pads are left, right, top, bottom; weights [out, h, w, in per group]."""
    x = np.pad(x, ((0, 0), (pads[2], pads[3]), (pads[0], pads[1]), (0, 0)))
    n, h, w, depth = x.shape
    out, fh, fw, each = weights.shape
    rows, columns = (h - fh) // strides[1] + 1, (w - fw) // strides[0] + 1
    y = np.zeros((n, rows, columns, out), np.float64)
    for channel in range(out):
        first = channel // (out // groups) * each
        for row in range(rows):
            for column in range(columns):
                top, left = row * strides[1], column * strides[0]
                part = x[:, top : top + fh, left : left + fw, first : first + each]
                y[:, row, column, channel] = (part * weights[channel]).sum((1, 2, 3)) + bias[channel]
    assert depth == each * groups
    return y


@given(
    strides=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    groups=st.sampled_from([1, 2]),
    nchw=st.booleans(),
)
@SMALL
def test_convolutions(strides: tuple[int, int], pads: tuple[int, ...], groups: int, nchw: bool) -> None:
    weights, bias = floats(6, 3, 2, 4 // groups), floats(6)
    want = convolve(IMAGE, weights, bias, strides, pads, groups)
    x = np.ascontiguousarray(IMAGE.transpose(0, 3, 1, 2)) if nchw else IMAGE
    shape = [want.shape[i] for i in ((0, 3, 1, 2) if nchw else (0, 1, 2, 3))]
    name, extra = ("CONV_2D", []) if groups == 1 else ("GROUPED_CONV_2D", [groups])
    got = compute(name, [x, weights, bias, *pads, *strides, *extra, 0, nchw], shape)
    np.testing.assert_allclose(got.transpose(0, 2, 3, 1) if nchw else got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("multiplier", [1, 3])
def test_depthwise_convolution(multiplier: int) -> None:
    weights, bias = floats(1, 3, 3, 4 * multiplier), floats(4 * multiplier)
    grouped = weights[0].transpose(2, 0, 1)[..., None]
    want = convolve(IMAGE, grouped, bias, (1, 1), (1, 1, 1, 1), 4)
    got = compute("DEPTHWISE_CONV_2D", [IMAGE, weights, bias, 1, 1, 1, 1, 1, 1, multiplier, 0, False], want.shape)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_implicit_padding_is_explicit_padding() -> None:
    weights, bias = floats(3, 3, 3, 4), floats(3)
    same = compute("CONV_2D", [IMAGE, weights, bias, 1, 2, 2, 0], (2, 3, 3, 3))
    # 5 rows, stride 2, filter 3: 2 cells in all; 6 columns: 1 cell, which lies behind.
    want = compute("CONV_2D", [IMAGE, weights, bias, 0, 1, 1, 1, 2, 2, 0, False], (2, 3, 3, 3))
    assert (same == want).all()


def test_pools_do_not_count_padding() -> None:
    ones = np.ones((1, 3, 3, 1), np.float32)
    pads = [1, 1, 1, 1, 1, 1, 3, 3, 0]
    assert (compute("AVERAGE_POOL_2D", [ones, *pads], (1, 3, 3, 1)) == 1).all()
    assert (compute("MAX_POOL_2D", [-ones, *pads], (1, 3, 3, 1)) == -1).all()


def test_fully_connected_mean_and_lrn() -> None:
    x, weights, bias = floats(3, 6), floats(5, 6), floats(5)
    np.testing.assert_allclose(
        compute("FULLY_CONNECTED", [x, weights, bias, 0], (3, 5)), x @ weights.T + bias, atol=1e-5
    )
    mean = compute("MEAN", [IMAGE, np.array([1, -2], np.int32), 0], (2, 4))
    np.testing.assert_allclose(mean, IMAGE.mean((1, 2)), atol=1e-6)
    got = compute("LOCAL_RESPONSE_NORMALIZATION", [IMAGE, 1, 1.5, 0.25, 0.75], IMAGE.shape)
    squares = np.pad(IMAGE**2, ((0, 0), (0, 0), (0, 0), (1, 1)))
    sums = squares[..., :-2] + squares[..., 1:-1] + squares[..., 2:]
    np.testing.assert_allclose(got, IMAGE * (1.5 + 0.25 * sums) ** -0.75, atol=1e-6)


def test_depth_to_space_and_resizes() -> None:
    want = IMAGE.reshape(2, 5, 6, 2, 2, 1).transpose(0, 1, 3, 2, 4, 5).reshape(2, 10, 12, 1)
    assert (compute("DEPTH_TO_SPACE", [IMAGE, 2], want.shape) == want).all()
    twice = compute("RESIZE_NEAREST_NEIGHBOR", [IMAGE, 12, 10, False], (2, 10, 12, 4))
    assert (twice == IMAGE.repeat(2, 1).repeat(2, 2)).all()
    line = np.array([0, 1, 2, 3], np.float32).reshape(1, 1, 4, 1)
    asymmetric = compute("RESIZE_BILINEAR", [line, 8, 1, False, False, False], (1, 1, 8, 1)).ravel()
    corners = compute("RESIZE_BILINEAR", [line, 7, 1, False, True, False], (1, 1, 7, 1)).ravel()
    half = compute("RESIZE_BILINEAR", [line, 8, 1, False, False, True], (1, 1, 8, 1)).ravel()
    np.testing.assert_allclose(asymmetric, [0, 0.5, 1, 1.5, 2, 2.5, 3, 3])
    np.testing.assert_allclose(corners, np.linspace(0, 3, 7), atol=1e-6)
    np.testing.assert_allclose(half, [0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3])


@given(values=st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=20), zero=st.integers(0, 255))
@SMALL
def test_quantize_rounds_half_to_even_and_saturates(values: list[float], zero: int) -> None:
    x = np.array(values, np.float32)
    with FakeModel() as model:
        target = model.operand("TENSOR_QUANT8_ASYMM", x.shape, 0.25, zero)
        out = np.zeros(x.shape, np.uint8)
        model.operation("QUANTIZE", [model.input(x)], [target])
        assert model.run({target: out}) == 0
    assert (out == np.clip(np.rint(x / np.float32(0.25)) + zero, 0, 255)).all()


@pytest.mark.parametrize("name", ["CONV_2D", "GROUPED_CONV_2D", "DEPTHWISE_CONV_2D"])
def test_a_bias_beside_scales_of_channels_has_theirs_by_the_inputs(name: str) -> None:
    """Its own scale is 0 then: NNAPI's reference of each of these operations."""
    x = RNG.integers(0, 255, (1, 3, 3, 4), np.uint8)
    depth = {"CONV_2D": 4, "GROUPED_CONV_2D": 2, "DEPTHWISE_CONV_2D": 1}[name]
    weights = RNG.integers(-128, 127, (4, 1, 1, depth)).astype(np.int8)
    scales = np.array([0.5, 0.25, 1, 2], np.float32)
    bias = np.array([100, -2000, 300, 4], np.int32)
    depthwise = depth == 1
    with FakeModel() as model:
        shown = weights.reshape(1, 1, 1, 4) if depthwise else weights
        inputs = [model.input(x, 0.5, 3), model.per_channel(shown, scales, 3 if depthwise else 0)]
        extra = {"CONV_2D": [], "GROUPED_CONV_2D": [2], "DEPTHWISE_CONV_2D": [1]}[name]
        inputs += [model.constant(bias), *map(model.scalar, (0, 0, 0, 0, 1, 1, *extra, 0))]
        target = model.operand("TENSOR_QUANT8_ASYMM", (1, 3, 3, 4), 4.0, 128)
        out = np.zeros((1, 3, 3, 4), np.uint8)
        model.operation(name, inputs, [target])
        assert model.run({target: out}) == 0
    want = convolve((x.astype(np.float64) - 3) * 0.5, weights * scales[:, None, None, None], bias * scales * 0.5,
                    (1, 1), (0, 0, 0, 0), 4 // depth)  # fmt: skip
    assert (out == np.clip(np.rint(want / 4) + 128, 0, 255)).all()


def test_a_bias_beside_scales_of_channels_with_a_scale_of_its_own_is_refused() -> None:
    with FakeModel() as model:
        weights, scales = np.ones((1, 1, 1, 1), np.int8), np.ones(1, np.float32)
        inputs = [model.input(np.ones((1, 1, 1, 1), np.uint8), 0.5, 3), model.per_channel(weights, scales, 0)]
        inputs += [model.constant(np.ones(1, np.int32), 0.5), *map(model.scalar, (0, 0, 0, 0, 1, 1, 0))]
        target = model.operand("TENSOR_QUANT8_ASYMM", (1, 1, 1, 1), 4.0, 128)
        model.operation("CONV_2D", inputs, [target])
        assert model.run({target: np.zeros((1, 1, 1, 1), np.uint8)}) == FAILED


BAD = 4
FAILED = 5


@pytest.mark.parametrize(
    ("name", "operands", "shape"),
    [
        ("ADD", [floats(2, 3), floats(4), 0], (2, 3)),
        ("RELU", [floats(6)], (5,)),
        ("TRANSPOSE", [floats(2, 3), np.array([0, 0], np.int32)], (2, 3)),
        ("GATHER", [floats(2, 3), 0, np.array([2], np.int32)], (1, 3)),
        ("SLICE", [floats(4), np.array([3], np.int32), np.array([2], np.int32)], (2,)),
        ("PAD_V2", [floats(4), np.array([[1, 0]], np.int32), 0.0], (4,)),
        ("CONV_2D", [IMAGE, floats(3, 3, 3, 5), floats(3), 0, 0, 0, 0, 1, 1, 0], (2, 3, 4, 3)),
        ("CONV_2D", [IMAGE, floats(3, 3, 3, 4), floats(3), 0, 0, 0, 0, 0, 1, 0], (2, 3, 4, 3)),
        ("FULLY_CONNECTED", [floats(3, 6), floats(5, 7), floats(5), 0], (3, 5)),
        ("SOFTMAX", [floats(3), 1.0, 5], (3,)),
        ("DEPTH_TO_SPACE", [IMAGE, 3], (2, 15, 18, 4)),
        ("CONCATENATION", [floats(2, 3), floats(2, 2), 0], (4, 3)),
    ],
)
def test_what_does_not_fit_fails_and_reads_nothing_outside(
    name: str, operands: list[Any], shape: tuple[int, ...]
) -> None:
    with pytest.raises(RuntimeError, match=f"code {FAILED}"):
        compute(name, operands, shape)


def test_sizes_whose_product_overflows_are_refused() -> None:
    with FakeModel() as model:
        model.operand("TENSOR_FLOAT32", [2**31, 2**31, 8])
        assert model.codes[-1] == BAD


def test_wrong_models_are_refused() -> None:
    with FakeModel() as model:
        x = model.input(floats(3))
        assert model.operation("RELU", [x], [99]) == BAD
        assert model.call("Model_addOperation", model.handle, 5000, 0, None, 0, None) == BAD
        model.scalar(3)
        short = np.zeros(1, np.float32)
        model.set_value(x, short)
        assert model.codes[-1] == BAD
