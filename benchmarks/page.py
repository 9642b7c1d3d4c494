"""What opening the report page costs in Chromium: 10,000 runs of 100 devices together with a graph of 2,000 nodes.

CPU is that of the page's main thread, by its ticks, until the page is loaded and two frames are drawn, and again when
the part Explore was scrolled to and is ready; medians of five openings, each in a window of its own. The empty page
shows what any page costs. Needs a Chromium and the package playwright (the group `browser`).
"""

import importlib
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from device_runner.device import DeviceFacts
from device_runner.result import Conditions, RunResult, Status
from device_runner.spec import RunOptions, RunSpec
from pipeline.campaign.record import Host, RecordedRun, RunRecord
from pipeline.partition.placement import ClaimReason, PlacedNode, Placement
from pipeline.report import html
from pipeline.report.model import CampaignReport, ChoiceRow, MeasuredRun, make_rows

DEVICES, MODELS, ROUNDS, LATENCIES = 100, 5, 5, 45
VARIANTS = {"none-fixed": 1.0, "basic-fixed": 0.9, "extended-fixed": 0.7, "all-fixed": 0.68}
"""Their time beside the first one's: 100 x 5 x 4 x 5 are 10,000 runs."""
NODES, REFUSED_EVERY = 2_000, 20
OPENINGS = 5
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """One opening of a page: CPU of its main thread and wall time in milliseconds, nodes of its document, its heap.

    `explored_ms` is the CPU until a reader has come to the part Explore, opening included.
    """

    cpu_ms: float
    explored_ms: float
    wall_ms: float
    nodes: float
    heap_bytes: float


def runs(model: str, device: int, factor: float, random: np.random.Generator) -> tuple[RunRecord, ...]:
    """The rounds of one row, 20 s apart, on a device that gets warmer."""
    base = 1e6 * (1 + len(model) + int(model[-1])) * (1 + device / 40) * factor
    made = []
    for number in range(ROUNDS):
        times = base * random.normal(1, 0.01) * (1 + random.gamma(1.2, 0.02, LATENCIES))
        at = datetime(2026, 1, 31, 8, tzinfo=UTC) + timedelta(seconds=20 * (number + ROUNDS * device))
        result = RunResult(
            spec_id="s", device=f"adb:{device}", status=Status.OK, started_at=at.isoformat(), load_ns=int(base),
            latencies_ns=tuple(map(int, times)), memory_peak_bytes=40_000_000 + device,
            elapsed_ns=2 * 10**9, push_ns=10**8, host=f"lab-{device % 4}",
            before=Conditions(battery_celsius=30 + number, cpu_mhz=(1800, 2800), thermal_status=0),
        )  # fmt: skip
        spec = RunSpec(id="s", model=f"{model}.ort", options=RunOptions())
        made.append(RunRecord(campaign="c", planned="p", round=number, model=model, variant="v", spec=spec,
                              result=result))  # fmt: skip
    return tuple(made)


def campaign() -> list[MeasuredRun]:
    """10,000 runs."""
    random = np.random.default_rng(1)
    return [
        (
            RecordedRun(id=f"{device} {model} {variant}", device=f"adb:PHONE{device:03}", model=f"model_{model}",
                        variant=variant, run="cpu", options=RunOptions(), baseline=variant == "none-fixed"),
            runs(f"model_{model}", device, factor, random),
        )
        for device in range(DEVICES) for model in range(MODELS) for variant, factor in VARIANTS.items()
    ]  # fmt: skip


