"""What a target's library is, from itself or from the config, and what is said of artifacts that cannot be read."""

import zipfile
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from device_runner.library import NamedLibrary, keep
from device_runner.local import LocalDevice, wheel_library
from device_runner.spec import RunOptions
from pipeline.compat.defects import Runtime
from pipeline.compat.rules import ArtifactFacts, findings_for, first_error, read_artifacts, runtime_on
from pipeline.config import Config, ModelConfig, Platform, RunConfig, Target, VariantsConfig, read_config
from pipeline.config.tables import AppleRelease, BuildConfig, BuildKind, ReleaseConfig
from pipeline.core.errors import Severity, errors
from pipeline.core.releases import Release
from pipeline.core.variant import Style
from pipeline.job.possible import LAYOUT, possible_runs
from pipeline.job.targets import oldest_release
from pipeline.release.shipped import budget_findings, library_release, planned_runtime, shipped_library
from tests.library.library_files import library, official_aar, official_jar
from tests.onnx_samples import linear
from tests.ort_models import convert, parsed
from tests.scripted_devices import lanes_of
from tests.values import present

EXAMPLE = Path(__file__).resolve().parents[2] / "build_configs" / "mnist.toml"
INSTALLED = "1.31.1"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_MOBILE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GRADLE_USER_HOME", str(tmp_path / "gradle"))
    monkeypatch.setenv("HOME", str(tmp_path))


def config(*targets: Target, build: BuildConfig | None = None, runs: tuple[RunConfig, ...] = ()) -> Config:
    fixed = VariantsConfig(styles=(Style.FIXED,))
    models = (ModelConfig(path="m.onnx"),)
    return Config(
        name="c", models=models, targets=targets, runs=runs, variants=fixed, build=build or BuildConfig()
    )  # fmt: skip


def phone(given: Path | str | None = None, *abis: str, release: str | None = None) -> Target:
    named = str(given) if given else None
    return Target(name="phone", platform=Platform.ANDROID, abis=abis, library=named, ort_release=release)


def test_a_library_tells_release_kind_and_providers(tmp_path: Path) -> None:
    target = phone(official_aar(tmp_path / "a.aar", "1.23.2"), "arm64-v8a")
    found = shipped_library(target, config(target), INSTALLED)
    assert found.runtime == Runtime(
        release=Release(1, 23), providers=frozenset({"cpu", "nnapi", "xnnpack"}), system="android", abis=("arm64-v8a",)
    )
    assert found.findings == ()
    assert set(found.sizes) == {"arm64-v8a"}
    assert library_release(target) == "1.23"
    assert oldest_release(config(target, phone(release="1.28")).targets) == "1.23"


def test_without_a_build_table_a_target_has_the_full_package() -> None:
    found = planned_runtime(phone(release="1.22"), config(build=BuildConfig(max_library_bytes={"x86": 1})), INSTALLED)
    assert found == Runtime(release=Release(1, 22), abis=("arm64-v8a",), system="android")
    assert planned_runtime(phone(), config(), INSTALLED).release == Release(1, 31)


@pytest.mark.parametrize(
    ("build", "runs", "kind", "providers"),
    [
        (BuildConfig(lto=False), (), BuildKind.MINIMAL, frozenset({"cpu"})),
        (
            BuildConfig(lto=False),
            (RunConfig(provider=("nnapi", "cpu")),),
            BuildKind.EXTENDED,
            frozenset({"cpu", "nnapi"}),
        ),
        (BuildConfig(kind=BuildKind.FULL), (RunConfig(provider="coreml"),), BuildKind.FULL, frozenset({"cpu"})),
        (
            BuildConfig(providers=("xnnpack",)),
            (RunConfig(provider="nnapi"),),
            BuildKind.EXTENDED,
            frozenset({"cpu", "xnnpack"}),
        ),
    ],
)
def test_a_build_table_decides_kind_and_providers(
    build: BuildConfig, runs: tuple[RunConfig, ...], kind: BuildKind, providers: frozenset[str]
) -> None:
    found = planned_runtime(phone(), config(build=build, runs=runs), INSTALLED)
    assert found.kind is kind
    assert found.providers == providers


def findings_of(target: Target) -> list[tuple[str, str]]:
    found = shipped_library(target, config(target), INSTALLED)
    return [(finding.severity.value, finding.what) for finding in found.findings]


