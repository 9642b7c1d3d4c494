"""The `[build]` table of a config: how to build ONNX Runtime for the targets."""

from enum import StrEnum

from pipeline.config.table import Count, Table


class BuildKind(StrEnum):
    """How much of ONNX Runtime a build contains.

    `full` loads ONNX and ORT format models, `minimal` ORT format only, `extended` is minimal with what providers that
    compile and saved runtime optimizations need. `auto` is the smallest that the runs allow.
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

    kind: BuildKind = BuildKind.AUTO
    """auto, full, extended or minimal; auto: the smallest that the providers and styles allow."""
    configuration: Configuration = Configuration.MIN_SIZE_REL
    """MinSizeRel, Release, RelWithDebInfo or Debug."""
    providers: tuple[str, ...] | None = None
    """Execution providers of the library in addition to the CPU; default: those of [[runs]] that the platform
    supports."""
    reduce_types: bool = True
    """Exclude types that the operator config does not list."""
    ml_ops: bool | None = None
    """Include the operators of ai.onnx.ml; default: if the operator config lists one."""
    contrib_ops: bool = True
    """Include the operators of com.microsoft; optimized models require them."""
    lto: bool = True
    """Link-time optimization: a smaller library, a slower build."""
    exceptions: bool = True
    """Build with C++ exceptions. Without them (minimal builds only) the library is smaller, and an error aborts
    the process."""
    wheel: bool = False
    """Build a Python wheel for this computer; always a full build."""
    dependencies: Dependencies = Dependencies.DOWNLOAD
    """Source of the libraries that ONNX Runtime depends on: download, or system packages."""
    onnx_source: str | None = None
    """Unpacked source of the ONNX release named in the source tree's cmake/deps.txt; required with system
    dependencies."""
    defines: dict[str, str] = {}
    """Additional CMake definitions by name."""
    jobs: Count | None = None
    """Parallel compiler processes; default: one per processor."""
    max_library_bytes: dict[str, Count] = {}
    """Size budget by ABI: a release with a larger library fails."""
