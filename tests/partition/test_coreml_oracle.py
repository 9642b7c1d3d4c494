"""A sample of the ground truth for CoreML and XNNPACK (all of it: tests/oracle_agreement.py)."""

from importlib import metadata
from pathlib import Path

import pytest

from tests.oracle_agreement import agreement, usual_settings

EVERY = {"ops": 149, "dags": 40, "real": 18}
"""Each so-many-th model is judged here."""

SETTINGS = ("coreml-nn7", "coreml-mlprogram7", "coreml-mlprogram6@basic", "xnnpack")


def installed_release() -> str:
    """The release whose labels can be met, because shape inference is the installed one's."""
    installed = ".".join(metadata.version("onnxruntime").split(".")[:2])
    if installed in ("1.21", "1.23", "1.28"):
        return installed
    pytest.skip(f"labels are of 1.21, 1.23 and 1.28, installed is {installed}: its shape inference differs")


@pytest.mark.parametrize("archive", list(EVERY))
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("what", ["claims", "load-errors", "load-partitions"])
def test_agreement(oracle: Path, archive: str, setting: str, what: str) -> None:
    if setting not in usual_settings(oracle, archive):
        pytest.skip(f"no labels of {archive} for {setting}")
    if what != "claims" and setting == "xnnpack":
        pytest.skip("XNNPACK in the labels' build is of another date: loading is not judged")
    release = installed_release()
    if archive == "real" and release != "1.23":
        pytest.skip("labels of real models are of 1.23 alone")
    result = agreement(oracle, archive, setting, what, release=release, every=EVERY[archive])
    assert result.total > 0
    assert result.wrong == []
