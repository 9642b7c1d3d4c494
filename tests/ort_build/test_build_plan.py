"""Plans: the exact commands of the usual products, and what holds for all of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from pipeline.config import Platform
from pipeline.config.tables import BuildKind, Dependencies
from pipeline.core.errors import ConfigError
from pipeline.core.variant import Style
from pipeline.ort_build.accepted_options import Options, unaccepted
from pipeline.ort_build.plan import BuildPaths, BuildPlan, plan_build, plan_digest
from pipeline.ort_build.request import Request
from pipeline.required_ops import parse, render
from tests.ort_build.build_requests import OPERATORS, request, requests

HERE = Path(__file__).resolve().parent
PLACES = BuildPaths(source="/src", work="/srv/plan", python="/usr/bin/python3")

ACCEPTED: dict[str, dict[str, dict[str, str | list[str]]]] = json.loads((HERE / "accepted_options.json").read_text())
"""Options by release, script and name: "flag", "value", or the values that it takes. 1.21.0 is Debian's source (the
test with the real scripts holds it against that), the other what build_args.py on main declares."""


def options(release: str) -> dict[str, Options]:
    return {
        script: {
            name: tuple(kind) if isinstance(kind, list) else None if kind == "flag" else ()
            for name, kind in listed.items()
        }
        for script, listed in ACCEPTED[release].items()
    }


def settings_of(plan: BuildPlan) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(next(f.content for f in plan.files if f.path.endswith("build_settings.json")))
    return found


@pytest.mark.parametrize("release", ACCEPTED)
@given(request=requests())
def test_scripts_accept_every_plan(release: str, request: Request) -> None:
    assert unaccepted(plan_build(request, PLACES), options(release)) == ()


@given(request=requests())
def test_digests_depend_on_the_build_and_not_on_the_machine(request: Request) -> None:
    again = plan_build(request, BuildPaths(source="/other", work="/elsewhere", as_root=True, android_sdk="/sdk"))
    assert {step.folder for step in again.steps} == {"/other"}
    assert plan_digest(request) == plan_digest(request)


@given(request=requests())
def test_a_plan_passes_the_operators_on_as_they_are(request: Request) -> None:
    plan = plan_build(request, PLACES)
    given = [argument for step in plan.steps for argument in step.arguments if "--include_ops_by_config" in argument]
    if request.operators is None:
        assert given == []
    else:
        assert given == ["--include_ops_by_config=/srv/plan/required_operators.config"]
        assert plan.files[0].content == render(OPERATORS)


def test_other_operators_are_another_build_in_the_same_tree() -> None:
    more = request(operators=parse("ai.onnx;13;Relu,Conv\n", "c"))
    assert plan_digest(more) != plan_digest(request())
    assert plan_digest(more, operators=False) == plan_digest(request(), operators=False)
    assert plan_digest(request(lto=False), operators=False) != plan_digest(request(), operators=False)


@pytest.mark.parametrize(("kind", "words"), [("minimal", []), ("extended", ["extended"])])
def test_a_minimal_build_for_custom_operators_can_register_them(kind: BuildKind, words: list[str]) -> None:
    operators = parse("ai.onnx;13;Relu\ntest.ops;1;Twice\n", "c")
    content = plan_build(request(operators=operators, kind=BuildKind(kind)), PLACES).files[-1].content
    assert json.dumps(["--minimal_build", *words, "custom_ops"], indent=4)[1:-2].strip() in content
    full = plan_build(request(operators=operators, kind=BuildKind.FULL), PLACES).files[-1].content
    assert '"custom_ops"' not in full


def test_android_reduced_aar() -> None:
    asked = request(
        version="1.21.0", abis=("arm64-v8a", "x86_64"), api_level=27, providers=("nnapi", "xnnpack"), exceptions=False
    )
    plan = plan_build(
        asked, BuildPaths(source="/src", work="/srv/plan", python="/py", android_sdk="/sdk", android_ndk="/ndk")
    )
    (step,) = plan.steps
    assert " ".join(step.arguments) == (
        "/py /src/tools/ci_build/github/android/build_aar_package.py --android_sdk_path=/sdk --android_ndk_path=/ndk "
        "--build_dir=/srv/plan/android --config=MinSizeRel "
        "--include_ops_by_config=/srv/plan/required_operators.config /srv/plan/build_settings.json"
    )
    settings = settings_of(plan)
    assert " ".join(settings.pop("build_params")) == (
        "--android --cmake_generator=Ninja --build_java --build_shared_lib --enable_lto --minimal_build=extended "
        "--enable_reduced_operator_type_support --disable_ml_ops --disable_exceptions --parallel --skip_tests "
        "--skip_submodule_sync --cmake_extra_defines=onnxruntime_BUILD_UNIT_TESTS=OFF --use_nnapi --use_xnnpack "
        "--cmake_extra_defines=CMAKE_SHARED_LINKER_FLAGS=-Wl,-z,max-page-size=16384"
    )
    assert settings == {
        "build_abis": ["arm64-v8a", "x86_64"],
        "android_min_sdk_version": 27,
        "android_target_sdk_version": 34,
    }
    assert [product.pattern for product in plan.products] == [
        "android/intermediates/arm64-v8a/MinSizeRel/libonnxruntime.so",
        "android/intermediates/x86_64/MinSizeRel/libonnxruntime.so",
        "android/aar_out/MinSizeRel/**/*.aar",
    ]


def test_ios_xcframework() -> None:
    plan = plan_build(request(Platform.IOS, os_version="16.0", providers=("coreml",), ml_ops=True, lto=False), PLACES)
    assert " ".join(plan.steps[0].arguments) == (
        "/usr/bin/python3 /src/tools/ci_build/github/apple/build_apple_framework.py --build_dir=/srv/plan/apple "
        "--config=MinSizeRel --include_ops_by_config=/srv/plan/required_operators.config /srv/plan/build_settings.json"
    )
    settings = settings_of(plan)
    assert " ".join(settings["build_params"].pop("base")) == (
        "--use_xcode --build_apple_framework --minimal_build=extended --enable_reduced_operator_type_support "
        "--parallel --skip_tests --skip_submodule_sync --cmake_extra_defines=onnxruntime_BUILD_UNIT_TESTS=OFF "
        "--use_coreml"
    )
    assert settings == {
        "build_osx_archs": {"iphoneos": ["arm64"], "iphonesimulator": ["arm64", "x86_64"]},
        "build_params": {
            "iphoneos": ["--ios", "--apple_deploy_target=16.0"],
            "iphonesimulator": ["--ios", "--apple_deploy_target=16.0"],
        },
    }


def test_macos_framework_takes_the_releases_lowest_version() -> None:
    settings = settings_of(plan_build(request(Platform.MACOS, "1.24.0", providers=("coreml",)), PLACES))
    assert settings["build_params"]["macosx"] == ["--macos=MacOSX", "--apple_deploy_target=14.0"]
    assert settings["build_osx_archs"] == {"macosx": ["arm64", "x86_64"]}


def test_linux_upon_system_packages() -> None:
    asked = request(
        Platform.LINUX, "1.21.0", kind=BuildKind.EXTENDED, lto=False, dependencies=Dependencies.SYSTEM,
        onnx_source="/onnx", jobs=2, ml_ops=True, defines={"Eigen3_DIR": "/eigen"},
    )  # fmt: skip
    plan = plan_build(asked, BuildPaths(source="/src", work="/srv/plan", as_root=True))
    assert " ".join(plan.steps[0].arguments) == (
        "python3 /src/tools/ci_build/build.py --build_dir=/srv/plan/linux --config=MinSizeRel --update --build "
        "--build_shared_lib --cmake_generator=Ninja --compile_no_warning_as_error --minimal_build=extended "
        "--enable_reduced_operator_type_support --parallel=2 --skip_tests --skip_submodule_sync "
        "--cmake_extra_defines=onnxruntime_BUILD_UNIT_TESTS=OFF --cmake_extra_defines=Eigen3_DIR=/eigen "
        "--cmake_extra_defines=CMAKE_PROJECT_TOP_LEVEL_INCLUDES=/srv/plan/system_dependencies.cmake "
        "--cmake_extra_defines=CMAKE_INCLUDE_PATH=/usr/include/safeint "
        "--cmake_extra_defines=FETCHCONTENT_FULLY_DISCONNECTED=ON "
        "--cmake_extra_defines=FETCHCONTENT_SOURCE_DIR_ONNX=/onnx "
        "--include_ops_by_config=/srv/plan/required_operators.config --allow_running_as_root"
    )
    assert [file.path for file in plan.files] == [
        "/srv/plan/required_operators.config",
        "/srv/plan/system_dependencies.cmake",
    ]
    assert plan.products[0].pattern == "linux/MinSizeRel/libonnxruntime.so.1.21.0"


def test_the_converting_wheel_is_full_with_all_operators() -> None:
    plan = plan_build(request(Platform.LINUX, "1.23", wheel=True, run_providers=("nnapi", "cpu")), PLACES)
    arguments = plan.steps[0].arguments
    assert {"--build_wheel", "--use_nnapi"} <= set(arguments)
    assert not [
        a for a in arguments if a.startswith(("--minimal_build", "--include_ops", "--disable_", "--enable_red"))
    ]
    assert plan.kind is BuildKind.FULL
    assert [product.pattern for product in plan.products][-1] == "linux/MinSizeRel/dist/*.whl"


@pytest.mark.parametrize(
    ("run_providers", "styles", "kind"),
    [
        (("cpu",), (Style.FIXED,), BuildKind.MINIMAL),
        (("cpu",), (Style.FIXED, Style.RUNTIME), BuildKind.EXTENDED),
        (("cpu",), (Style.FIXED, Style.ONNX), BuildKind.FULL),
        (("cpu", "nnapi"), (), BuildKind.EXTENDED),
        (("coreml",), (), BuildKind.MINIMAL),  # a campaign for both platforms: CoreML is not Android's
    ],
)
def test_auto_takes_the_smallest_kind(
    run_providers: tuple[str, ...], styles: tuple[Style, ...], kind: BuildKind
) -> None:
    assert request(run_providers=run_providers, styles=styles).kind is kind


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("1.9.0", ["git reset --hard", "16 KB pages by a linker flag"]),
        ("1.19.2", ["16 KB pages by a linker flag"]),
        ("1.20.1", ["libonnxruntime4j_jni.so"]),
        ("1.22.0", ["asset_cache", "libonnxruntime4j_jni.so"]),
        ("1.23.2", ["asset_cache"]),
    ],
)
def test_notes_by_release(version: str, words: list[str]) -> None:
    notes = plan_build(request(version=version), PLACES).notes
    assert len(notes) == len(words)
    assert all(word in note.text for note, word in zip(notes, words, strict=True))


@pytest.mark.parametrize(
    ("platform", "abis", "version", "providers"),
    [
        (Platform.ANDROID, ("arm64",), "1.23.2", ()),
        (Platform.LINUX, ("x86_64", "arm64"), "1.23.2", ()),
        (Platform.IOS, (), "1.16.3", ()),
        (Platform.ANDROID, (), "1.23.2", ("cuda",)),
    ],
)
def test_what_cannot_be_planned_is_a_config_error(
    platform: Platform, abis: tuple[str, ...], version: str, providers: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as raised:
        request(platform, version, abis=abis, providers=providers)
    assert raised.value.remedy
