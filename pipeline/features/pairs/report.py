"""What a gate found: its document, tables and notes; JUnit XML and a bounded comment for a CI."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, Literal

import msgspec

from device_runner import result as run_result
from pipeline import config as configs
from pipeline.campaign import changed_facts
from pipeline.campaign import record as campaign_record
from pipeline.campaign.statistics import compare as run_compare
from pipeline.core import errors as core_errors
from pipeline.core.errors import Finding, Severity
from pipeline.features.pairs.history import History
from pipeline.report import ci as report_ci
from pipeline.report import wording

GATE_VERSION: Final = 1
ALARMS = 0.01
"""How often equal campaigns may be called different, over all rows of a comparison."""
SHOWN, DIGITS = 60, 12
"""Characters of a text beside a verdict, and digits of a digest: JSON has all."""


def ratio_cells(ratio: float | None, low: float | None, high: float | None) -> tuple[str, str]:
    """A ratio of latencies and its interval in a table."""
    interval = f"{low:.3f} to {high:.3f}" if low and high else wording.DASH
    return f"{ratio:.3f}" if ratio else wording.DASH, interval


class ComparedPair(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs of a model on a device, the second's latency relative to the first's, and what differs between them.

    0.5 is twice as fast; None where `note` says why there is none. `tails` are means and 90th percentiles that differ
    by more than the margin.
    """

    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    tails: tuple[run_compare.TailRatio, ...] = ()
    note: str = ""
    device: str
    model: str
    changes: tuple[changed_facts.ChangedFact, ...] = ()

    @property
    def largest(self) -> float:
        """The largest ratio that was shown or measured of medians; 0 without any."""
        return max([self.ratio or 0.0, *(tail.ratio for tail in self.tails if tail.shown)])

    @property
    def stalls(self) -> bool:
        """Whether means or percentiles are shown to be slower, whatever medians say."""
        return any(tail.shown and tail.ratio > 1 for tail in self.tails)

    def listed(
        self, names: tuple[str, str], medians_ns: tuple[float | None, float | None], rounds: str, verdict: str
    ) -> tuple[str, ...]:
        """The row of a table whose head is `pair_head`."""
        run = names[1] if names[0] == names[1] else " → ".join(names)
        ratio = ratio_cells(self.ratio, self.low, self.high)
        return (self.device, self.model, run, *map(wording.duration, medians_ns), *ratio, rounds, verdict)


def pair_head(first: str, second: str, ratio: str) -> tuple[str, ...]:
    """The head of a table of pairs."""
    return "Device", "Model", "Run", first, second, ratio, "Interval", "Rounds", "Verdict"


