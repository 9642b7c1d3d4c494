"""Reads an xcframework, a folder or a ZIP, as something that may come from anywhere; and what is in it.

It has ONNX Runtime, or a library of custom operators. Layout: docs/facts/release_consumers.md, R.9.
"""

import contextlib
import mmap
import plistlib
import re
import stat
import struct
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from xml.parsers.expat import ExpatError

import msgspec
from msgspec import field

from device_runner import files as runner_files
from device_runner import untrusted_files
from device_runner.probe import elf as elf_file
from pipeline.core import files as storage
from pipeline.core.errors import CheckFailed, ConfigError
from pipeline.core.releases import Release

INFO = "Info.plist"
INFO_BYTES = 1 << 20
HEADER = "onnxruntime_c_api.h"
HEADER_BYTES = 4 << 20
TOTAL_BYTES = 4 << 30
MOST_FILES = 20_000
SYMBOL = "OrtGetApiBase"
"""What ONNX Runtime is told by."""
PART = re.compile(r"(?!\.\.?$)[A-Za-z0-9_.+-]+")
DEVICES = {"ios": "iOS devices of arm64 (ios-arm64)", "macos": "macOS"}


class XcSlice(msgspec.Struct, frozen=True, kw_only=True):
    """A library of an xcframework, as Info.plist lists it."""

    identifier: str = field(name="LibraryIdentifier")
    path: str = field(name="LibraryPath")
    architectures: tuple[str, ...] = field(name="SupportedArchitectures")
    platform: str = field(name="SupportedPlatform")
    variant: str = field(name="SupportedPlatformVariant", default="")
    headers: str = field(name="HeadersPath", default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class XcFramework:
    """The slices for a platform of an xcframework that passed every check, the device's first; they lie in `folder`."""

    folder: Path
    slices: tuple[XcSlice, ...]
    lowest: tuple[int, int, int]
    static: bool

    @property
    def simulator(self) -> bool:
        """Whether apps with it run in a simulator."""
        return any(part.variant == "simulator" for part in self.slices)

    def release(self, path: Path) -> Release:
        """The line of ONNX Runtime by its header; raises CheckFailed, of the file at `path`, where there is none."""
        try:
            text = untrusted_files.read_regular(self._header_folder / HEADER, HEADER_BYTES)
        except OSError:
            text = b""
        version = re.search(rb"#define\s+ORT_API_VERSION\s+(\d{1,4})\b", text)
        if not version:
            raise _refused(path, [f"{self.slices[0].identifier} has no header {HEADER} with ORT_API_VERSION"])
        return Release(1, int(version[1]))

    def headers(self) -> dict[str, Path]:
        """The C API's headers by name."""
        return {path.name: path for path in sorted(self._header_folder.glob("onnxruntime*_c_api.h"))}

    @property
    def _header_folder(self) -> Path:
        device = self.slices[0]
        inside = f"{device.path}/Headers" if device.path.endswith(".framework") else device.headers or "Headers"
        return self.folder / device.identifier / inside

    def members(self) -> dict[str, Path | bytes]:
        """The files of an xcframework with these slices alone, by their path below its folder."""
        libraries = [{key: value for key, value in msgspec.to_builtins(part).items() if value} for part in self.slices]
        document = {
            "AvailableLibraries": libraries,
            "CFBundlePackageType": "XFWK",
            "XCFrameworkFormatVersion": "1.0",
        }
        members: dict[str, Path | bytes] = {INFO: plistlib.dumps(document, sort_keys=True)}
        for part in self.slices:
            files = [path for path in (self.folder / part.identifier).rglob("*") if path.is_file()]
            members |= {path.relative_to(self.folder).as_posix(): path for path in files}
        return members


@contextlib.contextmanager
def opened(path: Path, symbol: str = SYMBOL, platform: str = "ios") -> Iterator[XcFramework]:
    """The slices for a platform, each with `symbol`; their files are there while the block runs.

    Raises ConfigError for what is no xcframework, CheckFailed for one of which an app could not be made.
    """
    with runner_files.scratch_folder("ort-mobile-xcframework-") as work:
        folder = path
        if path.is_file():
            _unpack(path, work)
            frameworks = [info.parent for info in sorted(work.rglob(INFO)) if info.parent.suffix == ".xcframework"]
            if len(frameworks) != 1:
                raise _no_framework(path, f"the ZIP has {len(frameworks)} folders NAME.xcframework with an {INFO}")
            folder = frameworks[0]
        yield _checked(path, folder, symbol, platform)


def _unpack(path: Path, work: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            if len(infos) > MOST_FILES:
                raise _no_framework(path, f"the ZIP has {len(infos):,} members; at most {MOST_FILES:,} are read")
            left = TOTAL_BYTES
            for info in infos:
                if info.filename.endswith("/"):
                    continue
                _require_plain(path, info.filename)
                if stat.S_ISLNK(info.external_attr >> 16):
                    continue  # of macOS's frameworks; the slices for iOS need none
                untrusted_files.check_unpacked(info, left)
                left -= info.file_size
                storage.write_bytes(work / info.filename, archive.read(info))
    except untrusted_files.ZIP_ERRORS as error:
        raise _no_framework(path, str(error)[:200]) from error


def _no_framework(path: Path, why: str) -> ConfigError:
    return ConfigError(
        "this is no xcframework",
        where=str(path),
        why=why,
        remedy="give the folder NAME.xcframework that a build makes, or a ZIP of it",
    )


def _require_plain(path: Path, name: str) -> None:
    """Refuse names that lead elsewhere, or that another file system reads otherwise."""
    parts = PurePosixPath(name).parts
    if "\\" in name or not parts or not all(PART.fullmatch(part) for part in parts):
        raise _no_framework(
            path, f"it has the path {name[:200]!r}: letters, digits, `_`, `-`, `+` and dots are allowed"
        )


def _checked(path: Path, folder: Path, symbol: str, platform: str) -> XcFramework:
    try:
        document: Any = plistlib.loads(untrusted_files.read_regular(folder / INFO, INFO_BYTES))
        if not isinstance(document, dict) or document.get("CFBundlePackageType") != "XFWK":
            raise _no_framework(path, f"its {INFO} has no CFBundlePackageType XFWK")
        rows = msgspec.convert(document.get("AvailableLibraries"), list[XcSlice])
    except OSError as error:
        raise _no_framework(path, f"{INFO} cannot be read: {error.strerror or error}") from error
    except (ValueError, ExpatError, struct.error, IndexError, OverflowError, RecursionError, MemoryError) as error:
        raise _no_framework(path, f"its {INFO} is damaged: {str(error)[:200]}") from error
    listed = [row for row in rows if row.platform == platform and row.variant in ("", "simulator")]
    for library in listed:
        for name in (library.identifier, library.path, *([library.headers] if library.headers else [])):
            _require_plain(path, name)
    devices = [
        library for library in listed if not library.variant and (platform != "ios" or "arm64" in library.architectures)
    ]
    if len(devices) != 1:
        raise _refused(path, [f"it has {len(devices)} slices for {DEVICES[platform]}"])
    slices = (*devices, *(library for library in listed if library.variant))
    code = [_images(path, folder, part, symbol) for part in slices]
    findings = [text for part, images in zip(slices, code, strict=True) for text in _findings(folder, part, images)]
    if len({image.static for images in code for image in images}) > 1:
        findings.append("some of its slices are static and some dynamic")
    if findings:
        raise _refused(path, findings)
    return XcFramework(
        folder=folder,
        slices=slices,
        lowest=max(image.lowest for image in code[0]),
        static=code[0][0].static,
    )


def _refused(path: Path, findings: list[str]) -> CheckFailed:
    return CheckFailed(
        "no app can be made with this xcframework",
        where=str(path),
        why="; ".join(findings),
        remedy="build it again for devices and simulators (of ONNX Runtime: `ort-mobile build plan` has the command)",
    )


def _images(path: Path, folder: Path, part: XcSlice, symbol: str) -> list[elf_file.MachOImage]:
    """The code of a slice; raises CheckFailed for files that are none, or without the symbol."""
    slice_folder = folder / part.identifier
    for file in (slice_folder, *slice_folder.rglob("*")):
        if file.is_symlink() or not (file.is_file() or file.is_dir()):
            raise _refused(path, [f"{file.relative_to(folder)} is missing, a link or no regular file"])
        _require_plain(path, file.relative_to(folder).as_posix())
    binary = slice_folder / part.path
    if part.path.endswith(".framework"):
        binary /= PurePosixPath(part.path).stem
    try:
        with binary.open("rb") as code, mmap.mmap(code.fileno(), 0, access=mmap.ACCESS_READ) as content:
            images = list(elf_file.read_images(content))
            if content.find(f"_{symbol}\0".encode()) < 0:
                raise _refused(path, [f"{binary.relative_to(folder)} is something else: it has no {symbol}"])
    except (OSError, ValueError, struct.error) as error:
        raise _refused(path, [f"{binary.relative_to(folder)} cannot be read: {str(error)[:200]}"]) from error
    return images


def _findings(folder: Path, part: XcSlice, images: Sequence[elf_file.MachOImage]) -> Iterator[str]:
    name = part.identifier
    architectures = sorted(image.architecture for image in images)
    if architectures != sorted(part.architectures):
        listed = ", ".join(part.architectures)
        yield f"{name} has code for {', '.join(architectures)}, and its Info.plist says {listed}"
    for image in images:
        if image.system != (part.platform, part.variant):
            yield f"{name} has code for {' '.join(image.system).strip() or 'an unknown system'}"
    if not images[0].static and part.path.endswith(".framework"):
        path = folder / name / part.path / INFO
        try:
            document = plistlib.loads(untrusted_files.read_regular(path, INFO_BYTES))
        except (OSError, ValueError, ExpatError, struct.error, IndexError, OverflowError, RecursionError):
            document = {}
        for key in ("CFBundleIdentifier", "MinimumOSVersion"):
            if not isinstance(document, dict) or not isinstance(document.get(key), str):
                yield f"{name}/{part.path}/{INFO} has no {key}, and app stores refuse that"
