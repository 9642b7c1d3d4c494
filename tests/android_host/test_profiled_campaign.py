"""What the genuine NNAPI provider took in a profile run of a campaign is what was predicted of it."""

import json
from pathlib import Path

import pytest

from device_runner.library import LibraryFacts
from tests.command import ort_mobile

pytestmark = pytest.mark.android_host

CONFIG = """
name = "claims"
devices = ["android-host:{library}"]
[[models]]
path = "{model}"
[variants]
levels = ["none", "basic"]
styles = ["fixed"]
[[runs]]
provider = "nnapi"
variants = ["*"]
flags = [[], ["CPU_ONLY"], ["CPU_ONLY", "CPU_DISABLED"]]
[measure]
rounds = 1
min_runs = 3
min_seconds = 0.001
profile = true
"""


def test_measured_is_predicted(library: LibraryFacts, mnist: Path, tmp_path: Path) -> None:
    config = tmp_path / "claims.toml"
    config.write_text(CONFIG.format(library=library.path, model=mnist))
    ort_mobile("run", config, "--output", tmp_path / "out")
    report = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [skip["reason"][:20] for skip in report["skipped"]] == ["CPU_DISABLED and CPU"] * 2
    assert len(report["profiles"]) == 4
    for one in report["profiles"]:
        assert one["finding"] == ""
        measured, predicted = one["coverage"], one["prediction"]
        assert measured["partitions"] == predicted["partitions"] > 0
        assert measured["claimed_nodes"] == predicted["claimed"] > 0
        assert sum(one["profile"]["partitions"].values()) == measured["partitions"]
    assert not [one for one in report["warnings"] if "predicted" in one["what"]]
    (placement,) = report["placements"]
    best = next(one for one in report["profiles"] if one["variant"] == placement["variant"])
    claimed = [node["partition"] for node in placement["nodes"] if "partition" in node]
    assert (len(claimed), len(set(claimed))) == (best["prediction"]["claimed"], best["prediction"]["partitions"])
    (view,) = report["profile_views"]
    assert view["before"] == "none-fixed/nnapi"
    for one in view["fallen_back"]:
        assert one["reason"], one
