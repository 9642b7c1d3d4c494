"""A campaign's report in a terminal, as report.md, as what systems of continuous integration read, and as a trace."""

import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
from rich.console import Console

from device_runner.device import DeviceFacts, Readiness
from device_runner.result import Status, epoch_ms
from pipeline.advice.verdict import AdvisedAnswer
from pipeline.campaign.record import FailureRow, RunRecord, place
from pipeline.campaign.statistics.compare import Verdict
from pipeline.campaign.tuned import TuneAnswer, TuneOutcome
from pipeline.check.compare import OutputCheck
from pipeline.check.library_proof import LibraryProof
from pipeline.core.errors import Finding, Severity
from pipeline.core.groups import grouped
from pipeline.core.progress import StageTime
from pipeline.partition.answer import Decision, ModelAnswer
from pipeline.passes.precisions import common_name
from pipeline.release.choose import Choice, slower_text
from pipeline.report import layout, wording
from pipeline.report.ci import CiDocument, CiFinding, bounded, junit_case
from pipeline.report.decision import BannerState, banner
from pipeline.report.first_lines import first_lines
from pipeline.report.layout import (
    COLUMNS,
    DOUBTS,
    FROM_WIDTH,
    WORDS,
    Columns,
    accuracies,
    choices,
    inventory,
    offered,
    proof_listing,
    proof_notes,
    results,
    searches,
    sections,
    warnings,
)
from pipeline.report.model import CampaignReport
from pipeline.report.modes import mode_listings
from pipeline.report.profiles import changes, claims, copies, fallbacks, fusions, operators, summary, view_notes
from pipeline.report.show import show, width
from pipeline.report.wording import (
    Line,
    Listing,
    ListingNote,
    Part,
    Section,
    escaped,
    item,
    visible,
)
from pipeline.report.words import precisions, words


def _processor(facts: DeviceFacts) -> str:
    cores = f"{len(facts.core_max_mhz)} cores to {max(facts.core_max_mhz) / 1000:.1f} GHz" if facts.core_max_mhz else ""
    return ", ".join(part for part in (facts.soc, cores) if part)


def _state(facts: DeviceFacts) -> str:
    if facts.readiness is not Readiness.READY:
        return facts.advice or facts.readiness.value
    notes = ["ready"]
    if facts.platform == "android" and 0 < facts.api_level < 27:
        notes.append(f"API {facts.api_level}: NNAPI needs 27")
    if 0 < facts.free_bytes < 2**28:
        notes.append("little space")
    if (facts.thermal_status or 0) >= 2:
        notes.append("hot: numbers will be throttled")
    return "; ".join(notes)


DEVICE_COLUMNS: tuple[tuple[str, Callable[[DeviceFacts], str]], ...] = (
    ("device", lambda facts: facts.name),
    ("model", lambda facts: f"{facts.manufacturer} {facts.model}".strip()),
    ("processor", _processor),
    ("ABIs", lambda facts: ", ".join(facts.abis)),
    ("system", lambda facts: (
        f"{facts.platform} {facts.os_release}{f' (API {facts.api_level})' if facts.api_level else ''}".strip()
    )),
    ("memory", lambda facts: f"{facts.memory_bytes / 2**30:.1f} GiB" if facts.memory_bytes else ""),
    ("battery", lambda facts: (
        "" if facts.battery_percent is None else f"{facts.battery_percent} %{' charging' if facts.charging else ''}"
    )),
    ("NNAPI", wording.nnapi_devices),
    ("GPU", wording.gpu),
    ("state", _state),
)  # fmt: skip


def device_listing(devices: Sequence[DeviceFacts]) -> Listing:
    """One row a device, without columns that are empty everywhere."""
    rows = [[text(facts) for _, text in DEVICE_COLUMNS] for facts in devices]
    kept = [index for index in range(len(DEVICE_COLUMNS)) if any(row[index] for row in rows)]
    return Listing(
        title="",
        head=tuple(DEVICE_COLUMNS[index][0] for index in kept),
        rows=tuple(tuple(row[index] for index in kept) for row in rows),
    )


SHORT = 6
"""Operators of a view of profiles: report.md has more."""
STYLES = {
    Verdict.FASTER: "green", Verdict.SLOWER: "yellow", Verdict.MIXED: "yellow", Verdict.SAME: "",
    Verdict.NOT_SHOWN: "dim",
}  # fmt: skip


