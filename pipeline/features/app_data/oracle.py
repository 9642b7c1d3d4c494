"""Whether a graph from an app's data to an answer gives what a Python function of the same data does."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pipeline import config as configs
from pipeline import dataset as datasets
from pipeline.core import workers
from pipeline.core.errors import ConfigError, ModelError, PipelineError
from pipeline.core.progress import Progress
from pipeline.dataset import functions as data_functions
from pipeline.dataset import guess as data_guess
from pipeline.job import attachment as job_attachment
from pipeline.model import onnx_model, signature
from pipeline.model import session as model_session
from pipeline.model import sources as model_sources

MOST_SAMPLES = 200
"""Of more, these are compared: the first, so that the same ones are every time."""

PURPOSE = "the oracle"


def confirmed(
    asked: Mapping[str, job_attachment.ModelWithEnds], work: Path, progress: Progress
) -> dict[str, job_attachment.Confirmation | PipelineError]:
    """By model that has an oracle, how far the graph gives what it does; the error of one that does not."""
    tasks = {}
    for name, attached in asked.items():
        if attached.table.oracle:
            folder = work / "oracle" / name
            folder.mkdir(parents=True)
            call = partial(compared, attached.model.source, attached.model.dimensions, attached.table, str(folder))
            tasks[workers.Task(label=name, call=call, memory_bytes=workers.needed_bytes(attached.model.size_bytes))] = (
                name
            )
    results: dict[str, job_attachment.Confirmation | PipelineError] = {}
    if not tasks:
        return results
    limit = workers.time_limit(attached.model.size_bytes for attached in asked.values()) + ORACLE_SECONDS
    with progress.stage(PURPOSE, len(tasks)) as stage:
        for outcome in workers.run_tasks(tasks, memory_bytes=workers.memory_budget(), timeout_seconds=limit):
            name = tasks[outcome.task]
            nothing = ModelError("the oracle gave no answer", where=asked[name].table.oracle or "")
            results[name] = outcome.value or outcome.error or nothing
            stage.done()
    return results


ORACLE_SECONDS = 600.0
"""For what the makers of models import, and compute of each sample, beside what ONNX Runtime needs."""


def compared(
    source: model_sources.SourceModel, sizes: dict[str, int], table: configs.ModelConfig, folder: str
) -> job_attachment.Confirmation:
    """What came of all samples; ConfigError where any is not what the oracle gives."""
    oracle = table.oracle or ""
    function = data_functions.load_function(oracle, PURPOSE)
    loaded = onnx_model.load_model(source, Path(folder))
    model = onnx_model.prepare_model(loaded, sizes)
    session = model_session.open_session(model)
    data = data_guess.complete_data(loaded, sizes, datasets.dataset_of(table), session)
    takes = signature.own_inputs(model.proto)
    largest, count, wrong = 0.0, 0, list[str]()
    for sample in datasets.samples(data, takes):
        if count == MOST_SAMPLES:
            break
        count += 1
        outputs = model_session.run_session(session, sample.inputs, source.name)
        wanted = _wanted(function, oracle, sample, outputs)
        for name, values in wanted.items():
            difference = apart(outputs[name], values, oracle, f"the output {name!r} of {sample.name}")
            largest = max(largest, difference.share)
            if difference.share > table.oracle_tolerance:
                wrong.append(f"{name} of {sample.name}: {difference.text}")
                break
    if wrong:
        raise ConfigError(
            f"the graph gives something else than the oracle for {len(wrong)} of {count} samples",
            where=oracle,
            why=f"{wrong[0]}; up to {table.oracle_tolerance:g} is allowed",
            remedy="correct `takes` and `gives` (filter, channels, divide, mean, scale, softmax), or the oracle; "
            "`oracle_tolerance` says what may differ",
        )
    return job_attachment.Confirmation(oracle=Path(oracle).name, samples=count, largest=largest)


def _wanted(
    function: Callable[..., Any], oracle: str, sample: datasets.Sample, outputs: Mapping[str, Any]
) -> dict[str, Any]:
    """What the oracle gives of a sample, by output: it gets the text, or inputs without their batch."""
    arrays = [array[0] if array.ndim and array.shape[0] == 1 else array for array in sample.inputs.values()]
    try:
        if sample.text:
            given = function(sample.text)
        else:
            given = (
                function(arrays[0]) if len(arrays) == 1 else function(**dict(zip(sample.inputs, arrays, strict=True)))
            )
    except Exception as error:
        raise ConfigError(
            "the oracle failed",
            where=oracle,
            why=f"{sample.name}: {type(error).__name__}: {error}"[:500],
            remedy="run it alone in Python; it is given a text, the only input without its batch, or inputs by name",
        ) from error
    wanted = dict(given) if isinstance(given, Mapping) else dict.fromkeys(list(outputs)[:1], given)
    strange = [name for name in wanted if name not in outputs]
    if strange or not wanted or (not isinstance(given, Mapping) and len(outputs) > 1):
        raise ConfigError(
            "the oracle names no outputs of the model" if not strange else f"there is no output {strange[0]!r}",
            where=oracle,
            why=f"outputs: {', '.join(outputs)}",
            remedy="give a dict from names of outputs to their values; those that it leaves out are not compared",
        )
    return wanted


class Apart:
    """How far values are from those that are wanted: of the largest wanted one, and in words."""

    def __init__(self, share: float, text: str) -> None:
        self.share, self.text = share, text


def apart(made: Any, wanted: Any, oracle: str, where: str) -> Apart:
    """Numbers by the largest of them, or by 1 where all are smaller; texts and whole numbers must be equal."""
    import numpy as np

    try:
        values = np.squeeze(np.asarray(wanted))
    except Exception as error:
        raise ConfigError(
            "the oracle gives no values",
            where=oracle,
            why=f"{where}: {type(error).__name__}: {error}"[:300],
            remedy="give numbers, texts, lists or arrays of them",
        ) from error
    made = np.squeeze(made)
    if made.shape != values.shape:
        return Apart(math.inf, f"{list(made.shape)} values, by the oracle {list(values.shape)}")
    if not made.size:
        return Apart(0.0, "")
    if made.dtype.kind not in "fiub" or values.dtype.kind not in "fiub":
        different = np.ravel(made.astype(str) != values.astype(str))
        place = int(different.argmax())
        text = f"{str(np.ravel(made)[place])!r}, by the oracle {str(np.ravel(values)[place])!r}"
        return Apart(math.inf if different.any() else 0.0, text)
    first, second = (np.ravel(numbers).astype(np.float64) for numbers in (made, values))
    same = (first == second) | (np.isnan(first) & np.isnan(second))
    both = np.isfinite(first) & np.isfinite(second)
    differences = np.where(same, 0.0, math.inf)
    differences[both] = np.abs(first[both] - second[both])
    scale = max(1.0, float(np.abs(second[np.isfinite(second)]).max(initial=0.0)))
    place = int(differences.argmax())
    whole = made.dtype.kind in "iub"  # numbers of classes: the next is no nearer than another
    share = (math.inf if differences.any() else 0.0) if whole else float(differences[place] / scale)
    return Apart(share, f"{first[place]:.6g}, by the oracle {second[place]:.6g}")
