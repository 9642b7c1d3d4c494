"""Level basic as a provider sees it: what a session on the CPU alone adds is undone."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pipeline.core.providers import on_any_chip
from pipeline.partition.answer import Optimize, Settings
from tests import onnx_samples
from tests.onnx_samples import parsed_nodes
from tests.partition_samples import answer, model, value


def half_inside(*, declared: bool) -> onnx.ModelProto:
    """A model of f16 with inputs and outputs of f32, as converters with keep_io_types make it."""
    nodes = parsed_nodes("""
        [graph_input_cast0] x_half = Cast <to = 10> (x)  logits = Gemm (x_half, w)
        graph_output_cast_0 = Softmax (logits)  [graph_output_cast0] y = Cast <to = 1> (graph_output_cast_0)""")
    made = model(nodes, [value("x", (1, 4))], ["y"], {"w": np.ones((4, 3), np.float16)})
    if declared:
        made.graph.value_info.append(value("graph_output_cast_0", (1, 3), TensorProto.FLOAT16))
    return made


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("provider", list(on_any_chip()))
def test_half_models_with_float_inputs_and_outputs_are_judged(provider: str, declared: bool, tmp_path: Path) -> None:
    settings = Settings(provider=provider, ort_release=(1, 29))
    plain = answer(half_inside(declared=declared), tmp_path, settings)
    basic = answer(half_inside(declared=declared), tmp_path, settings, Optimize.BASIC)
    assert plain.error is None
    assert basic.error is None, basic.error
    assert sorted(map(sorted, basic.partitions)) == sorted(map(sorted, plain.partitions))


@pytest.mark.parametrize("before", ["Relu", "Identity"])
def test_a_cast_to_the_type_of_its_input_is_gone_at_level_basic(before: str, tmp_path: Path) -> None:
    """A provider is not shown it either, whatever stands before it."""
    nodes = [
        helper.make_node(before, ["x"], ["b"]),
        *parsed_nodes("same = Cast <to = 1> (b)  y = Cast <to = 7> (same)"),
    ]
    settings = Settings(provider="nnapi", ort_release=(1, 23))
    basic = answer(model(nodes, [value("x", (1, 4))], ["y"]), tmp_path, settings, Optimize.BASIC)
    assert [row.op_type for row in basic.decisions] == (["Relu", "Cast"] if before == "Relu" else ["Cast"])


def folded() -> onnx.ModelProto:
    """Convolutions whose normalization is folded: those that read the Cast have no counterpart in the model."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    made: onnx.ModelProto = convert_float_to_float16(onnx_samples.conv_bn(8), keep_io_types=True)
    return made


@pytest.mark.parametrize("provider", list(on_any_chip()))
def test_half_models_whose_nodes_are_fused_are_judged(provider: str, tmp_path: Path) -> None:
    """The input's Cast and the one that the session adds go as a pair; the Cast of the model is put back."""
    settings = Settings(provider=provider, ort_release=(1, 29))
    basic = answer(folded(), tmp_path, settings, Optimize.BASIC)
    assert basic.error is None, basic.error
    claimed = {name for partition in basic.partitions for name in partition}
    plain = answer(folded(), tmp_path, settings)
    assert bool(claimed) == bool(plain.partitions)
    assert claimed >= {"n0", "n1"} or provider not in {"xnnpack", "coreml-mlprogram"}


def test_casts_in_a_row_come_back_together(tmp_path: Path) -> None:
    """To half precision and back: what reads the second of them still does."""
    nodes = parsed_nodes("""
        half = Cast <to = 10> (x)  rounded = Cast <to = 1> (half)  g = Gemm (rounded, w)  h = Cast <to = 10> (g)
        r = Relu (h)  y = Cast <to = 1> (r)""")
    made = model(nodes, [value("x", (1, 4))], ["y"], {"w": np.ones((4, 3), np.float32)})
    settings = Settings(provider="coreml-mlprogram", ort_release=(1, 29))
    plain = answer(made, tmp_path, settings)
    basic = answer(made, tmp_path, settings, Optimize.BASIC)
    assert basic.error is None, basic.error
    assert sorted(map(sorted, basic.partitions)) == sorted(map(sorted, plain.partitions))


def half_in_bodies() -> onnx.ModelProto:
    """An If of f16 with a convolution and its bias in each body: a session on the CPU puts Casts around them there."""

    def body(name: str) -> onnx.GraphProto:
        tensors = [
            numpy_helper.from_array(np.ones((4, 3, 1), np.float16), f"{name}.weight"),
            numpy_helper.from_array(np.ones(4, np.float16), f"{name}.bias"),
        ]
        node = helper.make_node("Conv", ["x", f"{name}.weight", f"{name}.bias"], [f"{name}_y"])
        out = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT16, [1, 4, 8])
        return helper.make_graph([node], name, [], [out], tensors)

    branches = {"then_branch": body("then"), "else_branch": body("else")}
    nodes = [helper.make_node("If", ["which"], ["y"], **branches)]
    takes = [value("x", (1, 3, 8), TensorProto.FLOAT16), value("which", (), TensorProto.BOOL)]
    return model(nodes, takes, ["y"], {})


@pytest.mark.parametrize("provider", list(on_any_chip()))
def test_half_models_with_bodies_are_judged(provider: str, tmp_path: Path) -> None:
    basic = answer(half_in_bodies(), tmp_path, Settings(provider=provider, ort_release=(1, 29)), Optimize.BASIC)
    assert basic.error is None, basic.error
