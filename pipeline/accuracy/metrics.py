"""Metrics by name in one table: what each needs, and how the contributions of samples become its value.

A metric is computed in two steps, so that a bootstrap can draw samples again without running a model again:
`measure` makes a contribution of each sample, `value` one number of contributions and of how often each counts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from device_runner import untrusted_files
from pipeline import config as configs
from pipeline.accuracy import boxes, classes, distances, intervals, regions
from pipeline.accuracy import texts as accuracy_texts
from pipeline.accuracy.outputs import Counts, Outputs, mean
from pipeline.config import tables as config_tables
from pipeline.core.errors import ConfigError
from pipeline.dataset import functions as data_functions


class Needs(StrEnum):
    """What a metric compares outputs with."""

    LABELS = "labels"
    REFERENCE = "reference"
    """The outputs of the original model on the same sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One row of the table.

    `measure` takes outputs by name and a label, or the original's outputs; ConfigError where these do not fit. `pack`
    makes what `value` takes of all contributions; weights are how often each sample counts. `perfect` is the original
    model's own value where outputs are compared with its own, None where no drop can be stated. `paired`: each
    contribution is 0 or 1 and the value their mean, so that exact statistics of pairs apply.
    """

    name: str
    needs: Needs
    measure: Callable[[Outputs, Any], Any]
    value: Callable[[Any, Counts], float]
    pack: Callable[[Sequence[Any]], Any] = np.asarray
    perfect: float | None = None
    higher_is_better: bool = True
    paired: bool = False
    share: bool = True
    """Whether the value is a share of 1, shown in percent; drops have a budget only then."""
    every_output: bool = False
    """Whether `measure` gets all outputs instead of one."""
    resamples: int = intervals.RESAMPLES


def _labelled(
    name: configs.MetricName, measure: Callable[[Outputs, Any], Any], value: Callable[[Any, Counts], float], **rest: Any
) -> Metric:
    return Metric(name=name.value, needs=Needs.LABELS, measure=measure, value=value, **rest)


def _compared(name: configs.MetricName, value: Callable[[Any, Counts], float], **rest: Any) -> Metric:
    return Metric(
        name=name.value, needs=Needs.REFERENCE, measure=rest.pop("measure", distances.powers), value=value, **rest
    )


METRICS: dict[configs.MetricName, Metric] = {
    configs.MetricName(metric.name): metric
    for metric in (
        _labelled(configs.MetricName.TOP_1, partial(classes.top, 1), mean, paired=True),
        _labelled(configs.MetricName.TOP_5, partial(classes.top, 5), mean, paired=True),
        _labelled(configs.MetricName.F1, classes.answer_and_label, classes.macro_f1),
        _labelled(
            configs.MetricName.MAP,
            boxes.match_boxes,
            boxes.average_precision,
            pack=boxes.packed_matches,
            every_output=True,
            resamples=500,
        ),
        _labelled(configs.MetricName.MIOU, regions.regions, regions.mean_iou),
        _labelled(
            configs.MetricName.WER,
            partial(accuracy_texts.text_errors, True, ()),
            accuracy_texts.error_rate,
            higher_is_better=False,
        ),
        _labelled(
            configs.MetricName.CER,
            partial(accuracy_texts.text_errors, False, ()),
            accuracy_texts.error_rate,
            higher_is_better=False,
        ),
        _compared(configs.MetricName.AGREEMENT, mean, measure=classes.same_answer, paired=True, perfect=1.0),
        _compared(configs.MetricName.R2, distances.r2, perfect=1.0),
        _compared(configs.MetricName.EQUAL, mean, measure=distances.equal_share, perfect=1.0),
        _compared(configs.MetricName.COSINE, distances.cosine, perfect=1.0),
        _compared(configs.MetricName.PSNR, distances.psnr, share=False),
        _compared(configs.MetricName.SQNR, distances.sqnr, share=False),
        _compared(
            configs.MetricName.MAX_ERROR,
            lambda powers, weights: float(powers[weights > 0, distances.Powers.LARGEST_ERROR].max()),
            share=False,
            higher_is_better=False,
        ),
    )
}
"""Every metric that has a name."""

LEVELS_FROM = 65
"""Elements of 8 bits with so many different values are levels, as of an image, not numbers of classes."""


def usual_metric(name: str, array: npt.NDArray[Any]) -> Metric:
    """What compares an output with the original's by default: none that a wrong scale would pass, but for classes,
    whose scale the floor of the signal to noise sees.
    """
    if array.dtype.kind not in "fiub":
        return METRICS[configs.MetricName.EQUAL]
    if array.dtype.kind != "f":
        levels = array.dtype.itemsize == 1 and array.dtype.kind in "iu" and len(np.unique(array)) >= LEVELS_FROM
        # Of a single number the share is 0 or 1, so that exact statistics of pairs apply
        return (
            METRICS[configs.MetricName.R2]
            if levels
            else replace(METRICS[configs.MetricName.EQUAL], paired=array.size == 1)
        )
    return METRICS[configs.MetricName.AGREEMENT if classes.looks_like_classes(name, array) else configs.MetricName.R2]


def find_metric(config: configs.AccuracyConfig, *, labelled: bool) -> Metric | None:
    """The metric that a config asks for, or top-1 where there are labels; None for the usual one of each output.

    ConfigError for a name that is none, for labels that are not there, and for a budget without a drop.
    """
    if config.metric is None and not labelled:
        return None
    name = config.metric or configs.MetricName.TOP_1
    if config_tables.is_function(name):
        metric = _of_function(name)
    elif name in list(configs.MetricName):
        metric = METRICS[configs.MetricName(name)]
    else:
        names = ", ".join(configs.MetricName)
        raise ConfigError(
            f"there is no metric {name!r}",
            where="accuracy.metric",
            why=f"metrics: {names}",
            remedy="take one of them, or a function as module:function",
        )
    if metric.needs is Needs.LABELS and not labelled:
        raise ConfigError(
            f"{metric.name} needs labels",
            where="accuracy.metric",
            why="the evaluation data have none",
            remedy="give `labels` (--labels), or a metric that compares with the original model: agreement, r2",
        )
    if config.max_drop is not None and not metric.share:
        raise ConfigError(
            f"{metric.name} has no drop",
            where="accuracy.max_drop",
            why="the original model's own is not a number",
            remedy="leave max_drop out, or take another metric: agreement and r2 need no labels",
        )
    if metric.name in (configs.MetricName.WER, configs.MetricName.CER):
        symbols: tuple[str, ...] = ()
        if config.vocabulary:
            try:
                text = untrusted_files.read_regular(Path(config.vocabulary)).decode("utf-8-sig")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(
                    "the vocabulary cannot be read",
                    where=str(Path(config.vocabulary)),
                    why=str(error)[:300],
                    remedy="give a text file in UTF-8 with the symbol of a class in each line",
                ) from error
            symbols = tuple(text.removesuffix("\n").split("\n"))
        return replace(
            metric, measure=partial(accuracy_texts.text_errors, metric.name == configs.MetricName.WER, symbols)
        )
    return metric


def _of_function(path: str) -> Metric:
    """A user's function of outputs by name and a label, which gives a number for each sample: its mean, higher is
    better.
    """
    function = data_functions.load_function(path, "the metric")

    def measure(outputs: Outputs, label: Any) -> float:
        try:
            return float(function(dict(outputs), label))
        except Exception as error:
            raise ConfigError(
                "the function for the metric failed",
                where=path,
                why=f"{type(error).__name__}: {error}"[:500],
                remedy="it gets outputs by name and the label of one sample, and gives a number",
            ) from error

    return Metric(name=Path(path).name, needs=Needs.LABELS, measure=measure, value=mean, every_output=True)
