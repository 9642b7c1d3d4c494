"""What stands where in every format: columns of results, tables of plain texts, notes below them."""

from collections.abc import Callable, Mapping

from pipeline.core import groups as counting
from pipeline.report import wording
from pipeline.report.model import CampaignReport, Row
from pipeline.report.wording import Listing

Columns = Mapping[str, Callable[[Row], str]]
"""Heads of columns with the text of a row, to be escaped."""

COLUMNS: Columns = {
    "Variant": lambda row: row.variant,
    "Run": lambda row: row.run,
    "Status": wording.status,
    "Median": lambda row: wording.duration(row.statistics.median_ns if row.statistics else None),
    "p90": lambda row: wording.duration(row.statistics.p90_ns if row.statistics else None),
    "p99": lambda row: wording.duration(row.statistics.p99_ns if row.statistics else None),
    "Ratio": lambda row: wording.ratio(row.comparison),
    "Interval": lambda row: wording.interval(row.comparison),
    "Verdict": wording.verdict,
    "Outputs": lambda row: wording.outputs(row.checks),
    "Load": lambda row: wording.duration(row.load_ns or None),
    "First run": lambda row: wording.duration(row.first_run_ns or None),
    "Memory": lambda row: wording.size(row.memory_peak_bytes),
    "Size": lambda row: wording.size_beside(row.size_bytes, row.original_bytes),
}

WORDS = ("Variant", "Run", "Status", "Verdict", "Outputs")
"""Columns of words; the others are numbers."""

FROM_WIDTH = {
    **dict.fromkeys(("Variant", "Run", "Median", "Ratio", "Verdict", "Outputs"), 0),
    "Interval": 100,
    "p90": 110,
    "Size": 120,
    "Status": 130,
    "p99": 140,
    "Load": 150,
    "Memory": 160,
    "First run": 220,
}
"""How wide a terminal is at least that shows a column; the others are shown from `WIDE` on."""
WIDE = 240


def results(report: CampaignReport) -> dict[tuple[str, str], list[Row]]:
    """Rows by model and device, in the order of the report."""
    return counting.grouped(((row.model, row.device), row) for row in report.rows)


def choices_title(report: CampaignReport) -> str:
    """What was chosen ships only in a bundle."""
    return "What was chosen" if report.refusals else "What ships"


def choices(report: CampaignReport) -> Listing:
    """What ships to each target; where no bundle was made, what was chosen to."""
    rows = (
        (choice.target, choice.model, choice.variant, choice.run, choice.reason + wording.fresh(choice.fresh))
        for choice in report.choices
    )
    return Listing(title=choices_title(report), head=("Target", "Model", "Variant", "Run", "Why"), rows=tuple(rows))
