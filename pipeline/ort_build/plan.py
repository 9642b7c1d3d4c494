"""From a request to the exact commands, files and notes of a build, and contradictions that would cost hours.

Pure: nothing is run, nothing written. The options are those of ONNX Runtime's own scripts; tests hold them against the
scripts' argument parsers. Settings, target, release and operator config are held against one another before a build.
"""

import ast
import hashlib
import json
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import msgspec

from device_runner import providers as runner_providers
from pipeline import config as configs
from pipeline import required_ops
from pipeline.config import tables as config_tables
from pipeline.core import errors as core_errors
from pipeline.core import providers as provider_rules
from pipeline.core import releases as ort_releases
from pipeline.core.errors import ConfigError, Finding, Severity
from pipeline.core.variant import Style
from pipeline.ort_build.request import (
    ANDROID_TARGET_SDK,
    ASSET_CACHE_SINCE,
    PAGE_16K_JNI_SINCE,
    PAGE_16K_SINCE,
    REDUCED_IN_BUILD_TREE_SINCE,
    Request,
    minimum_version,
    version_key,
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


Options = dict[str, tuple[str, ...] | None]
"""Options of a script by name: the values that one takes where these are few, () for any, None for a flag."""


def options_in(text: str) -> Options:
    """The options that a Python script declares with `add_argument`; raises ValueError when it is no Python."""
    try:
        script = ast.parse(text)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"cannot read the script: {error}") from error
    options: Options = {}
    for node in ast.walk(script):
        match node:
            case ast.Call(func=ast.Attribute(attr="add_argument"), args=[ast.Constant(str(name)), *_], keywords=given):
                if not name.startswith("--"):
                    continue
                keywords = {keyword.arg: _literal(keyword.value) for keyword in given if keyword.arg}
                choices = keywords.get("choices")
                values = tuple(map(str, choices)) if isinstance(choices, list | tuple) else ()
                options[name] = None if str(keywords.get("action", "")).startswith("store_") else values
    return options


def _literal(node: ast.expr) -> object:
    try:
        value: object = ast.literal_eval(node)
    except ValueError:
        return None
    return value


