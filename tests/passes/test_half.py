"""Half precision for GPUs: how its error is modelled, and what stays float for it."""

import math
import zipfile
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pipeline.check.reference import make_reference
from pipeline.check.result import Reference
from pipeline.dataset import Dataset
from pipeline.model.onnx_model import LoadedModel, load_model
from pipeline.model.sources import SourceModel
from pipeline.passes.base import NotApplicable, PassContext
from pipeline.passes.half import GpuHalfOptions, Part, as_gpus_compute, chosen_parts, fp16_gpu, gpu_loss
from pipeline.passes.quantize import HalfOptions, float_types, fp16
from tests.ort_models import parsed
from tests.passes.quantized_models import context, feeds, run, saved

A, B, C = ("a",), ("b",), ("c",)


def summed(losses: dict[Part, float], factor: float = 1.0) -> object:
    """What parts lose together, by chance or more than that."""

    def loss(parts: Collection[Part]) -> float:
        return math.hypot(*(losses[part] for part in parts)) * (factor if len(parts) > 1 else 1.0)

    return loss


@pytest.mark.parametrize(
    ("losses", "factor", "kept"),
    [
        ({A: 0.1, B: 0.1, C: 0.2}, 1.0, (A, B, C)),
        ({A: 0.9, B: 0.1, C: 0.2}, 1.0, (B, C)),
        ({A: 0.9, B: 0.1, C: 0.2}, 3.0, (B,)),
        ({A: 0.9, B: 0.8, C: 2.0}, 1.0, ()),
    ],
)
def test_parts_that_lose_least_are_in_half(losses: dict[Part, float], factor: float, kept: tuple[Part, ...]) -> None:
    found, _ = chosen_parts(tuple(losses), summed(losses, factor), 1 / 3)  # type: ignore[arg-type]
    assert found == kept


def deep(first: float = 1.0) -> onnx.ModelProto:
    """A sum over 512 numbers near `first`, whose small difference from a constant is the output; then two products."""
    random = np.random.default_rng(0)
    weights = (random.standard_normal((512, 64)) * 0.01 + first).astype(np.float32)
    return parsed(
        "g (float[1, 512] x) => (float[1, 64] y) "
        "{ a = Abs (x)  s = MatMul (a, w)  m = ReduceMean <axes = [1], keepdims = 1> (s)  d = Sub (s, m) "
        "  r = Relu (d)  t = MatMul (r, v)  u = Tanh (t)  y = MatMul (u, v) }",
        w=weights, v=(random.standard_normal((64, 64)) / 8).astype(np.float32),
    )  # fmt: skip


def test_what_a_gpu_loses_is_modelled_and_stays_float(tmp_path: Path) -> None:
    model = saved(deep(), tmp_path)
    samples = feeds(model, 1)
    warnings: list[str] = []
    asked = replace(context(tmp_path, samples), warn=warnings.append)
    made = fp16_gpu(model, GpuHalfOptions(), asked)
    (warning,) = warnings
    assert "parts stay float" in warning
    kinds = {tensor.name: tensor.data_type for tensor in made.proto.graph.initializer}
    assert kinds["w"] == onnx.TensorProto.FLOAT
    assert onnx.TensorProto.FLOAT16 in float_types(made.proto)
    (wanted,), (given,) = run(model, samples[0]), run(made, samples[0])
    assert np.abs(wanted - given).max() < 0.02 * np.abs(wanted).max()


def test_a_model_without_such_sums_is_plain_half_precision(tmp_path: Path) -> None:
    model = saved(parsed("g (float[1, 8] x) => (float[1, 8] y) { y = Mul (x, w) }", w=np.ones(8, np.float32)), tmp_path)
    warnings: list[str] = []
    made = fp16_gpu(model, GpuHalfOptions(), replace(context(tmp_path, feeds(model, 1)), warn=warnings.append))
    assert not warnings
    assert {tensor.data_type for tensor in made.proto.graph.initializer} == {onnx.TensorProto.FLOAT16}


def test_a_model_that_half_precision_breaks_is_refused(tmp_path: Path) -> None:
    model = saved(parsed("g (float[1, 8] x) => (float[1, 8] y) { a = Mul (x, w)  y = Sin (a) }",
                         w=np.full(8, 1e4, np.float32)), tmp_path)  # fmt: skip
    with pytest.raises(NotApplicable, match="too much on a GPU") as refused:
        fp16_gpu(model, GpuHalfOptions(), context(tmp_path, feeds(model, 1)))
    assert "test data" in refused.value.remedy


def test_what_cannot_be_modelled_is_plain_half_precision(tmp_path: Path) -> None:
    """Here a name of the modelled graph is there already; of large models it may have more bytes than fit."""
    ones = np.ones((8, 8), np.float32)
    made = parsed("g (float[1, 8] x) => (float[1, 8] y) { a = MatMul (x, w)  y = MatMul (a, v) }", w=ones, v=ones)
    made.graph.node[0].output[0] = made.graph.node[1].input[0] = "y/exact"
    model = saved(made, tmp_path)
    warnings: list[str] = []
    half = fp16_gpu(model, GpuHalfOptions(), replace(context(tmp_path, feeds(model, 1)), warn=warnings.append))
    (warning,) = warnings
    assert "could not be computed" in warning
    assert {tensor.data_type for tensor in half.proto.graph.initializer} == {onnx.TensorProto.FLOAT16}


