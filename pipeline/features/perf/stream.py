"""A model with state as a stream: measured step by step, and its last outputs compared with the original's stream."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from device_runner.result import Struct
from device_runner.spec import RunSpec, Stream, TensorFile
from pipeline.campaign.measure import CampaignPlan
from pipeline.campaign.options import options_name
from pipeline.campaign.plan import PlannedRun
from pipeline.check.compare import OutputCheck, OutputPrecision, compare_outputs, read_tensor, usual_tolerance
from pipeline.core.errors import ConfigError, ModelError
from pipeline.core.ort_session import HostSession, first_line, make_session, ort_errors
from pipeline.core.workers import Task, run_tasks, still_at_work
from pipeline.dataset import Dataset
from pipeline.dataset.files import write_tensor
from pipeline.dataset.guess import make_feeds
from pipeline.job.bench import Bench
from pipeline.model.sources import SourceModel

if TYPE_CHECKING:
    from pipeline.report.wording import Part

SEED = 0


class StreamRow(Struct, frozen=True, kw_only=True):
    """A file's stream: times of a step, and how its outputs after the last step compare with the original's."""

    file: str
    run: str
    steps: int
    median_ns: int = 0
    high_ns: int = 0
    checks: tuple[OutputCheck, ...] = ()
    failure: str = ""


class StreamRequest(Struct, frozen=True, kw_only=True):
    """The original model, and what its stream is fed, for a process of its own."""

    model: str
    stream: Stream
    dimensions: dict[str, int] = {}
    data: Dataset = Dataset()
    folder: str


class StreamReference(Struct, frozen=True, kw_only=True):
    """Inputs of the first step, what changes from step to step, and the outputs after the last one."""

    inputs: tuple[TensorFile, ...]
    sequences: tuple[TensorFile, ...]
    outputs: tuple[TensorFile, ...]


def parse_states(texts: Sequence[str]) -> dict[str, str]:
    """`OUTPUT=INPUT`, each once; ConfigError for another form."""
    states: dict[str, str] = {}
    for text in texts:
        output, _, input_name = text.rpartition("=")
        if not output or not input_name or input_name in states.values() or output in states:
            raise ConfigError("not a state", where="--state", why=f"{text!r} was given",
                              remedy="give OUTPUT=INPUT, each output and input once")  # fmt: skip
        states[output] = input_name
    return states


def make_stream(request: StreamRequest) -> StreamReference:
    """What the original computes, step by step without optimizations; states begin with zeros unless they are given.

    Float inputs that are no states are random in each step, of the same numbers in each run; others stay as they are.
    """
    import numpy as np

    folder = Path(request.folder)
    tensors = make_feeds(SourceModel(path=request.model), request.dimensions, request.data, request.folder)
    feeds = {tensor.name: read_tensor(tensor).copy() for tensor in tensors}
    states = request.stream.states
    if unknown := [name for name in states.values() if name not in feeds]:
        raise ConfigError("the state goes into no input", where="--state", why=f"the model has no input {unknown[0]!r}",
                          remedy=f"its inputs are {', '.join(feeds)}")  # fmt: skip
    for name in states.values():
        if name not in request.data.inputs:
            feeds[name] = np.zeros_like(feeds[name])
    random = np.random.default_rng(SEED)
    moving: dict[str, Any] = {
        name: random.uniform(-1, 1, (request.stream.steps, *array.shape)).astype(array.dtype)
        for name, array in feeds.items()
        if array.dtype.kind == "f" and name not in states.values()
    }
    first = tuple(write_tensor(folder / f"first_{n}.bin", name, a) for n, (name, a) in enumerate(feeds.items()))
    try:
        session = make_session(Path(request.model), HostSession())
        outputs = [output.name for output in session.get_outputs()]
        if unknown := [name for name in states if name not in outputs]:
            raise ConfigError(
                "the state comes from no output", where="--state", why=f"the model has no output {unknown[0]!r}",
                remedy=f"its outputs are {', '.join(outputs)}",
            )  # fmt: skip
        computed: dict[str, Any] = {}
        for step in range(request.stream.steps):
            feeds |= {name: array[step] for name, array in moving.items()}
            computed = dict(zip(outputs, session.run(outputs, feeds), strict=True))
            feeds |= {state: _same_shape(feeds[state], computed[name], name) for name, state in states.items()}
            if step % 100 == 0:
                still_at_work()
    except ort_errors() as error:
        raise ModelError("the original's stream does not run", where=request.model, why=first_line(error),
                         remedy="check --state, and give sizes with --dimension") from error  # fmt: skip
    return StreamReference(
        inputs=first,
        sequences=tuple(write_tensor(folder / f"all_{n}.bin", name, a) for n, (name, a) in enumerate(moving.items())),
        outputs=tuple(write_tensor(folder / f"last_{n}.bin", name, a) for n, (name, a) in enumerate(computed.items())),
    )


def _same_shape(before: Any, after: Any, name: str) -> Any:
    if before.shape != after.shape or before.dtype != after.dtype:
        raise ConfigError(
            "the state changes its shape", where="--state", why=f"{name!r} goes from {list(before.shape)} to "
            f"{list(after.shape)}", remedy="export the model with a state of one size, as with a cache of fixed length",
        )  # fmt: skip
    return after


def measure_streams(
    stream: Stream, original: Path, runs: Sequence[PlannedRun], plan: CampaignPlan, bench: Bench,
    sizes: Mapping[str, int], data: Dataset,
) -> list[StreamRow]:  # fmt: skip
    """The stream of each file, on the inputs of the original's; a row for each."""
    folder = bench.work / "stream"
    folder.mkdir()
    request = StreamRequest(
        model=str(original), stream=stream, dimensions=dict(sizes), data=data, folder=str(folder)
    )  # fmt: skip
    (outcome,) = run_tasks([Task(label=str(original), call=partial(make_stream, request))])
    if outcome.value is None:
        raise outcome.error or ModelError("no answer", where=str(original))
    rows = []
    for number, run in enumerate(runs):
        spec = _spec(plan.spec(run, 0), stream, outcome.value, folder / f"outputs-{number}")
        rows.append(_row(run, spec, bench, outcome.value))
    return rows


