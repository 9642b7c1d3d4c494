"""Artifacts of small real models give the original's outputs, within the tolerances that compare.py states."""

import zipfile
from pathlib import Path

import pytest

from pipeline.check import CheckRequest, check_artifact, tolerance_for
from pipeline.config import CheckConfig
from pipeline.convert import ConvertRequest, convert_model
from pipeline.model_sources import SourceModel
from pipeline.reference import ReferenceRequest, make_reference
from pipeline.variant import Level, Style, Variant

VARIANTS = tuple(Variant(level=level, style=style) for level in (Level.BASIC, Level.ALL) for style in Style)
MODELS = (
    "mnist.base", "mnist.fp16", "mnist.qdq_u8u8", "mnist.qdq_s8s8", "mnist.op7", "lstm_classifier.base",
    "mlp_tabular.base", "mlp_tabular.fp16", "fsrcnn.base", "fsrcnn.qdq_s8s8",
)  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_every_artifact_computes_the_same(oracle: Path, tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(oracle / "real.zip") as packed:
        source = SourceModel(path=packed.extract(f"{name}.onnx", tmp_path))
    made = convert_model(
        ConvertRequest(
            source=source, variants=VARIANTS, stem="m", output_folder=str(tmp_path), work_folder=str(tmp_path / "w")
        )
    )
    (tmp_path / "r").mkdir()
    reference = make_reference(
        ReferenceRequest(source=source, folder=str(tmp_path / "t"), work_folder=str(tmp_path / "r"))
    )
    assert made.artifacts
    for artifact in made.artifacts:
        request = CheckRequest(
            artifact=artifact, file=str(tmp_path / artifact.file), reference=reference,
            tolerance=tolerance_for(reference, CheckConfig()),
        )  # fmt: skip
        checks = check_artifact(request).checks
        assert checks
        assert [check for check in checks if not check.passed] == [], artifact.variant.name
