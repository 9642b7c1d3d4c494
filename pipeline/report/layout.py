"""What stands where in every format: columns of results, tables of plain texts, notes below them, proofs."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from device_runner.providers import CHIPS, NNAPI, provider_named
from pipeline.accuracy import intervals
from pipeline.accuracy.metrics import METRICS
from pipeline.accuracy.result import FLOOR_DB, AccuracyResult, DropVerdict, OutputDrift
from pipeline.campaign.record import place
from pipeline.check.compare import OutputCheck, remedy_of
from pipeline.check.library_proof import LibraryProof, ProofFinding, ProofRow
from pipeline.config import MetricName
from pipeline.core.errors import Severity
from pipeline.core.features import Place
from pipeline.core.groups import counted, grouped
from pipeline.passes.precisions import common_name
from pipeline.report import wording
from pipeline.report.model import CampaignReport, MeasuredRun, Row, SimulatedContext
from pipeline.report.wording import DASH, Line, Listing, ListingNote, Part, Section, gathered, sections_of

Columns = Mapping[str, Callable[[Row], str]]
"""Heads of columns with the text of a row, to be escaped."""

COLUMNS: Columns = {
    "Variant": lambda row: row.variant,
    "Run": lambda row: row.run,
    "Status": wording.status,
    "Median": lambda row: wording.duration(row.statistics.median_ns if row.statistics else None),
    "p90": lambda row: wording.duration(row.statistics.p90_ns if row.statistics else None),
    "p99": lambda row: wording.duration(row.statistics.p99_ns if row.statistics else None),
    "Ratio": lambda row: wording.ratio(row.comparison),
    "Interval": lambda row: wording.interval(row.comparison),
    "Verdict": wording.verdict,
    "Outputs": lambda row: wording.outputs(row.checks),
    "Load": lambda row: wording.duration(row.load_ns or None),
    "First run": lambda row: wording.duration(row.first_run_ns or None),
    "Memory": lambda row: wording.size(row.memory_peak_bytes),
    "Size": lambda row: wording.size_beside(row.size_bytes, row.original_bytes),
}

WORDS = ("Variant", "Run", "Status", "Verdict", "Outputs")
"""Columns of words; the others are numbers."""

FROM_WIDTH = {
    "Interval": 100, "p90": 110, "Size": 120, "Status": 130, "p99": 140, "Load": 150, "Memory": 160, "First run": 220,
}  # fmt: skip
"""How wide a terminal is at least that shows a column; the others are always shown."""


def results(report: CampaignReport) -> dict[tuple[str, str], list[Row]]:
    """Rows by model and device, in the order of the report."""
    return grouped(((row.model, row.device), row) for row in report.rows)


MOST_LAYERS = 20
"""Rows of layers in a report: results.json has all."""


def choices_title(report: CampaignReport) -> str:
    """What was chosen ships only in a bundle."""
    return "What was chosen" if report.refusals else "What ships"


def choices(report: CampaignReport) -> Listing:
    """What ships to each target; where no bundle was made, what was chosen to."""
    rows = (
        (choice.target, choice.model, choice.variant, choice.run, choice.reason + wording.fresh(choice.fresh))
        for choice in report.choices
    )
    return Listing(title=choices_title(report), head=("Target", "Model", "Variant", "Run", "Why"), rows=tuple(rows))


def accuracies(report: CampaignReport, *, brief: bool = False) -> Listing:
    """Accuracy of artifacts in other precisions, with size and the best that was measured of each.

    Columns that say nothing of any are left out, and where it is to be `brief` (for a terminal) those of the samples
    and of memory. A section says why there is no accuracy.
    """
    sizes = {(artifact.model, artifact.variant.name): artifact.size_bytes for artifact in report.artifacts}
    precisions = {(artifact.model, artifact.variant.name): artifact.variant.precision for artifact in report.artifacts}
    originals = {model.name: model.size_bytes for model in report.models}
    checks = {(entry.model, entry.variant): entry.checks for entry in report.checks}
    measured = grouped(((row.model, row.variant), row) for row in report.rows)
    head = ("Model", "Variant", "Precision", *REPORT_HEAD, "From float", "Size", "Median", "Memory")
    rows = []
    for entry in report.accuracy:
        key = entry.model, entry.variant
        timed = [(row.statistics.median_ns, row) for row in measured.get(key, ()) if row.statistics]
        median_ns, best = min(timed, key=lambda pair: pair[0], default=(None, None))
        rows.append(
            (
                *key, common_name(precisions.get(key, "")), *report_cells(entry.result, measured.get(key, ())),
                _from_float(entry.result, checks.get(key, ())),
                wording.size_beside(sizes.get(key, 0), originals.get(entry.model, 0)),
                wording.duration(median_ns), wording.size(best.memory_peak_bytes if best else 0),
            )
        )  # fmt: skip
    places = [
        place
        for place, (name, cells) in enumerate(zip(head, zip(*rows, strict=True), strict=True) if rows else ())
        if not set(cells) <= {"", DASH}
        and not (brief and (name in LONG_COLUMNS or (name == "Model" and len(set(cells)) == 1)))
    ]
    kept = tuple(tuple(row[place] for place in places) for row in rows)
    return Listing(title="Accuracy", head=tuple(head[place] for place in places), rows=kept)


def _from_float(result: AccuracyResult | None, checks: Sequence[OutputCheck]) -> str:
    """The worst signal to noise of all samples, else of the one that the check ran on."""
    drifts = [drift for drift in result.outputs if drift.equal is None] if result else []
    if not drifts:
        return wording.from_float(checks).replace(" from float", "")
    ratios = [drift.sqnr_db for drift in drifts if drift.sqnr_db is not None]
    if ratios:
        return f"{min(ratios):.1f} dB"
    return "equal" if all(drift.max_error == 0 for drift in drifts) else wording.DASH


LONG_COLUMNS = ("Precision", "On devices", "95 % interval", "Samples", "Memory")
"""What the pages have of accuracy beside what a terminal shows."""


def searches(report: CampaignReport) -> tuple[Listing, ...]:
    """What quantizing layers alone costs, worst first, for each precision that was searched."""
    listings = []
    for search in report.searches:
        best, rows = set(search.search.best.nodes), []
        for loss in search.search.layers[:MOST_LAYERS]:
            first, *more = loss.nodes
            name = f"{first} and {len(more)} more" if more else first
            is_float = "yes" if set(loss.nodes) <= best else ""
            rows.append((name, loss.op_type, str(len(loss.nodes)), f"{loss.sqnr_db:.1f} dB", is_float))
        if rows:
            listings.append(
                Listing(
                    title=f"{search.model} in {search.precision}: one layer quantized at a time",
                    head=("Layer", "Operator", "Layers", "Signal to noise", "Float"),
                    rows=tuple(rows),
                )
            )
    return tuple(listings)


def inventory(report: CampaignReport) -> tuple[Listing, ...]:
    """Devices, models and artifacts, for whoever has to know later what was measured; empty ones left out."""
    originals = {model.name: model.size_bytes for model in report.models}
    columns = {
        "Model": [artifact.model for artifact in report.artifacts],
        "Variant": [artifact.variant.name for artifact in report.artifacts],
        "Size": [
            wording.size_beside(artifact.size_bytes, originals.get(artifact.model, 0)) for artifact in report.artifacts
        ],
        "sha256": [artifact.sha256 for artifact in report.artifacts],
    }
    # How provider-aware ones were made, and the passes before, have columns where there are any
    optional = {
        "Provider-aware": [artifact.aware_by.text if artifact.aware_by else "" for artifact in report.artifacts],
        "Passes": [", ".join(artifact.steps) for artifact in report.artifacts],
    }
    columns |= {title: texts for title, texts in optional.items() if any(texts)}
    listings = (
        Listing(
            title="Devices",
            head=("Device", "Model", "System", "ABIs", "Memory", "NNAPI"),
            rows=tuple(
                (
                    facts.name,
                    " ".join(filter(None, (facts.manufacturer, facts.model, facts.soc))),
                    " ".join(
                        filter(
                            None,
                            (facts.platform, facts.os_release, f"API {facts.api_level}" if facts.api_level else ""),
                        )
                    ),
                    ", ".join(facts.abis),
                    wording.size(facts.memory_bytes),
                    wording.nnapi_devices(facts),
                )
                for facts in report.devices
            ),
        ),
        Listing(
            title="Models",
            head=("Model", "File", "Size", "Inputs", "Fixed sizes", "Outputs", "sha256"),
            rows=tuple(
                (
                    model.name,
                    model.file,
                    wording.size(model.size_bytes),
                    ", ".join(model.inputs),
                    ", ".join(
                        f"{name} → {size}{' (guessed)' if name in model.guessed else ''}"
                        for name, size in model.dimensions.items()
                    ),
                    ", ".join(model.outputs),
                    model.sha256,
                )
                for model in report.models
            ),
        ),
        Listing(title="Artifacts", head=tuple(columns), rows=tuple(zip(*columns.values(), strict=True))),
        contexts_listing(report.contexts, title="Contexts for NPUs"),
    )
    return tuple(listing for listing in listings if listing.rows)


def drivers(measured: Sequence[MeasuredRun]) -> Listing:
    """The computers that ran a campaign or drove its devices: how long its runs took, and how much of it was pushing.

    Runs of releases that did not note it are not counted; no rows where no run did.
    """
    by_host = grouped(
        ((run.result.host, planned.device), run.result)
        for planned, runs in measured
        for run in runs
        if run.result.elapsed_ns
    )
    rows = (
        (
            host or wording.DASH,
            device,
            str(len(results)),
            wording.instant(min(result.started_at for result in results)),
            wording.duration(sum(result.elapsed_ns for result in results)),
            wording.duration(sum(result.push_ns for result in results) or None),
        )
        for (host, device), results in sorted(by_host.items())
    )
    return Listing(
        title="Computers that drove the devices",
        head=("Computer", "Device", "Runs", "First run", "Time in runs", "Of it pushing files"),
        rows=tuple(rows),
    )


def contexts_listing(rows: Sequence[SimulatedContext], title: str = "") -> Listing:
    """What chips' NPUs have of models; in reports, which have a title, with the chips' names, and capitals in heads."""
    checked = any(row.checks or row.context.not_run for row in rows)
    head = (
        "model", "context", *(("chip",) if title else ()), "size", "nodes", "on the CPU", "QAIRT", "compiled in",
        "memory", "sha256", *(("outputs, simulated",) if checked else ()),
    )  # fmt: skip
    right = ("size", "nodes", "on the CPU", "compiled in", "memory")
    shown = (lambda text: text[:1].upper() + text[1:]) if title else str
    cells = [
        (
            row.context.model, row.context.variant.name,
            *((f"{row.context.chip.title}, V{row.context.chip.htp_arch}",) if title else ()),
            wording.size(row.context.total_bytes),
            f"{row.context.npu_nodes}", f"{row.context.cpu_nodes}", row.context.qairt,
            f"{row.context.seconds:.1f} s", wording.size(row.context.memory_bytes), row.context.binary_sha256[:12],
            *((row.context.not_run or wording.outputs(row.checks),) if checked else ()),
        )
        for row in rows
    ]  # fmt: skip
    return Listing(title=title, head=tuple(map(shown, head)), rows=tuple(cells), right=tuple(map(shown, right)))


LISTINGS = Place[Callable[[CampaignReport, bool], Iterator[Listing]]]("report.listings")
"""Tables of features, of a report and whether only those are wanted that fit a terminal."""


def offered(report: CampaignReport, *, brief: bool = False) -> tuple[Listing, ...]:
    """What features have to show of a report; empty tables left out."""
    return tuple(listing for listings in LISTINGS for listing in listings(report, brief) if listing.rows)


DOUBTS = "Doubts"
NOT_MEASURED = "Accuracy that was not measured"

SLOW_START = 10
"""How many times the median a first run takes that users will notice, if it takes `SLOW_START_NS` more, too."""

SLOW_START_NS = 100_000_000


def sections(report: CampaignReport) -> tuple[Section, ...]:
    """Everything to know beside the table, what matters most first; empty sections left out."""
    skipped = [(place(row.device, row.model, row.variant, row.run), row.text) for row in report.skipped]
    slow_starts = []  # first inferences that compile or plan what later ones have; the steady state leaves them out
    for row in report.rows:
        median_ns = row.statistics.median_ns if row.statistics else math.inf
        if row.first_run_ns > max(SLOW_START * median_ns, median_ns + SLOW_START_NS):
            gpu = provider_named(row.run.partition("+")[0]).gpu
            times = f"{wording.duration(row.first_run_ns)}, then {wording.duration(median_ns)}"
            slow_starts.append(
                ListingNote(
                    title="", text=times + "; shaders are compiled in it" * gpu,
                    remedy="run it once in the background", places=(row.place,),
                )
            )  # fmt: skip
    return sections_of(
        {
            "Warnings": warnings(report),
            "Models that could not be used": [
                ListingNote(title=model.name, text=model.error, remedy=model.remedy)
                for model in report.models
                if model.error
            ],
            "What failed": gathered(_failures(report)),
            "Findings of the proof": [note for proof in report.proofs for note in proof_notes(proof)],
            "Outputs that differ": gathered(_outputs(report, unknown=False)),
            "Outputs that could not be judged": gathered(_outputs(report, unknown=True)),
            NOT_MEASURED: gathered(
                ListingNote(title="", text=entry.why, places=(place(entry.model, entry.variant),))
                for entry in report.accuracy
                if entry.result is None
            ),
            "Skipped": gathered(
                ListingNote(title="", text=text, places=(where,) if where else ()) for where, text in skipped
            ),
            "Slow first runs": slow_starts,
            DOUBTS: gathered(
                ListingNote(
                    title=caution.doubt.value.replace("_", " "), text="", remedy=caution.advice,
                    places=(f"{row.place}: {caution.reason}",),
                )
                for row in report.rows
                for caution in row.cautions
            ),
        }
    )  # fmt: skip


def failed_lines(report: CampaignReport) -> Iterator[str]:
    """What went wrong, each in a line: models, runs, outputs, searches and proofs."""
    yield from (f"{model.name}: {model.error}; {model.remedy}" for model in report.models if model.error)
    for note in [*gathered(_failures(report)), *gathered(_outputs(report, unknown=False))]:
        yield ": ".join(part for part in (", ".join(note.places[:3]), note.title, note.text) if part)
    yield from (answer.why_none for answer in (report.tuned.answers if report.tuned else ()) if answer.why_none)
    yield from (text for proof in report.proofs for text in proof.objections)
    if not (report.rows or report.modes):
        yield from (f"{place(row.device, row.model, row.variant, row.run)}: {row.text}" for row in report.skipped)
        yield "nothing was measured"


def warnings(report: CampaignReport) -> list[ListingNote]:
    """What was not as one might think, once for all its places."""
    return gathered(
        ListingNote(title="", text=warning.text, places=(warning.where,) if warning.where else ())
        for warning in report.warnings
    )


def _failures(report: CampaignReport) -> Iterator[ListingNote]:
    for failure in report.failures:
        times = f" ({failure.times} times)" if failure.times > 1 else ""
        where = failure.place + times
        cause = "" if failure.cause in failure.message else failure.cause
        text = "; ".join(part.strip().rstrip(".") for part in (failure.message, cause) if part)
        title = failure.kind.replace("_", " ")
        yield ListingNote(title=title, text=text, remedy=failure.remedy, places=(where,))


HERE = "before measuring"
"""Where artifacts are checked first: the CPU of the computer that made them."""


def _outputs(report: CampaignReport, *, unknown: bool) -> Iterator[ListingNote]:
    """Outputs that differ, or could not be judged, wherever they were compared."""
    compared = [(place(HERE, entry.model, entry.variant), entry.checks) for entry in report.checks]
    compared += [(row.place, row.checks) for row in report.rows]
    wrong = [(where, c) for where, checks in compared for c in checks if (c.unknown if unknown else c.failed)]
    worst: dict[str, float] = {}
    for _, check in wrong:
        worst[check.output] = max(worst.get(check.output, 0.0), check.max_rel_error or 0.0)
    for where, check in wrong:
        right = "the original model" if check.sqnr_db is msgspec.UNSET else "the model in its precision"
        error = f"not what {right} computes: relative error up to {wording.error_size(worst[check.output])}"
        text = error if check.failed and check.limit is not None else check.reason or "not what the original computes"
        numbers = f"{where}: {wording.check_numbers(check)}"
        yield ListingNote(title=check.output, text=text, remedy=remedy_of(check), places=(numbers,))


HEAD = ("model", "value", "original", "drop", "95 % interval of the drop", "verdict")
REPORT_HEAD = ("Metric", "Original", "Here", "On devices", "Drop", "95 % interval", "Verdict", "Samples")


def headline(result: AccuracyResult) -> str:
    """The metric, the samples and what they are compared with; what is no accuracy is said to be none."""
    count = f"{counted(result.samples, 'step' if result.steps else 'sample')} of {result.data}"
    metric = f"{result.metric}{result.of_output}"
    if result.labelled:
        return f"{metric} on {count}, compared with their labels"
    if result.metric == MetricName.AGREEMENT:
        return f"agreement with the original's top-1{result.of_output} on {count} without labels: this is not accuracy"
    return f"{metric}, compared with the original's outputs on {count}: this is not accuracy"


def number(result: AccuracyResult, value: float | None) -> str:
    """A value of the result's metric: shares in percent, ratios of power in dB."""
    if result.metric in (MetricName.SQNR, MetricName.PSNR):
        return decibel(value)
    if value is None:
        return DASH
    return f"{value:.2%}".replace("%", " %") if _is_share(result) else f"{value:.4g}"


