"""The `[build]` table of a config: how to build ONNX Runtime for the targets."""

from enum import StrEnum

from pipeline.config.table import Count, Table


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
