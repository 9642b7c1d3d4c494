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

from device_runner import options as runner_options
from device_runner import providers as runner_providers
from device_runner import result as run_result
from device_runner import spec as run_spec
from device_runner.result import RunResult
from device_runner.spec import TensorFile
from pipeline.accuracy import result as accuracy_result
from pipeline.campaign import measure as campaign_measure
from pipeline.campaign import plan as planning
from pipeline.campaign import planned as campaign_planned
from pipeline.campaign import record as campaign_record
from pipeline.campaign import run_options
from pipeline.campaign.statistics import groups as run_groups
from pipeline.check import compare as output_compare
from pipeline.check import many as check_many
from pipeline.check import reference as check_reference
from pipeline.check import result as check_result
from pipeline.check.compare import OutputCheck
from pipeline.core import files as storage
from pipeline.core import ort_session, workers
from pipeline.core.errors import ConfigError, ModelError
from pipeline.core.progress import Progress
from pipeline.dataset import Dataset
from pipeline.dataset import files as data_files
from pipeline.dataset import guess as data_guess
from pipeline.job import bench as job_bench
from pipeline.job import campaigns, file_runs, predicted
from pipeline.job import profiled as job_profiled
from pipeline.model import ort_format, signature
from pipeline.model import session as model_session
from pipeline.model import sources as model_sources
from pipeline.model.sources import SourceModel
from pipeline.report import model as report_model
from pipeline.report import modes as report_modes
from pipeline.report import profiles as report_profiles

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


def why_failed(failure: run_result.Failure | None, nothing: str) -> dict[str, str]:
    """The fields of a row that has no numbers: what the run says of it, or that it says `nothing`."""
    if not failure:
        return {"failure": nothing}
    return {"failure": failure.reason, "remedy": failure.remedy}


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
            model_session.open_session(Path(model)), feeds, stream, Path(folder), given
        )
    except ort_session.ort_errors() as error:
        raise ModelError(
            "the original's stream does not run",
            where=model,
            why=ort_session.first_line(error),
            remedy="check --state, and give sizes with --dimension",
        ) from error
    first = (
        data_files.write_tensor(Path(folder) / f"first_{number}.bin", *row) for number, row in enumerate(feeds.items())
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


def parse_concurrent(text: str, files: Sequence[Path]) -> list[tuple[Path, run_spec.Concurrency]]:
    """`1,2,4:own:arena` for these files; `together` calls the first with the others beside it. ConfigError."""
    numbers, *words = text.split(":")
    counts = [int(part) for part in numbers.split(",") if part.isdecimal() and 1 <= int(part) <= 64]
    if len(counts) != numbers.count(",") + 1 or not set(words) <= set(WORDS):
        raise ConfigError(
            "not a number of callers",
            where="--concurrent",
            why=f"{text!r} was given",
            remedy="give numbers from 1 to 64, as in 1,2,4, then any of :own, :together, :arena and :pool",
        )
    others = tuple(map(str, files[1:])) if "together" in words else ()
    if "together" in words and not others:
        raise ConfigError(
            "nothing to call beside the model", where="--concurrent", remedy="name two files or more for :together"
        )
    settings = [
        run_spec.Concurrency(
            callers=count,
            own_sessions="own" in words,
            beside=others,
            shared_arena="arena" in words,
            global_threads="pool" in words,
        )
        for count in counts
    ]
    return [(file, how) for file in (files[:1] if others else files) for how in settings]


def measure_callers(
    cases: Sequence[tuple[Path, run_spec.Concurrency]],
    batches: Sequence[int],
    runs: Sequence[campaign_planned.PlannedRun],
    plan: campaign_measure.CampaignPlan,
    bench: campaign_measure.Bench,
    sizes: Mapping[str, int],
) -> list[CallersRow]:
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
                    spec,
                    concurrent=msgspec.structs.replace(how, seconds=seconds),
                    min_runs=min(spec.min_runs, 10),
                    min_seconds=0.05,
                    inputs=() if batch else spec.inputs,
                    dimensions={**named, **spec.dimensions, **batched},
                )
                if not any(result.failure for result in results.setdefault(place, [])):  # else it would fail again
                    results[place].append(bench.devices[run.device].run(spec))
                stage.done()
    rows = [_row(run, how, batch, results[place]) for place, (run, how, batch) in enumerate(ways)]
    return _paying(rows) if batches else rows


