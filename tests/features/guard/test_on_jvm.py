"""The guard with ONNX Runtime's own Java classes and library, whose CPU gives what the desk kept."""

from pathlib import Path

import pytest

from tests.features.android.jvm import fetched
from tests.features.guard.phones import Phone, build

pytestmark = pytest.mark.network


def test_the_real_cpu_passes_and_what_is_not_there_is_refused(tmp_path: Path) -> None:
    app = build(tmp_path, fetched("jvm:1.28.0"))
    ours = Phone(app=app, storage=tmp_path / "phone")
    first, second = ours.launch(wait=True), ours.launch(wait=True)
    assert first.events == ["refused nnapi", "refused webgpu"]
    assert first.way == second.way == "cpu"
    assert len({value for launch in (first, second) for value in launch.said("sum")}) == 1
    assert "\tpassed\t" in next(line for line in ours.rows.splitlines() if "\tcpu\t" in line)
