"""Reads an xcframework of ONNX Runtime, a folder or a ZIP, as something that may come from anywhere; and what is in it.

Layout: docs/facts/release_consumers.md, R.9. Mach-O and static archives: their load commands alone are read.
"""

import contextlib
import mmap
import plistlib
import re
import stat
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from pathlib import Path, PurePosixPath
from typing import Any
from xml.parsers.expat import ExpatError

import msgspec
from msgspec import field

from device_runner.files import ZIP_ERRORS, check_unpacked, read_regular, scratch_folder
from device_runner.probe.elf import Buffer
from pipeline.core.errors import CheckFailed, ConfigError
from pipeline.core.files import write_bytes
from pipeline.core.releases import Release

INFO = "Info.plist"
INFO_BYTES = 1 << 20
HEADER = "onnxruntime_c_api.h"
HEADER_BYTES = 4 << 20
TOTAL_BYTES = 4 << 30
MOST_FILES = 20_000
SYMBOL = b"OrtGetApiBase\0"
PART = re.compile(r"(?!\.\.?$)[A-Za-z0-9_.+-]+")

ARCHITECTURES = {0x0100000C: "arm64", 0x01000007: "x86_64", 12: "armv7", 7: "i386"}
SYSTEMS = {1: ("macos", ""), 2: ("ios", ""), 6: ("ios", "maccatalyst"), 7: ("ios", "simulator")}
"""The platform of LC_BUILD_VERSION as an xcframework writes platform and variant."""

THIN, FAT, ARCHIVE = b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"!<arch>\n"
BUILD_VERSION, OLD_VERSIONS, DYLIB = 0x32, {0x24: 1, 0x25: 2}, 6
COMMANDS_BYTES = 1 << 16


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A library as Info.plist lists it."""

    identifier: str = field(name="LibraryIdentifier")
    path: str = field(name="LibraryPath")
    architectures: tuple[str, ...] = field(name="SupportedArchitectures")
    platform: str = field(name="SupportedPlatform")
    variant: str = field(name="SupportedPlatformVariant", default="")
    headers: str = field(name="HeadersPath", default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachOImage:
    """Code of one architecture: `system` is platform and variant, `lowest` the oldest version of it that can run it.

    `start` and `size_bytes` are where it lies in its file.
    """

    architecture: str
    static: bool
    system: tuple[str, str]
    lowest: tuple[int, int, int]
    start: int = dataclass_field(default=0, compare=False)
    size_bytes: int = dataclass_field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class XcSlice:
    """One library of an xcframework with what is in its file."""

    listed: Listed
    folder: Path
    images: tuple[MachOImage, ...]

    @property
    def headers(self) -> Path:
        """The folder of its headers."""
        if self.listed.path.endswith(".framework"):
            return self.folder / self.listed.path / "Headers"
        return self.folder / (self.listed.headers or "Headers")


@dataclass(frozen=True, slots=True, kw_only=True)
class XcFramework:
    """The slices for iOS of an xcframework that passed every check, the device's first."""

    slices: tuple[XcSlice, ...]
    release: Release
    lowest: tuple[int, int, int]
    static: bool

    @property
    def simulator(self) -> bool:
        """Whether apps with it run in a simulator."""
        return any(part.listed.variant == "simulator" for part in self.slices)

    def headers(self) -> dict[str, Path]:
        """The C API's headers by name."""
        return {path.name: path for path in sorted(self.slices[0].headers.glob("onnxruntime*_c_api.h"))}

    def members(self) -> dict[str, Path | bytes]:
        """The files of an xcframework with these slices alone, by their path below its folder."""
        listed = [part.listed for part in self.slices]
        libraries = [{key: value for key, value in msgspec.to_builtins(entry).items() if value} for entry in listed]
        document = {
            "AvailableLibraries": libraries,
            "CFBundlePackageType": "XFWK",
            "XCFrameworkFormatVersion": "1.0",
        }
        members: dict[str, Path | bytes] = {INFO: plistlib.dumps(document, sort_keys=True)}
        for part in self.slices:
            files = [path for path in part.folder.rglob("*") if path.is_file()]
            members |= {f"{part.listed.identifier}/{path.relative_to(part.folder).as_posix()}": path for path in files}
        return members


@contextlib.contextmanager
def opened(path: Path) -> Iterator[XcFramework]:
    """The slices for iOS; their files are there while the block runs.

    Raises ConfigError for what is no xcframework, CheckFailed for one of which an app could not be made.
    """
    with scratch_folder("ort-mobile-xcframework-") as work:
        folder = path
        if path.is_file():
            _unpack(path, work)
            frameworks = [info.parent for info in sorted(work.rglob(INFO)) if info.parent.suffix == ".xcframework"]
            if len(frameworks) != 1:
                raise _no_framework(path, f"the ZIP has {len(frameworks)} folders NAME.xcframework with an {INFO}")
            folder = frameworks[0]
        yield _checked(path, folder)


