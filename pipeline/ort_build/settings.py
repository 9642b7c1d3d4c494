"""The `[build]` table of a config, and the files of build_configs/builds that a user copies."""

import tomllib
from enum import StrEnum
from pathlib import Path

import msgspec

from pipeline.config import Count, Table, Target
from pipeline.errors import ConfigError


class Kind(StrEnum):
    """How much of ONNX Runtime a build contains.

    `full` loads ONNX and ORT format models, `minimal` ORT format only, `extended` is minimal with what providers that
    compile and saved runtime optimizations need. `auto` takes the smallest that the runs allow.
    """

    AUTO = "auto"
    FULL = "full"
    EXTENDED = "extended"
    MINIMAL = "minimal"


class Dependencies(StrEnum):
    """Where the libraries come from that ONNX Runtime is built upon: downloads, or packages of this system."""

    DOWNLOAD = "download"
    SYSTEM = "system"


class Configuration(StrEnum):
    """CMake's build types, as `--config` of ONNX Runtime's scripts takes them."""

    MIN_SIZE_REL = "MinSizeRel"
    RELEASE = "Release"
    REL_WITH_DEB_INFO = "RelWithDebInfo"
    DEBUG = "Debug"


class BuildConfig(Table, frozen=True, kw_only=True):
    """How to build ONNX Runtime for the targets."""

    kind: Kind = Kind.AUTO
    """auto, full, extended or minimal; auto takes the smallest that providers and styles allow."""
    configuration: Configuration = Configuration.MIN_SIZE_REL
    """MinSizeRel, Release, RelWithDebInfo or Debug."""
    providers: tuple[str, ...] | None = None
    """Execution providers in the library beside the CPU; those of [[runs]] that the platform has by default."""
    reduce_types: bool = True
    """Leave out types that the operator config does not list."""
    ml_ops: bool | None = None
    """Whether operators of ai.onnx.ml are in the library; when the operator config has some by default."""
    contrib_ops: bool = True
    """Whether operators of com.microsoft are in the library; fused graphs need them."""
    lto: bool = True
    """Optimize at link time: smaller and slower to build."""
    exceptions: bool = True
    """Without exceptions (minimal builds only) the library is smaller, and an error ends the process."""
    wheel: bool = False
    """Build a Python wheel for this computer; always full."""
    dependencies: Dependencies = Dependencies.DOWNLOAD
    """download or system: where the libraries come from that ONNX Runtime is built upon."""
    onnx_source: str | None = None
    """Unpacked source of the ONNX release that the tree's cmake/deps.txt names; needed with system dependencies."""
    defines: dict[str, str] = {}
    """Further CMake definitions by name."""
    jobs: Count | None = None
    """Compilers at once; one for each processor by default."""
    max_library_bytes: dict[str, Count] = {}
    """Budget by ABI: a release with a larger library fails."""


class BuildFile(Table, frozen=True, kw_only=True):
    """A file of build_configs/builds: one product, for `ort-mobile build plan FILE`."""

    target: Target
    """What the library is for, as in a campaign's [[targets]]."""
    build: BuildConfig = BuildConfig()
    """How to build it."""
    operators: str | None = None
    """Operator config, as `ort-mobile op-config create` writes it; all operators without it."""
    runtime_style: bool = False
    """Whether artifacts of runtime style will run with it: they need an extended build."""


def read_build_file(path: Path) -> BuildFile:
    """Read and check a build file; its paths become relative to the current folder. Raises ConfigError."""
    try:
        found = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), BuildFile)
    except OSError as error:
        raise ConfigError("the build file cannot be read", where=str(path), why=error.strerror or str(error)) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(
            "this is no build file", where=str(path), why=str(error),
            remedy="compare it with those in build_configs/builds; docs/reference/config.md has the keys",
        ) from error  # fmt: skip
    onnx = found.build.onnx_source
    build = msgspec.structs.replace(found.build, onnx_source=None if onnx is None else str(path.parent / onnx))
    operators = None if found.operators is None else str(path.parent / found.operators)
    return msgspec.structs.replace(found, build=build, operators=operators)
