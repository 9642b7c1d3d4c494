"""Units, failures in words, and text that cannot act."""

import unicodedata

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.campaign.record import FailureRow
from pipeline.check.compare import OutputCheck
from pipeline.report import wording
from pipeline.report.layout import sections
from pipeline.report.wording import visible
from tests.report_samples import make_report


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (None, "-"), (0, "0 ns"), (17, "17 ns"), (999, "999 ns"), (999.6, "1.00 µs"), (1234, "1.23 µs"),
        (99_949, "99.9 µs"), (99_951, "100 µs"), (999_600, "1.00 ms"), (12_345_678, "12.3 ms"),
        (1e9, "1.00 s"), (3.6e12, "3600 s"),
    ],
)  # fmt: skip
def test_durations(nanoseconds: float | None, text: str) -> None:
    assert wording.duration(nanoseconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "-"), (1023, "1023 B"), (1024, "1.0 KiB"), (26_000, "25.4 KiB"), (3 << 30, "3.0 GiB")]
)
def test_sizes(count: int, text: str) -> None:
    assert wording.size(count) == text


@given(st.text())
def test_visible_text_has_no_control_and_no_format_characters_that_hide(text: str) -> None:
    shown = visible(text)
    assert not any(unicodedata.category(char) in {"Cc", "Zl", "Zp", "Cs"} for char in shown)
    assert not any(unicodedata.bidirectional(char) in {"RLO", "LRO", "RLE", "LRE", "PDF", "RLI", "LRI", "FSI", "PDI"}
                   for char in shown)  # fmt: skip
    shown.encode("utf-8")


@pytest.mark.parametrize(
    ("text", "shown"), [("a\x1b[31mb", r"a\x1b[31mb"), ("a\nb", r"a\nb"), ("\u202etxt", r"\u202etxt"), ("é漢", "é漢")]
)
def test_invisible_characters_are_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_words_for_rows() -> None:
    rows = make_report().rows[:7]
    assert [wording.verdict(row) for row in rows] == [
        "baseline", "faster", "same within 5 %", "no difference shown (7.7 % would show)", "slower", "faster", "failed",
    ]  # fmt: skip
    assert [wording.outputs(row.checks) for row in rows[4:]] == ["ok 4.2e-07", "differ 2.4e-01 top-1 84.0%", "-"]
    assert [wording.status(row) for row in rows[4:]] == ["1 of 6 rounds failed", "ok", "failed"]


def test_another_precision_stands_beside_its_distance_from_the_float_original() -> None:
    one = OutputCheck(output="a", passed=True, max_rel_error=1e-4, sqnr_db=19.34)
    other = OutputCheck(output="b", passed=True, max_rel_error=2e-4, sqnr_db=None, random_inputs=True)
    assert wording.outputs([one]) == "ok 1.0e-04, 19.3 dB from float"
    assert wording.outputs([one, other]) == "ok 2.0e-04, 19.3 dB from float on random inputs"
    assert wording.outputs([other]) == "ok 2.0e-04, equal to float on random inputs"
    assert wording.check_numbers(one).endswith("top-1 -, 19.3 dB from float")


def test_a_phones_outputs_stand_beside_the_simulators() -> None:
    equal = OutputCheck(output="a", passed=True, max_rel_error=1e-4, from_simulator=0.0)
    near = OutputCheck(output="b", passed=True, max_rel_error=1e-4, from_simulator=3e-3)
    assert wording.outputs([equal]) == "ok 1.0e-04, equal to simulated"
    assert wording.outputs([equal, near]) == "ok 1.0e-04, 3.0e-03 from simulated"
    assert wording.check_numbers(near).endswith("top-1 -, 3.0e-03 from simulated")


def test_checks_without_numbers_are_worded() -> None:
    assert wording.check_numbers(OutputCheck(output="o", passed=False)) == "max abs -, max rel -, cosine -, top-1 -"


@pytest.mark.parametrize(
    ("message", "cause", "text"),
    [
        ("no library: it was not fetched yet", "it was not fetched yet", "no library: it was not fetched yet"),
        ("it does not load.", "another release wrote it", "it does not load; another release wrote it"),
        ("it does not load", "", "it does not load"),
    ],
)
def test_a_cause_is_said_once(message: str, cause: str, text: str) -> None:
    row = FailureRow(kind="missing", message=message, cause=cause)
    report = msgspec.structs.replace(make_report(), failures=(row,))
    assert text in [note.text for section in sections(report) for note in section.notes]
