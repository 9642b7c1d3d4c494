"""What an output folder says of a job: its results, reports and timeline, all of one value."""

from pathlib import Path

import msgspec

from pipeline.core import files as storage
from pipeline.job.assemble import Assembled
from pipeline.report import formats, html, trace
from pipeline.report import model as report_model


def write_reports(assembled: Assembled, folder: Path) -> None:
    """results.json, report.md, report.html and trace.json.gz; tune.json where a search was made."""
    report = assembled.report
    timeline = trace.encode_trace(report.name, report.campaign, assembled.runs, assembled.record.stages)
    storage.write_bytes(folder / storage.TRACE, timeline)
    storage.write_bytes(folder / storage.RESULTS, report_model.encode(report))
    storage.write_text(folder / storage.REPORT, formats.markdown_page(report))
    storage.write_text(folder / storage.PAGE, html.render(report, assembled.measured, assembled.earlier))
    if report.tuned:
        tuned = msgspec.json.encode(report.tuned, order="deterministic")
        storage.write_bytes(folder / storage.TUNING, msgspec.json.format(tuned, indent=2) + b"\n")
