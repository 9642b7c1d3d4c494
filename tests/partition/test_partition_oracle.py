"""A sample of the ground truth that real builds gave: claims and loading (all of it: tests/oracle_agreement.py)."""

from importlib import metadata
from pathlib import Path

import pytest

from tests.oracle_agreement import Agreement, agreement, delta, usual_settings

EVERY = {"ops": 23, "dags": 9, "real": 6}
"""Each so-many-th model is judged here."""


@pytest.mark.parametrize("archive", list(EVERY))
@pytest.mark.parametrize("setting", ["nnapi30", "nnapi30-nchw", "nnapi28"])
def test_nnapi_claims(oracle: Path, archive: str, setting: str) -> None:
    if setting not in usual_settings(oracle, archive):
        pytest.skip(f"no labels of {archive} for {setting}")
    release = _release()
    if archive == "real" and release != "1.23":
        pytest.skip("labels of real models are of 1.23 alone")
    result: Agreement = agreement(oracle, archive, setting, "claims", release=release, every=EVERY[archive])
    assert result.total > 0
    assert result.wrong == []


def _release() -> str:
    """The release whose labels can be met: the installed one's, or that of the oracle, whose shapes are fewer."""
    installed = ".".join(metadata.version("onnxruntime").split(".")[:2])
    if installed in ("1.21", "1.23", "1.28"):
        return installed
    pytest.skip(f"labels are of 1.21, 1.23 and 1.28, installed is {installed}: its shape inference differs")


def test_a_release_has_labels_of_its_own(oracle: Path) -> None:
    assert delta(oracle, "ops", "1.23") is None
    assert delta(oracle, "ops", "1.28") is not None
