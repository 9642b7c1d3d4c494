"""Plugin execution providers: the claims provider and Qualcomm's as plugins in real sessions, and what forbids them."""

import importlib.util
import platform
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

import pipeline.partition.shown as claims
from device_runner.android_host.device import AndroidHost
from device_runner.build import build_library
from device_runner.errors import pip_install
from device_runner.library import LibraryFacts, read_facts
from device_runner.local import LocalDevice, wheel_library
from device_runner.plugins import installed_plugin, refused
from device_runner.probe.protocol import encode_request
from device_runner.providers import PROVIDERS
from device_runner.result import EpShare, Failure, FailureKind, Mark, RunResult, Status
from device_runner.spec import ElementType, HardwareType, Plugin, RunOptions, RunSpec, TensorFile, decode_spec, encode
from pipeline.partition import stand_in
from tests.android_host.conftest import NEWEST, fetch
from tests.ort_models import convert

Run = Callable[..., RunResult]
MNIST = Path(__file__).resolve().parents[2] / "build_configs" / "examples" / "mnist" / "mnist.onnx"
CHIP = {"soc_model": "57", "htp_arch": "75"}
QNN = RunOptions(provider="qnn", provider_options=CHIP)
CLAIMS = "OrtMobileClaims"

needs_recording = pytest.mark.skipif(
    tuple(map(int, version("onnxruntime").split(".")[:2])) < (1, 24),
    reason=f"onnxruntime {version('onnxruntime')} does not tell its claims",
)


@pytest.fixture(scope="session")
def plugin() -> Plugin:
    return Plugin(library=str(build_library(Path(claims.__file__).with_name("plugin"), stand_in.LIBRARY)))


def asked(tmp_path: Path, *nodes: str) -> RunOptions:
    """Options with which the claims provider claims these nodes."""
    listed = tmp_path / "claims"
    listed.write_bytes(stand_in.claims_file(nodes))
    return RunOptions(provider=CLAIMS, session_config={stand_in.CLAIMS: str(listed)})


def failure(result: RunResult) -> Failure:
    assert result.failure
    return result.failure


@needs_recording
def test_a_plugin_that_takes_no_node_fails_the_run(run: Run, plugin: Plugin, tmp_path: Path) -> None:
    result = run("sum.onnx", plugin=plugin, options=asked(tmp_path), dimensions={"N": 2})
    found = failure(result)
    assert (found.code, found.stage) == (FailureKind.PROVIDER_REFUSED, "load")
    assert found.what == "OrtMobileClaims took none of the model's 2 nodes"
    assert "soc_model" in found.remedy
    assert result.ep_shares == (EpShare(provider="CPUExecutionProvider", nodes=2, subgraphs=2),)
    offered = {(row.provider, row.vendor, row.type) for row in result.ep_devices}
    assert (CLAIMS, stand_in.VENDOR, HardwareType.CPU) in offered


@needs_recording
def test_a_node_that_it_takes_is_its_to_compute(run: Run, plugin: Plugin, tmp_path: Path) -> None:
    found = failure(run("sum.onnx", plugin=plugin, options=asked(tmp_path, "Add s"), dimensions={"N": 2}))
    assert found.code is FailureKind.MODEL_LOAD
    assert "kernel for Add(14) (node:'' ep:'OrtMobileClaims')" in found.what


@needs_recording
def test_a_device_of_another_type_is_not_offered(run: Run, plugin: Plugin, tmp_path: Path) -> None:
    npu = replace(plugin, device_type=HardwareType.NPU, name="claims")
    result = run("sum.onnx", plugin=npu, options=asked(tmp_path), dimensions={"N": 2})
    assert result.status is Status.SKIPPED
    assert failure(result).code is FailureKind.PROVIDER_MISSING
    assert (
        "offers no device of OrtMobileClaims of type NPU; there are: CPUExecutionProvider on CPU"
        in failure(result).what
    )