def placement() -> Placement:
    """A chain that is cut into as many partitions as a page still draws in detail."""
    refused = [place % REFUSED_EVERY == REFUSED_EVERY - 1 for place in range(NODES)]
    nodes = tuple(
        PlacedNode(
            name=f"/model/encoder/layers.{place // 40}/attention/self/query_{place}",
            operator="Erf" if refused[place] else ("Conv", "Relu", "Add", "MatMul")[place % 4],
            partition=None if refused[place] else place // REFUSED_EVERY,
            reason=place // REFUSED_EVERY % 7 if refused[place] else None,
            inputs=(place - 1,) if place else (),
        )
        for place in range(NODES)
    )
    reasons = tuple(ClaimReason(what=f"no rule for Erf at level {n}", remedy="replace it") for n in range(7))
    return Placement(model="model_0", variant="all-fixed", device="adb:PHONE000", provider="nnapi", release="1.29",
                     nodes=nodes, reasons=reasons)  # fmt: skip


def page() -> str:
    """The page of the campaign with the graph."""
    rows = campaign()
    made = make_rows(rows, {(row.model, row.variant): 10_000_000 + len(row.variant) for row, _ in rows})
    report = CampaignReport(
        name="fleet", campaign="c", created_at="2026-01-31T10:00:00.000Z", margin=0.05, host=Host(system="Linux"),
        versions={"onnxruntime": "1.29.0"}, rows=made, placements=(placement(),),
        devices=tuple(DeviceFacts(name=f"adb:PHONE{n:03}", platform="android", manufacturer="Maker", model=f"Phone {n}",
                                  soc="SM9999", abis=("arm64-v8a",), api_level=34) for n in range(DEVICES)),
        choices=tuple(ChoiceRow(target="android", model=f"model_{n}", variant="all-fixed", run="cpu", file="m.ort",
                                reason="the fastest", device="adb:PHONE000") for n in range(MODELS)),
    )  # fmt: skip
    return html.render(report, rows)


def open_in(browser: Any, path: Path) -> Opening:
    """Open a page in a new window, and say what that took."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    window = context.new_page()
    session = context.new_cdp_session(window)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = _metrics(session)
    start = time.monotonic()
    window.goto(path.as_uri())
    window.evaluate(DRAWN)
    wall = time.monotonic() - start
    after = _metrics(session)
    if window.query_selector("#explore-part"):
        window.evaluate("document.getElementById('explore-part').scrollIntoView()")
        window.wait_for_selector("#explore-part[data-ready]", state="attached")
        window.evaluate(DRAWN)
    explored = _metrics(session)
    context.close()
    return Opening(
        cpu_ms=(after["TaskDuration"] - before["TaskDuration"]) * 1e3,
        explored_ms=(explored["TaskDuration"] - before["TaskDuration"]) * 1e3,
        wall_ms=wall * 1e3,
        nodes=after["Nodes"],
        heap_bytes=after["JSHeapUsedSize"],
    )


def _metrics(session: Any) -> dict[str, float]:
    return {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}


def main() -> None:
    """Print the table; a line says what is missing where the page cannot be opened."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    try:
        driver = importlib.import_module("playwright.sync_api").sync_playwright()
    except ImportError:
        driver = None
    if program is None or driver is None:
        print("not measured: install Chromium and the package playwright", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as folder, driver as started:
        pages = {"empty": "<!DOCTYPE html><title>empty</title>", "10,000 runs, 2,000 nodes": page()}
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        print("| page | KB | CPU ms | smallest | with Explore | wall ms | smallest | nodes | heap MB |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for name, text in pages.items():
            path = Path(folder) / "report.html"
            path.write_text(text, encoding="utf-8")
            found = [open_in(browser, path) for _ in range(OPENINGS)]
            middle = {field: statistics.median(getattr(one, field) for one in found) for field in Opening.__slots__}
            least = {field: min(getattr(one, field) for one in found) for field in ("cpu_ms", "wall_ms")}
            print(
                f"| {name} | {path.stat().st_size / 1e3:,.0f} | {middle['cpu_ms']:.0f} | {least['cpu_ms']:.0f} "
                f"| {middle['explored_ms']:.0f} | {middle['wall_ms']:.0f} | {least['wall_ms']:.0f} "
                f"| {middle['nodes']:,.0f} | {middle['heap_bytes'] / 1e6:.1f} |"
            )
        browser.close()


if __name__ == "__main__":
    main()
