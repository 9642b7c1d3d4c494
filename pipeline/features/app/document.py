"""What `app` says of a package: its libraries, models and sizes, and what speaks against it."""

from pathlib import PurePosixPath

import msgspec

from device_runner import build as runner_build
from pipeline.core.errors import Finding, Severity
from pipeline.library import kernels

PHONE_ABIS = ("arm64-v8a", "armeabi-v7a")
"""Those of phones; the others are of emulators and a few computers."""


class NativeLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """A native library of a package, for one ABI.

    `system` is android, linux, ios, macos (with a variant), or dsp. `page_bytes` is the smallest alignment of its
    segments, 0 where that does not count; `offset` where it lies in its archive if it is stored there uncompressed,
    else -1. `kind` is that of the build of ONNX Runtime in it, "" for all other libraries. `asks` is the release whose
    symbols it must find, `api` the version that it calls GetApi with, 0 where neither tells; where it tries several,
    `api` is the newest and `least_api` the oldest of them. `opens`: it looks for libonnxruntime.so when it runs.
    `entries` are what ONNX Runtime may load it as, `plugin` the release of QNN's, as its options tell. `arm_code` is
    the code of an ONNX Runtime for arm64 that only some processors run.
    """

    path: str
    archive: str
    abi: str
    system: str
    size_bytes: int
    packed_bytes: int
    offset: int = -1
    page_bytes: int = 0
    soname: str = ""
    needed: tuple[str, ...] = ()
    exports: bool = False
    kind: str = ""
    release: str = ""
    commit: str = ""
    providers: tuple[str, ...] = ()
    telemetry: bool = False
    asks: str = ""
    api: int = 0
    least_api: int = 0
    opens: bool = False
    entries: tuple[str, ...] = ()
    plugin: str = ""
    arm_code: kernels.ArmCode | None = None

    @property
    def name(self) -> str:
        """Its file's name."""
        return PurePosixPath(self.path).name

    @property
    def scope(self) -> tuple[str, str]:
        """Libraries of one scope may be in one process."""
        return self.system, self.abi

    @property
    def offered(self) -> int:
        """The newest version of the API that the ONNX Runtime in it has, 0 where that is not known."""
        return int(self.release.split(".")[1]) if self.kind and self.release else 0

    @property
    def needs_api(self) -> int:
        """The oldest version of the API with which it works, 0 where that is not known."""
        return self.least_api or self.api

    @property
    def tries(self) -> bool:
        """Whether it is the program with which the classes of `release android` try a model before they open it."""
        return self.name.startswith(runner_build.TRIAL_PREFIX)

    @property
    def uses(self) -> bool:
        """Whether it calls an ONNX Runtime in another file."""
        if self.tries:
            return False  # it opens the one that it is told to
        linked = any(name.startswith("libonnxruntime.so") for name in self.needed)
        return not self.kind and (linked or self.opens or bool(self.asks or self.api))


class ExternalFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that an ONNX model has data in: `location` is as the model names it, from the model's folder.

    `least_bytes` is what it must have for `needed_by`, the tensor that lies last in it, or the node of a context.
    """

    location: str
    least_bytes: int
    needed_by: str


class PackagedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of a package: its format (ort, onnx), the opset of ai.onnx, the domains of its operators.

    `npu` is the generation of NPUs that a `context` was compiled for, 0 where it does not say, `qairt` the QAIRT that
    compiled it.
    """

    path: str
    format: str
    size_bytes: int
    packed_bytes: int
    opset: int = 0
    domains: tuple[str, ...] = ()
    context: bool = False
    npu: int = 0
    qairt: str = ""
    external: tuple[ExternalFile, ...] = ()


class SizePart(msgspec.Struct, frozen=True, kw_only=True):
    """What a part of a package takes: in the archive, and unpacked."""

    part: str
    files: int
    packed_bytes: int
    size_bytes: int


class AppDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What is in an app or a package, and what speaks against it.

    `served` names for each library that calls ONNX Runtime the one that it gets when it is loaded.
    """

    version: int
    path: str
    kind: str
    libraries: tuple[NativeLibrary, ...]
    models: tuple[PackagedModel, ...]
    served: dict[str, str]
    parts: tuple[SizePart, ...]
    findings: tuple[Finding, ...]


def finding(rule: str, severity: Severity, what: str, where: str, why: str = "", remedy: str = "") -> Finding:
    """What speaks against a package."""
    return Finding(code=rule, severity=severity, what=what, where=where, why=why, remedy=remedy)
