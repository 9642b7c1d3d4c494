"""Models that are written with their weights."""

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto

from pipeline.core.errors import ModelError
from pipeline.model.onnx_model import ByteRange, LeanModel
from pipeline.passes.saving import write_model


def lean(folder: Path, length: int) -> LeanModel:
    """A model of one weight that lies in a file."""
    proto = onnx.ModelProto(ir_version=8)
    proto.graph.name = "g"
    tensor = proto.graph.initializer.add(name="w", data_type=TensorProto.UINT8, dims=[length])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    places = {"w": ByteRange(file=folder / "w.bin", offset=2, length=length)}
    return LeanModel(proto=proto, folder=folder, weights=places)


def test_bytes_come_from_where_they_lie(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"..abcd..")
    write_model(lean(tmp_path, 4), tmp_path / "out.onnx")
    (tensor,) = onnx.load(tmp_path / "out.onnx").graph.initializer
    assert (tensor.raw_data, list(tensor.dims), tensor.data_location) == (b"abcd", [4], TensorProto.DEFAULT)


def test_a_weight_that_is_cut_off_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"..ab")
    with pytest.raises(ModelError, match="shorter"):
        write_model(lean(tmp_path, 4), tmp_path / "out.onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["w.bin"]


def test_two_gigabytes_are_too_much(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="2 GiB"):
        write_model(lean(tmp_path, (2 << 30) - 20), tmp_path / "out.onnx")
