"""Measures model files as they are, without converting, storing or choosing: a quick look, by the same method.

Beside single runs: throughput of several callers of one session or of one each, of models beside each other and of
batches; and a model with state as a stream, step by step, its outputs compared with the original's stream.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING

import msgspec

from device_runner.options import Denied
from device_runner.providers import provider_named
from device_runner.result import Caller, Failure, RunResult
from device_runner.spec import Concurrency, Stream, TensorFile
from pipeline.accuracy.result import FLOOR_DB
from pipeline.campaign.measure import Bench, CampaignPlan
from pipeline.campaign.plan import decision_rule, distinct, in_modes, recorded
from pipeline.campaign.planned import Inputs, PlannedRun
from pipeline.campaign.record import FailureRow
from pipeline.campaign.run_options import options_name
from pipeline.campaign.statistics.groups import t_quantile
from pipeline.check.compare import (
    OutputCheck,
    OutputPrecision,
    Tolerance,
    compare_outputs,
    read_tensor,
    usual_tolerance,
    with_first_step,
)
from pipeline.check.many import gpu_losses_of_files
from pipeline.check.reference import make_stream, precision_of_file, repeated, zero_states
from pipeline.check.result import StreamReference
from pipeline.core.errors import ConfigError, ModelError
from pipeline.core.files import scratch
from pipeline.core.ort_session import first_line, ort_errors
from pipeline.core.progress import Progress
from pipeline.core.workers import Task, run_tasks
from pipeline.dataset import Dataset
from pipeline.dataset.files import write_tensor
from pipeline.dataset.guess import inputs_of_file, make_feeds
from pipeline.job import campaigns
from pipeline.job.bench import open_bench, opened_alone
from pipeline.job.campaigns import new_campaign, versions
from pipeline.job.file_runs import (
    PerfOrder,
    guess_warnings,
    guessed_sizes,
    inputs_of_files,
    planned_files,
    preflight,
    warnings,
)
from pipeline.job.predicted import crowded
from pipeline.job.profiled import profile_run
from pipeline.model.ort_format import read_artifact
from pipeline.model.session import open_session
from pipeline.model.signature import check_states
from pipeline.model.sources import SourceModel, require_model_file
from pipeline.report.model import CampaignReport, ends_of, make_rows, measured_runs, medians
from pipeline.report.modes import mode_rows
from pipeline.report.profiles import Profiled, profile_views

if TYPE_CHECKING:
    from pipeline.report.wording import ListingNote, Part


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


class OriginalStream(msgspec.Struct, frozen=True, kw_only=True):
    """What files of a stream are compared with: the inputs of the first step, what the original computes, its precision
    and whether its inputs are random.
    """

    first: tuple[TensorFile, ...]
    reference: StreamReference
    precision: OutputPrecision
    random_inputs: bool

    def tolerance(self, precision: OutputPrecision) -> Tolerance:
        """What passes of a file in a precision."""
        return msgspec.structs.replace(usual_tolerance(precision), random_inputs=self.random_inputs)


def by_noise(check: OutputCheck) -> OutputCheck:
    """The check of an output in another precision: it passes from the floor of the signal to noise on."""
    ratio = check.sqnr_db
    if ratio is msgspec.UNSET or (check.failed and check.limit is None):  # no number, or dead
        return check
    if ratio is None or ratio >= FLOOR_DB:
        return msgspec.structs.replace(check, passed=True, unknown=False, reason="")
    reason = f"it is {ratio:.1f} dB from the original's, and at least {FLOOR_DB:g} dB are wanted"
    return msgspec.structs.replace(check, passed=False, unknown=False, reason=reason)


@contextmanager
def original_stream(order: PerfOrder) -> Iterator[OriginalStream | None]:
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
) -> OriginalStream:
    for file in dict.fromkeys((model, *files)):
        with suppress(ModelError):  # its own run says what is wrong with a file
            graph = read_artifact(Path(file)).graph
            inputs = [info.name for info in inputs_of_file(Path(file))]
            check_states(stream.states, inputs, graph.outputs, file)
    tensors = make_feeds(SourceModel(path=model), dimensions, data, folder)
    feeds = zero_states({tensor.name: read_tensor(tensor).copy() for tensor in tensors}, stream.states, data.inputs)
    try:
        given = repeated(data, inputs_of_file(Path(model))) if data.test_data else None
        reference = make_stream(open_session(Path(model)), feeds, stream, Path(folder), given)
    except ort_errors() as error:
        raise ModelError("the original's stream does not run", where=model, why=first_line(error),
                         remedy="check --state, and give sizes with --dimension") from error  # fmt: skip
    first = (write_tensor(Path(folder) / f"first_{number}.bin", *row) for number, row in enumerate(feeds.items()))
    return OriginalStream(
        first=tuple(first), reference=reference, precision=precision_of_file(Path(model)),
        random_inputs=not data.test_data,
    )  # fmt: skip


def measure_streams(
    original: OriginalStream, runs: Sequence[PlannedRun], plan: CampaignPlan, bench: Bench
) -> list[StreamRow]:
    """The stream of each file, on the inputs of the original's; a row for each.

    A file in another precision than the original's is judged by its signal to noise: what 32 bits keep says nothing.
    """
    reference = original.reference
    inputs, tracked = Inputs(tensors=original.first, stream=reference.stream), reference.stream.tracked
    rows = []
    for number, run in enumerate(runs):
        spec = plan.spec(replace(run, inputs=inputs), 0)
        spec = msgspec.structs.replace(spec, outputs_folder=str(bench.work / f"stream-{number}"))
        result = bench.devices[run.device].run(spec)
        row = StreamRow(file=run.variant, run=options_name(run.options), steps=reference.stream.steps, tracked=tracked)
        if result.failure or not result.outputs:
            rows.append(msgspec.structs.replace(row, **why_failed(result.failure, "it gave no outputs")))
            continue
        expected = {tensor.name: read_tensor(tensor) for tensor in reference.outputs}
        outputs = {tensor.name: read_tensor(tensor) for tensor in result.outputs}
        precision = precision_of_file(Path(run.file))
        other = precision is not original.precision
        checks = compare_outputs(expected, outputs, original.tolerance(precision), expected if other else {})
        checks = map(by_noise, checks) if other else checks
        times = sorted(result.latencies_ns)  # () in an emulator
        rows.append(
            msgspec.structs.replace(
                row, checks=tuple(with_first_step(checks, expected, outputs, tracked)), median_ns=result.median_ns or 0,
                high_ns=times[len(times) * 95 // 100] if times else 0,
            )
        )  # fmt: skip
    return rows


def stream_parts(rows: Sequence[StreamRow]) -> "Iterator[Part]":
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


WORDS = ("own", "together", "arena", "pool")
BLOCK = 5
"""Neighbouring slices that count as one value, since they are not independent."""

LEAST_SECONDS = 0.5
GAIN = 1.05
"""A larger batch pays when it gives at least so many times the samples a second of the best smaller one."""


class CallersRow(msgspec.Struct, frozen=True, kw_only=True):
    """One way to call a file. `throughput` is samples a second of all callers of the file, with bounds at 95 %.

    `median_ns` and `high_ns` (which 19 of 20 keep) are of one call. `beside` has the medians of other models that
    were called meanwhile, by file; `memory_bytes` is the process at its peak.
    """

    file: str
    run: str
    callers: int
    own_sessions: bool = False
    shared: tuple[str, ...] = ()
    batch: int = 0
    throughput: float = 0.0
    low: float = 0.0
    high: float = 0.0
    median_ns: int = 0
    high_ns: int = 0
    beside: dict[str, int] = {}
    memory_bytes: int = 0
    failure: str = ""
    remedy: str = ""
    pays: bool = False


def parse_concurrent(text: str, files: Sequence[Path]) -> list[tuple[Path, Concurrency]]:
    """`1,2,4:own:arena` for these files; `together` calls the first with the others beside it. ConfigError."""
    numbers, *words = text.split(":")
    counts = [int(part) for part in numbers.split(",") if part.isdecimal() and 1 <= int(part) <= 64]
    if len(counts) != numbers.count(",") + 1 or not set(words) <= set(WORDS):
        raise ConfigError(
            "not a number of callers", where="--concurrent", why=f"{text!r} was given",
            remedy="give numbers from 1 to 64, as in 1,2,4, then any of :own, :together, :arena and :pool",
        )  # fmt: skip
    others = tuple(map(str, files[1:])) if "together" in words else ()
    if "together" in words and not others:
        raise ConfigError("nothing to call beside the model", where="--concurrent",
                          remedy="name two files or more for :together")  # fmt: skip
    settings = [
        Concurrency(
            callers=count, own_sessions="own" in words, beside=others, shared_arena="arena" in words,
            global_threads="pool" in words,
        )
        for count in counts
    ]  # fmt: skip
    return [(file, how) for file in (files[:1] if others else files) for how in settings]


def measure_callers(
    cases: Sequence[tuple[Path, Concurrency]], batches: Sequence[int], runs: Sequence[PlannedRun], plan: CampaignPlan,
    bench: Bench, sizes: Mapping[str, int],
) -> list[CallersRow]:  # fmt: skip
    """Each way in as many new processes as there are rounds, in turn; a row for each. `sizes` are those of open
    dimensions, for the models beside, too.
    """
    named = {name: size for name, size in sizes.items() if "[" not in name}
    ways = [
        (run, how, batch) for run in runs for file, how in cases if run.file == str(file) for batch in (batches or (0,))
    ]
    if not ways:
        return []
    results: dict[int, list[RunResult]] = {}
    with bench.progress.stage("callers", len(ways) * plan.measure.timed_rounds) as stage:
        for number in range(plan.measure.timed_rounds):
            for place, (run, how, batch) in enumerate(ways):
                stage.at(run.variant)
                spec = plan.spec(run, number)
                # Callers come after a short timed loop; a batch is the size of the inputs' open first axis.
                batched = dict.fromkeys(open_batch(Path(spec.model)), batch) if batch else {}
                seconds = max(plan.measure.min_seconds, LEAST_SECONDS)
                spec = msgspec.structs.replace(
                    spec, concurrent=msgspec.structs.replace(how, seconds=seconds), min_runs=min(spec.min_runs, 10),
                    min_seconds=0.05, inputs=() if batch else spec.inputs,
                    dimensions={**named, **spec.dimensions, **batched},
                )  # fmt: skip
                if not any(result.failure for result in results.setdefault(place, [])):  # else it would fail again
                    results[place].append(bench.devices[run.device].run(spec))
                stage.done()
    rows = [_row(run, how, batch, results[place]) for place, (run, how, batch) in enumerate(ways)]
    return _paying(rows) if batches else rows


def open_batch(file: Path) -> set[str]:
    """The name of the first axis of the inputs, where it has no size; ConfigError where there is none."""
    takes = inputs_of_file(file)
    names = {info.shape[0] for info in takes if info.shape and isinstance(info.shape[0], str) and info.shape[0]}
    if not names:
        raise ConfigError(
            "the batch has a fixed size", where=str(file),
            why="no input has a first axis with a name and without a size",
            remedy="`ort-mobile transform --do batch:size=…` makes a model for each size",
        )  # fmt: skip
    return {str(name) for name in names}


def _row(run: PlannedRun, how: Concurrency, batch: int, results: Sequence[RunResult]) -> CallersRow:
    bare = CallersRow(
        file=run.variant, run=options_name(run.options), callers=how.callers, own_sessions=how.own_sessions,
        batch=batch,
        shared=tuple(word for word, on in (("arena", how.shared_arena), ("pool", how.global_threads)) if on),
    )  # fmt: skip
    failure = next((result.failure for result in results if result.failure), None)
    measured = [(result, result.concurrent) for result in results if result.concurrent]
    if failure or not measured:
        return msgspec.structs.replace(bare, **why_failed(failure, "nothing was measured"))
    rates = [
        rate * max(batch, 1)
        for _, concurrent in measured
        for rate in _rates(concurrent.callers[: how.callers], concurrent.length_ns)
    ]
    mean = fmean(rates)
    spread = t_quantile(0.975, len(rates) - 1) * stdev(rates) / math.sqrt(len(rates)) if len(rates) > 1 else mean
    alike = [caller for _, concurrent in measured for caller in concurrent.callers[: how.callers]]
    others = {
        Path(name).name: round(median(concurrent.callers[how.callers + place].median_ns for _, concurrent in measured))
        for place, name in enumerate(how.beside)
    }
    return msgspec.structs.replace(
        bare, throughput=mean, low=max(0.0, mean - spread), high=mean + spread, beside=others,
        median_ns=round(median(caller.median_ns for caller in alike)),
        high_ns=round(median(caller.high_ns for caller in alike)),
        memory_bytes=max(result.memory_peak_bytes for result, _ in measured),
    )  # fmt: skip


def _rates(callers: Sequence[Caller], length_ns: int) -> Iterator[float]:
    """Inferences a second of all callers in each block of slices; where fewer end than there are blocks, by the time
    that one takes each caller: most are longer than what is counted.
    """
    totals = [sum(counts) for counts in zip(*(caller.slices for caller in callers), strict=True)]
    if sum(totals) * BLOCK < len(totals):
        yield from (len(callers) * 1e9 / max(caller.median_ns, 1) for caller in callers)
        return
    seconds = length_ns / 1e9 / len(totals)
    for at in range(0, len(totals), BLOCK):
        block = totals[at : at + BLOCK]
        yield sum(block) / (seconds * len(block))


def _paying(rows: Sequence[CallersRow]) -> list[CallersRow]:
    """Marks for each file, run and number of callers the largest batch that still pays."""
    best: dict[tuple[str, str, int], int] = {}
    for place, row in enumerate(rows):
        key = (row.file, row.run, row.callers)
        if not row.failure and (key not in best or row.low > rows[best[key]].throughput * GAIN):
            best[key] = place
    return [msgspec.structs.replace(row, pays=place in best.values()) for place, row in enumerate(rows)]


def callers_parts(rows: Sequence[CallersRow]) -> "Iterator[Part]":
    """A table of the rows."""
    from pipeline.report.wording import Listing, duration, significant, size

    if not rows:
        return
    batches, others = any(row.batch for row in rows), any(row.beside for row in rows)
    head = ("file", "run", "callers", *(("batch",) if batches else ()), "samples/s", "95 %", "median", "19 of 20 under",
            "memory", *(("beside",) if others else ()))  # fmt: skip
    table = []
    for row in rows:
        shared = f"shared {' and '.join(row.shared)}" if row.shared else ""
        sessions = "own sessions" if row.own_sessions and row.callers > 1 else ""
        cells = [row.file, row.run, ", ".join(filter(None, (str(row.callers), sessions, shared)))]
        cells += [f"{row.batch}{' (pays)' if row.pays else ''}"] if batches else []
        cells += ["failed", "", "", "", ""] if row.failure else [
            significant(row.throughput), f"{significant(row.low)} to {significant(row.high)}", duration(row.median_ns),
            duration(row.high_ns), size(row.memory_bytes),
        ]  # fmt: skip
        cells += [", ".join(f"{name} {duration(ns)}" for name, ns in row.beside.items())] if others else []
        table.append(tuple(cells))
    yield Listing(title="", head=head, rows=tuple(table), right=("samples/s", "median", "19 of 20 under", "memory"))


def failed_notes(rows: Sequence[CallersRow | StreamRow], report: "CampaignReport") -> "list[ListingNote]":
    """Why rows have no numbers, but for what the report says of the same run."""
    from pipeline.report.wording import ListingNote

    return [
        ListingNote(title=row.file, text=row.failure, remedy=row.remedy)
        for row in rows
        if row.failure
        and not any(
            (failure.variant, failure.run) == (row.file, row.run) and failure.message in row.failure
            for failure in report.failures
        )
    ]


def measure_files(
    order: PerfOrder, progress: Progress
) -> tuple[CampaignReport, tuple[Profiled, ...], tuple[Denied, ...], list[CallersRow | StreamRow]]:
    """Run every file with every set of options, by the engine of campaigns and with a store of its own.

    Beside the report: profiles, what is denied from now on and throughput, where these were asked for.
    Raises ConfigError for a file that is not there, and what opening the device with its library raises.
    """
    for file in order.files:
        require_model_file(file)
    opened = opened_alone(order.device, order.wait_seconds, order.library)
    with original_stream(order) as original, open_bench(opened, None, progress) as bench:
        ((name, device),) = bench.devices.items()
        campaign = new_campaign("perf")
        findings_of = preflight(order, device)
        possible, skipped = planned_files(order, name, bench.facts[name], findings_of)
        runs = in_modes(possible, order.measure)
        on_gpu = {
            run.file for run in possible if provider_named(run.options.provider).gpu and run.file.endswith(".onnx")
        }
        losses = gpu_losses_of_files(sorted(map(Path, on_gpu)), order.dimensions, order.data)
        inputs = inputs_of_files(order, bench.work)
        guessed = guessed_sizes(order, inputs)
        plan = CampaignPlan(
            campaign=campaign.id,
            planned_runs=distinct(runs),
            measure=order.measure,
            conditions=order.conditions,
            inputs=inputs,
            libraries={name: order.library},
        )
        stored, left = bench.measure(campaign, plan)
        denied = bench.blame(plan) if order.blame else ()
        others: list[CallersRow | StreamRow] = []
        if original:
            others += measure_streams(original, distinct(possible), plan, bench)
        asked = parse_concurrent(order.concurrent or "1", order.files) if order.concurrent or order.batches else []
        sizes = {name: size for of_file in (*guessed.values(), order.dimensions) for name, size in of_file.items()}
        others += measure_callers(asked, order.batches, distinct(possible), plan, bench, sizes)
        profiles = []
        if order.profiles:  # each once more with the profiler on: what it costs is not in the times that are compared
            with bench.progress.stage("profile", len(distinct(possible))) as stage:
                for run in distinct(possible):
                    stage.at(run.variant)
                    at, facts = bench.devices[run.device], bench.facts[run.device]
                    profiles.append(profile_run(at, facts, run.variant, plan.spec(run, 0), order.profiles))
                    stage.done()
        profiled = tuple(profiles)
        # The first file is what all others are compared with.
        planned = list(recorded(runs, runs[0].run_name if runs else None))
        records = [record for rounds in stored.values() for record in rounds]
        sizes_bytes = {(run.model, run.variant): run.size_bytes for run in runs}
        rule = decision_rule(order.measure)
        measured = measured_runs(planned, records)
        rows, (failures, left_out) = make_rows(measured, sizes_bytes, rule), ends_of(measured)
        modes, mode_failures, mode_skipped = mode_rows(planned, records, order.measure, rule)
        # A device that did not become fit for a run: no run's own failure.
        messages = {failure.message for failure in (*failures, *mode_failures)}
        unfit = [
            FailureRow(
                kind="not fit", message=reason, cause="what was asked for did not come",
                remedy="let the device rest and charge, or wait longer (--wait-seconds)", device=device,
            )
            for device, reason in left.items()
            if reason not in messages
        ]  # fmt: skip
        report = CampaignReport(
            name=campaign.name,
            campaign=campaign.id,
            created_at=campaign.created_at,
            margin=rule.margin,
            least=rule.least,
            host=campaigns.host(),
            versions=versions(),
            devices=tuple(bench.facts.values()),
            rows=rows,
            skipped=(*skipped, *left_out, *mode_skipped),
            failures=(*unfit, *failures, *mode_failures),
            modes=modes,
            warnings=(
                *guess_warnings(guessed),
                *warnings(runs, findings_of),
                *losses,
                *crowded(runs, bench.facts.values(), campaigns.host()),
            ),
            profile_views=profile_views(profiled, medians(rows), {}),
        )
    return report, profiled, denied, others