def _unpack(path: Path, work: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            if len(infos) > MOST_FILES:
                raise _no_framework(path, f"the ZIP has {len(infos):,} members; at most {MOST_FILES:,} are read")
            left = TOTAL_BYTES
            for info in infos:
                if info.is_dir():
                    continue
                _require_plain(path, info.filename)
                if stat.S_ISLNK(info.external_attr >> 16):
                    continue  # of macOS's frameworks; the slices for iOS need none
                check_unpacked(info, left)
                left -= info.file_size
                write_bytes(work / info.filename, archive.read(info))
    except ZIP_ERRORS as error:
        raise _no_framework(path, str(error)[:200]) from error


def _no_framework(path: Path, why: str) -> ConfigError:
    return ConfigError(
        "this is no xcframework",
        where=str(path),
        why=why,
        remedy="give the folder NAME.xcframework that ONNX Runtime's build makes, or a ZIP of it",
    )


def _require_plain(path: Path, name: str) -> None:
    """Refuse names that lead elsewhere, or that another file system reads otherwise."""
    parts = PurePosixPath(name).parts
    if "\\" in name or not parts or not all(PART.fullmatch(part) for part in parts):
        raise _no_framework(
            path, f"it has the path {name[:200]!r}: letters, digits, `_`, `-`, `+` and dots are allowed"
        )


def _checked(path: Path, folder: Path) -> XcFramework:
    listed = [
        entry for entry in _listed(path, folder) if entry.platform == "ios" and entry.variant in ("", "simulator")
    ]
    for entry in listed:
        for name in (entry.identifier, entry.path, *([entry.headers] if entry.headers else [])):
            _require_plain(path, name)
    devices = [entry for entry in listed if not entry.variant and "arm64" in entry.architectures]
    if len(devices) != 1:
        raise _refused(path, [f"it has {len(devices)} slices for iOS devices of arm64 (ios-arm64)"])
    chosen = [*devices, *(entry for entry in listed if entry.variant)]
    slices = tuple(_slice(path, folder, entry) for entry in chosen)
    findings = [finding for part in slices for finding in _findings(part)]
    if len({image.static for part in slices for image in part.images}) > 1:
        findings.append("some of its slices are static and some dynamic")
    release = _release(slices[0], findings)
    if findings or release is None:
        raise _refused(path, findings)
    return XcFramework(
        slices=slices,
        release=release,
        lowest=max(image.lowest for image in slices[0].images),
        static=slices[0].images[0].static,
    )


def _refused(path: Path, findings: list[str]) -> CheckFailed:
    return CheckFailed(
        "no app for iOS can be made with this xcframework",
        where=str(path),
        why="; ".join(findings),
        remedy="build it again for iOS devices and simulators (`ort-mobile build plan` has the command)",
    )


def _listed(path: Path, folder: Path) -> list[Listed]:
    try:
        document: Any = plistlib.loads(read_regular(folder / INFO, INFO_BYTES))
        if not isinstance(document, dict) or document.get("CFBundlePackageType") != "XFWK":
            raise _no_framework(path, f"its {INFO} has no CFBundlePackageType XFWK")
        return msgspec.convert(document.get("AvailableLibraries"), list[Listed])
    except OSError as error:
        raise _no_framework(path, f"{INFO} cannot be read: {error.strerror or error}") from error
    except (ValueError, ExpatError, struct.error, IndexError, OverflowError, RecursionError, MemoryError) as error:
        raise _no_framework(path, f"its {INFO} is damaged: {str(error)[:200]}") from error


def _slice(path: Path, folder: Path, listed: Listed) -> XcSlice:
    place = folder / listed.identifier
    for file in (place, *place.rglob("*")):
        if file.is_symlink() or not (file.is_file() or file.is_dir()):
            raise _refused(path, [f"{file.relative_to(folder)} is missing, a link or no regular file"])
        _require_plain(path, file.relative_to(folder).as_posix())
    binary = place / listed.path
    if listed.path.endswith(".framework"):
        binary /= PurePosixPath(listed.path).stem
    try:
        with binary.open("rb") as code, mmap.mmap(code.fileno(), 0, access=mmap.ACCESS_READ) as content:
            images = tuple(read_images(content))
            if content.find(SYMBOL) < 0:
                raise _refused(path, [f"{binary.relative_to(folder)} is not ONNX Runtime: it has no OrtGetApiBase"])
    except (OSError, ValueError, struct.error) as error:
        raise _refused(path, [f"{binary.relative_to(folder)} cannot be read: {str(error)[:200]}"]) from error
    return XcSlice(listed=listed, folder=place, images=images)


def read_images(content: Buffer) -> Iterator[MachOImage]:
    """The code in a file, one value for each architecture; raises ValueError or struct.error for anything else."""
    return _images(content, 0, len(content))


def _images(content: Buffer, start: int, size: int) -> Iterator[MachOImage]:
    if start < 0 or size < 8 or start + size > len(content):
        raise ValueError("a part of it lies outside the file")
    magic = content[start : start + 8]
    if magic[:4] == FAT:
        (count,) = struct.unpack(">I", magic[4:])
        if start or not 0 < count <= 16:
            raise ValueError("its list of architectures is damaged")
        for place in range(count):
            _, _, offset, length, _ = struct.unpack_from(">5I", content, 8 + 20 * place)
            yield from _images(content, offset, length)
    elif magic == ARCHIVE:
        yield replace(_archive(content, start + 8, start + size), start=start, size_bytes=size)
    else:
        yield replace(_image(content, start, size), start=start, size_bytes=size)


def _archive(content: Buffer, place: int, end: int) -> MachOImage:
    """What the members of a static archive have in common, and the highest of their lowest systems."""
    images: set[MachOImage] = set()
    while place + 60 <= end:
        header = content[place : place + 60]
        length = int(header[48:58])
        name = int(header[3:16]) if header.startswith(b"#1/") else 0
        if header[58:] != b"`\n" or not 0 <= name <= length or place + 60 + length > end:
            raise ValueError("a member of the archive is damaged")
        body = place + 60 + name
        if content[body : body + 4] == THIN:
            images.add(_image(content, body, length - name))
        place += 60 + length + length % 2
    kinds = {(image.architecture, image.system) for image in images}
    if len(kinds) != 1:
        raise ValueError(f"its objects are for {len(kinds)} systems instead of one")
    architecture, system = kinds.pop()
    lowest = max(image.lowest for image in images)
    return MachOImage(architecture=architecture, static=True, system=system, lowest=lowest)


def _image(content: Buffer, start: int, size: int) -> MachOImage:
    if size < 32 or content[start : start + 4] != THIN:
        raise ValueError("it is no Mach-O file of 64 bits")
    _, machine, _, kind, count, length = struct.unpack_from("<6I", content, start)
    commands = content[start + 32 : start + 32 + min(length, size - 32, COMMANDS_BYTES)]
    system, lowest, place = ("", ""), 0, 0
    for _ in range(min(count, len(commands) // 8)):
        if place + 16 > len(commands):
            break
        command, step, first, second = struct.unpack_from("<4I", commands, place)
        if command == BUILD_VERSION:
            system, lowest = SYSTEMS.get(first, ("", "")), second
        elif command in OLD_VERSIONS:
            system, lowest = SYSTEMS[OLD_VERSIONS[command]], first
        if step < 8:
            raise ValueError("its load commands are damaged")
        place += step
    version = (lowest >> 16, lowest >> 8 & 0xFF, lowest & 0xFF)
    architecture = ARCHITECTURES.get(machine, f"machine {machine}")
    return MachOImage(architecture=architecture, static=kind != DYLIB, system=system, lowest=version)


def _findings(part: XcSlice) -> Iterator[str]:
    name = part.listed.identifier
    architectures = sorted(image.architecture for image in part.images)
    if architectures != sorted(part.listed.architectures):
        listed = ", ".join(part.listed.architectures)
        yield f"{name} has code for {', '.join(architectures)}, and its Info.plist says {listed}"
    for image in part.images:
        if image.system != (part.listed.platform, part.listed.variant):
            yield f"{name} has code for {' '.join(image.system).strip() or 'an unknown system'}"
    if not part.images[0].static and part.listed.path.endswith(".framework"):
        path = part.folder / part.listed.path / INFO
        try:
            document = plistlib.loads(read_regular(path, INFO_BYTES))
        except (OSError, ValueError, ExpatError, struct.error, IndexError, OverflowError, RecursionError):
            document = {}
        for key in ("CFBundleIdentifier", "MinimumOSVersion"):
            if not isinstance(document, dict) or not isinstance(document.get(key), str):
                yield f"{part.listed.identifier}/{part.listed.path}/{INFO} has no {key}, and app stores refuse that"


def _release(part: XcSlice, findings: list[str]) -> Release | None:
    """The line of ONNX Runtime by its header; a finding where there is none."""
    try:
        text = read_regular(part.headers / HEADER, HEADER_BYTES)
    except OSError:
        text = b""
    version = re.search(rb"#define\s+ORT_API_VERSION\s+(\d{1,4})\b", text)
    if not version:
        findings.append(f"{part.listed.identifier} has no header {HEADER} with ORT_API_VERSION")
        return None
    return Release(1, int(version[1]))
