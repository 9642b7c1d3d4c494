"""Every form over the real architectures of the ground truth: a model that runs, or a reason before the work."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.model.onnx_model import LoadedModel
from pipeline.passes.base import NotApplicable
from pipeline.passes.registry import parse_step, run_passes
from tests.ground_truth import ORACLE
from tests.passes.quantized_models import context, load, run

STEPS = (
    "static-qdq:per_channel=true",
    "static-qdq:activations=s8:method=entropy",
    "static-qdq:activations=u16",
    "static-qdq:per_channel=true:dense_weights=u8:op_types=Conv+Relu+Clip+Add+Gemm",
    "static-qdq:activations=s8:per_channel=true:op_types=Conv+ConvTranspose+Relu+Clip+MaxPool+Resize",
    "qoperator:weights=u8",
    "qoperator:per_channel=true",
    "dynamic-int8",
    "dynamic-int8:per_channel=true:weights=u8:op_types=MatMul+Conv+Gemm",
    "weight-only",
    "weight-only:bits=8:symmetric=false:block=64",
    "fp16",
    "fp16:keep_io=false",
)
SOME = (
    "fsrcnn.base",
    "mlp_tabular.ir3",
    "lstm_classifier.op11",
    "mnist.op7",
)
"""Small ones of different kinds: super-resolution, IR 3, recurrent, opset 7."""
DTYPES = {1: np.float32, 2: np.uint8, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16}
QUANTIZED, HALF = (".q", ".nopost_q", ".dyn"), (".fp16",)


def names() -> list[str]:
    """All models of the archive."""
    with zipfile.ZipFile(ORACLE / "real.zip") as archive:
        return sorted(name.removesuffix(".onnx") for name in archive.namelist() if name.endswith(".onnx"))


def samples(model: LoadedModel, count: int) -> list[dict[str, Any]]:
    """Random floats, ones for other types; open dimensions are 64 where they are an image's or a recording's."""
    random = np.random.default_rng(0)
    constants = {tensor.name for tensor in model.proto.graph.initializer}
    made: list[dict[str, Any]] = [{} for _ in range(count)]
    for value in model.proto.graph.input:
        tensor = value.type.tensor_type
        wide = 64 if len(tensor.shape.dim) == 4 or any(n.op_type == "If" for n in model.proto.graph.node) else 1
        shape = [dim.dim_value or wide for dim in tensor.shape.dim]
        for one in made if value.name not in constants else ():
            kind = DTYPES[tensor.elem_type]
            one[value.name] = (
                random.standard_normal(shape).astype(kind) if tensor.elem_type in {1, 10} else np.ones(shape, kind)
            )
    return made


def check(name: str, folder: Path, steps: tuple[str, ...] = STEPS) -> None:
    with zipfile.ZipFile(ORACLE / "real.zip") as archive:
        (folder / "m.onnx").write_bytes(archive.read(f"{name}.onnx"))
    model = load(folder / "m.onnx", folder)
    data = samples(model, 2)
    wanted = run(model, data[0])
    made = []
    for text in steps:
        try:
            found = run_passes(model, [parse_step(text)], context(folder, data)).model
        except NotApplicable:
            continue
        kinds = {v.name: DTYPES[v.type.tensor_type.elem_type] for v in found.proto.graph.input if v.name in data[0]}
        given = run(found, {key: data[0][key].astype(kind) for key, kind in kinds.items()})
        for ours, theirs in zip(given, wanted, strict=True):
            assert ours.shape == theirs.shape or "nms" in name or "ssd" in name, text
            assert np.isfinite(ours.astype(np.float64)).all() or not np.isfinite(theirs.astype(np.float64)).all(), text
        made.append(text)
    ending = f".{name.partition('.')[2]}"
    if any(part in ending for part in HALF):  # exporters leave parts in float: these may become half, too
        made = [text for text in made if not text.startswith("fp16")]
    assert (not made) == any(part in ending for part in (*QUANTIZED, *HALF)), f"{made} of {name}"


@pytest.mark.parametrize("name", SOME)
def test_some_models_in_every_form(tmp_path: Path, name: str) -> None:
    check(name, tmp_path)


def test_a_model_with_shared_pads_in_a_form_of_each_kind(tmp_path: Path) -> None:
    check("blazeface.base", tmp_path, STEPS[::4])


@pytest.mark.every_model
@pytest.mark.parametrize("name", names())
def test_every_model_in_every_form(tmp_path: Path, name: str) -> None:
    check(name, tmp_path)
