"""From a request to the exact commands, files and notes of a build. Pure: nothing is run, nothing written.

The options are those of ONNX Runtime's own scripts; tests hold them against the scripts' argument parsers.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

import msgspec

from pipeline.config import Platform
from pipeline.config.tables import BuildKind, Dependencies
from pipeline.core.providers import BUILD_PROVIDERS
from pipeline.core.releases import at_release
from pipeline.ort_build.request import (
    ANDROID_TARGET_SDK,
    ASSET_CACHE_SINCE,
    PAGE_16K_JNI_SINCE,
    PAGE_16K_SINCE,
    REDUCED_IN_BUILD_TREE_SINCE,
    Request,
    minimum_version,
)
from pipeline.required_ops import EMPTY, render

ASSET_CACHE_FLAG = "--use_vcpkg_ms_internal_asset_cache"


class BuildNote(msgspec.Struct, frozen=True, kw_only=True):
    """Something that no option settles, and where it comes from."""

    text: str
    source: str


_NOTES: tuple[tuple[Callable[[Request], bool], str, str], ...] = (
    (
        lambda r: r.release < REDUCED_IN_BUILD_TREE_SINCE and r.operators is not None,
        "the reduction edits the source tree in place: run `git reset --hard` in it before another config",
        "1.10 and older",
    ),
    (
        lambda r: r.target.platform is Platform.ANDROID and r.release >= ASSET_CACHE_SINCE,
        (
            f"build_aar_package.py passes {ASSET_CACHE_FLAG}, which blocks all downloads outside Microsoft and which "
            "no setting turns off: remove it from that file in your source tree"
        ),
        "1.21.0 and newer",
    ),
    (
        lambda r: r.target.platform is Platform.ANDROID and r.release < PAGE_16K_SINCE,
        "16 KB pages by a linker flag of the plan: the release has none of its own",
        "pull 22076",
    ),
    (
        lambda r: r.target.platform is Platform.ANDROID and PAGE_16K_SINCE <= r.release < PAGE_16K_JNI_SINCE,
        "16 KB pages of libonnxruntime4j_jni.so by a linker flag of the plan",
        "pull 24947",
    ),
    (
        lambda r: r.settings.wheel,
        "the wheel converts models on this computer: it is full, with all operators",
        "build.py",
    ),
    (
        lambda r: r.target.platform is Platform.LINUX and bool({"arm64", "aarch64"} & set(r.abis)),
        (
            "build.py compiles for the computer it runs on: run this on an arm64 machine, or give a toolchain in "
            "[build] defines (CMAKE_TOOLCHAIN_FILE)"
        ),
        "build.py: --arm64 is for Windows",
    ),
    (
        lambda r: r.settings.dependencies is Dependencies.SYSTEM,
        "libraries of this system are linked in: the library runs where they are installed",
        "system_dependencies.cmake",
    ),
)
"""What no option settles: when it applies, a text, and where it comes from."""


def notes_for(request: Request) -> tuple[BuildNote, ...]:
    """The notes that apply to a request, in the order of the table."""
    return tuple(BuildNote(text=text, source=source) for applies, text, source in _NOTES if applies(request))


OPERATORS_FILE = "required_operators.config"
SETTINGS_FILE = "build_settings.json"
PROVIDER_FILE = "system_dependencies.cmake"
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
    platform: Platform
    version: str
    kind: BuildKind
    configuration: str
    files: tuple[PlannedFile, ...]
    steps: tuple[BuildStep, ...]
    products: tuple[Product, ...]
    notes: tuple[BuildNote, ...] = ()


def plan_build(request: Request, places: BuildPaths) -> BuildPlan:
    """The plan of one request. Which script does it depends on the platform."""
    files, steps, products = _PLANNERS[request.target.platform](request, places)
    return BuildPlan(
        target=request.target.name,
        platform=request.target.platform,
        version=request.version,
        kind=request.kind,
        configuration=request.settings.configuration.value,
        files=(*_operators_file(request, places), *files),
        steps=steps,
        products=products,
        notes=notes_for(request),
    )


def plan_digest(request: Request) -> str:
    """Hex SHA-256 of what a build does, whatever the machine: equal plans on equal sources give equal libraries."""
    return hashlib.sha256(msgspec.json.encode(_bare(plan_build(request, SYMBOLIC)))).hexdigest()


def build_tree_digest(request: Request) -> str:
    """As `plan_digest` without the operators' own lines: builds that share this can share a build tree.

    From 1.11 reduced sources are generated below the build tree, so that another operator config compiles a few files
    anew instead of all.
    """
    plan = _bare(plan_build(request, SYMBOLIC))
    files = tuple(file for file in plan.files if not file.path.endswith(OPERATORS_FILE))
    return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(plan, files=files))).hexdigest()


def _bare(plan: BuildPlan) -> BuildPlan:
    return msgspec.structs.replace(plan, notes=(), target="")


_Parts = tuple[tuple[PlannedFile, ...], tuple[BuildStep, ...], tuple[Product, ...]]


def _operators_file(request: Request, places: BuildPaths) -> tuple[PlannedFile, ...]:
    if request.operators is None:
        return ()
    return (PlannedFile(path=_in(places.work, OPERATORS_FILE), content=render(request.operators)),)


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


def _reduces_types(request: Request) -> bool:
    return request.settings.reduce_types and request.operators is not None and request.operators != EMPTY


_Rule = tuple[Callable[[Request], bool], Callable[[Request], str]]

_COMMON: tuple[_Rule, ...] = (
    (lambda r: r.settings.lto, lambda _: "--enable_lto"),
    (lambda r: r.kind is BuildKind.MINIMAL, lambda _: "--minimal_build"),
    (lambda r: r.kind is BuildKind.EXTENDED, lambda _: "--minimal_build=extended"),
    (_reduces_types, lambda _: "--enable_reduced_operator_type_support"),
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
    options += [BUILD_PROVIDERS[name].flag for name in request.providers]
    return options + [f"--cmake_extra_defines={key}={value}" for key, value in sorted(request.settings.defines.items())]


def _json(document: object) -> str:
    return json.dumps(document, indent=2) + "\n"


def _root(places: BuildPaths) -> list[str]:
    """ONNX Runtime refuses to be built by root unless told so."""
    return ["--allow_running_as_root"] if places.as_root else []


def _android(request: Request, places: BuildPaths) -> _Parts:
    lowest = int(minimum_version(Platform.ANDROID, request.release) or 21)
    api_level = request.target.min_api_level or lowest
    params = ["--android", "--cmake_generator=Ninja", "--build_java", "--build_shared_lib", *_common(request)]
    params += [f"--cmake_extra_defines={PAGE_16K}"] if request.release < PAGE_16K_JNI_SINCE else []
    settings = {
        "build_abis": list(request.abis),
        "android_min_sdk_version": api_level,
        "android_target_sdk_version": max(at_release(ANDROID_TARGET_SDK, request.release), api_level),
        "build_params": params + _root(places),
    }
    folder = _in(places.work, "android")
    configuration = request.settings.configuration.value
    settings_path = _in(places.work, SETTINGS_FILE)
    arguments = [
        places.python, _in(places.source, AAR_SCRIPT),
        *([f"--android_sdk_path={places.android_sdk}"] if places.android_sdk else []),
        *([f"--android_ndk_path={places.android_ndk}"] if places.android_ndk else []),
        f"--build_dir={folder}", f"--config={configuration}", *_operators_argument(request, places), settings_path,
    ]  # fmt: skip
    libraries = tuple(
        Product(pattern=f"android/intermediates/{abi}/{configuration}/libonnxruntime.so", abi=abi)
        for abi in request.abis
    )
    return (
        (PlannedFile(path=settings_path, content=_json(settings)),),
        (BuildStep(name=f"AAR for {', '.join(request.abis)}", arguments=tuple(arguments), folder=places.source),),
        (*libraries, Product(pattern=f"android/aar_out/{configuration}/**/*.aar")),
    )


def _sysroots(request: Request) -> dict[str, list[str]]:
    if request.target.platform is Platform.MACOS:
        return {"macosx": list(request.abis)}
    return {"iphoneos": list(request.abis), "iphonesimulator": ["arm64", "x86_64"]}


def _apple(request: Request, places: BuildPaths) -> _Parts:
    lowest = request.target.min_os_version or minimum_version(request.target.platform, request.release)
    system = "--macos=MacOSX" if request.target.platform is Platform.MACOS else "--ios"
    sysroots = _sysroots(request)
    params = {"base": ["--use_xcode", "--build_apple_framework", *_common(request)]}
    params |= {sysroot: [system, f"--apple_deploy_target={lowest}"] for sysroot in sysroots}
    settings_path = _in(places.work, SETTINGS_FILE)
    arguments = [
        places.python, _in(places.source, APPLE_SCRIPT), f"--build_dir={_in(places.work, 'apple')}",
        f"--config={request.settings.configuration.value}", *_operators_argument(request, places), settings_path,
    ]  # fmt: skip
    frameworks = tuple(
        Product(pattern=f"apple/intermediates/frameworks/{sysroot}/onnxruntime.framework/onnxruntime", abi=sysroot)
        for sysroot in sysroots
    )
    return (
        (PlannedFile(path=settings_path, content=_json({"build_osx_archs": sysroots, "build_params": params})),),
        (BuildStep(name=f"xcframework for {', '.join(sysroots)}", arguments=tuple(arguments), folder=places.source),),
        (*frameworks, Product(pattern="apple/framework_out/onnxruntime.xcframework")),
    )


def _system_defines(request: Request, places: BuildPaths) -> Iterator[str]:
    """CMake definitions that put this system's packages in place of downloads; see `system_dependencies.cmake`."""
    yield f"CMAKE_PROJECT_TOP_LEVEL_INCLUDES={_in(places.work, PROVIDER_FILE)}"
    yield f"CMAKE_INCLUDE_PATH={SAFEINT_FOLDER}"
    yield "FETCHCONTENT_FULLY_DISCONNECTED=ON"
    if request.settings.onnx_source:
        yield f"FETCHCONTENT_SOURCE_DIR_ONNX={request.settings.onnx_source}"


