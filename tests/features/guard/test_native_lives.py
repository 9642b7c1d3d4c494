"""Lives of apps in C++ and Swift on devices with bad drivers: real processes that they end."""

import signal
from collections.abc import Callable

import pytest

from tests.features.guard.natives import Device
from tests.features.guard.phones import Launch

LANGUAGES = [pytest.param("cpp", marks=pytest.mark.network), pytest.param("swift", marks=pytest.mark.consumer)]

pytestmark = pytest.mark.parametrize("device", LANGUAGES, indirect=True)

MakeDevice = Callable[..., Device]


def crashes(launches: list[Launch]) -> int:
    return sum(not launch.is_whole for launch in launches)


def provider(launch: Launch) -> str:
    return launch.way.partition("+")[0]


def test_the_cpu_opens_first_and_what_passed_from_then_on(device: MakeDevice) -> None:
    ours = device()
    first, second = ours.launch(wait=True), ours.launch()
    assert provider(first) == "cpu"
    assert first.events == ["passed coreml", "passed webgpu", "chosen coreml"]
    assert first.said("choice") == [second.way]
    assert (provider(second), second.events, second.said("skipped")) == ("coreml", [], [])
    assert ours.launch(system="another build").way == "cpu"


def test_who_waits_has_the_choice_at_once(device: MakeDevice) -> None:
    assert provider(device().launch(now=True)) == "coreml"


@pytest.mark.parametrize("stage", ["options", "open", "first_run", "close"])
@pytest.mark.parametrize("kind", ["abort", "segv", "ill", "bus", "fpe", "exit"])
def test_a_driver_that_dies_when_it_is_tried_ends_the_app_once(device: MakeDevice, kind: str, stage: str) -> None:
    ours = device()
    launches = [ours.launch(f"coreml:{kind}@{stage}", wait=True) for _ in range(4)]
    assert crashes(launches) == crashes(launches[:1]) == 1
    assert [launch.events for launch in launches][1:3] == [
        ["died coreml", "postponed webgpu"],
        ["passed webgpu", "chosen webgpu"],
    ]
    assert [provider(launch) for launch in launches][1:] == ["cpu", "cpu", "webgpu"]


@pytest.mark.parametrize("kind", ["nan", "inf", "zeros", "half", "permuted", "reversed"])
def test_wrong_outputs_are_never_given_to_the_app(device: MakeDevice, kind: str) -> None:
    """A driver that computes nonsense from the start, and one that begins to when it had passed."""
    for name, first in (("never", f"coreml:{kind}@run"), ("later", "")):
        ours = device(name)
        launches = [ours.launch(first, wait=True), *(ours.launch(f"coreml:{kind}@run", wait=True) for _ in range(2))]
        assert crashes(launches) == 0
        assert "wrong coreml" in [event for launch in launches for event in launch.events]
        assert provider(launches[-1]) == "webgpu"
        assert len({value for launch in launches for value in launch.said("sum")}) == 1


@pytest.mark.parametrize("stage", ["options", "open"])
def test_a_driver_that_refuses_costs_nothing(device: MakeDevice, stage: str) -> None:
    ours = device()
    launches = [ours.launch(f"coreml:refuse@{stage}", wait=True) for _ in range(2)]
    assert crashes(launches) == 0
    assert launches[0].events[0] == "refused coreml"
    assert provider(launches[1]) == "webgpu"


@pytest.mark.parametrize("kind", ["hang", "spin"])
def test_a_driver_that_hangs_when_it_is_tried_is_left_alone(device: MakeDevice, kind: str) -> None:
    ours = device()
    launches = [ours.launch(f"coreml:{kind}@open", wait=True, limit=3000) for _ in range(3)]
    assert crashes(launches) == 0
    assert launches[0].events == ["hung coreml", "postponed webgpu"]
    assert provider(launches[2]) == "webgpu"


def test_a_driver_that_begins_to_fail_is_given_up(device: MakeDevice) -> None:
    """It passed, and then hangs, dies or refuses when the app opens it."""
    for kind, events, deaths in (
        ("hang", "hung coreml", 0),
        ("abort", "died coreml", 1),
        ("refuse", "refused coreml", 0),
    ):
        ours = device(kind)
        ours.launch(wait=True)
        launches = [ours.launch(f"coreml:{kind}@open", limit=3000) for _ in range(4)]
        assert crashes(launches) == deaths
        assert events in [event for launch in launches for event in launch.events]
        assert provider(launches[-1]) == "webgpu"


@pytest.mark.parametrize("stage", ["run", "close"])
@pytest.mark.parametrize("kind", ["segv", "exit"])
def test_a_driver_that_dies_in_use_ends_the_app_at_most_twice(device: MakeDevice, kind: str, stage: str) -> None:
    """Nobody says why a process ended, so that once may be anything."""
    ours = device()
    ours.launch(wait=True)
    launches = [ours.launch(f"coreml:{kind}@{stage}") for _ in range(5)]
    assert crashes(launches) == 2
    assert provider(launches[-1]) == "webgpu"


def test_a_user_who_ends_the_app_once_costs_no_good_way_in_use(device: MakeDevice) -> None:
    ours = device()
    ours.launch(wait=True)
    assert ours.launch("coreml:kill@run").code == -signal.SIGKILL
    launch = ours.launch()
    assert (provider(launch), launch.events) == ("coreml", ["suspected coreml"])


