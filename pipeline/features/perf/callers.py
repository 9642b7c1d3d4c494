"""Several callers of a session or of a file at once, and batches: throughput, and what it costs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING

import msgspec

from device_runner import result as run_result
from device_runner import spec as run_spec
from device_runner.result import RunResult
from pipeline.campaign import measure as campaign_measure
from pipeline.campaign import planned as campaign_planned
from pipeline.campaign import run_options
from pipeline.campaign.statistics import groups as run_groups
from pipeline.core.errors import ConfigError
from pipeline.dataset import guess as data_guess
from pipeline.features.perf.failed import why_failed

if TYPE_CHECKING:
    from pipeline.report import wording


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
            for index, (run, how, batch) in enumerate(ways):
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
                if not any(result.failure for result in results.setdefault(index, [])):  # else it would fail again
                    results[index].append(bench.devices[run.device].run(spec))
                stage.done()
    rows = [_row(run, how, batch, results[index]) for index, (run, how, batch) in enumerate(ways)]
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
        Path(name).name: round(median(concurrent.callers[how.callers + index].median_ns for _, concurrent in measured))
        for index, name in enumerate(how.beside)
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
    for index, row in enumerate(rows):
        key = (row.file, row.run, row.callers)
        if not row.failure and (key not in best or row.low > rows[best[key]].throughput * GAIN):
            best[key] = index
    return [msgspec.structs.replace(row, pays=index in best.values()) for index, row in enumerate(rows)]


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
