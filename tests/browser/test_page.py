"""The page as people meet it: sizes, keyboard, paper, no script, hostile names; audited by axe, seen in pictures."""

import shutil
import subprocess
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PIL import Image, ImageChops, ImageStat

from device_runner.result import Conditions
from pipeline.core.files import TRACE
from pipeline.core.progress import StageTime
from pipeline.core.providers import XNNPACK
from pipeline.report import html
from pipeline.report.model import CampaignReport, MeasuredRun
from pipeline.report.profiles import profile_views
from pipeline.report.trace import encode_trace
from tests.browser.conftest import Browser, Open, Opened
from tests.command import ort_mobile
from tests.conftest import ROOT
from tests.npm_packages import packed
from tests.report.test_graph import placement
from tests.report.test_html import HOSTILE, UPLOT
from tests.report.test_profile_view import AFTER, BEFORE
from tests.report_samples import make_report, measured, with_times
from tests.values import present

pytestmark = pytest.mark.browser

AXE = (
    "axe-core@4.14.1",
    "sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
)  # fmt: skip
UPLOT_PACKAGE = (
    "uplot@1.6.32", "sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
)  # fmt: skip
SPEEDSCOPE = (
    "speedscope@1.25.0",
    "sha512-cpf9HWTZf1ijLXBJrk87Ve/54tnYx6rlf0gUThvn3ook6h63hLXVOQiMf44PT+XoV503cPfvfiT5gP5vojp6Ag==",
)
WIDTHS = (390, 768, 1280)
PICTURES = ROOT / "docs" / "pictures"
ALIKE = 6.0
"""Mean difference of two pictures in levels of 255, each an eighth of its size: fonts differ between machines."""


def rows(device: str = "adb:R58M123", model: str = "mnist") -> list[MeasuredRun]:
    """The sample's runs with instants, durations, temperatures and the computer that drove the devices."""
    return with_times([*measured(model, "local"), *measured(model, device)], Conditions(battery_celsius=31.5))


def whole_report(
    name: str = "mnist", model: str = "mnist", device: str = "adb:R58M123", text: str = ""
) -> CampaignReport:
    """The sample with graphs of two providers, profiles of two variants, and what they say beside each other."""
    graphs = (placement(40, 7, name=f"/block/conv{text}"), placement(9, 3, XNNPACK, name=f"/node{text}"))
    found = [msgspec.structs.replace(one, model=model, device=device) for one in (BEFORE, AFTER)]
    return msgspec.structs.replace(
        make_report(name, model, device, text),
        placements=tuple(msgspec.structs.replace(one, model=model, device=device) for one in graphs),
        profiles=tuple(found),
        profile_views=profile_views(found, {}, {"all-fixed": 1}),
    )


@pytest.fixture(scope="module")
def text() -> str:
    before = msgspec.structs.replace(make_report(), campaign="before")
    return html.render(whole_report(), rows(), before)


def quiet(opened: Opened) -> None:
    """Nothing but the file was asked for, and the browser has nothing to say: no refused script or style either."""
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith(("blob:", "data:"))] == [opened.page.url.split("#")[0]]


def drawn_timeline(opened: Opened) -> None:
    opened.page.locator("#timeline-part").scroll_into_view_if_needed()
    opened.page.wait_for_selector("#explore-timeline canvas")


def read_through(opened: Opened) -> None:
    """Scroll to the end as a reader does: parts out of sight are laid out when they are seen."""
    opened.page.evaluate(
        "async () => { for (let y = 0; y < document.documentElement.scrollHeight; y += 400) { scrollTo(0, y);"
        " await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))); } }"
    )