def show_report(report: CampaignReport, console: Console | None = None) -> None:
    """Print the report, with as many columns of results as fit."""
    show(render(report, width(console)), console, rest="report.md")


def render(report: CampaignReport, width: int) -> Iterator[Part]:
    """The parts of the report for a terminal of so many columns."""
    # One line per variant and run; columns that need a wider terminal are left out.
    columns = {head: text for head, text in COLUMNS.items() if FROM_WIDTH.get(head, 0) <= width}
    if report.stopped:  # what may not ship is not said at the end alone
        yield from _banner(report)
    yield from first_lines(report)
    yield from result_tables(report, columns)
    if report.rows:
        yield Line((wording.legend(report, interval="Interval" in columns), "dim"), indent=0)
        yield Line(indent=0)
    yield from mode_listings(report)
    yield accuracies(report, brief=True)
    if names := ", ".join(map(common_name, precisions(report))):
        yield Line((f"Precisions by their usual names: {names}.", "dim"), indent=0)
        yield Line(indent=0)
    yield from offered(report, brief=True)
    yield from map(proof_listing, report.proofs)
    for section in sections(report):
        # The usual doubts with their numbers of rows in one line, then the others as they are
        usual = [note for note in section.notes if section.title == DOUBTS and note.title in USUAL_DOUBTS]
        if usual:
            counts = ", ".join(f"{USUAL_DOUBTS[note.title]} in {len(note.places)}" for note in usual)
            text = f"{counts} of the rows above (report.md or --json says how much, and what to do)"
            others = (note for note in section.notes if note not in usual)
            yield Section(title=section.title, notes=(ListingNote(title="", text=text), *others))
        else:
            yield section
    if report.profiles:
        listing = claims(report.profiles)
        yield listing if listing.rows else Line((listing.title, "bold"))
    for view in report.profile_views:
        yield changes(view, most=SHORT)
        yield from map(Line, (*view_notes(view), ""))
    yield choices(report)
    if not report.stopped:
        yield from _banner(report)


def result_tables(report: CampaignReport, columns: Columns = COLUMNS) -> Iterator[Listing]:
    """A table of results for each model on each device."""
    for (model, device), rows in results(report).items():
        styles = []
        for row in rows:
            wrong = row.status is not Status.OK or any(check.failed for check in row.checks)
            styles.append("red" if wrong else STYLES[row.comparison.verdict] if row.comparison else "")
        yield Listing(
            title=f"{model} on {device}",
            head=tuple(columns),
            rows=tuple(tuple(text(row) for text in columns.values()) for row in rows),
            right=tuple(head for head in columns if head not in WORDS),
            styles=tuple(styles),
        )


def _banner(report: CampaignReport, marks: Mapping[BannerState, str] | None = None) -> Iterator[Part]:
    if verdict := banner(report):
        state, headline, reasons = verdict
        yield Line(((marks or {}).get(state, "") + headline, BANNERS[state]), indent=0)
        yield Section(title="", notes=tuple(ListingNote(title="", text=reason) for reason in reasons))


BANNERS = {BannerState.STOP: "bold red", BannerState.CAUTION: "bold yellow", BannerState.READY: "bold green"}


USUAL_DOUBTS = {"spread": "times differ widely", "extreme": "a time far from the median", "short samples": "under 1 ms"}
"""What nearly every short run on a computer in use has: one line here, each with its numbers in the report."""


def proof_parts(proof: LibraryProof) -> Iterator[Part]:
    """What came of a bundle in the library that ships, then every finding with cause and remedy."""
    yield proof_listing(proof)
    yield Section(title="Summary", notes=tuple(proof_notes(proof)))


MOST_NODES = 10
"""Nodes that a finding names."""
DIFFERS = "not what the original computes"