@needs_recording
def test_another_library_is_no_plugin(run: Run, probe: Path, tmp_path: Path) -> None:
    found = failure(run("sum.onnx", plugin=Plugin(library=str(wheel_library())), options=asked(tmp_path)))
    assert found.code is FailureKind.WRONG_LIBRARY
    assert "no plugin" in found.why


@pytest.fixture(scope="module")
def facts() -> LibraryFacts:
    return replace(read_facts(wheel_library()), release="1.31.0", kind="full")


@pytest.mark.parametrize(
    ("library", "changed", "said"),
    [
        ({"release": "1.23.2"}, {}, "1.23.2 does not load this plugin: it needs 1.24.0"),
        ({"kind": "minimal"}, {}, "minimal build"),
        ({"kind": "extended"}, {}, "minimal build"),
        ({"abi": "arm64-v8a"}, {}, "is for .*libonnxruntime is for arm64-v8a"),
        ({}, {"perf_test": "x"}, "perf_test"),
        ({}, {"model": "m.ort", "options": RunOptions(session_config={"ep.context_enable": "1"})}, "no context model"),
        ({}, {"plugin": Plugin(library="/nowhere.so")}, "no such file"),
        ({}, {"plugin": Plugin(library=__file__)}, "ELF"),
    ],
)
def test_what_cannot_be_is_refused_before_the_run(
    facts: LibraryFacts, plugin: Plugin, library: dict[str, str], changed: dict[str, object], said: str
) -> None:
    spec = replace(RunSpec(id="x", model="m.onnx", plugin=plugin, options=RunOptions(provider=CLAIMS)), **changed)
    assert refused(replace(spec, plugin=plugin, perf_test=None, model="m.onnx"), facts) is None
    found = refused(spec, replace(facts, **library))
    assert found
    assert found.remedy
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(found.what)


def test_qnn_needs_a_later_release_than_other_plugins(facts: LibraryFacts, plugin: Plugin) -> None:
    spec = RunSpec(id="x", model="m.onnx", plugin=plugin, options=QNN)
    old = refused(spec, replace(facts, release="1.24.1"))
    assert old
    assert "it needs 1.24.2" in old.what
    assert refused(spec, replace(facts, release="1.24.2")) is None
    assert refused(replace(spec, options=RunOptions(provider=CLAIMS)), replace(facts, release="1.24.1")) is None


def test_without_the_package_the_error_says_how_to_get_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime_qnn" else found(name))
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    result = run("null.onnx", options=QNN)
    assert (result.status, failure(result).code) == (Status.SKIPPED, FailureKind.PROVIDER_MISSING)
    assert failure(result).remedy == pip_install("onnxruntime-qnn")
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    package = PROVIDERS["qnn"].plugin
    assert package
    assert project["optional-dependencies"]["qnn"][0].startswith(package.distribution)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    elsewhere = installed_plugin("qnn")
    assert isinstance(elsewhere, Failure)
    assert "Linux on x86-64" in elsewhere.what


def test_a_request_names_a_plugin_only_where_there_is_one(plugin: Plugin) -> None:
    spec = RunSpec(id="x", model="m", options=QNN)
    assert b"set\0provider\0QNN\0" in encode_request(spec)
    assert b"plugin" not in encode_request(spec)
    npu = Plugin(library="/a.so", name="b", device_type=HardwareType.NPU)
    request = encode_request(replace(spec, plugin=npu))
    for triple in ("provider\0QNNExecutionProvider", "plugin\0/a.so", "plugin_name\0b", "device_type\0" + "2"):
        assert f"set\0{triple}\0".encode() in request


def test_specs_with_and_without_a_plugin_are_read() -> None:
    spec = RunSpec(id="x", model="m", plugin=Plugin(library="/a.so", files=("/b.so",)))
    assert decode_spec(encode(spec)) == spec
    before = msgspec.json.decode(encode(replace(spec, plugin=None)))
    del before["plugin"]
    assert decode_spec(msgspec.json.encode(before)).plugin is None


