"""Level basic as a provider sees it: what a session on the CPU alone adds is undone."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from pipeline.partition.answer import Optimize, Provider, Settings
from tests.partition_samples import answer, model, value


def half_inside(*, declared: bool) -> onnx.ModelProto:
    """A model of f16 with inputs and outputs of f32, as converters with keep_io_types make it."""
    nodes = [
        helper.make_node("Cast", ["x"], ["x_half"], to=TensorProto.FLOAT16, name="graph_input_cast0"),
        helper.make_node("Gemm", ["x_half", "w"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["graph_output_cast_0"]),
        helper.make_node("Cast", ["graph_output_cast_0"], ["y"], to=TensorProto.FLOAT, name="graph_output_cast0"),
    ]
    made = model(nodes, [value("x", (1, 4))], ["y"], {"w": np.ones((4, 3), np.float16)})
    if declared:
        made.graph.value_info.append(value("graph_output_cast_0", (1, 3), TensorProto.FLOAT16))
    return made


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("provider", list(Provider))
def test_half_models_with_float_inputs_and_outputs_are_judged(
    provider: Provider, declared: bool, tmp_path: Path
) -> None:
    settings = Settings(provider=provider, ort_release=(1, 29))
    plain = answer(half_inside(declared=declared), tmp_path, settings)
    basic = answer(half_inside(declared=declared), tmp_path, settings, Optimize.BASIC)
    assert plain.error is None
    assert basic.error is None, basic.error
    assert sorted(map(sorted, basic.partitions)) == sorted(map(sorted, plain.partitions))
