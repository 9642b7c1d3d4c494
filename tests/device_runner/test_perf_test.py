"""onnxruntime_perf_test: its command line, its input files, and its output, recorded from a real one of 1.21.0."""

import math
import subprocess
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from device_runner.build import build_probe
from device_runner.local import LocalDevice, wheel_library
from device_runner.perf_test import Ended, arguments, refusal, tensor_proto, to_result
from device_runner.profile import read_profile
from device_runner.result import FailureKind, Mark, Status
from device_runner.spec import (
    ElementType,
    ExecutionMode,
    NnapiFlag,
    OptimizationLevel,
    RunOptions,
    RunSpec,
    TensorFile,
)
from tests.perf_tests import real_perf_test, stand_in
from tests.values import present

EXAMPLE = Path(__file__).resolve().parents[2] / "build_configs" / "examples" / "mnist" / "mnist.onnx"
SPEC = RunSpec(id="x", model="m.onnx", min_runs=3, warmup=1, perf_test="onnxruntime_perf_test")
STDOUT = """Setting intra_op_num_threads to 2
Session creation time cost: 0.0164401 s
First inference time cost: 4 ms
Total inference time cost: 0.000250513 s
Total inference requests: 3
Average inference time cost: 0.0501026 ms
Total inference run time: 0.00968402 s
Number of inferences per second: 516.315 
Avg CPU usage: -1 %
Peak working set size: 27025408 bytes
"""  # noqa: W291 # so it prints
CSV = "a,b,0.00016079,27025408,0,0\na,b,2.4677e-05,27025408,0,1\na,b,2.2012e-05,27025408,0,2\n"


def ended(code: int = 0, stdout: str = STDOUT, stderr: str = "", csv: str = CSV) -> Ended:
    return subprocess.CompletedProcess([], code, stdout, stderr), csv, None


NNAPI_MISSING = (
    "/src/onnxruntime/test/perftest/ort_test_session.cc:344 onnxruntime::perftest::OnnxRuntimeTestSession::"
    "OnnxRuntimeTestSession(Ort::Env&, std::random_device&, const onnxruntime::perftest::PerformanceTestConfig&, "
    "const TestModelInfo&) NNAPI is not supported in this build\n\n"
)


def line(**options: Any) -> str:
    spec = msgspec.structs.replace(SPEC, options=RunOptions(**options))
    return " ".join(arguments(spec, "model.onnx"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "-r 3 -e cpu -o 99 -I -S 0 ./model.onnx result.csv"),
        (
            {"provider": "nnapi", "flags": (NnapiFlag.USE_FP16, NnapiFlag.CPU_DISABLED)},
            "-e nnapi -i NNAPI_FLAG_USE_FP16 NNAPI_FLAG_CPU_DISABLED -o",
        ),
        ({"provider": "coreml", "provider_options": {"ModelFormat": "MLProgram", "A": "1"}}, "-i A|1 ModelFormat|ML"),
        ({"intra_op_threads": 2}, "-x 2 -o"),
        ({"inter_op_threads": 3, "execution_mode": ExecutionMode.PARALLEL}, "-y 3 -o 99 -P"),
        ({"cpu_arena": False, "memory_pattern": False}, "-A -M"),
        ({"optimization_level": OptimizationLevel.EXTENDED}, "-o 2"),
        ({"session_config": {"session.b": "1", "session.a": "x|y"}}, "-C session.a|x|y session.b|1"),
    ],
)
def test_options_are_its_letters(options: dict[str, Any], said: str) -> None:
    assert said in line(**options)


