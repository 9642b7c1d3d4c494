"""Accuracy beside the original's: values, drops, intervals and verdicts as texts and tables."""

from collections.abc import Iterator, Sequence

from device_runner import providers as runner_providers
from pipeline import config as configs
from pipeline.accuracy import intervals, metrics
from pipeline.accuracy import result as accuracy_result
from pipeline.check.compare import OutputCheck
from pipeline.core import groups as counting
from pipeline.passes import precisions as passes_precisions
from pipeline.report import wording
from pipeline.report.model import CampaignReport, Row
from pipeline.report.wording import DASH, Line, Listing, Part

HEAD = ("model", "value", "original", "drop", "95 % interval of the drop", "verdict")

REPORT_HEAD = ("Metric", "Original", "Here", "On devices", "Drop", "95 % interval", "Verdict", "Samples")


def headline(result: accuracy_result.AccuracyResult) -> str:
    """The metric, the samples and what they are compared with; what is no accuracy is said to be none."""
    count = f"{counting.counted(result.samples, 'step' if result.steps else 'sample')} of {result.data}"
    metric = f"{result.metric}{result.of_output}"
    if result.labelled:
        return f"{metric} on {count}, compared with their labels"
    if result.metric == configs.MetricName.AGREEMENT:
        return f"agreement with the original's top-1{result.of_output} on {count} without labels: this is not accuracy"
    return f"{metric}, compared with the original's outputs on {count}: this is not accuracy"


def number(result: accuracy_result.AccuracyResult, value: float | None) -> str:
    """A value of the result's metric: shares in percent, ratios of power in dB."""
    if result.metric in (configs.MetricName.SQNR, configs.MetricName.PSNR):
        return decibel(value)
    if value is None:
        return DASH
    return f"{value:.2%}".replace("%", " %") if _is_share(result) else f"{value:.4g}"


def _is_share(result: accuracy_result.AccuracyResult | accuracy_result.OutputDrift) -> bool:
    """Whether values are shares of one; the scale of a user's own function is not known."""
    return result.metric in list(configs.MetricName) and metrics.METRICS[configs.MetricName(result.metric)].share


def higher_is_better(metric: str) -> bool:
    """Whether larger values of a metric are better; a user's own function says so by definition."""
    return metric not in list(configs.MetricName) or metrics.METRICS[configs.MetricName(metric)].higher_is_better


def decibel(value: float | None) -> str:
    """A ratio in dB; there is none between equal outputs."""
    return "equal" if value is None else f"{value:.1f} dB"


def drop_text(result: accuracy_result.AccuracyResult | accuracy_result.OutputDrift) -> str:
    """The drop, in percentage points where values are shares."""
    if result.drop is None:
        return DASH
    return f"{result.drop * 100 + 0.0:.2f} pp" if _is_share(result) else f"{result.drop:.4g}"


def interval_text(result: accuracy_result.AccuracyResult) -> str:
    """The bounds of the drop."""
    if result.drop_low is None or result.drop_high is None:
        return DASH
    if not _is_share(result):
        return f"{result.drop_low:.4g} to {result.drop_high:.4g}"
    return f"{result.drop_low * 100:.2f} to {result.drop_high * 100:.2f} pp"


def verdict_text(result: accuracy_result.AccuracyResult) -> str:
    """The verdict, and how many samples would tell where these do not."""
    if result.verdict is not accuracy_result.DropVerdict.CANNOT_TELL:
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


def refusal_text(result: accuracy_result.AccuracyResult) -> str:
    """Why a model does not keep to its budget, or is too far from float, in one line."""
    if result.over:
        interval = f" ({interval_text(result)})" if result.drop_low is not None else ""
        metric = f"{result.metric}{result.of_output}"
        return f"{result.model}: {metric} drops by {drop_text(result)}{interval}: {verdict_text(result)}"
    if far := result.below_floor:
        return (
            f"{result.model}: too far from the original: {far}; at least {accuracy_result.FLOOR_DB:g} dB without "
            "a budget for less"
        )
    return f"{result.model}: NaN or infinity where the original gives numbers"


