"""report.html: one page with everything in it, no script, no request to anywhere."""

from functools import cache

import jinja2

from device_runner.result import Status
from pipeline.campaign.statistics import Verdict
from pipeline.report import drawing, profiles, tuning, wording
from pipeline.report.layout import (
    COLUMNS,
    accuracies,
    banner,
    choices,
    inventory,
    proof_listing,
    results,
    searches,
    sections,
)
from pipeline.report.model import CampaignReport, Row
from pipeline.report.modes import mode_listings
from pipeline.report.profiles import operators, summary, views
from pipeline.report.wording import visible

FILE_NAME = "report.html"
NUMBERS = tuple(column for column in COLUMNS if column.title not in {"Variant", "Run", "Status"})
"""The columns of the page; variant, run and status stand together at the head of a row."""

VERDICT_CLASSES = {
    Verdict.FASTER: "faster",
    Verdict.SLOWER: "slower",
    Verdict.SAME: "same",
    Verdict.NOT_SHOWN: "unknown",
}


def render(report: CampaignReport) -> str:
    """The whole page; the same report gives the same page."""
    return _template().render(
        report=report,
        banner=banner(report),
        choices=choices(report),
        tuned=tuning.listings(report.tuned) if report.tuned else (),
        results=results(report),
        modes=mode_listings(report),
        curves=drawing.curves(report),
        accuracy=accuracies(report),
        fronts=drawing.fronts(report),
        searches=tuple(zip(drawing.loss_bars(report), searches(report), strict=True)),
        proofs=tuple(listing for listing in map(proof_listing, report.proofs) if listing.rows),
        sections=sections(report),
        views=views(report),
        profiles=(summary(report.profiles), *map(operators, report.profiles)),
        inventory=inventory(report),
        legend=wording.legend(report),
    )


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pipeline.report"),
        autoescape=True,
        finalize=_shown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(
        columns=NUMBERS, drawing=drawing, profile_texts=profiles, wording=wording, classes=_classes
    )
    return environment.get_template("report.html")


def _shown(value: object) -> object:
    """Every text that the template puts out goes through here, before it is escaped."""
    return visible(value) if type(value) is str else value


def _classes(row: Row) -> str:
    """The CSS classes of a row; colour only repeats what the words say."""
    wrong = any(check.failed for check in row.checks)
    verdict = VERDICT_CLASSES[row.comparison.verdict] if row.comparison and not wrong else ""
    failed = "" if row.status is Status.OK else "failed"
    parts = (verdict, failed, "wrong" if wrong else "", "baseline" if row.baseline else "")
    return " ".join(part for part in parts if part)
