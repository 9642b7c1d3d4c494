"""report.html: one page with everything in it, no request to anywhere; what runs in it is named by its digest.

What the page's script draws is in it, too: rows and runs as columns, raw latencies, gzipped and in base64.
"""

import base64
import gzip
import hashlib
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, Literal, NamedTuple

import jinja2
import msgspec

from device_runner import result as run_result
from device_runner import safe_text
from device_runner.result import Status
from pipeline.campaign.record import RunRecord
from pipeline.campaign.statistics import compare as run_compare
from pipeline.core.features import Place
from pipeline.partition import answer as claim_answer
from pipeline.report import accuracies, drawing, inventory, layout, sections, wording
from pipeline.report import profiles as report_profiles
from pipeline.report import proofs as report_proofs
from pipeline.report.decision import banner, decisions, not_a_phone, overview
from pipeline.report.drawing import BOX_HEIGHT, draw_answers, graphs
from pipeline.report.explanations import words
from pipeline.report.model import CampaignReport, MeasuredRun, Row
from pipeline.report.modes import mode_listings
from pipeline.report.operators import BAR, needed_operators, time_tables
from pipeline.report.wording import Listing

MOST_ROWS = 150
"""Rows with pictures: of larger campaigns only what ships has them, and all rows are one table without a script."""
MOST_DRAWN = 12
"""Tables with pictures of such a campaign."""
MOST_PLACES = 40
"""Places of one note that the page lists: results.json has all."""

NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'"
"""The page's policy: nothing is fetched; only what has the digests that are put behind it runs or styles."""
NO_TABLE = Listing(title="", head=(), rows=())
SINCE = Place[Callable[[CampaignReport, CampaignReport], Listing]]("report.since")
"""What changed from an earlier campaign to this one."""

VERDICT_CLASSES = {
    run_compare.Verdict.FASTER: "faster",
    run_compare.Verdict.SLOWER: "slower",
    run_compare.Verdict.MIXED: "slower",
    run_compare.Verdict.SAME: "same",
    run_compare.Verdict.NOT_SHOWN: "unknown",
}


def render(
    report: CampaignReport,
    measured: Sequence[MeasuredRun] = (),
    earlier: CampaignReport | None = None,
) -> str:
    """The whole page; the same values give the same page.

    `measured` are the runs with their raw latencies, for what is drawn and downloaded; `earlier` is the campaign that
    this one is compared with: of the same name, before it.
    """
    tables = layout.results(report)
    places = {(choice.model, choice.device) for choice in report.choices}
    some = [(of_model, rows) for of_model, rows in tables.items() if of_model in places][:MOST_DRAWN]
    drawn = dict(some) if len(report.rows) > MOST_ROWS else tables
    compact = NO_TABLE  # every row in one table, where not all have pictures
    if sum(map(len, drawn.values())) != len(report.rows):
        ok = all(wording.status(row) == Status.OK for row in report.rows)
        at_head = {"Variant", "Run"} | ({"Status"} if ok else set())
        shown = {head: text for head, text in _filled(layout.COLUMNS, report.rows).items() if head not in at_head}
        compact = Listing(
            title="All rows",
            head=("Device", "Model", "Variant and run", *shown),
            rows=tuple(
                (row.device, row.model, f"{row.variant} {row.run}", *(text(row) for text in shown.values()))
                for row in report.rows
            ),
        )
    return _template("report.html").render(
        scripts=_scripts() if measured else (read_template("report.js"),),
        data=page_data(report, measured) if measured else ("", ""),
        changed=next((since(earlier, report) for since in SINCE if earlier), NO_TABLE),
        compact=compact,
        report=report,
        banner=banner(report),
        decisions=decisions(report),
        overview=overview(report),
        choices_title=layout.choices_title(report),
        shipped={
            ("" if choice.classes else choice.device, choice.model, choice.variant, choice.run)
            for choice in report.choices
            if choice.classes or choice.device
        },
        tuned=sections.offered(report),
        tables=drawn,
        modes=mode_listings(report),
        curves=drawing.curves(report),
        accuracy=accuracies.accuracies(report),
        fronts=drawing.fronts(report),
        searches=tuple(zip(drawing.loss_bars(report), accuracies.searches(report), strict=True)),
        proofs=tuple(listing for listing in map(report_proofs.proof_listing, report.proofs) if listing.rows),
        sections={section.title: section for section in sections.sections(report)},
        views=report.profile_views,
        times=time_tables(report.profiles),
        profiles=[report_profiles.summary(report.profiles), *map(report_profiles.copies, report.profiles)]
        if report.profiles
        else [],
        needed=needed_operators(report),
        graphs=graphs(report),
        drivers=inventory.drivers(measured),
        inventory=inventory.inventory(report),
        words_used=words(report),
        legend=wording.legend(report),
    )


