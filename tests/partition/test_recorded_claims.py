"""All labels of the ground truth: the answers about recorded graphs, and a sample of the graphs shown again."""

import zipfile
from importlib import metadata
from pathlib import Path

import msgspec
import pytest

from tests.ground_truth import ORACLE
from tests.oracle_agreement import delta
from tests.recorded_graphs import installed_release, judged, packed_graphs, record, views

LABELS = {"nnapi": 41_260, "coreml-nn": 17_807, "coreml-mlprogram": 29_336, "xnnpack": 5_809}
"""How many labels of 1.23 say what a provider claims; the others of its labels are sessions that could not be made."""
EVERY = {"ops": 61, "dags": 31, "real": 12}
"""Each so-many-th graph is shown again."""


@pytest.mark.parametrize("release", ["1.21", "1.23", "1.28"])
@pytest.mark.parametrize("provider", list(LABELS))
def test_claims(provider: str, release: str) -> None:
    archives = ("ops", "dags", "real") if release == "1.23" else ("ops", "dags")
    results = [judged(archive, provider, release, "claims") for archive in archives]
    assert [wrong for result in results for wrong in result.wrong][:5] == []
    total = sum(result.total for result in results)
    assert total == LABELS[provider] if release == "1.23" else total > 600


@pytest.mark.parametrize("provider", ["coreml-nn", "coreml-mlprogram"])
def test_loading(provider: str) -> None:
    for archive in ("ops", "dags", "real"):
        result = judged(archive, provider, "1.23", "load")
        assert result.wrong[:5] == []
        assert result.total > 100


@pytest.mark.parametrize("archive", list(EVERY))
def test_what_is_shown_is_what_was_recorded(archive: str, tmp_path: Path) -> None:
    release = installed_release()
    if release is None or not (release == "1.23" or delta(ORACLE, archive, release)):
        pytest.skip(f"graphs are recorded of 1.21, 1.23 and 1.28, installed is {metadata.version('onnxruntime')}")
    shown = list(views(archive, release))[:: EVERY[archive]]
    assert len(shown) > 10
    with zipfile.ZipFile(ORACLE / f"{archive}.zip") as packed:
        for name, level, setting in shown:
            path = Path(packed.extract(f"{name}.onnx", tmp_path))
            found = msgspec.msgpack.encode(packed_graphs(path, level, setting))
            assert found == msgspec.msgpack.encode(record(archive, release)[f"{name}@{level}"]), f"{name}@{level}"


def test_a_release_has_labels_of_its_own() -> None:
    assert delta(ORACLE, "ops", "1.23") is None
    assert delta(ORACLE, "ops", "1.28") is not None
