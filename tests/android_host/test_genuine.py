"""Genuine Android libraries in processes of this computer: they load, compute what they should, and fail as typed."""

import importlib.metadata
import random
import re
import runpy
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from device_runner.android_host.build import unknown_imports
from device_runner.android_host.device import (
    AndroidHost,
    Driver,
    DriverProfile,
    DriverStage,
    Fault,
    FaultKind,
    Phone,
    ResultCode,
)
from device_runner.android_host.inspection import Session, ask, read_calls, summarize
from device_runner.device import open_device
from device_runner.library import LibraryFacts
from device_runner.local import wheel_library
from device_runner.result import FailureKind, Mark, Status
from device_runner.spec import OptimizationLevel
from tests.android_host.conftest import NEWEST, OLDEST, ROOT, fetch
from tests.android_host.runs import distance, failure, outputs, run

pytestmark = pytest.mark.android_host

PROVIDERS = ("cpu", "xnnpack", "nnapi")
FLOAT_TOLERANCE = 1e-4


@pytest.mark.parametrize("release", [NEWEST, "1.28.0", "1.26.0", OLDEST])
def test_every_import_of_every_library_is_known(release: str) -> None:
    library = fetch(release)
    assert unknown_imports(library.imports) == []
    assert library.release == release


@pytest.mark.parametrize("release", [NEWEST, OLDEST])
def test_a_device_by_release_says_that_it_is_no_phone(release: str, mnist: Path) -> None:
    fetch(release)
    with open_device(f"android-host:{release}?api_level=28") as device:
        result = run(device, mnist, provider="nnapi")
        assert result.status is Status.OK
        assert result.ort_version == release
        assert Mark.NOT_A_PHONE in result.marks
        assert device.facts().api_level == 28
        assert result.device == device.name


def test_the_folder_of_a_killed_process_goes_with_the_next(
    library: LibraryFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "ort-mobile-android-killed_1").mkdir()
    with AndroidHost("android-host", library):
        assert len(list(tmp_path.iterdir())) == 1
        assert not (tmp_path / "ort-mobile-android-killed_1").exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.sweep
def test_a_thousand_processes_in_turn(library: LibraryFacts, mnist: Path) -> None:
    with AndroidHost("android-host", library, Phone(api_level=29)) as device:
        results = [run(device, mnist, provider=PROVIDERS[turn % 3]) for turn in range(1000)]
    assert [result.failure for result in results if result.failure] == []


@pytest.mark.sweep
def test_three_hundred_sessions_in_one_process_do_not_grow(library: LibraryFacts, mnist: Path) -> None:
    questions = [(str(number), mnist, None) for number in range(300)]
    session = Session(level=OptimizationLevel.ALL, phone=Phone(api_level=29))
    answers = list(ask(library, questions, session))
    assert not any(answer.failed for answer in answers)
    assert answers[-1].resident_bytes <= answers[29].resident_bytes * 1.02


@pytest.mark.sweep
def test_cpu_outputs_are_bit_for_bit_the_wheels(library: LibraryFacts, real_models: list[Path], tmp_path: Path) -> None:
    installed = importlib.metadata.version("onnxruntime")
    if installed != library.release:
        pytest.skip(f"onnxruntime {installed} is installed; the library is of {library.release}")
    different = []
    with AndroidHost("android-host", library) as phone, open_device("local") as local:
        for model in real_models:
            theirs = outputs(run(phone, model, tmp_path / "phone"))
            ours = outputs(run(local, model, tmp_path / "local", library=str(wheel_library())))
            if any(array.tobytes() != theirs[name].tobytes() for name, array in ours.items()):
                different.append(model.name)
    assert different == []


def test_mnist_is_one_partition_from_level_28_on_and_two_activations_at_27(
    library: LibraryFacts, mnist: Path, tmp_path: Path
) -> None:
    found = {}
    for level in range(26, 32):
        record = tmp_path / f"{level}.jsonl"
        with AndroidHost("android-host", library, Phone(api_level=level, calls=record)) as device:
            assert run(device, mnist, provider="nnapi").status is Status.OK
        found[level] = summarize(read_calls(record)).partitions if record.is_file() else ()
    assert found[26] == ()
    assert found[27] == (("RELU",), ("RELU",))
    assert {len(found[level]) for level in range(28, 32)} == {1}


def test_the_page_of_recorded_calls_is_what_the_library_does() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "make_nnapi_calls.py"))["make_page"](fetch(NEWEST), NEWEST)
    assert page == (ROOT / "docs" / "reference" / "nnapi-calls.md").read_text("utf-8"), "docs/make_nnapi_calls.py"


