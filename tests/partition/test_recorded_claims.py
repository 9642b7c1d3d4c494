"""All labels of the ground truth: the answers about recorded graphs, and a sample of the graphs shown again."""

import zipfile
from importlib import metadata
from pathlib import Path

import msgspec
import pytest

from tests.ground_truth import ORACLE
from tests.oracle_agreement import delta
from tests.recorded_graphs import installed_release, judged, packed_graphs, record, views

LABELS = {
    "ops": {"nnapi": 36_778, "coreml-nn": 15_834, "coreml-mlprogram": 26_125, "xnnpack": 5_240},
    "dags": {"nnapi": 3_701, "coreml-nn": 1_618, "coreml-mlprogram": 2_588, "xnnpack": 443},
    "real": {"nnapi": 781, "coreml-nn": 355, "coreml-mlprogram": 623, "xnnpack": 126},
}
"""How many labels of 1.23 say what a provider claims; the others of its labels are sessions that could not be made."""
EVERY = {"ops": 61, "dags": 31, "real": 12}
"""Each so-many-th graph is shown again."""


@pytest.mark.parametrize("archive", list(LABELS))
def test_claims_and_loading(archive: str) -> None:
    results = judged(archive, "1.23")
    assert [wrong for result in results.values() for wrong in result.wrong][:5] == []
    assert {provider: result.total for (provider, what), result in results.items() if what == "claims"} == LABELS[
        archive
    ]
    assert all(results[provider, "load"].total > 100 for provider in ("coreml-nn", "coreml-mlprogram"))


@pytest.mark.parametrize("release", ["1.21", "1.28"])
def test_claims_of_other_releases(release: str) -> None:
    results = [judged(archive, release) for archive in ("ops", "dags")]
    assert [wrong for by_kind in results for result in by_kind.values() for wrong in result.wrong][:5] == []
    for provider in LABELS["real"]:
        assert sum(by_kind[provider, "claims"].total for by_kind in results) > 600


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