def report_cells(result: accuracy_result.AccuracyResult | None, rows: Sequence[Row]) -> tuple[str, ...]:
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


def accuracy_parts(results: Sequence[accuracy_result.AccuracyResult]) -> Iterator[Part]:
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
        yield from map(
            Line,
            (f"simulated: the models as the NPU of {chip} ({runner_providers.CHIPS[chip].title}) computes them", ""),
        )
    shown = [
        (
            result.model,
            number(result, result.value),
            number(result, result.reference_value),
            drop_text(result),
            interval_text(result),
            verdict_text(result),
        )
        for result in results
    ]
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
                    result.model,
                    drift.name,
                    sqnr,
                    psnr,
                    DASH if drift.cosine is None else f"{drift.cosine:.5f}",
                    DASH if drift.max_error is None else f"{drift.max_error:.3g}",
                    *(
                        DASH if share is None else f"{share:.2%}".replace("%", " %")
                        for share in (drift.agreement, drift.equal)
                    ),
                    _judgement(drift),
                )
            )
    head = ("model", "output", "SQNR", "PSNR", "cosine", "max error", "same top-1", "equal elements", "judged by")
    filled = [column for column in range(len(head)) if column < 6 or any(row[column] != DASH for row in rows)]
    yield _table([head[column] for column in filled], [tuple(row[column] for column in filled) for row in rows])
    for result in results:
        if result.unjudged:
            yield Line(f"not judged of {result.model}: {', '.join(result.unjudged)}")
    for finding in dict.fromkeys(finding for result in results for finding in result.findings):
        yield from map(Line, ("", f"warning: {finding.what}: {finding.why}; {finding.remedy}"))


def _judgement(drift: accuracy_result.OutputDrift) -> str:
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


MOST_LAYERS = 20
"""Rows of layers in a report: results.json has all."""


def accuracies(report: CampaignReport, *, brief: bool = False) -> Listing:
    """Accuracy of artifacts in other precisions, with size and the best that was measured of each.

    Columns that say nothing of any are left out, and where it is to be `brief` (for a terminal) those of the samples
    and of memory. A section says why there is no accuracy.
    """
    sizes = {(artifact.model, artifact.variant.name): artifact.size_bytes for artifact in report.artifacts}
    precisions = {(artifact.model, artifact.variant.name): artifact.variant.precision for artifact in report.artifacts}
    originals = {model.name: model.size_bytes for model in report.models}
    checks = {(check.model, check.variant): check.checks for check in report.checks}
    measured = counting.grouped(((row.model, row.variant), row) for row in report.rows)
    head = ("Model", "Variant", "Precision", *REPORT_HEAD, "From float", "Size", "Median", "Memory")
    rows = []
    for accuracy in report.accuracy:
        key = accuracy.model, accuracy.variant
        timed = [(run.statistics.median_ns, run) for run in measured.get(key, ()) if run.statistics]
        median_ns, best = min(timed, key=lambda pair: pair[0], default=(None, None))
        rows.append(
            (
                *key,
                passes_precisions.common_name(precisions.get(key, "")),
                *report_cells(accuracy.result, measured.get(key, ())),
                _from_float(accuracy.result, checks.get(key, ())),
                wording.size_beside(sizes.get(key, 0), originals.get(accuracy.model, 0)),
                wording.duration(median_ns),
                wording.size(best.memory_peak_bytes if best else 0),
            )
        )
    places = [
        column
        for column, (name, cells) in enumerate(zip(head, zip(*rows, strict=True), strict=True) if rows else ())
        if not set(cells) <= {"", DASH}
        and not (brief and (name in LONG_COLUMNS or (name == "Model" and len(set(cells)) == 1)))
    ]
    kept = tuple(tuple(row[place] for place in places) for row in rows)
    return Listing(title="Accuracy", head=tuple(head[place] for place in places), rows=kept)


def _from_float(result: accuracy_result.AccuracyResult | None, checks: Sequence[OutputCheck]) -> str:
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
