"""A Swift package as Swift's package manager takes it: resolved, built, and run with the real ONNX Runtime."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from device_runner.spec import RunOptions
from pipeline.campaign.run_options import options_name
from pipeline.campaign.tuned import TunedClass
from pipeline.config import ModelConfig
from pipeline.release.bundle import make_bundle
from pipeline.release.reference_files import signature_of
from tests.command import ort_mobile
from tests.consumers import swift
from tests.custom_ops.apple import framework
from tests.custom_ops.samples import library
from tests.custom_ops.test_apple import job
from tests.features.apple.samples import COREML, for_ios
from tests.features.apple.test_package import released
from tests.features.sizes import PICKED, expected, two_sizes
from tests.ort_models import IR_VERSION, conv_relu, convert

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.consumer

KINDS = {
    "FLOAT": "f", "INT8": "class", "UINT8": "self", "INT32": "f_2", "UINT32": "1st", "INT64": "F", "UINT64": "result",
    "STRING": "a b",
}  # fmt: skip
"""Every element type that Swift can have, and inputs with names that Swift cannot."""

HOSTILE = 'a "quoted" \\ \\(value) \\u0041 \n\x01'

APP = """\
// swift-tools-version: 5.9
import PackageDescription
let package = Package(
    name: "app", dependencies: [.package(path: "../package")],
    targets: [.executableTarget(name: "app", dependencies: [.product(name: "DemoAppModels", package: "package")])]
)
"""
GUIDE = ROOT / "docs/guide.md"
MNIST = ROOT / "build_configs/examples/mnist/mnist.onnx"
MAIN = """\
@testable import DemoAppModels

let model = try M()
print(Array(model.way.utf8))
let x = (0..<64).map { Float($0) / 10 - 3 }
let output = try model.run(x: x)
print(output.yShape.map(String.init).joined(separator: " "))
print(output.y.map { "\\($0)" }.joined(separator: " "))
do { _ = try model.run(x: [1]) } catch { print(error) }
do { _ = try M(path: "/nowhere.ort") } catch { print(error) }
print(M.file(for: DeviceClass(chips: ["Apple A17", "iPhone16,1"], abi: "arm64")).name)
print(M.file(for: DeviceClass(chips: ["iPhone16,1"], abi: "x86_64")).name)

let kinds = try Kinds()
let same = try kinds.run(
    f: [1.5], fShape: [1], class_2: [-8], class_2Shape: [1], self_2: [200], self_2Shape: [1], f2: [-3], f2Shape: [1],
    tensor1st: [4_000_000_000], tensor1stShape: [1], f_2: [-1 << 40, 7], f_2Shape: [1, 2],
    result_2: [1 << 63], result_2Shape: [1], aB: ["ä", ""], aBShape: [2])
