"""The page: whole in one file, well nested, told to screen readers, and hostile text is only text."""

import base64
import gzip
import hashlib
import re
from array import array
from collections import Counter
from html import unescape
from html.parser import HTMLParser

import msgspec
import pytest

from device_runner.result import Conditions, Status
from device_runner.safe_text import visible
from pipeline.report import drawing, html, layout
from pipeline.report.decision import MOST_CARDS
from pipeline.report.model import CampaignReport, make_rows
from tests.report_samples import make_report, measured, with_times
from tests.values import present

UPLOT = {
    "uplot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
VOID = {"input", "meta", "line", "circle", "polyline", "rect", "path"}
HOSTILE = "</td></table><script>alert(1)</script><img src=http://e.vil onerror=x> {{ 7 * 7 }} \"'&lt; \x1b\u202e"


class Page(HTMLParser):
    """Tags, attributes and texts of a page; checks that every tag is closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self.rows and {"td", "th"} & set(self.open) and "svg" not in self.open:
            self.rows[-1][-1] += data

    def values(self, name: str) -> list[str]:
        return [value for _, attribute, value in self.attributes if attribute == name]


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(html.render(make_report()))


def test_nothing_is_fetched_and_nothing_runs() -> None:
    text = html.render(make_report())
    found = Page(text)
    assert found.tags["link"] == found.tags["img"] == found.tags["iframe"] == 0
    assert not {name for _, name, _ in found.attributes} & {"src", "srcset", "style"}
    assert all(value.startswith("#") for value in found.values("href"))
    assert {value[1:] for value in found.values("href")} <= set(found.values("id"))
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]
    assert not re.search(r"url\(|@import|https?:", text.replace("http://www.w3.org/2000/svg", ""))


def test_what_runs_is_known_by_its_digest() -> None:
    """The policy names the digests of every script and style in the page, and allows nothing else."""
    for text in (html.render(make_report()), html.render(make_report(), measured("mnist", "local"))):
        policy = present(re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text))
        allowed = unescape(policy[1])
        assert allowed.startswith("default-src 'none'; base-uri 'none'; form-action 'none'; script-src 'sha256-")
        assert "unsafe" not in allowed
        for content in (
            *re.findall(r"<script>(.*?)</script>", text, re.DOTALL),
            *re.findall(r"<style>(.*?)</style>", text, re.DOTALL),
        ):
            digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in allowed


def test_the_vendored_script_is_the_released_one() -> None:
    """uPlot 1.6.32 of the npm package; `nox -s browser_tests` fetches it again and compares."""
    for name, digest in UPLOT.items():
        assert hashlib.sha256(html.read_template(name).encode()).hexdigest() == digest
    assert "</script" not in html.read_template("uplot.js") + html.read_template("report.js")


def test_the_data_of_the_page_are_the_runs() -> None:
    report, rows = make_report(), [*measured("mnist", "local"), *measured("mnist", "adb:R58M123")]
    columns, raw = html.page_data(report, rows)
    data = msgspec.json.decode(gzip.decompress(base64.b64decode(columns)))
    runs = list(html.timed(rows))
    place, *others = data["runs"]["row"]
    assert 1 + len(others) == len(runs) == 2 * (5 * 7 + 5)
    first = tuple(data["names"][data["rows"][key][place]] for key in ("variant", "device"))
    assert first == ("none-fixed", "local")
    numbers = array("I", gzip.decompress(base64.b64decode(raw)))
    assert list(numbers) == [ns for _, run in runs for ns in run.result.latencies_ns]


def test_a_new_column_is_one_of_the_pages_script_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(layout.COLUMNS, "Rounds", lambda row: f"{row.rounds} rounds")
    report = make_report()
    columns, _ = html.page_data(report, measured("mnist", "local"))
    data = msgspec.json.decode(gzip.decompress(base64.b64decode(columns)))
    assert [head for _, head, _ in data["columns"]] == ["Device", "Model", *layout.COLUMNS]
    assert data["columns"][-1] == ["rounds", "Rounds", "text"]
    shown = [data["names"][name] for name in data["rows"]["rounds"]]
    assert shown == [f"{row.rounds} rounds" for row in report.rows]
    assert all(key in data["rows"] for key, _, _ in data["columns"])


def test_every_row_has_a_cell_for_every_head(page: Page) -> None:
    rows = [row for row in page.rows if row[0] in {"none-fixed cpu", "basic-fixed nnapi"}]
    head = next(row for row in page.rows if row[0] == "Variant and run")
    assert len(rows) == 4
    assert {len(row) for row in rows} == {len(head)}
    cells = [" ".join(cell.split()) for row in page.rows for cell in row]
    assert {"2.07 ms", "0.62 0.61 to 0.63", "same within 5 %", "differ 2.4e-01 top-1 84.0%", "failed"} <= set(cells)


def test_a_large_campaign_has_every_row_in_one_table_without_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no column that says nothing of any row."""
    monkeypatch.setattr(html, "MOST_ROWS", 3)
    monkeypatch.setattr(html, "MOST_DRAWN", 1)
    report = make_report()
    plain = present(re.search(r"<noscript>(.*?)</noscript>", html.render(report), re.DOTALL))
    rows = Page(plain[1]).rows
    assert rows[0][:5] == ["Device", "Model", "Variant and run", "Status", "Median"]
    assert [row[:3] for row in rows[1:]] == [[row.device, row.model, f"{row.variant} {row.run}"] for row in report.rows]
    assert all(set(cells) != {"-"} for cells in zip(*rows[1:], strict=True))
    good = tuple(row for row in report.rows if row.status is Status.OK and not row.failed_rounds)
    assert "Status" not in html.render(msgspec.structs.replace(report, rows=good)).split("<noscript>")[1]


def test_which_computer_drove_a_device_and_what_pushing_cost_is_said() -> None:
    (planned, runs), *rest = measured("mnist", "local")
    noted = msgspec.structs.replace(runs[0].result, host="lab-7", elapsed_ns=4 * 10**9, push_ns=15 * 10**8,
                                    started_at="2026-01-31T08:00:00.000Z")  # fmt: skip
    run = msgspec.structs.replace(runs[0], result=noted)
    found = Page(html.render(make_report(), [(planned, (run, run)), *rest]))
    assert ["lab-7", "local", "2", "2026-01-31 08:00:00 UTC", "8.00 s", "3.00 s"] in found.rows
    assert "drivers" not in Page(html.render(make_report(), [(planned, runs), *rest])).values("id")


def test_the_campaign_before_is_compared_where_there_is_one() -> None:
    """What it measured 30 % slower on the phone is said to be faster now; a page without it has no such part."""
    rows = measured("mnist", "adb:R58M123")
    slower = [
        (planned, tuple(
            msgspec.structs.replace(run, result=msgspec.structs.replace(
                run.result, latencies_ns=tuple(int(1.3 * ns) for ns in run.result.latencies_ns)))
            for run in runs
        ))
        for planned, runs in rows
    ]  # fmt: skip
    now, before = (msgspec.structs.replace(make_report(), rows=make_rows(side, {})) for side in (rows, slower))
    found = Page(html.render(now, earlier=msgspec.structs.replace(before, campaign="before")))
    (row,) = (row for row in found.rows if row[:3] == ["adb:R58M123", "mnist", "extended-fixed/cpu"])
    assert row[3:6] == ["1.67 ms", "1.28 ms", "0.769"]
    assert row[-1].startswith("faster")
    assert "#changed" in found.values("href")
    assert "changed" not in Page(html.render(now)).values("id")


def marked(text: str) -> list[str]:
    """Tables, by title, with a row that is marked as what ships."""
    tables = re.findall(r'<h3 id="results-\d+">(.*?)</h3>(.*?)</section>', text, re.DOTALL)
    return [title for title, table in tables if re.search(r'<tr class="[^"]*ship', table)]


def test_what_ships_is_marked_where_it_was_measured_for_its_target() -> None:
    report = make_report()
    (choice,) = report.choices
    assert marked(html.render(report)) == [f"mnist on {choice.device}"]
    unmeasured = msgspec.structs.replace(choice, device="")
    assert marked(html.render(msgspec.structs.replace(report, choices=(unmeasured,)))) == []
    searched = msgspec.structs.replace(unmeasured, classes=("SM8550 31 arm64-v8a",))
    assert len(marked(html.render(msgspec.structs.replace(report, choices=(searched,))))) == 2


def test_many_answers_are_one_table_below_what_failed() -> None:
    report = make_report()
    many = tuple(msgspec.structs.replace(report.choices[0], target=f"phone {n}") for n in range(MOST_CARDS + 1))
    text = html.render(msgspec.structs.replace(report, choices=many))
    page = Page(text)
    assert 'class="choice' not in text
    assert text.count('id="ships"') == text.count('id="failures"') == 1
    assert text.index('id="failures"') < text.index('id="ships"')
    (row,) = (row for row in page.rows if "phone 7, measured on" in " ".join(row))
    assert "38 % less time than none-fixed/cpu" in row
    assert 'class="choice' in html.render(msgspec.structs.replace(report, choices=many[1:]))


def test_temperatures_are_the_batterys_else_the_hottest_zones() -> None:
    zones = {"soc": 61.26, "skin": 35.0}
    found = []
    for before in (
        Conditions(battery_celsius=31.5, zones_celsius=zones),
        Conditions(zones_celsius=zones),
        Conditions(),
    ):
        rows = with_times(measured("mnist", "local"), before)
        columns, _ = html.page_data(make_report(), rows)
        found.append(set(msgspec.json.decode(gzip.decompress(base64.b64decode(columns)))["runs"]["celsius"]))
    assert found == [{315}, {613}, {None}]


def test_costs_that_hardly_differ_look_alike() -> None:
    """An axis from 13.38 to 13.41 MiB would show 0.2 % as all the difference there is."""
    rows = make_rows(measured("mnist", "local"), {})
    close = [msgspec.structs.replace(row, size_bytes=1_000_000 + n) for n, row in enumerate(rows)]
    far = [msgspec.structs.replace(row, size_bytes=1_000_000 * (n + 1)) for n, row in enumerate(rows)]
    heights = []
    for costs in (close, far):
        drawn = drawing.scatters(costs)[0]
        ys = [mark["y"] for mark in drawn.marks]
        heights.append(max(ys) - min(ys))
        assert len({text for _, text in drawn.y_ticks}) == 2
        assert all(mark["x"] - 5 > drawing.COST_LEFT for mark in drawn.marks)
    assert heights[0] < 1
    assert heights[1] > 100


def test_screen_readers_are_told(page: Page) -> None:
    assert ("html", "lang", "en") in page.attributes
    labels = page.values("aria-label")
    hidden = page.values("aria-hidden")
    named = [value for tag, name, value in page.attributes if tag == "svg" and name == "aria-label"]
    assert page.tags["svg"] - len(hidden) == len(named) == 2 * 12 + 3
    assert all(named)
    assert any(re.fullmatch(r"median 1\.28 ms, 19 of 20 inferences between .* and .*", label) for label in labels)
    identities = page.values("id")
    assert len(identities) == len(set(identities))
    assert set(page.values("aria-labelledby")) <= set(identities)
    assert page.tags["h1"] == page.tags["main"] == 1
    assert page.tags["thead"] == page.tags["table"]
    assert page.values("scope").count("row") + page.values("scope").count("col") == page.tags["th"]


def test_hostile_text_is_only_text() -> None:
    hostile = Page(html.render(make_report(name=HOSTILE, model=HOSTILE, device=HOSTILE, text=HOSTILE)))
    assert hostile.tags == Page(html.render(make_report())).tags
    assert visible(HOSTILE) in hostile.texts
    assert not set("".join(hostile.texts)) & {"\x1b", "\u202e"}


def test_drawings_stay_inside(report: CampaignReport) -> None:
    rows = report.rows[:7]
    for row in rows[:-1]:
        strip, line = present(drawing.strip(row, rows)), present(drawing.rounds_line(row))
        assert [dot["x"] for dot in strip.marks] == sorted(dot["x"] for dot in strip.marks)
        assert all(0 < dot["x"] < drawing.STRIP_WIDTH and 0 < dot["y"] < drawing.STRIP_HEIGHT for dot in strip.marks)
        assert strip.marks[0]["x"] <= strip.x_ticks[0][0] <= strip.marks[-1]["x"]
        points = [tuple(map(float, point.split(","))) for point in line.line.split(" ")]
        assert all(0 < x < drawing.ROUNDS_WIDTH and 0 < y < drawing.ROUNDS_HEIGHT for x, y in points)
    assert drawing.strip(rows[-1], rows) is None
    assert drawing.rounds_line(rows[-1]) is None


def test_places_along_the_axis_follow_the_latencies(report: CampaignReport) -> None:
    rows = report.rows[:7]
    drawn = [drawing.strip(row, rows) for row in rows[:-1]]
    by_place = sorted(range(6), key=lambda n: drawn[n].x_ticks[0][0] if drawn[n] else 0)  # type: ignore[union-attr] # rows with times have strips
    assert [rows[n].variant for n in by_place[:2]] == ["extended-fixed-nnapi", "extended-fixed"]
    assert len({strip.x_ticks[1] for strip in drawn if strip}) == 1
