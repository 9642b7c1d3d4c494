"""A way to run that the bundle does not advise keeps nothing from shipping; the advised one does."""

from pathlib import Path

import pytest

from device_runner.local import wheel_library
from device_runner.spec import RunOptions
from pipeline.check.library_proof import FindingKind
from pipeline.core.errors import Severity
from pipeline.core.progress import NoProgress
from pipeline.features.prove import ProofOrder, prove_bundle
from pipeline.report.proofs import rows, summary
from tests.android_host.bundles import bundle_of
from tests.ort_models import parsed

CPU, XNNPACK = RunOptions(), RunOptions(provider="xnnpack")
"""The wheel's library has no XNNPACK."""


@pytest.mark.parametrize("runs", [(CPU, XNNPACK), (XNNPACK, CPU)])
def test_only_the_chosen_way_to_run_blocks(tmp_path: Path, runs: tuple[RunOptions, ...]) -> None:
    model = parsed("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    bundle = bundle_of(tmp_path, model, runs, platform="linux", abis=("x86_64",), min_api_level=None)
    proof = prove_bundle(bundle, ProofOrder(library=str(wheel_library())), NoProgress())
    (row,) = (row for row in proof.rows if row.options.provider == "xnnpack")
    (finding,) = row.findings
    assert finding.code is FindingKind.PROVIDER_MISSING
    assert proof.failed is row.failed is row.chosen is (runs[0] is XNNPACK)
    assert (finding.severity is Severity.WARNING) is not row.failed
    assert ("write [[runs]] in the config without it" in finding.remedy) is not row.failed
    assert "1 of 2 runs pass" in summary(proof)
    results = {cells[2]: cells[5] for cells in rows(proof)}
    assert (
        results == {"xnnpack (chosen)": "FAILS: provider missing", "cpu": "passes"}
        if row.failed
        else {"cpu (chosen)": "passes", "xnnpack": "warns: provider missing"}
    )