def _filled(columns: layout.Columns, rows: Sequence[Row]) -> layout.Columns:
    """Those that say something of any row."""
    return {head: text for head, text in columns.items() if any(text(row) != wording.DASH for row in rows)}


def outputs(row: Row) -> str:
    """As everywhere, with how much of what may differ that is."""
    limits = [c.max_abs_error / c.limit for c in row.checks if c.limit and c.max_abs_error is not None]
    most = max(limits, default=0.0)
    text = "under 1 %" if most < 0.01 else f"{most * 100:.3g} %"
    return wording.outputs(row.checks) + (f", {text} of the limit" if limits else "")


PAGE_COLUMNS = {
    head: outputs if head == "Outputs" else text
    for head, text in layout.COLUMNS.items()
    if head not in {"Variant", "Run", "Status", "Interval"}
}
"""The columns of the page: variant, run and status stand at the head of a row, the interval under the ratio."""


MOST_SAMPLES = 100_000
"""Raw latencies within the page, some 300 KB: results.sqlite has those of larger campaigns."""


def _thousandths(row: Row, bound: str) -> int | None:
    value = getattr(row.comparison, bound, None)
    return None if value is None else round(1000 * value)


class ExploredColumn(NamedTuple):
    """A column of the page's Explore table: its key in the page's data, its head, and how the script shows a value."""

    key: str
    head: str
    kind: Literal["text", "duration", "ratio", "interval", "bytes"] = "text"


EXPLORED = (
    ExploredColumn("device", "Device"),
    ExploredColumn("model", "Model"),
    ExploredColumn("median", "Median", "duration"),
    ExploredColumn("p90", "p90", "duration"),
    ExploredColumn("p99", "p99", "duration"),
    ExploredColumn("ratio", "Ratio", "ratio"),
    ExploredColumn("low", "Interval", "interval"),
    ExploredColumn("load", "Load", "duration"),
    ExploredColumn("first", "First run", "duration"),
    ExploredColumn("memory", "Memory", "bytes"),
    ExploredColumn("size", "Size", "bytes"),
)
"""Columns of numbers, which the script words and sorts, and what stands before those of `layout.COLUMNS`."""


def explored_columns() -> list[ExploredColumn]:
    """The columns of every format in their order; those that are not said otherwise are texts."""
    known = {column.head: column for column in EXPLORED}
    heads = ("Device", "Model", *layout.COLUMNS)
    return [known.get(head, ExploredColumn(head.lower(), head)) for head in heads]


NUMBERS: dict[str, Callable[[Row], object]] = {
    "median": lambda row: round(row.statistics.median_ns) if row.statistics else None,
    "p90": lambda row: row.statistics.p90_ns if row.statistics else None,
    "p99": lambda row: row.statistics.p99_ns if row.statistics else None,
    "ratio": lambda row: _thousandths(row, "ratio"),
    "low": lambda row: _thousandths(row, "low"),
    "high": lambda row: _thousandths(row, "high"),
    "load": lambda row: row.load_ns,
    "first": lambda row: row.first_run_ns,
    "memory": lambda row: row.memory_peak_bytes,
    "size": lambda row: row.size_bytes,
    "quantiles": lambda row: [int(float(f"{ns:.3g}")) for ns in row.shape.latencies_ns],  # enough for a drawing
}
"""Columns of numbers: times are nanoseconds, ratios thousandths."""


def timed(measured: Sequence[MeasuredRun]) -> Iterator[tuple[drawing.RowKey, RunRecord]]:
    """Every run that gave times, with the key of its row."""
    for planned, runs in measured:
        for run in runs:
            if run.result.status is Status.OK and run.result.latencies_ns:
                yield planned.names, run


