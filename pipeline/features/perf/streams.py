"""Streams: a model with state run for many steps, and how its outputs compare with the original's."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from device_runner import spec as run_spec
from device_runner.spec import TensorFile
from pipeline.accuracy import result as accuracy_result
from pipeline.campaign import measure as campaign_measure
from pipeline.campaign import planned as campaign_planned
from pipeline.campaign import run_options
from pipeline.check import compare as output_compare
from pipeline.check import reference as check_reference
from pipeline.check import result as check_result
from pipeline.check.compare import OutputCheck
from pipeline.core import files as storage
from pipeline.core import ort_session, workers
from pipeline.core.errors import ConfigError, ModelError
from pipeline.dataset import Dataset
from pipeline.dataset import files as data_files
from pipeline.dataset import guess as data_guess
from pipeline.features.perf.failed import why_failed
from pipeline.job import file_runs
from pipeline.model import ort_format, signature
from pipeline.model import session as model_session
from pipeline.model.sources import SourceModel

if TYPE_CHECKING:
    from pipeline.report import wording


class StreamRow(msgspec.Struct, frozen=True, kw_only=True):
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


def parse_states(texts: Sequence[str]) -> dict[str, str]:
    """`OUTPUT=INPUT`, each once; ConfigError for another form."""
    states: dict[str, str] = {}
    for text in texts:
        output, _, input_name = text.rpartition("=")
        if not output or not input_name or input_name in states.values() or output in states:
            raise ConfigError(
                "not a state",
                where="--state",
                why=f"{text!r} was given",
                remedy="give OUTPUT=INPUT, each output and input once",
            )
        states[output] = input_name
    return states


class OriginalStream(msgspec.Struct, frozen=True, kw_only=True):
    """What files of a stream are compared with: the inputs of the first step, what the original computes, its precision
    and whether its inputs are random.
    """

    first: tuple[TensorFile, ...]
    reference: check_result.StreamReference
    precision: output_compare.OutputPrecision
    random_inputs: bool

    def tolerance(self, precision: output_compare.OutputPrecision) -> output_compare.Tolerance:
        """What passes of a file in a precision."""
        return msgspec.structs.replace(output_compare.usual_tolerance(precision), random_inputs=self.random_inputs)


def by_noise(check: OutputCheck) -> OutputCheck:
    """The check of an output in another precision: it passes from the floor of the signal to noise on."""
    ratio = check.sqnr_db
    if ratio is msgspec.UNSET or (check.failed and check.limit is None):  # no number, or dead
        return check
    if ratio is None or ratio >= accuracy_result.FLOOR_DB:
        return msgspec.structs.replace(check, passed=True, unknown=False, reason="")
    reason = f"it is {ratio:.1f} dB from the original's, and at least {accuracy_result.FLOOR_DB:g} dB are wanted"
    return msgspec.structs.replace(check, passed=False, unknown=False, reason=reason)


@contextmanager
def original_stream(order: file_runs.PerfOrder) -> Iterator[OriginalStream | None]:
    """The original's stream, before anything else is started, while its files are there; None where none is asked for.

    ConfigError for a state that one of the files does not have.
    """
    if order.stream is None:
        yield None
        return
    with storage.scratch() as folder:
        original = order.original or order.files[0]
        call = partial(
            _original,
            str(original),
            tuple(map(str, order.files)),
            order.stream,
            order.dimensions,
            order.data,
            str(folder),
        )
        (outcome,) = workers.run_tasks([workers.Task(label=str(original), call=call)])
        if outcome.value is None:
            raise outcome.error or ModelError("no answer", where=str(original))
        yield outcome.value


def _original(
    model: str, files: Sequence[str], stream: run_spec.Stream, dimensions: dict[str, int], data: Dataset, folder: str
) -> OriginalStream:
    for file in dict.fromkeys((model, *files)):
        with suppress(ModelError):  # its own run says what is wrong with a file
            graph = ort_format.read_artifact(Path(file)).graph
            inputs = [info.name for info in data_guess.inputs_of_file(Path(file))]
            signature.check_states(stream.states, inputs, graph.outputs, file)
    tensors = data_guess.make_feeds(SourceModel(path=model), dimensions, data, folder)
    feeds = check_reference.zero_states(
        {tensor.name: output_compare.read_tensor(tensor).copy() for tensor in tensors}, stream.states, data.inputs
    )
    try:
        given = check_reference.repeated(data, data_guess.inputs_of_file(Path(model))) if data.test_data else None
        reference = check_reference.make_stream(
            model_session.open_session(Path(model)), feeds, stream, Path(folder), given, data.inputs
        )
    except ort_session.ort_errors() as error:
        raise ModelError(
            "the original's stream does not run",
            where=model,
            why=ort_session.first_line(error),
            remedy="check --state, and give sizes with --dimension",
        ) from error
    first = (
        data_files.write_tensor(Path(folder) / f"first_{number}.bin", *feed)
        for number, feed in enumerate(feeds.items())
    )
    return OriginalStream(
        first=tuple(first),
        reference=reference,
        precision=check_reference.precision_of_file(Path(model)),
        random_inputs=not data.test_data,
    )


def measure_streams(
    original: OriginalStream,
    runs: Sequence[campaign_planned.PlannedRun],
    plan: campaign_measure.CampaignPlan,
    bench: campaign_measure.Bench,
) -> list[StreamRow]:
    """The stream of each file, on the inputs of the original's; a row for each.

    A file in another precision than the original's is judged by its signal to noise: what 32 bits keep says nothing.
    """
    reference = original.reference
    inputs, tracked = campaign_planned.Inputs(tensors=original.first, stream=reference.stream), reference.stream.tracked
    rows = []
    for number, run in enumerate(runs):
        spec = plan.spec(replace(run, inputs=inputs), 0)
        spec = msgspec.structs.replace(spec, outputs_folder=str(bench.work / f"stream-{number}"))
        result = bench.devices[run.device].run(spec)
        row = StreamRow(
            file=run.variant, run=run_options.options_name(run.options), steps=reference.stream.steps, tracked=tracked
        )
        if result.failure or not result.outputs:
            rows.append(msgspec.structs.replace(row, **why_failed(result.failure, "it gave no outputs")))
            continue
        expected = {tensor.name: output_compare.read_tensor(tensor) for tensor in reference.outputs}
        outputs = {tensor.name: output_compare.read_tensor(tensor) for tensor in result.outputs}
        precision = check_reference.precision_of_file(Path(run.file))
        other = precision is not original.precision
        checks = output_compare.compare_outputs(
            expected, outputs, original.tolerance(precision), expected if other else {}
        )
        checks = map(by_noise, checks) if other else checks
        times = sorted(result.latencies_ns)  # () in an emulator
        rows.append(
            msgspec.structs.replace(
                row,
                checks=tuple(output_compare.with_first_step(checks, expected, outputs, tracked)),
                median_ns=result.median_ns or 0,
                high_ns=times[len(times) * 95 // 100] if times else 0,
            )
        )
    return rows


def stream_parts(rows: Sequence[StreamRow]) -> "Iterator[wording.Part]":
    """A table of the rows, and a line for each output that is wrong."""
    from pipeline.report import wording

    table = []
    for row in rows:
        last = [check.output for check in row.checks if check.output not in row.tracked]
        when = f"in each step, {', '.join(last)} in the last" if last else "in each step"
        if any(check.failed for check in row.checks):
            when = ""  # the line below the table says it
        outputs = "failed" if row.failure else f"{wording.outputs(row.checks)} {when}".rstrip()
        times = (wording.duration(row.median_ns or None), wording.duration(row.high_ns or None))
        table.append((row.file, row.run, str(row.steps), *times, outputs))
    if table:
        head = ("file", "run", "steps", "median step", "19 of 20 under", "outputs")
        yield wording.Listing(title="", head=head, rows=tuple(table), right=("steps", "median step", "19 of 20 under"))
    for row in rows:
        for check in (check for check in row.checks if check.failed):
            yield wording.Line(f"{row.file} {row.run}: {check.output}: {check.reason}")
