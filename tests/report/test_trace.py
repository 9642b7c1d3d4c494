"""trace.json.gz, read back by a strict reader of Chrome's trace events."""

import gzip
import json
from collections import defaultdict
from typing import Any

import msgspec
import pytest

from device_runner.result import (
    Conditions,
    DeviceSample,
    Failure,
    FailureKind,
    LatencyBin,
    RunResult,
    Status,
    SustainedRun,
)
from pipeline.campaign.record import RunRecord
from pipeline.core.progress import NoProgress, StageLog, StageTime
from pipeline.report.trace import encode_trace
from tests.campaign.store.samples import run_record

KEYS = {
    "X": {"ph", "pid", "tid", "name", "cat", "ts", "dur", "args"},
    "C": {"ph", "pid", "tid", "name", "ts", "args"},
    "M": {"ph", "pid", "tid", "name", "args"},
}
METADATA = {"process_name": str, "process_sort_index": int, "thread_name": str}
HOSTILE = 'a"b</script>\n\x1b[2J\u202e\ud800'


def whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def read(content: bytes) -> list[dict[str, Any]]:
    """The events, each as the format wants it; slices of a thread lie beside or inside each other."""
    document = json.loads(gzip.decompress(content))
    assert set(document) == {"traceEvents", "displayTimeUnit", "otherData"}
    named, slices = set(), defaultdict(list)
    for event in document["traceEvents"]:
        assert set(event) == KEYS[event["ph"]], event
        assert whole(event["pid"])
        assert whole(event["tid"])
        assert event["name"].isprintable()
        if event["ph"] == "M":
            (value,) = event["args"].values()
            assert isinstance(value, METADATA[event["name"]])
            named.add((event["name"], event["pid"]))
            continue
        assert whole(event["ts"])
        assert {("process_name", event["pid"]), ("thread_name", event["pid"])} <= named
        if event["ph"] == "C":
            assert event["args"]
            assert all(isinstance(value, int | float) for value in event["args"].values())
        else:
            assert whole(event["dur"])
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for found in slices.values():
        opened: list[int] = []
        for start, end in sorted(found, key=lambda span: (span[0], -span[1])):
            while opened and opened[-1] <= start:
                opened.pop()
            assert not opened or end <= opened[-1], "slices of a thread overlap"
            opened.append(end)
    return list(document["traceEvents"])


def timed(number: int, started_at: str, **values: Any) -> RunRecord:
    """A run of 40 ms with all parts, unless `values` say otherwise."""
    record = run_record(number=number)
    parts = {
        "elapsed_ns": 40_000_000, "push_ns": 10_000_000, "open_ns": 1_000_000, "load_ns": 5_000_000,
        "first_run_ns": 2_000_000, "warmup_ns": (1_000_000,), "latencies_ns": (4_000_000, 6_000_000), "host": "lab-1",
        "before": Conditions(battery_celsius=31.5, thermal_status=0, cpu_mhz=(1400, 2800), zones_celsius={"soc": 41.0}),
        "after": Conditions(battery_celsius=32.5, thermal_status=1),
    }  # fmt: skip
    result = msgspec.structs.replace(record.result, started_at=started_at, **(parts | values))
    return msgspec.structs.replace(record, result=result)


def slices(events: list[dict[str, Any]], category: str) -> list[tuple[str, int, int]]:
    return [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["cat"] == category]


def test_runs_lie_on_their_device_with_their_parts_nested_and_counters_beside() -> None:
    stage = StageTime(name="convert", steps=2, started_at="2026-01-01T00:00:00.000Z", elapsed_ns=900_000_000, host="h")
    events = read(encode_trace("mnist", "c1", [timed(0, "2026-01-01T00:00:01.000Z")], [stage]))
    assert slices(events, "stage") == [("convert", 0, 900_000)]
    assert slices(events, "run") == [("mnist/basic-fixed cpu", 1_000_000, 40_000)]
    assert slices(events, "part") == [
        ("push", 1_000_000, 10_000), ("open library", 1_010_000, 1_000), ("load model", 1_011_000, 5_000),
        ("first run", 1_016_000, 2_000), ("warm-up", 1_018_000, 1_000), ("timed", 1_019_000, 10_000),
    ]  # fmt: skip
    counters = [(e["name"], e["ts"], e["args"]) for e in events if e["ph"] == "C"]
    assert counters == [
        ("temperature (°C)", 1_000_000, {"soc": 41.0, "battery": 31.5}),
        ("frequency (MHz)", 1_000_000, {"cpu0": 1400, "cpu1": 2800}),
        ("thermal status", 1_000_000, {"status": 0}),
        ("temperature (°C)", 1_040_000, {"battery": 32.5}),
        ("thermal status", 1_040_000, {"status": 1}),
    ]
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert names == ["ort-mobile on h", "local of lab-1"]


