"""Throughput: several callers of one session or of one each, models beside each other, and batches."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING

import msgspec

from device_runner.result import Caller, RunResult, Struct
from device_runner.spec import Concurrency, RunSpec
from pipeline.campaign.measure import CampaignPlan
from pipeline.campaign.plan import PlannedRun, options_name
from pipeline.campaign.statistics.groups import t_quantile
from pipeline.core.errors import ConfigError
from pipeline.features.perf.stream import StreamRow, why_failed
from pipeline.job.bench import Bench

if TYPE_CHECKING:
    from pipeline.report.model import CampaignReport
    from pipeline.report.wording import ListingNote, Part

WORDS = ("own", "together", "arena", "pool")
BLOCK = 5
"""Neighbouring slices that count as one value, since they are not independent."""

LEAST_SECONDS = 0.5
GAIN = 1.05
"""A larger batch pays when it gives at least so many times the samples a second of the best smaller one."""


class CallersRow(Struct, frozen=True, kw_only=True):
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
                spec = _spec(plan.spec(run, number), how, batch, plan.measure.min_seconds)
                spec = msgspec.structs.replace(spec, dimensions={**named, **spec.dimensions})
                if not any(result.failure for result in results.setdefault(place, [])):  # else it would fail again
                    results[place].append(bench.devices[run.device].run(spec))
                stage.done()
    rows = [_row(run, how, batch, results[place]) for place, (run, how, batch) in enumerate(ways)]
    return _paying(rows) if batches else rows


def _spec(spec: RunSpec, how: Concurrency, batch: int, seconds: float) -> RunSpec:
    """The spec with callers after a short timed loop; a batch is the size of the inputs' open first axis."""
    how = msgspec.structs.replace(how, seconds=max(seconds, LEAST_SECONDS))
    sizes = dict.fromkeys(open_batch(Path(spec.model)), batch) if batch else {}
    return msgspec.structs.replace(
        spec, concurrent=how, min_runs=min(spec.min_runs, 10), min_seconds=0.05, inputs=() if batch else spec.inputs,
        dimensions={**spec.dimensions, **sizes},
    )  # fmt: skip


def open_batch(file: Path) -> set[str]:
    """The name of the first axis of the inputs, where it has no size; ConfigError where there is none."""
    from pipeline.core.files import scratch
    from pipeline.dataset.guess import ort_inputs
    from pipeline.model.onnx_model import load_model
    from pipeline.model.signature import own_inputs
    from pipeline.model.sources import SourceModel

    with scratch() as work:
        takes = (
            ort_inputs(file)
            if file.suffix.lower() == ".ort"
            else own_inputs(load_model(SourceModel(path=str(file)), work).proto)
        )
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
    table = tuple(
        (
            row.file, row.run, _called(row), *((f"{row.batch}{' (pays)' if row.pays else ''}",) if batches else ()),
            *(
                ("failed", "", "", "", "") if row.failure
                else (significant(row.throughput), f"{significant(row.low)} to {significant(row.high)}",
                      duration(row.median_ns), duration(row.high_ns), size(row.memory_bytes))
            ),
            *((", ".join(f"{name} {duration(ns)}" for name, ns in row.beside.items()),) if others else ()),
        )
        for row in rows
    )  # fmt: skip
    yield Listing(title="", head=head, rows=table, right=("samples/s", "median", "19 of 20 under", "memory"))


def _called(row: CallersRow) -> str:
    """As in `4, own sessions, shared pool`."""
    shared = f"shared {' and '.join(row.shared)}" if row.shared else ""
    sessions = "own sessions" if row.own_sessions and row.callers > 1 else ""
    return ", ".join(filter(None, (str(row.callers), sessions, shared)))


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
