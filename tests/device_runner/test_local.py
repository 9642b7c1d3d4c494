"""The probe on this computer with the real onnxruntime, as `local` and `linux-host`: numbers, outputs, failures."""

import contextlib
import importlib
import inspect
import itertools
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from device_runner import local
from device_runner.device import OPENERS, no_waiting, open_device
from device_runner.local import (
    PACKAGES,
    LocalDevice,
    end_runs,
    find_allocator,
    host_conditions,
    host_facts,
    run_group,
    wheel_library,
)
from device_runner.options import AFFINITY_KEY, MAPPED
from device_runner.result import Conditions, FailureKind, Mark, RunResult, Status
from device_runner.spec import (
    TYPES_BY_CODE,
    Allocator,
    Concurrency,
    ElementType,
    ExecutionMode,
    LogLevel,
    NnapiFlag,
    OptimizationLevel,
    RunOptions,
    RunSpec,
    TensorFile,
    cores_from_zero,
)
from tests.children import ends_soon
from tests.debian_packages import unpacked
from tests.onnx_samples import parsed_nodes
from tests.ort_models import convert
from tests.probe_models import save_model
from tests.threads import places_during
from tests.values import present

Run = Callable[..., RunResult]
DTYPE_NUMPY: dict[ElementType, str] = {
    kind: kind.value for kind in ElementType if kind not in (ElementType.BFLOAT16, ElementType.STRING)
}


def read(tensor: TensorFile) -> np.ndarray:
    return np.fromfile(tensor.file, dtype=DTYPE_NUMPY[tensor.dtype]).reshape(tensor.shape)


@pytest.mark.parametrize("model", ["wrong_rank.onnx", "wrong_size.onnx"])
def test_outputs_of_another_shape_than_declared_run(run: Run, library: str, model: str, tmp_path: Path) -> None:
    result = run(model, library=library, min_runs=20, outputs_folder=str(tmp_path))
    assert result.status is Status.OK, result.failure
    assert len(result.latencies_ns) == 20
    assert Mark.WRONG_SHAPE in result.marks
    assert {tensor.name: tensor.shape for tensor in result.outputs} == {"y": (1, 1, 3), "z": (3,)}
    assert Mark.WRONG_SHAPE not in run("null.onnx", library=library).marks


def test_a_null_model_is_measured(run: Run, library: str) -> None:
    result = run("null.onnx", library=library, min_runs=50)
    assert result.status is Status.OK, result.failure
    assert len(result.latencies_ns) == 50
    assert 0 < min(result.latencies_ns) < 1e7
    assert result.load_ns > 0
    assert result.first_run_ns > 0
    assert Path(library).name.endswith(result.ort_version)
    assert "CPUExecutionProvider" in result.available_providers
    assert 0 < result.memory_before_load_bytes <= result.memory_after_load_bytes <= result.memory_peak_bytes
    assert Mark.NOT_A_PHONE not in result.marks
    assert result.cold is None
    assert result.started_at.endswith("Z")


def test_outputs_are_those_of_onnxruntime(run: Run, library: str, models: Path, tmp_path: Path) -> None:
    values = {name: np.random.default_rng(7).standard_normal((5, 3)).astype(np.float32) for name in "ba"}
    inputs = []
    for name, value in values.items():
        value.tofile(tmp_path / name)
        inputs.append(TensorFile(name=name, dtype=ElementType.FLOAT32, shape=value.shape, file=str(tmp_path / name)))
    result = run("sum.onnx", library=library, inputs=tuple(inputs), outputs_folder=str(tmp_path / "out"))
    wanted = onnxruntime.InferenceSession(models / "sum.onnx").run(None, values)
    assert [tensor.name for tensor in result.outputs] == ["y", "s"]
    for tensor, array in zip(result.outputs, wanted, strict=True):
        np.testing.assert_array_equal(read(tensor), array)


def test_random_inputs_follow_the_seed(run: Run, tmp_path: Path) -> None:
    def output(folder: str, seed: int) -> np.ndarray:
        result = run("null.onnx", seed=seed, outputs_folder=str(tmp_path / folder))
        return read(result.outputs[0])

    first, again, other = output("a", 3), output("b", 3), output("c", 4)
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert ((first >= 0) & (first < 1)).all()
    assert len(np.unique(first)) == 4


