"""A gate's results: JUnit XML that every reader parses, a comment that fits, whatever models are called."""

from xml.etree import ElementTree as ET

import pytest

from pipeline.campaign.changed_facts import ChangedFact
from pipeline.features.pairs import report as regression
from pipeline.features.pairs.history import History, HistoryKey, HistoryPoint, history
from pipeline.features.pairs.report import GatedRun, GateOutcome, GateReport
from pipeline.report.ci import SUMMARY_CHARACTERS, junit

HOSTILE = "m<&>\"']]>\x00\x1b[2J\u202e\ufffe\ud800|`@all<script>alert(1)</script>"


def row(outcome: GateOutcome, model: str = "m", **values: float) -> GatedRun:
    return GatedRun(
        device="local", model=model, base="all-fixed/cpu", candidate="all-fixed/cpu", outcome=outcome, rounds=20,
        ratio=values.get("ratio"), low=values.get("low"), high=values.get("high"),
        changes=(ChangedFact(what="ONNX Runtime", before="1.21.0", after="1.31.1"),),
    )  # fmt: skip


REPORT = GateReport(
    base="before", candidate="after",
    rows=(row(GateOutcome.NOT_SHOWN, ratio=1.0, low=0.99, high=1.02),
          row(GateOutcome.REGRESSION, "slow", ratio=1.05, low=1.04, high=1.06),
          row(GateOutcome.FAILED, "broken"), row(GateOutcome.NOT_SUSPECTED, "quiet")),
)  # fmt: skip


def series(name: str = "m") -> History:
    values = [100.0, 101, 99, 100, 100, 101, 99, 100, 100, 100, 106, 106, 106]
    made = [HistoryPoint(campaign=f"c{n:02}", created_at="", median_ns=v * 1e4, rounds=5) for n, v in enumerate(values)]
    return history(HistoryKey(name, name, name), made, {"c99": name})


def test_junit_has_a_case_for_each_row() -> None:
    (suite,) = ET.fromstring(junit("gate", regression.document(REPORT).cases))
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4", "failures": "1", "errors": "1", "skipped": "1",
    }  # fmt: skip
    failed = next(case for case in suite if case.find("failure") is not None)
    assert failed.get("name") == "slow all-fixed/cpu"
    text = failed.findtext("failure") or ""
    assert "1.050 times the base's latency (1.040 to 1.060, 20 rounds)" in text
    assert "ONNX Runtime: 1.21.0 → 1.31.1" in text


@pytest.mark.parametrize("name", [HOSTILE, "x" * 100_000, "", "\ud800" * 10])
def test_hostile_names_are_text_everywhere(name: str) -> None:
    found = row(GateOutcome.REGRESSION, name, ratio=2, low=1.9, high=2.1)
    report = GateReport(
        base=name, candidate=name, rows=(found,), histories=(series(name),), only_base=(name,), warnings=(name,)
    )
    (suite,) = ET.fromstring(junit("gate", regression.document(report).cases))
    assert [child.tag for case in suite for child in case] == ["failure"]
    text = regression.document(report).summary
    assert "<script>" not in text
    assert "\x1b" not in text
    assert len(text) <= SUMMARY_CHARACTERS
    text.encode()


def test_a_comment_of_many_rows_shows_the_worst_and_says_what_is_left_out() -> None:
    quiet = tuple(row(GateOutcome.NOT_SHOWN, f"model-{n}", ratio=1, low=1, high=1) for n in range(3000))
    text = regression.document(GateReport(rows=(*quiet, REPORT.rows[1]))).summary
    assert len(text) <= SUMMARY_CHARACTERS
    assert text.startswith("# Regression: 1 of 3001 slower, by up to 5.0%")
    assert "| slow |" in text
    assert "more: see the JSON" in text


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (GateReport(), "No suspicion in 0 histories"),
        (
            GateReport(histories=(history(HistoryKey("d", "m", "r"), []),)),
            "No suspicion in 1 history; 1 too short to raise one",
        ),
        (GateReport(histories=(series(),)), "1 of 1 histories look slower: measure base and candidate in pairs"),
        (GateReport(rows=(REPORT.rows[0],)), "No regression in 1 comparison"),
        (
            GateReport(rows=(REPORT.rows[0], REPORT.rows[3])),
            "No regression in 1 comparison; 1 not suspected by their history",
        ),
        (GateReport(rows=(REPORT.rows[2],)), "No verdict on 1 of 1"),
    ],
)
def test_the_first_line_says_what_came_of_it(report: GateReport, text: str) -> None:
    assert regression.headline(report) == text
