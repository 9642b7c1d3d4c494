"""From a request to the exact commands, files and notes of a build.

Pure: nothing is run, nothing written. The options are those of ONNX Runtime's own scripts; tests hold them against the
scripts' argument parsers.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import msgspec

from pipeline import config as configs
from pipeline import required_ops
from pipeline.config import tables as config_tables
from pipeline.core import providers as provider_rules
from pipeline.core import releases as ort_releases
from pipeline.ort_build.request import (
    ANDROID_TARGET_SDK,
    ASSET_CACHE_SINCE,
    PAGE_16K_JNI_SINCE,
    PAGE_16K_SINCE,
    REDUCED_IN_BUILD_TREE_SINCE,
    Request,
    minimum_version,
)
from pipeline.required_ops import value as required_ops_value

ASSET_CACHE_FLAG = "--use_vcpkg_ms_internal_asset_cache"


class BuildNote(msgspec.Struct, frozen=True, kw_only=True):
    """Something that no option settles, and where it comes from."""

    text: str
    source: str


EXTENDED_OPTIMIZERS = {
    "QDQSelectorActionTransformer": "extended, recorded",
    "ConvActivationFusion": "extended, recorded",
    "MatMulNBitsFusion": "extended, recorded",
    "QDQFinalCleanupTransformer": "extended",
    "NhwcTransformer": "layout and all",
}
"""The optimizers of an extended build, with the level; recorded ones do what a file of runtime style has recorded
(GenerateTransformersForMinimalBuild in onnxruntime/core/optimizer/graph_transformer_utils.cc)."""

_NOTES: tuple[tuple[Callable[[Request], bool], str, str], ...] = (
    (
        lambda r: r.release < REDUCED_IN_BUILD_TREE_SINCE and r.operators is not None,
        "the reduction edits the source tree in place: run `git reset --hard` in it before another config",
        "1.10 and older",
    ),
    (
        lambda r: r.target.platform is configs.Platform.ANDROID and r.release >= ASSET_CACHE_SINCE,
        (
            f"build_aar_package.py passes {ASSET_CACHE_FLAG}, which blocks all downloads outside Microsoft and which "
            "no setting turns off: remove it from that file in your source tree"
        ),
        "1.21.0 and newer",
    ),
    (
        lambda r: r.target.platform is configs.Platform.ANDROID and r.release < PAGE_16K_SINCE,
        "16 KB pages by a linker flag of the plan: the release has none of its own",
        "pull 22076",
    ),
    (
        lambda r: r.target.platform is configs.Platform.ANDROID and PAGE_16K_SINCE <= r.release < PAGE_16K_JNI_SINCE,
        "16 KB pages of libonnxruntime4j_jni.so by a linker flag of the plan",
        "pull 24947",
    ),
    (
        lambda r: r.settings.wheel,
        "the wheel converts models on this computer: it is full, with all operators",
        "build.py",
    ),
    (
        lambda r: r.target.platform is configs.Platform.LINUX and bool({"arm64", "aarch64"} & set(r.abis)),
        (
            "build.py compiles for the computer it runs on: run this on an arm64 machine, or give a toolchain in "
            "[build] defines (CMAKE_TOOLCHAIN_FILE)"
        ),
        "build.py: --arm64 is for Windows",
    ),
    (
        lambda r: r.kind is config_tables.BuildKind.EXTENDED,
        "at load it optimizes by {} alone; all else is done when the file is converted".format(
            ", ".join(f"{name} ({level})" for name, level in EXTENDED_OPTIMIZERS.items())
        ),
        "graph_transformer_utils.cc of 1.21",
    ),
    (
        lambda r: r.settings.dependencies is config_tables.Dependencies.SYSTEM,
        "libraries of this system are linked in: the library runs where they are installed",
        "system_dependencies.cmake",
    ),
)
"""What no option settles: when it applies, a text, and where it comes from."""


OPERATORS_FILE = "required_operators.config"
SETTINGS_FILE = "build_settings.json"
PROVIDER_FILE = "system_dependencies.cmake"
"""The CMake file that answers ONNX Runtime's dependencies with this system's packages; it lies beside this module."""
SAFEINT_FOLDER = "/usr/include/safeint"
"""Where Debian puts SafeInt's headers, one folder below where ONNX Runtime looks."""