def of_campaign(report: CampaignReport, more: Iterable[Finding] = ()) -> CiDocument:
    """Cases are rows of the report, failed ones with their reason, then failures and what was skipped that have no row;
    `more` speaks against shipping.
    """
    failures = grouped((failure.names, failure) for failure in report.failures)
    cases = []
    for row in report.rows:
        of_row = failures.pop(row.names, [])
        kind, reason, text = "", "", "\n".join(map(_failure_text, of_row))
        if wrong := [check for check in row.checks if check.failed]:
            kind, reason = "failure", "outputs differ"
            text = "; ".join(f"{check.output}: {check.reason or DIFFERS}" for check in wrong)
        elif row.status is Status.OK:
            median = f"median {wording.duration(row.statistics.median_ns)}" if row.statistics else ""
            text = "\n".join(filter(None, (median, text)))
        else:
            kind = "skipped" if row.status is Status.SKIPPED else "error"
            reason = ", ".join(dict.fromkeys(failure.kind for failure in of_row)) or row.status.value
        cases.append(_case(row.names, kind, reason, text))
    for names, alike in failures.items():
        kinds = ", ".join(dict.fromkeys(failure.kind for failure in alike))
        cases.append(_case(names, "error", kinds, "\n".join(map(_failure_text, alike))))
    cases += [
        _case((answer.search.device, answer.search.model, "", "search"), *kind, answer.why_none)
        for answer, kind in _unanswered(report)
    ]
    cases += [
        _case((skipped.device, skipped.model, skipped.variant, skipped.run), "skipped", "skipped", skipped.text)
        for skipped in report.skipped
    ]
    _, headline, _ = banner(report) or (None, "", ())
    return CiDocument(
        name=f"ort-mobile {report.name}",
        source=next((model.file for model in report.models if model.file), ""),
        cases=tuple(cases),
        findings=tuple(_findings(report, more)),
        summary=bounded(
            f"{report.name}: {headline}" if headline else report.name,
            [*first_lines(report), choices(report), *result_tables(report), *sections(report)], "report.html",
        ),
    )  # fmt: skip


def _unanswered(report: CampaignReport) -> Iterator[tuple[TuneAnswer, tuple[str, str]]]:
    """Searches without a winner, each with what JUnit calls it: a failure where nothing keeps to the constraints."""
    for answer in report.tuned.answers if report.tuned else ():
        if answer.why_none:
            outcome = answer.search.outcome
            yield answer, ("failure" if outcome is TuneOutcome.NONE_POSSIBLE else "error", outcome.value)


def _case(names: tuple[str, str, str, str], kind: str, reason: str, text: str) -> ET.Element:
    """Of a row by its device, model, variant and run; names that are "" are left out."""
    place, name = ".".join(filter(None, names[:2])) or "campaign", " ".join(filter(None, names[2:])) or "all runs"
    return junit_case(place, name, kind, reason, text)


def _failure_text(failure: FailureRow) -> str:
    """What was said, why, what to do."""
    cause = "" if failure.cause in failure.message else failure.cause
    return "; ".join(part.strip().rstrip(".") for part in (failure.message, cause, failure.remedy) if part)


def _findings(report: CampaignReport, more: Iterable[Finding]) -> Iterator[CiFinding]:
    """Errors and warnings of a campaign, with the file of the model that they concern."""
    files = {model.name: model.file for model in report.models}
    failed = {(failure.model, failure.message) for failure in report.failures}  # those say the cause, too
    for model in report.models:
        if model.error and (model.name, model.error) not in failed:
            text = "; ".join(filter(None, (model.error, model.remedy)))
            yield Finding(rule="model", severity=Severity.ERROR, where=model.name, what=text), model.file
    for failure in report.failures:
        text, file = _failure_text(failure), files.get(failure.model, "")
        yield Finding(rule=failure.kind, severity=Severity.ERROR, where=failure.place, what=text), file
    for measured in report.rows:
        for check in (check for check in measured.checks if check.failed):
            text, file = f"{check.output}: {check.reason or DIFFERS}", files.get(measured.model, "")
            yield Finding(rule="outputs_differ", severity=Severity.ERROR, where=measured.place, what=text), file
    unanswered = {answer.why_none: answer.search for answer, _ in _unanswered(report)}
    for text, search in unanswered.items():
        where, file = place(search.device, search.model), files.get(search.model, "")
        yield Finding(rule="search", severity=Severity.ERROR, where=where, what=text), file
    for held in (held for held in report.withheld if held.reason not in unanswered):
        where, file = place(held.target, held.model), files.get(held.model, "")
        yield Finding(rule="withheld", severity=Severity.ERROR, where=where, what=held.reason), file
    for proof in report.proofs:
        severity = Severity.ERROR if proof.failed else Severity.WARNING
        for row, finding in layout.findings(proof):
            text = "; ".join(filter(None, (finding.what, layout.reason(finding), finding.remedy)))
            where, file = layout.where(row), files.get(row.model, "")
            yield Finding(rule="proof", severity=severity, where=where, what=text), file
    yield from ((msgspec.structs.replace(row, rule=row.rule or "release"), "") for row in more)
    for note in warnings(report):
        where = ", ".join(note.places[:3]) or report.name
        yield Finding(rule="warning", severity=Severity.WARNING, where=where, what=note.text), ""