def picture(folder: Path) -> TensorFile:
    """An input of the MNIST model with some of everything."""
    values = (np.arange(784) % 7 / 7).astype("<f4")
    values.tofile(folder / "picture")
    return TensorFile(name="image", dtype=ElementType.FLOAT32, shape=(1, 1, 28, 28), file=str(folder / "picture"))


def classified(device: LocalDevice, folder: Path, model: Path = MNIST, options: RunOptions = QNN) -> RunResult:
    spec = RunSpec(
        id="x", model=str(model), options=options, inputs=(picture(folder),), outputs_folder=str(folder / device.name),
        min_runs=1, min_seconds=0.0, warmup=0,
    )  # fmt: skip
    return device.run(spec)


def values_of(result: RunResult) -> np.ndarray:
    assert result.status is Status.OK, result.failure
    return np.fromfile(result.outputs[0].file, "<f4")


@pytest.mark.npu
@pytest.mark.network
def test_an_android_library_and_this_computers_compute_the_same_on_the_npu(device: LocalDevice, tmp_path: Path) -> None:
    here = classified(device, tmp_path)
    assert [row.provider for row in here.ep_shares] == ["QNNExecutionProvider"]
    assert here.ep_shares[0].nodes >= 8
    assert (Mark.SIMULATED in here.marks, Mark.CPU_FALLBACK in here.marks) == (True, False)
    assert (here.latencies_ns, here.load_ns, here.memory_peak_bytes) == ((), 0, 0)  # a simulator's say nothing
    simulated = values_of(here)
    cpu = values_of(classified(device, tmp_path, options=RunOptions()))
    assert 0 < np.abs(simulated - cpu).max() < 1e-2 * np.abs(cpu).max()  # half precision
    with AndroidHost("android-host", fetch(NEWEST)) as phone:
        there = classified(phone, tmp_path)
    assert {Mark.SIMULATED, Mark.NOT_A_PHONE} <= set(there.marks)
    np.testing.assert_array_equal(values_of(there), simulated)


@pytest.mark.npu
def test_of_an_ort_format_file_nothing_is_recorded(device: LocalDevice, tmp_path: Path) -> None:
    result = classified(device, tmp_path, convert(MNIST, tmp_path / "m.ort"))
    loaded = values_of(result)
    np.testing.assert_array_equal(loaded, values_of(classified(device, tmp_path)))
    assert result.ep_shares == ()
    assert Mark.UNRECORDED in result.marks


@pytest.mark.npu
@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({}, FailureKind.BAD_OPTIONS, "computes in float32"),
        ({"soc_model": "57", "htp_arch": "73"}, FailureKind.BAD_OPTIONS, "Snapdragon 8 Gen 3 is V75"),
        ({"soc_model": "nope", "htp_arch": "75"}, FailureKind.BAD_OPTIONS, "soc_model=nope is no chip"),
        ({"soc_model": "99999", "htp_arch": "75"}, FailureKind.BAD_OPTIONS, "soc_model=99999 is no chip"),
        ({**CHIP, "backend_path": "/nowhere.so"}, FailureKind.PROVIDER_REFUSED, "took none of the model's"),
    ],
)
def test_what_would_silently_be_another_computation_fails(
    device: LocalDevice, tmp_path: Path, options: dict[str, str], kind: FailureKind, said: str
) -> None:
    found = failure(classified(device, tmp_path, options=RunOptions(provider="qnn", provider_options=options)))
    assert found.code is kind
    assert said in f"{found.what}; {found.why}"


@pytest.mark.npu
def test_a_chip_may_be_named(device: LocalDevice, tmp_path: Path) -> None:
    named = RunOptions(provider="qnn", provider_options={"soc_model": "SM8650"})
    result = classified(device, tmp_path, options=named)
    np.testing.assert_array_equal(values_of(result), values_of(classified(device, tmp_path)))