def test_without_data_it_is_measured_on_what_checks_run(tmp_path: Path) -> None:
    model = saved(deep(), tmp_path)
    asked: list[int] = []

    def usual() -> dict[str, object]:
        asked.append(1)
        return feeds(model, 1)[0]

    fp16_gpu(model, GpuHalfOptions(), PassContext(folder=tmp_path, where="model", usual=usual))
    assert asked == [1]


def test_several_nodes_that_stay_float_read_a_value_of_half_precision(tmp_path: Path) -> None:
    """The converter of wheels before 1.32 casts it for each of them, by one name, which no session takes."""
    graph = (
        "g (float[1, 8] x) => (float[1, 8] y) "
        "{ a = MatMul (x, w)  b = Tanh (a)  [left] c = Exp (b)  [right] d = Sin (b)  y = Add (c, d) }"
    )
    model = saved(parsed(graph, w=np.eye(8, dtype=np.float32)), tmp_path)
    made = fp16(model, HalfOptions(exclude=("left", "right")), context(tmp_path))
    assert [node.op_type for node in made.proto.graph.node if "cast_to_fp32" in node.name] == ["Cast"]
    samples = feeds(model, 1)
    (wanted,), (given,) = run(model, samples[0]), run(made, samples[0])
    assert np.abs(wanted - given).max() < 0.02 * np.abs(wanted).max()


def test_nodes_that_stay_float_are_not_rounded(tmp_path: Path) -> None:
    from pipeline.partition.types import infer

    model = saved(deep(), tmp_path)
    exact = as_gpus_compute(model.proto, infer(model.proto), ())
    sample = feeds(model, 1)[0]
    np.testing.assert_array_equal(run(model, sample)[0], run(saved(exact, tmp_path), sample)[0])


def referred(model: LoadedModel, folder: Path) -> Reference:
    return make_reference(model.source, {}, Dataset(), str(folder / "reference"), str(folder))


@pytest.mark.parametrize("keep_io", [True, False])
def test_a_model_in_half_precision_that_a_gpu_computes_wrong_is_told_with_the_node(
    tmp_path: Path, keep_io: bool
) -> None:
    made = fp16(saved(deep(0.5), tmp_path), HalfOptions(keep_io=keep_io), context(tmp_path))
    model = saved(made.proto, tmp_path)
    loss = gpu_loss(model, referred(model, tmp_path), "m")
    assert loss is not None
    assert loss.code == "webgpu-sums"
    (node,) = (node for node in model.proto.graph.node if "s" in (name.partition("_")[0] for name in node.output))
    assert f"MatMul {node.name!r}" in loss.why
    assert "precision `gpu`" in loss.remedy


def test_outputs_that_show_nothing_are_not_told(tmp_path: Path) -> None:
    made = fp16(saved(deep(0.5), tmp_path), HalfOptions(), context(tmp_path))
    model = saved(made.proto, tmp_path)
    unsteady = msgspec.structs.replace(referred(model, tmp_path), unsteady=("y",))
    assert gpu_loss(model, unsteady, "m") is None


def test_a_model_that_is_not_finite_anywhere_is_not_told(tmp_path: Path) -> None:
    weights = np.full((8, 8), np.inf, np.float16)
    model = saved(parsed("g (float16[1, 8] x) => (float16[1, 8] y) { y = MatMul (x, w) }", w=weights), tmp_path)
    assert gpu_loss(model, referred(model, tmp_path), "m") is None


WRONG_IN_HALF = ("mobilenet_v1.fp16",)


@pytest.mark.long
@pytest.mark.parametrize("name", [
    "conformer_block.fp16_op17", "face_embedding.fp16", "mlp_tabular.fp16", "mnist.fp16", "mobilenet_v1.fp16",
    "mobilenet_v2.fp16io",
    *(pytest.param(f"{name}.fp16", marks=pytest.mark.nightly) for name in ("mobilenet_v2", "unet", "yolov8n")),
])  # fmt: skip
def test_real_models_in_half_precision_that_a_gpu_computed_wrong_are_told(
    oracle: Path, tmp_path: Path, name: str
) -> None:
    """As the genuine library computed them: docs/gpu.md."""
    with zipfile.ZipFile(oracle / "real.zip") as packed:
        model = load_model(SourceModel(path=packed.extract(f"{name}.onnx", tmp_path)), tmp_path)
    assert bool(gpu_loss(model, referred(model, tmp_path), name)) == (name in WRONG_IN_HALF)


@pytest.mark.parametrize(
    ("constant", "words"),
    [
        (np.array([3e6, -0.5], np.float32), ("1 of its 2 numbers, up to 3e+06, become 65504", "--keep-float 'last'")),
        (np.array(1e-9, np.float32), ("its largest number, 1e-09, becomes 5.96e-08", "--keep-float 'last'")),
        (np.array([-1e9, 0], np.float32), ()),
        (np.array(np.finfo("f").max), ()),
        (np.array([0.5, 1e-12], np.float32), ()),
    ],
)
def test_constants_that_half_precision_cannot_hold_are_named(
    tmp_path: Path, constant: np.ndarray[Any, Any], words: tuple[str, ...]
) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="first"),
        helper.make_node("Mul", ["h", "s"], ["y"], name="last")
    ]  # fmt: skip
    tensors = [numpy_helper.from_array(np.ones((3, 2), np.float32), "w"), numpy_helper.from_array(constant, "s")]
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)]
        for name, shape in (("x", [1, 3]), ("y", [1, 2]))
    )
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    warnings: list[str] = []
    fp16(saved(made, tmp_path), HalfOptions(), replace(context(tmp_path), warn=warnings.append))
    assert all(word in "".join(warnings) for word in ("'s'", *words)) if words else not warnings
