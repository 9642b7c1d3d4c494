"""What a diagnosis says, as data and as the JSON document of `ort-mobile doctor`; and how findings are judged."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final, Literal

import msgspec
import numpy as np

from device_runner.device import DeviceFacts
from device_runner.result import RunResult, Status, Struct
from device_runner.spec import RunOptions
from pipeline.campaign.options import options_name
from pipeline.campaign.record import Host, RunRecord, rounds_of
from pipeline.campaign.statistics import Comparison, DecisionRule, Verdict, compare, summarize
from pipeline.campaign.statistics.compare import undecided
from pipeline.features.doctor.checks import CheckProposal, DoctorCheck
from pipeline.features.doctor.subject import Remedy

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
    comparisons = {row.key: row.comparison for row in summarize(groups, "", rule)}
    return {name: comparison for name, comparison in comparisons.items() if comparison}


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