@pytest.mark.sweep
def test_nnapi_computes_what_the_cpu_provider_computes(
    library: LibraryFacts, real_models: list[Path], tmp_path: Path
) -> None:
    """On float models of one partition. A model whose CPU outputs change as much when they are optimized amplifies
    rounding: MobileNetV2 with weights in a repeating pattern does, and is held to what it does by itself.
    """
    record = tmp_path / "calls.jsonl"
    compared, loose = [], []
    with AndroidHost("android-host", library, Phone(api_level=30, calls=record)) as device:
        for model in real_models:
            if "qdq" in model.name or "qop" in model.name:
                continue
            record.unlink(missing_ok=True)
            result = run(device, model, tmp_path / "nnapi", provider="nnapi")
            if not record.is_file() or len(summarize(read_calls(record)).partitions) != 1:
                continue
            nnapi, cpu = outputs(result), outputs(run(device, model, tmp_path / "cpu"))
            plain = outputs(run(device, model, tmp_path / "plain", level=OptimizationLevel.NONE))
            own = distance(cpu, plain)
            assert distance(cpu, nnapi) <= max(FLOAT_TOLERANCE, 1.5 * own), model.name
            compared.append(model.name)
            loose += [model.name] if own * 1.5 > FLOAT_TOLERANCE else []
    assert len(compared) >= 14
    assert all(name.startswith("mobilenet_v2") for name in loose), loose


def _families(folder: Path, pattern: str, each: int) -> list[Path]:
    families = defaultdict(list)
    for path in sorted(folder.rglob("*.onnx")):
        if re.match(pattern, path.parent.name):
            families[path.parent.name].append(path)
    chosen = random.Random(9)
    return [path for paths in families.values() for path in chosen.sample(paths, min(each, len(paths)))]


def _step(model: Path) -> dict[str, float]:
    """One quantization step of each float output that a DequantizeLinear gives; 1 for integers; 0 for others."""
    import onnx

    graph = onnx.load(model).graph
    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    steps = {output.name: 1.0 if output.type.tensor_type.elem_type in (2, 3) else 0.0 for output in graph.output}
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.input[1] in values:
            steps[node.output[0]] = float(np.max(values[node.input[1]]))
    return steps


@pytest.mark.sweep
def test_quantized_operators_are_within_one_step(library: LibraryFacts, op_models: Path, tmp_path: Path) -> None:
    record = tmp_path / "calls.jsonl"
    compared = 0
    with AndroidHost("android-host", library, Phone(api_level=30, calls=record)) as device:
        for model in _families(op_models, r"qdq_|qlinear", 4):
            record.unlink(missing_ok=True)
            cpu = run(device, model, tmp_path / "cpu", level=OptimizationLevel.NONE)
            nnapi = run(device, model, tmp_path / "nnapi", provider="nnapi", level=OptimizationLevel.NONE)
            if cpu.failure or nnapi.failure or not record.is_file():
                continue
            if len(summarize(read_calls(record)).partitions) != 1:
                continue
            compared += 1
            steps = _step(model)
            left, right = outputs(cpu), outputs(nnapi)
            for name, array in left.items():
                assert (np.isnan(array) == np.isnan(right[name])).all()
                apart = np.nanmax(np.abs(array.astype(np.float64) - right[name].astype(np.float64)), initial=0.0)
                room = max(1.001 * steps.get(name, 0.0), FLOAT_TOLERANCE * float(np.nanmax(np.abs(array), initial=0)))
                assert apart <= room, (model.parent.name, model.name)
    assert compared >= 40


UNCERTAIN = re.compile(r"random|bernoulli|multinomial|dropout")


@pytest.mark.sweep
def test_float_operators_agree(library: LibraryFacts, op_models: Path, tmp_path: Path) -> None:
    """Models that NNAPI refuses are left out: zero-size values, which NNAPI has no form for, and D.7 of the rules."""
    record = tmp_path / "calls.jsonl"
    operations: set[str] = set()
    with AndroidHost("android-host", library, Phone(api_level=30, calls=record)) as device:
        for model in _families(op_models, r"(?!qdq_|qlinear)", 2):
            if UNCERTAIN.match(model.parent.name):
                continue
            record.unlink(missing_ok=True)
            nnapi = run(device, model, tmp_path / "nnapi", provider="nnapi", level=OptimizationLevel.NONE)
            if nnapi.failure or not record.is_file():
                continue
            partitions = summarize(read_calls(record)).partitions
            cpu = run(device, model, tmp_path / "cpu", level=OptimizationLevel.NONE)
            if partitions and not cpu.failure:
                assert distance(outputs(cpu), outputs(nnapi)) <= FLOAT_TOLERANCE, (model.parent.name, model.name)
                operations |= {name for names in partitions for name in names}
    assert len(operations) >= 30, sorted(operations)


def _driver(**values: object) -> DriverProfile:
    driver = Driver(name="npu", feature_level=30)
    return DriverProfile(**{"devices": (driver,), **values})  # type: ignore[arg-type]  # by name


