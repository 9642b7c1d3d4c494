"""A model with state as a stream: what the original computes step by step, and the same steps of another file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from device_runner.spec import ElementType, Stream, TensorFile
from pipeline.check.compare import Array
from pipeline.check.result import StreamReference
from pipeline.core.errors import ConfigError
from pipeline.core.workers import still_at_work
from pipeline.dataset.files import write_tensor

SEED = 0
SEQUENCES_BYTES = 2 << 30
"""The most that the inputs of all steps have together: they go to the device as files."""


def zero_states(feeds: Mapping[str, Array], states: Mapping[str, str], given: Mapping[str, object]) -> dict[str, Array]:
    """The inputs with states of zeros where no value is given for them; ConfigError for a state that is no input."""
    import numpy as np

    if unknown := [name for name in states.values() if name not in feeds]:
        raise ConfigError("the state goes into no input", where="state", why=f"the model has no input {unknown[0]!r}",
                          remedy=f"its inputs are {', '.join(feeds)}")  # fmt: skip
    zeros = {name: np.zeros_like(feeds[name]) for name in states.values() if name not in given}
    return {**feeds, **zeros}


def make_stream(session: Any, feeds: Mapping[str, Array], stream: Stream, folder: Path) -> StreamReference:
    """What the original computes in the stream, from a session of it and the inputs of the first step.

    Float inputs that are no states are random in each step, of the same numbers each time; others stay as they are.
    Raises ConfigError where the states do not fit, what onnxruntime raises where the model fails.
    """
    import numpy as np

    outputs = [output.name for output in session.get_outputs()]
    if unknown := [name for name in stream.states if name not in outputs]:
        raise ConfigError(
            "the state comes from no output", where="state", why=f"the model has no output {unknown[0]!r}",
            remedy=f"its outputs are {', '.join(outputs)}",
        )  # fmt: skip
    random = np.random.default_rng(SEED)
    moving = {
        name: array
        for name, array in feeds.items()
        if array.dtype.kind == "f" and array.size and name not in stream.states.values()
    }
    if (step_bytes := sum(array.nbytes for array in moving.values())) * stream.steps > SEQUENCES_BYTES:
        raise ConfigError(
            f"{stream.steps} steps are too many for inputs of {step_bytes} bytes a step", where="stream",
            why=f"the inputs of all steps may have {SEQUENCES_BYTES} bytes together",
            remedy=f"ask for at most {SEQUENCES_BYTES // step_bytes} steps, or for smaller inputs",
        )  # fmt: skip
    sequences = []
    for number, (name, array) in enumerate(moving.items()):
        path = folder / f"steps_{number}.bin"
        with path.open("wb") as file:  # step by step: the whole may be larger than memory
            for _ in range(stream.steps):
                file.write(random.uniform(-1, 1, array.shape).astype(array.dtype.newbyteorder("<")).tobytes())
        shape = (stream.steps, *array.shape)
        sequences.append(TensorFile(name=name, dtype=ElementType(array.dtype.name), shape=shape, file=str(path)))
    whole = msgspec.structs.replace(stream, sequences=tuple(sequences))
    last = run_steps(session, feeds, whole)
    files = (write_tensor(folder / f"last_{number}.bin", *row) for number, row in enumerate(last.items()))
    return StreamReference(stream=whole, outputs=tuple(files))


def run_steps(session: Any, feeds: Mapping[str, Array], stream: Stream) -> dict[str, Array]:
    """The outputs after the last step; raises as `make_stream`."""
    import numpy as np

    names = [output.name for output in session.get_outputs()]
    moving = {
        tensor.name: np.memmap(tensor.file, np.dtype(tensor.dtype.value).newbyteorder("<"), "r", shape=tensor.shape)
        for tensor in stream.sequences
    }
    now, outputs = dict(feeds), dict[str, Array]()
    for step in range(stream.steps):
        now |= {name: array[step] for name, array in moving.items()}
        outputs = dict(zip(names, session.run(names, now), strict=True))
        now |= {state: _same_shape(now[state], outputs[name], name) for name, state in stream.states.items()}
        if step % 10 == 0:
            still_at_work()
    return outputs


def _same_shape(before: Array, after: Array, name: str) -> Array:
    if before.shape != after.shape or before.dtype != after.dtype:
        raise ConfigError(
            "the state changes its shape", where="state", why=f"{name!r} goes from {list(before.shape)} to "
            f"{list(after.shape)}", remedy="export the model with a state of one size, as with a cache of fixed length",
        )  # fmt: skip
    return after
