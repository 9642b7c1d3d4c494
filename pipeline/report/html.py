"""report.html: one page with everything in it, no request to anywhere; what runs in it is named by its digest."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import jinja2

from device_runner.result import Status
from pipeline.campaign.statistics import Verdict
from pipeline.partition.answer import ModelAnswer
from pipeline.report import charts, drawing, profiles, tuning, wording
from pipeline.report.decision import banner, decisions, failure_counts, not_a_phone
from pipeline.report.graph import BOX_HEIGHT, draw_answers, graphs
from pipeline.report.layout import (
    COLUMNS,
    Column,
    Results,
    accuracies,
    inventory,
    proof_listing,
    results,
    searches,
    sections,
)
from pipeline.report.model import CampaignReport, Row
from pipeline.report.modes import mode_listings
from pipeline.report.wording import visible

FILE_NAME = "report.html"
MOST_PLACES = 40
"""Places of one note that the page lists: results.json has all."""

VERDICT_CLASSES = {
    Verdict.FASTER: "faster",
    Verdict.SLOWER: "slower",
    Verdict.SAME: "same",
    Verdict.NOT_SHOWN: "unknown",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultTable:
    """The rows of one model on one device with what is drawn of them; `note` says why its times do not count."""

    found: Results
    columns: tuple[Column, ...]
    note: str
    distribution: charts.Distribution | None
    scatters: tuple[charts.Scatter, ...]


def render(report: CampaignReport) -> str:
    """The whole page; the same report gives the same page."""
    return _template("report.html").render(
        report=report,
        banner=banner(report),
        decisions=decisions(report),
        failed=failure_counts(report),
        shipped={(one.model, one.variant, one.run) for one in report.choices},
        tuned=tuning.listings(report.tuned) if report.tuned else (),
        tables=tuple(_table(found) for found in results(report)),
        modes=mode_listings(report),
        curves=drawing.curves(report),
        accuracy=accuracies(report),
        fronts=drawing.fronts(report),
        searches=tuple(zip(drawing.loss_bars(report), searches(report), strict=True)),
        proofs=tuple(listing for listing in map(proof_listing, report.proofs) if listing.rows),
        sections={section.title: section for section in sections(report)},
        views=profiles.views(report),
        profiles=(*profiles.folded(report.profiles), *([profiles.summary(report.profiles)] if report.profiles else ())),
        graphs=graphs(report),
        inventory=inventory(report),
        legend=wording.legend(report),
    )


def _table(found: Results) -> ResultTable:
    uncounted = not_a_phone(found.rows)
    shown = tuple(column for column in PAGE_COLUMNS if any(column.text(row) != wording.DASH for row in found.rows))
    return ResultTable(
        found=found,
        columns=shown,
        note="Not measured on a phone: these runs show what works, and their times rank nothing." if uncounted else "",
        distribution=None if uncounted else charts.distribution(found.rows, {}),
        scatters=() if uncounted else charts.scatters(found.rows),
    )


def outputs(row: Row) -> str:
    """As everywhere, with how much of what may differ that is."""
    limits = [c.max_abs_error / c.limit for c in row.checks if c.limit and c.max_abs_error is not None]
    most = max(limits, default=0.0)
    text = "under 1 %" if most < 0.01 else f"{most * 100:.3g} %"
    return wording.outputs(row) + (f", {text} of the limit" if limits else "")


PAGE_COLUMNS = tuple(
    Column(title="Outputs", text=outputs, number=False) if column.title == "Outputs" else column
    for column in COLUMNS
    if column.title not in {"Variant", "Run", "Status", "95 %"}
)
"""The columns of the page: variant, run and status stand at the head of a row, the interval under the ratio."""


def read_template(name: str) -> str:
    """A file of the templates, as text."""
    return resources.files("pipeline.report").joinpath("templates", name).read_text(encoding="utf-8")


def render_answers(answers: Sequence[ModelAnswer]) -> str:
    """A page of its own with the graphs of `ort-mobile partition`, by the templates of the report."""
    return _template("partition.html").render(graphs=draw_answers(answers))


@cache
def _template(name: str) -> jinja2.Template:
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
        charts=charts,
        drawing=drawing,
        profile_texts=profiles,
        wording=wording,
        classes=_classes,
        css=read_template("report.css") + read_template("graph.css"),
        box_height=BOX_HEIGHT,
        most_places=MOST_PLACES,
    )
    return environment.get_template(name)


def _shown(value: object) -> object:
    """Every text that the template puts out goes through here, before it is escaped."""
    return visible(value) if type(value) is str else value


def _classes(row: Row, shipped: Sequence[tuple[str, str, str]]) -> str:
    """The CSS classes of a row; colour only repeats what the words say."""
    wrong = any(check.failed for check in row.checks)
    verdict = VERDICT_CLASSES[row.comparison.verdict] if row.comparison and not wrong else ""
    failed = "" if row.status is Status.OK else "failed"
    ships = "ship" if (row.model, row.variant, row.run) in shipped else ""
    parts = (verdict, failed, "wrong" if wrong else "", ships)
    return " ".join(part for part in parts if part)
