"""A Swift package of a bundle's models, with a build of ONNX Runtime of one's own in it as a binary target.

An xcframework has the C API alone; a module beside it has those names of ONNX Runtime's Objective-C API that the
classes use. A class for each model opens it as it was released; the sources need Swift 5.9 and that API of 1.16 or
newer (docs/facts/release_consumers.md, R.8, R.9).
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from device_runner.custom_ops import SYMBOL
from device_runner.files import scratch_folder, staging_folder, take_place
from device_runner.providers import provider_named
from device_runner.spec import ElementType
from pipeline.campaign.plan import options_name
from pipeline.config import AppleRelease, Telemetry
from pipeline.core.errors import CheckFailed, ConfigError
from pipeline.core.files import BUNDLE, make_folder, sha256_of, storage_errors, write_files, write_zip
from pipeline.core.releases import SWIFT_PACKAGES, SWIFT_REPOSITORY, Release, SwiftPackageVersion, line_of
from pipeline.features.packages.release import AppPackage, ReleaseOrder
from pipeline.library.xcframework import XcFramework, opened
from pipeline.model.signature import TensorInfo
from pipeline.release.app_code import (
    SWIFT,
    class_name,
    comment_text,
    identifiers,
    lacks,
    refuse_equal_names,
    render_source,
    rows_of,
    swift_calls,
    swift_text,
    target_in,
    target_of,
    tensor_text,
)
from pipeline.release.bundle import basis_text
from pipeline.release.manifest import CUSTOM_OPS, Content, Manifest, SelectionRow, Shipped
from pipeline.release.shipped import ALL_ABIS, release_for, sized_inputs, sizes_of

BINARY = "onnxruntime"
ARCHIVE = f"{BINARY}.xcframework.zip"
BINDINGS = "OnnxRuntimeBindings"
HEADERS = "COnnxRuntime"
ON_IOS = ".when(platforms: [.iOS])"
RUNTIME_TARGETS = f"""\
        .target(name: "{BINDINGS}", dependencies: ["{HEADERS}"]),
        .target(
            name: "{HEADERS}",
            dependencies: [.target(name: "{BINARY}", condition: {ON_IOS})],
            linkerSettings: [
                .linkedLibrary("c++", {ON_IOS}), .linkedFramework("CoreML", {ON_IOS}), \
.linkedFramework("Foundation", {ON_IOS}),
            ]
        ),
        .binaryTarget(name: "{BINARY}", {{}}),
"""
URL = re.compile(r"https://[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]{1,2000}\.zip")
EMPTY_SOURCE = "// Swift's package manager wants a source in each target.\n"
MODULE_MAP = f'module {HEADERS} {{\n    header "onnxruntime_c_api.h"\n    export *\n}}\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRuntime:
    """What a package has for it: files by path, targets as its manifest writes them, the lowest iOS, and warnings."""

    files: Mapping[str, str | Path]
    targets: str
    lowest_ios: str
    release: Release
    warnings: tuple[str, ...]


@contextlib.contextmanager
def own_runtime(path: str | None, url: str | None) -> Iterator[OwnRuntime | None]:
    """The build at `path`, None for none; its files are there while the block runs.

    `url` is where apps will get the ZIP, whose checksum then stands in the manifest; without one it is in the package.
    Raises ConfigError and CheckFailed as `opened` does, and ConfigError for an address that Swift refuses.
    """
    if path is None:
        if url:
            raise ConfigError("--runtime-url is the address of a --runtime", remedy="give both, or neither")
        yield None
        return
    if url is not None and not URL.fullmatch(url):
        raise ConfigError(
            f"{url[:200]!r} cannot be the address of a binary target",
            where="--runtime-url",
            why="Swift's package manager takes https addresses that end with .zip",
            remedy=f"write it as in https://example.com/{ARCHIVE}",
        )
    with opened(Path(path)) as framework, scratch_folder("ort-mobile-runtime-") as work:
        archive = work / ARCHIVE
        write_zip(archive, {f"{BINARY}.xcframework/{name}": file for name, file in framework.members().items()})
        bindings = resources.files("pipeline.features.apple") / f"templates/{BINDINGS}.swift"
        headers = {f"Sources/{HEADERS}/include/{name}": file for name, file in framework.headers().items()}
        yield OwnRuntime(
            files={
                ARCHIVE: archive,
                **headers,
                f"Sources/{HEADERS}/include/module.modulemap": MODULE_MAP,
                f"Sources/{HEADERS}/empty.c": EMPTY_SOURCE,
                f"Sources/{BINDINGS}/{BINDINGS}.swift": bindings.read_text("utf-8"),
            },
            targets=RUNTIME_TARGETS.format(
                f'url: {swift_text(url)}, checksum: "{sha256_of(archive)}"' if url else f'path: "{ARCHIVE}"'
            ),
            lowest_ios=".".join(map(str, framework.lowest[:2])),
            release=framework.release(Path(path)),
            warnings=()
            if framework.simulator
            else ("the xcframework has no slice for simulators: apps run on devices only",),
        )


PLATFORMS = ("ios", "macos")
FOLDER = "swift"
"""The folder of the package in a job's output folder."""
PRODUCT = "onnxruntime"
POD = "onnxruntime-objc"
SYSTEMS = {"iOS": "ios", "macOS": "osx"}
"""Names of systems in Package.swift and in a podspec."""
MARK = "// Generated by ort-mobile from the bundle"
POD_MARK = MARK.replace("//", "#")
MODELS = "Models"
MANIFEST = "Package.swift"
README = "README.md"