def _is_share(result: AccuracyResult | OutputDrift) -> bool:
    """Whether values are shares of one; the scale of a user's own function is not known."""
    return result.metric in list(MetricName) and METRICS[MetricName(result.metric)].share


def higher_is_better(metric: str) -> bool:
    """Whether larger values of a metric are better; a user's own function says so by definition."""
    return metric not in list(MetricName) or METRICS[MetricName(metric)].higher_is_better


def decibel(value: float | None) -> str:
    """A ratio in dB; there is none between equal outputs."""
    return "equal" if value is None else f"{value:.1f} dB"


def drop_text(result: AccuracyResult | OutputDrift) -> str:
    """The drop, in percentage points where values are shares."""
    if result.drop is None:
        return DASH
    return f"{result.drop * 100 + 0.0:.2f} pp" if _is_share(result) else f"{result.drop:.4g}"


def interval_text(result: AccuracyResult) -> str:
    """The bounds of the drop."""
    if result.drop_low is None or result.drop_high is None:
        return DASH
    if not _is_share(result):
        return f"{result.drop_low:.4g} to {result.drop_high:.4g}"
    return f"{result.drop_low * 100:.2f} to {result.drop_high * 100:.2f} pp"


def verdict_text(result: AccuracyResult) -> str:
    """The verdict, and how many samples would tell where these do not."""
    if result.verdict is not DropVerdict.CANNOT_TELL:
        return result.verdict.value if result.verdict else DASH
    if result.value is None:
        return f"cannot tell: {result.metric} could not be computed, see the warnings"
    if result.still:
        return f"cannot tell: {result.still}"
    if result.samples_needed:
        return f"cannot tell: about {result.samples_needed} samples would"
    if result.drop_low is None and result.samples >= intervals.LEAST_SAMPLES:
        return "cannot tell: there is no interval, see the warnings"
    return "cannot tell: too few samples, or the drop is the budget itself"


