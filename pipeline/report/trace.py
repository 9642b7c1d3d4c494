"""trace.json.gz: a campaign over time, as Chrome's JSON trace events, which Perfetto and speedscope open.

A process is the computer of the job with its stages, or a device with its runs; their parts are nested. Counters are
what a device reported of its heat and its clocks before and after each run, and during sustained ones.
"""

import gzip
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from device_runner.result import RunResult, Status, epoch_ms
from pipeline.campaign.record import RunRecord
from pipeline.core.groups import grouped
from pipeline.core.progress import StageTime
from pipeline.report.wording import visible

Event = dict[str, Any]

THREAD = 1
"""Each process has one thread: a device runs one thing at a time."""


def encode(name: str, campaign: str, runs: Sequence[RunRecord], stages: Sequence[StageTime]) -> bytes:
    """The gzipped document: times are microseconds since the first thing that is known; the same input, same bytes."""
    events = list(_events(runs, stages))
    origin = min((event["ts"] for event in events if event["ph"] != "M"), default=0)
    for event in events:
        if event["ph"] != "M":
            event["ts"] -= origin
    document = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"name": visible(name), "campaign": visible(campaign), "started_at_us": str(origin)},
    }
    return gzip.compress(msgspec.json.encode(document), mtime=0)


def _events(runs: Sequence[RunRecord], stages: Sequence[StageTime]) -> Iterator[Event]:
    hosts = sorted(grouped((stage.host, stage) for stage in stages).items())
    for number, (host, of_host) in enumerate(hosts, start=1):
        yield from _process(number, f"ort-mobile on {host or 'this computer'}", "stages")
        yield from _stages(number, of_host)
    lanes = sorted(grouped(((run.result.host, run.result.device), run) for run in runs).items())
    for number, ((host, device), of_lane) in enumerate(lanes, start=1 + len(hosts)):
        yield from _process(number, f"{device} of {host}" if host else device, "runs")
        end = 0
        for run in sorted(of_lane, key=lambda run: run.result.started_at):
            events = list(_run(number, run, end))
            end = max(end, *(event["ts"] + event.get("dur", 0) for event in events), 0) if events else end
            yield from events


def _stages(pid: int, stages: Sequence[StageTime]) -> Iterator[Event]:
    """Stages beside and inside each other: their beginnings are known to a millisecond, and what overlaps is dropped
    by readers, so one that begins in the last millisecond of another follows it.
    """
    around: list[int] = []
    for stage in sorted(stages, key=lambda stage: (epoch_ms(stage.started_at) or 0, -stage.elapsed_ns)):
        start, duration = (epoch_ms(stage.started_at) or 0) * 1000, stage.elapsed_ns // 1000
        while around and start >= around[-1] - 1000:
            start = max(start, around.pop())
        end = min([start + duration, *around[-1:]])
        yield _slice(pid, stage.name, start, end - start, {"steps": stage.steps})
        around.append(end)


def _process(pid: int, name: str, thread: str) -> Iterator[Event]:
    for what, args in (
        ("process_name", {"name": visible(name)}),
        ("process_sort_index", {"sort_index": pid}),
        ("thread_name", {"name": thread}),
    ):
        yield {"ph": "M", "pid": pid, "tid": THREAD, "name": what, "args": args}


def _slice(pid: int, name: str, start: int, duration: int, args: Mapping[str, Any], category: str = "stage") -> Event:
    return {
        "ph": "X", "pid": pid, "tid": THREAD, "name": visible(name), "cat": category, "ts": start, "dur": duration,
        "args": args,
    }  # fmt: skip


def parts_of(result: RunResult) -> tuple[tuple[str, int], ...]:
    """What a run spent its time with, in order, in nanoseconds; the rest of `elapsed_ns` is its process and files."""
    bins = result.sustained.bins if result.sustained else ()
    timed = sum(result.latencies_ns) + sum(interval.total_ns for interval in bins)
    parts = (
        ("push", result.push_ns),
        ("open library", result.open_ns),
        ("load model", result.load_ns),
        ("first run", result.first_run_ns),
        ("warm-up", sum(result.warmup_ns)),
        ("timed", timed),
    )
    return tuple((name, nanoseconds) for name, nanoseconds in parts if nanoseconds > 0)


def _run(pid: int, run: RunRecord, earliest: int) -> Iterator[Event]:
    """A run with its parts and counters; none where nothing says when it was.

    It begins when the one before it ended at the earliest: clocks jump.
    """
    result = run.result
    started_ms = epoch_ms(result.started_at)
    if started_ms is None:
        return
    start = max(started_ms * 1000, earliest)
    parts = parts_of(result)
    end = start + (result.elapsed_ns or sum(nanoseconds for _, nanoseconds in parts)) // 1000
    name = f"{run.model}/{run.variant} {run.spec.options.provider}"
    category = "run" if result.status is Status.OK else result.status.value
    yield _slice(pid, name, start, end - start, _arguments(run), category)
    at = start
    for part, nanoseconds in parts:
        duration = min(nanoseconds // 1000, end - at)
        if part == "timed":
            yield from _sustained(pid, result, at)
        yield _slice(pid, part, at, duration, {}, "part")
        at += duration
    for moment, conditions in ((start, result.before), (end, result.after)):
        # What a device reported, a counter for each unit; what it does not report has none.
        zones = {visible(name): celsius for name, celsius in conditions.zones_celsius.items()}
        battery = {} if conditions.battery_celsius is None else {"battery": conditions.battery_celsius}
        percent = conditions.battery_percent
        units: dict[str, dict[str, float]] = {
            "temperature (°C)": {**zones, **battery},
            "frequency (MHz)": {f"cpu{core}": mhz for core, mhz in enumerate(conditions.cpu_mhz)},
            "thermal status": {} if conditions.thermal_status is None else {"status": conditions.thermal_status},
            "battery (%)": {} if percent is None else {"level": percent},
        }
        yield from (_counter(pid, moment, name, values) for name, values in units.items() if values)


def _arguments(run: RunRecord) -> dict[str, Any]:
    result, failure = run.result, run.result.failure
    arguments = {
        "run": run.planned,
        "round": run.round,
        "status": result.status.value,
        "started_at": result.started_at,
        "inferences": len(result.latencies_ns),
        "marks": ", ".join(result.marks),
    }
    if failure:
        arguments |= {"failure": failure.kind.value, "message": failure.message, "remedy": failure.remedy}
    return {key: visible(value) if isinstance(value, str) else value for key, value in arguments.items() if value != ""}


def _sustained(pid: int, result: RunResult, start: int) -> Iterator[Event]:
    for sample in result.sustained.samples if result.sustained else ():
        at = start + sample.at_ns // 1000
        if sample.mhz:
            yield _counter(pid, at, "mean frequency (MHz)", {"cpu": sample.mhz})
        if sample.millidegrees:
            yield _counter(pid, at, "processor (°C)", {"cpu": sample.millidegrees / 1000})


def _counter(pid: int, at: int, name: str, values: Mapping[str, float]) -> Event:
    return {"ph": "C", "pid": pid, "tid": THREAD, "name": name, "ts": at, "args": values}
