"""The terminal: fits any width, and no text moves the cursor or is taken for markup."""

import io
import re

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from device_runner.profile import Coverage
from pipeline.campaign.record import Host, Prediction
from pipeline.campaign.statistics.groups import Caution, Doubt
from pipeline.report import formats, wording
from pipeline.report.model import CampaignReport
from pipeline.report.profiles import Profiled
from tests.report_samples import make_report


def shown(report: CampaignReport, width: int, *, color: bool = False, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, errors="replace")
    console = Console(file=file, width=width, force_terminal=color, color_system="standard" if color else None)
    formats.show_report(report, console)
    file.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 160, 250])
def test_fits(report: CampaignReport, width: int) -> None:
    assert max(cell_len(line) for line in shown(report, width).splitlines()) <= width


@pytest.mark.parametrize(
    ("width", "heads"),
    [
        (80, "Variant Run Median Ratio Verdict Outputs"),
        (120, "Variant Run Median p90 Ratio Interval Verdict Outputs Size"),
        (200, "Variant Run Status Median p90 p99 Ratio Interval Verdict Outputs Load Memory Size"),
        (220, "Variant Run Status Median p90 p99 Ratio Interval Verdict Outputs Load First run Memory Size"),
    ],
)
def test_wider_terminals_show_more(report: CampaignReport, width: int, heads: str) -> None:
    head = next(line for line in shown(report, width).splitlines() if "Variant" in line)
    assert head.split() == heads.split()


@pytest.mark.parametrize(("width", "interval"), [(80, False), (99, False), (100, True), (200, True)])
def test_the_legend_names_the_interval_only_where_it_is_shown(
    report: CampaignReport, width: int, interval: bool
) -> None:
    text = " ".join(shown(report, width).split())
    assert "Ratio: latency relative to the baseline's, below 1 is faster" in text
    assert ("with the interval over rounds that decides" in text) is interval


def test_every_outcome_is_told(report: CampaignReport) -> None:
    text = " ".join(shown(report, 200).split())
    for part in (
        "0.61 to 0.63 faster",
        "same within 5 %",
        "no difference shown",
        "slower",
        "1 of 6 rounds failed",
        "differ 2.4e-01 top-1 84.0%",
        "provider refused: Status Message: The model cannot run",
        "remedy: measure this model with USE_NCHW, or on the CPU",
        "(3 times)",
        "no NNAPI in this libonnxruntime",
        "broken: not an ONNX file",
        "under 1 ms",
        "What ships",
        "fastest of those whose outputs are right",
    ):
        assert part in text, part


def test_long_lists_are_cut_with_a_hint_where_the_rest_is() -> None:
    report = make_report()
    rows = tuple(row for number in range(3) for row in make_report(device=f"adb:{number}").rows)
    text = shown(CampaignReport(name="n", campaign="c", created_at="", margin=0.05, host=report.host, versions={},
                                rows=rows), 100)  # fmt: skip
    assert re.search(r"and \d+ more \(report\.md has them all\)", text)


HOSTILE = "[bold red]x[/] [link=http://e.vil]y[/link] \x1b]0;title\x07\x1b[2J\r\n\u202e :smile:"


def test_hostile_text_is_only_text() -> None:
    text = shown(make_report(name=HOSTILE, model=HOSTILE, device=HOSTILE, text=HOSTILE), 200, color=True)
    assert set(re.findall("\x1b[^m]*m|\x1b.", text)) <= {f"\x1b[{code}m" for code in
                                                        ("0", "1", "2", "31", "32", "33", "1;2", "1;33")}  # fmt: skip
    assert not set(text) & {"\x07", "\r", "\u202e"}
    plain = " ".join(re.sub("\x1b\\[[0-9;]*m", "", text).split())
    assert r"[bold red]x[/] [link=http://e.vil]y[/link] \x1b]0;title\x07\x1b[2J\r\n\u202e :smile:" in plain


def test_an_empty_campaign_prints_nothing() -> None:
    empty = CampaignReport(name="n", campaign="c", created_at="", margin=0.05, host=Host(), versions={})
    assert shown(empty, 80).strip() == ""


def test_first_runs_that_compile_are_told_apart_from_the_median(report: CampaignReport) -> None:
    slow, quick = report.rows[0], report.rows[2:3]
    assert slow.statistics
    median = wording.duration(slow.statistics.median_ns)
    slow = msgspec.structs.replace(slow, run="webgpu+preferredLayout=NCHW", first_run_ns=3_200_000_000)
    text = " ".join(shown(msgspec.structs.replace(report, rows=(slow, *quick)), 100).split())
    assert "Slow first runs" in text
    assert f"3.20 s, then {median}; shaders are compiled in it" in text
    assert "run it once in the background" in text
    on_cpu = msgspec.structs.replace(slow, run="cpu")
    assert "shaders" not in shown(msgspec.structs.replace(report, rows=(on_cpu, *quick)), 100)
    assert "Slow first runs" not in shown(msgspec.structs.replace(report, rows=quick), 100)


def test_a_terminal_without_unicode(report: CampaignReport) -> None:
    assert "0.61 to 0.63" in shown(report, 200, encoding="ascii")


def test_profiles_are_told_where_a_provider_took_something(report: CampaignReport) -> None:
    took = Profiled(
        name="mnist / basic-fixed", run="nnapi", device="adb:A", file="profiles/a.json",
        coverage=Coverage(provider="nnapi", claimed_nodes=8, nodes=9, partitions=2),
        prediction=Prediction(claimed=9, nodes=9, partitions=1),
    )  # fmt: skip
    on_cpu = Profiled(name="mnist / none-fixed", run="cpu+threads=3", device="adb:A", file="profiles/b.json")
    failed = Profiled(name="mnist / all-fixed", run="xnnpack", device="adb:A", failure="the probe crashed")
    text = shown(msgspec.structs.replace(report, profiles=(took, on_cpu, failed)), 160)
    assert "Profiles: 2 traces in profiles/" in text
    assert re.search(r"nnapi +8 of 9 nodes in 2 partitions +9 of 9 nodes in 1 partition", text)
    assert re.search(r"xnnpack +the probe crashed", text)
    assert "cpu+threads=3" not in text
    assert "a.json" not in text


def test_usual_doubts_are_one_line_and_the_report_has_their_numbers(report: CampaignReport) -> None:
    cautions = tuple(
        Caution(code=doubt, what=f"because of {doubt.value}", remedy=f"mend {doubt.value}")
        for doubt in (Doubt.SPREAD, Doubt.EXTREME, Doubt.SHORT_SAMPLES, Doubt.THROTTLED)
    )
    rows = tuple(msgspec.structs.replace(row, cautions=cautions if not n else ()) for n, row in enumerate(report.rows))
    given = msgspec.structs.replace(report, rows=rows)
    text = " ".join(shown(given, 200).split())
    assert "times differ widely in 1, a time far from the median in 1, under 1 ms in 1 of the rows above" in text
    assert "because of throttled" in text
    assert "because of spread" not in text
    assert "because of spread" in formats.markdown_page(given)