def _spec(spec: RunSpec, stream: Stream, reference: StreamReference, outputs: Path) -> RunSpec:
    return msgspec.structs.replace(
        spec, stream=msgspec.structs.replace(stream, sequences=reference.sequences), inputs=reference.inputs,
        dimensions={}, outputs_folder=str(outputs), warmup=0, min_runs=0, min_seconds=0.0,
    )  # fmt: skip


def _row(run: PlannedRun, spec: RunSpec, bench: Bench, reference: StreamReference) -> StreamRow:
    result = bench.devices[run.device].run(spec)
    steps = spec.stream.steps if spec.stream else 0
    row = StreamRow(file=run.variant, run=options_name(run.options), steps=steps)
    if result.failure or not result.latencies_ns:
        return msgspec.structs.replace(
            row, failure=result.failure.message if result.failure else "nothing was measured"
        )
    expected = {tensor.name: read_tensor(tensor) for tensor in reference.outputs}
    outputs = {tensor.name: read_tensor(tensor) for tensor in result.outputs}
    checks = compare_outputs(expected, outputs, usual_tolerance(OutputPrecision.FLOAT32))
    return msgspec.structs.replace(
        row, checks=tuple(checks), median_ns=result.median_ns or 0,
        high_ns=sorted(result.latencies_ns)[len(result.latencies_ns) * 95 // 100],
    )  # fmt: skip


def stream_parts(rows: Sequence[StreamRow]) -> "Iterator[Part]":
    """A table of the rows."""
    from pipeline.report import wording

    table = tuple(
        (row.file, row.run, str(row.steps), wording.duration(row.median_ns or None),
         wording.duration(row.high_ns or None),
         row.failure or f"{wording.outputs(row.checks)} after the last step")
        for row in rows
    )  # fmt: skip
    if table:
        head = ("file", "run", "steps", "median step", "19 of 20 under", "outputs")
        yield wording.Listing(title="", head=head, rows=table, right=("steps", "median step", "19 of 20 under"))
