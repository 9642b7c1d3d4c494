"""Bundles of real small models for packages."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from device_runner.spec import ElementType, NnapiFlag, RunOptions
from pipeline.core.variant import Level, Variant
from pipeline.release.bundle import make_bundle
from pipeline.release.manifest import Manifest, ModelSignature, Shipped, TensorSignature
from tests.ort_models import conv_relu, convert

NNAPI = RunOptions(
    provider="nnapi", flags=(NnapiFlag.USE_FP16,), session_config={"session.intra_op.allow_spinning": "0"}
)
CPU = RunOptions()


def needs_java() -> None:
    """Skip, with the reason, where there is no JDK."""
    if not shutil.which("javac"):
        pytest.skip("no javac: install a JDK")


def tensor(name: str, *shape: int | str | None, dtype: ElementType | None = ElementType.FLOAT32) -> TensorSignature:
    """A tensor of a signature."""
    return TensorSignature(name=name, dtype=dtype, shape=shape)


def shipped(model: str = "m", **more: Any) -> Shipped:
    """A model for a phone."""
    return Shipped(**{
        "target": "phone", "platform": "android", "model": model, "model_sha256": "0" * 64,
        "variant": Variant(level=Level.BASIC), "file": f"models/{model}.basic-fixed.ort", "semantic_digest": "1" * 64,
        "provider": "nnapi", "runs": (NNAPI, CPU), "ort_release": "1.28.0", "min_api_level": 27, "basis": "measured",
        **more,
    })  # fmt: skip


def signature(model: str = "m", **more: Any) -> ModelSignature:
    """The signature of `conv_relu`."""
    return ModelSignature(**{
        "model": model, "inputs": (tensor("x", 1, 1, 8, 8),), "outputs": (tensor("y", 1, 2, 8, 8),), **more,
    })  # fmt: skip


def bundle(
    folder: Path, ships: Sequence[Shipped] = (shipped(),), models: Sequence[ModelSignature] = (signature(),)
) -> Manifest:
    """A bundle in `folder`/bundle whose models are all the same real one."""
    model = convert(conv_relu(), folder / "m.ort")
    return make_bundle(
        folder / "bundle",
        name="Demo app",
        sources={one.file: model for one in ships},
        ships=tuple(ships),
        made_with={"onnxruntime": "1.31.1"},
        evidence={},
        models=tuple(models),
    )