def of_partition(answers: Iterable[ModelAnswer]) -> CiDocument:
    """Findings are models without an answer, sessions that will fail, nodes that fall back to the CPU, and advice."""
    findings = [finding for answer in answers for finding in _claims(answer)]
    return CiDocument(name="ort-mobile partition", findings=tuple(findings))


def _claims(answer: ModelAnswer) -> Iterator[CiFinding]:
    where = place(f"{answer.ep} {answer.chip}".strip(), answer.path)

    def finding(rule: str, text: str, severity: Severity = Severity.WARNING) -> CiFinding:
        return Finding(rule=rule, severity=severity, where=where, what=text), answer.path

    if answer.error:
        yield finding("model", str(answer.error), Severity.ERROR)
    left = [node for node in answer.decisions if not node.claimed]
    if answer.load and answer.load.error:
        # Nothing falls back where no session is made: what that is about, and what is not known then, is counted
        codes = {answer.load.code or "load": "it is so", "unknown": "it is not known"}
        rows = [(text, [node for node in left if node.code == code]) for code, text in codes.items()]
        left = [node for node in left if node.code not in codes]
        counts = (f"{text} of {len(nodes)} of {answer.nodes} nodes ({_types(nodes)})" for text, nodes in rows if nodes)
        text = "; ".join(filter(None, (answer.load.error, answer.load.remedy, *counts)))
        yield finding("session_fails", text, Severity.ERROR)
    if answer.simulated and answer.simulated.passed is False:
        at = f"{answer.simulated.op_type} '{answer.simulated.first}': " if answer.simulated.first else ""
        text = "; ".join(filter(None, (f"{at}{answer.simulated.reason}", answer.simulated.remedy)))
        yield finding("computed_otherwise", f"simulated: {text}", Severity.ERROR)
    refused = grouped(
        ((node.code or "unsupported", node.op_type, node.reason or "", node.remedy or ""), node) for node in left
    )
    for (code, operator, reason, remedy), nodes in refused.items():
        names = ", ".join(node.name or node.outputs[0] for node in nodes[:MOST_NODES] if node.name or node.outputs)
        rest = f" and {len(nodes) - MOST_NODES} more" if len(nodes) > MOST_NODES else ""
        text = "; ".join(filter(None, (reason, remedy)))
        yield finding(f"{answer.ep}/{code}", f"{operator} falls back to the CPU: {text} (nodes: {names}{rest})")
    if isinstance(answer, AdvisedAnswer) and answer.advice.verdict:
        verdict = answer.advice.verdict
        yield finding("advice", f"{verdict.choice.value}: {verdict.reason}")


def _types(nodes: Iterable[Decision]) -> str:
    return ", ".join(dict.fromkeys(node.op_type for node in nodes))


MARKS = {BannerState.STOP: "🛑 ", BannerState.CAUTION: "⚠️ ", BannerState.READY: "✅ "}


def markdown_page(report: CampaignReport) -> str:
    """The whole page."""
    return wording.markdown(report.name, _page(report))


def _page(report: CampaignReport) -> Iterator[Part]:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(report.versions.items()))
    yield from _banner(report, MARKS)
    yield from first_lines(report)
    yield Line(f"Campaign {report.campaign} of {wording.instant(report.created_at)}, made with {versions}.")
    yield choices(report)
    yield from offered(report)
    yield from result_tables(report)
    if report.rows:
        yield Line(wording.legend(report))
    yield from mode_listings(report)
    yield accuracies(report)
    yield from searches(report)
    yield from map(proof_listing, report.proofs)
    yield from sections(report)
    for view in report.profile_views:
        yield changes(view)
        yield Section(title="", notes=tuple(ListingNote(title="", text=note) for note in view_notes(view)))
        yield from (replace(listing, level=3) for listing in (fusions(view), fallbacks(view)))
    yield summary(report.profiles)
    yield from (table(row) for row in report.profiles for table in (operators, copies))
    yield from inventory(report)
    yield words(report)


