"""Claims of the arm64 library beside our rules for its ABI: a sample; `nox -s arm64_claims` compares all."""

import importlib.metadata

import pytest

from device_runner.library_facts import LibraryFacts
from tests.android_host.conftest import fetch
from tests.arm64_agreement import SETTINGS, compare, members

pytestmark = pytest.mark.android_host

SAMPLE = (
    ("real", 1, "qdq_s8s8"),
    ("dags", 48, ""),
    ("ops", 270, ""),
    ("ops", 1, "clip_0_none"),
    ("ops", 1, "clip_huge"),
)
"""Archive, each so-many-th model, and a part of its name: the last two are units of which x86_64 claims others."""


@pytest.fixture(scope="module")
def arm64(release: str) -> LibraryFacts:
    if importlib.metadata.version("onnxruntime") != release:
        pytest.skip(f"shapes must come from onnxruntime {release}, which is not installed")
    return fetch(release, "arm64-v8a")


@pytest.mark.parametrize(("provider", "level"), SETTINGS)
def test_our_rules_for_arm_are_the_arm64_librarys(arm64: LibraryFacts, provider: str, level: int) -> None:
    models = [one for archive, every, part in SAMPLE for one in members(archive, every, part)]
    counts, different = compare(arm64, models, provider, level)
    assert different == []
    assert len(models) > 35
    assert counts["same"] >= 0.9 * len(models)
