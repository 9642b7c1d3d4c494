"""What a diagnosis says: how findings are judged, its JSON document (`ort-mobile doctor`), its tables and notes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final, Literal

import msgspec
import numpy as np

from device_runner.device import DeviceFacts
from device_runner.result import RunResult, Status, Struct
from device_runner.spec import RunOptions
from pipeline.campaign.plan import options_name
from pipeline.campaign.record import Host, RunRecord, rounds_of
from pipeline.campaign.statistics import Comparison, DecisionRule, Verdict, compare, summarize
from pipeline.campaign.statistics.compare import undecided
from pipeline.features.doctor.checks import CheckProposal, DoctorCheck, Remedy
from pipeline.report import wording
from pipeline.report.wording import Line, Listing, ListingNote, Part, Section, gathered, sections_of

DIAGNOSIS_VERSION: Final = 1


class Outcome(StrEnum):
    """What came of a check."""

    GAIN = "gain"
    """A remedy is faster, by the rule for verdicts."""
    NO_GAIN = "no gain shown"
    NOTE = "note"
    """Something to know or to do that was not measured."""
    UNTESTED = "not tested"
    """It could not be measured: it failed, or the time was over."""
    NOT_APPLICABLE = "does not apply"


class Quantity(StrEnum):
    """What is compared beside the latency."""

    LOAD = "load"
    FIRST_RUN = "first_run"


class MeasuredRemedy(Struct, frozen=True, kw_only=True):
    """A remedy with what it gave over all rounds, each compared with the start of the same round.

    `run` names the run options. `why` says why there is no number, or why a number does not count: the run failed,
    its outputs differ from the start's, the time was over. `memory_bytes` is the median of the peaks. `set` are the
    lines of a config that set it, `commands` what makes the file, `calls` lines of an app's code in `language`.
    """

    remedy: Remedy
    run: str
    set: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    language: str = ""
    why: str = ""
    rounds: int = 0
    median_ns: float | None = None
    latency: Comparison | None = None
    load: Comparison | None = None
    first_run: Comparison | None = None
    memory_bytes: int = 0

    @property
    def gains(self) -> bool:
        """Whether it is faster and nothing speaks against it."""
        return not self.why and self.latency is not None and self.latency.verdict is Verdict.FASTER

    @property
    def loads_faster(self) -> bool:
        """Whether sessions are created faster, and inferences were not shown to be slower."""
        slower = self.latency is None or self.latency.verdict is Verdict.SLOWER
        return not self.why and not slower and self.load is not None and self.load.verdict is Verdict.FASTER

    @property
    def ratio(self) -> float:
        """Of latencies, for sorting: 1 where none is known."""
        return self.latency.ratio if self.latency else 1.0


class DoctorFinding(Struct, frozen=True, kw_only=True):
    """What one check found. `source` is the page below onnxruntime.ai/docs/ that gives the advice.

    `text` says what was found or why it does not apply, `advice` what to do that is no setting, `share` the share of
    the time that it concerns; `best` is the name of the remedy that gains most.
    """

    check: str
    title: str
    how: str
    source: str
    outcome: Outcome
    text: str = ""
    advice: str = ""
    share: float | None = None
    best: str = ""
    measured: tuple[MeasuredRemedy, ...] = ()


class RemediesTogether(Struct, frozen=True, kw_only=True):
    """The winning remedies together, and the best of them alone, in rounds that did not choose them."""

    together: MeasuredRemedy
    alone: MeasuredRemedy | None = None


class Start(Struct, frozen=True, kw_only=True):
    """The run that everything is compared with: medians over rounds."""

    run: str
    rounds: int = 0
    median_ns: float | None = None
    load_ns: int = 0
    first_run_ns: int = 0
    memory_bytes: int = 0


class Diagnosis(Struct, frozen=True, kw_only=True):
    """One model on one device. With `failure` the start could not be measured: the message, cause and remedy."""

    model: str
    device: str
    release: str = ""
    start: Start | None = None
    findings: tuple[DoctorFinding, ...] = ()
    together: RemediesTogether | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    failure: tuple[str, ...] = ()


class DoctorReport(Struct, frozen=True, kw_only=True):
    """The JSON document: one diagnosis for each model. `margin` is the share within which two runs are the same."""

    version: Literal[1] = DIAGNOSIS_VERSION
    host: Host
    device: DeviceFacts
    margin: float
    minutes: float
    diagnoses: tuple[Diagnosis, ...]


Latencies = Callable[[RunResult], tuple[int, ...]]

QUANTITIES: Mapping[Quantity, Latencies] = {
    Quantity.LOAD: lambda result: (result.load_ns,),
    Quantity.FIRST_RUN: lambda result: (result.first_run_ns,),
}
"""Times of which a process has one."""


def _ok(records: Sequence[RunRecord]) -> list[RunRecord]:
    return [record for record in records if record.result.status is Status.OK]


def latency_comparisons(
    start: Sequence[RunRecord], others: Mapping[str, Sequence[RunRecord]], rule: DecisionRule
) -> dict[str, Comparison]:
    """Each of the others with the start, together, so that many comparisons are judged as many."""
    groups = [rounds_of(start), *(rounds_of(records, name) for name, records in others.items())]
    return {name: comparison for name, (_, comparison, _) in summarize(groups, "", rule).items() if comparison}


def measured(
    shell: MeasuredRemedy,
    start: Sequence[RunRecord],
    records: Sequence[RunRecord],
    latency: Comparison | None,
    rule: DecisionRule,
) -> MeasuredRemedy:
    """A remedy with its numbers; why there are none, or why they do not count, where something failed."""
    fine = _ok(records)
    other = {
        quantity.value: compare(rounds_of(records, "x", read), rounds_of(start, "", read), replace(rule, looks=()))
        for quantity, read in QUANTITIES.items()
    }
    return msgspec.structs.replace(
        shell,
        why=shell.why or _objection(records),
        rounds=len(fine),
        median_ns=_median_latency(fine),
        latency=latency,
        memory_bytes=int(np.median([record.result.memory_peak_bytes for record in fine])) if fine else 0,
        **other,
    )


def _median_latency(records: Sequence[RunRecord]) -> float | None:
    latencies = [value for record in records for value in record.result.latencies_ns]
    return float(np.median(latencies)) if latencies else None


def _objection(records: Sequence[RunRecord]) -> str:
    failure = next((record.result.failure for record in records if record.result.failure), None)
    if failure:
        return f"{failure.message}; {failure.remedy}" if failure.remedy else failure.message
    wrong = next((check for record in records for check in record.checks if check.failed), None)
    if wrong:
        return f"output {wrong.output!r} is not the start's: {wrong.reason}"
    return "" if records else "the time was over before it was measured"


def start_of(options: RunOptions, records: Sequence[RunRecord]) -> Start:
    """The numbers of the start."""
    fine = [record.result for record in _ok(records)]

    def median(values: Sequence[int]) -> int:
        return int(np.median(values)) if values else 0

    return Start(
        run=options_name(options),
        rounds=len(fine),
        median_ns=_median_latency(_ok(records)),
        load_ns=median([result.load_ns for result in fine]),
        first_run_ns=median([result.first_run_ns for result in fine]),
        memory_bytes=median([result.memory_peak_bytes for result in fine]),
    )


def typical(usual: RunResult, start: Start) -> RunResult:
    """A run of the start with the times of its rounds, which one process may be far from; as it is without any."""
    if start.median_ns is None:
        return usual
    return msgspec.structs.replace(usual, latencies_ns=(round(start.median_ns),), first_run_ns=start.first_run_ns)


def finding_of_check(check: DoctorCheck, proposal: CheckProposal, remedies: Sequence[MeasuredRemedy]) -> DoctorFinding:
    """What a check found; `remedies` are those of its proposal, measured."""
    best = min((remedy for remedy in remedies if remedy.gains), key=lambda remedy: remedy.ratio, default=None)
    return DoctorFinding(
        check=check.id,
        title=check.title,
        how=check.how,
        source=check.source,
        outcome=_outcome(proposal, remedies, best),
        text=proposal.why_not or proposal.note,
        advice=proposal.advice,
        share=proposal.share,
        best=best.remedy.name if best else "",
        measured=tuple(remedies),
    )


def _outcome(proposal: CheckProposal, remedies: Sequence[MeasuredRemedy], best: MeasuredRemedy | None) -> Outcome:
    if proposal.why_not:
        return Outcome.NOT_APPLICABLE
    if best:
        return Outcome.GAIN
    if proposal.advice:
        return Outcome.NOTE
    return Outcome.NO_GAIN if any(remedy.latency and not remedy.why for remedy in remedies) else Outcome.UNTESTED


def open_remedies(
    start: Sequence[RunRecord], others: Mapping[str, Sequence[RunRecord]], rule: DecisionRule
) -> frozenset[str]:
    """The names of the others about which more rounds may decide."""
    groups = [rounds_of(records, name) for name, records in others.items()]
    return frozenset(group.key for group in undecided(groups, rounds_of(start), rule))


def winners(findings: Sequence[DoctorFinding]) -> list[MeasuredRemedy]:
    """The best remedy of every check that has one, smallest gain first: together, the largest has the last word."""
    best = {
        finding.best: remedy
        for finding in findings
        for remedy in finding.measured
        if remedy.remedy.name == finding.best
    }
    return sorted(best.values(), key=lambda remedy: -remedy.ratio)


FENCES = {"C++": "cpp", "Swift": "swift", "Java": "java", "Kotlin": "kotlin", "Python": "python"}
"""Languages by the name that a fenced block has."""

DOCS = "https://onnxruntime.ai/docs/"


def title(diagnosis: Diagnosis) -> str:
    """What was diagnosed, and from which start."""
    release = f", ONNX Runtime {diagnosis.release}" if diagnosis.release else ""
    return f"{diagnosis.model}{f' on {diagnosis.device}' if diagnosis.device else ''}{release}"


def start_line(diagnosis: Diagnosis) -> str:
    """The numbers of the start; why there are none."""
    if diagnosis.failure:
        return f"not diagnosed: {'; '.join(diagnosis.failure)}"
    if diagnosis.start is None:
        return ""
    start = diagnosis.start
    return (
        f"As it is: {start.run}, median {wording.duration(start.median_ns)}, "
        f"loads in {wording.duration(start.load_ns)}, first inference {wording.duration(start.first_run_ns)}, "
        f"memory {wording.size(start.memory_bytes)}, "
        f"rounds: {start.rounds}. {diagnosis.seconds:.0f} s in all."
    )


MEASURED_HEAD = ("Check", "Remedy", "Median", "Ratio", "Interval", "Verdict", "Load ratio", "Memory change", "Rounds")


def measured_listing(diagnosis: Diagnosis) -> Listing:
    """Every remedy that was measured, those that gain most first."""
    checks: dict[str, list[str]] = {}
    remedies = {}
    for finding in diagnosis.findings:
        for remedy in finding.measured:
            if remedy.rounds:
                checks.setdefault(remedy.remedy.name, []).append(finding.check)
                remedies[remedy.remedy.name] = remedy
    pairs = ((", ".join(checks[name]), remedy) for name, remedy in remedies.items())
    ordered = sorted(pairs, key=lambda pair: (not pair[1].gains, pair[1].ratio))
    return Listing(
        title="Remedies, each beside the model as it is in the same rounds (ratio: of the times, below 1 is faster)",
        head=MEASURED_HEAD,
        rows=tuple(_row(check, remedy, diagnosis) for check, remedy in ordered),
    )


def _row(check: str, remedy: MeasuredRemedy, diagnosis: Diagnosis) -> tuple[str, ...]:
    verdict = remedy.latency.verdict.value if remedy.latency and not remedy.why else "does not count"
    memory = remedy.memory_bytes - (diagnosis.start.memory_bytes if diagnosis.start else 0)
    return (
        check,
        remedy.remedy.name,
        wording.duration(remedy.median_ns),
        wording.ratio(remedy.latency),
        wording.interval(remedy.latency),
        verdict,
        wording.ratio(remedy.load),
        f"{'-' if memory < 0 else '+'}{wording.size(abs(memory)) if memory else '0 B'}",
        str(remedy.rounds),
    )


def together_listing(diagnosis: Diagnosis) -> Listing:
    """The winners together, and the best alone, in rounds that did not choose them."""
    trial = diagnosis.together
    rows = [("all together", trial.together)] if trial else []
    rows += [("the best alone", trial.alone)] if trial and trial.alone else []
    return Listing(
        title="The remedies that gain, together: what each gains does not add up",
        head=("", *MEASURED_HEAD[1:]),
        rows=tuple(_row(name, remedy, diagnosis) for name, remedy in rows),
    )


def sections(diagnosis: Diagnosis) -> tuple[Section, ...]:
    """What to do first, then what was found without a gain, and what does not apply; empty ones left out."""
    by_outcome = {
        outcome: [finding for finding in diagnosis.findings if finding.outcome is outcome] for outcome in Outcome
    }
    untested = (
        ListingNote(title="", text=remedy.why, places=(f"{finding.title}: {remedy.remedy.name}",))
        for finding in diagnosis.findings
        for remedy in finding.measured
        if remedy.why
    )
    most = {f.check: "" if f.share is None else f" (at most {f.share:.1%} to gain)" for f in diagnosis.findings}
    ratios = {
        finding.check: ", ".join(f"{r.remedy.name} {wording.ratio(r.latency)}" for r in finding.measured if r.latency)
        for finding in diagnosis.findings
    }
    return sections_of(
        {
            "What to set": [note for finding in by_outcome[Outcome.GAIN] for note in _how(finding)],
            "What to set for all together": _set_together(diagnosis),
            "Loads faster": [note for finding in diagnosis.findings for note in _loading(finding)],
            "Notes": [
                ListingNote(title=finding.title, text=finding.text + most[finding.check], remedy=finding.advice)
                for finding in diagnosis.findings
                if finding.advice
            ],
            "No gain shown (with the ratio)": [
                ListingNote(title=finding.title, text="; ".join(filter(None, (finding.text, ratios[finding.check]))))
                for finding in by_outcome[Outcome.NO_GAIN]
            ],
            "Not tested": gathered(untested),
            "Does not apply": [
                ListingNote(title=finding.title, text=finding.text) for finding in by_outcome[Outcome.NOT_APPLICABLE]
            ],
            "Limits": [ListingNote(title="", text=note) for note in diagnosis.notes],
        }
    )


def _how(finding: DoctorFinding) -> Iterator[ListingNote]:
    for remedy in finding.measured:
        if remedy.remedy.name == finding.best:
            text = f"{remedy.remedy.name}: {gain(remedy.latency)} ({DOCS}{finding.source})"
            yield ListingNote(title=finding.title, text=text, code=_code(remedy))


def gain(comparison: Comparison | None) -> str:
    """How much less time, with its interval."""
    if comparison is None:
        return "not known"
    less = f"{100 * (1 - comparison.ratio):.1f} % less time"
    if comparison.low is None or comparison.high is None:
        return less
    return f"{less} ({100 * (1 - comparison.high):.1f} to {100 * (1 - comparison.low):.1f})"


def _code(remedy: MeasuredRemedy) -> dict[str, tuple[str, ...]]:
    """How it is set, by the language."""
    blocks = {"toml": remedy.set, "sh": remedy.commands, FENCES.get(remedy.language, remedy.language): remedy.calls}
    return {language: lines for language, lines in blocks.items() if lines}


def _set_together(diagnosis: Diagnosis) -> list[ListingNote]:
    trial = diagnosis.together
    if not trial or not trial.alone:
        return []
    alone = f"{trial.alone.remedy.name} alone: {gain(trial.alone.latency)}"
    text = f"{trial.together.why or gain(trial.together.latency)}; {alone}"
    return [ListingNote(title=trial.together.remedy.name, text=text, code=_code(trial.together))]


def _loading(finding: DoctorFinding) -> Iterator[ListingNote]:
    for remedy in finding.measured:
        if remedy.loads_faster and remedy.remedy.name != finding.best:
            text = f"{remedy.remedy.name}: {gain(remedy.load)} to load; {_runs(remedy)}"
            yield ListingNote(title=finding.title, text=text, code=_code(remedy))


def _runs(remedy: MeasuredRemedy) -> str:
    """How fast it runs, which only a verdict of the same calls as fast."""
    latency = remedy.latency
    if latency is None or latency.low is None or latency.high is None:
        return "rounds are too few to say how fast it runs"
    if latency.verdict is Verdict.SAME:
        return f"runs as fast, within {latency.margin:.0%}"
    return f"latency between {latency.low:.2f} and {latency.high:.2f} times that of the model as it is"


def parts(report: DoctorReport) -> Iterator[Part]:
    """Every diagnosis: its start, what each remedy gives, and notes."""
    for diagnosis in report.diagnoses:
        yield Line((title(diagnosis), "bold"))
        yield Line((start_line(diagnosis), "yellow" if diagnosis.failure else ""), indent=0)
        yield Line(indent=0)
        yield measured_listing(diagnosis)
        yield together_listing(diagnosis)
        yield from sections(diagnosis)
