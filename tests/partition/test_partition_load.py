"""What is foreseen of making a session; the failures are those of a real build of 1.23.2."""

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from tests.partition_samples import NNAPI_NCHW, answer, chain, model, quantized, value


def test_claims_that_build_are_counted(tmp_path: Path) -> None:
    load = answer(chain("Relu", "Erf", "Relu"), tmp_path, NNAPI_NCHW).load
    assert load is not None
    assert (load.partitions, load.error, load.estimate) == (2, None, False)


def test_quantized_concat_of_two_model_inputs_cannot_be_built(tmp_path: Path) -> None:
    """NNAPI learns a u8 input's scale from its consumer's first place only (ep_rules D.7)."""
    nodes = [
        helper.make_node("DequantizeLinear", ["x1", "scale", "zero"], ["e"]),
        helper.make_node("Concat", ["d", "e"], ["r"], axis=1),
    ]
    made = quantized(nodes)
    made.graph.input.append(value("x1", (1, 4, 6, 6), TensorProto.UINT8))
    given = answer(made, tmp_path, NNAPI_NCHW)
    assert given.claimed == 4
    assert given.load is not None
    assert "'x1' is u8" in (given.load.error or "")
    assert given.load.remedy


def test_gemm_without_quantize_behind_it_ends_the_session(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["e"]),
        helper.make_node("Gemm", ["d", "e"], ["y"]),
    ]
    constants = {"w": np.ones((4, 5), np.uint8), "s": np.float32(1), "z": np.uint8(0)}
    made = model(nodes, [value("x", (3, 4), TensorProto.UINT8)], ["y"], constants)
    given = answer(made, tmp_path, NNAPI_NCHW)
    assert given.partitions == ()
    assert given.load is not None
    assert "no session is made" in (given.load.error or "")


def test_functions_the_cpu_cannot_run_bring_a_second_round(tmp_path: Path) -> None:
    load = answer(chain("Relu", "HardSwish"), tmp_path, NNAPI_NCHW).load
    assert load is not None
    assert load.rounds == (1, 1)
