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


def title(one: Diagnosis) -> str:
    """What was diagnosed, and from which start."""
    release = f", ONNX Runtime {one.release}" if one.release else ""
    return f"{one.model}{f' on {one.device}' if one.device else ''}{release}"


def start_line(one: Diagnosis) -> str:
    """The numbers of the start; why there are none."""
    if one.failure:
        return f"not diagnosed: {'; '.join(one.failure)}"
    if one.start is None:
        return ""
    found = one.start
    return (
        f"Start: {found.run}, median {wording.duration(found.median_ns)}, loads in {wording.duration(found.load_ns)}, "
        f"first inference {wording.duration(found.first_run_ns)}, memory {wording.size(found.memory_bytes)}, "
        f"rounds: {found.rounds}. {one.seconds:.0f} s in all."
    )


MEASURED_HEAD = ("Check", "Remedy", "Median", "Ratio", "Interval", "Verdict", "Load", "Memory", "Rounds")


def measured(one: Diagnosis) -> Listing:
    """Every remedy that was measured, those that gain most first."""
    checks: dict[str, list[str]] = {}
    remedies = {}
    for found in one.findings:
        for remedy in found.measured:
            if remedy.rounds:
                checks.setdefault(remedy.remedy.name, []).append(found.check)
                remedies[remedy.remedy.name] = remedy
    pairs = ((", ".join(checks[name]), remedy) for name, remedy in remedies.items())
    ordered = sorted(pairs, key=lambda pair: (not pair[1].gains, pair[1].ratio))
    return Listing(
        title="Remedies, each compared with the start of the same rounds",
        head=MEASURED_HEAD,
        rows=tuple(_row(check, remedy, one) for check, remedy in ordered),
    )


def _row(check: str, remedy: MeasuredRemedy, one: Diagnosis) -> tuple[str, ...]:
    verdict = remedy.latency.verdict.value if remedy.latency and not remedy.why else "does not count"
    memory = remedy.memory_bytes - (one.start.memory_bytes if one.start else 0)
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


def together_listing(one: Diagnosis) -> Listing:
    """The winners together, and the best alone, in rounds that did not choose them."""
    found = one.together
    rows = [("all together", found.together)] if found else []
    rows += [("the best alone", found.alone)] if found and found.alone else []
    return Listing(
        title="The remedies that gain, measured again: gains do not add",
        head=("", *MEASURED_HEAD[1:]),
        rows=tuple(_row(name, remedy, one) for name, remedy in rows),
    )


def sections(one: Diagnosis) -> tuple[Section, ...]:
    """What to do first, then what was found without a gain, and what does not apply; empty ones left out."""
    by_outcome = {outcome: [found for found in one.findings if found.outcome is outcome] for outcome in Outcome}
    untested = (
        ListingNote(title="", text=remedy.why, places=(f"{found.title}: {remedy.remedy.name}",))
        for found in one.findings
        for remedy in found.measured
        if remedy.why
    )
    most = {f.check: "" if f.share is None else f" (at most {f.share:.1%} to gain)" for f in one.findings}
    ratios = {
        found.check: ", ".join(f"{r.remedy.name} {wording.ratio(r.latency)}" for r in found.measured if r.latency)
        for found in one.findings
    }
    made = {
        "What to set": [note for found in by_outcome[Outcome.GAIN] for note in _how(found)],
        "What to set for all together": _set_together(one),
        "Loads faster": [note for found in one.findings for note in _loading(found)],
        "Notes": [
            ListingNote(title=found.title, text=found.text + most[found.check], remedy=found.advice)
            for found in one.findings
            if found.advice
        ],
        "No gain shown": [
            ListingNote(title=found.title, text="; ".join(filter(None, (found.text, ratios[found.check]))))
            for found in by_outcome[Outcome.NO_GAIN]
        ],
        "Not tested": gathered(untested),
        "Does not apply": [
            ListingNote(title=found.title, text=found.text) for found in by_outcome[Outcome.NOT_APPLICABLE]
        ],
        "Limits": [ListingNote(title="", text=note) for note in one.notes],
    }
    return tuple(Section(title=name, notes=tuple(notes)) for name, notes in made.items() if notes)


def _how(found: DoctorFinding) -> Iterator[ListingNote]:
    for remedy in found.measured:
        if remedy.remedy.name == found.best:
            text = f"{remedy.remedy.name}: {gain(remedy.latency)} ({DOCS}{found.source})"
            yield ListingNote(title=found.title, text=text, code=_code(remedy))


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
    made = {"toml": remedy.set, "sh": remedy.commands, FENCES.get(remedy.language, remedy.language): remedy.calls}
    return {language: lines for language, lines in made.items() if lines}


def _set_together(one: Diagnosis) -> list[ListingNote]:
    found = one.together
    if not found or not found.alone:
        return []
    alone = f"{found.alone.remedy.name} alone: {gain(found.alone.latency)}"
    text = f"{found.together.why or gain(found.together.latency)}; {alone}"
    return [ListingNote(title=found.together.remedy.name, text=text, code=_code(found.together))]


def _loading(found: DoctorFinding) -> Iterator[ListingNote]:
    for remedy in found.measured:
        if remedy.loads_faster and remedy.remedy.name != found.best:
            text = f"{remedy.remedy.name}: {gain(remedy.load)} to load; {_runs(remedy)}"
            yield ListingNote(title=found.title, text=text, code=_code(remedy))


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
    first = (Section(title="Start", notes=(ListingNote(title="", text=start_line(one)),)) for one in report.diagnoses)
    pages = (
        render_parts(title(one), _listings(one), (head, *sections(one)))
        for one, head in zip(report.diagnoses, first, strict=True)
    )
    return "\n".join(pages)


def _listings(one: Diagnosis) -> tuple[Listing, ...]:
    return measured(one), together_listing(one)
