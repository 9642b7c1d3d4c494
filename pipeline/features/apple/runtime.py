"""A build of ONNX Runtime of one's own in a Swift package: a binary target, and the module that the classes import.

An xcframework has the C API alone; the module has those names of ONNX Runtime's Objective-C API that the classes use
(docs/facts/release_consumers.md, R.8, R.9).
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from device_runner.files import scratch_folder
from pipeline.core.errors import CheckFailed, ConfigError
from pipeline.core.files import sha256_of, write_zip
from pipeline.core.releases import Release
from pipeline.library.xcframework import opened
from pipeline.release.app_code import swift_text

BINARY = "onnxruntime"
ARCHIVE = f"{BINARY}.xcframework.zip"
BINDINGS = "OnnxRuntimeBindings"
HEADERS = "COnnxRuntime"
URL = re.compile(r"https://[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]{1,2000}\.zip")
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
                f"Sources/{HEADERS}/empty.c": "// Swift's package manager wants a source in each target.\n",
                f"Sources/{BINDINGS}/{BINDINGS}.swift": bindings.read_text("utf-8"),
            },
            targets=_targets(f'url: {swift_text(url)}, checksum: "{sha256_of(archive)}"' if url else ""),
            lowest_ios=".".join(map(str, framework.lowest[:2])),
            release=framework.release,
            warnings=()
            if framework.simulator
            else ("the xcframework has no slice for simulators: apps run on devices only",),
        )


def _targets(source: str) -> str:
    source = source or f'path: "{ARCHIVE}"'
    ios = ".when(platforms: [.iOS])"
    return f"""\
        .target(name: "{BINDINGS}", dependencies: ["{HEADERS}"]),
        .target(
            name: "{HEADERS}",
            dependencies: [.target(name: "{BINARY}", condition: {ios})],
            linkerSettings: [
                .linkedLibrary("c++", {ios}), .linkedFramework("CoreML", {ios}), .linkedFramework("Foundation", {ios}),
            ]
        ),
        .binaryTarget(name: "{BINARY}", {source}),
"""


def refuse_unfit(runtime: OwnRuntime, release: Release, platform: str) -> None:
    """Raise for a build that the bundle was not made for: another release, or a target that is not iOS."""
    if platform != "ios":
        raise ConfigError(
            f"a --runtime is for iOS, and this target is for {platform}",
            remedy="name a target for iOS with --target, or leave --runtime out",
        )
    if runtime.release != release:
        raise CheckFailed(
            f"the build is of ONNX Runtime {runtime.release}, and the bundle was made for {release}",
            where="--runtime",
            why="formats, operators and session options differ between releases",
            remedy=f'give a build of {release}, or set ort_release = "{runtime.release}" and make the bundle again',
        )
