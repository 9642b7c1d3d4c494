"""Bundles and results of earlier versions, as their releases wrote them: still read, compared and measured."""

import json
import shutil
from pathlib import Path

import pytest

from device_runner.spec import RunOptions
from pipeline.campaign.statistics import Verdict
from pipeline.config import MeasureConfig
from pipeline.job.perf_files import PerfOrder
from pipeline.job.read_subjects import read_sources
from pipeline.job.sides import read_side
from pipeline.release.manifest import verify_bundle
from pipeline.report import html, markdown, model
from tests.cli.commands import ort_mobile
from tests.release.older import BUNDLES, RESULTS, bundle_of_version


@pytest.mark.parametrize("version", BUNDLES)
def test_an_older_bundle_is_verified_read_and_paired(version: int, tmp_path: Path) -> None:
    bundle = bundle_of_version(version, tmp_path)
    assert verify_bundle(bundle).version == version
    side = read_side(str(bundle)).report
    assert (side.name, side.rows[0].model) == ("old", "mnist")
    (source,) = read_sources(
        [bundle],
        PerfOrder(files=(), options=(), device="local", library=None, dimensions={}, measure=MeasureConfig()),
        tmp_path,
    )
    (subject,) = source.shipped.values()
    assert subject.options == RunOptions()
    assert (subject.inputs is not None) == (version > 1), "inputs are kept from version 2 on"
    shutil.copytree(bundle, tmp_path / "again")
    short = ("--rounds", "8", "--min-runs", "2", "--min-seconds", "0.001", "--json", "-")
    done = ort_mobile("gate", bundle, tmp_path / "again", *short, cwd=tmp_path)
    assert [row["outcome"] for row in done.document()["rows"]] == ["unchanged"]


def test_results_of_version_1_are_read_compared_and_rendered(tmp_path: Path) -> None:
    content = RESULTS.read_bytes()
    assert json.loads(content)["version"] == 1
    assert b'"cannot tell"' in content
    report = model.decode(content)
    verdicts = [row.comparison.verdict for row in report.rows if row.comparison]
    assert Verdict.NOT_SHOWN in verdicts
    assert "no difference shown" in markdown.render(report)
    assert not any("cannot tell" in render(report) for render in (markdown.render, html.render))
    done = ort_mobile("compare", RESULTS, RESULTS, "--json", "-", cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.document()["rows"]