def page_data(report: CampaignReport, measured: Sequence[MeasuredRun]) -> tuple[str, str]:
    """The columns, and the raw latencies as 32 bit numbers in the order of the runs ("" where there are too many).

    Both are base64 of gzip. `row` of a run is a place in the rows, `at` milliseconds since the first run, `celsius`
    tenths. Temperature (of the battery, else of the hottest thermal zone) and frequency (of the fastest core) are those
    before the run, None where the device does not say. Latencies over 4.29 s are written as the largest number that
    fits.
    """
    runs = list(timed(measured))
    total = sum(len(run.result.latencies_ns) for _, run in runs)
    raw = 0 < total <= MOST_SAMPLES
    places = {row.names: index for index, row in enumerate(report.rows)}
    kept = [(places[key], run) for key, run in runs if key in places]
    starts = [run_result.epoch_ms(run.result.started_at) or 0 for _, run in kept]
    first = min((start for start in starts if start), default=0)
    before = [run.result.before for _, run in kept]
    heat = [
        max(conditions.zones_celsius.values(), default=None)
        if conditions.battery_celsius is None
        else conditions.battery_celsius
        for conditions in before
    ]
    names: dict[str, int] = {}
    columns = explored_columns()
    texts: dict[str, Callable[[Row], str]] = {
        "Device": lambda row: row.device,
        "Model": lambda row: row.model,
        **layout.COLUMNS,
    }
    rows: dict[str, list[Any]] = {
        column.key: [names.setdefault(safe_text.visible(texts[column.head](row)), len(names)) for row in report.rows]
        for column in columns
        if column.kind == "text"
    }
    rows |= {key: [value(row) for row in report.rows] for key, value in NUMBERS.items()}
    data = {
        "started": min((run.result.started_at for _, run in kept if run.result.started_at), default=""),
        "columns": columns,
        "names": list(names),
        "rows": rows,
        "runs": {
            "row": [index for index, _ in kept],
            "round": [run.round for _, run in kept],
            "at": [max(0, start - first) for start in starts],
            "median": [run.result.median_ns or 0 for _, run in kept],
            "celsius": [None if celsius is None else round(10 * celsius) for celsius in heat],
            "mhz": [max(conditions.cpu_mhz, default=None) for conditions in before],
            "thermal": [conditions.thermal_status for conditions in before],
            "samples": [len(run.result.latencies_ns) for _, run in kept],
        },
        "raw": raw,
    }
    numbers = array("I", (min(ns, 2**32 - 1) for _, run in kept for ns in run.result.latencies_ns)) if raw else None
    return _packed(msgspec.json.encode(data)), _packed(numbers.tobytes()) if numbers else ""


def _packed(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, compresslevel=9, mtime=0)).decode("ascii")


def read_template(name: str) -> str:
    """A file of the templates, as text."""
    return resources.files("pipeline.report").joinpath("templates", name).read_text(encoding="utf-8")


def render_answers(answers: Sequence[claim_answer.ModelAnswer]) -> str:
    """A page of its own with the graphs of `ort-mobile partition`, by the templates of the report."""
    return _template("partition.html").render(graphs=draw_answers(answers))


def render_listings(
    title: str,
    listings: Sequence[Listing],
    links: Sequence[tuple[str, str]],
    *,
    lines: Sequence[str] = (),
    targets: Mapping[str, str] | None = None,
    events: str = "",
) -> str:
    """A small page of a server: tables, and `links` as texts with addresses.

    `targets` has addresses for names in first columns; `events` is where the first table's news come from.
    """
    return _template("listing.html").render(
        title=title,
        listings=listings,
        links=links,
        lines=lines,
        targets=targets or {},
        events=events,
        live=read_template("live.js"),
        page_policy=listing_policy(),
    )


def report_policy() -> str:
    """The policy of report.html, for a server's header, too."""
    return f"{NOTHING}; script-src {' '.join(map(_digest, _scripts()))}; style-src {_digest(_styles())}"


def listing_policy() -> str:
    """The policy of `render_listings`: its one script may ask its own server."""
    live = _digest(read_template("live.js"))
    return f"{NOTHING}; script-src {live}; style-src {_digest(_styles())}; connect-src 'self'"


@cache
def _styles() -> str:
    return "".join(map(read_template, ("uplot.css", "report.css", "graph.css")))


@cache
def _scripts() -> tuple[str, ...]:
    return read_template("uplot.js"), read_template("report.js")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


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
        css=_styles(),
        policy=report_policy(),
        drawing=drawing,
        profile_texts=report_profiles,
        wording=wording,
        classes=_classes,
        not_a_phone=not_a_phone,
        page_columns=lambda rows: _filled(PAGE_COLUMNS, rows),
        words=layout.WORDS,
        box_height=BOX_HEIGHT,
        bar_width=BAR,
        most_places=MOST_PLACES,
    )
    return environment.get_template(name)


def _shown(value: object) -> object:
    """Every text that the template puts out goes through here, before it is escaped."""
    return safe_text.visible(value) if type(value) is str else value


def _classes(row: Row, shipped: Collection[drawing.RowKey]) -> str:
    """The CSS classes of a row; colour only repeats what the words say. A device of "" in `shipped` is any."""
    wrong = any(check.failed for check in row.checks)
    verdict = VERDICT_CLASSES[row.comparison.verdict] if row.comparison and not wrong else ""
    failed = "" if row.status is Status.OK else "failed"
    ships = "ship" if any((device, row.model, row.variant, row.run) in shipped for device in ("", row.device)) else ""
    parts = (verdict, failed, "wrong" if wrong else "", ships)
    return " ".join(part for part in parts if part)
