"""Claims and provider-aware files of the arm64 library beside ours: a sample; `nox -s arm64_claims` compares all."""

import importlib.metadata

import pytest

from device_runner.library import LibraryFacts
from pipeline.core.variant import Level
from tests.android_host.conftest import fetch
from tests.arm64_agreement import SETTINGS, compare, compare_files, members

pytestmark = pytest.mark.android_host

SAMPLE = (
    ("real", 1, "qdq_s8s8"),
    ("dags", 48, ""),
    ("ops", 270, ""),
    ("ops", 1, "clip_0_none"),
    ("ops", 1, "clip_huge"),
    ("real", 1, "mlp_tabular.fp16"),
)
"""Archive, each so-many-th model, and a part of its name: the last three are units of which x86_64 claims others."""


@pytest.fixture(scope="module")
def arm64(release: str) -> LibraryFacts:
    if importlib.metadata.version("onnxruntime") != release:
        pytest.skip(f"shapes must come from onnxruntime {release}, which is not installed")
    return fetch(release, "arm64-v8a")


def test_our_rules_for_arm_are_the_32_bit_librarys_too(arm64: LibraryFacts, release: str) -> None:
    models = [one for archive, every, part in SAMPLE for one in members(archive, every * 4, part)]
    counts, different = compare(fetch(release, "armeabi-v7a"), models, "nnapi", 31)
    assert different == []
    assert counts["same"] >= 0.9 * len(models)


@pytest.mark.parametrize(("provider", "level"), [*SETTINGS[1:], pytest.param(*SETTINGS[0], marks=pytest.mark.nightly)])
def test_our_rules_for_arm_are_the_arm64_librarys(arm64: LibraryFacts, provider: str, level: int) -> None:
    models = [one for archive, every, part in SAMPLE for one in members(archive, every, part)]
    counts, different = compare(arm64, models, provider, level)
    assert different == []
    assert len(models) > 35
    assert counts["same"] >= 0.9 * len(models)


HALF = (("real", 1, "mnist.fp16"), ("real", 1, "mlp_tabular.fp16"), ("ops", 36, "f16"))


@pytest.mark.usefixtures("arm64")
def test_our_rules_for_xnnpack_are_androids_on_x86_too(library: LibraryFacts) -> None:
    """Half precision above all: its library for x86 has none, unlike ARM's and desktops'."""
    models = [one for archive, every, part in HALF for one in members(archive, every, part)]
    counts, different = compare(library, models, "xnnpack", 31)
    assert different == []
    assert counts["same"] >= 0.9 * len(models)


FILES = (
    ("mnist.qdq_s8s8", Level.ALL),
    ("mnist.fp16", Level.BASIC),
    ("blazeface.qdq_u8u8", Level.EXTENDED),
    pytest.param("fsrcnn.base", Level.BASIC, marks=pytest.mark.nightly),
)
"""Real models with a level: a sample of what `nox -s arm64_claims` compares at every level."""


@pytest.mark.parametrize(("part", "level"), FILES)
def test_files_with_our_claims_are_those_that_the_arm64_library_saves(
    arm64: LibraryFacts, part: str, level: Level
) -> None:
    counts, different = compare_files(arm64, members("real", part=part), (level,))
    assert different == []
    assert counts == {"same": 1}
