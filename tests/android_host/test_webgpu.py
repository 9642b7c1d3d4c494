"""WebGPU of genuine libraries on a Vulkan driver that computes on the CPU."""

import ctypes.util
import json
import subprocess
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from device_runner.android_host.device import AndroidHost, Phone
from device_runner.build import host_compiler
from device_runner.device import Device, open_device
from device_runner.library import LibraryFacts
from device_runner.result import FailureKind, Mark, RunResult
from device_runner.spec import Concurrency, ElementType, LogLevel, RunOptions, RunSpec, Stream, TensorFile
from device_runner.vulkan import SWIFTSHADER, VARIABLE
from pipeline.model.sources import SourceModel
from pipeline.partition.judge import PartitionRequest, judge
from tests.advice.test_fitness import sums_in_half
from tests.android_host.conftest import needs_plugin
from tests.android_host.runs import distance, failure, outputs, run
from tests.command import ort_mobile
from tests.configs import short
from tests.debian_packages import unpacked
from tests.onnx_samples import parsed_nodes
from tests.ort_models import conv_relu, parsed
from tests.values import present
from tests.webgpu.labels import asked, settings_of, wrong
from tests.webgpu.registry import one_node_models

pytestmark = pytest.mark.android_host


def test_an_android_library_computes_on_a_software_gpu(
    library: LibraryFacts, vulkan: str, mnist: Path, tmp_path: Path
) -> None:
    with AndroidHost("android-host", library, Phone(vulkan=vulkan)) as phone:
        gpu, cpu = run(phone, mnist, tmp_path / "gpu", provider="webgpu"), run(phone, mnist, tmp_path / "cpu")
    assert 0 < distance(outputs(gpu), outputs(cpu)) < 1e-5  # 0 would be the CPU's own numbers
    assert set(gpu.marks) == {Mark.NOT_A_PHONE, Mark.SOFTWARE_GPU}
    assert Mark.SOFTWARE_GPU not in cpu.marks
    assert (gpu.load_ns, gpu.first_run_ns, gpu.latencies_ns, gpu.memory_peak_bytes) == (0, 0, (), 0)