def test_nothing_is_fetched_and_nothing_refused(open_page: Open, text: str) -> None:
    opened = open_page(text)
    drawn_timeline(opened)
    opened.page.get_by_role("button", name="Zoom in").click()
    quiet(opened)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_is_no_wider_than_its_window(open_page: Open, text: str, width: int) -> None:
    long_name = "a_model_with_a_name_" + 8 * "that_has_no_place_to_break_"
    for given in (
        text,
        html.render(whole_report(model=long_name, device="adb:" + 60 * "X"), rows(60 * "X", long_name)),
    ):
        opened = open_page(given, width=width)
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        assert opened.page.evaluate("getComputedStyle(document.querySelector('td')).display") == "table-cell"
        opened.page.locator("#changed").or_(opened.page.locator("#results")).first.scroll_into_view_if_needed()
        cells = opened.page.locator("#changed ~ .scroll td", has_text="2.07 ms").all()
        assert len(cells) == (4 if given is text else 0)
        assert all(each.evaluate("(cell) => cell.clientWidth") >= 35 for each in cells)  # not a digit on each line
        assert max(opened.page.locator("td.word").evaluate_all(LINES)) == 1  # 0 where it is out of sight


LINES = """(cells) => cells.map((cell) => {
  const text = document.createRange();
  text.selectNodeContents(cell);
  return text.getClientRects().length;
})"""
"""On how many lines the text of each cell stands: no laten|cy."""


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390)])
def test_the_audit_finds_nothing(open_page: Open, text: str, scheme: str, width: int) -> None:
    opened = open_page(text, width=width, color_scheme=scheme)
    drawn_timeline(opened)
    read_through(opened)
    opened.page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    opened.page.evaluate(packed(*AXE)["axe.min.js"].decode())
    found = opened.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    broken = {rule["id"]: [node["html"][:200] for node in rule["nodes"]][:3] for rule in found["violations"]}
    assert broken == {}
    assert len(found["passes"]) > 20


def test_tables_and_pictures_stand_without_a_script(open_page: Open, text: str) -> None:
    opened = open_page(text, java_script_enabled=False)
    page = opened.page
    assert page.locator("table:visible").count() >= 5
    assert page.locator("svg[role=img]:visible").count() >= 20
    box = page.locator(".graph a.cpu").first
    box.click()
    assert page.locator(f"{box.get_attribute('href')} li").first.is_visible()
    assert page.locator("svg.time:visible").count() >= 5
    assert not page.locator("#explore-part").is_visible()
    assert not page.get_by_role("link", name="Explore").is_visible()
    quiet(opened)


def test_what_ships_and_what_failed_are_on_the_first_screen(open_page: Open, text: str) -> None:
    page = open_page(text).page
    for heading in ("What ships", "What failed"):
        box = present(page.get_by_role("heading", name=heading).bounding_box())
        assert box["y"] + box["height"] < 800


def test_hostile_names_are_only_text(open_page: Open) -> None:
    report = whole_report(name=HOSTILE, model=HOSTILE, device=HOSTILE, text=HOSTILE)
    opened = open_page(html.render(report, rows(HOSTILE, HOSTILE)))
    opened.page.on("dialog", lambda dialog: opened.complaints.append(dialog.message))
    drawn_timeline(opened)
    assert opened.page.evaluate("document.images.length") == 0
    assert opened.page.locator("script").count() == 4
    assert "<script>alert(1)</script>" in (opened.page.locator("#explore-body").text_content() or "")
    quiet(opened)


def test_on_paper_tables_are_tables_and_nothing_is_cut(open_page: Open, text: str) -> None:
    opened = open_page(text)
    opened.page.emulate_media(media="print")
    opened.page.set_viewport_size({"width": 1032, "height": 700})  # A4 across, at 96 dots an inch, without margins
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 1032
    cut = "[...document.querySelectorAll('.scroll')].filter((each) => each.scrollWidth > each.clientWidth + 1).length"
    assert opened.page.evaluate(cut) == 0
    assert not opened.page.locator("nav").is_visible()
    assert opened.page.pdf(prefer_css_page_size=True).startswith(b"%PDF")


def test_keys_reach_and_sort_the_table(open_page: Open, text: str) -> None:
    page = open_page(text).page
    names = []
    for _ in range(60):
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
        if names[-1] == "Median":
            break
    assert {"What ships", "filter-model", "filter-text"} <= set(names)
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#sort=median"
    assert page.evaluate("document.activeElement.textContent") == "Median ↓"
    fastest = page.locator("#explore-body tr").first.text_content() or ""
    assert "extended-fixed-nnapi" in fastest


