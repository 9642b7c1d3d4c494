"""Streams: what an original gives in steps whose inputs come from test data."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from device_runner.spec import Stream
from pipeline.check.reference import make_reference
from pipeline.config.tables import InputValue, Range
from pipeline.core import ort_session
from pipeline.dataset import Dataset
from pipeline.model.sources import SourceModel


def test_a_scalar_input_comes_from_the_data_of_each_step(tmp_path: Path) -> None:
    values = {"x": [1], "gain": [], "h": [1], "hn": [1]}
    infos = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in values.items()}
    nodes = [helper.make_node("Mul", ["x", "gain"], ["xg"]), helper.make_node("Add", ["xg", "h"], ["hn"])]
    graph = helper.make_graph(nodes, "g", [infos["x"], infos["gain"], infos["h"]], [infos["hn"]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (tmp_path / "sums.onnx").write_bytes(model.SerializeToString())
    data = tmp_path / "data"
    data.mkdir()
    for number in range(3):
        gain = np.array(number, np.float32)
        np.savez(data / f"{number}.npz", x=np.ones(1, "f"), gain=gain, h=np.zeros(1, "f"))
    reference = make_reference(
        SourceModel(path=str(tmp_path / "sums.onnx")), {}, Dataset(test_data=str(data)), str(tmp_path / "reference"),
        str(tmp_path), stream=Stream(steps=3, states={"hn": "h"}),
    )  # fmt: skip
    assert reference.stream is not None
    (outputs,) = reference.stream.outputs
    assert np.fromfile(outputs.file, "<f4").tolist() == [0.0, 1.0, 3.0]


def sequence(folder: Path, kind: str, declared: InputValue | None) -> Any:
    """What an input of a type gets in 200 steps without test data, and what the stream sums up of it; () for none."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    sums ({kind}[1, 8] x, float[1, 8] h) => (float[1, 8] hn) {{
        given = Cast<to = 1>(x)
        hn = Add(given, h)
    }}"""
    onnx.save(onnx.parser.parse_model(text), folder / "sums.onnx")
    data = Dataset(inputs={"x": declared} if declared is not None else {})
    reference = make_reference(
        SourceModel(path=str(folder / "sums.onnx")), {}, data, str(folder / "reference"), str(folder),
        stream=Stream(steps=200, states={"hn": "h"}),
    )  # fmt: skip
    assert reference.stream is not None
    (outputs,) = reference.stream.outputs
    sums = np.fromfile(outputs.file, "<f4").reshape(200, 8)
    if not reference.stream.stream.sequences:
        assert len({tuple(row) for row in np.diff(sums, axis=0)}) == 1  # the same in each step
        return ()
    (tensor,) = reference.stream.stream.sequences
    values = np.fromfile(tensor.file, np.dtype(tensor.dtype.value)).reshape(200, 8)
    np.testing.assert_allclose(sums, np.cumsum(values.astype(np.float64), axis=0), rtol=1e-4, atol=1e-4)
    return values


@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [("int16", -30_000, 30_000), ("uint8", 5, 250), ("int8", -120, 120), ("float16", -0.9, 0.9), ("double", -0.9, 0.9)],
)
def test_samples_and_pixels_are_of_their_whole_range_in_each_step(
    tmp_path: Path, kind: str, least: float, most: float
) -> None:
    values = sequence(tmp_path, kind, None)
    assert values.min() < least
    assert values.max() > most
    assert len({tuple(row) for row in values}) == 200


def test_a_declared_range_is_kept_in_each_step_of_any_type(tmp_path: Path) -> None:
    values = sequence(tmp_path, "int64", Range(low=3, high=9))
    assert set(values.ravel().tolist()) == {3, 4, 5, 6, 7, 8}


@pytest.mark.parametrize(("kind", "declared"), [("int64", None), ("int16", 7), ("float", 0.5), ("int64", 16_000)])
def test_indices_and_declared_values_stay_as_they_are(tmp_path: Path, kind: str, declared: float | None) -> None:
    assert len(sequence(tmp_path, kind, declared)) == 0


def test_a_reference_of_open_sizes_takes_one_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (tmp_path / "open.onnx").write_bytes(model.SerializeToString())
    opened = []
    make_session = ort_session.make_session

    def counted(*given: Any) -> Any:
        opened.append(given)
        return make_session(*given)

    monkeypatch.setattr("pipeline.core.ort_session.make_session", counted)
    reference = make_reference(
        SourceModel(path=str(tmp_path / "open.onnx")), {}, Dataset(), str(tmp_path / "r"), str(tmp_path)
    )
    assert reference.inputs[0].shape == (1, 4)
    assert len(opened) == 1
