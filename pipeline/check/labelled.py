"""The labelled samples that devices answer: stacked in one raw file, with the original's answers and the labels."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from device_runner.spec import ElementType, TensorFile
from pipeline.check.result import LabelledSet
from pipeline.dataset import Array, Dataset, TensorInfo, samples
from pipeline.dataset.candidates import run_session
from pipeline.dataset.files import write_tensor

MAX_LABELLED = 10_000
LABELLED_BYTES = 128 << 20
"""Up to so many samples, and bytes of them, are copied to a phone and run there in the first round."""


@dataclass(slots=True, kw_only=True)
class _Stack:
    """Samples while they are written; `why` says what ended it before the last."""

    shape: tuple[int, ...] = ()
    count: int = 0
    labels: list[int | str] = field(default_factory=list)
    answers: list[Array] = field(default_factory=list)
    why: str = ""


def labelled_set(
    session: Any, takes: Sequence[TensorInfo], data: Dataset, folder: Path, where: str
) -> tuple[LabelledSet | None, tuple[str, ...]]:
    """Run the original over labelled samples, one in memory at a time; or none, with notes on what devices do not run.

    The model's first output gives the answers. ConfigError for the first wrong sample, ModelError where the model
    fails.
    """
    if len(takes) != 1:
        return None, ("labelled samples are not run on devices: that needs a model of one input",)
    (info,) = takes
    file = folder / "labelled_inputs.bin"
    with file.open("wb") as raw:
        stack = _stacked(session, info, data, raw, where)
    if not stack.count:
        return None, (f"labelled samples are not run on devices: {stack.why}",) if stack.why else ()
    import numpy as np

    outputs = np.stack(stack.answers)
    kind = info.dtype or ElementType.FLOAT32  # samples of an input that is no tensor are refused before
    found = LabelledSet(
        samples=stack.count,
        inputs=TensorFile(name=info.name, dtype=kind, shape=(stack.count, *stack.shape), file=str(file)),
        outputs=write_tensor(folder / "labelled_outputs.bin", session.get_outputs()[0].name, outputs),
        accuracy=_share_right(outputs, stack.labels),
        labels=tuple(stack.labels),
    )
    more = (f"devices run the first {stack.count} labelled samples: {stack.why}",) if stack.why else ()
    return found, more


def _stacked(session: Any, info: TensorInfo, data: Dataset, raw: IO[bytes], where: str) -> _Stack:
    """Write samples until one cannot be stacked or they are enough."""
    stack, size = _Stack(), 0
    first = session.get_outputs()[0].name
    for sample in samples(data, [info]):
        if sample.label is None and not stack.count:  # data without labels
            break
        array, label = sample.inputs[info.name], _plain(sample.label)
        size += array.nbytes
        stack.shape = stack.shape or array.shape
        answer = run_session(session, sample.inputs, where)[first] if label is not None else None
        if answer is None:
            stack.why = f"{sample.name} has no label that is a number or a text"
        elif array.shape != stack.shape or (stack.answers and answer.shape != stack.answers[0].shape):
            stack.why = f"{sample.name} has another size than those before it"
        elif stack.count == MAX_LABELLED or (size > LABELLED_BYTES and stack.count):
            stack.why = f"these are {MAX_LABELLED} samples or {LABELLED_BYTES >> 20} MiB"
        if stack.why or label is None or answer is None:
            break
        raw.write(array.astype(array.dtype.newbyteorder("<")).tobytes())
        stack.labels.append(label)
        stack.answers.append(answer)
        stack.count += 1
    return stack


def _plain(label: Any) -> int | str | None:
    """A label as JSON has it: a number or text; None for none and for arrays."""
    import numpy as np

    array = np.asarray(label)
    if label is None or array.size != 1 or array.dtype.kind not in "iuU":
        return None
    value = array.reshape(-1)[0]
    text = str(value)
    return int(text) if re.fullmatch(r"0|-?[1-9][0-9]{0,17}", text) else text


def _share_right(outputs: Array, labels: Sequence[int | str]) -> float | None:
    answers = outputs.reshape(len(outputs), -1).argmax(axis=1).tolist()
    if any(isinstance(label, str) for label in labels):
        return None
    return [answer == label for answer, label in zip(answers, labels, strict=True)].count(True) / len(labels)
