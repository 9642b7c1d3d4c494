"""What people see of a job while it works."""

import pytest

from pipeline.progress import MOST_PARTS, Silent, Terminal


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
    with Silent().stage("measure", 2) as stage:
        stage.part("one", 2).at("round 1")
        stage.part("one", 2).done()
    assert capsys.readouterr() == ("", "")