print(same.oF, same.oClass, same.oSelf, same.oF2, same.o1st, same.oF_2, same.oResult, same.oAB, same.oF_2Shape)
try M.verify()
print(try M(path: "/build/m.ort").way == model.way)
let damaged = "/build/damaged.ort", digest = try ModelFile.digest(of: damaged)
do { _ = try M(path: damaged) } catch { print(error) }
do { _ = try M(path: "/build/m.ort", sha256: digest) } catch { print(error) }
print(try guide([Float](repeating: 0.5, count: 784)).map { "\\($0)" }.joined(separator: " "))
let choice = await M.prepare()
print(Array(choice.way.utf8))
print(choice.why)
"""


def guide() -> str:
    """The code of the guide as a function; the import is another here."""
    block = re.search(r"```swift\n(.*?)```", GUIDE.read_text("utf-8").partition("### In your app: Xcode")[2], re.DOTALL)
    assert block
    lines = [line for line in block[1].splitlines() if not line.startswith("import ")]
    return "\n".join(["func guide(_ pixels: [Float]) throws -> [Float] {", *lines, "return logits", "}", ""])


def _kinds() -> onnx.ModelProto:
    """A model that gives out what it takes, in every type."""
    nodes, inputs, outputs = [], [], []
    for kind, name in KINDS.items():
        axes: list[int | str | None] = [1, "n"] if kind == "INT64" else [name]
        nodes.append(helper.make_node("Identity", [name], [f"o {name}"]))
        inputs.append(helper.make_tensor_value_info(name, TensorProto.DataType.Value(kind), axes))
        outputs.append(helper.make_tensor_value_info(f"o {name}", TensorProto.DataType.Value(kind), axes))
    graph = helper.make_graph(nodes, "kinds", inputs, outputs)
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", 17)])


def test_the_package_is_resolved_built_and_gives_the_outputs_of_the_bundle(tmp_path: Path) -> None:
    model = convert(conv_relu(), tmp_path / "m.ort")
    fast = RunOptions(session_config={"app.note": HOSTILE, "session.intra_op.allow_spinning": "0"}, intra_op_threads=2)
    mnist, kinds = convert(MNIST, tmp_path / "mnist.ort"), convert(_kinds(), tmp_path / "k.ort")
    files = {"m": model, "kinds": kinds, "mnist": mnist}
    ships = (
        for_ios(runs=(COREML, fast)), for_ios(runs=(fast,), file="models/fast.ort"), for_ios("kinds"), for_ios("mnist"),
    )  # fmt: skip
    sources = dict(zip([one.file for one in ships], (model, model, kinds, mnist), strict=True))
    make_bundle(
        tmp_path / "bundle", name="Demo app", sources=sources, ships=ships, made_with={}, evidence={},
        models=tuple(signature_of(name, file, ModelConfig(path=str(file))) for name, file in files.items()),
        classes=((), (TunedClass(chip="iPhone16,1", api_level=0, abi="arm64"),), (), ()),
    )  # fmt: skip
    work = tmp_path / "work"
    (work / "app/Sources/app").mkdir(parents=True)
    (work / "app/Package.swift").write_text(APP)
    (work / "app/Sources/app/main.swift").write_text(guide() + MAIN, "utf-8")
    content = bytearray(model.read_bytes())
    (work / "m.ort").write_bytes(content)
    content[len(content) // 2] ^= 1
    (work / "damaged.ort").write_bytes(content)
    released(tmp_path, "--telemetry", "off", package="work/package")
    assert swift.build(work, "1.24.2") == ""
    ran = swift.run(work, "/build/app/.build/debug/app")
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    x = (np.arange(64, dtype=np.float32) / np.float32(10) - np.float32(3)).reshape(1, 1, 8, 8)
    (expected,) = onnxruntime.InferenceSession(model.read_bytes()).run(None, {"x": x})
    assert bytes(json.loads(lines[0])).decode() == options_name(fast)  # Linux has no CoreML: the second way is taken
    assert lines[1] == "1 2 8 8"
    np.testing.assert_allclose(np.array(lines[2].split(), np.float32), expected.ravel(), rtol=1e-5, atol=1e-6)
    assert lines[3] == "the input x has 1 elements, which do not fill the shape [1, 1, 8, 8]"
    assert lines[4:7] == ["there is no file /nowhere.ort", "fast", "m.basic-fixed"]
    assert lines[7] == ('[1.5] [-8] [200] [-3] [4000000000] [-1099511627776, 7] [9223372036854775808] ["ä", ""] [1, 2]')
    image = np.full((1, 1, 28, 28), 0.5, np.float32)
    digests = [hashlib.sha256((work / name).read_bytes()).hexdigest() for name in ("m.ort", "damaged.ort")]
    refusal = "is not the file that was released: its sha256 is"
    assert lines[8:11] == ["true", f"/build/damaged.ort {refusal} {digests[1]}", f"/build/m.ort {refusal} {digests[0]}"]
    (logits,) = onnxruntime.InferenceSession(str(mnist)).run(None, {"image": image})
    np.testing.assert_allclose(np.array(lines[11].split(), np.float32), logits.ravel(), rtol=1e-4, atol=1e-5)
    assert bytes(json.loads(lines[12])).decode() == options_name(fast)
    assert lines[13].startswith(f"{options_name(COREML)}: refused, ")  # by the guard, when it tried it


TWO_PACKAGES = """\
// swift-tools-version: 5.9
import PackageDescription
let package = Package(
    name: "app", dependencies: [.package(path: "../v1"), .package(path: "../v2")],
    targets: [.executableTarget(name: "app", dependencies: [
        .product(name: "DemoModels", package: "v1"), .product(name: "DemoV2Models", package: "v2")])]
)
"""
TWO_VERSIONS = """\
import DemoModels
import DemoV2Models