def test_the_address_keeps_what_is_shown(open_page: Open, text: str) -> None:
    page = open_page(text, fragment="#device=adb%3AR58M123&text=basic&sort=-median").page
    assert page.locator("#filter-device").input_value() == "adb:R58M123"
    shown = page.locator("#explore-body tr").all_text_contents()
    assert len(shown) == 3
    assert all("adb:R58M123" in row and "basic" in row for row in shown)
    page.locator("#filter-text").fill("runtime")
    assert "text=runtime" in page.evaluate("location.hash")
    assert page.locator("#explore-body tr").count() == 1


def test_what_is_measured_can_be_downloaded(open_page: Open, text: str) -> None:
    page = open_page(text, accept_downloads=True).page
    runs = [run for _, records in rows() for run in records if run.result.latencies_ns]
    samples = sum(len(run.result.latencies_ns) for run in runs)
    for button, head, lines in (
        ("Download runs (CSV)", "device,model,variant,run,round,", len(runs)),
        (
            "Download latencies (CSV)",
            "device,model,variant,run,round,latency_ns",
            samples,
        ),
    ):
        with page.expect_download() as waiting:
            page.get_by_role("button", name=button).click()
        content = Path(waiting.value.path()).read_text().splitlines()
        assert content[0].startswith(head)
        assert len(content) == lines + 1
        if "latency" in head:
            assert content[1].endswith(f",0,{runs[0].result.latencies_ns[0]}")


def test_the_timeline_is_drawn_and_zooms(open_page: Open, text: str) -> None:
    page = open_page(text, fragment="#device=local").page
    page.locator("#timeline-part").scroll_into_view_if_needed()
    page.wait_for_selector("#explore-timeline canvas")
    image = Image.open(BytesIO(page.locator("#explore-timeline canvas").screenshot()))
    assert len(image.convert("RGB").getcolors(2**20) or ()) > 20
    axis = page.locator("#explore-timeline").get_attribute("aria-label") or ""
    assert axis.startswith("40 runs over")
    page.get_by_role("button", name="Zoom in").click()
    note = page.locator("#timeline-note")
    assert "Dashed: temperature" in (note.text_content() or "")
    zoomed = Image.open(BytesIO(page.locator("#explore-timeline canvas").screenshot()))
    assert ImageChops.difference(image.convert("RGB"), zoomed.convert("RGB")).getbbox() is not None
    assert "°C" in (page.locator("#explore-timeline").text_content() or "")


def test_temperatures_of_several_devices_are_no_line_and_times_are_utc(open_page: Open, text: str) -> None:
    opened = open_page(text, timezone_id="America/New_York", locale="en-US")
    drawn_timeline(opened)
    page = opened.page
    assert "Choose one device" in (page.locator("#timeline-note").text_content() or "")
    assert "°C" not in (page.locator("#explore-timeline").text_content() or "")
    shown = page.evaluate("""() => {
      const texts = [], drawn = CanvasRenderingContext2D.prototype, fill = drawn.fillText;
      drawn.fillText = function (text, ...rest) { texts.push(text); fill.call(this, text, ...rest); };
      document.getElementById("zoom-in").click();
      return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(texts))));
    }""")
    assert any(one.startswith("08:0") for one in shown), shown
    assert "2026-01-31" in shown


def test_drawings_keep_their_shape_on_a_phone_and_nothing_of_a_card_is_cut(open_page: Open, text: str) -> None:
    page = open_page(text, width=390).page
    read_through(Opened(page=page))
    for box in page.locator("main figure svg[viewBox]").all():
        width, height = box.evaluate("(one) => [one.viewBox.baseVal.width, one.viewBox.baseVal.height]")
        drawn = box.bounding_box()
        assert drawn is None or abs(drawn["height"] / drawn["width"] - height / width) < 0.02
    lowest = """(one) => one.viewBox.baseVal.height - Math.max(
      ...[...one.querySelectorAll("text")].map((text) => text.getBBox().y + text.getBBox().height))"""
    assert page.locator(".choice svg").first.evaluate(lowest) >= 0


VIEWS: dict[str, dict[str, Any]] = {
    "report-light": {"color_scheme": "light"},
    "report-dark": {"color_scheme": "dark"},
    "report-phone": {"color_scheme": "light", "width": 390, "height": 844},
}