def measured_text(
    report: CampaignReport, choices: Sequence[Choice], checks: Mapping[str, Mapping[str, Sequence[OutputCheck]]]
) -> str:
    """What was measured of what ships, by target: devices, latencies with intervals, and the numeric check."""
    lines = [
        f"# {report.name}: what was measured", "", f"Campaign {report.campaign}.",
        "Latency is the median time of one inference; every round is a fresh process.", "",
    ]  # fmt: skip
    for choice in choices:
        artifact = choice.artifact
        lines += [f"## {artifact.file} for {choice.target.name}", ""]
        lines += [f"{choice.reason[:1].upper()}{choice.reason[1:]}.", ""]
        lines += [f"- slower than another {slower_text(device, other)}" for device, other in choice.slower.items()]
        lines += [""] if choice.slower else []
        key = (artifact.model, artifact.variant.name)
        rows = [row for row in report.rows if (row.model, row.variant) == key]
        if rows:
            lines.append("| device | session options | latency | medians of the rounds | p90 | rounds | peak memory |")
            lines.append("|---|---|---|---|---|---|---|")
        for row in rows:
            times = row.statistics
            medians = times.round_medians_ns if times else ()
            interval = wording.DASH
            if medians:
                interval = f"{wording.duration(min(medians))} to {wording.duration(max(medians))}"
            cells = (
                row.device, row.run, wording.duration(times.median_ns if times else None), interval,
                wording.duration(times.p90_ns if times else None), str(row.rounds), wording.size(row.memory_peak_bytes),
            )  # fmt: skip
            lines.append(f"| {' | '.join(visible(cell).replace('|', '/') for cell in cells)} |")
        lines += [""] if rows else ["Not measured on any device.", ""]
        of_artifact = checks.get(artifact.model, {}).get(artifact.variant.name, ())
        given = wording.data_of(of_artifact)
        made_up = f" on one sample of {given} only" if given else ""
        where = "where the bundle was made, compared with those of the original model in this precision"
        lines += [f"Outputs{made_up} {where}:", ""]
        for check in of_artifact:
            verdict = "passed" if check.passed else "not judged" if check.unknown else "FAILED"
            reason = f"; {escaped(check.reason)}" if check.reason else ""
            lines.append(f"- {item(check.output)}: {verdict}; {wording.check_numbers(check)}{reason}")
        lines.append("")
    return "\n".join(lines)


Event = dict[str, Any]


THREAD = 1
"""Each process has one thread: a device runs one thing at a time."""


def encode_trace(name: str, campaign: str, runs: Sequence[RunRecord], stages: Sequence[StageTime]) -> bytes:
    """trace.json.gz, gzipped: a campaign over time as Chrome's JSON trace events, for Perfetto and speedscope.

    A process is the computer of the job with its stages, or a device with its runs; their parts are nested. Counters
    are what a device reported of its heat and its clocks before and after each run, and during sustained ones. Times
    are microseconds since the first thing that is known; the same input gives the same bytes.
    """
    events = list(_events(runs, stages))
    origin = min((event["ts"] for event in events if event["ph"] != "M"), default=0)
    for event in events:
        if event["ph"] != "M":
            event["ts"] -= origin
    document = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"name": visible(name), "campaign": visible(campaign), "started_at_us": str(origin)},
    }
    return gzip.compress(msgspec.json.encode(document), mtime=0)


def _events(runs: Sequence[RunRecord], stages: Sequence[StageTime]) -> Iterator[Event]:
    hosts = sorted(grouped((stage.host, stage) for stage in stages).items())
    for number, (host, of_host) in enumerate(hosts, start=1):
        yield from _process(number, f"ort-mobile on {host or 'this computer'}", "stages")
        # Stages beside and inside each other: their beginnings are known to a millisecond, and what overlaps is dropped
        # by readers, so one that begins in the last millisecond of another follows it
        around: list[int] = []
        for stage in sorted(of_host, key=lambda stage: (epoch_ms(stage.started_at) or 0, -stage.elapsed_ns)):
            start, duration = (epoch_ms(stage.started_at) or 0) * 1000, stage.elapsed_ns // 1000
            while around and start >= around[-1] - 1000:
                start = max(start, around.pop())
            end = min([start + duration, *around[-1:]])
            yield _slice(number, stage.name, start, end - start, {"steps": stage.steps})
            around.append(end)
    lanes = sorted(grouped(((run.result.host, run.result.device), run) for run in runs).items())
    for number, ((host, device), of_lane) in enumerate(lanes, start=1 + len(hosts)):
        yield from _process(number, f"{device} of {host}" if host else device, "runs")
        end = 0
        for run in sorted(of_lane, key=lambda run: run.result.started_at):
            events = list(_run(number, run, end))
            end = max(end, *(event["ts"] + event.get("dur", 0) for event in events), 0) if events else end
            yield from events


