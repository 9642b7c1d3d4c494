"""Real packages out of the registries, pinned by digest: described rightly, and the JVM's library runs an inference.

Each test skips by name where its registry cannot be reached. The AAR of Microsoft's own group is not in every mirror:
`test_library_facts` reads its layout from one that it makes.
"""

from pathlib import Path

import numpy as np
import pytest

from device_runner.device import open_device
from device_runner.library import resolve, resolve_all
from device_runner.local import host_facts, wheel_library
from device_runner.result import RunResult, Status
from device_runner.spec import RunSpec
from pipeline.library.kernels import read_arm_code
from tests.npm_packages import library_entry

pytestmark = pytest.mark.network

ROOT = Path(__file__).resolve().parents[2]
MNIST = ROOT / "build_configs" / "examples" / "mnist" / "mnist.onnx"

JAR = "3a9dc00bed7ee467ded8a257f99fc216570d385f8b06053570d33e9b5d7c7a37"
"""com.microsoft.onnxruntime:onnxruntime:1.28.0."""

ANDROID = {
    ("1.29.0", "arm64-v8a"): (32_120_992, "3a602b463d434d20fbf69cd1b8bdfd2f86a2cb67d08de97aec8f62476fa4ab87"),
    ("1.29.0", "armeabi-v7a"): (22_727_712, "76fcaa5a49e939295cdd8b2f304a8fda0fa52aeca8fc4dd8215ee29089e00ccb"),
    ("1.29.0", "x86_64"): (38_473_056, "1fbfff77a79d79d4e99c2ae78d048044b689782da7e2b0a268443279ae615566"),
    ("1.28.0", "arm64-v8a"): (28_637_280, "f826d8efb03adf0a84f10e7ba408f9d4cd11b0a2ccd8d08aeb0f7451fb50cacc"),
    ("1.28.0", "armeabi-v7a"): (20_388_560, "19e4ab7b9c374d9a3900a6382b2e4978267b8d4b874596c64c8bf49bb7560b47"),
    ("1.28.0", "x86_64"): (34_640_104, "8a31feb45126d981ffac430bd10bc66cfa1036e0864a9fbd80a94121f3085800"),
    ("1.17.1", "arm64-v8a"): (16_035_920, "f39b3c5a8f4d6a3bb4828676a5fdb3e727423fec7b643b94fe247a4bd8dffbbf"),
    ("1.17.1", "x86_64"): (17_800_912, "ed795517db637178ccf7dec5de45c201a68d67142d88bf269e02347cc485d327"),
}
"""Bytes and sha256 of the libraries in the packages that pipeline.library.fetch lists."""

PROVIDERS = {
    "1.29.0": ("cpu", "nnapi", "webgpu", "xnnpack"),
    "1.28.0": ("cpu", "nnapi", "webgpu", "xnnpack"),
    "1.17.1": ("cpu", "nnapi", "xnnpack"),
}
PAGES = {"1.29.0": 16384, "1.28.0": 16384, "1.17.1": 4096}
AAR = {
    "1.29.0": "98cddbac92640b4a6af72a03c42e0491851f366d3da66bbaeb5dd66310946cf2",
    "1.17.1": "823eb9bb60ba57dc8b2bcd6aef8bc8454e911d4dcf1470d4a321db15e4f71a8a",
}
"""AARs that a package carries whole."""


def run(library: str, folder: Path) -> RunResult:
    folder.mkdir()
    spec = RunSpec(
        id="mnist", model=str(MNIST), library=library, min_runs=3, min_seconds=0.01, outputs_folder=str(folder)
    )
    with open_device("local") as device:
        return device.run(spec)


def outputs(result: RunResult) -> np.ndarray:
    return np.fromfile(result.outputs[0].file, np.float32)


def test_the_jvm_library_runs_an_inference_in_the_probe(tmp_path: Path) -> None:
    entry = library_entry("jvm:1.28.0")
    assert entry.sha256 == JAR
    facts = resolve(entry.file, host_facts("local").abis[0]).facts
    result = run(facts.path, tmp_path / "jvm")
    assert result.status is Status.OK, result.failure
    assert result.ort_version == "1.28.0"
    own = run(str(wheel_library()), tmp_path / "wheel")
    assert np.allclose(outputs(result), outputs(own), atol=1e-4)


def test_the_jvm_jar_is_described_rightly() -> None:
    entry = library_entry("jvm:1.28.0")
    found = {one.abi: one.facts for one in resolve_all(entry.file)}
    assert {abi: facts.size_bytes for abi, facts in found.items()} == {"arm64-v8a": 20_591_712, "x86_64": 24_268_848}
    for facts in found.values():
        assert (facts.system, facts.release, facts.kind, facts.providers) == ("linux", "1.28.0", "full", ("cpu",))


@pytest.mark.parametrize("release", PROVIDERS)
def test_android_libraries_are_described_rightly(release: str) -> None:
    found = {row.abi: row.facts for row in resolve_all(library_entry(f"android:{release}").file)}
    for (of, abi), (size_bytes, sha256) in ANDROID.items():
        if of == release:
            facts = found[abi]
            assert (facts.size_bytes, facts.sha256) == (size_bytes, sha256)
    for facts in found.values():
        assert (facts.system, facts.release, facts.kind) == ("android", release, "full")
        assert facts.providers == PROVIDERS[release]
        assert facts.page_bytes == PAGES[release]


@pytest.mark.parametrize("release", AAR)
def test_aars_of_packages_are_the_pinned_ones(release: str) -> None:
    assert library_entry(f"android:{release}").sha256 == AAR[release]


def test_the_wheel_of_another_architecture_gives_its_library() -> None:
    entry = library_entry("wheel:1.28.0", "arm64-v8a")
    (facts,) = [one.facts for one in resolve_all(entry.file)]
    assert (facts.abi, facts.system, facts.release, facts.providers) == ("arm64-v8a", "linux", "1.28.0", ("cpu",))


CODE = {
    "1.26.0": {"half precision": 4395, "dotprod": 2153, "i8mm": 989, "bf16": 320},
    "1.28.0": {"half precision": 4395, "dotprod": 4967, "i8mm": 989, "bf16": 320},
    "1.29.0": {"half precision": 4395, "dotprod": 5079, "i8mm": 1037, "bf16": 320},
}
SME_FUNCTIONS = {"1.26.0": (10, 6), "1.28.0": (10, 6), "1.29.0": (15, 12)}
"""Those with SMSTART, without and with instructions of SME2."""


@pytest.mark.parametrize("release", CODE)
def test_kernels_of_extensions_are_those_that_objdump_shows(release: str) -> None:
    entry = library_entry(f"android:{release}")
    code = read_arm_code(resolve(entry.file, "arm64-v8a").path.read_bytes())
    counts = {row.extension: row.instructions for row in code.extensions}
    functions = {row.extension: row.functions for row in code.extensions}
    assert {name: counts[name] for name in CODE[release]} == CODE[release]
    assert (functions["sme"], functions["sme2"]) == SME_FUNCTIONS[release]
    asked = {row.source: row.bits for row in code.queries}
    assert asked["AT_HWCAP"] == ("atomics", "asimddp", "sve")
    assert asked["AT_HWCAP2"] == ("svei8mm", "i8mm", "bf16")