def tree_options(source: Path) -> dict[str, Options]:
    """Options by script of a source tree, for the scripts that plans call. Raises ConfigError when one is missing."""
    options = {}
    for name in (BUILD_SCRIPT, BUILD_ARGS, AAR_SCRIPT, APPLE_SCRIPT):
        if name == BUILD_ARGS and not (source / name).is_file():
            continue
        try:
            options[name] = options_in((source / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                "this is no source tree of ONNX Runtime",
                where=str(source),
                why=f"{name} cannot be read",
                remedy="give the folder that holds VERSION_NUMBER and tools/ci_build",
            ) from error
    options[BUILD_SCRIPT] |= options.pop(BUILD_ARGS, {})
    return options


def unaccepted(plan: BuildPlan, options: dict[str, Options]) -> tuple[str, ...]:
    """What the scripts would refuse of a plan: unknown options, and values that are not among the choices."""
    given = [
        (next(name for name in options if step.arguments[1].endswith(name)), step.arguments[2:]) for step in plan.steps
    ]
    for file in plan.files:
        if file.path.endswith(SETTINGS_FILE):  # what the packaging scripts pass on to build.py
            params = json.loads(file.content)["build_params"]
            groups = params.values() if isinstance(params, dict) else [params]
            given += [(BUILD_SCRIPT, tuple(group)) for group in groups]
    complaints = []
    for script, arguments in given:
        for argument in arguments:
            name, equals, value = argument.partition("=")
            if not name.startswith("--"):
                continue
            if name not in options[script]:
                complaints.append(f"{script} has no option {name}")
            elif (values := options[script][name]) is None and equals:
                complaints.append(f"{name} of {script} takes no value")
            elif values and value and value not in values:
                complaints.append(f"{name} of {script} does not take {value}")
    return tuple(dict.fromkeys(complaints))


def lint(request: Request) -> tuple[Finding, ...]:
    """Everything that speaks against a request, errors first."""
    against = core_errors.findings(
        _RULES,
        request,
        f"target {request.target.name}",
        {
            "kind": request.kind.value,
            "platform": request.target.platform.value,
            "version": request.version,
            "providers": ", ".join(request.providers),
            "absent": ", ".join(_not_on_platform(request)),
            "young": ", ".join(_not_in_release(request)),
            "abis": ", ".join(request.abis),
            "lowest": minimum_version(request.target.platform, request.release) or "",
            "wanted": _wanted_version(request) or "",
            "ml_ops": ", ".join(_operators(request, "ai.onnx.ml")[:5]),
            "contrib_ops": ", ".join(_operators(request, "com.microsoft")[:5]),
            "nchwc_ops": ", ".join(_operators(request, "com.microsoft.nchwc")[:5]),
        },
    )
    return tuple(sorted(against, key=lambda finding: finding.severity is not Severity.ERROR))


def _operators(request: Request, domain: str) -> list[str]:
    """Operators that the operator config lists in a domain."""
    listed = request.operators.operators if request.operators else {}
    return sorted({op for (name, _), ops in listed.items() if name == domain for op in ops})


def _not_on_platform(request: Request) -> list[str]:
    platform, abis = request.target.platform, set(request.abis)
    return [
        name
        for name in request.providers
        if platform not in (provider := provider_rules.BUILD_PROVIDERS[name]).platforms
        or (provider.abis and not abis <= provider.abis)
        or (platform in provider.converting_only and request.kind is not config_tables.BuildKind.FULL)
    ]


def _not_in_release(request: Request) -> list[str]:
    return [name for name in request.providers if request.release < provider_rules.BUILD_PROVIDERS[name].since]


def _wanted_version(request: Request) -> str | None:
    level = request.target.min_api_level
    android = request.target.platform is configs.Platform.ANDROID
    return (str(level) if level else None) if android else request.target.min_os_version


def _below_minimum(request: Request) -> bool:
    version = _wanted_version(request)
    lowest = minimum_version(request.target.platform, request.release)
    return bool(version and lowest) and version_key(version or "") < version_key(lowest or "")


_RULES: tuple[core_errors.FindingRule[Request], ...] = (
    core_errors.FindingRule(
        lambda r: not has_ml_ops(r) and bool(_operators(r, "ai.onnx.ml")),
        Severity.ERROR,
        "the build drops ai.onnx.ml, and the operator config needs {ml_ops}",
        "--disable_ml_ops wins over the operator config (issue 19466)",
        "remove `ml_ops = false` from [build]",
    ),
    core_errors.FindingRule(
        lambda r: not r.settings.contrib_ops and bool(_operators(r, "com.microsoft")),
        Severity.ERROR,
        "the build drops com.microsoft, and the operator config needs {contrib_ops}",
        "--disable_contrib_ops wins over the operator config",
        "remove `contrib_ops = false` from [build], or convert at level basic",
    ),
    core_errors.FindingRule(
        lambda r: not r.settings.contrib_ops and r.needs_contrib_ops,
        Severity.ERROR,
        "XNNPACK cannot be built without com.microsoft",
        "its kernels are in the NHWC part of that domain (cmake refuses both together)",
        "remove `contrib_ops = false` from [build]",
    ),
    core_errors.FindingRule(
        lambda r: r.kind is config_tables.BuildKind.MINIMAL and bool(r.providers),
        Severity.ERROR,
        "a minimal build cannot contain {providers}",
        "providers compile or change the layout at load, which only extended and full builds can",
        'write kind = "extended" (or "auto") in [build]',
    ),
    core_errors.FindingRule(
        lambda r: r.kind is not config_tables.BuildKind.FULL and Style.ONNX in r.styles,
        Severity.ERROR,
        "a build of kind {kind} loads no ONNX file",
        "minimal and extended builds have no parser for it: styles of [variants] has onnx",
        'write kind = "full" (or "auto") in [build], or ship fixed style',
    ),
    core_errors.FindingRule(
        lambda r: r.operators == required_ops.EMPTY,
        Severity.ERROR,
        "the operator config lists no operator",
        "a build with it has no kernel, and loads no model",
        "make it anew with `ort-mobile run`, `convert` or `op-config create`, or leave it out for all operators",
    ),
    core_errors.FindingRule(
        lambda r: r.kind is config_tables.BuildKind.MINIMAL and Style.RUNTIME in r.styles,
        Severity.ERROR,
        "a minimal build does not replay saved runtime optimizations",
        "runtime style artifacts run there without their fusions",
        'write kind = "extended" (or "auto") in [build], or ship fixed style',
    ),
    core_errors.FindingRule(
        lambda r: r.settings.wheel and r.kind is not config_tables.BuildKind.FULL,
        Severity.ERROR,
        "a Python wheel cannot be {kind}",
        "Python bindings are not supported in a minimal build (build.py refuses it)",
        'write kind = "full" (or "auto") in [build]',
    ),
    core_errors.FindingRule(
        lambda r: r.settings.wheel and r.target.platform in (configs.Platform.ANDROID, configs.Platform.IOS),
        Severity.ERROR,
        "there is no Python wheel for {platform}",
        "a wheel is for the computer that converts models",
        "use a linux or macos target for the wheel",
    ),
    core_errors.FindingRule(
        lambda r: not r.settings.exceptions and r.kind is config_tables.BuildKind.FULL,
        Severity.ERROR,
        "a full build needs exceptions",
        "--disable_exceptions requires --minimal_build",
        "remove `exceptions = false` from [build], or build minimal",
    ),
    core_errors.FindingRule(
        lambda r: bool(_not_on_platform(r)),
        Severity.ERROR,
        "{absent} cannot be part of a build of kind {kind} for {platform} {abis}",
        "NNAPI is Android's, CoreML is Apple's, QNN is for arm64-v8a; on Linux they only convert (full builds)",
        "remove it from [build] providers, or make a target of its own",
    ),
    core_errors.FindingRule(
        lambda r: bool(_not_in_release(r)),
        Severity.ERROR,
        "ONNX Runtime {version} cannot be built with {young}",
        "the option came with a later release",
        "choose a newer ort_release",
    ),
    core_errors.FindingRule(
        lambda r: (
            r.settings.dependencies is config_tables.Dependencies.SYSTEM
            and r.target.platform is not configs.Platform.LINUX
        ),
        Severity.ERROR,
        "libraries of this system cannot be built into a library for {platform}",
        "they are compiled for Linux",
        'write dependencies = "download" in [build]',
    ),
    core_errors.FindingRule(
        lambda r: (
            r.settings.dependencies is config_tables.Dependencies.SYSTEM and r.kind is config_tables.BuildKind.FULL
        ),
        Severity.ERROR,
        "system dependencies are for minimal and extended builds",
        "a full build needs ONNX's own library as well",
        'write dependencies = "download" in [build]',
    ),
    core_errors.FindingRule(
        lambda r: r.settings.dependencies is config_tables.Dependencies.SYSTEM and not r.settings.onnx_source,
        Severity.ERROR,
        "with system dependencies the build needs the source of ONNX",
        "minimal builds compile three of its files, which no package contains",
        "unpack the release that cmake/deps.txt of the tree names, and name its folder as onnx_source in [build]",
    ),
    core_errors.FindingRule(
        _below_minimum,
        Severity.WARNING,
        "{platform} {wanted} is below what ONNX Runtime {version} supports",
        "its own packages begin at {lowest}",
        "raise the target's minimum to {lowest}, or choose an older ort_release",
    ),
    core_errors.FindingRule(
        lambda r: (
            any(runner_providers.provider_named(name).nnapi for name in r.providers)
            and 0 < (r.target.min_api_level or 0) < runner_providers.NNAPI_API_LEVEL
        ),
        Severity.WARNING,
        "below API level 27 NNAPI supports no node",
        "the target's min_api_level is {wanted}",
        "nothing, when those phones may run on the CPU; the operator config must cover that",
    ),
    core_errors.FindingRule(
        lambda r: (
            (operators := r.operators) is not None
            and r.settings.reduce_types
            and not operators.everything
            and bool(operators.operators)
            and not operators.types
            and operators.global_types is None
        ),
        Severity.WARNING,
        "types are to be reduced, and the operator config lists none",
        "it was made without types",
        "make it with `ort-mobile op-config create --types`, or write reduce_types = false in [build]",
    ),
    core_errors.FindingRule(
        lambda r: r.operators is None and r.kind is not config_tables.BuildKind.FULL,
        Severity.WARNING,
        "no operator config: the library will contain all operators",
        "",
        "make one with `ort-mobile op-config create ARTIFACT...` and pass it with --op-config",
    ),
    core_errors.FindingRule(
        lambda r: bool(_operators(r, "com.microsoft.nchwc")) and Style.ONNX not in r.styles,
        Severity.WARNING,
        "the operator config lists {nchwc_ops} of com.microsoft.nchwc",
        "a file with them fits the x86 processor that converted it; others give wrong numbers or none",
        "convert again without NchwcTransformer, as `ort-mobile convert` does",
    ),
)