def refusal_text(result: AccuracyResult) -> str:
    """Why a model does not keep to its budget, or is too far from float, in one line."""
    if result.over:
        interval = f" ({interval_text(result)})" if result.drop_low is not None else ""
        metric = f"{result.metric}{result.of_output}"
        return f"{result.model}: {metric} drops by {drop_text(result)}{interval}: {verdict_text(result)}"
    if far := result.below_floor:
        return f"{result.model}: too far from the original: {far}; at least {FLOOR_DB:g} dB without a budget for less"
    return f"{result.model}: NaN or infinity where the original gives numbers"


def report_cells(result: AccuracyResult | None, rows: Sequence[Row]) -> tuple[str, ...]:
    """Metric, the original's value, the artifact's here and on devices (the worst of `rows`), the drop, its interval,
    the verdict and the samples; or that it was not measured.
    """
    if result is None:
        return (*[""] * 6, "not measured", "")
    on_devices = [check.value for row in rows for check in row.checks if check.value is not None]
    worst = min if higher_is_better(result.metric) else max
    return (
        f"{result.metric}{result.of_output}",
        number(result, result.reference_value),
        number(result, result.value),
        number(result, worst(on_devices)) if on_devices else DASH,
        drop_text(result),
        interval_text(result),
        verdict_text(result),
        str(result.samples),
    )