def test_amounts_inputs_dimensions_and_profiles() -> None:
    spec = msgspec.structs.replace(SPEC, warmup=4, min_seconds=1.5, seed=2**40 + 7, dimensions={"batch": 2})
    assert arguments(spec, "m.ort")[:2] == ["-r", "6"]
    assert arguments(spec, "m.ort", by_seconds=True)[:2] == ["-t", "2"]
    assert " ".join(arguments(spec, "m.ort")).endswith("-I -S 7 -f batch:2 ./m.ort result.csv")
    tensor = TensorFile(name="x", dtype=ElementType.FLOAT32, shape=(1,), file="x")
    given_ = msgspec.structs.replace(spec, inputs=(tensor,), profile=True, outputs_folder="o")
    assert " ".join(arguments(given_, "m.ort")).endswith("-o 99 -p profile ./m.ort result.csv")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (RunOptions(provider="hypothetical"), "no such provider"),
        (RunOptions(provider="cuda", device_tensors=True), "copies inputs"),
        (RunOptions(session_config={"session.x": "a b"}), "no blanks"),
        (RunOptions(session_config={"session|x": "a"}), "no blanks"),
        (RunOptions(session_config={"session.x": ""}), "no blanks"),
        (RunOptions(provider="xnnpack", provider_options={"intra_op_num_threads": "4"}), "XNNPACK"),
        (RunOptions(provider="xnnpack", session_config={"session.intra_op.allow_spinning": "1"}), "spinning"),
    ],
)
def test_what_it_cannot_do_is_said_before(options: RunOptions, told: str) -> None:
    failure = present(refusal(msgspec.structs.replace(SPEC, options=options)))
    assert told in failure.what
    assert failure.remedy


def test_a_dimension_that_it_would_split_needs_inputs() -> None:
    failure = present(refusal(msgspec.structs.replace(SPEC, dimensions={"a:b": 1})))
    assert "a:b" in failure.what
    assert refusal(msgspec.structs.replace(SPEC, dimensions={"a": 1})) is None


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    st.sampled_from([np.float32, np.int64, np.uint8, np.bool_]),
    st.lists(st.integers(0, 300), max_size=3).filter(lambda shape: math.prod(shape) < 5000),
)
def test_inputs_are_tensor_protos(name: str, dtype: type, shape: list[int]) -> None:
    array: np.ndarray[Any, Any] = np.zeros(shape, dtype)
    tensor = TensorFile(name=name, dtype=ElementType(np.dtype(dtype).name), shape=tuple(shape), file="")
    proto = onnx.TensorProto()
    proto.ParseFromString(tensor_proto(tensor, array.tobytes()))
    assert proto.name == name
    read = numpy_helper.to_array(proto)
    assert (read.shape, read.dtype) == (array.shape, array.dtype)


def test_what_a_real_one_printed_is_read_and_nothing_is_invented() -> None:
    result = to_result(SPEC, "d", ended(), exact=True)
    assert result.status is Status.OK
    assert result.latencies_ns == (160790, 24677, 22012)
    assert (result.load_ns, result.first_run_ns, result.memory_peak_bytes) == (16_440_100, 4_000_000, 27_025_408)
    assert result.marks == (Mark.PERF_TEST,)
    absent = (result.outputs, result.labelled_outputs, result.ort_version, result.memory_after_load_bytes)
    assert absent == ((), None, "", 0)


def test_further_warm_up_runs_are_dropped_and_few_runs_are_marked() -> None:
    spec = msgspec.structs.replace(SPEC, warmup=3, min_runs=1)
    assert to_result(spec, "d", ended(), exact=True).latencies_ns == (22012,)
    few = to_result(msgspec.structs.replace(SPEC, min_runs=20), "d", ended(), exact=False)
    assert few.marks == (Mark.PERF_TEST, Mark.SHORT)
    falling = "".join(f"a,b,{2e-3 - 5e-6 * at:.7f},27025408,0,{at}\n" for at in range(200))
    slow = to_result(msgspec.structs.replace(SPEC, warmup="auto"), "d", ended(csv=falling), exact=False)
    assert slow.marks == (Mark.PERF_TEST, Mark.UNSETTLED)


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (ended(255, "", NNAPI_MISSING), FailureKind.PROVIDER_MISSING),
        (ended(255, "perf_test [options...] model_path [result_file]\n"), FailureKind.BAD_OPTIONS),
        (ended(-11, ""), FailureKind.CRASH),
        (ended(-9, ""), FailureKind.OUT_OF_MEMORY),
        (ended(255, "Run failed:failed to initialize.\n"), FailureKind.RUN_ERROR),
        (ended(1, "", "x: version `VERS_1.21.0' not found (required by x)"), FailureKind.WRONG_LIBRARY),
        (ended(csv=CSV[:-3]), FailureKind.GARBAGE),
        (ended(stdout=""), FailureKind.GARBAGE),
        (ended(csv=CSV.replace("2.4677e-05", "nan")), FailureKind.GARBAGE),
        (ended(csv=CSV.replace("2.4677e-05", "-1")), FailureKind.GARBAGE),
    ],
)
def test_what_goes_wrong_has_its_kind(wrong: Ended, kind: FailureKind) -> None:
    spec = msgspec.structs.replace(SPEC, options=RunOptions(provider="nnapi"))
    result = to_result(spec, "d", wrong, exact=True)
    assert result.failure
    assert result.failure.code is kind
    assert result.failure.why
    assert result.failure.remedy
    assert result.latencies_ns == ()