def _linux(request: Request, places: BuildPaths) -> _Parts:
    system = request.settings.dependencies is Dependencies.SYSTEM
    folder = _in(places.work, "linux")
    configuration = request.settings.configuration.value
    arguments = [
        places.python, _in(places.source, BUILD_SCRIPT), f"--build_dir={folder}", f"--config={configuration}",
        "--update", "--build", "--build_shared_lib", "--cmake_generator=Ninja", "--compile_no_warning_as_error",
        *(["--build_wheel"] if request.settings.wheel else []), *_common(request),
        *([f"--cmake_extra_defines={define}" for define in _system_defines(request, places)] if system else []),
        *_operators_argument(request, places), *_root(places),
    ]  # fmt: skip
    files = (PlannedFile(path=_in(places.work, PROVIDER_FILE), content=provider_text()),) if system else ()
    products = [
        Product(pattern=f"linux/{configuration}/libonnxruntime.so.{full_version(request.version)}", abi=abi)
        for abi in request.abis
    ]
    products += [Product(pattern=f"linux/{configuration}/dist/*.whl")] if request.settings.wheel else []
    step = BuildStep(name=f"library for {request.abis[0]}", arguments=tuple(arguments), folder=places.source)
    return files, (step,), tuple(products)


def provider_text() -> str:
    """The CMake file that answers ONNX Runtime's dependencies with this system's packages."""
    from importlib.resources import files

    return files("pipeline.ort_build").joinpath(PROVIDER_FILE).read_text(encoding="utf-8")


def full_version(version: str) -> str:
    """`1.23` as a glob over its patch releases, `1.23.2` as it is."""
    return version if version.count(".") == 2 else f"{version}.*"


_PLANNERS: dict[Platform, Callable[[Request, BuildPaths], _Parts]] = {
    Platform.ANDROID: _android,
    Platform.IOS: _apple,
    Platform.MACOS: _apple,
    Platform.LINUX: _linux,
}
