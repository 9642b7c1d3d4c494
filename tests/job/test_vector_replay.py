"""Vectors of a bundle that cannot be given again."""

from pathlib import Path

import msgspec
import pytest

from device_runner.spec import RunOptions
from pipeline.core.errors import ExitCode
from pipeline.release.manifest import read_manifest
from tests.command import ort_mobile
from tests.features.vectors.test_replay import made, written

__all__ = ["made"]

pytestmark = pytest.mark.long


def test_vectors_that_nothing_runs_are_no_pass(made: Path) -> None:  # the fixture
    bundle = made / "out/bundle"
    manifest = read_manifest(bundle)
    unknown = RunOptions(session_config={"session.load_model_format": "NONE"})
    kept = msgspec.structs.replace(manifest.vectors[0], options=unknown)
    written(bundle, msgspec.structs.replace(manifest, vectors=(kept,)))
    done = ort_mobile("bundle", "replay", bundle, "--device", "local", code=ExitCode.SOME_FAILED)
    assert "classifier for android-arm64: local: " in done.out
