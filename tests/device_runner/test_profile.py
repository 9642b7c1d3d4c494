"""Profiles: read from what ONNX Runtime writes, refused when broken, and shown by `ort-mobile perf --profile`."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runner.errors import RunnerError
from device_runner.profile import CPU, read_profile
from pipeline.report.profiles import Profiled, memory, profile_parts
from pipeline.report.wording import Listing
from tests.command import ort_mobile

EXAMPLE = Path(__file__).resolve().parents[2] / "build_configs" / "examples" / "mnist" / "mnist.onnx"
NNAPI = "NnapiExecutionProvider"


def node(name: str, operator: str, provider: str, ts: int, dur: int, index: str) -> dict[str, object]:
    args = {"op_name": operator, "provider": provider, "node_index": index, "thread_scheduling_stats": ""}
    return {"cat": "Node", "name": name, "ts": ts, "dur": dur, "args": args}


def events() -> list[dict[str, object]]:
    """Two inferences with two NNAPI partitions and an Add between; the first takes ten times as long."""
    found: list[dict[str, object]] = [
        {"cat": "Session", "name": "session_initialization", "ts": 0, "dur": 9, "args": {}}
    ]
    for start, slow in ((100, 10), (1000, 1)):
        found += [
            node("Nnapi_12_0_kernel_time", "Nnapi_12_0", NNAPI, start + 1, 30 * slow, "4"),
            node("add_fence_before", "Add", CPU, start + 32, 5, "1"),
            node("add_kernel_time", "Add", CPU, start + 32, 10 * slow, "1"),
            node("Nnapi_12_1_kernel_time", "Nnapi_12_1", NNAPI, start + 43, 60 * slow, "5"),
            {"cat": "Session", "name": "model_run", "ts": start, "dur": 110 * slow, "args": {"x": [1]}},
        ]
    return found


def test_times_partitions_and_shares(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps(events()))
    profile = read_profile(tmp_path / "p.json")
    assert profile.inferences == 1
    assert profile.partitions == {NNAPI: 2}
    assert [(row.operator, row.provider, row.nodes, row.nanoseconds) for row in profile.operators] == [
        ("(partition)", NNAPI, 2, 90_000.0),
        ("Add", CPU, 1, 10_000.0),
    ]
    assert [row.share for row in profile.operators] == [0.9, 0.1]


def test_an_interruption_does_not_count(tmp_path: Path) -> None:
    found: list[dict[str, object]] = []
    for number, dur in enumerate((9, 9, 5, 5, 6, 6, 7, 7, 100_000)):
        found.append(node("add_kernel_time", "Add", CPU, 100 * number + 1, dur, "0"))
        found.append({"cat": "Session", "name": "model_run", "ts": 100 * number, "dur": 10 * dur, "args": {}})
    (tmp_path / "p.json").write_text(json.dumps(found))
    profile = read_profile(tmp_path / "p.json")
    (only,) = profile.nodes
    assert (only.name, only.operator, only.nanoseconds) == ("add", "Add", 6_500.0)
    assert profile.inference_ns == 65_000.0


def test_copies_and_memory_are_counted_and_what_is_outside_of_nodes(tmp_path: Path) -> None:
    trace: list[dict[str, object]] = []
    for start in (0, 1000, 2000):
        for place, (operator, written) in enumerate((("Conv", 4000), ("MemcpyToHost", 400), ("Softmax", 400))):
            row = node(f"n{place}_kernel_time", operator, CPU, start + 1 + place, 20, str(place))
            sizes = {"output_size": str(written), "mem_in_use_peak": str(5000 + start), "mem_arena_held": "1048576"}
            trace.append({**row, "args": {**row["args"], **sizes}})  # type: ignore[dict-item]
        trace.append({"cat": "Session", "name": "model_run", "ts": start, "dur": 100, "args": {}})
    (tmp_path / "p.json").write_text(json.dumps(trace))
    profile = read_profile(tmp_path / "p.json")
    assert (profile.written_bytes, profile.copied_bytes) == (4800, 400)
    assert (profile.inference_ns, profile.overhead_ns) == (100_000.0, 40_000.0)
    assert (profile.peak_bytes, profile.arena_bytes) == (7000, 1 << 20)


LOG = (
    "W Add a",
    "I x: Add MemcpyFromHost after f g for WebGpuExecutionProvider",
    "I x: Add MemcpyToHost before a for WebGpuExecutionProvider",
)


@pytest.mark.parametrize(
    ("log", "numbers", "names"),
    [
        (LOG, "12 11", ["f g", "a"]),
        (LOG, "13 11", ["", ""]),  # of two graphs
        (LOG[:2], "12 11", ["", ""]),
        (LOG[::-1], "12 11", ["", ""]),
        ((), "12 11", ["", ""]),
        (LOG, "", []),
    ],
)
def test_each_copy_has_value_direction_bytes_and_time(
    tmp_path: Path, log: tuple[str, ...], numbers: str, names: list[str]
) -> None:
    trace: list[dict[str, object]] = []
    for start in (0, 1000, 2000):
        trace.append({"cat": "Session", "name": "model_run", "ts": start, "dur": 100, "args": {}})
        for number, operator, size in zip(numbers.split(), ("MemcpyToHost", "MemcpyFromHost"), (400, 8), strict=False):
            row = node(f"Memcpy{number}_kernel_time", operator, "WebGpuExecutionProvider", start + 1, size // 4, number)
            trace.append({**row, "args": {**row["args"], "output_size": str(size)}})  # type: ignore[dict-item]
    (tmp_path / "p.json").write_text(json.dumps(trace))
    profile = read_profile(tmp_path / "p.json", log)
    assert [row.value for row in profile.copies] == names
    facts = [(False, 8, 2_000.0), (True, 400, 100_000.0)][: len(names)]
    assert [(row.to_host, row.size_bytes, row.nanoseconds) for row in profile.copies] == facts
    parts = profile_parts([Profiled(name="m", run="r", provider="webgpu", profile=profile)])
    shown = [len(part.rows) for part in parts if isinstance(part, Listing) and part.head[0] == "Value"]
    assert shown == ([2] if names else [])


def test_what_a_partition_copies_is_not_told_apart(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps(events()))
    text = "; ".join(memory(read_profile(tmp_path / "p.json")))
    assert "a partition copies within its one kernel: the profile cannot tell that from computing" in text


TEXT = json.dumps(events()).encode()


def test_a_profile_is_read_gzipped_as_well(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_bytes(TEXT)
    (tmp_path / "p.json.gz").write_bytes(gzip.compress(TEXT))
    assert read_profile(tmp_path / "p.json.gz") == read_profile(tmp_path / "p.json")


@given(
    st.binary(max_size=200)
    | st.integers(0, 500).map(lambda size: TEXT[:size])
    | st.integers(0, len(gzip.compress(TEXT)) - 1).map(lambda size: gzip.compress(TEXT)[:size])
)
def test_what_is_no_profile_is_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "broken.json"
    path.write_bytes(data)
    with pytest.raises(RunnerError):
        read_profile(path)


def test_perf_profiles_on_request(tmp_path: Path) -> None:
    arguments = [str(EXAMPLE), "--rounds", "1", "--min-runs", "3", "--min-seconds", "0.001", "--profile", str(tmp_path)]
    ended = ort_mobile("perf", *arguments)
    assert ended.code == 0, ended.text
    (told,) = json.loads((tmp_path / "profiles.json").read_text())
    trace = json.loads(gzip.decompress(Path(told["file"]).read_bytes()))
    assert {"cat", "name", "ph", "ts", "dur", "pid", "tid"} <= set(trace[-1])  # what Perfetto reads
    operators = {row["operator"]: row for row in told["profile"]["operators"]}
    assert operators["MaxPool"]["nodes"] == 2
    assert sum(row["share"] for row in operators.values()) == pytest.approx(1.0)
    assert told["profile"]["partitions"] == {}
    assert told["profile"]["written_bytes"] > 16 * 14 * 14 * 4  # the second convolution alone
    assert "an inference writes " in ended.text
    assert "callers:" not in ended.text
    assert "Profile of mnist.onnx, cpu" in ended.text
    assert told["file"] in ended.text


def test_a_profile_that_was_asked_for_and_failed_is_a_failure_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(path: Path, log: object) -> None:
        raise RunnerError(f"{path.name} is no profile")

    monkeypatch.setattr("device_runner.profile.read_profile", unreadable)
    arguments = [str(EXAMPLE), "--rounds", "1", "--min-runs", "3", "--min-seconds", "0.001", "--profile", str(tmp_path)]
    ended = ort_mobile("perf", *arguments, "--json", "-", code=1)
    assert "no profile of mnist.onnx, cpu: " in ended.err
    assert len(ended.document()["rows"]) == 1  # what was measured is not lost


def test_perf_measures_equal_files_once(tmp_path: Path) -> None:
    copy = tmp_path / "copy.onnx"
    copy.write_bytes(EXAMPLE.read_bytes())
    arguments = [str(EXAMPLE), str(copy), "--rounds", "2", "--min-runs", "2", "--min-seconds", "0.001"]
    done = ort_mobile("perf", *arguments, "--profile", tmp_path / "p", "--json", tmp_path / "r.json")
    assert done.code == 0, done.text
    first, second = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert (first["same_as"], second["same_as"]) == ("", "mnist.onnx/cpu")
    assert second["statistics"] == first["statistics"]
    assert len(json.loads((tmp_path / "p" / "profiles.json").read_text())) == 1