@pytest.mark.parametrize("kind", sorted(set(TYPES_BY_CODE.values()) - {ElementType.STRING}))
def test_random_inputs_of_every_type(run: Run, models: Path, tmp_path: Path, kind: ElementType) -> None:
    code = next(code for code, name in TYPES_BY_CODE.items() if name is kind)
    nodes = parsed_nodes("y = Reshape (x, shape)")
    shape = {"shape": np.array([64, 16], np.int64)}
    save_model(models / f"{kind}.onnx", nodes, {"x": (code, [1024])}, {"y": (code, [64, 16])}, shape)
    result = run(f"{kind}.onnx", outputs_folder=str(tmp_path))
    assert result.status is Status.OK, result.failure
    (tensor,) = result.outputs
    assert (tensor.dtype, tensor.shape) == (kind, (64, 16))
    if kind is ElementType.BFLOAT16:
        values = (np.fromfile(tensor.file, np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        values = read(tensor)
    low, high = {"uint8": (0, 255), "int8": (-128, 127)}.get(kind, (0, 1))
    assert values.min() >= low
    assert values.max() <= high
    assert len(np.unique(values)) >= (
        2 if high == 1 and kind not in ("float16", "float32", "float64", "bfloat16") else 90
    )


@pytest.mark.parametrize(
    ("texts", "count", "brought"),
    [
        (["one", "ä\r\n"], 4, True),
        (["", ""], 3, True),
        (["one", "two"], 0, True),
        (["a\0b", "two"], 64, False),  # it would be two
        (["16 bytes with NUL"[:15]] * 2, 1 << 20, True),
        (["16 bytes and NUL."[:16]] * 2, 1 << 20, False),  # more than 16 MiB
    ],
)
def test_strings_come_back_as_they_are(
    run: Run, models: Path, tmp_path: Path, texts: list[str], count: int, brought: bool
) -> None:
    label = helper.make_node(
        "LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_int64s=[0, 1], values_strings=texts
    )
    ends = ((name, kind, [count]) for name, kind in (("x", TensorProto.INT64), ("y", TensorProto.STRING)))
    x, y = itertools.starmap(helper.make_tensor_value_info, ends)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
    model = helper.make_model(helper.make_graph([label], "g", [x], [y]), opset_imports=opsets, ir_version=8)
    (models / "labels.onnx").write_bytes(model.SerializeToString())
    result = run("labels.onnx", outputs_folder=str(tmp_path))
    assert result.status is Status.OK, result.failure
    assert [tensor.dtype for tensor in result.outputs] == [ElementType.STRING] * brought
    for tensor in result.outputs:
        strings = Path(tensor.file).read_bytes().decode().split("\0")
        assert tensor.shape == (count,)
        assert (len(strings), strings[-1]) == (count + 1, "")
        assert set(strings[:-1]) <= set(texts)


def test_symbolic_dimensions_get_their_sizes(run: Run, tmp_path: Path) -> None:
    result = run("sum.onnx", dimensions={"N": 7}, outputs_folder=str(tmp_path))
    assert [tensor.shape for tensor in result.outputs] == [(7, 2), (7, 3)]


def test_session_options_reach_onnxruntime(run: Run) -> None:
    options = RunOptions(
        intra_op_threads=1, inter_op_threads=2, execution_mode=ExecutionMode.PARALLEL, cpu_arena=False,
        memory_pattern=False, optimization_level=OptimizationLevel.BASIC,
        session_config={"session.intra_op.allow_spinning": "0", "a key": "b"},
    )  # fmt: skip
    result = run("sum.onnx", dimensions={"N": 1}, options=options, log_level=LogLevel.VERBOSE)
    assert result.status is Status.OK
    log = next(line for line in result.log if "Session Options" in line)
    for part in ("execution_mode:1", "enable_mem_pattern:0", "enable_cpu_mem_arena:0", "graph_optimization_level:1",
                 "thread_pool_size: 2", "session.intra_op.allow_spinning: 0", "a key: b"):  # fmt: skip
        assert part in log


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has core masks and nice values of threads")
@pytest.mark.parametrize("concurrent", [None, Concurrency(global_threads=True, seconds=0.2)])
def test_threads_of_the_pool_have_their_cores_and_nice_value(run: Run, concurrent: Concurrency | None) -> None:
    core = max(os.sched_getaffinity(0))
    options = RunOptions(intra_op_threads=3, thread_cores=str(core + 1), thread_nice=7)
    result, places = places_during(
        lambda: run("null.onnx", options=options, concurrent=concurrent, min_runs=1, min_seconds=0.3)
    )
    assert result.status is Status.OK, result.failure
    assert (str(core), 7) in places


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has core masks of threads")
def test_affinities_are_where_onnxruntime_puts_its_threads(run: Run) -> None:
    """Two threads beside the calling one, each with a group of its own."""
    first, last = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
    if first == last:
        pytest.skip("this process may run on one core only: two groups cannot be told apart")
    options = RunOptions(intra_op_threads=3, session_config={AFFINITY_KEY: f"{first + 1};{last + 1}"})
    result, places = places_during(lambda: run("null.onnx", options=options, min_runs=1, min_seconds=0.3))
    assert result.status is Status.OK, result.failure
    assert {str(first), str(last)} <= {cores for cores, _ in places}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has NUMA nodes in /sys, and core masks of threads")
def test_threads_stay_on_a_node_of_this_computer(run: Run) -> None:
    """The last one: the first of several is what `doctor` tries. Nice values tell the pool's threads from others."""
    nodes = host_facts("local").numa_nodes
    if not nodes:
        pytest.skip("this kernel tells of no NUMA nodes (/sys/devices/system/node)")
    options = RunOptions(intra_op_threads=3, thread_cores=nodes[-1], thread_nice=6)
    result, places = places_during(lambda: run("null.onnx", options=options, min_runs=1, min_seconds=0.3))
    assert result.status is Status.OK, result.failure
    masks = {",".join(f"{core}" for core in _cores_of(cores)) for cores, nice in places if nice == 6}
    assert masks == {",".join(map(str, cores_from_zero(nodes[-1])))}


def _cores_of(mask: str) -> list[int]:
    """The numbers of /proc's Cpus_allowed_list, as in 0-3,8."""
    return [core for part in mask.split(",") for core in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has core masks and nice values of threads")
def test_cores_that_are_not_there_are_an_error(run: Run) -> None:
    result = run("null.onnx", options=RunOptions(intra_op_threads=2, thread_cores="64"))
    assert result.failure
    assert result.failure.code is FailureKind.BAD_OPTIONS
    assert "may not run on these cores" in result.failure.why


@pytest.mark.network
@pytest.mark.parametrize("allocator", list(PACKAGES))
def test_an_allocator_stands_in_for_the_c_librarys(
    allocator: Allocator, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = find_allocator(allocator)
    if not file:
        package = unpacked(PACKAGES[allocator], with_dependencies=False, suite="bookworm")
        library = next(path for path in package.rglob(f"lib{allocator}.so.?") if path.is_file())
        file = str(shutil.copy(library, tmp_path))  # LD_PRELOAD takes no path with a space
        monkeypatch.setattr(local, "find_allocator", lambda _: file)
    monkeypatch.setenv("LD_DEBUG", "bindings")
    monkeypatch.setenv("LD_DEBUG_OUTPUT", str(tmp_path / "linker"))
    result = run("null.onnx", options=RunOptions(allocator=allocator), min_runs=1, min_seconds=0)
    assert result.status is Status.OK, result.failure
    bound = [line for file in tmp_path.glob("linker*") for line in file.read_text().splitlines()]
    of_library = [line for line in bound if "libonnxruntime" in line and "symbol `malloc'" in line]
    assert of_library
    assert all(f" to {Path(file).name}" in line.replace("/", " to ") for line in of_library)


def test_cores_of_numa_nodes_are_counted_from_one(tmp_path: Path) -> None:
    for node, cores in (("node0", "0-3,8-11"), ("node1", "4-7,12-15"), ("node2", "")):  # one of memory alone
        (tmp_path / "devices/system/node" / node).mkdir(parents=True)
        (tmp_path / "devices/system/node" / node / "cpulist").write_text(f"{cores}\n")
    assert host_facts("local", tmp_path).numa_nodes == ("1-4,9-12", "5-8,13-16")
    assert host_facts("local", tmp_path / "none").numa_nodes == ()


BAD = RunOptions(session_config={"session.intra_op_thread_affinities": "x"}, intra_op_threads=2)
BOTH = RunOptions(provider="nnapi", flags=(NnapiFlag.CPU_ONLY, NnapiFlag.CPU_DISABLED))
"""Where NNAPI is missing, that comes before what flags contradict."""
NUL = RunOptions(session_config={"a": "b\0set\0library\0x"})
FAILURES = [
    ("none.onnx", {}, FailureKind.MODEL_LOAD, "no such file"),
    ("empty.onnx", {}, FailureKind.MODEL_LOAD, ""),
    ("noise.ort", {}, FailureKind.MODEL_LOAD, "verification failed"),
    ("sum.onnx", {}, FailureKind.BAD_INPUT, "dimension 0 (N) is not fixed"),
    ("texts.onnx", {}, FailureKind.BAD_INPUT, "input x"),
    ("null.onnx", {"library": "/no/libonnxruntime.so"}, FailureKind.MISSING_LIBRARY, "/no/libonnxruntime.so"),
    ("null.onnx", {"options": BOTH}, FailureKind.PROVIDER_MISSING, "no NNAPI in this libonnxruntime"),
    ("null.onnx", {"options": RunOptions(provider="xnnpack")}, FailureKind.PROVIDER_MISSING, "XNNPACK"),
    ("null.onnx", {"options": RunOptions(provider="coreml")}, FailureKind.PROVIDER_MISSING, "CoreML"),
    ("null.onnx", {"options": RunOptions(provider="; reboot")}, FailureKind.PROVIDER_MISSING, "nknown provider name"),
    ("null.onnx", {"options": BAD}, FailureKind.BAD_OPTIONS, ""),
    ("null.onnx", {"options": NUL}, FailureKind.BAD_OPTIONS, "NUL"),
    ("null.onnx", {"model_sha256": "0" * 64}, FailureKind.MODEL_LOAD, "another digest"),
    ("endless.onnx", {"timeout_seconds": 1.0}, FailureKind.TIMEOUT, "first_run"),
]


@pytest.mark.parametrize(("model", "values", "kind", "text"), FAILURES)
def test_what_fails_is_a_typed_failure(
    run: Run, model: str, values: dict[str, object], kind: FailureKind, text: str
) -> None:
    result = run(model, **values)
    assert result.failure
    assert result.failure.code is kind, result.failure
    assert text in result.failure.what
    assert result.failure.why
    assert result.failure.remedy
    assert result.status is (Status.SKIPPED if kind is FailureKind.PROVIDER_MISSING else Status.FAILED)


@pytest.mark.parametrize(
    ("name", "kind", "shape", "content", "text"),
    [
        ("i", ElementType.INT64, (2,), bytes(15), "less"),
        ("i", ElementType.INT64, (2,), bytes(17), "more"),
        ("i", ElementType.INT32, (2,), bytes(8), "element type"),
        ("i", ElementType.INT64, (3,), bytes(24), "Got: 3 Expected: 2"),
        ("i", ElementType.INT64, (2,), np.array([0, 9]).tobytes(), "out of data bounds"),
        ("j", ElementType.INT64, (2,), bytes(16), "no input j"),
    ],
)
def test_bad_inputs_are_named(
    run: Run, tmp_path: Path, name: str, kind: ElementType, shape: tuple[int, ...], content: bytes, text: str
) -> None:
    (tmp_path / "raw").write_bytes(content)
    tensor = TensorFile(name=name, dtype=kind, shape=shape, file=str(tmp_path / "raw"))
    result = run("gather.onnx", inputs=(tensor,))
    assert result.failure
    assert result.failure.code is FailureKind.BAD_INPUT
    assert text in result.failure.what


@given(name=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=30))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_names_of_any_characters_survive(run: Run, tmp_path: Path, models: Path, name: str) -> None:
    kind = (TensorProto.FLOAT, [1])
    save_model(
        models / "named.onnx", [helper.make_node("Abs", [f"in {name}"], [name])], {f"in {name}": kind}, {name: kind}
    )
    np.ones(1, np.float32).tofile(tmp_path / "raw")
    tensor = TensorFile(name=f"in {name}", dtype=ElementType.FLOAT32, shape=(1,), file=str(tmp_path / "raw"))
    result = run("named.onnx", inputs=(tensor,), outputs_folder=str(tmp_path / "out"))
    assert [output.name for output in result.outputs] == [name], result.failure


def test_a_folder_that_cannot_be_written_is_said(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    failure = present(run("null.onnx", outputs_folder=str(tmp_path / "file" / "out")).failure)
    assert failure.code is FailureKind.DEVICE_ERROR
    assert str(tmp_path / "file") in failure.what


def test_the_loop_keeps_its_bounds(run: Run) -> None:
    long = run("null.onnx", min_runs=10, min_seconds=0.05)
    assert len(long.latencies_ns) > 10
    assert sum(long.latencies_ns) > 1e7
    short = run("null.onnx", min_runs=1_000_000, max_seconds=0.02)
    assert len(short.latencies_ns) < 1_000_000
    assert Mark.SHORT in short.marks


def fake_probe(folder: Path, script: str) -> LocalDevice:
    path = folder / "probe"
    path.write_text(f"#!/bin/sh\nPATH={os.defpath}\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return LocalDevice(path)


def spec_of(models: Path, **values: object) -> RunSpec:
    return RunSpec(id="x", model=str(models / "null.onnx"), **values)  # type: ignore[arg-type]  # by name


@pytest.mark.parametrize(
    ("script", "kind", "text"),
    [
        ("echo '{\"probe\": 1'; echo oh no >&2", FailureKind.GARBAGE, "oh no"),
        ("head -c 100000 /dev/urandom", FailureKind.GARBAGE, "begins"),
        ("exit 0", FailureKind.GARBAGE, "printed nothing"),
        ("kill -SEGV $$", FailureKind.CRASH, "SIGSEGV"),
    ],
)
def test_a_probe_gone_wrong_is_a_typed_failure(
    tmp_path: Path, models: Path, script: str, kind: FailureKind, text: str
) -> None:
    result = fake_probe(tmp_path, script).run(spec_of(models))
    assert result.failure
    assert (result.failure.code, result.status) == (kind, Status.FAILED)
    assert text in result.failure.what


def test_a_probe_that_hangs_dies_with_its_children(
    tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("device_runner.local.GRACE_SECONDS", 0.1)
    device = fake_probe(tmp_path, f"sleep 1000 & echo $! > {tmp_path}/pid; wait")
    result = device.run(spec_of(models, timeout_seconds=0.4))
    assert present(result.failure).code is FailureKind.TIMEOUT
    assert ends_soon(int((tmp_path / "pid").read_text()))


def test_the_work_folder_goes(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run("null.onnx")
    run("empty.onnx")
    assert list(tmp_path.iterdir()) == []


def test_facts_of_this_computer() -> None:
    facts = host_facts("local")
    assert facts.platform in ("linux", "macos")
    assert facts.memory_bytes > 1e8
    assert facts.page_bytes in (4096, 16384, 65536)
    assert facts.abis


def test_conditions_of_this_computer_are_what_linux_says(tmp_path: Path) -> None:
    files = {
        "devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "1400000\n",
        "devices/system/cpu/cpu10/cpufreq/scaling_cur_freq": "900000\n",
        "devices/system/cpu/cpu2/cpufreq/scaling_cur_freq": "2800000\n",
        "class/thermal/thermal_zone0/type": "x86_pkg_temp\n",
        "class/thermal/thermal_zone0/temp": "61000\n",
        "class/thermal/thermal_zone1/type": "no temp\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = host_conditions(tmp_path)
    assert found == Conditions(cpu_mhz=(1400, 2800, 900), zones_celsius={"x86_pkg_temp": 61.0})
    assert host_conditions(tmp_path / "none") == Conditions()


@pytest.fixture
def full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """TMPDIR on a file system with no room left."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, env={"PATH": os.defpath}, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system here: {mounted.stderr.decode().strip()}")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    subprocess.run(["umount", str(folder)], env={"PATH": os.defpath}, check=True)


@pytest.mark.parametrize("room_bytes", [0, 4096, 8192, 12288])
def test_a_full_disk_for_temporary_files_is_the_cause_and_not_garbage(
    run: Run, full_disk: Path, room_bytes: int
) -> None:
    """Wherever the room ends: at the request, at the answer, at an output."""
    with contextlib.suppress(OSError), (full_disk / "filling").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    os.truncate(full_disk / "filling", (full_disk / "filling").stat().st_size - room_bytes)
    result = run("null.onnx", min_runs=5000)
    assert result.failure is None or result.failure.code is FailureKind.NO_SPACE, result.failure
    assert room_bytes > 8192 or result.failure is not None
    if result.failure:
        assert "TMPDIR" in result.failure.remedy


def test_with_onnx_runtime_s_key_an_ort_file_is_read_where_it_is_mapped(run: Run, models: Path, library: str) -> None:
    side = 2048
    weights = np.zeros((side, side), np.float32)
    plain = save_model(
        models / "wide.onnx",
        parsed_nodes("y = MatMul (x, w)"),
        {"x": (TensorProto.FLOAT, [1, side])},
        {"y": (TensorProto.FLOAT, [1, side])},
        {"w": weights},
    )
    convert(plain, models / "wide.ort")
    grown = {}
    for name, loading in (("mapped", MAPPED), ("path", {})):
        options = RunOptions(session_config={"session.disable_prepacking": "1", **loading})
        result = run("wide.ort", library=library, options=options)
        assert result.status is Status.OK, result.failure
        grown[name] = result.memory_after_load_bytes - result.memory_before_load_bytes
    assert grown["path"] - grown["mapped"] > 0.8 * weights.nbytes
    assert run("null.onnx", library=library, options=RunOptions(session_config=MAPPED)).status is Status.OK
    missing = run("none.ort", library=library, options=RunOptions(session_config=MAPPED)).failure
    assert missing
    assert missing == run("none.ort", library=library).failure


def test_what_runs_in_other_threads_is_ended_and_gives_no_result(tmp_path: Path) -> None:
    ended: list[type[BaseException]] = []

    def work() -> None:
        try:
            sleeper = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"  # `sleep` may be missing
            run_group([sys.executable, "-c", sleeper], tmp_path, 60.0, os.environ)
        except KeyboardInterrupt as error:
            ended.append(type(error))

    thread = threading.Thread(target=work)
    thread.start()
    while not (tmp_path / "stdout").is_file() or not (tmp_path / "stdout").read_text():
        time.sleep(0.01)
    end_runs()
    thread.join(20.0)
    assert ended == [KeyboardInterrupt]
    with pytest.raises(ProcessLookupError):
        os.killpg(int((tmp_path / "stdout").read_text()), 0)


def test_the_folder_of_a_killed_process_goes_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "ort-mobile-linux-left0123").mkdir()
    with open_device(f"linux-host:{wheel_library()}") as device:
        assert device.facts().platform == "linux"
        assert len(list(tmp_path.iterdir())) == 1
        assert not (tmp_path / "ort-mobile-linux-left0123").exists()
    assert list(tmp_path.iterdir()) == []


def test_an_allocator_that_is_not_installed_is_an_error(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "find_allocator", lambda _: "")
    spec = RunSpec(id="m", model=str(models / "null.onnx"), options=RunOptions(allocator=Allocator.JEMALLOC))
    with open_device(f"linux-host:{wheel_library()}") as device:
        result = device.run(spec)
    assert result.failure
    assert (result.failure.what, result.failure.remedy) == (
        "jemalloc is not installed", "apt-get install libjemalloc2"
    )  # fmt: skip


@pytest.mark.parametrize("text", OPENERS.values())
def test_every_kind_of_device_can_be_opened_with_a_way_to_wait(text: str) -> None:
    module, _, function = text.partition(":")
    inspect.signature(getattr(importlib.import_module(module), function)).bind("rest", no_waiting)
