"""Which runs prove a bundle: by target, way to run and API level, each once."""

import msgspec
import pytest

from pipeline.core.errors import CheckFailed, ConfigError
from pipeline.features.prove.plan import ProofOrder, levels_of, trials_of, wanted_targets
from tests.features.android.samples import CPU, NNAPI, manifest, shipped

DESK = shipped(target="desk", platform="linux")


@pytest.mark.parametrize(
    ("lowest", "levels"), [(24, (24, 31)), (27, (27, 31)), (31, (31,)), (34, (34,)), (None, (27, 31))]
)
def test_the_lowest_level_of_a_target_and_the_newest(lowest: int | None, levels: tuple[int, ...]) -> None:
    assert levels_of(shipped(min_api_level=lowest)) == levels


def test_what_two_targets_share_is_run_once_for_both() -> None:
    order = ProofOrder(library="x")
    ships = [shipped(target=name, min_api_level=level, runs=(CPU,)) for name, level in (("old", 27), ("new", 30))]
    trials = trials_of(ships, order)
    assert [(trial.api_level, trial.targets) for trial in trials] == [
        (27, ("old",)),
        (30, ("new",)),
        (31, ("old", "new")),
    ]


def test_the_first_way_is_the_chosen_one() -> None:
    trials = trials_of([shipped(runs=(NNAPI, CPU))], ProofOrder(library="x", api_levels=(30,)))
    assert [(trial.options, trial.chosen) for trial in trials] == [(NNAPI, True), (CPU, False)]


def test_other_platforms_are_left_out_by_name() -> None:
    wanted, left = wanted_targets(manifest([shipped(), DESK]).content, ProofOrder(library="x"))
    assert [one.target for one in wanted] == ["phone"]
    assert left == ["desk"]


@pytest.mark.parametrize(("targets", "told"), [(("desk",), "desk (linux)"), (("tablet",), "no target 'tablet'")])
def test_nothing_to_prove_is_a_clear_error(targets: tuple[str, ...], told: str) -> None:
    bundle = manifest([shipped(), DESK]).content
    with pytest.raises(ConfigError) as caught:
        wanted_targets(bundle, ProofOrder(library="x", targets=targets))
    assert told in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("file", ["../../etc/hostname", "/etc/hostname", "models/other.ort"])
def test_what_is_no_file_of_the_bundle_is_never_opened(file: str) -> None:
    content = msgspec.structs.replace(manifest([shipped()]).content, ships=(shipped(file=file),))
    with pytest.raises(CheckFailed, match="contradicts itself"):
        wanted_targets(content, ProofOrder(library="x"))