def open_batch(file: Path) -> set[str]:
    """The name of the first axis of the inputs, where it has no size; ConfigError where there is none."""
    takes = data_guess.inputs_of_file(file)
    names = {info.shape[0] for info in takes if info.shape and isinstance(info.shape[0], str) and info.shape[0]}
    if not names:
        raise ConfigError(
            "the batch has a fixed size",
            where=str(file),
            why="no input has a first axis with a name and without a size",
            remedy="`ort-mobile transform --do batch:size=…` makes a model for each size",
        )
    return {str(name) for name in names}


def _row(
    run: campaign_planned.PlannedRun, how: run_spec.Concurrency, batch: int, results: Sequence[RunResult]
) -> CallersRow:
    bare = CallersRow(
        file=run.variant,
        run=run_options.options_name(run.options),
        callers=how.callers,
        own_sessions=how.own_sessions,
        batch=batch,
        shared=tuple(word for word, on in (("arena", how.shared_arena), ("pool", how.global_threads)) if on),
    )
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
    spread = (
        run_groups.t_quantile(0.975, len(rates) - 1) * stdev(rates) / math.sqrt(len(rates)) if len(rates) > 1 else mean
    )
    alike = [caller for _, concurrent in measured for caller in concurrent.callers[: how.callers]]
    others = {
        Path(name).name: round(median(concurrent.callers[how.callers + place].median_ns for _, concurrent in measured))
        for place, name in enumerate(how.beside)
    }
    return msgspec.structs.replace(
        bare,
        throughput=mean,
        low=max(0.0, mean - spread),
        high=mean + spread,
        beside=others,
        median_ns=round(median(caller.median_ns for caller in alike)),
        high_ns=round(median(caller.high_ns for caller in alike)),
        memory_bytes=max(result.memory_peak_bytes for result, _ in measured),
    )


def _rates(callers: Sequence[run_result.Caller], length_ns: int) -> Iterator[float]:
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


def callers_parts(rows: Sequence[CallersRow]) -> "Iterator[wording.Part]":
    """A table of the rows."""
    from pipeline.report import wording

    if not rows:
        return
    batches, others = any(row.batch for row in rows), any(row.beside for row in rows)
    head = (
        "file",
        "run",
        "callers",
        *(("batch",) if batches else ()),
        "samples/s",
        "95 %",
        "median",
        "19 of 20 under",
        "memory",
        *(("beside",) if others else ()),
    )
    table = []
    for row in rows:
        shared = f"shared {' and '.join(row.shared)}" if row.shared else ""
        sessions = "own sessions" if row.own_sessions and row.callers > 1 else ""
        cells = [row.file, row.run, ", ".join(filter(None, (str(row.callers), sessions, shared)))]
        cells += [f"{row.batch}{' (pays)' if row.pays else ''}"] if batches else []
        cells += (
            ["failed", "", "", "", ""]
            if row.failure
            else [
                wording.significant(row.throughput),
                f"{wording.significant(row.low)} to {wording.significant(row.high)}",
                wording.duration(row.median_ns),
                wording.duration(row.high_ns),
                wording.size(row.memory_bytes),
            ]
        )
        cells += [", ".join(f"{name} {wording.duration(ns)}" for name, ns in row.beside.items())] if others else []
        table.append(tuple(cells))
    yield wording.Listing(
        title="", head=head, rows=tuple(table), right=("samples/s", "median", "19 of 20 under", "memory")
    )


def failed_notes(
    rows: Sequence[CallersRow | StreamRow], report: "report_model.CampaignReport"
) -> "list[wording.ListingNote]":
    """Why rows have no numbers, but for what the report says of the same run."""
    from pipeline.report import wording

    return [
        wording.ListingNote(title=row.file, text=row.failure, remedy=row.remedy)
        for row in rows
        if row.failure
        and not any(
            (failure.variant, failure.run) == (row.file, row.run) and failure.what in row.failure
            for failure in report.failures
        )
    ]


