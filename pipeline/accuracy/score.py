"""What answers of a model are worth: each output by its metric, the drop with its interval; the worst decides.

An output that nobody named is judged by what suits it (`usual_metric`), so that none passes unseen. Labels belong to
one output, that of the classes; the others are compared with the original's.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec
import numpy as np

from device_runner.spec import TensorFile
from pipeline import config as configs
from pipeline import dataset as datasets
from pipeline.accuracy import classes, intervals
from pipeline.accuracy.distances import Powers
from pipeline.accuracy.metrics import METRICS, Metric, Needs, find_metric, usual_metric
from pipeline.accuracy.outputs import Outputs
from pipeline.accuracy.result import AccuracyResult, DropVerdict, OutputDrift
from pipeline.check import compare as output_compare
from pipeline.check import scales as check_scales
from pipeline.config import tables as config_tables
from pipeline.core.errors import ConfigError, Finding, ModelError, Severity
from pipeline.dataset import Array

NO_BUDGET = configs.AccuracyConfig()

Answer: TypeAlias = tuple[datasets.Sample, Outputs]
"""What a model made of one sample; its `expected` are the outputs of the original."""

BLOCKS = 20
"""Steps of a stream are drawn again in so many blocks of neighbours: they are not independent."""
STILL = 0.02
"""A share of the largest value: an output that nothing bounds hardly varies where it varies by less."""
OF_POWERS = frozenset({configs.MetricName.R2, configs.MetricName.COSINE})
"""Metrics that differ a little in every step, whose intervals come from blocks."""


def check_outputs(config: configs.AccuracyConfig, names: Sequence[str], where: str = "") -> None:
    """Raise ConfigError for an output that the config names and that is none of these."""
    for name, key in ((config.output, "accuracy.output"), *((name, "accuracy.outputs") for name in config.outputs)):
        if name is not None and name not in names:
            raise ConfigError(
                f"the model has no output {name!r}",
                where=f"{where}: {key}" if where else key,
                why=f"outputs: {', '.join(names) or 'none'}",
                remedy="name one of them",
            )


@dataclass(slots=True, kw_only=True)
class _Judge:
    """What one output is judged by, all of them together where it has no name, and its contributions so far."""

    output: str
    metric: Metric
    max_drop: float | None
    asked: bool
    ours: list[Any] = field(default_factory=list)
    references: list[Any] = field(default_factory=list)
    scales: check_scales.Scales | None = None
    """The parts of an output that holds values of different scale, where its usual metric does not see the smaller."""
    channels: str = ""
    each: int = 1
    """How many samples a contribution has."""
    elements: int = 0
    """Of all samples, where the metric is the share of those that are equal."""

    def add(self, sample: datasets.Sample, outputs: Outputs) -> None:
        """Measure one sample; ConfigError with its name."""
        expected = dict(sample.expected)
        labelled = self.metric.needs is Needs.LABELS
        if labelled and sample.label is None:
            raise ConfigError(
                "no label for this sample",
                where=sample.name,
                why="others before it have one",
                remedy="give every sample a label, or none",
            )
        try:
            self.ours.append(self.metric.measure(self._of(outputs), sample.label if labelled else self._of(expected)))
            if self.metric.name == configs.MetricName.EQUAL:
                self.elements += sum(array.size for array in self._of(expected).values())
            if self.scales:
                self.scales.add(outputs[self.output], expected[self.output])
            if labelled:
                self.references.append(self.metric.measure(self._of(expected), sample.label))
        except ConfigError as error:
            raise ConfigError.of(error.problem, where=f"{error.where}, {sample.name}") from error

    def _of(self, outputs: Outputs) -> Outputs:
        return {self.output: outputs[self.output]} if self.output else outputs

    def figures(self, *, sound: bool, block: int) -> dict[str, Any]:
        """The fields of a result about the value and its drop from the original, its interval and the verdict.

        Where the original gives NaN on every sample (not `sound`), no drop from it says anything: no interval. A value
        that could not be computed keeps no budget. Samples are drawn again in blocks of so many.
        """
        metric, count = self.metric, len(self.ours)
        mine, every = metric.pack(self.ours), np.ones(count, np.int64)
        original = metric.pack(self.references) if self.references else None
        values: dict[str, Any] = {"value": intervals.finite(metric.value(mine, every)), "max_drop": self.max_drop}
        if values["value"] is None or not metric.share:
            return values | ({} if self.max_drop is None else {"verdict": DropVerdict.CANNOT_TELL})

        def reference(weights: Any) -> float:
            return float(metric.perfect or 0) if original is None else metric.value(original, weights)

        def drop(weights: Any) -> float:
            weights = np.repeat(weights, block)[:count]
            worse = reference(weights) - metric.value(mine, weights)
            return worse if metric.higher_is_better else -worse

        block = max(1, block // self.each) if metric.name in OF_POWERS else 1
        lost, gained, span = 0, 0, 0.0
        if metric.paired:
            right = every if original is None else original
            lost, gained = int((right > mine).sum()), int((right < mine).sum())
            interval: intervals.DropInterval | None = intervals.paired_interval(lost, gained, count)
        else:
            # One sample can change a metric with a name by 1 at most; a user's function has a scale of its own.
            span = 1.0 if metric.name in list(configs.MetricName) else max(1.0, float(np.abs(mine).max()))
            span = 0.0 if metric.name in OF_POWERS else span
            if self.elements:  # each element could have differed: where none did, they are the trials
                span = intervals.unseen_share(self.elements) / intervals.unseen_share(count)
            interval = intervals.bootstrap_interval(drop, -(-count // block), span, metric.resamples)
        interval = interval if sound else None
        if interval and metric.perfect is not None:  # nothing agrees better with the original than it does itself
            interval = max(0.0, interval[0]), interval[1]
        if interval and metric.name == configs.MetricName.EQUAL:
            interval = interval[0], min(interval[1], reference(every))
        worse = drop(every)
        values |= {"reference_value": reference(every), "drop": worse}
        values |= {"drop_low": interval[0], "drop_high": interval[1]} if interval else {}
        values |= {"p_value": intervals.mcnemar(lost, gained)} if metric.paired and self.references else {}
        if self.max_drop is None:
            return values
        verdict, needed = intervals.verdict_of(interval, self.max_drop), None
        if verdict is DropVerdict.CANNOT_TELL and metric.paired and sound:
            needed = intervals.paired_samples_needed(lost, gained, count, self.max_drop)
        elif verdict is DropVerdict.CANNOT_TELL:
            needed = intervals.samples_needed(worse, interval, count * self.each, self.max_drop, span)
        return values | {"verdict": verdict, "samples_needed": needed}

    def parts(self) -> "Iterator[_Judge]":
        """What judges the channels of each scale that is lost beside another, and shows anything."""
        for part in self.scales.parts() if self.scales else ():
            if not part.quiet:
                unknown = np.full(len(part.errors), np.nan)  # what R2 and SQNR do not ask of `Powers`
                rows = {
                    Powers.REFERENCE: part.powers,
                    Powers.ERROR: part.errors,
                    Powers.COUNT: part.counts,
                    Powers.SUM: part.sums,
                }
                ours = list(np.stack([rows.get(column, unknown) for column in Powers], axis=1))
                yield replace(self, ours=ours, scales=None, channels=part.name, each=part.each)

    def quiet_parts(self) -> Iterator[str]:
        """The others, in words."""
        for part in self.scales.parts() if self.scales else ():
            if part.quiet:
                yield f"{self.output}, {part.name} (hardly vary, at most {part.largest:.2g}: no positives?)"

    def still(self, span: float | None) -> str:
        """That the original hardly varies on these samples, and the error is no more than that of rounding the output's
        `span` to 8 bits; "" where the metric tells something.
        """
        if self.asked or self.channels or self.metric.name != configs.MetricName.R2:
            return ""
        powers = self.metric.pack(self.ours)
        low, high = float(powers[:, Powers.LOW].min()), float(powers[:, Powers.HIGH].max())
        largest = max(abs(low), abs(high))
        error = math.sqrt(float(powers[:, Powers.ERROR].sum() / powers[:, Powers.COUNT].sum()))
        limit = check_scales.SHOWN * span if span else STILL * largest
        if not (
            high - low < limit
            and error <= output_compare.FLOORS[output_compare.OutputPrecision.QUANTIZED] * (span or largest)
        ):
            return ""
        return f"the original gives {low:.2g} to {high:.2g}" + (f" of a span of {span:.2g}" if span else "")

    @property
    def sees_scale(self) -> bool:
        """Whether no output of another scale could keep its budget, unless somebody asked for such a metric."""
        return self.asked or self.metric.name in (configs.MetricName.R2, configs.MetricName.EQUAL)


def _judges(config: configs.AccuracyConfig, sample: datasets.Sample) -> list[_Judge]:
    """What the outputs of a model are judged by, that of the labels first; ConfigError where the config is wrong."""
    expected = dict(sample.expected)
    metric = find_metric(config, labelled=sample.label is not None)
    check_outputs(config if config.output else NO_BUDGET, list(expected))
    asked, judges = config.metric is not None, list[_Judge]()
    if metric and metric.every_output:
        return [_Judge(output="", metric=metric, max_drop=config.max_drop, asked=asked)]
    budgets = {
        name: config.outputs.get(name, config_tables.OutputBudget())
        for name in ([config.output] if config.output else expected)
    }
    budgets = {name: budget for name, budget in budgets.items() if budget.weight}
    of_labels = _of_labels(metric, budgets, expected) if metric and metric.needs is Needs.LABELS else ""
    floats = any(expected[name].dtype.kind == "f" for name in budgets)
    for name in sorted(budgets, key=lambda name: name != of_labels):
        budget, array, chosen = budgets[name], expected[name], metric
        if budget.metric is not None:
            chosen = METRICS[configs.MetricName(budget.metric)]
        elif name != of_labels and not (metric and _suits(metric, array, alone=bool(config.output) or not floats)):
            chosen = usual_metric(name, array)
        largest = config.max_drop if budget.max_drop is None else budget.max_drop
        if chosen is None:  # an output of labels has their metric, and `usual_metric` gives one
            continue
        if largest is not None and not chosen.share:
            raise ConfigError(
                f"{chosen.name} has no drop",
                where=f"accuracy.outputs.{name}.max_drop",
                why="the original model's own is not a number",
                remedy="take r2, agreement, equal or cosine",
            )
        largest = None if largest is None else largest / budget.weight
        named = budget.metric is not None or (asked and chosen is metric)
        scales = check_scales.Scales() if chosen.name == configs.MetricName.R2 and not named else None
        judges.append(_Judge(output=name, metric=chosen, max_drop=largest, asked=named, scales=scales))
    if metric and asked and budgets and not any(judge.metric is metric for judge in judges):
        name = next(iter(budgets))  # it suits no output: its own error says why
        _Judge(output=name, metric=metric, max_drop=None, asked=True).add(sample, expected)
    return judges


def _suits(metric: Metric, array: Array, *, alone: bool) -> bool:
    """Whether a metric that compares with the original's outputs can be computed of one; `alone`: there is no other."""
    if metric.needs is Needs.LABELS:
        return False
    if metric.name == configs.MetricName.AGREEMENT:
        return alone or classes.class_scores(array) is not None
    return metric.name == configs.MetricName.EQUAL or array.dtype.kind == "f" or (alone and array.dtype.kind in "iub")


