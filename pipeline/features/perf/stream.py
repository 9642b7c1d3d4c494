"""A model with state as a stream: measured step by step, and its outputs compared with the original's stream."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from device_runner.result import Failure, RunResult, Struct
from device_runner.spec import Stream, TensorFile
from pipeline.campaign.measure import CampaignPlan
from pipeline.campaign.plan import Inputs, PlannedRun, options_name
from pipeline.check.compare import (
    OutputCheck,
    OutputPrecision,
    compare_outputs,
    read_tensor,
    usual_tolerance,
    with_first_step,
)
from pipeline.check.reference import make_stream, zero_states
from pipeline.check.result import StreamReference
from pipeline.core.errors import ConfigError, ModelError
from pipeline.core.files import scratch
from pipeline.core.ort_session import HostSession, first_line, make_session, ort_errors
from pipeline.core.workers import Task, run_tasks
from pipeline.dataset import Dataset
from pipeline.dataset.files import write_tensor
from pipeline.dataset.guess import make_feeds, ort_inputs
from pipeline.job.bench import Bench, PerfOrder
from pipeline.model.onnx_model import load_model
from pipeline.model.ort_format import read_ort
from pipeline.model.signature import check_states, own_inputs
from pipeline.model.sources import SourceModel

if TYPE_CHECKING:
    from pipeline.report.wording import Part


class StreamRow(Struct, frozen=True, kw_only=True):
    """A file's stream: times of a step, and how its outputs compare with the original's.

    Of those in `tracked` each step was compared, of others the last one.
    """

    file: str
    run: str
    steps: int
    median_ns: int = 0
    high_ns: int = 0
    tracked: tuple[str, ...] = ()
    checks: tuple[OutputCheck, ...] = ()
    failure: str = ""
    remedy: str = ""


def why_failed(failure: Failure | None, nothing: str) -> dict[str, str]:
    """The fields of a row that has no numbers: what the run says of it, or that it says `nothing`."""
    if not failure:
        return {"failure": nothing}
    cause = "" if failure.cause in failure.message else f"; {failure.cause}"
    return {"failure": failure.message + cause, "remedy": failure.remedy}


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


Original = tuple[tuple[TensorFile, ...], StreamReference]
"""The inputs of the first step, and what the original computes."""


@contextmanager
def original_stream(order: PerfOrder) -> Iterator[Original | None]:
    """The original's stream, before anything else is started, while its files are there; None where none is asked for.

    ConfigError for a state that one of the files does not have.
    """
    if order.stream is None:
        yield None
        return
    with scratch() as folder:
        original = order.original or order.files[0]
        call = partial(
            _original, str(original), tuple(map(str, order.files)), order.stream, order.dimensions, order.data,
            str(folder),
        )  # fmt: skip
        (outcome,) = run_tasks([Task(label=str(original), call=call)])
        if outcome.value is None:
            raise outcome.error or ModelError("no answer", where=str(original))
        yield outcome.value


def _original(
    model: str, files: Sequence[str], stream: Stream, dimensions: dict[str, int], data: Dataset, folder: str
) -> Original:
    for file in dict.fromkeys((model, *files)):
        with suppress(ModelError):  # its own run says what is wrong with a file
            check_states(stream.states, *_names(Path(file), Path(folder)), file)
    tensors = make_feeds(SourceModel(path=model), dimensions, data, folder)
    feeds = zero_states({tensor.name: read_tensor(tensor).copy() for tensor in tensors}, stream.states, data.inputs)
    try:
        reference = make_stream(make_session(Path(model), HostSession()), feeds, stream, Path(folder))
    except ort_errors() as error:
        raise ModelError("the original's stream does not run", where=model, why=first_line(error),
                         remedy="check --state, and give sizes with --dimension") from error  # fmt: skip
    first = (write_tensor(Path(folder) / f"first_{number}.bin", *row) for number, row in enumerate(feeds.items()))
    return tuple(first), reference


def _names(path: Path, folder: Path) -> tuple[Sequence[str], Sequence[str]]:
    """The inputs and outputs of a file."""
    if path.suffix.lower() == ".ort":
        return [each.name for each in ort_inputs(path)], read_ort(path).graph.outputs
    model = load_model(SourceModel(path=str(path)), folder).proto
    return [each.name for each in own_inputs(model)], [each.name for each in model.graph.output]


def measure_streams(
    original: Original, runs: Sequence[PlannedRun], plan: CampaignPlan, bench: Bench
) -> list[StreamRow]:
    """The stream of each file, on the inputs of the original's; a row for each."""
    first, reference = original
    inputs = Inputs(tensors=first, stream=reference.stream)
    rows = []
    for number, run in enumerate(runs):
        spec = plan.spec(replace(run, inputs=inputs), 0)
        spec = msgspec.structs.replace(spec, outputs_folder=str(bench.work / f"stream-{number}"))
        rows.append(_row(run, bench.devices[run.device].run(spec), reference))
    return rows


def _row(run: PlannedRun, result: RunResult, reference: StreamReference) -> StreamRow:
    tracked = reference.stream.tracked
    row = StreamRow(file=run.variant, run=options_name(run.options), steps=reference.stream.steps, tracked=tracked)
    if result.failure or not result.outputs:
        return msgspec.structs.replace(row, **why_failed(result.failure, "it gave no outputs"))
    expected = {tensor.name: read_tensor(tensor) for tensor in reference.outputs}
    outputs = {tensor.name: read_tensor(tensor) for tensor in result.outputs}
    checks = compare_outputs(expected, outputs, usual_tolerance(OutputPrecision.FLOAT32))
    times = sorted(result.latencies_ns)  # () in an emulator
    return msgspec.structs.replace(
        row, checks=tuple(with_first_step(checks, expected, outputs, tracked)), median_ns=result.median_ns or 0,
        high_ns=times[len(times) * 95 // 100] if times else 0,
    )  # fmt: skip


def _when(row: StreamRow) -> str:
    if any(check.failed for check in row.checks):
        return ""  # the line below the table says it
    last = [check.output for check in row.checks if check.output not in row.tracked]
    return f"in each step, {', '.join(last)} in the last" if last else "in each step"


def stream_parts(rows: Sequence[StreamRow]) -> "Iterator[Part]":
    """A table of the rows."""
    from pipeline.report import wording

    table = tuple(
        (row.file, row.run, str(row.steps), wording.duration(row.median_ns or None),
         wording.duration(row.high_ns or None),
         "failed" if row.failure else f"{wording.outputs(row.checks)} {_when(row)}".rstrip())
        for row in rows
    )  # fmt: skip
    if table:
        head = ("file", "run", "steps", "median step", "19 of 20 under", "outputs")
        yield wording.Listing(title="", head=head, rows=table, right=("steps", "median step", "19 of 20 under"))
    for row in rows:
        for check in (check for check in row.checks if check.failed):
            yield wording.Line(f"{row.file} {row.run}: {check.output}: {check.reason}")
