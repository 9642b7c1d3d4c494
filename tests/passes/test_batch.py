"""Other batch sizes: real models compared sample by sample, and operators that mix samples, each refused."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from pipeline.core.errors import ConfigError, ModelError
from pipeline.passes.base import NotApplicable
from pipeline.passes.single.batch_size import RULES
from tests.onnx_samples import parsed_nodes
from tests.partition_samples import model, value
from tests.passes.real_models import assert_same, extract, run

REAL = [
    "mnist.op7", "blazeface.base", "conformer_block.base", "convnext_tiny_slice.op20", "einsum_attention.base",
    "face_embedding.qdq_u8s8pc", "vit_tiny.base", "mlp_tabular.ir3", "yolov8n.fp16",
    pytest.param("unet.hw", marks=pytest.mark.nightly),
]  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_a_batch_gives_what_its_samples_give(name: str, tmp_path: Path) -> None:
    path = extract(name, tmp_path)
    result = run(path, tmp_path, "batch:size=3")
    assert result.model.proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 3
    assert_same(path, result, tmp_path)


@pytest.mark.long
def test_shape_computations_are_folded_first(tmp_path: Path) -> None:
    path = extract("vit_tiny.batch", tmp_path)
    with pytest.raises(NotApplicable, match="fold-shapes"):
        run(path, tmp_path, "batch:size=2")
    result = run(path, tmp_path, "fixed-dimensions:rest=1", "fold-shapes", "batch:size=2")
    assert_same(path, result, tmp_path)


def test_a_batch_may_lie_on_another_axis(tmp_path: Path) -> None:
    path = extract("lstm_classifier.base", tmp_path)
    with pytest.raises(NotApplicable, match=r"h0\[0\] is 4"):
        run(path, tmp_path, "batch:size=2")
    steps = ("fixed-dimensions:sizes=T=7", "batch:size=2:axes=h0=1+c0=1")
    result = run(path, tmp_path, *steps)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in result.model.proto.graph.input}
    assert shapes == {"tokens": [2, 7], "h0": [4, 2, 128], "c0": [4, 2, 128]}
    assert_same(path, result, tmp_path)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mlp_tabular.dyn", "scale is that of the whole batch"),
        ("yolov8n_nms.base", "boxes of all samples"),
        ("swin_slice.base", "it may mix samples"),
        ("mobilenet_v2.qop", "no rule"),
        ("distilbert.base", "fold-shapes"),
    ],
)
def test_what_cannot_be_proven_is_refused_with_the_node(name: str, says: str, tmp_path: Path) -> None:
    path = extract(name, tmp_path)
    with pytest.raises(NotApplicable, match=says) as caught:
        run(path, tmp_path, "batch:size=2")
    assert "that gives" in caught.value.why


@pytest.mark.parametrize(
    ("step", "error", "says"),
    [
        ("batch:size=1", NotApplicable, "the batch size is 1"),
        ("batch:size=0", ConfigError, "not positive"),
        ("batch:size=2:axes=x=0", ConfigError, "no input 'x'"),
        ("batch:size=2:axes=Input3=7", ConfigError, "no axis 7"),
        ("batch:size=2:axes=Input3=-1", NotApplicable, "no batch"),
    ],
)
def test_wrong_options_are_refused(step: str, error: type[ModelError], says: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=says):
        run(extract("mnist.op12", tmp_path), tmp_path, step)


def one(
    op_type: str,
    dims: tuple[int, ...] = (1, 4, 6, 6),
    *inputs: str,
    constants: dict[str, Any] | None = None,
    opset: int = 17,
    outputs: tuple[str, ...] = ("y",),
    **attributes: Any,
) -> onnx.ModelProto:
    node = helper.make_node(op_type, ["x", *inputs], list(outputs), **attributes)
    return model([node], [value("x", dims)], ["y"], constants, opset=opset)


def i64(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def f32(*shape: int) -> Any:
    return np.random.default_rng(1).random(shape, np.float32)


MIXING = {
    "reduce over samples": one("ReduceMean", axes=[0], keepdims=1),
    "reduce over everything": one("ReduceSum"),
    "softmax over samples": one("Softmax", (1, 4), axis=0),
    "old softmax over samples": one("Softmax", (1, 4), axis=0, opset=11),
    "transposed product": one("Gemm", (1, 4), "w", constants={"w": f32(1, 3)}, transA=1),
    "a constant for each sample": one("Add", (2, 4), "w", constants={"w": f32(2, 4)}),
    "flattened to one axis": one("Flatten", (1, 4), axis=0),
    "first sample": one("Gather", (2, 4), "i", constants={"i": i64(0)}, axis=0),
    "some samples": one("Slice", (2, 4), "a", "b", "c", constants={"a": i64(0), "b": i64(1), "c": i64(0)}),
    "reversed samples": one(
        "Slice", (2, 4), "a", "b", "c", "d",
        constants={"a": i64(-1), "b": i64(-(1 << 40)), "c": i64(0), "d": i64(-1)},
    ),
    "padded samples": one("Pad", (1, 4), "p", constants={"p": i64(1, 0, 0, 0)}),
    "sums over samples": one("CumSum", (2, 4), "a", constants={"a": np.array(0, np.int64)}),
    "largest over samples": one("ArgMax", (2, 4), axis=0),
    "split samples": one("Split", (2, 4), outputs=("y", "z"), axis=0),
    "repeated samples": one("Tile", (2, 4), "r", constants={"r": i64(2, 1)}),
    "joined with samples": one("Concat", (2, 4), "x", axis=0),
    "channels among samples": one("Reshape", (2, 6), "s", constants={"s": i64(3, 4)}),
    "indices of pooling": one("MaxPool", outputs=("y", "z"), kernel_shape=[2, 2]),
    "samples as channels": model(
        parsed_nodes("t = Transpose <perm = [1, 0, 2, 3]> (x)  y = Conv (t, w)"),
        [value("x", (1, 1, 6, 6))], ["y"], {"w": f32(2, 1, 3, 3)},
    ),
    "scales for each sample": one(
        "QuantizeLinear", (2, 4), "s", "z", constants={"s": f32(2) + 1, "z": np.zeros(2, np.uint8)}, axis=0
    ),
    "products of samples": model(
        parsed_nodes("t = Transpose <perm = [1, 0]> (x)  y = MatMul (x, t)"),
        [value("x", (2, 4))], ["y"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXING)
def test_operators_that_mix_samples_are_refused(name: str, tmp_path: Path) -> None:
    onnx.save(MIXING[name], tmp_path / "m.onnx")
    with pytest.raises(NotApplicable, match="cannot be changed safely"):
        run(tmp_path / "m.onnx", tmp_path, "batch:size=4")


SAFE = {
    "reduce": one("ReduceMean", axes=[2, 3], keepdims=0),
    "reduce by input": one("ReduceSum", (2, 3, 4), "a", constants={"a": i64(-1)}, keepdims=0),
    "softmax": one("Softmax", (2, 4), axis=-1),
    "old softmax": one("Softmax", (2, 4, 3), axis=1, opset=11),
    "merged and back": model(
        parsed_nodes("a = Reshape (x, s)  b = MatMul (a, w)  y = Reshape (b, t)"),
        [value("x", (1, 5, 4))], ["y"], {"s": i64(5, 4), "w": f32(4, 3), "t": i64(1, 5, 3)},
    ),
    "token for all": model(
        parsed_nodes("y = Concat <axis = 1> (w, x)"), [value("x", (1, 3, 4))], ["y"], {"w": f32(1, 1, 4)}
    ),
    "sizes": one("Resize", (1, 2, 3, 3), "", "", "s", constants={"s": i64(1, 2, 6, 6)}, mode="nearest"),
    "scales": one("Resize", (2, 2, 3, 3), "", "s", constants={"s": np.array([1, 1, 2, 2], np.float32)}),
    "expand": one("Expand", (1, 1, 4), "s", constants={"s": i64(1, 3, 4)}),
    "expand of a rank more": one("Expand", (1, 4), "s", constants={"s": i64(3, 1, 4)}),
    "table": one("Gather", (2, 5), "i", constants={"i": i64(1, 3)}, axis=1),
    "einsum": one("Einsum", (2, 3, 4), "w", constants={"w": f32(4, 5)}, equation="bij,jk->bki"),
    "squeeze": one("Squeeze", (2, 1, 4), "a", constants={"a": i64(1)}),
    "unsqueeze": one("Unsqueeze", (2, 4), "a", constants={"a": i64(0)}),
    "pad": one("Pad", (2, 4), "p", constants={"p": i64(0, 1, 0, 2)}),
    "tile": one("Tile", (2, 4), "r", constants={"r": i64(1, 3)}),
    "split": one("Split", (2, 4), outputs=("y", "z"), axis=1),
    "arg": one("ArgMax", (2, 4, 3), axis=1, keepdims=0),
    "two to six": one("Reshape", (2, 6), "s", constants={"s": i64(2, 3, 2)}),
    "rnn": model(
        parsed_nodes("""y = GRU <hidden_size = 3> (x, w, r, "", "", h)"""), [value("x", (5, 1, 4))], ["y"],
        {"w": f32(1, 9, 4), "r": f32(1, 9, 3), "h": f32(1, 1, 3)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAFE)
def test_operators_that_keep_samples_apart_are_followed(name: str, tmp_path: Path) -> None:
    onnx.save(SAFE[name], tmp_path / "m.onnx")
    axes = ":axes=x=1" if name == "rnn" else ""
    result = run(tmp_path / "m.onnx", tmp_path, f"batch:size=4{axes}")
    assert_same(tmp_path / "m.onnx", result, tmp_path)


def test_every_rule_is_of_an_operator_that_there_is() -> None:
    assert [name for name in RULES if not onnx.defs.has(name)] == []