def _of_labels(metric: Metric, budgets: Mapping[str, config_tables.OutputBudget], expected: Outputs) -> str:
    """The output that labels are of: that of the classes, where they are classes; ConfigError where none could be."""
    names = [name for name, budget in budgets.items() if budget.metric is None]
    if metric.name in (configs.MetricName.TOP_1, configs.MetricName.TOP_5, configs.MetricName.F1) and len(names) > 1:
        scored = [name for name in names if classes.class_scores(expected[name]) is not None]
        names = [name for name in scored if classes.looks_like_classes(name, expected[name])] or scored
    if not names:
        shapes = ", ".join(f"{name} {array.dtype} {list(array.shape)}" for name, array in expected.items())
        raise ConfigError(
            "the labels fit no output",
            where="accuracy.metric",
            why=f"{metric.name} needs scores [1, classes] of floats; outputs: {shapes}",
            remedy="leave the labels out to compare with the original's outputs, or name a metric that they fit, as "
            "miou, map, wer or module:function",
        )
    return names[0]


class _Drift:
    """How far one output is from the original's, sample by sample."""

    def __init__(self) -> None:
        self.powers: list[Any] = []
        self.same: list[Any] = []
        self.equal: list[Any] = []
        self.reshaped = 0
        """Samples on which it has other sizes than the original's."""

    def add(self, ours: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
        (mine,), (original,) = ours.values(), expected.values()
        if original.dtype.kind != "f":
            self.equal.append(METRICS[configs.MetricName.EQUAL].measure(ours, expected))
        if original.dtype.kind not in "fiub" or mine.dtype.kind not in "fiub":
            return
        self.reshaped += mine.size != original.size
        self.powers.append(METRICS[configs.MetricName.SQNR].measure(ours, expected))
        if classes.class_scores(original) is not None and classes.class_scores(mine) is not None:
            self.same.append(METRICS[configs.MetricName.AGREEMENT].measure(ours, expected))

    def drift(self, name: str, steps: int) -> OutputDrift:
        """Its measures, without a judgement."""
        powers, whole = self.powers, len(self.same) == len(self.powers) > 0
        return OutputDrift(
            output=name,
            sqnr_db=_value(METRICS[configs.MetricName.SQNR], powers),
            psnr_db=_value(METRICS[configs.MetricName.PSNR], powers),
            cosine=_value(METRICS[configs.MetricName.COSINE], powers),
            max_error=_value(METRICS[configs.MetricName.MAX_ERROR], powers),
            agreement=_value(METRICS[configs.MetricName.AGREEMENT], self.same) if whole else None,
            equal=_value(METRICS[configs.MetricName.EQUAL], self.equal),
            steps=steps,
        )

    @property
    def finite(self) -> bool:
        """Whether the original gives numbers, on any sample."""
        return not self.powers or bool(np.isfinite(np.asarray(self.powers)[:, 2]).any())

    def finding(self, name: str) -> Finding | None:
        """A warning where no measure of error can be computed."""
        if not self.powers or (sound := np.isfinite(rows := np.asarray(self.powers))).all():
            return None
        why = "no measure of error can be computed there, and such answers count as wrong"
        if self.reshaped:
            return Finding(
                severity=Severity.WARNING,
                what=f"the output {name!r} has another shape than the original's on {self.reshaped} of {len(rows)} "
                "samples",
                why=why,
                remedy="leave the layers that compute its size in float; where it lists what a model finds, give "
                "labels and a metric of them",
            )
        of_original = int((~sound[:, 2]).sum())
        whose, count = "the original's" if of_original else "the", of_original or int((~sound).any(axis=1).sum())
        return Finding(
            severity=Severity.WARNING,
            what=f"{whose} output {name!r} has NaN or infinity on {count} of {len(rows)} samples",
            why=why,
            remedy="look for NaN in these samples first, then leave the layers that overflow in float",
        )


def _value(metric: Metric, contributions: list[Any]) -> float | None:
    if not contributions:
        return None
    return intervals.finite(metric.value(metric.pack(contributions), np.ones(len(contributions), np.int64)))


def score(
    answers: Iterable[Answer],
    model: str,
    config: configs.AccuracyConfig,
    data: str,
    *,
    steps: int = 0,
    spans: Mapping[str, float] = MappingProxyType({}),
) -> AccuracyResult:
    """The result of all answers, of which one is in memory at a time; only contributions are kept.

    The first answer decides whether there are labels, and what each output is judged by. `steps`: the answers are those
    of a stream; `spans` are those of outputs that their operators bound. ConfigError names the
    sample that does not fit the metric.
    """
    judges: list[_Judge] | None = None
    drifts: dict[str, _Drift] = {}
    not_finite = count = 0
    for sample, outputs in answers:
        if judges is None:
            judges = _judges(config, sample)
        for judge in judges:
            judge.add(sample, outputs)
        lost = False  # whether an output is not finite where the original's is
        for name, expected in sample.expected:
            output = outputs.get(name)
            if output is None:
                continue
            if expected.shape == output.shape and expected.dtype.kind == output.dtype.kind == "f":
                lost |= bool((np.isfinite(expected) & ~np.isfinite(output)).any())
            drifts.setdefault(name, _Drift()).add({name: output}, {name: expected})
        not_finite += lost
        count += 1
    if judges is None:
        raise ConfigError("the evaluation data have no samples", where=data, remedy="give test data")
    if not judges:
        raise ConfigError(
            "no output is judged",
            where="accuracy.outputs",
            why="each has the weight 0",
            remedy="give one of them another weight",
        )
    block = -(-steps // BLOCKS) if steps else 1
    measured = {name: drift.drift(name, steps) for name, drift in drifts.items()}
    candidates = []
    for judge in judges:
        of_judge = [judge.output] if judge.output else list(drifts)
        sound = any(drifts[name].finite for name in of_judge if name in drifts) or not drifts
        results = []
        for part in (judge, *judge.parts()):
            figures = part.figures(sound=sound, block=block) | {"still": part.still(spans.get(part.output))}
            if figures["still"] and figures.get("verdict") is DropVerdict.OVER:
                figures |= {"verdict": DropVerdict.CANNOT_TELL, "samples_needed": None}
            allowed = part.sees_scale and figures.get("verdict") is DropVerdict.WITHIN
            own = {key: value for key, value in figures.items() if key != "p_value"} if part.output else {}
            ratio = _value(METRICS[configs.MetricName.SQNR], part.ours) if part.channels else None
            results.append(
                AccuracyResult(
                    model=model,
                    metric=part.metric.name,
                    labelled=part.metric.needs is Needs.LABELS,
                    samples=count,
                    data=data,
                    output=part.output,
                    channels=part.channels,
                    steps=steps,
                    not_finite=not_finite,
                    outputs=tuple(
                        msgspec.structs.replace(
                            measured[name],
                            metric=part.metric.name,
                            channels=part.channels,
                            channels_sqnr_db=ratio,
                            allowed=allowed,
                            **own,
                        )
                        for name in of_judge
                        if name in measured
                    ),
                    **figures,
                )
            )
        candidates.append(max(results, key=_gravity))
        measured |= {drift.output: drift for drift in candidates[-1].outputs}
    return msgspec.structs.replace(
        max(candidates, key=_gravity),
        outputs=tuple(measured.values()),
        findings=(
            *(finding for name, drift in drifts.items() if (finding := drift.finding(name))),
            *(finding for drift in measured.values() if (finding := _hardly_varies(drift))),
        ),
        unjudged=(
            *(name for name, drift in measured.items() if not drift.metric),
            *(text for judge in judges for text in judge.quiet_parts()),
        ),
    )


def _hardly_varies(drift: OutputDrift) -> Finding | None:
    """A warning where an output is refused that shows nothing on these data."""
    if not drift.still or not (drift.over or drift.below_floor):
        return None
    return Finding(
        severity=Severity.WARNING,
        what=f"the output {drift.output!r} hardly varies on these data",
        why=drift.still,
        remedy="give evaluation data with positives, or name its metric or budget in `outputs` of accuracy",
    )


def _gravity(result: AccuracyResult) -> tuple[bool, bool, bool, bool, bool, float]:
    """Orders results, the worst last: over its budget first, then what cannot be told, too far from float, by
    labels, with a budget, and by the share of the budget that the drop takes.
    """
    budget = result.max_drop or 1.0
    worst = -(result.value or 0.0) if result.drop is None else result.drop / budget
    if result.drop is None and result.metric == configs.MetricName.MAX_ERROR:
        worst = result.value or 0.0
    over = result.max_drop is not None and result.verdict is DropVerdict.OVER
    return over, result.over, bool(result.below_floor), result.labelled, result.max_drop is not None, worst


def worse_of(first: AccuracyResult, other: AccuracyResult) -> AccuracyResult:
    """Two results of one model as one: that of the worse output, with the outputs and findings of both."""
    worse = max(first, other, key=_gravity)
    names = {drift.output for drift in (*first.outputs, *other.outputs) if drift.metric}
    return msgspec.structs.replace(
        worse,
        outputs=(*first.outputs, *other.outputs),
        findings=tuple(dict.fromkeys((*first.findings, *other.findings))),
        not_finite=max(first.not_finite, other.not_finite),
        unjudged=tuple(dict.fromkeys(name for name in (*first.unjudged, *other.unjudged) if name not in names)),
    )


def measure_outputs(
    model: str,
    outputs: Iterable[TensorFile],
    originals: Iterable[TensorFile],
    labels: Sequence[int | str] = (),
    accuracy: configs.AccuracyConfig = NO_BUDGET,
) -> AccuracyResult:
    """The same metric on outputs that a device computed; ModelError for tensors that have other samples than these.

    Both are raw tensors of stacked samples, as in pipeline.check.result.LabelledSet; a label for each, or none at all.
    """
    ours = {tensor.name: output_compare.read_tensor(tensor) for tensor in outputs}
    expected = {tensor.name: output_compare.read_tensor(tensor) for tensor in originals}
    counts = {len(array) for array in (*ours.values(), *expected.values())}
    counts |= {len(labels)} if labels else set()
    if set(expected) - set(ours) or len(counts) != 1:
        raise ModelError(
            "the device's outputs are not those of the original",
            where=model,
            why=f"outputs {', '.join(ours)} instead of {', '.join(expected)}, samples and labels {sorted(counts)}",
            remedy="run the labelled samples on the device again",
        )
    answers = (
        (
            datasets.Sample(
                name=f"sample {number}",
                inputs={},
                label=labels[number] if labels else None,
                expected=[(name, array[number]) for name, array in expected.items()],
            ),
            {name: array[number] for name, array in ours.items()},
        )
        for number in range(counts.pop())
    )
    return score(answers, model, accuracy, "")