AAR_SCRIPT = "tools/ci_build/github/android/build_aar_package.py"
APPLE_SCRIPT = "tools/ci_build/github/apple/build_apple_framework.py"
BUILD_SCRIPT = "tools/ci_build/build.py"

PAGE_16K = "CMAKE_SHARED_LINKER_FLAGS=-Wl,-z,max-page-size=16384"


class BuildPaths(msgspec.Struct, frozen=True, kw_only=True):
    """Where things lie on the machine that builds; absolute, because the scripts run in their own folder."""

    source: str
    work: str
    python: str = "python3"
    android_sdk: str | None = None
    android_ndk: str | None = None
    as_root: bool = False


SYMBOLIC = BuildPaths(source="SOURCE", work="WORK")
"""Places that make plans of two machines comparable: see `plan_digest`."""


class PlannedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that the commands read, by its path."""

    path: str
    content: str


class BuildStep(msgspec.Struct, frozen=True, kw_only=True):
    """One command: an argument list (never a shell's), and the folder to run it in."""

    name: str
    arguments: tuple[str, ...]
    folder: str


class Product(msgspec.Struct, frozen=True, kw_only=True):
    """A file that the build leaves; `pattern` is a glob below the working folder, `abi` is empty for packages."""

    pattern: str
    abi: str = ""


class BuildPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a build takes: files to write, commands to run in this order, and what comes out."""

    target: str
    platform: configs.Platform
    version: str
    kind: config_tables.BuildKind
    configuration: str
    files: tuple[PlannedFile, ...]
    steps: tuple[BuildStep, ...]
    products: tuple[Product, ...]
    notes: tuple[BuildNote, ...] = ()


def plan_build(request: Request, places: BuildPaths) -> BuildPlan:
    """The plan of one request. Which script does it depends on the platform."""
    files, steps, products = _PLANNERS[request.target.platform](request, places)
    operators: tuple[PlannedFile, ...] = ()
    if request.operators is not None:
        operators = (
            PlannedFile(path=_in(places.work, OPERATORS_FILE), content=required_ops.render(request.operators)),
        )
    return BuildPlan(
        target=request.target.name,
        platform=request.target.platform,
        version=request.version,
        kind=request.kind,
        configuration=request.settings.configuration.value,
        files=(*operators, *files),
        steps=steps,
        products=products,
        notes=tuple(BuildNote(text=text, source=source) for applies, text, source in _NOTES if applies(request)),
    )


def plan_digest(request: Request, *, operators: bool = True) -> str:
    """Hex SHA-256 of what a build does, whatever the machine: equal plans on equal sources give equal libraries.

    Without the lines of `operators`, builds with one digest can share a build tree: from 1.11 reduced sources are
    generated below it, so that another operator config compiles a few files anew instead of all.
    """
    plan = plan_build(request, SYMBOLIC)
    files = tuple(file for file in plan.files if operators or not file.path.endswith(OPERATORS_FILE))
    bare = msgspec.structs.replace(plan, notes=(), target="", files=files)
    return hashlib.sha256(msgspec.json.encode(bare)).hexdigest()


_Parts = tuple[tuple[PlannedFile, ...], tuple[BuildStep, ...], tuple[Product, ...]]


def _in(folder: str, *parts: str) -> str:
    return str(PurePosixPath(folder, *parts))


def _operators_argument(request: Request, places: BuildPaths) -> list[str]:
    return [] if request.operators is None else [f"--include_ops_by_config={_in(places.work, OPERATORS_FILE)}"]


def has_ml_ops(request: Request) -> bool:
    """Whether the build keeps ai.onnx.ml: as the settings say, else when the operators need it or are not known."""
    if request.settings.ml_ops is not None:
        return request.settings.ml_ops
    operators = request.operators
    return operators is None or operators.everything or any(domain == "ai.onnx.ml" for domain, _ in operators.operators)


def _registers(request: Request) -> bool:
    """Whether a minimal build must be able to register custom operators: its operators are of other domains, too."""
    domains = {domain for domain, _ in request.operators.operators} if request.operators else set()
    return request.kind is not config_tables.BuildKind.FULL and not domains <= required_ops_value.KNOWN_DOMAINS


_Rule = tuple[Callable[[Request], bool], Callable[[Request], str]]

_COMMON: tuple[_Rule, ...] = (
    (lambda r: r.settings.lto, lambda _: "--enable_lto"),
    (lambda r: r.kind is config_tables.BuildKind.MINIMAL or _registers(r), lambda _: "--minimal_build"),
    (lambda r: r.kind is config_tables.BuildKind.EXTENDED and not _registers(r), lambda _: "--minimal_build=extended"),
    (lambda r: r.kind is config_tables.BuildKind.EXTENDED and _registers(r), lambda _: "extended"),
    (_registers, lambda _: "custom_ops"),
    (
        lambda r: r.settings.reduce_types and r.operators is not None and r.operators != required_ops.EMPTY,
        lambda _: "--enable_reduced_operator_type_support",
    ),
    (lambda r: not has_ml_ops(r), lambda _: "--disable_ml_ops"),
    (lambda r: not r.settings.contrib_ops, lambda _: "--disable_contrib_ops"),
    (lambda r: not r.settings.exceptions, lambda _: "--disable_exceptions"),
    (lambda r: r.settings.jobs is None, lambda _: "--parallel"),
    (lambda r: r.settings.jobs is not None, lambda r: f"--parallel={r.settings.jobs}"),
)
"""Options of build.py that depend on the request, in this order."""

_ALWAYS = ("--skip_tests", "--skip_submodule_sync", "--cmake_extra_defines=onnxruntime_BUILD_UNIT_TESTS=OFF")
"""Unit tests would double the time, and a tree from an archive has no submodules to update."""


def _common(request: Request) -> list[str]:
    options = [text(request) for applies, text in _COMMON if applies(request)] + list(_ALWAYS)
    options += [provider_rules.BUILD_PROVIDERS[name].flag for name in request.providers]
    return options + [f"--cmake_extra_defines={key}={value}" for key, value in sorted(request.settings.defines.items())]


def _json(document: object) -> str:
    return json.dumps(document, indent=2) + "\n"


def _root(places: BuildPaths) -> list[str]:
    """ONNX Runtime refuses to be built by root unless told so."""
    return ["--allow_running_as_root"] if places.as_root else []


def _android(request: Request, places: BuildPaths) -> _Parts:
    lowest = int(minimum_version(configs.Platform.ANDROID, request.release) or 21)
    api_level = request.target.min_api_level or lowest
    params = ["--android", "--cmake_generator=Ninja", "--build_java", "--build_shared_lib", *_common(request)]
    params += [f"--cmake_extra_defines={PAGE_16K}"] if request.release < PAGE_16K_JNI_SINCE else []
    settings = {
        "build_abis": list(request.abis),
        "android_min_sdk_version": api_level,
        "android_target_sdk_version": max(ort_releases.at_release(ANDROID_TARGET_SDK, request.release), api_level),
        "build_params": params + _root(places),
    }
    folder = _in(places.work, "android")
    configuration = request.settings.configuration.value
    settings_path = _in(places.work, SETTINGS_FILE)
    arguments = [
        places.python,
        _in(places.source, AAR_SCRIPT),
        *([f"--android_sdk_path={places.android_sdk}"] if places.android_sdk else []),
        *([f"--android_ndk_path={places.android_ndk}"] if places.android_ndk else []),
        f"--build_dir={folder}",
        f"--config={configuration}",
        *_operators_argument(request, places),
        settings_path,
    ]
    libraries = tuple(
        Product(pattern=f"android/intermediates/{abi}/{configuration}/libonnxruntime.so", abi=abi)
        for abi in request.abis
    )
    return (
        (PlannedFile(path=settings_path, content=_json(settings)),),
        (BuildStep(name=f"AAR for {', '.join(request.abis)}", arguments=tuple(arguments), folder=places.source),),
        (*libraries, Product(pattern=f"android/aar_out/{configuration}/**/*.aar")),
    )


def _apple(request: Request, places: BuildPaths) -> _Parts:
    lowest = request.target.min_os_version or minimum_version(request.target.platform, request.release)
    system, sysroots = "--ios", {"iphoneos": list(request.abis), "iphonesimulator": ["arm64", "x86_64"]}
    if request.target.platform is configs.Platform.MACOS:
        system, sysroots = "--macos=MacOSX", {"macosx": list(request.abis)}
    params = {"base": ["--use_xcode", "--build_apple_framework", *_common(request)]}
    params |= {sysroot: [system, f"--apple_deploy_target={lowest}"] for sysroot in sysroots}
    settings_path = _in(places.work, SETTINGS_FILE)
    arguments = [
        places.python,
        _in(places.source, APPLE_SCRIPT),
        f"--build_dir={_in(places.work, 'apple')}",
        f"--config={request.settings.configuration.value}",
        *_operators_argument(request, places),
        settings_path,
    ]
    frameworks = tuple(
        Product(pattern=f"apple/intermediates/frameworks/{sysroot}/onnxruntime.framework/onnxruntime", abi=sysroot)
        for sysroot in sysroots
    )
    return (
        (PlannedFile(path=settings_path, content=_json({"build_osx_archs": sysroots, "build_params": params})),),
        (BuildStep(name=f"xcframework for {', '.join(sysroots)}", arguments=tuple(arguments), folder=places.source),),
        (*frameworks, Product(pattern="apple/framework_out/onnxruntime.xcframework")),
    )


def _linux(request: Request, places: BuildPaths) -> _Parts:
    files: tuple[PlannedFile, ...] = ()
    defines = []
    if (
        request.settings.dependencies is config_tables.Dependencies.SYSTEM
    ):  # this system's packages in place of downloads
        provider = _in(places.work, PROVIDER_FILE)
        files = (PlannedFile(path=provider, content=Path(__file__).with_name(PROVIDER_FILE).read_text("utf-8")),)
        defines = [f"CMAKE_PROJECT_TOP_LEVEL_INCLUDES={provider}", f"CMAKE_INCLUDE_PATH={SAFEINT_FOLDER}"]
        defines.append("FETCHCONTENT_FULLY_DISCONNECTED=ON")
        if request.settings.onnx_source:
            defines.append(f"FETCHCONTENT_SOURCE_DIR_ONNX={request.settings.onnx_source}")
    # `1.23` as a glob over its patch releases, `1.23.2` as it is
    version = request.version if request.version.count(".") == 2 else f"{request.version}.*"
    folder = _in(places.work, "linux")
    configuration = request.settings.configuration.value
    arguments = [
        places.python,
        _in(places.source, BUILD_SCRIPT),
        f"--build_dir={folder}",
        f"--config={configuration}",
        "--update",
        "--build",
        "--build_shared_lib",
        "--cmake_generator=Ninja",
        "--compile_no_warning_as_error",
        *(["--build_wheel"] if request.settings.wheel else []),
        *_common(request),
        *(f"--cmake_extra_defines={define}" for define in defines),
        *_operators_argument(request, places),
        *_root(places),
    ]
    products = [Product(pattern=f"linux/{configuration}/libonnxruntime.so.{version}", abi=abi) for abi in request.abis]
    products += [Product(pattern=f"linux/{configuration}/dist/*.whl")] if request.settings.wheel else []
    step = BuildStep(name=f"library for {request.abis[0]}", arguments=tuple(arguments), folder=places.source)
    return files, (step,), tuple(products)


_PLANNERS: dict[configs.Platform, Callable[[Request, BuildPaths], _Parts]] = {
    configs.Platform.ANDROID: _android,
    configs.Platform.IOS: _apple,
    configs.Platform.MACOS: _apple,
    configs.Platform.LINUX: _linux,
}


BUILD_ARGS = "tools/ci_build/build_args.py"
"""Where build.py keeps its parser from 1.22."""
