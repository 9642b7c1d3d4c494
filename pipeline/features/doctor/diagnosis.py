"""What a diagnosis says: how findings are judged, its JSON document (`ort-mobile doctor`), its tables and notes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

import msgspec
import numpy as np

from device_runner.device import DeviceFacts
from device_runner.result import RunResult, Status
from device_runner.spec import RunOptions
from pipeline.campaign import record as campaign_record
from pipeline.campaign import run_options
from pipeline.campaign.record import RunRecord
from pipeline.campaign.statistics import compare as run_compare
from pipeline.core import errors as core_errors
from pipeline.core import groups as counting
from pipeline.features.doctor.finding import DoctorFinding, MeasuredRemedy, Outcome
from pipeline.report import wording

DIAGNOSIS_VERSION: Final = 1


class RemediesTogether(msgspec.Struct, frozen=True, kw_only=True):
    """The winning remedies together, and the best of them alone, in rounds that did not choose them."""

    together: MeasuredRemedy
    alone: MeasuredRemedy | None = None


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """The run that everything is compared with: medians over rounds."""

    run: str
    rounds: int = 0
    median_ns: float | None = None
    load_ns: int = 0
    first_run_ns: int = 0
    memory_bytes: int = 0


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
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


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON document: one diagnosis for each model. `margin` is the share within which two runs are the same."""

    version: Literal[1] = DIAGNOSIS_VERSION
    host: campaign_record.Host
    device: DeviceFacts
    margin: float
    minutes: float
    diagnoses: tuple[Diagnosis, ...]

    @property
    def exit_code(self) -> core_errors.ExitCode:
        """1 where a model could not be diagnosed."""
        return (
            core_errors.ExitCode.SOME_FAILED
            if any(diagnosis.failure for diagnosis in self.diagnoses)
            else core_errors.ExitCode.DONE
        )


def _ok(records: Sequence[RunRecord]) -> list[RunRecord]:
    return [record for record in records if record.result.status is Status.OK]


def latency_comparisons(
    start: Sequence[RunRecord], others: Mapping[str, Sequence[RunRecord]], rule: run_compare.DecisionRule
) -> dict[str, run_compare.Comparison]:
    """Each of the others with the start, together, so that many comparisons are judged as many."""
    groups = [
        campaign_record.rounds_of(start),
        *(campaign_record.rounds_of(records, name) for name, records in others.items()),
    ]
    return {
        name: summary.comparison
        for name, summary in run_compare.summarize(groups, "", rule).items()
        if summary.comparison
    }


def measured(
    shell: MeasuredRemedy,
    start: Sequence[RunRecord],
    records: Sequence[RunRecord],
    latency: run_compare.Comparison | None,
    rule: run_compare.DecisionRule,
) -> MeasuredRemedy:
    """A remedy with its numbers; why there are none, or why they do not count, where something failed."""
    fine, alone = _ok(records), replace(rule, looks=())

    def compared(time_ns: Callable[[RunResult], int]) -> run_compare.Comparison | None:
        """Of a time of which a process has one."""

        def read(result: RunResult) -> tuple[int, ...]:
            return (time_ns(result),)

        return run_compare.compare(
            campaign_record.rounds_of(records, "x", read), campaign_record.rounds_of(start, "", read), alone
        )

    failure = next((record.result.failure for record in records if record.result.failure), None)
    wrong = next((check for record in records for check in record.checks if check.failed), None)
    why = "" if records else "the time was over before it was measured"
    if failure:
        why = f"{failure.what}; {failure.remedy}" if failure.remedy else failure.what
    elif wrong:
        why = f"output {wrong.output!r} is not the start's: {wrong.reason}"
    return msgspec.structs.replace(
        shell,
        why=shell.why or why,
        rounds=len(fine),
        median_ns=_median_latency(fine),
        latency=latency,
        load=compared(lambda result: result.load_ns),
        first_run=compared(lambda result: result.first_run_ns),
        memory_bytes=int(np.median([record.result.memory_peak_bytes for record in fine])) if fine else 0,
    )


