"""An axis without a size is open however its file says so, for whoever reads it."""

from pathlib import Path

import pytest

from pipeline.dataset.guess import inputs_of_file
from pipeline.model.onnx_model import load_model
from pipeline.model.signature import own_inputs
from pipeline.model.sources import SourceModel
from tests.onnx_samples import linear, save


@pytest.mark.parametrize(
    ("size", "read"), [(-1, None), (-5, None), (None, None), ("N", "N"), ("?", "?"), (0, 0), (3, 3)]
)
def test_a_model_and_an_artifact_say_the_same_of_an_axis(
    size: int | str | None, read: int | str | None, tmp_path: Path
) -> None:
    model = linear(4)
    axis = model.graph.input[0].type.tensor_type.shape.dim[0]
    axis.Clear()
    if isinstance(size, int):
        axis.dim_value = size
    elif size:
        axis.dim_param = size
    path = save(model, tmp_path / "m.onnx")
    takes = inputs_of_file(path)
    assert [info.shape for info in takes] == [(read, 4)]
    assert takes == own_inputs(load_model(SourceModel(path=str(path)), tmp_path).proto)