def test_clocks_that_jump_failures_and_hostile_texts_leave_a_sound_trace() -> None:
    failure = Failure(code=FailureKind.CRASH, what=HOSTILE, remedy=HOSTILE)
    lost = RunResult(
        spec_id="s", device=HOSTILE, status=Status.FAILED, failure=failure, started_at="2026-01-01T00:00:01.000Z"
    )
    runs = [
        timed(0, "2026-01-01T00:00:01.000Z"),
        timed(1, "2026-01-01T00:00:01.010Z", open_ns=10**15),
        timed(2, "", elapsed_ns=0),
        timed(3, "2026-01-01T00:00:01.020Z", elapsed_ns=0, host=""),
        msgspec.structs.replace(run_record(), result=lost, model=HOSTILE),
    ]
    content = encode_trace(HOSTILE, "c1", runs, [])
    events = read(content)
    assert content == encode_trace(HOSTILE, "c1", runs, [])
    assert [start for _, start, _ in slices(events, "run")] == [20_000, 0, 40_000]
    (failed,) = (event for event in events if event.get("cat") == "failed")
    assert failed["args"]["failure"] == "crash"
    assert read(encode_trace("none", "c1", [], [])) == []


def test_samples_of_a_sustained_run_lie_where_they_were_taken() -> None:
    bins = (LatencyBin(start_ns=0, inferences=2, total_ns=9_000_000, min_ns=1, median_ns=2, max_ns=3),)
    samples = (DeviceSample(at_ns=3_000_000, mhz=1800, millidegrees=45_500), DeviceSample(at_ns=5_000_000))
    lasting = SustainedRun(bins=bins, samples=samples)
    run = timed(0, "2026-01-01T00:00:01.000Z", sustained=lasting, latencies_ns=(), after=Conditions())
    events = read(encode_trace("mnist", "c1", [run], []))
    (start,) = (start for name, start, _ in slices(events, "part") if name == "timed")
    found = [(e["name"], e["ts"], e["args"]) for e in events if e["ph"] == "C" and e["ts"] > start]
    assert found == [
        ("mean frequency (MHz)", start + 3_000, {"cpu": 1800}),
        ("processor (°C)", start + 3_000, {"cpu": 45.5}),
    ]


def test_stages_follow_and_contain_each_other_although_they_begin_at_whole_milliseconds() -> None:
    stages = [
        StageTime(name=name, steps=1, started_at=f"2026-01-01T00:00:00.{ms:03}Z", elapsed_ns=us * 1000, host="h")
        for name, ms, us in (("convert", 10, 10_900), ("reference", 20, 5_400), ("passes", 40, 20_000),
                             ("try", 45, 999), ("short", 70, 300), ("next", 70, 40_000))
    ]  # fmt: skip
    found = slices(read(encode_trace("mnist", "c1", [], stages)), "stage")
    assert sum(duration for _, _, duration in found) == sum(one.elapsed_ns // 1000 for one in stages)
    starts = {name: start for name, start, _ in found}
    assert (starts["reference"], starts["try"]) == (10_900, 35_000)


def test_stages_are_noted_when_they_fail_too() -> None:
    log = StageLog(NoProgress())
    with pytest.raises(ZeroDivisionError), log.stage("convert", 3):
        _ = 1 / 0
    (stage,) = log.stages
    assert (stage.name, stage.steps) == ("convert", 3)
    assert stage.elapsed_ns > 0