def _median_latency(records: Sequence[RunRecord]) -> float | None:
    latencies = [value for record in records for value in record.result.latencies_ns]
    return float(np.median(latencies)) if latencies else None


def start_of(options: RunOptions, records: Sequence[RunRecord]) -> Start:
    """The numbers of the start."""
    fine = [record.result for record in _ok(records)]

    def median(values: Sequence[int]) -> int:
        return int(np.median(values)) if values else 0

    return Start(
        run=run_options.options_name(options),
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


def finding_of_check(proposal: DoctorFinding, remedies: Sequence[MeasuredRemedy]) -> DoctorFinding:
    """What a check found; `remedies` are those of its proposal, measured."""
    best = min((remedy for remedy in remedies if remedy.gains), key=lambda remedy: remedy.ratio, default=None)
    outcome = proposal.outcome
    if best:
        outcome = Outcome.GAIN
    elif outcome is not Outcome.NOT_APPLICABLE and proposal.remedy:
        outcome = Outcome.NOTE
    elif any(remedy.latency and not remedy.why for remedy in remedies):
        outcome = Outcome.NO_GAIN
    return msgspec.structs.replace(
        proposal, outcome=outcome, best=best.remedy.name if best else "", measured=tuple(remedies)
    )


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

REMEDIES = "Remedies, each beside the model as it is in the same rounds (ratio: of the times, below 1 is faster)"
MEASURED_HEAD = ("Check", "Remedy", "Median", "Ratio", "Interval", "Verdict", "Load ratio", "Memory change", "Rounds")


def _row(check: str, remedy: MeasuredRemedy, diagnosis: Diagnosis) -> tuple[str, ...]:
    verdict = wording.compared(remedy.latency) if remedy.latency and not remedy.why else "does not count"
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


def sections(diagnosis: Diagnosis) -> tuple[wording.Section, ...]:
    """What to do first, then what was found without a gain, and what does not apply; empty ones left out."""
    by_outcome = counting.grouped((finding.outcome, finding) for finding in diagnosis.findings)
    to_set, faster_loads, untested, trial = [], [], [], diagnosis.together
    for finding in diagnosis.findings:
        for remedy in finding.measured:
            name, code = remedy.remedy.name, _code(remedy)
            if name == finding.best:
                text = f"{name}: {gain(remedy.latency)} ({DOCS}{finding.source})"
                to_set.append(wording.ListingNote(title=finding.title, text=text, code=code))
            elif remedy.loads_faster:
                latency = remedy.latency
                runs = "rounds are too few to say how fast it runs"
                if latency and latency.low is not None and latency.high is not None:
                    runs = f"latency between {latency.low:.2f} and {latency.high:.2f} times that of the model as it is"
                    if latency.verdict is run_compare.Verdict.SAME:  # the only verdict that says as fast
                        runs = f"runs as fast, within {latency.margin:.0%}"
                    elif latency.tails:
                        runs += f", {wording.tails(latency.tails)}"
                text = f"{name}: {gain(remedy.load)} to load; {runs}"
                faster_loads.append(wording.ListingNote(title=finding.title, text=text, code=code))
            if remedy.why:
                untested.append(wording.ListingNote(title="", text=remedy.why, places=(f"{finding.title}: {name}",)))
    all_together = []
    if trial and trial.alone:
        alone = f"{trial.alone.remedy.name} alone: {gain(trial.alone.latency)}"
        text, better = f"{trial.together.why or gain(trial.together.latency)}; {alone}", trial.together
        if trial.together.why or trial.together.ratio >= trial.alone.ratio:
            text, better = f"{text}, which is no less: set that one", trial.alone
        all_together = [wording.ListingNote(title=trial.together.remedy.name, text=text, code=_code(better))]
    most = {f.code: "" if f.share is None else f" (at most {f.share:.1%} to gain)" for f in diagnosis.findings}
    ratios = {
        finding.code: ", ".join(
            f"{r.remedy.name} {wording.ratio(r.latency)}"
            + (f" ({wording.tails(r.latency.tails)})" if r.latency.tails else "")
            for r in finding.measured
            if r.latency
        )
        for finding in diagnosis.findings
    }
    return wording.sections_of(
        {
            "What to set": to_set,
            "What to set for all together": all_together,
            "Loads faster": faster_loads,
            "Notes": [
                wording.ListingNote(title=finding.title, text=finding.what + most[finding.code], remedy=finding.remedy)
                for finding in diagnosis.findings
                if finding.remedy
            ],
            "No gain shown (with the ratio)": [
                wording.ListingNote(
                    title=finding.title, text="; ".join(filter(None, (finding.what, ratios[finding.code])))
                )
                for finding in by_outcome.get(Outcome.NO_GAIN, [])
            ],
            "Not tested": wording.gathered(untested),
            "Does not apply": [
                wording.ListingNote(title=finding.title, text=finding.what)
                for finding in by_outcome.get(Outcome.NOT_APPLICABLE, [])
            ],
            "Limits": [wording.ListingNote(title="", text=note) for note in diagnosis.notes],
        }
    )


def gain(comparison: run_compare.Comparison | None) -> str:
    """How much less time, with its interval."""
    if comparison is None:
        return "not known"
    tail = comparison.decisive
    low, high = (tail.low, tail.high) if tail else (comparison.low, comparison.high)
    less = f"{100 * (1 - comparison.deciding_ratio):.1f} % less time"
    less += f" by the {tail.of.value}" if tail else ""
    if low is None or high is None:
        return less
    return f"{less} ({100 * (1 - high):.1f} to {100 * (1 - low):.1f})"


def _code(remedy: MeasuredRemedy) -> dict[str, tuple[str, ...]]:
    """How it is set, by the language."""
    blocks = {"toml": remedy.set, "sh": remedy.commands, FENCES.get(remedy.language, remedy.language): remedy.calls}
    return {language: lines for language, lines in blocks.items() if lines}


def parts(report: DoctorReport) -> Iterator[wording.Part]:
    """Every diagnosis: its start, what each remedy gives, those that gain most first, and notes."""
    for diagnosis in report.diagnoses:
        release = f", ONNX Runtime {diagnosis.release}" if diagnosis.release else ""
        device = f" on {diagnosis.device}" if diagnosis.device else ""
        yield wording.Line((f"{diagnosis.model}{device}{release}", "bold"))
        numbers, start = "", diagnosis.start
        if diagnosis.failure:
            numbers = f"not diagnosed: {'; '.join(diagnosis.failure)}"
        elif start:
            numbers = (
                f"As it is: {start.run}, median {wording.duration(start.median_ns)}, "
                f"loads in {wording.duration(start.load_ns)}, first inference {wording.duration(start.first_run_ns)}, "
                f"memory {wording.size(start.memory_bytes)}, "
                f"rounds: {start.rounds}. {diagnosis.seconds:.0f} s in all."
            )
        yield wording.Line((numbers, "yellow" if diagnosis.failure else ""), indent=0)
        yield wording.Line(indent=0)
        measured = [(f.code, remedy) for f in diagnosis.findings for remedy in f.measured if remedy.rounds]
        checks = counting.grouped((remedy.remedy.name, check) for check, remedy in measured)
        remedies = {remedy.remedy.name: remedy for _, remedy in measured}
        yield wording.Listing(
            title=REMEDIES,
            head=MEASURED_HEAD,
            rows=tuple(
                _row(", ".join(checks[remedy.remedy.name]), remedy, diagnosis)
                for remedy in sorted(remedies.values(), key=lambda remedy: (not remedy.gains, remedy.ratio))
            ),
        )
        trial = diagnosis.together
        trials = [("all together", trial.together), ("the best alone", trial.alone)] if trial else []
        yield wording.Listing(
            title="The remedies that gain, together: what each gains does not add up",
            head=("", *MEASURED_HEAD[1:]),
            rows=tuple(_row(name, remedy, diagnosis) for name, remedy in trials if remedy),
        )
        yield from sections(diagnosis)
