"""What people see of a job while it works."""

import time

import pytest

from pipeline.core.progress import MOST_PARTS, Lines, NoProgress, Pace, Terminal, duration_text, progress_for


def test_each_device_has_a_line_and_the_stage_counts_all(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "140")
    names = [f"adb:[{number}]" for number in range(MOST_PARTS + 5)]
    with Terminal().stage("measure", 2 * len(names)) as stage:
        for name in names:
            part = stage.part(name, 2)
            part.at(f"round 1: [red]{name}")
            part.done()
            part.done()
    said = capsys.readouterr().err
    assert f"{2 * len(names)}/{2 * len(names)}" in said
    assert "round 1: [red]adb:[0]" in said
    assert f"  adb:[{MOST_PARTS - 1}]" in said
    assert f"adb:[{MOST_PARTS}]" not in said
    assert "✓" in said.splitlines()[-1]


def test_where_nobody_looks_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with NoProgress().stage("measure", 2) as stage:
        stage.part("one", 2).at("round 1")
        stage.part("one", 2).done()
    assert capsys.readouterr() == ("", "")


def test_a_log_has_a_line_at_the_ends_of_a_stage_and_at_every_interval(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines(every_seconds=0.05).stage("measure", 3) as stage:
        stage.part("local", 3).at("round 1: \x1b[2Jm")
        while "round 1" not in (said := capsys.readouterr().err):
            time.sleep(0.01)
    assert "measure: 0 of 3 after 1 s (local: round 1: \\x1b[2Jm)" in said
    assert capsys.readouterr().err.splitlines()[-1].startswith("measure: done, 0 of 3 in ")


def test_a_stage_that_fails_does_not_say_that_it_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="x"), Lines().stage("convert", 1):
        raise ValueError("x")
    assert capsys.readouterr().err == "convert: 1 to do\n"


def test_the_rest_is_estimated_from_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.core.progress.time.monotonic", lambda: 0.0)
    pace = Pace(20)
    assert pace.left_seconds is None
    monkeypatch.setattr("pipeline.core.progress.time.monotonic", lambda: 12.0)
    pace.finished = 1
    assert pace.estimate("local") == "about 4 min left: 19 of 20 runs of about 12 s on local"
    pace.shorter = "take less"
    assert pace.estimate("local").endswith("on local; take less")
    pace.steps = 12
    assert pace.estimate("local") == "about 2 min left: 11 of 12 runs of about 12 s on local", "not long"


@pytest.mark.parametrize("shown", [Lines(), Terminal()])
def test_a_long_part_whose_steps_are_foreseen_is_announced_before_the_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, shown: Lines | Terminal
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    with shown.stage("measure", 44) as stage:
        stage.part("local", 20, "take less", 37.0)
        said = capsys.readouterr().err
        stage.part("adb:A", 20, "take less")
        stage.part("adb:B", 4, "take less", 37.0)
        assert "of 4 runs" not in capsys.readouterr().err
    assert "about 12 min left: 20 of 20 runs of about 37 s on local; take less" in said


def test_of_several_devices_the_slowest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.core.progress.time.monotonic", lambda: 0.0)
    whole, fast, slow = Pace(20), Pace(10), Pace(10)
    whole.parts = {"fast": fast, "slow": slow}
    monkeypatch.setattr("pipeline.core.progress.time.monotonic", lambda: 10.0)
    assert whole.left_seconds is None
    fast.finished, slow.finished = 10, 2
    assert whole.left_seconds == 40.0


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "1 s"), (89, "89 s"), (240, "4 min"), (4200, "1 h 10 min")])
def test_durations_in_words(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_bars_are_for_terminals_and_quiet_is_quiet() -> None:
    assert isinstance(progress_for(), Lines)
    assert isinstance(progress_for(quiet=True), NoProgress)
