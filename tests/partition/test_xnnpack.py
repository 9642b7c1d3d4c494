"""XNNPACK's rules on small models, where no label of the ground truth (test_recorded_claims.py) tells."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from pipeline.partition.answer import Settings
from tests.onnx_samples import parsed_nodes
from tests.partition_samples import answer, claims, model, one, ones, quantized, value
from tests.values import present


def xnnpack(release: tuple[int, int] = (1, 23)) -> Settings:
    """XNNPACK as a release has it."""
    return Settings(provider="xnnpack", ort_release=release)


WEIGHT = {"w": ones(2, 4, 3, 3)}


def test_factors_of_gemm_are_refused(tmp_path: Path) -> None:
    constants = {"b": ones(4, 5), "c": ones(5)}
    taken, refused = (
        answer(one("Gemm", (3, 4), constants=constants, alpha=alpha), tmp_path, xnnpack()).decisions[-1]
        for alpha in (1.0, 2.0)
    )
    assert taken.claimed
    assert (refused.claimed, refused.code) == (False, "attr")
    assert "alpha is 2.0" in (refused.reason or "")
    assert refused.remedy


@pytest.mark.parametrize(("opset", "claimed"), [(6, False), (11, True), (22, True)])
def test_opset_window(opset: int, claimed: bool, tmp_path: Path) -> None:
    made = one("Softmax", (2, 3), opset=opset, axis=1)
    assert bool(claims(made, tmp_path, xnnpack())) is claimed


SHORT = one(
    "Resize", inputs=["x", "", "s"], constants={"s": np.array([2], np.float32)}, mode="linear", axes=[3], opset=18
)
GEMM = one("Gemm", (3, 4), constants={"b": ones(4, 5)})


@pytest.mark.parametrize(
    ("made", "words", "claimed"),
    [
        (GEMM, "has no input C", False),
        (SHORT, "has 1 scales", False),
        (one("Softmax", axis=-2, opset=11), "reads outside", True),
    ],
)
def test_what_ends_the_process_is_foreseen(made: onnx.ModelProto, words: str, claimed: bool, tmp_path: Path) -> None:
    given = answer(made, tmp_path, xnnpack())
    assert words in (present(given.load).error or "")
    assert bool(given.partitions) is claimed


def test_gemm_without_c_is_claimed_from_release_1_27_on(tmp_path: Path) -> None:
    assert claims(GEMM, tmp_path, xnnpack((1, 27))) == [{"y"}]
    scalar = one("Gemm", (3, 4), constants={"b": ones(4, 5), "c": np.float32(1)})
    assert claims(scalar, tmp_path, xnnpack((1, 27))) == []


def conv_relu(*, shown: bool) -> onnx.ModelProto:
    """Conv and Relu, with the value between them perhaps a graph output."""
    nodes = parsed_nodes("y0 = Conv (x, w)  y1 = Relu (y0)")
    return model(nodes, [value("x", (1, 4, 8, 8))], ["y0", "y1"] if shown else ["y1"], WEIGHT)


def test_fused_activations_lose_what_others_read_until_release_1_28(tmp_path: Path) -> None:
    for shown, release, fails in ((False, (1, 27), False), (True, (1, 27), True), (True, (1, 28), False)):
        load = present(answer(conv_relu(shown=shown), tmp_path, xnnpack(release)).load)
        assert load.estimate
        assert (load.error is not None) is fails
        assert load.partitions == (0 if fails else 1)


def quantized_softmax(scale: float) -> onnx.ModelProto:
    """A QDQ Softmax whose output has a scale of its own."""
    made = quantized(parsed_nodes("r = Softmax <axis = -1> (d)"))
    made.graph.node[2].input[1] = "out"
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(scale, np.float32), "out"))
    return made


@pytest.mark.parametrize(
    ("scale", "claimed", "fails"), [(1 / 256, True, False), (1 / 255, True, True), (0.1, False, False)]
)
def test_softmax_scale(scale: float, claimed: bool, fails: bool, tmp_path: Path) -> None:
    given = answer(quantized_softmax(scale), tmp_path, xnnpack())
    assert bool(given.partitions) is claimed
    assert (present(given.load).error is not None) is fails


@pytest.mark.parametrize(
    ("op", "kind", "bounds", "abi", "fails"),
    [
        ("Conv", np.float16, True, "arm64-v8a", True),
        ("AveragePool", np.float16, True, "arm64-v8a", True),
        ("Conv", np.float16, False, "arm64-v8a", False),
        ("Conv", np.float16, True, "x86_64", False),
        ("Conv", np.float32, True, "arm64-v8a", False),
    ],
)
def test_a_clip_in_half_precision_makes_no_session_on_arm(
    op: str, kind: Any, bounds: bool, abi: str, fails: bool, tmp_path: Path
) -> None:
    """Measured with the arm64 library of android:1.29.0: xnn_create_convolution2d_nhwc_fp16 returned 2."""
    made_of = {"w": np.ones((4, 4, 3, 3), kind)} if op == "Conv" else {}
    limits = {"low": np.array(0, kind), "high": np.array(6, kind)} if bounds else {}
    extra: dict[str, Any] = {} if made_of else {"kernel_shape": [2, 2]}
    nodes = [
        helper.make_node(op, ["x", *made_of], ["c"], name="before", **extra),
        helper.make_node("Clip" if bounds else "Relu", ["c", *limits], ["y"], name="clip"),
    ]
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    made = model(nodes, [value("x", (1, 4, 6, 6), element)], ["y"], {**made_of, **limits})
    settings = Settings(provider="xnnpack", ort_release=(1, 29), abi=abi)
    load = present(answer(made, tmp_path, settings).load)
    assert ("as 32-bit floats" in (load.error or "")) is fails


def test_half_precision_is_claimed_but_by_androids_library_for_x86(tmp_path: Path) -> None:
    """docs/facts/android_library.md, numerics: compiled for ARM and desktop x86; labels hold more operators."""
    made = one("Softmax", axis=-1, kind=TensorProto.FLOAT16)
    phones = {abi: Settings(provider="xnnpack", abi=abi, android=True) for abi in ("arm64-v8a", "x86_64", "x86")}
    taken = {abi: claims(made, tmp_path, settings) for abi, settings in phones.items()}
    assert taken == {"arm64-v8a": [{"y"}], "x86_64": [], "x86": []}
    assert claims(made, tmp_path, Settings(provider="xnnpack")) == [{"y"}]
    (decision,) = answer(made, tmp_path, phones["x86_64"]).decisions
    assert "without half precision" in str(decision.reason)
