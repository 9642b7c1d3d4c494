"""Accuracy in words and tables: the same texts in the terminal and in reports."""

from collections.abc import Iterator, Sequence

from pipeline.accuracy.interval import LEAST_SAMPLES
from pipeline.accuracy.metrics import METRICS
from pipeline.accuracy.result import AccuracyResult, DropVerdict, OutputDrift
from pipeline.config import MetricName
from pipeline.core.groups import counted
from pipeline.report.model import Row
from pipeline.report.parts import Line, Listing, Part
from pipeline.report.wording import DASH

HEAD = ("model", "value", "original", "drop", "95 % interval of the drop", "verdict")
REPORT_HEAD = ("Metric", "Original", "Here", "On devices", "Drop", "95 % interval", "Verdict", "Samples")
DRIFT_HEAD = ("model", "output", "SQNR", "PSNR", "cosine", "max error", "same top-1")


def headline(result: AccuracyResult) -> str:
    """The metric, the samples and what they are compared with; what is no accuracy is said to be none."""
    count = f"{counted(result.samples, 'sample')} of {result.data}"
    if result.labelled:
        return f"{result.metric} on {count}, compared with their labels"
    if result.metric == MetricName.AGREEMENT:
        return f"agreement with the original's top-1 on {count} without labels: this is not accuracy"
    return f"{result.metric}, compared with the original's outputs on {count}: this is not accuracy"


def number(result: AccuracyResult, value: float | None) -> str:
    """A value of the result's metric: shares in percent, ratios of power in dB."""
    if result.metric in (MetricName.SQNR, MetricName.PSNR):
        return decibel(value)
    if value is None:
        return DASH
    return f"{value:.2%}".replace("%", " %") if _is_share(result) else f"{value:.4g}"


def _is_share(result: AccuracyResult) -> bool:
    """Whether values are shares of one; the scale of a user's own function is not known."""
    return result.metric in list(MetricName) and METRICS[MetricName(result.metric)].share


def higher_is_better(metric: str) -> bool:
    """Whether larger values of a metric are better; a user's own function says so by definition."""
    return metric not in list(MetricName) or METRICS[MetricName(metric)].higher_is_better


def decibel(value: float | None) -> str:
    """A ratio in dB; there is none between equal outputs."""
    return "equal" if value is None else f"{value:.1f} dB"


def drop_text(result: AccuracyResult) -> str:
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
    if result.samples_needed:
        return f"cannot tell: about {result.samples_needed} samples would"
    if result.drop_low is None and result.samples >= LEAST_SAMPLES:
        return "cannot tell: there is no interval, see the warnings"
    return "cannot tell: too few samples, or the drop is the budget itself"


def refusal_text(result: AccuracyResult) -> str:
    """Why a model does not keep to its budget, in one line."""
    interval = f" ({interval_text(result)})" if result.drop_low is not None else ""
    return f"{result.model}: {result.metric} drops by {drop_text(result)}{interval}: {verdict_text(result)}"


def accuracy_rows(results: Sequence[AccuracyResult]) -> list[tuple[str, ...]]:
    """A row under `HEAD` for each model."""
    return [
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


def report_cells(result: AccuracyResult | None, why: str, rows: Sequence[Row]) -> tuple[str, ...]:
    """Metric, the original's value, the artifact's here and on devices (the worst of `rows`), the drop, its interval,
    the verdict and the samples; or why there is none.
    """
    if result is None:
        return (f"not measured: {why}", *[""] * 7)
    on_devices = [check.value for row in rows for check in row.checks if check.value is not None]
    worst = min if higher_is_better(result.metric) else max
    return (
        result.metric,
        number(result, result.reference_value),
        number(result, result.value),
        number(result, worst(on_devices)) if on_devices else DASH,
        drop_text(result),
        interval_text(result),
        verdict_text(result),
        str(result.samples),
    )


def drift_rows(results: Sequence[AccuracyResult]) -> list[tuple[str, ...]]:
    """A row under `DRIFT_HEAD` for each output of each model."""
    return [
        (
            result.model,
            drift.output,
            _decibel(drift, drift.sqnr_db),
            _decibel(drift, drift.psnr_db),
            DASH if drift.cosine is None else f"{drift.cosine:.5f}",
            DASH if drift.max_error is None else f"{drift.max_error:.3g}",
            DASH if drift.agreement is None else f"{drift.agreement:.2%}".replace("%", " %"),
        )
        for result in results
        for drift in result.outputs
    ]


def _decibel(drift: OutputDrift, value: float | None) -> str:
    """`decibel`, of outputs that could be compared: NaN has no measure, which None stands for, too."""
    return DASH if value is None and drift.max_error != 0 else decibel(value)


def accuracy_parts(results: Sequence[AccuracyResult]) -> Iterator[Part]:
    """The metric, a table of models, one of outputs, and findings."""
    if not results:
        return
    yield from map(Line, (headline(results[0]), ""))
    yield _table(HEAD, accuracy_rows(results))
    yield from map(Line, ("", "Outputs, compared with the original's:"))
    yield _table(DRIFT_HEAD, drift_rows(results))
    for finding in dict.fromkeys(finding for result in results for finding in result.findings):
        yield from map(Line, ("", f"warning: {finding.what}: {finding.why}; {finding.remedy}"))


def _table(head: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Listing:
    right = tuple(name for name in head if name not in ("model", "output", "verdict"))
    return Listing(title="", head=tuple(head), rows=tuple(rows), right=right)
