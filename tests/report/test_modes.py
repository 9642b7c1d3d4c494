"""Tables and curves of cold starts, sustained runs and MLPerf's rule, from stored runs."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from device_runner.result import (
    ColdStart,
    Conditions,
    DeviceSample,
    LatencyBin,
    RailReading,
    RunResult,
    Status,
    SustainedRun,
)
from device_runner.spec import RunOptions, RunSpec
from pipeline.campaign.record import RecordedRun, RunRecord
from pipeline.campaign.statistics.compare import DEFAULT_RULE, Verdict
from pipeline.config import MeasureConfig, MeasureMode, MeasureRule
from pipeline.report import drawing, formats, html
from pipeline.report.model import CampaignReport, ModeRow, decode, encode
from pipeline.report.modes import mode_listings, mode_rows
from tests.report_samples import make_report

STEADY, COLD, SUSTAINED = MeasureMode


def recorded(mode: MeasureMode, variant: str, *, baseline: bool = False) -> RecordedRun:
    name = f"{variant}@{mode}"
    return RecordedRun(
        id=name, device="d", model="m", variant=variant, options=RunOptions(), run="cpu", baseline=baseline, mode=mode
    )


def run(planned: RecordedRun, number: int, **result: object) -> RunRecord:
    made = RunResult(spec_id="x", device="d", status=Status.OK, **result)  # type: ignore[arg-type]  # by name
    spec = RunSpec(id="x", model="m")
    return RunRecord(
        campaign="c", planned=planned.id, round=number, model="m", variant=planned.variant, spec=spec, result=made
    )


START = ColdStart(cold=True, how="", model_bytes=9, model_resident_bytes=0, library_bytes=9, library_resident_bytes=0)
STAYED = ColdStart(cold=False, how="9 of 9 bytes of its file stayed in memory", library_resident_bytes=9)


@pytest.fixture(scope="module")
def report() -> CampaignReport:
    planned = [recorded(mode, name, baseline=name == "a") for mode in MeasureMode for name in "ab"]
    runs = [
        run(one, number, latencies_ns=(10**8 + number,) * 1024) for one in planned if one.mode is STEADY
        for number in range(5)
    ]  # fmt: skip
    for one in planned:
        if one.mode is COLD:
            load, start = (10**7, START) if one.variant == "a" else (2 * 10**7, STAYED)
            runs += [
                run(one, n, open_ns=10**6, load_ns=load + n * 1000, first_run_ns=10**5, cold=start) for n in range(5)
            ]
        if one.mode is SUSTAINED:
            slow = 1.0 if one.variant == "a" else 1.5
            bins = tuple(
                LatencyBin(start_ns=s * 10**9, inferences=9, total_ns=10**9, min_ns=1,
                           median_ns=round(10**8 * (slow if s >= 50 else 1)), max_ns=10**9)
                for s in range(100)
            )  # fmt: skip
            samples = tuple(DeviceSample(at_ns=s * 10**9, mhz=2000 - s) for s in range(100))
            before, after = (
                Conditions(rails={"CPU": RailReading(at_ms=at, microjoules=5_000 * at)}) for at in (1, 101_000)
            )
            lasting = SustainedRun(bins=bins, samples=samples)
            runs.append(run(one, 0, sustained=lasting, before=before, after=after))
    measure = MeasureConfig(mode=(STEADY, COLD, SUSTAINED), rule=MeasureRule.MLPERF)
    modes = mode_rows(planned, runs, measure, DEFAULT_RULE)
    assert not modes.failures
    assert not modes.skipped
    return msgspec.structs.replace(make_report(), modes=modes.rows)


def test_each_mode_has_a_table_of_its_own(report: CampaignReport) -> None:
    listings = {listing.title: listing.rows for listing in mode_listings(report)}
    assert listings["Cold start: m on d"] == (
        ("a", "cpu", "1.00 ms", "10.0 ms", "100 µs", "10.1 ms", "-", "-", "baseline",
         "model and library in all 5 rounds"),
        ("b", "cpu", "1.00 ms", "20.0 ms", "100 µs", "20.1 ms", "1.99", "1.99 to 1.99", "slower",
         "model in 0, library in 0 of 5 rounds: 9 of 9 bytes of its file stayed in memory"),
    )  # fmt: skip
    assert listings["Sustained load: m on d"] == (
        ("a", "cpu", "100", "900", "100 ms", "100 ms", "1.00", "1", "-", "-", "-", "not slower",
         "1995 to 1910 MHz", "-"),
        ("b", "cpu", "100", "900", "100 ms", "150 ms", "1.50", "1", "-", "-", "-", "50.0 s",
         "1995 to 1910 MHz", "-"),
    )  # fmt: skip
    rail = ("cpu", "CPU", "5.00 W", "556 mJ")
    assert listings["Energy by power rail: m on d"] == (("a", *rail), ("b", *rail))
    assert listings["Median latency over time: m on d"][1][2:] == ("100 ms",) * 4 + ("150 ms",) * 4
    by_rule = listings["MLPerf single stream (LoadGen's early stopping estimate): m on d"]
    assert by_rule[0] == ("a", "cpu", "100 ms", "100 ms", "100 ms", "5", "1024", "102", "yes")


def test_the_curve_is_drawn_with_the_moment_when_it_rose(report: CampaignReport) -> None:
    flat, risen = drawing.curves(report)
    assert len(flat.x_ticks) == 1
    assert risen.x_ticks[1][0] == pytest.approx(
        drawing.FRONT_MARGIN + (drawing.FRONT_WIDTH - drawing.FRONT_MARGIN) / 2, abs=1
    )
    assert len(risen.line.split()) == 100
    page = html.render(report)
    assert page.count("<polyline") >= 2
    assert risen.label in page


def test_the_pages_and_the_document_have_all_of_it(report: CampaignReport) -> None:
    page = formats.markdown_page(report)
    assert "## Cold start: m on d" in page
    assert "## Median latency over time: m on d" in page
    assert decode(encode(report)) == report


def test_a_mode_that_failed_says_so_under_its_name() -> None:
    one = recorded(COLD, "a")
    failed = run(one, 0)
    failed = msgspec.structs.replace(failed, result=msgspec.structs.replace(failed.result, status=Status.FAILED))
    modes = mode_rows([one], [failed], MeasureConfig(mode=COLD), DEFAULT_RULE)
    assert [failure.run for failure in modes.failures] == ["cpu (cold)"]
    assert modes.rows == ()
    never = mode_rows([one], [], MeasureConfig(mode=COLD), DEFAULT_RULE)
    assert [skipped.run for skipped in never.skipped] == ["cpu (cold)"]


def lasting(one: RecordedRun, number: int, fresh: int, late: int, celsius: float = 30.0) -> RunRecord:
    """A sustained run whose second half takes longer."""
    bins = tuple(
        LatencyBin(start_ns=s * 10**9, inferences=9, total_ns=10**9, min_ns=1, median_ns=late if s >= 50 else fresh,
                   max_ns=10**9)
        for s in range(100)
    )  # fmt: skip
    return run(one, number, sustained=SustainedRun(bins=bins), before=Conditions(battery_celsius=celsius))


def late_rows(first: Sequence[RunRecord], second: Sequence[RunRecord]) -> tuple[ModeRow, ModeRow]:
    planned = [recorded(SUSTAINED, "a", baseline=True), recorded(SUSTAINED, "b")]
    modes = mode_rows(planned, [*first, *second], MeasureConfig(mode=SUSTAINED), DEFAULT_RULE)
    one, other = modes.rows
    return one, other


def test_what_is_fastest_when_fresh_is_not_at_the_end() -> None:
    fast, steady = recorded(SUSTAINED, "a", baseline=True), recorded(SUSTAINED, "b")
    first = [lasting(fast, n, 10**8, 2 * 10**8 + n * 10**5) for n in range(6)]
    second = [lasting(steady, n, 11 * 10**7, 12 * 10**7 - n * 10**5) for n in range(6)]
    one, other = late_rows(first, second)
    assert one.late is None
    assert other.late is not None
    assert (other.late.verdict, other.late.rounds) == (Verdict.FASTER, 6)
    report = msgspec.structs.replace(make_report(), modes=(one, other))
    (order,) = (shown.rows for shown in mode_listings(report) if shown.title.startswith("Fastest at the beginning"))
    assert order == (
        ("beginning", "a", "cpu", "100 ms", "200 ms", "-"),
        ("end", "b", "cpu", "110 ms", "120 ms", "faster"),
    )


def test_runs_that_began_warmer_are_compared_with_none() -> None:
    fast, steady = recorded(SUSTAINED, "a", baseline=True), recorded(SUSTAINED, "b")
    first = [lasting(fast, n, 10**8, 2 * 10**8, 30.0 + (5 if n == 1 else 0)) for n in range(4)]
    second = [lasting(steady, n, 11 * 10**7, 12 * 10**7) for n in range(4)]
    _, other = late_rows(first, second)
    assert other.late is not None
    assert (other.late.low, other.late.rounds) == (None, 3)


DELTAS = (-0.10, -0.03, 0.0, 0.03, 0.10)


@pytest.mark.parametrize(("rounds", "least_shown"), [(4, 12), (6, 36), (8, 36)])
def test_thermal_traces_of_which_the_truth_is_known(rounds: int, least_shown: int) -> None:
    """How much faster the second is at the end: what is shown is so in 95 of 100, and the rest is not decided.

    A room that warms over the rounds, starts within 2 °C, 1 % for a degree, and 2 % between processes.
    """
    random = np.random.default_rng(55)
    fast, steady = recorded(SUSTAINED, "a", baseline=True), recorded(SUSTAINED, "b")
    wrong = shown = 0
    for campaign in range(100):
        delta = DELTAS[campaign % len(DELTAS)]
        room = np.linspace(0, random.uniform(0, 3), 2 * rounds)
        celsius = 30 + random.uniform(-1, 1, 2 * rounds)
        late = 1.6e8 * np.exp(0.01 * (celsius - 30) + 0.01 * room + random.normal(0, 0.02, 2 * rounds))
        order = [(n, lane) for n in range(rounds) for lane in ((0, 1) if n % 2 == 0 else (1, 0))]
        runs: tuple[list[RunRecord], list[RunRecord]] = ([], [])
        for turn, (number, lane) in enumerate(order):
            slower = late[turn] * (1 + delta if lane else 1)
            runs[lane].append(lasting((fast, steady)[lane], number, 10**8 + lane * 10**7, int(slower), celsius[turn]))
        _, other = late_rows(*runs)
        assert other.late is not None
        says = {Verdict.FASTER: -1, Verdict.SLOWER: 1}.get(other.late.verdict, 0)
        wrong += says != 0 and says != np.sign(delta)
        shown += says != 0 and says == np.sign(delta) and abs(delta) == DELTAS[-1]
    assert wrong <= 5
    assert shown >= least_shown, "of 40 with a difference of 10 %"
