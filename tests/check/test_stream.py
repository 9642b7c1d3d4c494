"""Streams: what an original gives in steps whose inputs come from test data."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from device_runner.spec import Stream
from pipeline.check.reference import make_reference
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
