"""The metric of a model and of its original on the same samples, with the interval of the drop and its verdict."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from device_runner.spec import TensorFile
from pipeline.accuracy.interval import (
    DropInterval,
    bootstrap_interval,
    drop_of,
    finite,
    mcnemar,
    paired_interval,
    paired_samples_needed,
    samples_needed,
    verdict_of,
)
from pipeline.accuracy.metrics import METRICS, Metric, Needs, Outputs, class_scores, find_metric, looks_like_classes
from pipeline.accuracy.result import AccuracyResult, DropVerdict, OutputDrift
from pipeline.check.compare import read_tensor
from pipeline.config import AccuracyConfig, MetricName
from pipeline.core.errors import ConfigError, Finding, ModelError, Severity

NO_BUDGET = AccuracyConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a model and its original made of one sample."""

    sample: str
    outputs: Outputs
    expected: Outputs
    label: Any = None


def score(answers: Iterable[Answer], model: str, config: AccuracyConfig, data: str) -> AccuracyResult:
    """The result of all answers, of which one is in memory at a time; only contributions are kept.

    The first answer decides whether there are labels. ConfigError names the sample that does not fit the metric.
    """
    metric: Metric | None = None
    ours: list[Any] = []
    references: list[Any] = []
    drifts: dict[str, tuple[list[Any], list[Any]]] = {}
    labelled, not_finite = False, 0
    for answer in answers:
        if metric is None:
            labelled = answer.label is not None
            metric = _suited(config, answer, labelled=labelled)
        ours.append(_measured(metric, config, answer, answer.outputs))
        if metric.needs is Needs.LABELS:
            references.append(_measured(metric, config, answer, answer.expected))
        not_finite += any(_lost(expected, answer.outputs.get(name)) for name, expected in answer.expected.items())
        _add_drifts(drifts, answer)
    if metric is None:
        raise ConfigError("the evaluation data have no samples", where=data, remedy="give test data")
    result = AccuracyResult(
        model=model,
        metric=metric.name,
        labelled=metric.needs is Needs.LABELS,
        samples=len(ours),
        data=data,
        value=finite(metric.value(metric.pack(ours), np.ones(len(ours), np.int64))),
        max_drop=config.max_drop,
        not_finite=not_finite,
        outputs=tuple(_drift(name, *parts) for name, parts in drifts.items()),
        findings=tuple(
            _not_finite(name, powers) for name, (powers, _) in drifts.items() if not np.isfinite(powers).all()
        ),
    )
    judged = [drifts[name][0] for name in _chosen(metric, config, answer.expected) if name in drifts]
    sound = not judged or any(np.isfinite(np.asarray(powers)[:, 2]).any() for powers in judged)
    return _with_drop(result, metric, ours, references, sound=sound)


def _suited(config: AccuracyConfig, answer: Answer, *, labelled: bool) -> Metric:
    """The metric; without a name for it and without classes the cosine of outputs."""
    metric = find_metric(config, labelled=labelled)
    if config.metric is None and metric.name == MetricName.AGREEMENT:
        ((name, array),) = _chosen(metric, config, answer.expected).items()
        return metric if looks_like_classes(name, array) else METRICS[MetricName.COSINE]
    return metric


def _chosen(metric: Metric, config: AccuracyConfig, outputs: Outputs) -> Outputs:
    """The outputs that a metric gets: all, or the one that the config names, or the first."""
    if metric.every_output:
        return outputs
    name = config.output or next(iter(outputs), "")
    if name not in outputs:
        raise ConfigError(
            f"the model has no output {name!r}", where="accuracy.output",
            why=f"outputs: {', '.join(outputs) or 'none'}", remedy="name one of them",
        )  # fmt: skip
    return {name: outputs[name]}


def _measured(metric: Metric, config: AccuracyConfig, answer: Answer, outputs: Outputs) -> Any:
    """The contribution of one answer; ConfigError with the sample's name."""
    if metric.needs is Needs.LABELS and answer.label is None:
        raise ConfigError(
            "no label for this sample", where=answer.sample, why="others before it have one",
            remedy="give every sample a label, or none",
        )  # fmt: skip
    truth = answer.label if metric.needs is Needs.LABELS else _chosen(metric, config, answer.expected)
    try:
        return metric.measure(_chosen(metric, config, outputs), truth)
    except ConfigError as error:
        where = f"{error.where}, {answer.sample}"
        raise ConfigError(error.what, where=where, why=error.why, remedy=error.remedy) from error


def _lost(original: Any, given: Any) -> bool:
    """Whether an output is not finite where the original's is."""
    if given is None or original.shape != given.shape or not {original.dtype.kind, given.dtype.kind} <= {"f"}:
        return False
    return bool((np.isfinite(original) & ~np.isfinite(given)).any())


def _add_drifts(drifts: dict[str, tuple[list[Any], list[Any]]], answer: Answer) -> None:
    """Add what each output's measures of error are made of, and whether its top-1 is the same."""
    for name, expected in answer.expected.items():
        if expected.dtype.kind not in "fiub" or name not in answer.outputs:
            continue
        powers, same = drifts.setdefault(name, ([], []))
        pair = {name: answer.outputs[name]}, {name: expected}
        powers.append(METRICS[MetricName.SQNR].measure(*pair))
        if class_scores(expected) is not None and class_scores(answer.outputs[name]) is not None:
            same.append(METRICS[MetricName.AGREEMENT].measure(*pair))


