"""What the vectors of a model are given: small samples of its test data, or steps of a stream."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from device_runner import spec as run_spec
from device_runner.spec import TensorFile
from pipeline import dataset as datasets
from pipeline.dataset import files as data_files
from pipeline.job import vectors as job_vectors

MOST_CASES = 8
MOST_STEPS = 64
PICTURE_SHARE = 3
"""So many pictures, and what comes of them, have room in a model's vectors; larger ones are thinned."""
RANDOM_CASES = 3
"""Of a model without test data, with as many seeds."""


class VectorCase(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs as files; with `steps` those that are no states have them as a first axis."""

    inputs: tuple[TensorFile, ...]
    text: str = ""
    steps: int = 0

    @property
    def size_bytes(self) -> int:
        """Of all its files."""
        return sum(Path(tensor.file).stat().st_size for tensor in self.inputs)


def chosen(order: job_vectors.VectorOrder, folder: Path) -> list[VectorCase]:
    """The first samples that have room, as files in a folder; none where already the first one is too large.

    Raises as reading test data does.
    """
    if order.stream:
        return _stream(order, order.stream, folder)
    cases: list[VectorCase] = []
    left = order.most_bytes // 2  # outputs need room, too
    for sample in _samples(order):
        inputs = [(name, _thinned(order, array)) for name, array in sample.inputs.items()]
        case = VectorCase(
            text=sample.text if order.signature.takes_text else "",
            inputs=tuple(
                data_files.write_tensor(folder / f"{len(cases)}_{number}", name, array)
                for number, (name, array) in enumerate(inputs)
            ),
        )
        left -= case.size_bytes
        if left < 0 or len(cases) == MOST_CASES:
            break
        cases.append(case)
    return cases


def _samples(order: job_vectors.VectorOrder) -> Iterator[datasets.Sample]:
    inputs = order.signature.inputs
    names = {info.name for info in inputs}
    data = msgspec.structs.replace(
        order.data,
        inputs={name: value for name, value in order.data.inputs.items() if name in names},
        padding={name: value for name, value in order.data.padding.items() if name in names},
    )
    seeds = range(data.seed, data.seed + (RANDOM_CASES if data.is_random(inputs) else 1))
    for seed in seeds:
        yield from datasets.samples(msgspec.structs.replace(data, seed=seed), inputs)


def _thinned(order: job_vectors.VectorOrder, array: Any) -> Any:
    """Every second, third … pixel of a picture [1, height, width, channels] that would leave no room for others."""
    if not order.signature.takes_image:
        return array
    step = max(1, math.ceil(math.sqrt(array.nbytes / (order.most_bytes // 2 // PICTURE_SHARE))))
    return array[:, ::step, ::step]


def _stream(order: job_vectors.VectorOrder, stream: run_spec.Stream, folder: Path) -> list[VectorCase]:
    """The first steps of the stream that the model was compared in."""
    moving = {tensor.name: tensor for tensor in stream.sequences}
    states = set(stream.states.values())
    fixed = sum(run_spec.tensor_bytes(tensor) for tensor in order.inputs if tensor.name in states)
    step_bytes = {
        tensor.name: run_spec.tensor_bytes(moving[tensor.name]) // stream.steps
        if tensor.name in moving
        else run_spec.tensor_bytes(tensor)
        for tensor in order.inputs
        if tensor.name not in states
    }
    room = (order.most_bytes // 2 - fixed) // max(1, sum(step_bytes.values()))
    steps = min(stream.steps, MOST_STEPS, room)
    if steps < 1:
        return []
    inputs = []
    for number, tensor in enumerate(order.inputs):
        file = folder / f"step_{number}"
        shape: Sequence[int] = tensor.shape
        if tensor.name in states:
            content = Path(tensor.file).read_bytes()
        elif tensor.name in moving:
            with Path(moving[tensor.name].file).open("rb") as sequence:
                content = sequence.read(steps * step_bytes[tensor.name])
            shape = (steps, *shape)
        else:
            content, shape = steps * Path(tensor.file).read_bytes(), (steps, *shape)
        file.write_bytes(content)
        inputs.append(TensorFile(name=tensor.name, dtype=tensor.dtype, shape=tuple(shape), file=str(file)))
    return [VectorCase(inputs=tuple(inputs), steps=steps)]