def test_libraries_that_cannot_ship_are_errors(tmp_path: Path) -> None:
    arm = official_aar(tmp_path / "arm.aar", abis=("arm64-v8a",))
    assert findings_of(phone(arm, "arm64-v8a", "x86_64")) == [
        ("error", "the library that ships has nothing for x86_64")
    ]
    assert findings_of(phone(arm, release="1.27")) == [
        ("error", "the library that ships is ONNX Runtime 1.28.0, not 1.27")
    ]
    assert findings_of(phone(arm, release="1.28")) == []
    assert findings_of(phone(wheel_library())) == [("error", "the library that ships was built for linux")]


def test_damaged_libraries_are_errors_and_absent_ones_warnings(tmp_path: Path) -> None:
    cut = official_aar(tmp_path / "cut.aar")
    cut.write_bytes(cut.read_bytes()[:300])
    assert [severity for severity, _ in findings_of(phone(cut))] == ["error"]
    assert [severity for severity, _ in findings_of(phone(tmp_path / "none.aar"))] == ["warning"]
    assert [severity for severity, _ in findings_of(phone("android:9.8.7"))] == ["warning"]


def test_small_pages_of_any_library_in_the_package_are_a_warning(tmp_path: Path) -> None:
    path = official_aar(tmp_path / "a.aar")
    with zipfile.ZipFile(path, "a") as archive:
        for abi in ("arm64-v8a", "x86_64"):
            archive.writestr(f"jni/{abi}/libother.so", library(abi, alignment=4096))
    assert findings_of(phone(path, "arm64-v8a")) == [
        ("warning", "jni/arm64-v8a/libother.so cannot be loaded on phones with 16 KB pages")
    ]


def test_the_budget_holds_the_largest_library_of_an_abi(tmp_path: Path) -> None:
    target = phone(official_aar(tmp_path / "a.aar"), "arm64-v8a")
    small = config(target, build=BuildConfig(max_library_bytes={"arm64-v8a": 10}))
    found = shipped_library(target, small, INSTALLED)
    (finding,) = budget_findings([found], small)
    assert "over budget" in finding.what
    enough = config(target, build=BuildConfig(max_library_bytes={"arm64-v8a": 10_000}))
    assert budget_findings([found], enough) == ()


def test_a_budget_without_a_library_is_told() -> None:
    target = phone(release="1.29")
    limited = config(target, build=BuildConfig(max_library_bytes={"arm64-v8a": 10}))
    (finding,) = shipped_library(target, limited, INSTALLED).findings
    assert finding.severity is Severity.WARNING
    assert "ort-mobile build run" in finding.remedy


def apple(release: str) -> Target:
    return Target(name="pad", platform=Platform.IOS, ort_release=release)


@pytest.mark.parametrize(
    ("target", "what"),
    [
        (phone(release="1.30"), "no Android package (AAR) of ONNX Runtime 1.30 is known"),
        (phone(release="1.29"), ""),
        (phone(release="1.24"), ""),
        (apple("1.29"), "no Swift package of ONNX Runtime 1.29 is known"),
        (apple("1.24.1"), ""),
        (Target(name="box", platform=Platform.LINUX, ort_release="1.30"), ""),
    ],
)
def test_releases_without_a_known_package_are_warnings(target: Target, what: str) -> None:
    assert [said for _, said in findings_of(target)] == ([what] if what else [])


def test_the_example_names_releases_with_packages() -> None:
    example = read_config(EXAMPLE)
    assert [shipped_library(target, example, INSTALLED).findings for target in example.targets] == [(), (), ()]


def test_a_package_in_a_cache_and_builds_of_ones_own_need_no_published_one(tmp_path: Path) -> None:
    archive = official_aar(tmp_path / "a.aar", "1.30.1")
    keep(archive.read_bytes(), file="a.aar", name=NamedLibrary(release="1.30.1"), source="", licence="MIT")
    assert findings_of(phone(release="1.30")) == []
    own = config(apple("1.29"), build=BuildConfig(lto=False))
    assert shipped_library(own.targets[0], own, INSTALLED).findings == ()
    named = ReleaseConfig(apple=AppleRelease(onnxruntime="1.29.0"))
    given = msgspec.structs.replace(config(apple("1.29")), release=named)
    assert shipped_library(given.targets[0], given, INSTALLED).findings == ()