def change_text(change: changed_facts.ChangedFact) -> str:
    """Before and after on one line, long texts cut where they begin to differ."""
    if change.what == changed_facts.ARTIFACT:
        return f"{change.before[:DIGITS]} → {change.after[:DIGITS]}"
    same = next((n for n, (x, y) in enumerate(zip(change.before, change.after, strict=False)) if x != y), 0)
    start = max(0, same - SHOWN // 2) if max(len(change.before), len(change.after)) > SHOWN else 0
    texts = []
    for text in (change.before, change.after):
        cut = text[start : start + SHOWN]
        texts.append(("…" if start else "") + cut + ("…" if start + SHOWN < len(text) else ""))
    return " → ".join(texts)


class GateOutcome(StrEnum):
    """What came of one base and candidate on one device."""

    REGRESSION = "regression"
    FASTER = "faster"
    NOT_SHOWN = "no regression shown"
    UNCHANGED = "unchanged"
    NOT_SUSPECTED = "not suspected"
    NOT_COMPARED = "not compared"
    FAILED = "failed"


class GatedRun(ComparedPair, frozen=True, kw_only=True):
    """A base and a candidate on a device; `base` and `candidate` are VARIANT/RUN.

    The ratio is the candidate's latency to the base's over the rounds that both have; `low` and `high` bound it with
    the confidence of the report, for all its rows together. Of the mode sustained it is of inferences at the end of
    runs of minutes.
    """

    base: str
    candidate: str
    outcome: GateOutcome
    mode: configs.MeasureMode = configs.MeasureMode.STEADY
    base_median_ns: float | None = None
    candidate_median_ns: float | None = None
    rounds: int = 0

    @property
    def is_late(self) -> bool:
        """Whether it is about the end of runs of minutes."""
        return self.mode is configs.MeasureMode.SUSTAINED


class GateReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a gate found. `least` is the share by which a candidate must be slower at least.

    `histories` are those that decided what was measured; () where everything was. `measured_at` is the instant in which
    measuring began, perhaps of an earlier call that measured the same; "" where nothing was measured.
    """

    version: Literal[1] = GATE_VERSION
    base: str = ""
    candidate: str = ""
    least: float = 0.01
    confidence: float = 0.99
    measured_at: str = ""
    rows: tuple[GatedRun, ...] = ()
    only_base: tuple[str, ...] = ()
    only_candidate: tuple[str, ...] = ()
    histories: tuple[History, ...] = ()
    warnings: tuple[str, ...] = ()

    def having(self, *outcomes: GateOutcome) -> list[GatedRun]:
        """The rows with one of these outcomes."""
        return [row for row in self.rows if row.outcome in outcomes]

    @property
    def exit_code(self) -> core_errors.ExitCode:
        """4 for a confirmed regression, 1 where anything that was to be measured has no verdict, else 0."""
        if self.having(GateOutcome.REGRESSION):
            return core_errors.ExitCode.CHECK_FAILED
        without = self.having(GateOutcome.FAILED, GateOutcome.NOT_COMPARED)
        return core_errors.ExitCode.SOME_FAILED if without or self.warnings else core_errors.ExitCode.DONE


def unconfirmed(history: History, why: str) -> GatedRun:
    """The row of a suspicion that nothing was measured for, which is no pass."""
    suspicion = history.suspicion
    since = f"suspected since {suspicion.first} ({suspicion.ratio - 1:+.1%}), and " if suspicion else ""
    return GatedRun(
        device=history.device,
        model=history.model,
        base=history.run,
        candidate=history.run,
        outcome=GateOutcome.NOT_COMPARED,
        note=f"{since}{why}",
    )


def failure_text(role: str, failure: run_result.Failure) -> str:
    """Why a round of base or candidate failed."""
    return f"{role}: {failure.code.value}: {failure.what}"


def note_of(row: GatedRun, failure: str, unranked: str) -> str:
    """What is said beside the verdict on a pair that was run.

    `failure` is that of the first round that failed, `unranked` why times may not be compared; "" for neither.
    """
    if unranked:
        return f"its times rank nothing: {unranked}"
    if row.high is None:
        starts = " from equal starts" if row.is_late else ""
        return failure or f"{row.rounds} rounds{starts} are too few for an interval"
    open_question = row.outcome in (GateOutcome.NOT_SHOWN, GateOutcome.NOT_COMPARED)
    notes = [f"at most {max(0.0, row.high - 1):.1%} slower"] if open_question else []
    if row.outcome is GateOutcome.NOT_COMPARED:
        notes = [f"cannot tell: {notes[0]}; measure more rounds (--sustained-rounds) or longer"]
    notes += [wording.tails(row.tails)] if row.tails and (row.stalls or open_question) else []
    notes += [f"some rounds failed: {failure}"] if failure else []
    return "; ".join(notes)


def headline(report: GateReport) -> str:
    """The result in one line."""
    regressions = report.having(GateOutcome.REGRESSION)
    without = report.having(GateOutcome.FAILED, GateOutcome.NOT_COMPARED)
    quiet = report.having(GateOutcome.NOT_SUSPECTED)
    suspected = [history for history in report.histories if history.suspicion]
    rest = f"; {len(quiet)} not suspected by their history" if quiet else ""
    measured = len(report.rows) - len(quiet)
    if regressions:
        worst = max(regression.largest for regression in regressions)
        return f"Regression: {len(regressions)} of {measured} slower, by up to {worst - 1:.1%}{rest}"
    if suspected and not report.base:
        return f"{len(suspected)} of {len(report.histories)} histories look slower: measure base and candidate in pairs"
    if without:
        return f"No verdict on {len(without)} of {measured}{rest}"
    if not measured:
        short = sum(bool(history.note) for history in report.histories)
        few = f"; {short} too short to raise one" if short else ""
        return (
            f"No suspicion in {len(report.histories)} {'history' if len(report.histories) == 1 else 'histories'}{few}"
        )
    return f"No regression in {measured} {'comparison' if measured == 1 else 'comparisons'}{rest}"


def listings(report: GateReport) -> Iterator[wording.Listing]:
    """The paired measurements, then the histories."""
    rows = []
    for row in sorted(report.rows, key=lambda row: list(GateOutcome).index(row.outcome)):
        medians, rounds = (row.base_median_ns, row.candidate_median_ns), str(row.rounds) if row.rounds else wording.DASH
        verdict = row.outcome.value + (f": {row.note}" if row.note else "")
        late = " (sustained)" if row.is_late else ""
        rows.append(row.listed((row.base + late, row.candidate + late), medians, rounds, verdict))
    when = f", measured {wording.instant(report.measured_at)}" if report.measured_at else ""
    title = f"{report.candidate} relative to {report.base}, {report.confidence:.0%} intervals{when}"
    yield wording.Listing(title=title, head=pair_head("Base", "Candidate", "Ratio"), rows=tuple(rows))
    yield wording.Listing(
        title="Histories",
        head=("Device", "Model", "Run", "Campaigns", "Usual", "Newest", "Limit", "Suspicion"),
        rows=tuple(
            (
                history.device,
                history.model,
                history.run,
                str(len(history.points)),
                wording.duration(history.usual_ns),
                wording.duration(history.points[-1].median_ns if history.points else None),
                wording.duration(history.limit_ns),
                f"{history.suspicion.ratio - 1:+.1%} since {history.suspicion.first}"
                if history.suspicion
                else history.note or "none",
            )
            for history in report.histories
        ),
    )


def sections(report: GateReport) -> tuple[wording.Section, ...]:
    """What changed, what was not compared, and what interrupts histories."""
    suspicions, interruptions = [], []
    for history in report.histories:
        where = campaign_record.place(history.device, history.model, history.run)
        if suspicion := history.suspicion:
            text = f"every campaign from {suspicion.first} on is over the limit; {suspicion.before} was not"
            changed = tuple(f"{change.what}: {change_text(change)}" for change in suspicion.changes)
            nothing = ("nothing that is known changed between the two",)
            suspicions.append(wording.ListingNote(title=where, text=text, places=changed or nothing))
        for restart in history.restarts:
            text = "; ".join(f"{change.what} {change_text(change)}" for change in restart.changes)
            text, at = f"{text}: the history begins again", f"{where}: {history.points[restart.place].campaign}"
            interruptions.append(wording.ListingNote(title="environment changed", text=text, places=(at,)))
        interruptions += [
            wording.ListingNote(title="gap", text=gap.reason, places=(f"{where}: {gap.campaign}",))
            for gap in history.missing
        ]
    return wording.sections_of(
        {
            "What changed from base to candidate": wording.gathered(
                wording.ListingNote(
                    title=change.what,
                    text=change_text(change),
                    places=(campaign_record.place(row.device, row.model, row.candidate),),
                )
                for row in report.rows
                for change in row.changes
            ),
            "Only in the base": [wording.ListingNote(title="", text=text) for text in report.only_base],
            "Only in the candidate": [wording.ListingNote(title="", text=text) for text in report.only_candidate],
            "Suspicions": suspicions,
            "Interruptions of histories": wording.gathered(interruptions),
            "Warnings": [wording.ListingNote(title="", text=text) for text in report.warnings],
        }
    )


KINDS = {
    GateOutcome.REGRESSION: "failure",
    GateOutcome.FAILED: "error",
    GateOutcome.NOT_COMPARED: "error",
    GateOutcome.NOT_SUSPECTED: "skipped",
}
"""Outcome to the element of a test case in JUnit XML; the others are passed tests."""


def document(report: GateReport) -> report_ci.CiDocument:
    """What a CI reads: a test case for each row, by device, model and run; regressions and failures are findings.

    Its summary is for a pull request: the worst first.
    """
    rows_with_kinds = [(row, KINDS.get(row.outcome, "")) for row in report.rows]
    return report_ci.CiDocument(
        name="ort-mobile gate",
        source=report.candidate,
        cases=tuple(
            report_ci.junit_case(
                row.device, f"{row.model} {row.candidate}", kind, row.outcome.value if kind else "", _verdict(row)
            )
            for row, kind in rows_with_kinds
        ),
        findings=tuple(
            (
                Finding(
                    code=row.outcome.value.replace(" ", "_"),
                    severity=Severity.ERROR,
                    what=_verdict(row),
                    where=campaign_record.place(row.device, row.model, row.candidate),
                ),
                "",
            )
            for row, kind in rows_with_kinds
            if kind in ("failure", "error")
        ),
        summary=report_ci.bounded(headline(report), [*listings(report), *sections(report)], "the JSON"),
    )


def failed_lines(report: GateReport) -> Iterator[str]:
    """What the exit code stands for."""
    yield headline(report)
    for gated in report.having(GateOutcome.REGRESSION, GateOutcome.FAILED, GateOutcome.NOT_COMPARED):
        yield f"{campaign_record.place(gated.device, gated.model, gated.candidate)}: {_verdict(gated)}"
    yield from report.warnings


def _verdict(row: GatedRun) -> str:
    ratio, interval = ratio_cells(row.ratio, row.low, row.high)
    bounds = f"({interval}, {row.rounds} rounds)"
    late = " at the end of runs of minutes" if row.is_late else ""
    verdict = f"{ratio} times the base's latency{late} {bounds}" if row.ratio else row.note or row.outcome.value
    verdict += f", {wording.tails(row.tails)}" if row.tails else ""
    return "; ".join([verdict, *(f"{change.what}: {change_text(change)}" for change in row.changes)])
