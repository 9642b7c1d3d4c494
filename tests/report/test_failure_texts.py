"""Failures in the sections of every format."""

import msgspec
import pytest

from pipeline.campaign.record import FailureRow
from pipeline.report.layout import sections
from tests.report_samples import make_report


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