def accuracy_parts(results: Sequence[AccuracyResult]) -> Iterator[Part]:
    """The metric, a table of models, one of outputs, and findings."""
    if not results:
        return
    headlines = [headline(result) for result in results]
    if len(set(headlines)) == 1:
        yield Line(headlines[0])
    else:  # another output or metric decides of each
        yield from (Line(f"{result.model}: {text}") for result, text in zip(results, headlines, strict=True))
    yield Line("")
    if chip := results[0].chip:
        yield from map(Line, (f"simulated: the models as the NPU of {chip} ({CHIPS[chip].title}) computes them", ""))
    shown = [
        (
            result.model, number(result, result.value), number(result, result.reference_value), drop_text(result),
            interval_text(result), verdict_text(result),
        )
        for result in results
    ]  # fmt: skip
    yield _table(HEAD, shown)
    yield from map(Line, ("", "Outputs, compared with the original's:"))
    rows = []
    for result in results:
        for drift in result.outputs:
            # Of outputs that could be compared: NaN has no measure, which None stands for, too
            sqnr, psnr = (
                DASH if value is None and drift.max_error != 0 else decibel(value)
                for value in (drift.sqnr_db, drift.psnr_db)
            )
            rows.append(
                (
                    result.model, drift.name, sqnr, psnr, DASH if drift.cosine is None else f"{drift.cosine:.5f}",
                    DASH if drift.max_error is None else f"{drift.max_error:.3g}",
                    *(
                        DASH if share is None else f"{share:.2%}".replace("%", " %")
                        for share in (drift.agreement, drift.equal)
                    ),
                    _judgement(drift),
                )
            )  # fmt: skip
    head = ("model", "output", "SQNR", "PSNR", "cosine", "max error", "same top-1", "equal elements", "judged by")
    filled = [place for place in range(len(head)) if place < 6 or any(row[place] != DASH for row in rows)]
    yield _table([head[place] for place in filled], [tuple(row[place] for place in filled) for row in rows])
    for result in results:
        if result.unjudged:
            yield Line(f"not judged of {result.model}: {', '.join(result.unjudged)}")
    for finding in dict.fromkeys(finding for result in results for finding in result.findings):
        yield from map(Line, ("", f"warning: {finding.what}: {finding.why}; {finding.remedy}"))