def compared(shot: bytes, name: str, request: pytest.FixtureRequest) -> None:
    """A picture of the documentation is the page as it is: written where that is asked for."""
    image = Image.open(BytesIO(shot)).convert("RGB")
    file = PICTURES / f"{name}.png"
    if request.config.getoption("write_pictures"):
        PICTURES.mkdir(exist_ok=True)
        image.quantize(64).save(file, optimize=True)
    known = Image.open(file).convert("RGB")
    assert known.size == image.size
    small = [each.resize((image.width // 8, image.height // 8), Image.Resampling.BOX) for each in (known, image)]
    assert max(ImageStat.Stat(ImageChops.difference(*small)).mean) < ALIKE


@pytest.mark.parametrize("name", VIEWS)
def test_the_pictures_in_the_documentation_are_the_page(
    open_page: Open, text: str, name: str, request: pytest.FixtureRequest
) -> None:
    compared(open_page(text, **VIEWS[name]).page.screenshot(), name, request)


def test_a_box_of_a_partition_leads_to_its_nodes_which_nothing_covers(
    open_page: Open, oracle: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with zipfile.ZipFile(oracle / "real.zip") as archive:
        archive.extract("vit_tiny.base.onnx", tmp_path)
    file = tmp_path / "page.html"
    model = str(tmp_path / "vit_tiny.base.onnx")
    ort_mobile("partition", model, "--ep", "nnapi,coreml", "--html", file)
    opened = open_page(file.read_text(encoding="utf-8"))
    page = opened.page
    box = page.locator(".graph a.cpu", has_text="Gather").first
    box.click()
    page.wait_for_timeout(300)
    nodes = page.locator(str(box.get_attribute("href")))
    top = present(nodes.bounding_box())
    below = present(page.locator("nav").bounding_box())
    assert below["y"] >= 0
    assert top["y"] >= below["y"] + below["height"]
    assert top["y"] + top["height"] <= 800
    quiet(opened)
    compared(page.screenshot(), "partition-page", request)


def test_speedscope_opens_the_trace(browser: Browser, tmp_path: Path) -> None:
    """The genuine viewer, from its package: no error, nothing asked for but its own files, the parts where we say."""
    for name, content in packed(*SPEEDSCOPE).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    runs = [run for _, records in rows() for run in records]
    stage = StageTime(
        name="convert", steps=2, started_at="2026-01-31T07:59:00.000Z", elapsed_ns=9 * 10**8, host="lab-7"
    )
    (tmp_path / TRACE).write_bytes(encode_trace("mnist", "c0ffee", runs, [stage]))
    page = browser.new_page()
    opened = Opened(page=page)
    page.on("request", lambda request: opened.requests.append(request.url))
    page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    page.on("console", lambda message: opened.complaints.extend([message.text] if message.type == "error" else []))
    page.on("dialog", lambda dialog: opened.complaints.append(dialog.message))
    page.goto((tmp_path / "dist" / "release" / "index.html").as_uri())
    page.locator("input[type=file]").set_input_files(tmp_path / TRACE)
    page.get_by_text("ort-mobile on lab-7").first.wait_for()
    page.keyboard.press("n")
    page.get_by_text("d of lab-7").first.wait_for()
    assert page.title().startswith(TRACE)
    page.close()
    assert opened.complaints == []
    assert all(url.startswith(("file:", "blob:", "data:")) for url in opened.requests)


def test_the_script_has_no_errors_of_syntax(tmp_path: Path) -> None:
    if not shutil.which("node"):
        pytest.skip("no node here: install Node.js")
    file = tmp_path / "report.js"
    file.write_text(html.read_template("report.js"), encoding="utf-8")
    done = subprocess.run(["node", "--check", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_vendored_files_are_those_of_the_package() -> None:
    files = packed(*UPLOT_PACKAGE)
    names = {"uplot.js": "dist/uPlot.iife.min.js", "uplot.css": "dist/uPlot.min.css", "uplot.LICENSE": "LICENSE"}
    assert set(names) == set(UPLOT)
    for own, theirs in names.items():
        assert html.read_template(own).encode() == files[theirs]