def _not_finite(name: str, powers: list[Any]) -> Finding:
    """A warning about NaN and infinity, or outputs of another shape: no measure of error holds there."""
    rows = np.asarray(powers)
    of_original = int((~np.isfinite(rows[:, 2])).sum())
    whose, count = (
        ("the original's", of_original) if of_original else ("the", int((~np.isfinite(rows)).any(axis=1).sum()))
    )
    return Finding(
        severity=Severity.WARNING,
        what=f"{whose} output {name!r} has NaN or infinity, or another shape, on {count} of {len(rows)} samples",
        why="no measure of error can be computed there, and such answers count as wrong",
        remedy="look for NaN in these samples first, then leave the layers that overflow in float",
    )


def _drift(name: str, powers: list[Any], same: list[Any]) -> OutputDrift:
    def value(metric: MetricName, contributions: list[Any]) -> float | None:
        row = METRICS[metric]
        return finite(row.value(row.pack(contributions), np.ones(len(contributions), np.int64)))

    return OutputDrift(
        output=name,
        sqnr_db=value(MetricName.SQNR, powers),
        psnr_db=value(MetricName.PSNR, powers),
        cosine=value(MetricName.COSINE, powers),
        max_error=value(MetricName.MAX_ERROR, powers),
        agreement=value(MetricName.AGREEMENT, same) if len(same) == len(powers) else None,
    )


def _with_drop(
    result: AccuracyResult, metric: Metric, ours: list[Any], references: list[Any], *, sound: bool
) -> AccuracyResult:
    """The result with the drop from the original, its interval, and the verdict on a budget.

    Where the original gives NaN on every sample (not `sound`), no drop from it says anything: no interval. A value that
    could not be computed keeps no budget.
    """
    if result.value is None or not metric.share:
        return result if result.max_drop is None else msgspec.structs.replace(result, verdict=DropVerdict.CANNOT_TELL)
    count, better = result.samples, metric.higher_is_better
    mine, original = metric.pack(ours), metric.pack(references) if references else None

    def reference(weights: Any) -> float:
        return float(metric.perfect or 0) if original is None else metric.value(original, weights)

    def drop(weights: Any) -> float:
        return drop_of(metric.value(mine, weights), reference(weights), higher_is_better=better)

    every = np.ones(count, np.int64)
    lost = gained = 0
    if metric.paired:
        right = every if original is None else original
        lost, gained = int((right > mine).sum()), int((right < mine).sum())
        interval: DropInterval | None = paired_interval(lost, gained, count)
    else:
        # One sample can change a metric with a name by 1 at most; a user's function has a scale of its own.
        span = 1.0 if metric.name in list(MetricName) else max(1.0, float(np.abs(mine).max()))
        interval = bootstrap_interval(drop, count, span, metric.resamples)
    interval = interval if sound else None
    if interval and metric.perfect is not None:  # nothing agrees better with the original than it does itself
        interval = interval._replace(low=max(0.0, interval.low))
    result = msgspec.structs.replace(
        result,
        reference_value=reference(every),
        drop=drop(every),
        drop_low=interval.low if interval else None,
        drop_high=interval.high if interval else None,
        p_value=mcnemar(lost, gained) if metric.paired and references else None,
    )
    return _judged(result, interval, (lost, gained) if metric.paired and sound else None)


def _judged(result: AccuracyResult, interval: DropInterval | None, pairs: tuple[int, int] | None) -> AccuracyResult:
    if result.max_drop is None or result.drop is None:
        return result
    verdict = verdict_of(interval, result.max_drop)
    needed = None
    if verdict is DropVerdict.CANNOT_TELL and pairs:
        needed = paired_samples_needed(*pairs, result.samples, result.max_drop)
    elif verdict is DropVerdict.CANNOT_TELL:
        needed = samples_needed(result.drop, interval, result.samples, result.max_drop)
    return msgspec.structs.replace(result, verdict=verdict, samples_needed=needed)


def measure_outputs(
    model: str,
    outputs: Iterable[TensorFile],
    originals: Iterable[TensorFile],
    labels: Sequence[int | str] = (),
    accuracy: AccuracyConfig = NO_BUDGET,
) -> AccuracyResult:
    """The same metric on outputs that a device computed; ModelError for tensors that have other samples than these.

    Both are raw tensors of stacked samples, as in pipeline.check.result.LabelledSet; a label for each, or none at all.
    """
    ours = {tensor.name: read_tensor(tensor) for tensor in outputs}
    expected = {tensor.name: read_tensor(tensor) for tensor in originals}
    counts = {len(array) for array in (*ours.values(), *expected.values())}
    counts |= {len(labels)} if labels else set()
    if set(expected) - set(ours) or len(counts) != 1:
        raise ModelError(
            "the device's outputs are not those of the original", where=model,
            why=f"outputs {', '.join(ours)} instead of {', '.join(expected)}, samples and labels {sorted(counts)}",
            remedy="run the labelled samples on the device again",
        )  # fmt: skip
    answers = (
        Answer(
            sample=f"sample {number}",
            outputs={name: array[number] for name, array in ours.items()},
            expected={name: array[number] for name, array in expected.items()},
            label=labels[number] if labels else None,
        )
        for number in range(counts.pop())
    )
    return score(answers, model, accuracy, "")
