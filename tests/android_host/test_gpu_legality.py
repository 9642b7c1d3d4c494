"""What is refused for WebGPU before any phone, beside what a genuine Android library makes of the same file."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from device_runner.android_host.device import AndroidHost, Phone
from device_runner.device import Device
from device_runner.library import LibraryFacts
from device_runner.result import RunResult
from device_runner.spec import RunOptions, RunSpec
from pipeline.compat.gpu import gpu_findings
from pipeline.core.releases import Release
from tests.android_host.runs import distance, outputs, run
from tests.command import ort_mobile
from tests.ort_models import CONV_WEIGHTS, conv_relu, convert, parsed, residual

pytestmark = pytest.mark.android_host

NCHW = {"preferredLayout": "NCHW"}
Outcome = Callable[[RunResult, RunResult], bool]


def fails(gpu: RunResult, _cpu: RunResult) -> bool:
    return gpu.failure is not None


def crashes(gpu: RunResult, _cpu: RunResult) -> bool:
    return gpu.failure is not None and gpu.failure.signal is not None


def is_wrong(gpu: RunResult, cpu: RunResult) -> bool:
    values = outputs(gpu)
    foreign = any(np.isnan(value).any() for value in values.values())  # memory that nothing wrote, by chance
    return foreign or distance(values, outputs(cpu)) > 0.05


def is_the_cpus(gpu: RunResult, cpu: RunResult) -> bool:
    return distance(outputs(gpu), outputs(cpu)) == 0


def no_bias() -> onnx.ModelProto:
    """As exporters write it; the text form has no way to."""
    model = parsed("g (float[1, 4, 4, 4] x) => (float[1, 4, 6, 6] y) { y = ConvTranspose (x, w) }", w=CONV_WEIGHTS)
    model.graph.node[0].input.append("")
    return model


def body(mark: str, state: str = "x") -> str:
    """Mean and Softsign have no kernel on the GPU: they read what is made around and before, and a constant."""
    text = "a = Mean (S, one)  b = Add (a, one)  c = Softsign (r)  d = Add (b, c)  e = Softsign (d)  z = Add (e, r)"
    return re.sub(r"\b([a-ez])\b", rf"\g<1>{mark}", text).replace("S", state, 1)


def branching(mark: str, *, deep: bool = False) -> str:
    """An If whose branches compute the same, or have an If each."""
    inner = {side: f"{mark}{side[0]}" for side in ("then_branch", "else_branch")}
    texts = {side: branching(name) if deep else body(name) for side, name in inner.items()}
    graphs = (f"{side} = {name} () => (float[1, 4] z{name}) {{ {texts[side]} }}" for side, name in inner.items())
    return f"z{mark} = If (which) <{', '.join(graphs)}>"


def around(text: str) -> onnx.ModelProto:
    one = np.array([[1, -2, 3, 4]], np.float32)
    graph = f"g (float[1, 4] x, bool which) => (float[1, 4] y) {{ r = Relu (x)  {text}  y = Relu (z) }}"
    return parsed(graph, one=one, turns=np.array(3, np.int64))


LOOP = f"""z = Loop (turns, "", x) <body = l (int64 i, bool keep, float[1, 4] s) => (bool go, float[1, 4] zl)
    {{ go = Identity (keep)  {body("l", "s")} }}>"""

CASES: dict[str, tuple[Callable[[], onnx.ModelProto], str, dict[str, str], str, Outcome]] = {
    "a CPU node before a GPU node": (
        lambda: parsed("g (float[1, 8] x) => (float[1, 8] y) { a = Softsign (x)  y = Relu (a) }"),
        "basic", {}, "webgpu-memories", fails,
    ),
    "a CPU node behind a GPU node": (
        lambda: parsed("g (float[1, 8] x) => (float[1, 8] y) { a = Relu (x)  y = Softsign (a) }"),
        "basic", {}, "webgpu-memories", is_wrong,
    ),
    "an input that both sides read": (
        lambda: parsed("g (float[1, 8] x, float m) => (float[1, 8] y) { n = Neg (m)  y = Clip (x, n, m) }"),
        "basic", {}, "webgpu-memories", fails,
    ),
    "a bound of Clip that the GPU makes": (
        lambda: parsed(
            "g (float[1, 8] x, float l) => (float[1, 8] y) { n = ReduceMin <keepdims = 0> (x)  y = Clip (x, l, n) }"
        ),
        "basic", {}, "webgpu-memories", is_wrong,
    ),
    "FusedConv in NHWC": (conv_relu, "extended", {}, "webgpu-fused-layout", fails),
    "FusedConv with a sum": (residual, "all", NCHW, "webgpu-fused-sum", is_wrong),
    "opset 6": (
        lambda: parsed("g (float[1, 8] x) => (float[1, 8] y) { y = Relu (x) }", opset=6),
        "", {}, "webgpu-opset", is_the_cpus,
    ),
    "Resize along other axes": (
        lambda: parsed(
            'g (float[1, 4, 4, 3] x) => (float[1, 8, 8, 3] y) { y = Resize <mode = "linear"> (x, , s) }',
            s=np.array([1, 2, 2, 1], np.float32),
        ),
        "", {}, "webgpu-resize", is_wrong,
    ),
    "Conv of nine channels in NHWC": (
        lambda: parsed(
            "g (float[1, 9, 6, 6] x) => (float[1, 4, 4, 4] y) { y = Conv (x, w) }",
            w=np.linspace(-1, 1, 4 * 9 * 9, dtype=np.float32).reshape(4, 9, 3, 3) ** 3,
        ),
        "", {}, "webgpu-channels", is_wrong,
    ),
    "Conv of groups in NHWC": (
        lambda: parsed(
            "g (float[1, 12, 6, 6] x) => (float[1, 12, 4, 4] y) { y = Conv <group = 2> (x, w) }",
            w=np.sin(np.arange(12 * 6 * 9, dtype=np.float32)).reshape(12, 6, 3, 3),
        ),
        "", {}, "webgpu-groups", is_wrong,
    ),
    "ArgMax behind Conv": (
        lambda: parsed(
            "g (float[1, 4, 6, 6] x) => (int64[1, 1, 4, 4] y) { c = Conv (x, w)  y = ArgMax <axis = 1> (c) }",
            w=np.linspace(-1, 1, 8 * 4 * 9, dtype=np.float32).reshape(8, 4, 3, 3) ** 3, opset=13,
        ),
        "basic", {}, "webgpu-moved", is_wrong,
    ),
    "DequantizeLinear before Conv": (
        lambda: parsed(
            "g (uint8[1, 4, 6, 6] x) => (float[1, 4, 4, 4] y) { d = DequantizeLinear (x, s)  y = Conv (d, w) }",
            w=np.linspace(-1, 1, 4 * 4 * 9, dtype=np.float32).reshape(4, 4, 3, 3),
            s=np.array(0.1, np.float32), opset=13,
        ),
        "basic", {}, "webgpu-moved", fails,
    ),
    "Softmax over several axes": (
        lambda: parsed("g (float[1, 10, 1, 1] x) => (float[1, 10, 1, 1] y) { y = Softmax (x) }", opset=9),
        "", {}, "webgpu-kernel", fails,
    ),
    "BatchNormalization of two dimensions in NCHW": (
        lambda: parsed(
            "g (float[1, 4] x) => (float[1, 4] y) { y = BatchNormalization (x, s, b, m, v) }",
            s=np.array([1, 2, 3, 4], np.float32), b=np.array([3, -2, 1, 0], np.float32),
            m=np.array([0, 1, 2, 3], np.float32), v=np.ones(4, np.float32),
        ),
        "", NCHW, "webgpu-normalization", is_wrong,
    ),
    "a bias without a name": (
        no_bias, "", {}, "webgpu-empty-bias", crashes,
    ),
    "values that cross in branches": (lambda: around(branching("")), "basic", {}, "webgpu-memories", fails),
    "in branches of branches": (lambda: around(branching("", deep=True)), "basic", {}, "webgpu-memories", fails),
    "in a loop": (lambda: around(LOOP), "basic", {}, "webgpu-memories", fails),
    "a tensor without elements": (
        lambda: parsed("g (float[2, 0] x) => (float[2, 0] y) { y = Softmax (x) }"),
        "", {}, "webgpu-empty-tensor", fails,
    ),
    "half precision": (
        lambda: parsed("g (float16[1, 8] x) => (float16[1, 8] y) { y = Relu (x) }"),
        "", {}, "webgpu-half", fails,
    ),
    "MaxPool with indices": (
        lambda: parsed(
            "g (float[1, 1, 4, 4] x) => (float[1, 1, 2, 2] y, int64[1, 1, 2, 2] i) "
            "{ y, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) }"
        ),
        "", {}, "webgpu-kernel", fails,
    ),
}  # fmt: skip
"""The model; the level of its ORT format file ("": an .onnx file); options; the rule that refuses it; what happens."""


def test_squares_in_half_precision_are_infinite(library: LibraryFacts, lavapipe: str, tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    onnx.save(parsed("g (float16[1, 8] x) => (float16[1, 1] y) { m = Mul (x, s)  y = ReduceL2 (m) }",
                     s=np.array(2000, np.float16)), file)  # fmt: skip
    with AndroidHost("android-host", library, Phone(vulkan=lavapipe)) as phone:
        gpu, cpu = (outputs(run(phone, file, tmp_path / name, provider=name))["y"] for name in ("webgpu", "cpu"))
    assert np.isfinite(cpu).all()
    assert np.isinf(gpu).all()


CROSSING = [name for name, case in CASES.items() if case[3] == "webgpu-memories"]
IN_LAYOUTS = [
    pytest.param(name, layout, marks=() if place % 2 == (layout == "NCHW") else pytest.mark.nightly)
    for place, name in enumerate(CROSSING)
    for layout in ("NHWC", "NCHW")
]
"""Each case in one of the layouts in each run, one by one in turn, and in the other at night."""


@pytest.mark.parametrize(("name", "layout"), IN_LAYOUTS)
def test_with_copies_in_the_file_it_runs(gpu: Device, tmp_path: Path, name: str, layout: str) -> None:
    """In Android's library and in the plugin."""
    path = tmp_path / "m.onnx"
    onnx.save(CASES[name][0](), path)
    ort_mobile("convert", path, "--level", "basic", "--ep", "webgpu", "--output", tmp_path, code=0)
    file = tmp_path / "m.basic-fixed-webgpu.ort"
    assert list(gpu_findings(file, Release(1, 29), {"preferredLayout": layout}, "m")) == []
    config = {"ep.webgpuexecutionprovider.preferredLayout": layout}
    results = [
        run(gpu, file, tmp_path / "gpu", provider="webgpu", session_config=config),
        run(gpu, path, tmp_path / "cpu"),
    ]
    assert distance(*map(outputs, results)) < 1e-6


@pytest.mark.parametrize("name", CASES)
def test_what_is_refused_would_fail_on_the_phone(library: LibraryFacts, vulkan: str, tmp_path: Path, name: str) -> None:
    build, level, provider_options, rule, happens = CASES[name]
    file = tmp_path / "m.onnx"
    onnx.save(build(), file)
    if level:
        file = convert(file, tmp_path / "m.ort", level=level)
    release = Release(*map(int, library.release.split(".")[:2]))
    found = {finding.code: finding for finding in gpu_findings(file, release, provider_options, "m", half=False)}
    assert list(found) == [rule]
    assert found[rule].remedy
    with AndroidHost("android-host", library, Phone(vulkan=vulkan)) as phone:
        gpu, cpu = (
            phone.run(
                RunSpec(
                    id=provider, model=str(file), options=RunOptions(provider=provider, provider_options=options),
                    warmup=0, min_runs=1, min_seconds=0.0, outputs_folder=str(tmp_path / provider),
                )
            )
            for provider, options in (("webgpu", provider_options), ("cpu", {}))
        )  # fmt: skip
    assert happens(gpu, cpu), gpu