def _process(pid: int, name: str, thread: str) -> Iterator[Event]:
    for what, args in (
        ("process_name", {"name": visible(name)}),
        ("process_sort_index", {"sort_index": pid}),
        ("thread_name", {"name": thread}),
    ):
        yield {"ph": "M", "pid": pid, "tid": THREAD, "name": what, "args": args}


def _slice(pid: int, name: str, start: int, duration: int, args: Mapping[str, Any], category: str = "stage") -> Event:
    return {
        "ph": "X", "pid": pid, "tid": THREAD, "name": visible(name), "cat": category, "ts": start, "dur": duration,
        "args": args,
    }  # fmt: skip


def _run(pid: int, run: RunRecord, earliest: int) -> Iterator[Event]:
    """A run with its parts and counters; none where nothing says when it was.

    It begins when the one before it ended at the earliest: clocks jump.
    """
    result, failure = run.result, run.result.failure
    started_ms = epoch_ms(result.started_at)
    if started_ms is None:
        return
    start = max(started_ms * 1000, earliest)
    # What a run spent its time with, in order; the rest of `elapsed_ns` is its process and files
    bins = result.sustained.bins if result.sustained else ()
    parts = {
        "push": result.push_ns,
        "open library": result.open_ns,
        "load model": result.load_ns,
        "first run": result.first_run_ns,
        "warm-up": sum(result.warmup_ns),
        "timed": sum(result.latencies_ns) + sum(interval.total_ns for interval in bins),
    }
    parts = {name: nanoseconds for name, nanoseconds in parts.items() if nanoseconds > 0}
    end = start + (result.elapsed_ns or sum(parts.values())) // 1000
    arguments = {
        "run": run.planned,
        "round": run.round,
        "status": result.status.value,
        "started_at": result.started_at,
        "inferences": len(result.latencies_ns),
        "marks": ", ".join(result.marks),
    }
    if failure:
        arguments |= {"failure": failure.kind.value, "message": failure.message, "remedy": failure.remedy}
    given = {name: value for name, value in arguments.items() if value != ""}
    shown = {name: visible(value) if isinstance(value, str) else value for name, value in given.items()}
    name = f"{run.model}/{run.variant} {run.spec.options.provider}"
    category = "run" if result.status is Status.OK else result.status.value
    yield _slice(pid, name, start, end - start, shown, category)
    at = start
    for part, nanoseconds in parts.items():
        duration = min(nanoseconds // 1000, end - at)
        for sample in result.sustained.samples if part == "timed" and result.sustained else ():
            moment = at + sample.at_ns // 1000
            if sample.mhz:
                yield _counter(pid, moment, "mean frequency (MHz)", {"cpu": sample.mhz})
            if sample.millidegrees:
                yield _counter(pid, moment, "processor (°C)", {"cpu": sample.millidegrees / 1000})
        yield _slice(pid, part, at, duration, {}, "part")
        at += duration
    for moment, conditions in ((start, result.before), (end, result.after)):
        # What a device reported, a counter for each unit; what it does not report has none.
        zones = {visible(name): celsius for name, celsius in conditions.zones_celsius.items()}
        battery = {} if conditions.battery_celsius is None else {"battery": conditions.battery_celsius}
        percent = conditions.battery_percent
        units: dict[str, dict[str, float]] = {
            "temperature (°C)": {**zones, **battery},
            "frequency (MHz)": {f"cpu{core}": mhz for core, mhz in enumerate(conditions.cpu_mhz)},
            "thermal status": {} if conditions.thermal_status is None else {"status": conditions.thermal_status},
            "battery (%)": {} if percent is None else {"level": percent},
        }
        yield from (_counter(pid, moment, name, values) for name, values in units.items() if values)


def _counter(pid: int, at: int, name: str, values: Mapping[str, float]) -> Event:
    return {"ph": "C", "pid": pid, "tid": THREAD, "name": name, "ts": at, "args": values}
