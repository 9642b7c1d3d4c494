"""Reads Mach-O files and static archives as files that may come from anywhere: their load commands alone."""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from device_runner.probe.elf import Buffer

ARCHITECTURES = {0x0100000C: "arm64", 0x01000007: "x86_64", 12: "armv7", 7: "i386"}
SYSTEMS = {1: ("macos", ""), 2: ("ios", ""), 6: ("ios", "maccatalyst"), 7: ("ios", "simulator")}
"""The platform of LC_BUILD_VERSION as an xcframework writes platform and variant."""

THIN, FAT, ARCHIVE = b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"!<arch>\n"
BUILD_VERSION, OLD_VERSIONS, OBJECT = 0x32, {0x24: 1, 0x25: 2}, 1
COMMANDS_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class MachOImage:
    """Code of one architecture: `system` is platform and variant, `lowest` the oldest version of it that can run it.

    `start` and `size_bytes` are where it lies in its file.
    """

    architecture: str
    static: bool
    system: tuple[str, str]
    lowest: tuple[int, int, int]
    start: int = field(default=0, compare=False)
    size_bytes: int = field(default=0, compare=False)


def read_images(content: Buffer) -> Iterator[MachOImage]:
    """The code in a file, one value for each architecture; raises ValueError or struct.error for anything else."""
    if content[:4] != FAT:
        yield _image_at(content, 0, len(content))
        return
    (count,) = struct.unpack_from(">I", content, 4)
    if not 0 < count <= 16:
        raise ValueError("its list of architectures is damaged")
    for place in range(count):
        _, _, offset, length, _ = struct.unpack_from(">5I", content, 8 + 20 * place)
        yield _image_at(content, offset, length)


def _image_at(content: Buffer, start: int, size: int) -> MachOImage:
    if start + size > len(content):
        raise ValueError("a part of it lies outside the file")
    if content[start : start + 8] == ARCHIVE:
        image = _archive(content, start + 8, start + size)
    else:
        image = _image(content, start, size)
    return replace(image, start=start, size_bytes=size)


def _archive(content: Buffer, place: int, end: int) -> MachOImage:
    """What the members of a static archive have in common, and the highest of their lowest systems."""
    images: set[MachOImage] = set()
    while place + 60 <= end:
        header = content[place : place + 60]
        numbers = (header[48:58], header[3:16] if header.startswith(b"#1/") else b"0")
        length, name = (int(text) if re.fullmatch(rb"\d{1,13} *", text) else -1 for text in numbers)
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
    return MachOImage(architecture=architecture, static=kind == OBJECT, system=system, lowest=version)
