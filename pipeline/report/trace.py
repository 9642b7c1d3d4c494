"""trace.json.gz: a campaign over time."""

import gzip
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from device_runner import result as run_result
from device_runner import safe_text
from device_runner.result import Status
from pipeline.campaign.record import RunRecord
from pipeline.core import groups as counting
from pipeline.core import progress as core_progress

Event = dict[str, Any]

THREAD = 1
"""Each process has one thread: a device runs one thing at a time."""


def encode_trace(
    name: str, campaign: str, runs: Sequence[RunRecord], stages: Sequence[core_progress.StageTime]
) -> bytes:
    """trace.json.gz, gzipped: a campaign over time as Chrome's JSON trace events, for Perfetto and speedscope.

    A process is the computer of the job with its stages, or a device with its runs; their parts are nested. Counters
    are what a device reported of its heat and its clocks before and after each run, and during sustained ones. Times
    are microseconds since the first thing that is known; the same input gives the same bytes.
    """
    events = list(_events(runs, stages))
    origin = min((event["ts"] for event in events if event["ph"] != "M"), default=0)
    for event in events:
        if event["ph"] != "M":
            event["ts"] -= origin
    document = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "name": safe_text.visible(name),
            "campaign": safe_text.visible(campaign),
            "started_at_us": str(origin),
        },
    }
    return gzip.compress(msgspec.json.encode(document), mtime=0)


def _events(runs: Sequence[RunRecord], stages: Sequence[core_progress.StageTime]) -> Iterator[Event]:
    hosts = sorted(counting.grouped((stage.host, stage) for stage in stages).items())
    for number, (host, of_host) in enumerate(hosts, start=1):
        yield from _process(number, f"ort-mobile on {host or 'this computer'}", "stages")
        # Stages beside and inside each other: their beginnings are known to a millisecond, and what overlaps is dropped
        # by readers, so one that begins in the last millisecond of another follows it
        around: list[int] = []
        for stage in sorted(of_host, key=lambda stage: (run_result.epoch_ms(stage.started_at) or 0, -stage.elapsed_ns)):
            start, duration = (run_result.epoch_ms(stage.started_at) or 0) * 1000, stage.elapsed_ns // 1000
            while around and start >= around[-1] - 1000:
                start = max(start, around.pop())
            end = min([start + duration, *around[-1:]])
            yield _slice(number, stage.name, start, end - start, {"steps": stage.steps})
            around.append(end)
    lanes = sorted(counting.grouped(((run.result.host, run.result.device), run) for run in runs).items())
    for number, ((host, device), of_lane) in enumerate(lanes, start=1 + len(hosts)):
        yield from _process(number, f"{device} of {host}" if host else device, "runs")
        end = 0
        for run in sorted(of_lane, key=lambda run: run.result.started_at):
            events = list(_run(number, run, end))
            end = max(end, *(event["ts"] + event.get("dur", 0) for event in events), 0) if events else end
            yield from events


def _process(pid: int, name: str, thread: str) -> Iterator[Event]:
    for what, args in (
        ("process_name", {"name": safe_text.visible(name)}),
        ("process_sort_index", {"sort_index": pid}),
        ("thread_name", {"name": thread}),
    ):
        yield {"ph": "M", "pid": pid, "tid": THREAD, "name": what, "args": args}


def _slice(pid: int, name: str, start: int, duration: int, args: Mapping[str, Any], category: str = "stage") -> Event:
    return {
        "ph": "X",
        "pid": pid,
        "tid": THREAD,
        "name": safe_text.visible(name),
        "cat": category,
        "ts": start,
        "dur": duration,
        "args": args,
    }


def _run(pid: int, run: RunRecord, earliest: int) -> Iterator[Event]:
    """A run with its parts and counters; none where nothing says when it was.

    It begins when the one before it ended at the earliest: clocks jump.
    """
    result, failure = run.result, run.result.failure
    started_ms = run_result.epoch_ms(result.started_at)
    if started_ms is None:
        return
    start = max(started_ms * 1000, earliest)
    # What a run spent its time with, in order; the rest of `elapsed_ns` is its process and files
    bins = result.sustained.bins if result.sustained else ()
    parts = {
        "push": result.push_ns,
        "open library": result.open_ns,
        "load model": result.load_ns,
        "first run": result.first_run_ns,
        "warm-up": sum(result.warmup_ns),
        "timed": sum(result.latencies_ns) + sum(interval.total_ns for interval in bins),
    }
    parts = {name: nanoseconds for name, nanoseconds in parts.items() if nanoseconds > 0}
    end = start + (result.elapsed_ns or sum(parts.values())) // 1000
    arguments = {
        "run": run.planned,
        "round": run.round,
        "status": result.status.value,
        "started_at": result.started_at,
        "inferences": len(result.latencies_ns),
        "marks": ", ".join(result.marks),
    }
    if failure:
        arguments |= {"failure": failure.code.value, "message": failure.what, "remedy": failure.remedy}
    given = {name: value for name, value in arguments.items() if value != ""}
    shown = {name: safe_text.visible(value) if isinstance(value, str) else value for name, value in given.items()}
    name = f"{run.model}/{run.variant} {run.spec.options.provider}"
    category = "run" if result.status is Status.OK else result.status.value
    yield _slice(pid, name, start, end - start, shown, category)
    at = start
    for part, nanoseconds in parts.items():
        duration = min(nanoseconds // 1000, end - at)
        for sample in result.sustained.samples if part == "timed" and result.sustained else ():
            moment = at + sample.at_ns // 1000
            if sample.mhz:
                yield _counter(pid, moment, "mean frequency (MHz)", {"cpu": sample.mhz})
            if sample.millidegrees:
                yield _counter(pid, moment, "processor (°C)", {"cpu": sample.millidegrees / 1000})
        yield _slice(pid, part, at, duration, {}, "part")
        at += duration
    for moment, conditions in ((start, result.before), (end, result.after)):
        # What a device reported, a counter for each unit; what it does not report has none.
        zones = {safe_text.visible(name): celsius for name, celsius in conditions.zones_celsius.items()}
        battery = {} if conditions.battery_celsius is None else {"battery": conditions.battery_celsius}
        percent = conditions.battery_percent
        units: dict[str, dict[str, float]] = {
            "temperature (°C)": {**zones, **battery},
            "frequency (MHz)": {f"cpu{core}": mhz for core, mhz in enumerate(conditions.cpu_mhz)},
            "thermal status": {} if conditions.thermal_status is None else {"status": conditions.thermal_status},
            "battery (%)": {} if percent is None else {"level": percent},
        }
        yield from (_counter(pid, moment, name, values) for name, values in units.items() if values)


def _counter(pid: int, at: int, name: str, values: Mapping[str, float]) -> Event:
    return {"ph": "C", "pid": pid, "tid": THREAD, "name": name, "ts": at, "args": values}