@needs_plugin
@pytest.mark.parametrize("example", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_the_plugin_and_an_android_library_compute_the_same(
    library: LibraryFacts, vulkan: str, mnist: Path, tmp_path: Path, *, example: bool
) -> None:
    """A convolution in each run, the example at night: a driver that plays a GPU compiles its kernels for 2 s each."""
    model = mnist if example else tmp_path / "m.onnx"
    if not example:
        onnx.save(conv_relu(), model)
    with open_device(f"local?vulkan={vulkan}") as here:
        plugin = run(here, model, tmp_path / "plugin", provider="webgpu")
    with AndroidHost("android-host", library, Phone(vulkan=vulkan)) as phone:
        built_in = run(phone, model, tmp_path / "android", provider="webgpu")
    assert distance(outputs(plugin), outputs(built_in)) == 0
    assert [row.provider for row in plugin.ep_shares] == ["WebGpuExecutionProvider"]
    assert plugin.marks == (Mark.SOFTWARE_GPU,)


CAPTURE = {"ep.webgpuexecutionprovider.enableGraphCapture": "1"}
CAPTURING = RunOptions(provider="webgpu", session_config=CAPTURE)
ON_DEVICE = RunOptions(provider="webgpu", device_tensors=True)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A model of two kernels: a driver that plays a GPU compiles those of the example for two seconds a session."""
    onnx.save(parsed("g (float[1, 8] x) => (float[1, 8] y) { a = Relu (x)  y = Exp (a) }"), tmp_path / "small.onnx")
    return tmp_path / "small.onnx"


def test_a_captured_graph_computes_the_same(gpu: Device, small: Path, tmp_path: Path) -> None:
    """The probe clears outputs before the capture, so that they come out of a replay."""
    plain = run(gpu, small, tmp_path / "plain", provider="webgpu")
    captured = run(gpu, small, tmp_path / "captured", provider="webgpu", session_config=CAPTURE)
    assert distance(outputs(captured), outputs(plain)) == 0


def on_device(device: Device, model: Path, folder: Path, samples: np.ndarray | None = None) -> RunResult:
    """A run with tensors on the GPU, and these samples of its only input behind the loop."""
    labelled = None
    if samples is not None:
        samples.tofile(file := folder / "samples")
        labelled = TensorFile(name="samples", dtype=ElementType.FLOAT32, shape=samples.shape, file=str(file))
    return device.run(
        RunSpec(
            id="m", model=str(model), options=ON_DEVICE, labelled=labelled, warmup=0, min_runs=2, min_seconds=0.0,
            outputs_folder=str(folder / "stayed"), log_level=LogLevel.INFO,
        )
    )  # fmt: skip


def test_device_tensors_come_back_to_be_compared(gpu: Device, small: Path, tmp_path: Path) -> None:
    """Outputs are cleared before, as above; samples are written to the device, and their answers read from there."""
    plain = run(gpu, small, tmp_path / "plain", provider="webgpu")
    samples = np.random.default_rng(3).random((3, 1, 8), np.float32)
    stayed = on_device(gpu, small, tmp_path, samples)
    assert distance(outputs(stayed), outputs(plain)) == 0
    answers = present(stayed.labelled_outputs)
    rows = np.fromfile(answers.file, np.float32).reshape(answers.shape)
    assert len({row.tobytes() for row in rows}) == len(samples)


def test_what_the_cpu_computes_has_no_device_tensors(gpu: Device, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(parsed("g (float[1, 4] x) => (float[1, 4] y) { a = Round (x)  b = Relu (a)  y = Round (b) }"), model)
    refused = failure(on_device(gpu, model, tmp_path))
    assert refused.code is FailureKind.BAD_OPTIONS
    assert "no device tensors" in refused.what


def test_an_output_that_changes_its_shape_is_no_device_tensor(gpu: Device, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(parsed("g (float[1, 4] x) => (float[1, 4] r, int64[2, n] y) { r = Relu (x)  y = NonZero (r) }"), model)
    refused = failure(on_device(gpu, model, tmp_path, np.array([[[1, 0, 0, 0]], [[1, 0, 3, 0]]], "<f4")))
    assert "the output y changes its shape" in refused.why


def streamed(
    model: Path,
    folder: Path,
    first: dict[str, np.ndarray],
    states: dict[str, str],
    steps: np.ndarray,
    options: RunOptions = CAPTURING,
) -> RunSpec:
    """A stream on the GPU from these inputs; `steps` are the rows of x."""
    kinds = {"f": ElementType.FLOAT32, "i": ElementType.INT64}
    tensors = []
    for name, array in {**first, "steps": steps}.items():
        array.tofile(folder / name)
        row = TensorFile(name=name, dtype=kinds[array.dtype.kind], shape=array.shape, file=str(folder / name))
        tensors.append(row)
    sequence = msgspec.structs.replace(tensors.pop(), name="x")
    return RunSpec(
        id="m",
        model=str(model),
        options=options,
        inputs=tuple(tensors),
        stream=Stream(steps=len(steps), states=states, sequences=(sequence,)),
        warmup=0,
        outputs_folder=str(folder / "out"),
        log_level=LogLevel.INFO,
    )


@pytest.mark.parametrize("options", [CAPTURING, ON_DEVICE, msgspec.structs.replace(CAPTURING, device_tensors=True)])
def test_states_stay_on_the_gpu_beside_new_inputs(gpu: Device, tmp_path: Path, options: RunOptions) -> None:
    model, zeros = tmp_path / "m.onnx", np.zeros((1, 4), "<f4")
    ends = "g (float[1, 4] x, float[1, 4] a) => (float[1, 4] s, float[1, 4] y)"
    onnx.save(parsed(f"{ends} {{ s = Add (x, a) y = Sub (s, x) }}"), model)
    steps = np.arange(20, dtype="<f4").reshape(5, 1, 4)
    result = gpu.run(streamed(model, tmp_path, {"x": zeros, "a": zeros}, {"s": "a"}, steps, options))
    assert outputs(result)["s"].tolist() == [[40, 45, 50, 55]]
    assert outputs(result)["y"].tolist() == [[24, 28, 32, 36]]
    assert any("Replaying the captured" in line for line in result.log) == options.captures_graph
    spec = streamed(model, tmp_path, {"x": zeros, "a": zeros}, {"s": "a"}, steps, options)
    stream = msgspec.structs.replace(present(spec.stream), tracked=("y", "s"))
    each = outputs(gpu.run(msgspec.structs.replace(spec, stream=stream)))
    assert each["s"].tolist() == np.cumsum(steps, 0).tolist()
    assert each["y"].tolist() == (np.cumsum(steps, 0) - steps).tolist()


def test_a_state_of_the_cpu_cannot_be_captured(gpu: Device, tmp_path: Path) -> None:
    """A shape that turns at each step: Reshape reads it on the CPU, at the capture and never again."""
    model, first = tmp_path / "m.onnx", {"x": np.zeros((1, 16), "<f4"), "shape": np.array([2, 8], "<i8")}
    nodes = "r = Reshape (x, shape)  t = Transpose (r)  y = Reshape (t, flat)  turned = Shape (t)"
    ends = "g (float[1, 16] x, int64[2] shape) => (float[1, 16] y, int64[2] turned)"
    onnx.save(parsed(f"{ends} <int64[2] flat = {{1, 16}}> {{ {nodes} }}"), model)
    steps = np.arange(48, dtype="<f4").reshape(3, 1, 16)
    refused = failure(gpu.run(streamed(model, tmp_path, first, {"turned": "shape"}, steps)))
    assert refused.code is FailureKind.BAD_OPTIONS
    assert "turned is in the CPU's memory" in refused.what
    assert "leave enableGraphCapture out" in refused.remedy


def test_a_graph_with_a_node_on_the_cpu_is_not_captured(gpu: Device, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(parsed("g (float[1, 4] x) => (float[1, 4] y) { a = Round (x)  y = Relu (a) }"), model)
    refused = failure(run(gpu, model, provider="webgpu", session_config=CAPTURE))
    assert refused.code is FailureKind.PROVIDER_REFUSED
    assert "leave enableGraphCapture out" in refused.remedy


@pytest.mark.parametrize(
    ("options", "own_sessions"),
    [
        (CAPTURING, False),
        (ON_DEVICE, True),
        pytest.param(CAPTURING, True, marks=pytest.mark.nightly),
        pytest.param(ON_DEVICE, False, marks=pytest.mark.nightly),
    ],
)
def test_several_callers_share_no_device(gpu: Device, small: Path, options: RunOptions, *, own_sessions: bool) -> None:
    callers = Concurrency(callers=2, seconds=0.1, own_sessions=own_sessions)
    spec = RunSpec(id="m", model=str(small), options=options, min_runs=1, min_seconds=0.0, concurrent=callers)
    refused = failure(gpu.run(spec))
    assert refused.code is FailureKind.BAD_OPTIONS
    assert "leave enableGraphCapture out" in refused.remedy


FUNCTIONS = ("Exp", "Softmax", "Sigmoid", "Erf", "Log")


def test_functions_of_half_precision_compute(library: LibraryFacts, lavapipe: str, tmp_path: Path) -> None:
    file, ends = tmp_path / "m.onnx", ", ".join(f"float16[1, 64] y{name}" for name in FUNCTIONS)
    nodes = "  ".join(f"y{name} = {name} (x)" for name in FUNCTIONS)
    onnx.save(parsed(f"g (float16[1, 64] x) => ({ends}) {{ {nodes} }}"), file)
    with AndroidHost("android-host", library, Phone(vulkan=lavapipe)) as phone:
        gpu, cpu = (outputs(run(phone, file, tmp_path / name, provider=name)) for name in ("webgpu", "cpu"))
    assert distance(gpu, cpu) < 2e-2  # what passes in half precision


def test_half_precision_that_a_gpu_computes_wrong_is_made_right(
    library: LibraryFacts, lavapipe: str, tmp_path: Path
) -> None:
    """As MobileNet's, in one convolution: 512 products of a sign, of which the mean is then taken."""
    weights = np.random.default_rng(0).normal(0.5, 0.01, (64, 512, 1, 1)).astype(np.float32)
    model, distances = tmp_path / "m.onnx", {}
    graph = (
        "g (float[1, 512, 2, 2] x) => (float[1, 8, 2, 2] y) "
        "{ a = Abs (x)  s = Conv (a, w)  m = ReduceMean <axes = [1]> (s)  d = Sub (s, m)  y = Conv (d, v) }"
    )
    onnx.save(parsed(graph, w=weights, v=np.eye(8, 64, dtype=np.float32)[:, :, None, None]), model)
    with AndroidHost("android-host", library, Phone(vulkan=lavapipe)) as phone:
        wanted = outputs(run(phone, model, tmp_path / "cpu"))
        for step in ("fp16", "fp16-gpu"):
            half = tmp_path / f"{step}.onnx"
            ort_mobile("transform", model, half, "--do", step)
            distances[step] = distance(outputs(run(phone, half, tmp_path / step, provider="webgpu")), wanted)
    assert distances["fp16"] > 0.02 > distances["fp16-gpu"]


def test_half_precision_that_a_gpu_computes_wrong_is_a_warning_of_perf_and_run(
    library: LibraryFacts, lavapipe: str, tmp_path: Path
) -> None:
    onnx.save(sums_in_half(0.5), tmp_path / "m.onnx")
    device, warned = f"android-host:{library.path}?vulkan={lavapipe}", "on a GPU output 'y' would be off by about"
    shown = ort_mobile("perf", "m.onnx", "--device", device, "--provider", "webgpu", "--rounds", "1", cwd=tmp_path)
    assert shown.out.count(warned) == 1
    (tmp_path / "half.toml").write_text(
        f'name = "half"\ndevices = ["{device}"]\n[[models]]\npath = "m.onnx"\n[variants]\nlevels = ["none"]\n'
        'styles = ["onnx"]\n[[runs]]\nprovider = "webgpu"\n[[runs]]\nprovider = "webgpu"\n'
        f'options = {{ preferredLayout = "NCHW" }}\n{short()}'
    )
    ort_mobile("run", "half.toml", cwd=tmp_path, code=None)
    report = json.loads((tmp_path / "output" / "half" / "results.json").read_bytes())
    (finding,) = [row for row in report["warnings"] if row["rule"] == "webgpu-sums"]
    assert warned in finding["what"]


def test_without_a_driver_the_error_says_what_to_install(library: LibraryFacts, mnist: Path, tmp_path: Path) -> None:
    with AndroidHost("android-host", library, Phone(vulkan=str(tmp_path))) as phone:
        result = run(phone, mnist, provider="webgpu")
    found = failure(result)
    assert (found.code, found.what) == (
        FailureKind.WRONG_DEVICE,
        "no Vulkan driver that computes on the CPU",
    )
    assert "chromium-common" in found.remedy


def test_a_file_that_is_no_driver_is_named(library: LibraryFacts, mnist: Path, tmp_path: Path) -> None:
    broken = tmp_path / SWIFTSHADER
    broken.write_text("no library")
    with AndroidHost("android-host", library, Phone(vulkan=str(broken))) as phone:
        found = failure(run(phone, mnist, provider="webgpu"))
    assert found.code is FailureKind.PROVIDER_REFUSED
    assert f"no Vulkan driver: {broken}" in found.what
    assert "vulkan=" in found.remedy


def test_a_driver_that_dies_is_told_from_the_library(library: LibraryFacts, mnist: Path, tmp_path: Path) -> None:
    source, dying = tmp_path / "driver.c", tmp_path / SWIFTSHADER
    source.write_text("#include <stdlib.h>\nvoid vk_icdGetInstanceProcAddr(void) { abort(); }\n")
    compiler, _ = host_compiler("")
    subprocess.run([*compiler, "-shared", "-fPIC", "-o", dying, source], check=True)
    with AndroidHost("android-host", library, Phone(vulkan=str(dying))) as phone:
        found = failure(run(phone, mnist, provider="webgpu"))
        after = run(phone, mnist)
    assert (found.code, found.signal) == (FailureKind.CRASH, "SIGABRT")
    assert "driver that plays a GPU" in found.why
    assert "other driver" in found.remedy
    assert after.failure is None


@pytest.mark.skipif(not ctypes.util.find_library("LLVM-15"), reason="no libllvm15 here: lavapipe of Debian 12 needs it")
def test_a_mesa_that_is_too_old_is_named(library: LibraryFacts, mnist: Path) -> None:
    """22.3.6, Debian 12's own."""
    old = unpacked("mesa-vulkan-drivers", with_dependencies=False, suite="bookworm")
    with AndroidHost("android-host", library, Phone(vulkan=str(old))) as phone:
        found = failure(run(phone, mnist, provider="webgpu"))
    assert found.code is FailureKind.PROVIDER_REFUSED
    assert "this Mesa is too old" in found.why
    assert "Mesa 25" in found.remedy


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_claims_are_those_of_the_android_library(
    library: LibraryFacts, vulkan: str, layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, vulkan)
    path, written = tmp_path / "m.onnx", tmp_path / "claims.json"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4))
    nodes = [
        *parsed_nodes("a = Relu (x)  b = IsNaN (a)  [last] c = Where (b, x, a)"),
        helper.make_node("Neg", ["c"], ["y"], name="on the CPU"),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    onnx.save(
        helper.make_model(
            helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        ),
        path,
    )
    options = f"preferredLayout={layout},forceCpuNodeNames=on the CPU"
    asked = ("--ep", "webgpu", "--webgpu-options", options, "--reference", library.path)
    ort_mobile("partition", path, *asked, "--json", written, code=0)
    (model,) = json.loads(written.read_text())["reference"]["models"]
    assert model["same"] is True
    claimed = {row["output"]: row["library"]["claimed"] for row in model["nodes"]}
    assert claimed == {"a": True, "b": False, "c": True, "y": False}


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        (
            'y = local.S (x) } <domain: "local", opset_import: ["":17]> S (a) => (b) { s = Exp (a)  b = Mul (a, s) }',
            {"y": True},
        ),
        (
            "s = Shape (x)  z = Gather (s, i)  n = Cast <to = 1> (z)  m = Relu (x)  y = Mul (m, n) }",
            {"s": True, "m": True, "y": True},
        ),
    ],
)
def test_what_the_library_says_first_is_not_its_answer(
    library: LibraryFacts, vulkan: str, text: str, claims: dict[str, bool], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A call of a function has no kernel, what it is inlined to has; NHWC leaves shapes to the CPU and takes them."""
    monkeypatch.setenv(VARIABLE, vulkan)
    path, written = tmp_path / "m.onnx", tmp_path / "claims.json"
    head = '<ir_version: 9, opset_import: ["" : 17, "local" : 1]> g (float[1, 4] x) => (float[1, 4] y) '
    constants = "<int64 i = {1}> " if "i)" in text else ""
    onnx.save(onnx.parser.parse_model(f"{head}{constants}{{ {text}"), path)
    ort_mobile("partition", path, "--ep", "webgpu", "--reference", library.path, "--json", written, code=0)
    (model,) = json.loads(written.read_text())["reference"]["models"]
    assert model["same"] is True
    assert claims.items() <= {row["output"]: row["library"]["claimed"] for row in model["nodes"]}.items()


@pytest.mark.parametrize(
    ("layout", "text", "claims"),
    [
        ("NCHW", """s = Shape (x)  c = ConstantOfShape (s)  y = Resize (c, "", sizes)""",
         {"s": True, "c": False, "y": True}),
        ("NHWC", "t = Transpose <perm = [0, 3, 1, 2]> (x)  q = QuantizeLinear (t, one)  y = DequantizeLinear (q, one)",
         {"t": True, "q": False, "y": True}),
    ],
)  # fmt: skip
def test_what_becomes_of_the_graph_later_is_no_claim(
    library: LibraryFacts, vulkan: str, layout: str, text: str, claims: dict[str, bool], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """An input that is left out keeps a node on the GPU; NHWC moves a Transpose behind QuantizeLinear, into bytes."""
    monkeypatch.setenv(VARIABLE, vulkan)
    path, written = tmp_path / "m.onnx", tmp_path / "claims.json"
    head = "g (float[1, 2, 4, 4] x) => (float[a, b, c, d] y) <float one = {1}, float[4] sizes = {1, 1, 2, 2}>"
    onnx.save(parsed(f"{head} {{ {text} }}"), path)
    options = ("--webgpu-options", f"preferredLayout={layout}", "--reference", library.path, "--json", written)
    ort_mobile("partition", path, "--ep", "webgpu", *options, code=0)
    (model,) = json.loads(written.read_text())["reference"]["models"]
    assert model["same"] is True
    assert claims == {row["output"]: row["library"]["claimed"] for row in model["nodes"]}


def test_kernels_are_those_of_the_library(
    library: LibraryFacts, vulkan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each 80th of the models of one node; `nox -s gpu_claims` asks about all."""
    monkeypatch.setenv(VARIABLE, vulkan)
    paths = [path for _, path in one_node_models(tmp_path)][::80]
    source = f"android:{library.release}"
    answers = [
        judge(PartitionRequest(source=SourceModel(path=str(path)), settings=settings_of("nchw-int64", source)))
        for path in paths
    ]
    labels = asked(library, paths, settings_of("nchw-int64", source))
    pairs = zip(labels, answers, strict=True)
    assert [text for label, answer in pairs for text in wrong(label, answer.decisions)] == []
    assert {answer.claimed for answer in answers} == {0, 1}


def test_a_profile_names_what_is_copied_between_cpu_and_gpu(
    library: LibraryFacts, vulkan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, vulkan)
    model = parsed(
        "g (float[1, 8, 4, 4] x) => (float[1, 8, 2, 2] y) "
        "{ a = Relu (x)  [pool] b = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)  y = Exp (b) }"
    )
    onnx.save(model, tmp_path / "m.onnx")
    words = ("--provider", "webgpu", "--provider-option", "forceCpuNodeNames=pool", "--rounds", "1", "--min-runs", "1")
    device = ("--device", f"android-host:{library.path}", "--min-seconds", "0.001")
    done = ort_mobile("perf", tmp_path / "m.onnx", *device, *words, "--profile", tmp_path / "profiles")
    (row,) = json.loads((tmp_path / "profiles/profiles.json").read_text())
    copies = {copy["value"]: (copy["to_host"], copy["size_bytes"]) for copy in row["profile"]["copies"]}
    assert copies == {"a": (True, 8 * 4 * 4 * 4), "b": (False, 8 * 2 * 2 * 4)}
    assert all(copy["nanoseconds"] > 0 for copy in row["profile"]["copies"])
    assert "webgpu → cpu, after waiting for it" in done.out