let x = (0..<64).map { Float($0) / 10 - 3 }
for y in [try DemoModels.M().run(x: x).y, try DemoV2Models.M().run(x: x).y] {
    print(y.map { "\\($0)" }.joined(separator: " "))
}
"""


def test_an_app_with_two_versions_of_a_model_opens_each_by_its_module(tmp_path: Path) -> None:
    other = conv_relu()
    weights = numpy_helper.to_array(other.graph.initializer[0]) * np.float32(3)
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights, "w"))
    work, files = tmp_path / "work", []
    (work / "app/Sources/app").mkdir(parents=True)
    (work / "app/Package.swift").write_text(TWO_PACKAGES)
    (work / "app/Sources/app/main.swift").write_text(TWO_VERSIONS)
    for version, model, name in (("v1", conv_relu(), "DemoModels"), ("v2", other, "DemoV2Models")):
        (tmp_path / version).mkdir()
        files.append(convert(model, tmp_path / version / "m.ort"))
        ships = for_ios(runs=(RunOptions(),))
        make_bundle(
            tmp_path / version / "bundle", name="Demo", sources={ships.file: files[-1]}, ships=(ships,), made_with={},
            evidence={}, models=(signature_of("m", files[-1], ModelConfig(path=str(files[-1]))),),
        )  # fmt: skip
        ort_mobile("release", "apple", tmp_path / version / "bundle", "--name", name, "--output", work / version)
    failed = swift.build(work, "1.24.2")
    assert not failed, failed
    ran = swift.run(work, "/build/app/.build/debug/app")
    assert ran.returncode == 0, ran.stderr
    x = (np.arange(64, dtype=np.float32) / np.float32(10) - np.float32(3)).reshape(1, 1, 8, 8)
    for line, file in zip(ran.stdout.splitlines(), files, strict=True):
        (expected_output,) = onnxruntime.InferenceSession(file.read_bytes()).run(None, {"x": x})
        np.testing.assert_allclose(np.array(line.split(), np.float32), expected_output.ravel(), rtol=1e-5, atol=1e-6)


OPERATORS = """\
import TwiceModels

let output = try Twice().run(x: [-1, 2, 3, -4, 5, 6])
print(output.y.map { "\\($0)" }.joined(separator: " "))
"""


def test_a_model_with_custom_operators_runs_in_an_app_that_links_them(tmp_path: Path) -> None:
    job(tmp_path, framework(tmp_path, "aarch64-ios"))
    work = tmp_path / "work"
    (work / "app/Sources/app").mkdir(parents=True)
    (work / "app/Package.swift").write_text(APP.replace("DemoAppModels", "TwiceModels"))
    (work / "app/Sources/app/main.swift").write_text(OPERATORS)
    ort_mobile("release", "apple", tmp_path / "output/twice/bundle", "--output", work / "package")
    failed = swift.build(work, "1.24.2", library())
    assert not failed, failed
    ran = swift.run(work, "/build/app/.build/debug/app")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["0.0", "4.0", "6.0", "0.0", "10.0", "12.0"]


SIZES = """\
import DemoModels

let model = MSizes()
for shape in [@SHAPES@] {
    let output = try model.run(x: (0..<shape.reduce(1, *)).map(Float.init), xShape: shape)
    let size = output.yShape.map(String.init).joined(separator: "x")
    print(MSizes.size(xShape: shape), size, output.y.map { "\\($0)" }.joined(separator: " "))
}
do { _ = try model.run(x: [1], xShape: [1, 2, 2]) } catch { print(error) }
for verify in [M.verify, M2x3.verify, M4x8.verify] { try verify() }
"""


@pytest.mark.parametrize("shared", [False, True], ids=["each", "shared"])
def test_an_input_goes_to_the_smallest_size_that_it_fits_into(shared: bool, tmp_path: Path) -> None:
    two_sizes(tmp_path, platform="ios", release="1.24", shared=shared)
    work = tmp_path / "work"
    (work / "app/Sources/app").mkdir(parents=True)
    (work / "app/Package.swift").write_text(APP.replace("DemoAppModels", "DemoModels"))
    shapes = ", ".join(str(list(shape)) for shape in PICKED)
    (work / "app/Sources/app/main.swift").write_text(SIZES.replace("@SHAPES@", shapes), "utf-8")
    ort_mobile("release", "apple", tmp_path / "out/bundle", "--output", work / "package")
    failed = swift.build(work, "1.24.2")
    assert not failed, failed
    ran = swift.run(work, "/build/app/.build/debug/app")
    assert ran.returncode == 0, ran.stderr
    refused = "the input x has 1 elements, which do not fill the shape [1, 2, 2]"
    assert ran.stdout.splitlines() == [*map(expected, PICKED), refused]
