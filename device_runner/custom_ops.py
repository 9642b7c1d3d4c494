"""Libraries of custom operators: what a file is, and which of those that are given a process can load."""

import re
import zipfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from device_runner.errors import NoLibraryError, UnavailableError
from device_runner.files import (
    ZIP_ERRORS,
    are_sound,
    cache_folder,
    check_unpacked,
    note_digests,
    own_folder_errors,
    read_regular,
    replacing,
    sha256,
)
from device_runner.library import MAX_BYTES, is_archive
from device_runner.probe.elf import NotElf, parse_elf

SYMBOL = "RegisterCustomOps"
MEMBER = re.compile(r"(?:jni|lib)/(?P<abi>[\w-]+)/(?P<name>lib[\w.-]+\.so)")
MACH_O = {b"\xcf\xfa\xed\xfe\x07\x00\x00\x01": "x86_64", b"\xcf\xfa\xed\xfe\x0c\x00\x00\x01": "arm64-v8a"}
"""Magic number and processor at the beginning of a Mach-O file of 64 bits, to Android's name of the ABI."""


class CustomLibrary(NamedTuple):
    """A library on this computer with its system (android, linux, macos) and ABI.

    `python`: it takes symbols of Python, as that of the package onnxruntime-extensions does. `java`: it has JNI's.
    """

    path: Path
    system: str
    abi: str
    python: bool = False
    java: bool = False

    def __str__(self) -> str:
        return f"{self.system} {self.abi}{' in Python' if self.python else ''}"


def read_libraries(text: str) -> tuple[CustomLibrary, ...]:
    """What a file is: a library of custom operators, or an AAR or APK with one for each ABI.

    Raises NoLibraryError, UnavailableError for a file that is neither.
    """
    path = Path(text)
    if not path.is_file():
        raise NoLibraryError("no library of custom operators there", where=text, remedy="check the path")
    status = path.stat()
    key = path.absolute(), status.st_size, status.st_mtime_ns
    if not all(row.path.is_file() for row in _read(*key)):  # what was unpacked went with the cache
        _read.cache_clear()
    return _read(*key)


@lru_cache(maxsize=64)
def _read(path: Path, _size: int, _mtime_ns: int) -> tuple[CustomLibrary, ...]:
    try:
        if not is_archive(path):
            return (_judged(path, read_regular(path, MAX_BYTES)),)
        by_abi: dict[str, CustomLibrary] = {}
        for library in _unpacked(path):  # beside the plain library the AAR of Extensions has one with JNI
            if library.abi not in by_abi or by_abi[library.abi].java:
                by_abi[library.abi] = library
        if not by_abi:
            raise NotElf(f"no library in it exports {SYMBOL}")
    except ZIP_ERRORS as error:  # among them ValueError, which NotElf is, and OSError
        remedy = f"give a .so or .dylib that exports {SYMBOL}, or an AAR with such libraries"
        raise UnavailableError(
            "this is no library of custom operators", where=str(path), why=str(error), remedy=remedy
        ) from error
    return tuple(by_abi.values())


def _judged(path: Path, content: bytes) -> CustomLibrary:
    """What a file is by its bytes; raises NotElf for one that registers no custom operators."""
    if abi := MACH_O.get(content[:8]):
        system, python, java, exported = "macos", False, False, SYMBOL.encode() in content
    else:
        elf = parse_elf(content)
        names = {name for name, section in elf.symbols if section}
        system, abi, exported = "android" if "libc.so" in elf.needed else "linux", elf.abi, SYMBOL in names
        python = any(name.startswith(("Py", "_Py")) for name in elf.undefined)
        java = any(name.startswith("Java_") for name in names)
    if not exported:
        raise NotElf(f"it does not export {SYMBOL}")
    return CustomLibrary(path, system, abi, python, java)


def _unpacked(archive: Path) -> Iterator[CustomLibrary]:
    with zipfile.ZipFile(archive) as opened:
        for name in sorted(opened.namelist()):
            match = MEMBER.fullmatch(name)
            if not match:
                continue
            check_unpacked(opened.getinfo(name), MAX_BYTES)
            content = opened.read(name)
            if f"\0{SYMBOL}\0".encode() not in content:
                continue
            path = cache_folder() / "custom-ops" / sha256(archive) / match["abi"] / match["name"] / match["name"]
            library = _judged(path, content)
            if not are_sound(path.parent, [path.name]):
                with own_folder_errors(path):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with replacing(path) as part:
                        part.write_bytes(content)
                    note_digests(path.parent, [path.name])
            yield library


def fitting(given: Sequence[str], system: str, abi: str, *, python: bool = False) -> tuple[CustomLibrary, ...]:
    """Those of the given files that a process of a system and ABI can load, of one name the first; () for no files.

    `python`: that process is Python. Raises UnavailableError where none fits, and as `read_libraries`.
    """
    libraries = [library for text in given for library in read_libraries(text)]
    fit: dict[str, CustomLibrary] = {}
    for row in libraries:  # a domain is registered once
        if (row.system, row.abi) == (system, abi) and (python or not row.python):
            fit.setdefault(row.path.name, row)
    if given and not fit:
        raise UnavailableError(
            f"no library of custom operators for {system} {abi}",
            where=", ".join(given),
            why=f"there are those for {', '.join(dict.fromkeys(map(str, libraries)))}",
            remedy=f"give the library for {system} {abi}, too (--custom-ops; custom_ops in a config)",
        )
    return tuple(fit.values())


def process_of(library: Path) -> tuple[str, str]:
    """System and ABI of a process that has a libonnxruntime; raises UnavailableError for a file that is no library."""
    with library.open("rb") as file:
        head = file.read(8)
    if head in MACH_O:
        return "macos", MACH_O[head]
    try:
        elf = parse_elf(library.read_bytes())
    except NotElf as error:
        raise UnavailableError("this is no library", where=str(library), why=str(error), remedy="check it") from error
    return "android" if "libc.so" in elf.needed else "linux", elf.abi