FAULTS = {
    "compile": (Fault(stage=DriverStage.COMPILE), FailureKind.PROVIDER_REFUSED),
    "model": (Fault(stage=DriverStage.MODEL, result=ResultCode.BAD_DATA), FailureKind.PROVIDER_REFUSED),
    "run": (Fault(stage=DriverStage.RUN), FailureKind.PROVIDER_REFUSED),
    "lost": (Fault(stage=DriverStage.RUN, kind=FaultKind.LOST), FailureKind.PROVIDER_REFUSED),
    "crash at compile": (Fault(stage=DriverStage.COMPILE, kind=FaultKind.CRASH), FailureKind.CRASH),
    "crash at run": (Fault(stage=DriverStage.RUN, kind=FaultKind.CRASH), FailureKind.CRASH),
    "hang": (Fault(stage=DriverStage.RUN, kind=FaultKind.HANG), FailureKind.TIMEOUT),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_a_driver_are_typed_results(library: LibraryFacts, mnist: Path, name: str) -> None:
    fault, kind = FAULTS[name]
    with AndroidHost("android-host", library, Phone(api_level=30, driver=_driver(faults=(fault,)))) as device:
        result = run(device, mnist, provider="nnapi", timeout_seconds=2.0)
        assert failure(result).code is kind
        assert failure(result).remedy
        assert run(device, mnist).status is Status.OK


def test_a_fault_may_come_late_and_pass(library: LibraryFacts, mnist: Path) -> None:
    """The probe runs twice here: the first inference, and a timed one."""
    fault = Fault(stage=DriverStage.RUN, first=3, count=1)
    with AndroidHost("android-host", library, Phone(api_level=30, driver=_driver(faults=(fault,)))) as device:
        assert run(device, mnist, provider="nnapi").status is Status.OK


def test_a_refused_operation_fails_the_session_as_on_a_phone(library: LibraryFacts, mnist: Path) -> None:
    driver = Driver(name="npu", feature_level=30, operations=("CONV_2D", "TRANSPOSE"))
    phone = Phone(api_level=30, driver=DriverProfile(devices=(driver,)))
    with AndroidHost("android-host", library, phone) as device:
        found = failure(run(device, mnist, provider="nnapi"))
    assert found.code is FailureKind.PROVIDER_REFUSED
    assert "npu" in found.what


def test_the_best_device_lowers_the_level(library: LibraryFacts, mnist: Path, tmp_path: Path) -> None:
    record = tmp_path / "calls.jsonl"
    driver = Driver(name="old", feature_level=27)
    phone = Phone(api_level=30, driver=DriverProfile(devices=(driver,)), calls=record)
    with AndroidHost("android-host", library, phone) as device:
        assert run(device, mnist, provider="nnapi").status is Status.OK
    assert summarize(read_calls(record)).partitions == (("RELU",), ("RELU",))


def test_delays_are_waited_for(library: LibraryFacts, mnist: Path) -> None:
    phone = Phone(api_level=30, driver=_driver(delays_ns={DriverStage.RUN: 30_000_000}))
    with AndroidHost("android-host", library, phone) as device:
        result = run(device, mnist, provider="nnapi")
    assert min(result.latencies_ns) >= 30_000_000


def test_a_crash_inside_the_library_is_a_result(library: LibraryFacts, op_models: Path) -> None:
    model = op_models / "split_parts" / "even_init_opset18.onnx"
    with AndroidHost("android-host", library, Phone(api_level=30)) as device:
        found = failure(run(device, model, provider="nnapi"))
    assert (found.code, found.signal) == (FailureKind.CRASH, "SIGFPE")


def test_a_crash_costs_one_answer(library: LibraryFacts, op_models: Path, mnist: Path) -> None:
    crashing = op_models / "split_parts" / "even_init_opset18.onnx"
    questions = [(str(i), path, None) for i, path in enumerate([mnist, crashing, mnist])]
    answers = list(ask(library, questions, Session(phone=Phone(api_level=30))))
    assert [answer.failed for answer in answers] == [False, True, False]
    assert answers[1].signal == "SIGFPE"


def test_a_negative_index_fails_at_run_as_on_a_phone(library: LibraryFacts, real_models: list[Path]) -> None:
    """NNAPI's GATHER takes no negative index; the provider claims and passes on a constant -1."""
    model = next(path for path in real_models if path.name == "lstm_classifier.base.onnx")
    with AndroidHost("android-host", library, Phone(api_level=30)) as device:
        found = failure(run(device, model, provider="nnapi"))
    assert found.code is FailureKind.PROVIDER_REFUSED
    assert "OP_FAILED" in found.what


def test_a_missing_provider_is_typed(library: LibraryFacts, mnist: Path) -> None:
    with AndroidHost("android-host", library) as device:
        assert failure(run(device, mnist, provider="SNPE")).code is FailureKind.PROVIDER_MISSING