def test_one_bad_artifact_costs_no_other(tmp_path: Path) -> None:
    good = convert(linear(8), tmp_path / "good.ort")
    bad = tmp_path / "bad.ort"
    bad.write_bytes(good.read_bytes()[:100])
    same = tmp_path / "same.ort"
    same.hardlink_to(good)
    paths = {"good": good, "bad": bad, "gone": tmp_path / "gone.ort", "same": same, "other": tmp_path / "m.onnx"}
    read = read_artifacts(paths)
    facts = {name: found for name, found in read.items() if isinstance(found, ArtifactFacts)}
    assert set(facts) == {"good", "same"}
    assert facts["same"].name == "same"
    newest = Runtime(release=Release(1, 31))
    for name in ("bad", "gone"):
        (finding,) = findings_for(read, name, newest, RunOptions())
        assert finding.severity is Severity.ERROR
        assert finding.where == name
    assert findings_for(read, "good", newest, RunOptions()) == ()
    assert findings_for(read, "other", newest, RunOptions()) == ()
    (finding,) = errors(findings_for(read, "good", Runtime(release=Release(1, 15)), RunOptions()))
    assert first_error([finding]) == finding.text
    assert finding.text.startswith("ONNX Runtime 1.15 (full) does not load ORT format version 6")


@pytest.fixture
def local(tmp_path: Path) -> LocalDevice:
    return LocalDevice(tmp_path / "no probe is run")


def test_what_this_computer_loads_is_known_and_what_is_no_library_left_to_the_device(
    local: LocalDevice, tmp_path: Path
) -> None:
    found = present(runtime_on(local, None))
    assert found.kind is BuildKind.FULL
    assert (found.providers, found.plugins) == (frozenset({"cpu"}), frozenset({"qnn", "webgpu"}))  # by packages
    given = present(runtime_on(local, None, {"webgpu"}))
    assert given.plugins == frozenset({"qnn", "webgpu"})
    garbage = tmp_path / "libonnxruntime.so"
    garbage.write_bytes(b"none")
    for named in (str(garbage), "nowhere", "wheel:9.8.7"):
        assert runtime_on(local, named) is None


@pytest.mark.parametrize(
    ("groups", "given", "ran"),
    [(2, ({},), ["NCHW"]), (1, ({},), [""]), (2, ({LAYOUT: "NHWC"},), []), (2, ({}, {LAYOUT: "NCHW"}), ["NCHW"])],
)
def test_a_gpu_runs_in_the_layout_that_computes_right_where_none_is_named(
    groups: int, given: tuple[dict[str, str], ...], ran: list[str], local: LocalDevice, tmp_path: Path
) -> None:
    weights = np.ones((12, 8 // groups, 3, 3), np.float32)
    model = parsed(f"g (float[1, 8, 6, 6] x) => (float[1, 12, 4, 4] y) {{ y = Conv<group={groups}>(x, w) }}", w=weights)
    read = read_artifacts({"m.ort": convert(model, tmp_path / "m.ort", level="basic")})
    lane = lanes_of(["local"], 1)[0]
    lanes = [replace(lane, options=RunOptions(provider="webgpu", provider_options=options)) for options in given]
    possible, skipped = possible_runs(lanes, read, {"local": local}, {"local": None}, ["webgpu"], change_layout=True)
    assert [run.options.provider_options.get(LAYOUT, "") for run in possible] == ran
    instead = [row.text.startswith(f"run as {lane.variant}/webgpu+{LAYOUT}=NCHW in its place: ") for row in skipped]
    assert instead == [{} in given] * (groups == 2)


@pytest.mark.parametrize("given", ["a.aar", "a.jar", "jvm:1.12.1"])
def test_a_run_in_an_archive_or_a_release_that_cannot_load_the_artifact_is_refused(
    given: str, local: LocalDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    official_aar(Path("a.aar"), "1.12.1")
    jar = official_jar(Path("a.jar"), "1.12.1")
    keep(
        jar.read_bytes(), file="a.jar", name=NamedLibrary(scheme="jvm", release="1.12.1"), source="here", licence="MIT"
    )
    read = read_artifacts({"m.ort": convert(linear(8), tmp_path / "m.ort")})
    artifact = lanes_of(["local"], 1)[0]
    possible, (skipped,) = possible_runs([artifact], read, {"local": local}, {"local": given})
    assert possible == []
    assert skipped.text.startswith("ONNX Runtime 1.12 (full) does not load ORT format version 6")
