"""Bundles of real small models for packages."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from device_runner.spec import ElementType, NnapiFlag, RunOptions
from pipeline.campaign.tuned import TunedClass
from pipeline.core.variant import Level, Variant
from pipeline.features.android.package import QUICK_JVM
from pipeline.model.signature import TensorInfo
from pipeline.release.bundle import make_bundle
from pipeline.release.kept import BundledFile
from pipeline.release.manifest import Content, Manifest, ModelSignature, Shipped, ShippedContext
from tests.ort_models import conv_relu, convert

NNAPI = RunOptions(
    provider="nnapi", flags=(NnapiFlag.USE_FP16,), session_config={"session.intra_op.allow_spinning": "0"}
)
WEBGPU = RunOptions(provider="webgpu", provider_options={"preferredLayout": "NCHW"})
CPU = RunOptions()
SPINNING = RunOptions(session_config={"session.intra_op.allow_spinning": "0"})

JAVAC = ("javac", *QUICK_JVM)


def needs_java() -> None:
    """Skip, with the reason, where there is no JDK."""
    if not shutil.which("javac"):
        pytest.skip("no javac: install a JDK")


def tensor(name: str, *shape: int | str | None, dtype: ElementType | None = ElementType.FLOAT32) -> TensorInfo:
    return TensorInfo(name=name, dtype=dtype, shape=shape)


def shipped(model: str = "m", **more: Any) -> Shipped:
    return Shipped(**{
        "target": "phone", "platform": "android", "model": model, "model_sha256": "0" * 64,
        "variant": Variant(level=Level.BASIC), "file": f"models/{model}.basic-fixed.ort", "semantic_digest": "1" * 64,
        "runs": (NNAPI, CPU), "ort_release": "1.28.0", "min_api_level": 27, "basis": "measured",
        **more,
    })  # fmt: skip


def signature(model: str = "m", **more: Any) -> ModelSignature:
    """The signature of `conv_relu`."""
    return ModelSignature(**{
        "model": model, "inputs": (tensor("x", 1, 1, 8, 8),), "outputs": (tensor("y", 1, 2, 8, 8),), **more,
    })  # fmt: skip


def npu_context(chip: str = "SM8650", **more: Any) -> ShippedContext:
    """A context of the model m for a chip; no bytes of it are read."""
    return ShippedContext(**{
        "target": "phone", "model": "m", "model_sha256": "0" * 64, "chip": chip, "file": f"models/m.qnn-{chip}.onnx",
        "binary": f"models/m.qnn-{chip}_qnn.bin", "compatibility": "v2:6:2.51.0:5.51.0:75:57:0:0",
        "variant": Variant(level=Level.BASIC, providers=("qnn",), chip=chip), "qairt": "2.51.0", "plugin": "2.7.0",
        "ort_release": "1.29", "min_api_level": 31,
        **more,
    })  # fmt: skip


def manifest(
    ships: Sequence[Shipped],
    models: Sequence[ModelSignature] = (),
    contexts: Sequence[ShippedContext] = (),
    **more: Any,
) -> Manifest:
    """A manifest that no bundle belongs to: its files are all of one digest."""
    rows: list[Shipped | ShippedContext] = [*ships, *contexts]
    paths = [path for row in rows for path in row.files]
    files = tuple(BundledFile(path=path, size_bytes=1, sha256="2" * 64) for path in paths)
    content = Content(**{
        "name": "demo", "made_with": {}, "files": files, "ships": tuple(ships), "models": tuple(models),
        "contexts": tuple(contexts), **more,
    })  # fmt: skip
    return Manifest(content=content, content_sha256="3" * 64, made_at="2026-01-01T00:00:00.000Z")


def bundle(
    folder: Path,
    ships: Sequence[Shipped] = (shipped(),),
    models: Sequence[ModelSignature] = (signature(),),
    classes: Sequence[Sequence[TunedClass]] = (),
    weights: Mapping[str, float] | None = None,
) -> Manifest:
    """A bundle in `folder`/bundle of real models: all the same one but for those files whose `weights` are scaled."""
    model = convert(conv_relu(), folder / "m.ort")
    sources = {one.file: model for one in ships}
    for file, factor in (weights or {}).items():
        other = conv_relu()
        scaled = numpy_helper.to_array(other.graph.initializer[0]) * np.float32(factor)
        other.graph.initializer[0].CopyFrom(numpy_helper.from_array(scaled, "w"))
        sources[file] = convert(other, folder / f"{factor}.ort")
    return make_bundle(
        folder / "bundle",
        name="Demo app",
        sources=sources,
        ships=tuple(ships),
        made_with={"onnxruntime": "1.31.1"},
        evidence={},
        models=tuple(models),
        classes=classes,
    )


FLAGSHIP = TunedClass(chip="Qualcomm SM8550", api_level=31, abi="arm64-v8a")
OLD_CHIP = TunedClass(chip="msm8998", api_level=27, abi="arm64-v8a")
WEIGHTS = {"models/m.layout-fixed.ort": 3.0}
"""The file of the flagship's class, and what its outputs are times those of the other."""


def two_classes(folder: Path, **more: Any) -> Manifest:
    """A bundle that has a file of its own for flagships, and other session options for old chips."""
    ships = (
        shipped(runs=(CPU,), **more),
        shipped(file="models/m.layout-fixed.ort", variant=Variant(level=Level.LAYOUT), **more),
        shipped(runs=(SPINNING,), **more),
    )
    return bundle(folder, ships, classes=((), (FLAGSHIP,), (OLD_CHIP,)), weights=WEIGHTS)