@given(st.integers(0, 2), st.integers(0, 120), st.integers(0, 255))
def test_a_garbled_byte_never_gives_another_number_of_runs(which: int, at: int, byte: int) -> None:
    lines = CSV.splitlines(keepends=True)
    lines[which] = lines[which][:at] + chr(byte) + lines[which][at + 1 :]
    result = to_result(SPEC, "d", ended(csv="".join(lines)), exact=True)
    assert len(result.latencies_ns) in (0, 3)


@pytest.fixture(scope="module")
def local() -> LocalDevice:
    return LocalDevice(build_probe())


def spec_with(program: Path, **more: Any) -> RunSpec:
    return RunSpec(**{"id": "x", "model": str(EXAMPLE), "perf_test": str(program), "min_runs": 5, **more})


def tensor_file(folder: Path) -> TensorFile:
    data = np.random.default_rng(0).random((1, 1, 28, 28), np.float32).tobytes()
    (folder / "x.raw").write_bytes(data)
    proto = onnx.load_model(EXAMPLE, load_external_data=False)
    shape = tuple(dim.dim_value or 1 for dim in proto.graph.input[0].type.tensor_type.shape.dim)
    return TensorFile(
        name=proto.graph.input[0].name, dtype=ElementType.FLOAT32, shape=shape, file=str(folder / "x.raw"),
        crc32=zlib.crc32(data),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("behaviour", "kind"), [(0, None), (1, FailureKind.CRASH), (2, FailureKind.TIMEOUT), (3, FailureKind.GARBAGE)]
)
def test_its_process(local: LocalDevice, tmp_path: Path, behaviour: int, kind: FailureKind | None) -> None:
    seconds = 1.0 if behaviour == 2 else 30.0
    spec = spec_with(stand_in(tmp_path, behaviour), timeout_seconds=seconds, inputs=(tensor_file(tmp_path),))
    result = local.run(spec)
    assert (result.failure and result.failure.code) == kind
    assert result.started_at
    if kind is None:
        assert len(result.latencies_ns) == 50_000 - 2, "5 runs do not fill 0.2 s, so it was told to count seconds"


def test_a_program_that_is_none_is_told(local: LocalDevice, tmp_path: Path) -> None:
    result = local.run(spec_with(tmp_path / "none"))
    assert "onnxruntime_perf_test is not there" in present(result.failure).why


def test_one_that_has_the_library_within_takes_no_other(local: LocalDevice, tmp_path: Path) -> None:
    result = local.run(spec_with(stand_in(tmp_path, 0), library=str(wheel_library())))
    assert present(result.failure).code is FailureKind.WRONG_LIBRARY


def test_the_real_one(local: LocalDevice, tmp_path: Path) -> None:
    program = real_perf_test()
    result = local.run(spec_with(program, inputs=(tensor_file(tmp_path),), min_seconds=0.0))
    assert result.failure is None, result.failure
    assert len(result.latencies_ns) == 5
    assert result.load_ns > 0
    assert result.memory_peak_bytes > 1_000_000
    made = local.run(spec_with(program, min_seconds=0.5))
    assert sum(made.latencies_ns) > 5e8
    profiled = local.run(spec_with(program, profile=True, outputs_folder=str(tmp_path / "o"), min_seconds=0.0))
    assert {row.operator for row in read_profile(Path(str(profiled.profile_file))).operators} >= {"Conv", "MaxPool"}
    for options, kind in (
        (RunOptions(provider="nnapi"), FailureKind.PROVIDER_MISSING),
        (RunOptions(session_config={"session.intra_op_thread_affinities": "x"}), FailureKind.BAD_OPTIONS),
    ):
        failed = local.run(spec_with(program, options=options))
        assert present(failed.failure).code is kind