def test_a_device_that_restarts_costs_no_good_way(device: MakeDevice) -> None:
    ours = device()
    ours.launch("coreml:kill@open", wait=True)
    ours.boot += 1
    assert ours.launch(wait=True).events[:1] == ["suspected coreml"]
    assert "passed coreml" in ours.launch(wait=True).events
    assert provider(ours.launch()) == "coreml"


def test_markers_that_are_torn_cost_nothing(device: MakeDevice) -> None:
    ours = device()
    ours.launch("coreml:abort@open", wait=True)
    marker = ours.files / "M.try"
    text = marker.read_text()
    for place in (0, 1, len(text) // 2, len(text) - 1):
        marker.write_text(text[:place])
        launch = ours.launch(busy="heat", wait=True)
        assert launch.is_whole
        assert launch.events == ["postponed coreml"]
    assert ours.launch(wait=True).events[0] == "passed coreml"


def test_without_a_marker_nothing_is_tried(device: MakeDevice) -> None:
    """A folder that cannot be made, a full disk for markers, for rows: the CPU runs, and an event says why."""
    folder, full, rows = device("folder"), device("full"), device("rows")
    folder.files.parent.mkdir(parents=True)
    folder.files.write_text("a file")
    for ours, name in ((full, "M.try.part"), (rows, "M.rows.part")):
        ours.files.mkdir(parents=True)
        (ours.files / name).symlink_to("/dev/full")
    for ours in (folder, full, rows):
        launches = [ours.launch("webgpu:abort@open", wait=True) for _ in range(2)]
        assert [(provider(launch), launch.is_whole) for launch in launches] == [("cpu", True)] * 2
        assert "unusable" in launches[0].events


def test_a_marker_that_stays_is_no_reason_to_open_nothing(device: MakeDevice) -> None:
    ours = device()
    (ours.files / "M.try" / "full").mkdir(parents=True)  # a folder with something in it cannot be removed
    assert ours.launch(wait=True).is_whole


@pytest.mark.parametrize(
    "text",
    ["ort-mobile guard 2\tab\nrows to come\n", "ort-mobile guard 1\tab\n", "", "\x00" * 300, "ort-mobile guard 1"],
)
def test_rows_of_a_later_format_and_damaged_ones_are_forgotten(device: MakeDevice, text: str) -> None:
    ours = device()
    ours.files.mkdir(parents=True)
    (ours.files / "M.rows").write_text(text)
    launch = ours.launch(wait=True)
    assert launch.events == ["forgotten", "passed coreml", "passed webgpu", "chosen coreml"]
    assert provider(ours.launch()) == "coreml"


def test_a_reset_forgets_all(device: MakeDevice) -> None:
    ours = device()
    for _ in range(2):
        ours.launch("coreml:abort@open", wait=True)
    assert "passed coreml" in ours.launch(wait=True, reset=True).events


def test_the_fastest_of_three_races_that_agree_is_chosen(device: MakeDevice) -> None:
    ours = device(properties={"noise": 1000, "times": "coreml:60000,webgpu:20000,cpu:120000"})
    first, second, third, fourth = (ours.launch(wait=True) for _ in range(4))
    assert first.events == ["passed coreml", "passed webgpu", "raced webgpu", "chosen coreml"]
    assert provider(second) == provider(third) == "coreml"  # the bundle's order, until two others agree
    assert second.events == ["raced webgpu"]
    assert third.events == ["raced webgpu", "chosen webgpu"]
    assert (provider(fourth), fourth.events) == ("webgpu", [])


def test_what_is_slower_in_use_than_in_its_races_races_again(device: MakeDevice) -> None:
    ours = device(properties={"noise": 1000, "times": "coreml:60000,webgpu:20000,cpu:120000"})
    for _ in range(3):
        ours.launch(wait=True)
    slow = "coreml:25000,webgpu:60000,cpu:120000"
    assert [provider(ours.launch(times=slow, runs=66)) for _ in range(3)] == ["webgpu"] * 3
    found = ours.launch(wait=True, times=slow)
    assert found.events[0] == "slower webgpu"
    assert "raced coreml" in found.events


def test_fast_launches_between_and_short_ones_are_no_reason_to_race_again(device: MakeDevice) -> None:
    ours = device(properties={"noise": 1000, "times": "coreml:60000,webgpu:20000,cpu:120000"})
    for _ in range(3):
        ours.launch(wait=True)
    slow = "webgpu:40000"
    for times, runs in ((slow, 66), (slow, 66), ("webgpu:5000", 66), (slow, 66), (slow, 66), (slow, 3)):
        ours.launch(times=times, runs=runs)
    assert ours.launch(wait=True, times=slow).events == []


def test_a_driver_that_dies_in_a_race_is_the_one_that_is_charged(device: MakeDevice) -> None:
    ours = device(properties={"noise": 1000, "times": "coreml:3000,webgpu:3000,cpu:3000"})
    launches = [ours.launch("coreml:abort@run", wait=True) for _ in range(4)]
    assert crashes(launches) == 2
    assert [launch.events[:1] for launch in launches[1:3]] == [["suspected coreml"], ["died coreml"]]
    assert provider(launches[3]) == "webgpu"


def test_the_app_is_told_where_not_even_the_cpu_gives_right_outputs(device: MakeDevice) -> None:
    faults = "cpu:zeros@run,coreml:refuse@open,webgpu:refuse@open"
    (said,) = [line for line in device().launch(faults, wait=True).said("event") if "model_failed" in line]
    assert '"rollback":"previous,packaged"' in said