SYSTEM_MODULES = frozenset({
    "ARKit", "AVFoundation", "Accelerate", "AppKit", "Combine", "CoreAudio", "CoreData", "CoreFoundation",
    "CoreGraphics", "CoreImage", "CoreLocation", "CoreML", "CoreMedia", "CoreVideo", "CryptoKit", "Darwin", "Dispatch",
    "Metal", "MetalKit", "NaturalLanguage", "Network", "ObjectiveC", "Observation", "OSLog", "Photos", "RealityKit",
    "Security", "Speech", "StoreKit", "SwiftData", "SwiftUI", "Testing", "UIKit", "Vision", "XCTest",
})  # fmt: skip
"""Modules that apps are likely to import beside the package: two of one name cannot be told apart."""
OTHER_MODULES = frozenset({"onnxruntime", "onnxruntimebindings", "onnxruntimeextensions", "onnxruntime_objc"})
"""Modules of ONNX Runtime that an app may have, in small letters."""

OPERATORS = "Operators"
"""What the name of the C module of custom operators has behind that of the package's module."""
REGISTERS = f"""\
struct OrtApiBase;
struct OrtSessionOptions;
struct OrtStatus;
/// Registers the custom operators of the library that the package links, with session options.
struct OrtStatus *{SYMBOL}(struct OrtSessionOptions *options, const struct OrtApiBase *api);
"""
OPERATOR_TARGETS = """\
        .target(
            name: "{name}",
            dependencies: [.target(name: "{name}Binary", condition: .when(platforms: [.iOS, .macOS]))],
            linkerSettings: [.linkedLibrary("c++", .when(platforms: [.iOS, .macOS]))]
        ),
        .binaryTarget(name: "{name}Binary", path: {path}),
"""

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
VERSION = re.compile(r"\d{1,4}\.\d{1,4}\.\d{1,4}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SwiftPackage:
    """What goes into a Swift package: its files by their path, as text, bytes, or the file that they are copied from.

    `classes` open its models and pick their sizes, `warnings` say what differs from what was measured, and
    `requirement` is where ONNX Runtime comes from, as the package's manifest writes it.
    """

    name: str
    files: Mapping[str, str | Path]
    classes: tuple[str, ...]
    warnings: tuple[str, ...]
    requirement: str


def check_order(order: ReleaseOrder) -> None:
    """Raise as `swift_package` would for what needs no bundle: the target, the versions and a build of one's own."""
    table = order.config.release.apple
    if table is None:
        return
    target = target_in(order.config, PLATFORMS, "iOS or macOS", table.target, "[release.apple]")
    with own_runtime(table.runtime, table.runtime_url) as runtime:
        _versions_for(release_for(target), target.platform, table.onnxruntime, runtime)


@contextlib.contextmanager
def package(order: ReleaseOrder, manifest: Manifest) -> Iterator[AppPackage | None]:
    """The package that [release.apple] wants, where it is there."""
    table = order.config.release.apple
    if table is None:
        yield None
        return
    folder = Path(table.folder or order.folder / FOLDER)
    with swift_package(order.folder / BUNDLE, manifest, table) as swift:
        names = {"apple": f"{swift.name} in {folder}"}
        yield AppPackage(names=names, warnings=swift.warnings, write=partial(write_package, swift, folder))


@contextlib.contextmanager
def swift_package(bundle: Path, manifest: Manifest, table: AppleRelease) -> Iterator[SwiftPackage]:
    """The package of a verified bundle's models, as the table asks for it; its files are there while the block runs.

    Raises ConfigError for names, targets, releases, types and providers that Swift or its package manager refuse, and
    as `own_runtime` does.
    """
    target = target_of(bundle, manifest, PLATFORMS, "iOS or macOS", table.target)
    platform = next(row.platform for row in manifest.content.ships if row.target == target)
    with contextlib.ExitStack() as stack:
        runtime = stack.enter_context(own_runtime(table.runtime, table.runtime_url))
        # A ZIP, whose names are plain: that of a folder in a stranger's bundle would be code in the podspec
        libraries = [path for path in (bundle / CUSTOM_OPS / platform / ALL_ABIS).glob("*") if path.is_file()]
        operators = stack.enter_context(opened(libraries[0], SYMBOL, platform)) if libraries else None
        yield _package(bundle, manifest, table, target, runtime, operators)


def _package(
    bundle: Path, manifest: Manifest, table: AppleRelease, target: str, runtime: OwnRuntime | None,
    operators: XcFramework | None,
) -> SwiftPackage:  # fmt: skip
    content = manifest.content
    ships = [content.ships[row.ships] for rows in rows_of(content, target).values() for row in rows]
    module = table.name or f"{class_name(content.name, ())}Models"
    words = SWIFT_WORDS | TAKEN | SYSTEM_MODULES
    if not NAME.fullmatch(module) or module in words or module.lower() in OTHER_MODULES:
        raise ConfigError(
            f"{module!r} cannot be the name of a Swift module",
            where="--name",
            why="letters, digits and `_` are allowed, the first is a letter, and it is no word of Swift, no type that "
            "the sources use and no module of ONNX Runtime, iOS or macOS",
            remedy="write it as in --name MyModels",
        )
    versions = _versions_for(ships[0].ort_release, ships[0].platform, table.onnxruntime, runtime)
    systems = _systems(ships, versions, operators)
    sources = swift_sources(manifest, target, module, telemetry=table.telemetry is not Telemetry.OFF)
    classes = tuple(name for file in sources if (name := file.removesuffix(".swift")) not in TAKEN)
    files: dict[str, str | Path] = {
        MANIFEST: _manifest(manifest, module, systems, versions, runtime, operators),
        README: _readme(manifest, ships, module, classes, versions, runtime),
    }
    if runtime:
        files |= runtime.files
    else:
        files[f"{module}.podspec"] = _podspec(manifest, module, systems, versions, operators)
    if operators:
        # The xcframework as a folder, which CocoaPods wants, and the C module that Swift finds its function in
        files |= {
            f"{operators.name}/{name}": file if isinstance(file, Path) else file.decode()
            for name, file in operators.members().items()
        }
        files[f"Sources/{module}{OPERATORS}/include/{module}{OPERATORS}.h"] = REGISTERS
        files[f"Sources/{module}{OPERATORS}/empty.c"] = EMPTY_SOURCE
    files |= {f"Sources/{module}/{file}": text for file, text in sources.items()}
    seen: dict[str, str] = {}
    for path in dict.fromkeys(path for row in ships for path in row.files):
        other = seen.setdefault(resource(path).lower(), path)
        if other != path:
            raise ConfigError(
                f"{other} and {path} would be one resource",
                where="the bundle's manifest",
                why="resources lie in one folder, on file systems that may ignore case",
                remedy="rename one of the models in the config, and make the bundle again",
            )
        files[f"Sources/{module}/{MODELS}/{resource(path)}"] = bundle / path
    return SwiftPackage(
        name=module,
        files=files,
        classes=classes,
        warnings=(*warnings(content, target), *(runtime.warnings if runtime else ())),
        requirement=versions.version if runtime else versions.swift,
    )


def resource(path: str) -> str:
    """The name of a file of the bundle among the package's resources."""
    return path.rpartition("/")[2]


def _versions_for(release: str, platform: str, given: str | None, runtime: OwnRuntime | None) -> SwiftPackageVersion:
    """The version of ONNX Runtime that apps take for a bundle's release (1.24 or 1.24.2).

    Raises ConfigError or CheckFailed for a release without a Swift package and a build that does not fit.
    """
    line = line_of(release)
    if runtime:
        if platform != "ios":
            raise ConfigError(
                f"a --runtime is for iOS, and this target is for {platform}",
                remedy="name a target for iOS with --target, or leave --runtime out",
            )
        if runtime.release != line:
            raise CheckFailed(
                f"the build is of ONNX Runtime {runtime.release}, and the bundle was made for {line}",
                where="--runtime",
                why="formats, operators and session options differ between releases",
                remedy=f'give a build of {line}, or set ort_release = "{runtime.release}" and make the bundle again',
            )
        return SwiftPackageVersion(version=str(runtime.release), ios=runtime.lowest_ios, macos="", exact=True)
    row = SWIFT_PACKAGES.get(line)
    if given is not None and (not VERSION.fullmatch(given) or line_of(given) != line):
        example = row.version if row else f"{line}.0"
        raise ConfigError(
            f"{given!r} is no version of ONNX Runtime {line} in three parts",
            where="--onnxruntime",
            why=f"the bundle was made for release {line}, and other releases were not checked with it",
            remedy=f"write a version of that release as in {example}, or change ort_release and make the bundle again",
        )
    if row is None and given is None:
        releases = ", ".join(str(release) for release in SWIFT_PACKAGES)
        raise ConfigError(
            f"no Swift package of ONNX Runtime {line} is known",
            where="the bundle's manifest",
            why=f"{SWIFT_REPOSITORY} has versions of {releases}",
            remedy=f'set ort_release = "{max(SWIFT_PACKAGES)}" for the target and make the bundle again; or name a '
            f"version that has been published since with --onnxruntime {line}.0",
        )
    row = row or SWIFT_PACKAGES[max(SWIFT_PACKAGES)]
    exact = given or (release if release.count(".") == 2 else "")
    return replace(row, version=exact or row.version, exact=bool(exact))


def _systems(ships: Sequence[Shipped], lowest: SwiftPackageVersion, operators: XcFramework | None) -> dict[str, str]:
    """The lowest systems of the package, which are not below those of ONNX Runtime's and of custom operators."""
    first = ships[0]
    least, needs = lowest.ios if first.platform == "ios" else lowest.macos, f"ONNX Runtime {first.ort_release} needs"
    if operators and operators.lowest > _order(least):
        least, needs = ".".join(map(str, operators.lowest[:2])), f"{operators.name} needs"
    if first.min_os_version and _order(first.min_os_version) < _order(least):
        raise ConfigError(
            f"{needs} {'iOS' if first.platform == 'ios' else 'macOS'} {least} or higher",
            where=f"the target {first.target}",
            why=f"its min_os_version is {first.min_os_version}: an app for that version cannot have this package",
            remedy=f'set min_os_version = "{least}", or an older ort_release, and make the bundle again',
        )
    systems = {name: version for name, version in (("iOS", lowest.ios), ("macOS", lowest.macos)) if version}
    return systems | {"iOS" if first.platform == "ios" else "macOS": first.min_os_version or least}


def _order(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in version.split(".")]
    return tuple([*numbers, 0, 0][:3])


def _manifest(
    manifest: Manifest, module: str, systems: Mapping[str, str], versions: SwiftPackageVersion,
    runtime: OwnRuntime | None, operators: XcFramework | None,
) -> str:  # fmt: skip
    name = f"{module}{OPERATORS}"
    linked = OPERATOR_TARGETS.format(name=name, path=swift_text(operators.name)) if operators else ""
    platforms = ", ".join(f".{name}({swift_text(version)})" for name, version in systems.items())
    needs = f"    dependencies: [\n        .package(url: {swift_text(SWIFT_REPOSITORY)}, {versions.swift}),\n    ],\n"
    product = f'.product(name: "{PRODUCT}", package: "{SWIFT_REPOSITORY.rpartition("/")[2]}")'
    return f"""\
// swift-tools-version: 5.9
{MARK} {comment_text(manifest.content.name)} ({manifest.content_sha256}). Changes are lost when it is generated again.
import PackageDescription

let package = Package(
    name: "{module}",
    platforms: [{platforms}],
    products: [.library(name: "{module}", targets: ["{module}"])],
{"" if runtime else needs}\
    targets: [
        .target(
            name: "{module}",
            dependencies: [{f'"{BINDINGS}"' if runtime else product}{f', "{name}"' if operators else ""}],
            resources: [.copy("{MODELS}")]
        ),
{runtime.targets if runtime else ""}{linked}\
    ]
)
"""


WARM_UP = "- `model.warmUp(…)` behind it compiles the shaders of a GPU in the background; zeros will do as inputs.\n"


def _readme(
    manifest: Manifest, ships: Sequence[Shipped], module: str, classes: Sequence[str], versions: SwiftPackageVersion,
    runtime: OwnRuntime | None,
) -> str:  # fmt: skip
    gpu = any(provider_named(way.provider).gpu for shipped in ships for way in shipped.runs)
    brings = "the package has a build of its own" if runtime else f"its Swift package comes with it ({versions.swift})"
    first = classes[0]
    return f"""\
# {module}

Models of the bundle {comment_text(manifest.content.name)} for ONNX Runtime {versions.version}: {brings}.

Generated by ort-mobile from {manifest.content_sha256}. Changes are lost when it is generated
again.

Xcode: File > Add Package Dependencies > Add Local, and this folder. In the Package.swift of an app:

```swift
.package(path: "../{module}")
.product(name: "{module}", package: "{module}")
```

In the app:

```swift
import {module}

let model = try {first}()
```

Classes: {", ".join(f"`{name}`" for name in classes)}.

- `{first}()` opens the resource as it is: the system checked the app's signature when it was installed.
- `{first}.verify()` reads the resource and compares its sha256.
- `model.way` names the session options in use, `model.skipped` says why not those before; the app's log has it, too.
{WARM_UP if gpu else ""}\
- `{first}(path:)` takes the released file alone, `{first}(path:sha256:)` a newer one whose digest the app knows.

What speaks against a model before ONNX Runtime is asked is thrown as a `{module}Error`.
"""


def _podspec(
    manifest: Manifest, module: str, systems: Mapping[str, str], versions: SwiftPackageVersion,
    operators: XcFramework | None,
) -> str:  # fmt: skip
    """For apps with CocoaPods, by `:path`: the class names of resources in a pod's bundle are ModelFile.swift's.

    Its central repository takes no new pods, so the version says nothing and the source is the folder itself.
    """
    sources = f"'Sources/{module}/*.swift'"
    if operators:
        sources += f", 'Sources/{module}{OPERATORS}/**/*.{{h,c}}'"
    linked = f"  s.vendored_frameworks = '{operators.name}'\n  s.libraries = 'c++'\n" if operators else ""
    targets = "\n".join(f"  s.{SYSTEMS[name]}.deployment_target = '{version}'" for name, version in systems.items())
    return f"""\
{POD_MARK} {comment_text(manifest.content.name)} ({manifest.content_sha256}).
# Changes are lost when it is generated again. In a Podfile: pod '{module}', :path => 'THIS FOLDER'
Pod::Spec.new do |s|
  s.name = '{module}'
  s.version = '1.0.0'
  s.summary = 'Models for ONNX Runtime, with a class for each'
  s.homepage = 'https://example.com'  # CocoaPods wants one; nobody opens that of a pod in a folder
  s.license = {{ :type => 'Custom', :text => 'Each model has a licence of its own.' }}
  s.author = '{module}'
  s.source = {{ :path => '.' }}
  s.swift_version = '5.9'
  s.static_framework = true
{targets}
  s.source_files = {sources}
{linked}\
  s.resource_bundles = {{ '{module}' => ['Sources/{module}/{MODELS}/*'] }}
  s.dependency '{POD}', '{versions.pod}'
end
"""


def write_package(package: SwiftPackage, folder: Path) -> bool:
    """Write the package to `folder`, whole or not at all; False where the same files are there already.

    An older package of ours is replaced; a folder with anything else in it is refused with ConfigError.
    """
    with storage_errors(folder):
        text = (folder / MANIFEST).read_text("utf-8", "replace") if (folder / MANIFEST).is_file() else ""
        pods = {path.name for path in folder.glob("*.podspec") if POD_MARK in path.read_text("utf-8", "replace")}
        is_there = folder.exists() or folder.is_symlink()
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else {folder.name} if is_there else set()
        frameworks = {path.parent.name for path in folder.glob("*.xcframework/Info.plist")}
    if names - {MANIFEST, README, ARCHIVE, "Sources", *pods, *frameworks} or (names and MARK not in text):
        raise ConfigError(
            "this folder is no Swift package of ours",
            where=str(folder),
            why="it holds something else, which would be lost",
            remedy="choose another folder with --output, and copy the package from there into your repository",
        )

    def digests(place: Path) -> dict[Path, str]:
        return {path.relative_to(place): sha256_of(path) for path in place.rglob("*") if path.is_file()}

    make_folder(folder.parent)
    with storage_errors(folder), staging_folder(folder) as new:
        write_files(new, package.files)
        if folder.is_dir() and digests(folder) == digests(new):
            return False
        take_place(new, folder)
    return True


_render = partial(render_source, "pipeline.features.apple")

ELEMENTS: dict[ElementType, tuple[str, str]] = {
    ElementType.FLOAT32: ("Float", "float"),
    ElementType.INT8: ("Int8", "int8"),
    ElementType.UINT8: ("UInt8", "uInt8"),
    ElementType.INT32: ("Int32", "int32"),
    ElementType.UINT32: ("UInt32", "uInt32"),
    ElementType.INT64: ("Int64", "int64"),
    ElementType.UINT64: ("UInt64", "uInt64"),
    ElementType.STRING: ("String", "string"),
}
"""Element type to Swift's and to ONNX Runtime's ORTTensorElementDataType: the Objective-C API has no others."""

MAPS_FILES = Release(1, 27)
"""The first release that maps a file with session.use_memory_mapped_ort_model."""

GENERIC_COREML = Release(1, 21)
"""The first release whose generic append call knows CoreML."""

TAKEN = frozenset({
    "Any", "Array", "Bool", "Bundle", "Data", "DeviceClass", "DispatchQueue", "DispatchWorkItem", "Error",
    "FileHandle", "FileManager", "Float", "Foundation", "Int", "Int32", "Int64", "Int8", "MemoryLayout",
    "ModelFile", "NSLock", "NSMutableData", "NSNumber", "ProcessInfo", "Protocol", "Result", "Runtime", "Self",
    "Sendable", "Set", "String", "Swift", "Type", "UInt32", "UInt64", "UInt8", "URL", "Way",
})  # fmt: skip
"""Names that the sources use; what begins with ORT may be ONNX Runtime's."""

SWIFT_WORDS = frozenset({
    "Any", "Self", "Type", "actor", "as", "associatedtype", "async", "await", "break", "case", "catch", "class",
    "continue", "convenience", "default", "defer", "deinit", "do", "dynamic", "else", "enum", "extension",
    "fallthrough", "false", "fileprivate", "final", "for", "func", "get", "guard", "if", "import", "in", "indirect",
    "infix", "init", "inout", "internal", "is", "lazy", "let", "mutating", "nil", "nonisolated", "nonmutating", "open",
    "operator", "optional", "override", "postfix", "precedencegroup", "prefix", "private", "protocol", "public",
    "repeat", "required", "rethrows", "return", "self", "set", "some", "static", "struct", "subscript", "super",
    "switch", "throw", "throws", "true", "try", "typealias", "unowned", "var", "weak", "where", "while",
})  # fmt: skip
"""Swift's words: those that may be names only in backticks, and those that read badly as names."""

OWN_NAMES = frozenset({
    "background", "error", "firstRun", "inputs", "outputs", "result", "run", "session", "skipped", "starting", "verify",
    "warmUp", "way",
})  # fmt: skip
"""What no parameter of `run` may be called: the sources have these."""


def swift_sources(manifest: Manifest, target: str, module: str, *, telemetry: bool = True) -> dict[str, str]:
    """File name to source of the classes for models that ship to a target; without `telemetry` they switch it off.

    Raises ConfigError for models that the Objective-C API cannot run, providers that Apple's systems or the release do
    not have, and two models with a class of one name.
    """
    content = manifest.content
    release = min(line_of(shipped.ort_release) for shipped in content.ships if shipped.target == target)
    models = [_model(content, name, rows, release, module) for name, rows in rows_of(content, target).items()]
    refuse_equal_names((model["name"], model["class_name"]) for model in models)
    common = {"bundle": comment_text(content.name), "digest": manifest.content_sha256, "module": module}
    sources = {
        f"{model['class_name']}.swift": _render("Model.swift", model=model, maps=release >= MAPS_FILES, **common)
        for model in models
    }
    by_class = {model["class_name"]: model for model in models}
    for sizes in sizes_of(content, target):
        title = sizes[-1].model
        name = swift_class(f"{title} sizes", module)
        refuse_equal_names([(title, name), *((model["name"], model["class_name"]) for model in models)])
        sources[f"{name}.swift"] = _render(
            "Sizes.swift", class_name=name, classes=[by_class[swift_class(row.model, module)] for row in sizes],
            inputs=list(sized_inputs(sizes, SWIFT_WORDS | OWN_NAMES)), names=[swift_text(row.model) for row in sizes],
            **common,
        )  # fmt: skip
    by_device = any(len(model["rows"]) > 1 for model in models)
    return {
        **sources,
        "ModelFile.swift": _render("ModelFile.swift", by_device=by_device, telemetry=telemetry, **common),
    }


def swift_class(model: str, module: str) -> str:
    """The name of a model's class in a module; a class with the module's own name would hide the module."""
    return class_name(model, TAKEN | {module, f"{module}Error"}, ("ORT", "CC_"))


def warnings(content: Content, target: str) -> Iterator[str]:
    """What differs from what was measured, or is left out, because the Objective-C API has no call for it."""
    for model, rows in rows_of(content, target).items():
        ways = [options for shipped in _ships(content, rows) for options in shipped.runs]
        for name, options in {options_name(options): options for options in ways}.items():
            if missing := lacks(SWIFT, options):
                yield (
                    f"{model}: {name} runs without {', '.join(missing)}: ONNX Runtime's Objective-C API cannot set "
                    "that, and times and memory differ from those measured"
                )
        for tensor in content.signature(model).outputs:
            if tensor.dtype not in ELEMENTS:
                yield (
                    f"{model}: the output {tensor.name} is left out: ONNX Runtime's Objective-C API reads no "
                    f"{tensor.dtype or 'sequences and maps'}"
                )


def _ships(content: Content, rows: Sequence[SelectionRow]) -> list[Shipped]:
    """What the rows of a model select, each once."""
    return [content.ships[number] for number in dict.fromkeys(row.ships for row in rows)]


def _model(content: Content, model: str, rows: Sequence[SelectionRow], release: Release, module: str) -> dict[str, Any]:
    """A model as Model.swift needs it: files, and which devices have which, as conditions of Swift in their order."""
    signature = content.signature(model)
    wrong = [tensor for tensor in signature.inputs if tensor.dtype not in ELEMENTS]
    if not any(tensor.dtype in ELEMENTS for tensor in signature.outputs):
        wrong += signature.outputs
    if wrong:
        kinds = sorted({tensor.dtype or "sequence or map" for tensor in wrong})
        raise ConfigError(
            f"Swift cannot run the model {model}: {wrong[0].name} is {wrong[0].dtype or kinds[0]}",
            where="the bundle's manifest",
            why=f"ONNX Runtime's Objective-C API has no tensors of {', '.join(kinds)}",
            remedy="convert the model with inputs and outputs of float32 (`ort-mobile transform` has passes for that), "
            "or use the C++ API: `ort-mobile release snippet --for cpp`",
        )
    ships = _ships(content, rows)
    ways = [options for shipped in ships for options in shipped.runs]
    for provider in (provider_named(options.provider) for options in ways):
        why = f"it belongs to {provider.owner}" if provider.never_on("ios") else ""
        if provider.name == "coreml" and release < GENERIC_COREML:
            why = f"the generic append call of release {release} does not know it; releases from {GENERIC_COREML} on do"
        if why:
            raise ConfigError(
                f"the provider {provider.title} cannot be used here",
                where="the bundle's manifest",
                why=why,
                remedy="leave it out of [[runs]] for this target, or change ort_release, and make the bundle again",
            )
    digests = {file.path: file.sha256 for file in content.files}
    numbers = list(dict.fromkeys(row.ships for row in rows))
    files, conditions = [], []
    for shipped in ships:
        stem, _, suffix = resource(shipped.file).rpartition(".")
        weights = shipped.weights
        files.append({
            "stem": swift_text(stem), "suffix": swift_text(suffix), "sha256": digests[shipped.file],
            "ways": [
                (swift_text(options_name(options)), [x for x in swift_calls(options) if not x.startswith("//")])
                for options in shipped.runs
            ],
            "weights": f"{swift_text(resource(weights))}: {swift_text(digests[weights])}" if weights else "",
        })  # fmt: skip
    for row in rows if len(ships) > 1 else rows[-1:]:  # API levels are Android's
        parts = [f"device.chips.contains({swift_text(row.soc)})"] if row.soc else []
        parts += [f"device.abi == {swift_text(row.abi)}"] if row.abi else []
        conditions.append((" && ".join(parts) or "true", numbers.index(row.ships)))
    inputs = list(_tensors(signature.inputs))
    parameters = [parameter for tensor in inputs for parameter in tensor["parameters"]]
    return {
        "name": comment_text(model),
        "class_name": swift_class(model, module),
        "basis": list(dict.fromkeys(basis_text(shipped) for shipped in ships)),
        "files": files,
        "rows": conditions,
        "inputs": inputs,
        "outputs": list(_tensors([tensor for tensor in signature.outputs if tensor.dtype in ELEMENTS], "output")),
        "parameters": parameters,
        "arguments": [f"{name}: {name}" for name in (text.partition(":")[0] for text in parameters)],
        "operators": f"{module}{OPERATORS}" if any(options.custom_ops for options in ways) else "",
        "gpu": any(provider_named(options.provider).gpu for options in ways),
    }


def _tensors(tensors: Sequence[TensorInfo], alone: str = "") -> Iterator[dict[str, Any]]:
    """Inputs or outputs as Swift expressions; `shape` is "" where the caller gives it, as a parameter of `run`."""
    for tensor, identifier in identifiers(tensors, SWIFT_WORDS | OWN_NAMES, alone):
        if tensor.dtype is None:
            continue
        element, ort_type = ELEMENTS[tensor.dtype]
        yield {
            "name": swift_text(tensor.name),
            "identifier": identifier,
            "doc": tensor_text(tensor),
            "element": element,
            "ort_type": ort_type,
            "shape": f"[{', '.join(map(str, tensor.shape or ()))}]" if tensor.fixed else "",
            "parameters": [f"{identifier}: [{element}]", *([] if tensor.fixed else [f"{identifier}Shape: [Int]"])],
        }
