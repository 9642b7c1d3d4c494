"""Lives of apps on phones with bad drivers: real classes in a real JVM, which the drivers end for real."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.features.guard.phones import JVM, App, Launch, Phone, run_java

pytestmark = pytest.mark.long

MakePhone = Callable[..., Phone]
GUARD = "com.example.demo.guard"


def crashes(launches: list[Launch]) -> int:
    return sum(not launch.is_whole for launch in launches)


def provider(launch: Launch) -> str:
    return launch.way.partition("+")[0]


def test_the_cpu_opens_first_and_what_passed_from_then_on(phone: MakePhone) -> None:
    ours = phone()
    first, second = ours.launch(wait=True), ours.launch()
    assert provider(first) == "cpu"
    assert first.events == ["passed nnapi", "passed webgpu", "chosen nnapi"]
    assert first.said("choice") == [second.way]
    assert provider(second) == "nnapi"
    assert second.events == []
    assert second.said("skipped") == ["[]"]
    assert ours.launch(fingerprint="another build").way == "cpu"


def test_who_waits_has_the_choice_at_once(phone: MakePhone) -> None:
    assert provider(phone().launch(now=True)) == "nnapi"


@pytest.mark.parametrize("stage", ["options", "open", "first_run", "close"])
@pytest.mark.parametrize("kind", ["abort", "segv", "ill", "exit"])
def test_a_driver_that_dies_when_it_is_tried_ends_the_app_once(phone: MakePhone, kind: str, stage: str) -> None:
    for level in (34, 29):  # with Android's reasons for the end of a process, and without
        ours = phone(f"level{level}", level=level)
        launches = [ours.launch(f"nnapi:{kind}@{stage}", wait=True) for _ in range(4)]
        assert crashes(launches) == crashes(launches[:1]) == 1
        assert [provider(launch) for launch in launches][1:] == ["cpu", "cpu", "webgpu"]
        assert launches[1].events == ["died nnapi", "postponed webgpu"]


@pytest.mark.parametrize("kind", ["nan", "inf", "zeros", "half", "permuted", "reversed"])
def test_wrong_outputs_are_never_given_to_the_app(phone: MakePhone, kind: str) -> None:
    """A driver that computes nonsense from the start, and one that begins to when it had passed."""
    for name, first in (("never", f"nnapi:{kind}@run"), ("later", "")):
        ours = phone(name)
        launches = [ours.launch(first, wait=True), *(ours.launch(f"nnapi:{kind}@run", wait=True) for _ in range(2))]
        assert crashes(launches) == 0
        assert "wrong nnapi" in [event for launch in launches for event in launch.events]
        assert provider(launches[-1]) == "webgpu"
        assert len({value for launch in launches for value in launch.said("sum")}) == 1


def test_a_driver_that_refuses_costs_nothing(phone: MakePhone) -> None:
    for kind in ("refuse", "java"):
        ours = phone(kind)
        launches = [ours.launch(f"nnapi:{kind}@options", wait=True) for _ in range(2)]
        assert crashes(launches) == 0
        assert launches[0].events[0] == "refused nnapi"
        assert provider(launches[1]) == "webgpu"


@pytest.mark.parametrize("kind", ["hang", "spin"])
def test_a_driver_that_hangs_when_it_is_tried_is_left_alone(phone: MakePhone, kind: str) -> None:
    ours = phone()
    launches = [ours.launch(f"nnapi:{kind}@open", wait=True, limit=3000) for _ in range(3)]
    assert crashes(launches) == 0
    assert launches[0].events == ["hung nnapi", "postponed webgpu"]
    assert provider(launches[2]) == "webgpu"


def test_a_driver_that_begins_to_fail_is_given_up(phone: MakePhone) -> None:
    """It passed, and then hangs, dies or refuses when the app opens it."""
    for kind, events, deaths in (("hang", "hung nnapi", 0), ("abort", "died nnapi", 1), ("refuse", "refused nnapi", 0)):
        ours = phone(kind)
        ours.launch(wait=True)
        launches = [ours.launch(f"nnapi:{kind}@open", limit=3000) for _ in range(4)]
        assert crashes(launches) == deaths
        assert events in [event for launch in launches for event in launch.events]
        assert provider(launches[-1]) == "webgpu"


def test_a_driver_that_dies_in_use_ends_the_app_once_or_twice_without_reasons(phone: MakePhone) -> None:
    for level, deaths in ((34, 1), (29, 2)):
        for kind in ("segv", "exit"):
            ours = phone(f"{kind}{level}", level=level)
            ours.launch(wait=True)
            launches = [ours.launch(f"nnapi:{kind}@run") for _ in range(5)]
            assert crashes(launches) == deaths
            assert provider(launches[-1]) == "webgpu"


def test_a_user_who_ends_the_app_costs_no_good_way(phone: MakePhone) -> None:
    """In the middle of a trial, and of runs, as often as they like."""
    ours = phone()
    assert ours.launch("nnapi:hang@open", wait=True, user_waits=3).code == -signal.SIGKILL
    assert ours.launch(wait=True).events[0] == "passed nnapi"
    for _ in range(3):
        assert ours.launch("nnapi:kill@run").code == -signal.SIGKILL
    assert provider(ours.launch()) == "nnapi"


def test_a_run_that_hangs_until_a_user_ends_the_app_counts(phone: MakePhone) -> None:
    ours = phone()
    ours.launch(wait=True)
    for _ in range(2):
        ours.launch("nnapi:hang@run", user_waits=10)
        ours.wait_longer(20_000)
    assert provider(ours.launch()) == "webgpu"


def test_a_phone_that_restarts_costs_no_good_way(phone: MakePhone) -> None:
    ours = phone()
    ours.launch("nnapi:kill@open", wait=True)
    ours.boot += 1
    assert ours.launch(wait=True).events[:1] == ["suspected nnapi"]
    assert "passed nnapi" in ours.launch(wait=True).events
    assert provider(ours.launch()) == "nnapi"


def test_markers_that_are_torn_cost_nothing(phone: MakePhone) -> None:
    ours = phone()
    ours.launch("nnapi:abort@open", wait=True)
    marker = ours.storage / GUARD / "M.try"
    text = marker.read_text()
    for place in (0, 1, len(text) // 2, len(text) - 1):
        marker.write_text(text[:place])
        launch = ours.launch(heat=3, wait=True)
        assert launch.is_whole
        assert launch.events == ["postponed nnapi"]
    assert ours.launch(wait=True).events[0] == "passed nnapi"


def test_without_a_marker_nothing_is_tried(phone: MakePhone) -> None:
    """A folder that cannot be made, a full disk for markers, for rows: the CPU runs, and an event says why."""
    folder, full, rows = phone("folder"), phone("full"), phone("rows")
    folder.storage.mkdir()
    (folder.storage / GUARD).write_text("a file")
    for ours, name in ((full, "M.try.part"), (rows, "M.rows.part")):
        (ours.storage / GUARD).mkdir(parents=True)
        (ours.storage / GUARD / name).symlink_to("/dev/full")
    for ours in (folder, full, rows):
        launches = [ours.launch("webgpu:abort@open", wait=True) for _ in range(2)]
        assert [(provider(launch), launch.is_whole) for launch in launches] == [("cpu", True)] * 2
        assert "unusable" in launches[0].events


def test_a_marker_that_stays_is_no_reason_to_open_nothing(phone: MakePhone) -> None:
    ours = phone()
    (ours.storage / GUARD / "M.try" / "full").mkdir(parents=True)  # a folder with something in it cannot be removed
    assert ours.launch(wait=True).is_whole


def test_rows_of_a_later_format_are_not_read(phone: MakePhone) -> None:
    ours = phone()
    ours.launch(wait=True)
    file = ours.storage / GUARD / "M.rows"
    file.write_text(file.read_text().replace("guard 1", "guard 2"))
    launch = ours.launch(wait=True)
    assert provider(launch) == "cpu"
    assert "rows of another version" in launch.said("event")[0]
    assert provider(ours.launch()) == "nnapi"


def test_of_two_processes_one_tries(phone: MakePhone, app: App, tmp_path: Path) -> None:
    ours = phone()
    ours.storage.mkdir()
    lock = tmp_path / "Lock.java"
    (ours.storage / GUARD).mkdir()
    lock.write_text(
        "public class Lock { public static void main(String[] a) throws Exception { new java.io.RandomAccessFile(a[0], "
        '"rw").getChannel().lock(); System.out.println("locked"); System.in.read(); } }'
    )
    command = ["java", *JVM, str(lock), str(ours.storage / GUARD / "M.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        assert other.stdout.readline() == "locked\n"
        launch = ours.launch(wait=True)
        other.kill()
    assert provider(launch) == "cpu"
    assert launch.events == ["unusable"]
    assert ours.launch(wait=True).events[0] == "passed nnapi"


def test_nothing_is_tried_under_heat_with_the_battery_saver_or_little_memory(phone: MakePhone) -> None:
    ours = phone()
    for given in ({"heat": 2}, {"saver": True}, {"low_ram": True}):
        assert ours.launch(wait=True, **given).events == ["postponed nnapi"]
    assert ours.launch(wait=True).events[0] == "passed nnapi"


def test_a_reset_forgets_all(phone: MakePhone) -> None:
    ours = phone()
    for _ in range(2):
        ours.launch("nnapi:abort@open", wait=True)
    assert "passed nnapi" in ours.launch(wait=True, reset=True).events


def test_the_fastest_of_three_races_that_agree_is_chosen(phone: MakePhone) -> None:
    ours = phone(properties={"noise": 1000, "times": "nnapi:60000,webgpu:20000,cpu:120000"})
    first, second, third, fourth = (ours.launch(wait=True) for _ in range(4))
    assert first.events == ["passed nnapi", "passed webgpu", "raced webgpu", "chosen nnapi"]
    assert provider(second) == provider(third) == "nnapi"  # the bundle's order, until two others agree
    assert second.events == ["raced webgpu"]
    assert third.events == ["raced webgpu", "chosen webgpu"]
    assert (provider(fourth), fourth.events) == ("webgpu", [])


def test_a_way_that_is_slower_in_use_than_in_its_races_races_again(phone: MakePhone) -> None:
    ours = phone(properties={"noise": 1000, "times": "nnapi:60000,webgpu:20000,cpu:120000"})
    for _ in range(3):
        ours.launch(wait=True)
    slow = "nnapi:25000,webgpu:60000,cpu:120000"
    assert [provider(ours.launch(times=slow, runs=66)) for _ in range(3)] == ["webgpu"] * 3
    found = ours.launch(wait=True, times=slow)
    assert found.events[0] == "slower webgpu"
    assert "raced nnapi" in found.events


def test_slow_launches_count_in_a_row_alone(phone: MakePhone, app: App) -> None:
    """By numbers: of a race of 10 ms, medians of launches, and which of them begins races anew."""
    ours = phone()
    ours.storage.mkdir()
    launches = ("16", "16", "9", "16", "15", "16", "16", "16", "16")
    command = [*JVM, f"-Dstorage={ours.storage}", "-cp", str(app.classes), "com.example.demo.Slow", "10", *launches]
    assert run_java(command).split() == ["false"] * 7 + ["true", "false"]


def test_races_that_disagree_settle_nothing(phone: MakePhone) -> None:
    ours = phone(properties={"noise": 1000})
    for fast in ("webgpu", "webgpu", "cpu", "cpu", "webgpu", "webgpu"):
        times = ",".join(f"{name}:{20000 if name == fast else 60000}" for name in ("nnapi", "webgpu", "cpu"))
        assert f"raced {fast}" in ours.launch(wait=True, times=times).events
    last = ours.launch(wait=True)
    assert (provider(last), last.events) == ("nnapi", [])


def test_races_by_a_clock_of_their_own(app: App) -> None:
    """Ties, faster and slower seconds, and how long races take in all, in thousands of simulated pairs."""
    said = run_java([*JVM, "-cp", str(app.classes), "com.example.demo.Races"])
    assert said.splitlines() == [
        "ties kept 1000", "faster found 1000", "slower refused 1000", "kept few times of fast runs",
        "longest at most 2.1 s",
    ]  # fmt: skip


def test_what_three_races_choose_costs_little_on_simulated_phones(app: App) -> None:
    """In percent over the fastest, on usual phones and on busy ones: what docs/guard.md says, by seeds and no clock."""
    said = run_java([*JVM, "-cp", str(app.classes), "com.example.demo.Regret", "1500"]).splitlines()
    found = [dict(zip(words[1::2], map(float, words[2::2]), strict=True)) for words in map(str.split, said)]
    assert [phones["settled"] > 65 for phones in found] == [True, True]
    assert max(phones["regret"] for phones in found) <= 1.0
    assert max(phones["over5"] for phones in found) <= 5.0
    assert min(phones["without"] for phones in found) > 4


def test_a_driver_that_dies_in_a_race_is_the_one_that_is_charged(phone: MakePhone) -> None:
    ours = phone(properties={"noise": 1000, "times": "nnapi:3000,webgpu:3000,cpu:3000"})
    launches = [ours.launch("nnapi:abort@run", wait=True) for _ in range(3)]
    assert crashes(launches) == 1
    assert launches[1].events[0] == "died nnapi"
    assert provider(launches[2]) == "webgpu"


def test_the_app_is_told_where_not_even_the_cpu_gives_right_outputs(phone: MakePhone) -> None:
    faults = "cpu:zeros@run,nnapi:refuse@open,webgpu:refuse@open"
    (said,) = [line for line in phone().launch(faults, wait=True).said("event") if "model_failed" in line]
    assert '"rollback":"previous,packaged"' in said


def test_damaged_files_throw_nothing(phone: MakePhone, app: App) -> None:
    ours = phone()
    ours.launch(wait=True)
    times = os.environ.get("ORT_MOBILE_GUARD_FUZZ", "3000")
    command = ["java", *JVM, f"-Dstorage={ours.storage}", "-cp", str(app.classes), "com.example.demo.Fuzz", times, "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) < int(times)
