"""The wire scanner changes where weights lie and nothing else, and says so when bytes are no message."""

import contextlib

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from pipeline.model.onnx_model import lean_model
from pipeline.model.wire import WireError, encode_field, encode_varint, fields, read_varint
from tests.onnx_samples import conv_bn, linear, make, parsed_nodes, value


@given(st.integers(0, 2**64 - 1))
def test_varints_come_back(number: int) -> None:
    data = encode_varint(number)
    assert read_varint(data, 0, len(data)) == (number, len(data))
    with pytest.raises(WireError):
        read_varint(data[:-1], 0, len(data) - 1)


def read_back(lean: bytes, data: bytes) -> onnx.ModelProto:
    """Parse a lean message and put every external tensor's bytes back from `data`."""
    model = onnx.ModelProto()
    model.ParseFromString(lean)
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            assert entries["location"] == "model.onnx"
            start = int(entries["offset"])
            tensor.raw_data = data[start : start + int(entries["length"])]
            del tensor.external_data[:]
            tensor.ClearField("data_location")
    return model


@pytest.mark.parametrize("model", [linear(), conv_bn()], ids=["linear", "conv_bn"])
@pytest.mark.parametrize("minimum", [0, 1000, 1 << 30])
def test_weights_lie_where_the_message_says(model: onnx.ModelProto, minimum: int) -> None:
    data = model.SerializeToString()
    lean = lean_model(memoryview(data), "model.onnx", minimum)
    assert read_back(lean, data) == model
    assert (lean == data) == (minimum == 1 << 30)


@given(
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40), st.sampled_from(["raw", "float", "double"])
)
def test_every_way_of_storing_floats_keeps_its_values(values: list[float], way: str) -> None:
    kind = TensorProto.DOUBLE if way == "double" else TensorProto.FLOAT
    array = np.array(values, np.float64 if way == "double" else np.float32)
    tensor = numpy_helper.from_array(array, "w") if way == "raw" else helper.make_tensor("w", kind, array.shape, array)
    node = helper.make_node("Identity", ["w"], ["y"])
    data = make([node], [], [value("y", [len(values)], kind)], [tensor]).SerializeToString()
    model = read_back(lean_model(data, "model.onnx", 0), data)
    np.testing.assert_array_equal(numpy_helper.to_array(model.graph.initializer[0]), array)


@pytest.mark.parametrize(
    "tensor",
    [
        helper.make_tensor("w", TensorProto.INT32, [3], [1, 2, 300]),
        helper.make_tensor("w", TensorProto.INT64, [2], [1, -1]),
        TensorProto(name="w", data_type=TensorProto.STRING, dims=[1], string_data=[b"text"]),
        TensorProto(name="w", data_type=TensorProto.FLOAT16, dims=[1], float_data=[1.0]),
        TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], float_data=[1.0, 2.0], raw_data=bytes(8)),
    ],
    ids=["int32", "int64", "string", "misplaced", "stored twice"],
)
def test_what_is_not_one_plain_range_stays_in_the_message(tensor: TensorProto) -> None:
    data = make(parsed_nodes("y = Identity (w)"), [], [value("y", None)], [tensor]).SerializeToString()
    assert lean_model(data, "model.onnx", 0) == data


@given(st.binary(max_size=200))
def test_any_bytes_give_a_message_or_an_error(data: bytes) -> None:
    with contextlib.suppress(WireError):
        assert len(lean_model(data, "model.onnx", 0)) <= 3 * len(data) + 100


@given(st.floats(0, 1, exclude_max=True))
def test_a_message_cut_inside_its_graph_is_none(part: float) -> None:
    data = linear(8).SerializeToString()
    graph = next(field for field in fields(data, 0, len(data)) if field.number == 7)
    cut = graph.value + int(part * (graph.end - graph.value))
    with pytest.raises(WireError):
        lean_model(data[:cut], "model.onnx", 0)


def test_groups_and_field_zero_are_refused() -> None:
    for data in (b"\x0b\x0c", b"\x00\x01", b"\x0f"):
        with pytest.raises(WireError):
            list(fields(data, 0, len(data)))
    assert [f.number for f in fields(encode_field(7, b"abc"), 0, 5)] == [7]