def _judgement(drift: OutputDrift) -> str:
    """The metric of one output, its drop and the verdict: r2 drops by 0.10 pp, within."""
    if not drift.metric:
        return "nothing"
    metric = f"{drift.metric} of {drift.channels}" if drift.channels else drift.metric
    drop = f"{metric} drops by {drop_text(drift)}" if drift.drop is not None else metric
    verdict = drift.verdict.value if drift.verdict else ""
    return ", ".join(filter(None, (drop, verdict, "too far" if drift.below_floor else "")))


def _table(head: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Listing:
    right = tuple(name for name in head if name not in ("model", "output", "verdict", "judged by"))
    return Listing(title="", head=tuple(head), rows=tuple(rows), right=right)


PROOF_HEAD = ("Model", "Variant", "Run", "API level", "Ran on", "Result", "Outputs", "NNAPI operations in partitions")
NO_PHONE = "It ran in a process of this computer, not on a phone: timings are not reported."
EMULATED = "It ran in an emulator, not on a phone: timings are not reported."


def title(proof: LibraryProof) -> str:
    """The library by its file, release and commit."""
    library = proof.library
    commit = f", commit {library.commit[:10]}" if library.commit else ""
    release = f" (ONNX Runtime {library.release}{commit})" if library.release else ""
    return f"Proof in the library that ships: {library.file}{release}"


def summary(proof: LibraryProof) -> str:
    """How many rows pass or could not be judged, or why nothing was run."""
    if proof.not_run:
        return f"not proven in {proof.library.file}: {proof.not_run_text}"
    passing, undecided = sum(row.passed for row in proof.rows), sum(row.undecided for row in proof.rows)
    unknown = f", {undecided} could not be judged" if undecided else ""
    levels = ", ".join(map(str, sorted({row.api_level for row in proof.rows if row.api_level})))
    places = "; ".join(filter(None, (levels and f"API level {levels}", _places(proof.rows))))
    where = EMULATED if any(row.cpu for row in proof.rows) else NO_PHONE
    return f"{passing} of {len(proof.rows)} runs pass{unknown} ({places}). {where}"


def _places(rows: Sequence[ProofRow]) -> str:
    cpus: dict[str, dict[str, None]] = {}
    for row in rows:
        cpus.setdefault(row.abi, {}).update({row.cpu: None} if row.cpu else {})
    return ", ".join(f"{abi} on {' and '.join(names)}" if names else abi for abi, names in cpus.items())


def rows(proof: LibraryProof) -> Iterator[tuple[str, ...]]:
    """Cells under `PROOF_HEAD`; rows that differ in API level and CPU alone are one."""
    groups: dict[tuple[str, ...], list[ProofRow]] = {}
    for row in proof.rows:
        # The result, the worst error, and what NNAPI took
        kinds = ", ".join(dict.fromkeys(finding.kind.replace("_", " ") for finding in row.findings))
        word = "FAILS" if row.failed else "warns" if row.broken else "not judged" if row.undecided else "passes"
        worst = max((check.max_rel_error for check in row.checks if check.max_rel_error is not None), default=None)
        sizes, claims = row.partitions or (), wording.DASH
        if row.options.provider == NNAPI and not (row.failed and not sizes):
            claims = f"{sum(sizes)} in {len(sizes)}" if sizes else "none"
        ran, result = f"{row.run} (chosen)" if row.chosen else row.run, f"{word}: {kinds}" if kinds else word
        key = (row.model, row.variant, ran, result, wording.error_size(worst), claims, str(row.api_level))
        groups.setdefault(key, []).append(row)
    joined: dict[tuple[str, ...], list[str]] = {}
    for (*cells, level), group in groups.items():
        chips = [
            f", simulated {chip} (QAIRT {qairt})"
            for chip, qairt in dict.fromkeys((row.chip, row.qairt) for row in group)
            if chip
        ]
        ran_on = _places(group) + "".join(chips)
        joined.setdefault((*cells, ran_on), []).append(level if group[0].api_level else wording.DASH)
    for (model, variant, run, *results, places), levels in joined.items():
        yield model, variant, run, ", ".join(levels), places, *results


def findings(proof: LibraryProof) -> list[tuple[ProofRow, ProofFinding]]:
    """Every finding with its row, those that fail first."""
    pairs = ((row, finding) for row in proof.rows for finding in row.findings)
    return sorted(pairs, key=lambda pair: list(Severity).index(pair[1].severity))


def where(row: ProofRow) -> str:
    """Where a row ran: with the ABI of the library, and the CPU that an emulator played."""
    level = f"API level {row.api_level}" if row.api_level else ""
    return place(row.model, row.variant, row.run, level, f"{row.abi} on {row.cpu}" if row.cpu else row.abi)


def reason(finding: ProofFinding) -> str:
    """The reason of a finding, with the line that an operator config lacks."""
    line = f"operator config line: {finding.config_line}" if finding.config_line else ""
    return "; ".join(part for part in (finding.why, line) if part)


def proof_listing(proof: LibraryProof) -> Listing:
    """What came of each way to run in a library that ships; without rows where nothing was run."""
    return Listing(title=title(proof), head=PROOF_HEAD, rows=tuple(rows(proof)))


def proof_notes(proof: LibraryProof) -> list[ListingNote]:
    """What to know of a library that ships: how much holds, or why nothing was run; then every finding once."""
    by_finding = gathered(
        ListingNote(title=finding.what, text=reason(finding), remedy=finding.remedy, places=(where(row),))
        for row, finding in findings(proof)
    )
    other = f"of another platform than this library, so not run: {', '.join(proof.left_out)}"
    remarks = [*([other] if proof.left_out else []), *proof.notes]
    return [
        ListingNote(title="", text=summary(proof)),
        *by_finding,
        *(ListingNote(title="", text=text) for text in remarks),
    ]
