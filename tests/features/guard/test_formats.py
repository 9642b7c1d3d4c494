"""Files of the guard of one language, read by that of another: rows, markers that a death left, and the mapped flag."""

import shutil
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pytest

from tests.features.guard.natives import Device
from tests.features.guard.phones import Phone

FIRST = {"java": "nnapi", "cpp": "coreml", "swift": "coreml"}
"""What the app of a language tries first."""

PAIRS = [
    pytest.param(*pair, marks=pytest.mark.consumer if "swift" in pair else pytest.mark.network)
    for pair in permutations(FIRST, 2)
]

pytestmark = pytest.mark.parametrize(("writer", "reader"), PAIRS)

Make = Callable[[str], "Phone | Device"]


@pytest.fixture
def app_of(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """A device with the app of a language."""

    def made(language: str) -> Phone | Device:
        if language == "java":
            return Phone(app=request.getfixturevalue("app"), storage=tmp_path / language, level=29)
        return Device(app=request.getfixturevalue(language), storage=tmp_path / language)

    return made


def files_of(ours: Phone | Device) -> Path:
    return ours.storage / "com.example.demo.guard" if isinstance(ours, Phone) else ours.files


def handed(writer: Phone | Device, reader: Phone | Device) -> None:
    """Give one app's files to the other."""
    shutil.copytree(files_of(writer), files_of(reader))


def test_rows_are_read_and_kept(app_of: Make, writer: str, reader: str) -> None:
    ours, theirs = app_of(writer), app_of(reader)
    ours.launch(wait=True)
    handed(ours, theirs)
    written = [line for line in (files_of(ours) / "M.rows").read_text().splitlines() if "\tpassed\t" in line]
    assert "forgotten" not in theirs.launch(wait=True).events
    kept = {tuple(line.split("\t")[:4]) for line in (files_of(theirs) / "M.rows").read_text().splitlines()}
    assert len(written) == 3
    assert {tuple(line.split("\t")[:4]) for line in written} <= kept


def test_the_marker_of_a_death_in_a_trial_is_charged(app_of: Make, writer: str, reader: str) -> None:
    ours, theirs = app_of(writer), app_of(reader)
    ours.launch(f"{FIRST[writer]}:abort@first_run", wait=True)
    handed(ours, theirs)
    launch = theirs.launch(wait=True)
    assert launch.events[0] == f"died {FIRST[writer]}"
    assert '"stage":"first_run"' in launch.said("event")[0]


def test_the_flag_of_a_death_in_use_is_a_suspicion(app_of: Make, writer: str, reader: str) -> None:
    ours, theirs = app_of(writer), app_of(reader)
    ours.launch(wait=True)
    ours.launch(f"{FIRST[writer]}:segv@run")
    handed(ours, theirs)
    launch = theirs.launch(wait=True)
    assert launch.events[0] == f"suspected {FIRST[writer]}"
    assert '"stage":"run"' in launch.said("event")[0]
