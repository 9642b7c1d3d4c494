"""A sample of the operators that real providers' sessions saved (all of them: tests/oracle_histograms.py)."""

from importlib import metadata
from pathlib import Path

import pytest

from tests.oracle_histograms import RELEASE, histograms

SAMPLES = {
    "nnapi30@all": ("dags", 16), "nnapi30-nchw@extended": ("dags", 23), "coreml-nn7@all": ("dags", 17),
    "coreml-mlprogram7@extended": ("dags", 19), "coreml-nn7@extended": ("real", 15), "cpu@all": ("dags", 40),
}  # fmt: skip
"""Archive and which models of it, each so-many-th, by setting."""


@pytest.mark.parametrize("setting", list(SAMPLES))
def test_operators_of_the_file(oracle: Path, setting: str) -> None:
    if not metadata.version("onnxruntime").startswith(RELEASE):
        pytest.skip(f"the labels are of {RELEASE}, onnxruntime {metadata.version('onnxruntime')} fuses otherwise")
    archive, every = SAMPLES[setting]
    result = histograms(oracle, archive, setting, every=every)
    assert result.total > 4
    assert result.wrong == []
