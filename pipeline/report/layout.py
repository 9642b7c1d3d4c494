"""What stands where in every format: columns of results, tables of plain texts, notes below them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from device_runner.device import DeviceFacts
from device_runner.result import RunResult
from pipeline.campaign.record import ArtifactAccuracy
from pipeline.check.compare import remedy_of
from pipeline.check.library_proof import LibraryProof
from pipeline.core.variant import Artifact
from pipeline.passes.mixed import LayerLoss, Trial
from pipeline.report import proof as proof_texts
from pipeline.report import wording
from pipeline.report.accuracy import REPORT_HEAD, report_cells
from pipeline.report.model import CampaignReport, Row
from pipeline.report.rows import MeasuredRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: its head, the text of a row (to be escaped), and from how wide a terminal on it is shown."""

    title: str
    text: Callable[[Row], str]
    number: bool = True
    from_width: int = 0


INTERVAL = Column(title="95 %", text=lambda row: wording.interval(row.comparison), from_width=100)

COLUMNS = (
    Column(title="Variant", text=lambda row: row.variant, number=False),
    Column(title="Run", text=lambda row: row.run, number=False),
    Column(title="Status", text=wording.status, number=False, from_width=130),
    Column(title="Median", text=lambda row: wording.duration(row.statistics.median_ns if row.statistics else None)),
    Column(title="p90", text=lambda row: wording.duration(row.statistics.p90_ns if row.statistics else None),
           from_width=110),
    Column(title="p99", text=lambda row: wording.duration(row.statistics.p99_ns if row.statistics else None),
           from_width=140),
    Column(title="Ratio", text=lambda row: wording.ratio(row.comparison)),
    INTERVAL,
    Column(title="Verdict", text=wording.verdict, number=False),
    Column(title="Outputs", text=wording.outputs, number=False),
    Column(title="Load", text=lambda row: wording.duration(row.load_ns or None), from_width=150),
    Column(title="Memory", text=lambda row: wording.size(row.memory_peak_bytes), from_width=160),
    Column(title="Size", text=lambda row: wording.size(row.size_bytes), from_width=120),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The rows of one model on one device, in order."""

    model: str
    device: str
    rows: tuple[Row, ...]


def results(report: CampaignReport) -> tuple[Results, ...]:
    """Rows by model and device, in the order of the report."""
    places: dict[tuple[str, str], list[Row]] = {}
    for row in report.rows:
        places.setdefault((row.model, row.device), []).append(row)
    return tuple(Results(model=model, device=device, rows=tuple(rows)) for (model, device), rows in places.items())


MOST_LAYERS = 20
"""Rows of layers in a report: results.json has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A plain table: texts to be escaped, the first column names the row."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def choices(report: CampaignReport) -> Listing:
    """What ships to each target."""
    rows = (
        (one.target, one.model, one.variant, one.run, one.reason + wording.fresh(one.fresh)) for one in report.choices
    )
    return Listing(title="What ships", head=("Target", "Model", "Variant", "Run", "Why"), rows=tuple(rows))


def accuracies(report: CampaignReport) -> Listing:
    """Accuracy of artifacts in other precisions, with size and the best that was measured of each."""
    sizes = {(one.model, one.variant.name): one.size_bytes for one in report.artifacts}
    rows: dict[tuple[str, str], list[Row]] = {}
    for row in report.rows:
        rows.setdefault((row.model, row.variant), []).append(row)
    return Listing(
        title="Accuracy",
        head=("Model", "Variant", *REPORT_HEAD, "Size", "Median", "Memory"),
        rows=tuple(
            _accuracy(one, sizes.get((one.model, one.variant), 0), rows.get((one.model, one.variant), ()))
            for one in report.accuracy or ()
        ),
    )


def _accuracy(one: ArtifactAccuracy, size_bytes: int, rows: Sequence[Row]) -> tuple[str, ...]:
    timed = [row for row in rows if row.statistics]
    best = min(timed, key=lambda row: row.statistics.median_ns if row.statistics else 0, default=None)
    return (
        one.model,
        one.variant,
        *report_cells(one.result, one.why, rows),
        wording.size(size_bytes),
        wording.duration(best.statistics.median_ns if best and best.statistics else None),
        wording.size(best.memory_peak_bytes if best else 0),
    )


def searches(report: CampaignReport) -> tuple[Listing, ...]:
    """What quantizing layers alone costs, worst first, for each precision that was searched."""
    return tuple(
        Listing(
            title=f"{one.model} in {one.precision}: one layer quantized at a time",
            head=("Layer", "Operator", "Layers", "Signal to noise", "Float"),
            rows=tuple(_loss(loss, one.search.best) for loss in one.search.layers[:MOST_LAYERS]),
        )
        for one in report.searches or ()
        if one.search.layers
    )


def _loss(loss: LayerLoss, best: Trial) -> tuple[str, ...]:
    first, *more = loss.nodes
    name = f"{first} and {len(more)} more" if more else first
    is_float = "yes" if set(loss.nodes) <= set(best.nodes) else ""
    return (name, loss.op_type, str(len(loss.nodes)), f"{loss.sqnr_db:.1f} dB", is_float)


def proof_listing(proof: LibraryProof) -> Listing:
    """What came of each way to run in a library that ships; without rows where nothing was run."""
    return Listing(title=proof_texts.title(proof), head=proof_texts.HEAD, rows=tuple(proof_texts.rows(proof)))


def inventory(report: CampaignReport) -> tuple[Listing, ...]:
    """Devices, models and artifacts, for whoever has to know later what was measured; empty ones left out."""
    listings = (
        Listing(
            title="Devices",
            head=("Device", "Model", "System", "ABIs", "Memory", "NNAPI"),
            rows=tuple(_device(facts) for facts in report.devices),
        ),
        Listing(
            title="Models",
            head=("Model", "File", "Size", "Inputs", "Outputs", "sha256"),
            rows=tuple(
                (
                    one.name,
                    one.file,
                    wording.size(one.size_bytes),
                    ", ".join(one.inputs),
                    ", ".join(one.outputs),
                    one.sha256,
                )
                for one in report.models
            ),
        ),
        _artifacts(report.artifacts),
    )
    return tuple(listing for listing in listings if listing.rows)


def drivers(measured: Sequence[MeasuredRow]) -> Listing:
    """The computers that ran a campaign or drove its devices: how long its runs took, and how much of it was pushing.

    Runs of releases that did not note it are not counted; no rows where no run did.
    """
    found: dict[tuple[str, str], list[RunResult]] = {}
    for one in measured:
        for run in one.runs:
            if run.result.elapsed_ns:
                found.setdefault((run.result.host, one.device), []).append(run.result)
    rows = (
        (
            host or wording.DASH,
            device,
            str(len(its)),
            wording.instant(min(one.started_at for one in its)),
            wording.duration(sum(one.elapsed_ns for one in its)),
            wording.duration(sum(one.push_ns for one in its) or None),
        )
        for (host, device), its in sorted(found.items())
    )
    return Listing(
        title="Computers that drove the devices",
        head=("Computer", "Device", "Runs", "First run", "Time in runs", "Of it pushing files"),
        rows=tuple(rows),
    )


def _artifacts(artifacts: Sequence[Artifact]) -> Listing:
    """How provider-aware ones were made, and the passes before, have columns where there are any."""
    columns = {
        "Model": [one.model for one in artifacts],
        "Variant": [one.variant.name for one in artifacts],
        "Size": [wording.size(one.size_bytes) for one in artifacts],
        "sha256": [one.sha256 for one in artifacts],
    }
    optional = {
        "Provider-aware": [one.aware_by.text if one.aware_by else "" for one in artifacts],
        "Passes": ["" if one.steps is msgspec.UNSET else ", ".join(one.steps) for one in artifacts],
    }
    columns |= {title: texts for title, texts in optional.items() if any(texts)}
    return Listing(title="Artifacts", head=tuple(columns), rows=tuple(zip(*columns.values(), strict=True)))


def _device(facts: DeviceFacts) -> tuple[str, ...]:
    api_level = f"API {facts.api_level}" if facts.api_level else ""
    return (
        facts.name,
        " ".join(part for part in (facts.manufacturer, facts.model, facts.soc) if part),
        " ".join(part for part in (facts.platform, facts.os_release, api_level) if part),
        ", ".join(facts.abis),
        wording.size(facts.memory_bytes),
        wording.nnapi_devices(facts),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingNote:
    """Something to know, once for all places that it concerns: what, why or how, what to do."""

    title: str
    text: str
    remedy: str = ""
    places: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Notes of one kind."""

    title: str
    notes: tuple[ListingNote, ...]


def sections(report: CampaignReport) -> tuple[Section, ...]:
    """Everything to know beside the table, what matters most first; empty sections left out."""
    made = {
        "Warnings": gathered(_warnings(report)),
        "Models that could not be used": [
            ListingNote(title=model.name, text=model.error, remedy=model.remedy)
            for model in report.models
            if model.error
        ],
        "Failures": gathered(_failures(report)),
        "Findings of the proof": [note for proof in report.proofs for note in proof_notes(proof)],
        "Outputs that differ": gathered(_outputs(report, unknown=False)),
        "Outputs that could not be judged": gathered(_outputs(report, unknown=True)),
        "Skipped": gathered(_skipped(report)),
        "Doubts": gathered(_doubts(report)),
    }
    return tuple(Section(title=title, notes=tuple(notes)) for title, notes in made.items() if notes)


def _warnings(report: CampaignReport) -> Iterator[ListingNote]:
    """Sentences; those about a row of the report or a profile without its place, which they begin with."""
    places = {_row_place(row) for row in report.rows}
    places |= {place(one.device, one.name, one.run) for one in report.profiles}
    for warning in report.warnings:
        where, _, text = warning.partition(": ")
        known = where in places
        yield ListingNote(title="", text=text if known else warning, places=(where,) if known else ())


def gathered(notes: Iterable[ListingNote]) -> list[ListingNote]:
    """Notes that say the same as one note with all their places, in the order of the first."""
    places: dict[tuple[str, str, str], list[str]] = {}
    for note in notes:
        places.setdefault((note.title, note.text, note.remedy), []).extend(note.places)
    return [
        ListingNote(title=title, text=text, remedy=remedy, places=tuple(dict.fromkeys(found)))
        for (title, text, remedy), found in places.items()
    ]


def proof_notes(proof: LibraryProof) -> list[ListingNote]:
    """What to know of a library that ships: how much holds, or why nothing was run; then every finding once."""
    summary = ListingNote(title="", text=proof_texts.summary(proof))
    found = gathered(
        ListingNote(title=title, text=text, remedy=remedy, places=(place,))
        for title, text, remedy, place in proof_texts.findings(proof)
    )
    return [summary, *found, *(ListingNote(title="", text=text) for text in proof_texts.remarks(proof))]


def place(*parts: str) -> str:
    """Device, model, variant and run in one line, without those that are empty."""
    return " / ".join(part for part in parts if part)


def _row_place(row: Row) -> str:
    return place(row.device, row.model, row.variant, row.run)


def _failures(report: CampaignReport) -> Iterator[ListingNote]:
    for failure in report.failures:
        times = f" ({failure.times} times)" if failure.times > 1 else ""
        where = place(failure.device, failure.model, failure.variant, failure.run) + times
        cause = "" if failure.cause in failure.message else failure.cause
        text = "; ".join(part.strip().rstrip(".") for part in (failure.message, cause) if part)
        title = failure.kind.replace("_", " ")
        yield ListingNote(title=title, text=text, remedy=failure.remedy, places=(where,))


HERE = "before measuring"
"""Where artifacts are checked first: the CPU of the computer that made them."""


def _outputs(report: CampaignReport, *, unknown: bool) -> Iterator[ListingNote]:
    """Outputs that differ, or could not be judged, wherever they were compared."""
    compared = [(place(HERE, one.model, one.variant), one.checks) for one in report.checks]
    compared += [(_row_place(row), row.checks) for row in report.rows]
    found = [(where, c) for where, checks in compared for c in checks if (c.unknown if unknown else c.failed)]
    worst: dict[str, float] = {}
    for _, check in found:
        worst[check.output] = max(worst.get(check.output, 0.0), check.max_rel_error or 0.0)
    for where, check in found:
        error = f"not what the original model computes: relative error up to {wording.error_size(worst[check.output])}"
        text = error if check.failed and check.limit is not None else check.reason or "not what the original computes"
        numbers = f"{where}: {wording.check_numbers(check)}"
        yield ListingNote(title=check.output, text=text, remedy=remedy_of(check), places=(numbers,))


def _skipped(report: CampaignReport) -> Iterator[ListingNote]:
    for one in report.skipped:
        where = place(one.device, one.model, one.variant, one.run)
        yield ListingNote(title="", text=one.text, places=(where,) if where else ())


def _doubts(report: CampaignReport) -> Iterator[ListingNote]:
    for row in report.rows:
        for caution in row.cautions:
            title = caution.doubt.value.replace("_", " ")
            yield ListingNote(
                title=title, text="", remedy=caution.advice, places=(f"{_row_place(row)}: {caution.reason}",)
            )