def measure_files(
    order: file_runs.PerfOrder, progress: Progress
) -> tuple[
    report_model.CampaignReport,
    tuple[report_profiles.Profiled, ...],
    tuple[runner_options.Denied, ...],
    list[CallersRow | StreamRow],
]:
    """Run every file with every set of options, by the engine of campaigns and with a store of its own.

    Beside the report: profiles, what is denied from now on and throughput, where these were asked for.
    Raises ConfigError for a file that is not there, and what opening the device with its library raises.
    """
    for file in order.files:
        model_sources.require_model_file(file)
    opened = job_bench.opened_alone(order.device, order.wait_seconds, order.library)
    with original_stream(order) as original, job_bench.open_bench(opened, None, progress) as bench:
        ((name, device),) = bench.devices.items()
        campaign = campaigns.new_campaign("perf")
        findings_of = file_runs.preflight(order, device)
        possible, skipped = file_runs.planned_files(order, name, bench.facts[name], findings_of)
        runs = planning.in_modes(possible, order.measure)
        on_gpu = {
            run.file
            for run in possible
            if runner_providers.provider_named(run.options.provider).gpu and run.file.endswith(".onnx")
        }
        losses = check_many.gpu_losses_of_files(sorted(map(Path, on_gpu)), order.dimensions, order.data)
        inputs = file_runs.inputs_of_files(order, bench.work)
        guessed = file_runs.guessed_sizes(order, inputs)
        plan = campaign_measure.CampaignPlan(
            campaign=campaign.id,
            planned_runs=planning.distinct(runs),
            measure=order.measure,
            conditions=order.conditions,
            inputs=inputs,
            libraries={name: order.library},
        )
        stored, left = bench.measure(campaign, plan)
        denied = bench.blame(plan) if order.blame else ()
        others: list[CallersRow | StreamRow] = []
        if original:
            others += measure_streams(original, planning.distinct(possible), plan, bench)
        asked = parse_concurrent(order.concurrent or "1", order.files) if order.concurrent or order.batches else []
        sizes = {name: size for of_file in (*guessed.values(), order.dimensions) for name, size in of_file.items()}
        others += measure_callers(asked, order.batches, planning.distinct(possible), plan, bench, sizes)
        profiles = []
        if order.profiles:  # each once more with the profiler on: what it costs is not in the times that are compared
            with bench.progress.stage("profile", len(planning.distinct(possible))) as stage:
                for run in planning.distinct(possible):
                    stage.at(run.variant)
                    at, facts = bench.devices[run.device], bench.facts[run.device]
                    profiles.append(job_profiled.profile_run(at, facts, run.variant, plan.spec(run, 0), order.profiles))
                    stage.done()
        profiled = tuple(profiles)
        # The first file is what all others are compared with.
        planned = list(planning.recorded(runs, runs[0].run_name if runs else None))
        records = [record for rounds in stored.values() for record in rounds]
        sizes_bytes = {(run.model, run.variant): run.size_bytes for run in runs}
        rule = planning.decision_rule(order.measure)
        measured = report_model.measured_runs(planned, records)
        rows, (failures, left_out) = report_model.make_rows(measured, sizes_bytes, rule), report_model.ends_of(measured)
        modes, mode_failures, mode_skipped = report_modes.mode_rows(planned, records, order.measure, rule)
        # A device that did not become fit for a run: no run's own failure.
        messages = {failure.what for failure in (*failures, *mode_failures)}
        unfit = [
            campaign_record.FailureRow(
                code="not fit",
                what=reason,
                why="what was asked for did not come",
                remedy="let the device rest and charge, or wait longer (--wait-seconds)",
                device=device,
            )
            for device, reason in left.items()
            if reason not in messages
        ]
        report = report_model.CampaignReport(
            name=campaign.name,
            campaign=campaign.id,
            created_at=campaign.created_at,
            margin=rule.margin,
            least=rule.least,
            host=campaigns.host(),
            versions=campaigns.versions(),
            devices=tuple(bench.facts.values()),
            rows=rows,
            skipped=(*skipped, *left_out, *mode_skipped),
            failures=(*unfit, *failures, *mode_failures),
            modes=modes,
            warnings=(
                *file_runs.guess_warnings(guessed),
                *file_runs.warnings(runs, findings_of),
                *losses,
                *predicted.crowded(runs, bench.facts.values(), campaigns.host()),
            ),
            profile_views=report_profiles.profile_views(profiled, report_model.medians(rows), {}),
        )
    return report, profiled, denied, others
