"""Accuracy in cells of reports: one wording for all formats."""

import msgspec

from pipeline.accuracy.result import AccuracyResult, DropVerdict
from pipeline.check.compare import OutputCheck
from pipeline.report.layout import REPORT_HEAD, accuracy_parts, report_cells
from pipeline.report.wording import Listing
from tests.report_samples import make_report

RESULT = AccuracyResult(
    model="m.ort", metric="top-1", labelled=True, samples=360, data="digits", value=0.975, reference_value=0.98,
    drop=0.005, drop_low=-0.001, drop_high=0.011, max_drop=0.01, verdict=DropVerdict.CANNOT_TELL, samples_needed=700,
)  # fmt: skip


def on_devices(*values: float) -> list[str]:
    (row, *_) = make_report().rows
    check = OutputCheck(output="y", passed=True, metric="top-1")
    rows = [msgspec.structs.replace(row, checks=(msgspec.structs.replace(check, value=one),)) for one in values]
    return [
        dict(zip(REPORT_HEAD, report_cells(result, "", rows), strict=True))["On devices"]
        for result in (RESULT, msgspec.structs.replace(RESULT, metric="cer"))
    ]


def test_the_command_and_the_report_say_the_same() -> None:
    cells = dict(zip(REPORT_HEAD, report_cells(RESULT, "", ()), strict=True))
    assert list(cells.values()) == [
        "top-1", "98.00 %", "97.50 %", "-", "0.50 pp", "-0.10 to 1.10 pp", "cannot tell: about 700 samples would",
        "360",
    ]  # fmt: skip
    (table, *_) = (part for part in accuracy_parts([RESULT]) if isinstance(part, Listing))
    (row,) = table.rows
    assert set(row[1:]) < set(cells.values())


def test_of_several_devices_the_worst_is_shown() -> None:
    assert on_devices(0.9, 0.97) == ["90.00 %", "97.00 %"], "a share of errors is worse the larger it is"


def test_what_was_not_measured_has_the_reason() -> None:
    cells = report_cells(None, "no data", ())
    assert len(cells) == len(REPORT_HEAD)
    assert cells[0] == "not measured: no data"
