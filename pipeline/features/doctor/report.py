"""A diagnosis as tables and notes for every format: what each remedy gives, how to set it, what does not apply."""

from collections.abc import Iterator

from pipeline.campaign.statistics import Comparison, Verdict
from pipeline.features.doctor.diagnosis import Diagnosis, DoctorFinding, DoctorReport, MeasuredRemedy, Outcome
from pipeline.report import wording
from pipeline.report.markdown import render_parts
from pipeline.report.parts import Line, Listing, ListingNote, Part, Section, gathered

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
        f"Start: {start.run}, median {wording.duration(start.median_ns)}, loads in {wording.duration(start.load_ns)}, "
        f"first inference {wording.duration(start.first_run_ns)}, memory {wording.size(start.memory_bytes)}, "
        f"rounds: {start.rounds}. {diagnosis.seconds:.0f} s in all."
    )


MEASURED_HEAD = ("Check", "Remedy", "Median", "Ratio", "Interval", "Verdict", "Load", "Memory", "Rounds")


def measured(diagnosis: Diagnosis) -> Listing:
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
        title="Remedies, each compared with the start of the same rounds",
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
        title="The remedies that gain, measured again: gains do not add",
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
    by_title = {
        "What to set": [note for finding in by_outcome[Outcome.GAIN] for note in _how(finding)],
        "What to set for all together": _set_together(diagnosis),
        "Loads faster": [note for finding in diagnosis.findings for note in _loading(finding)],
        "Notes": [
            ListingNote(title=finding.title, text=finding.text + most[finding.check], remedy=finding.advice)
            for finding in diagnosis.findings
            if finding.advice
        ],
        "No gain shown": [
            ListingNote(title=finding.title, text="; ".join(filter(None, (finding.text, ratios[finding.check]))))
            for finding in by_outcome[Outcome.NO_GAIN]
        ],
        "Not tested": gathered(untested),
        "Does not apply": [
            ListingNote(title=finding.title, text=finding.text) for finding in by_outcome[Outcome.NOT_APPLICABLE]
        ],
        "Limits": [ListingNote(title="", text=note) for note in diagnosis.notes],
    }
    return tuple(Section(title=name, notes=tuple(notes)) for name, notes in by_title.items() if notes)


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
    return f"latency between {latency.low:.2f} and {latency.high:.2f} times the start's"


def parts(report: DoctorReport) -> Iterator[Part]:
    """Every diagnosis: its start, what each remedy gives, and notes."""
    for diagnosis in report.diagnoses:
        yield Line((title(diagnosis), "bold"))
        yield Line((start_line(diagnosis), "yellow" if diagnosis.failure else ""), indent=0)
        yield Line(indent=0)
        yield from (listing for listing in _listings(diagnosis) if listing.rows)
        yield from sections(diagnosis)


def render(report: DoctorReport) -> str:
    """The report as Markdown."""
    first = (
        Section(title="Start", notes=(ListingNote(title="", text=start_line(diagnosis)),))
        for diagnosis in report.diagnoses
    )
    pages = (
        render_parts(title(diagnosis), _listings(diagnosis), (head, *sections(diagnosis)))
        for diagnosis, head in zip(report.diagnoses, first, strict=True)
    )
    return "\n".join(pages)


def _listings(diagnosis: Diagnosis) -> tuple[Listing, ...]:
    return measured(diagnosis), together_listing(diagnosis)
