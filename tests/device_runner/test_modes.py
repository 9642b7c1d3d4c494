"""Cold starts, sustained runs and warm-up that is found, with the real probe; and what a device may say of them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runner.local import LocalDevice, wheel_library
from device_runner.probe.protocol import ProbeAnswer, to_result
from device_runner.result import ColdStart, FailureKind, Mark, RunResult, Status
from device_runner.spec import RunSpec
from tests.values import present

Run = Callable[..., RunResult]

COLD = {"cold": True, "min_runs": 0, "min_seconds": 0.0, "warmup": 0}


def test_warmup_is_recorded_and_told_apart(run: Run) -> None:
    result = run("null.onnx", warmup="auto", min_runs=40)
    assert result.status is Status.OK, result.failure
    assert result.warmup is not None
    assert result.warmup.inferences == len(result.warmup_ns)
    assert len(result.warmup_ns) + len(result.latencies_ns) == 45
    assert result.warmup.why


def test_warmup_by_number_is_not_timed(run: Run) -> None:
    result = run("null.onnx", warmup=7)
    assert (result.warmup_ns, len(result.latencies_ns)) == ((), 3)
    assert result.warmup is not None
    assert (result.warmup.inferences, result.warmup.why) == (7, "as many as were asked for, not timed")


def test_a_cold_start_says_whether_it_was_one(device: LocalDevice, models: Path, tmp_path: Path) -> None:
    model, library = tmp_path / "own.onnx", tmp_path / Path(wheel_library()).name
    shutil.copy(models / "sum.onnx", model)
    shutil.copy(wheel_library(), library)
    spec = RunSpec(id="x", model=str(model), library=str(library), dimensions={"N": 2}, **COLD)  # type: ignore[arg-type]
    result = device.run(spec)
    assert result.status is Status.OK, result.failure
    cold = present(result.cold)
    assert (cold.model_bytes, cold.library_bytes) == (model.stat().st_size, library.stat().st_size)
    assert cold.cold == (cold.model_resident_bytes == 0)
    assert min(result.open_ns, result.load_ns, result.first_run_ns) > 0
    assert result.latencies_ns == ()


def test_what_another_process_has_mapped_stays_and_is_said(device: LocalDevice, models: Path, tmp_path: Path) -> None:
    import mmap

    model = tmp_path / "mapped.onnx"
    model.write_bytes((models / "sum.onnx").read_bytes())
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert mapped[0] is not None
        result = device.run(RunSpec(id="x", model=str(model), dimensions={"N": 2}, **COLD))  # type: ignore[arg-type]
    assert result.cold is not None
    assert not result.cold.cold
    assert result.cold.how.endswith("bytes of its file stayed in memory")


def test_a_sustained_run_gives_bins(run: Run) -> None:
    result = run("null.onnx", sustain_seconds=1.2)
    assert result.status is Status.OK, result.failure
    assert result.sustained is not None
    bins = result.sustained.bins
    assert 10 < len(bins) <= 300, "one for each stretch in which an inference began"
    assert all(0 < each.min_ns <= each.median_ns <= each.max_ns <= each.total_ns for each in bins)
    assert [each.start_ns for each in bins] == sorted({each.start_ns for each in bins})
    assert bins[0].start_ns < 10**8
    assert result.latencies_ns == ()
    assert result.memory_peak_bytes > 0
    assert len(result.sustained.samples) >= 1


def test_a_sustained_run_that_fails_says_why(run: Run) -> None:
    result = run("endless.onnx", sustain_seconds=0.5, timeout_seconds=1.0)
    assert present(result.failure).code == "timeout"


@pytest.mark.parametrize(
    "values",
    [{"sustain_seconds": 300.0}, {"sustain_seconds": 1.0, "perf_test": "x"}, {"cold": True, "perf_test": "x"}],
)
def test_what_cannot_be_meant_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"timeout_seconds|perf_test"):
        RunSpec(id="x", model="m", **values)  # type: ignore[arg-type]  # by name


@pytest.fixture(scope="module")
def answer() -> ProbeAnswer:
    plain = {"probe": 1, "status": "ok", "ort_code": 0, "log": [], "available_providers": [], "outputs": [], "crc32": 0,
             "latencies_ns": [], "nnapi": {"found": False, "level": 0, "devices": []}}  # fmt: skip
    texts = dict.fromkeys(("stage", "kind", "message", "signal", "ort_version", "stop", "profile"), "")
    numbers = ("open_ns", "load_ns", "first_run_ns", "memory_before_load_bytes", "memory_after_load_bytes",
               "memory_peak_bytes", "log_dropped")  # fmt: skip
    return msgspec.convert({**plain, **texts, **dict.fromkeys(numbers, 1000)}, ProbeAnswer)


@pytest.mark.parametrize(
    ("pages", "cold", "how"),
    [
        ([1000, 0, ""], True, "its pages were dropped from memory"),
        ([1000, 10, ""], True, "its pages were dropped from memory"),
        ([1000, 11, "Function not implemented"], False,
         "11 of 1000 bytes of its file stayed in memory (Function not implemented)"),
        ([1000, -1, ""], False, "the system does not say what of its file is in memory"),
        ([-1, -1, "No such file"], False, "the system does not say what of its file is in memory (No such file)"),
    ],
)  # fmt: skip
def test_cold_is_claimed_only_when_it_is_known(answer: ProbeAnswer, pages: object, cold: bool, how: str) -> None:
    told = msgspec.convert({**msgspec.to_builtins(answer), "model_pages": pages}, ProbeAnswer)
    result = to_result(RunSpec(id="x", model="m", **COLD), "d", told)  # type: ignore[arg-type]  # by name
    assert isinstance(result.cold, ColdStart)
    assert (result.cold.cold, result.cold.how) == (cold, how)


@given(st.lists(st.lists(st.integers(0, 10**15), min_size=6, max_size=6), max_size=5))
def test_bins_that_cannot_be_are_no_measurement(answer: ProbeAnswer, bins: list[list[int]]) -> None:
    told = msgspec.structs.replace(answer, bins=bins)
    result = to_result(RunSpec(id="x", model="m", sustain_seconds=1.0), "d", told)
    if result.status is Status.OK:
        assert all(each.min_ns <= each.median_ns <= each.max_ns for each in present(result.sustained).bins)
    else:
        assert present(result.failure).code == "garbage"


@pytest.mark.parametrize(("slower", "marks"), [(20, ()), (0, ()), (200, (Mark.UNSETTLED,))])
def test_a_warm_up_without_an_end_is_marked(answer: ProbeAnswer, slower: int, marks: tuple[Mark, ...]) -> None:
    falling = [2_000_000 - 5_000 * min(at, slower) for at in range(200)]
    told = msgspec.convert({**msgspec.to_builtins(answer), "latencies_ns": falling}, ProbeAnswer)
    assert to_result(RunSpec(id="x", model="m", warmup="auto"), "d", told).marks == marks


@pytest.mark.parametrize(("most_mb", "status"), [(1, Status.FAILED), (28, Status.FAILED), (1000, Status.OK)])
def test_a_process_has_no_more_private_memory_than_it_may(run: Run, most_mb: int, status: Status) -> None:
    result = run("sum.onnx", dimensions={"N": 2}, data_limit_bytes=most_mb * 10**6)
    assert result.status is status, result.failure
    if result.failure:
        assert result.failure.code is FailureKind.OUT_OF_MEMORY
        assert f"into {most_mb} MB of private memory" in result.failure.why
