"""Libraries of custom operators: what a file is, and which of those that are given a process can load."""

import re
import struct
import zipfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from device_runner.errors import NoLibraryError, UnavailableError
from device_runner.files import are_sound, cache_folder, keep_noted, sha256
from device_runner.library import MAX_BYTES, is_archive
from device_runner.probe import elf as elf_file
from device_runner.probe.elf import NotElf
from device_runner.untrusted_files import ZIP_ERRORS, check_unpacked, read_regular

SYMBOL = "RegisterCustomOps"
MEMBER = re.compile(r"(?:jni|lib)/(?P<abi>[\w-]+)/(?P<name>lib[\w.-]+\.so)")
SLICE = re.compile(r"(?:[^/]+/)*[\w.+-]+\.xcframework/[^/]+/.+")
ABIS = {"arm64": "arm64-v8a", "x86_64": "x86_64"}
"""Mach-O's name of a processor to Android's name of the ABI."""


class CustomLibrary(NamedTuple):
    """A library on this computer with its system (android, linux, macos, ios) and ABI.

    `python`: it takes symbols of Python, as that of the package onnxruntime-extensions does. `java`: it has JNI's.
    `linked`: it is a ZIP of an xcframework, which apps link and nothing here opens.
    """

    path: Path
    system: str
    abi: str
    python: bool = False
    java: bool = False
    linked: bool = False

    def __str__(self) -> str:
        kind = " in Python" if self.python else " as an xcframework" if self.linked else ""
        return f"{self.system} {self.abi}{kind}"


def read_libraries(text: str) -> tuple[CustomLibrary, ...]:
    """What a file is: a library of custom operators, an AAR or APK with one for each ABI, or a ZIP of an xcframework.

    Raises NoLibraryError, UnavailableError for a file that is neither.
    """
    path = Path(text)
    if not path.is_file():
        remedy = f"zip -r {path.name}.zip {path.name}, and give the ZIP" if path.is_dir() else "check the path"
        raise NoLibraryError("no library of custom operators there", where=text, remedy=remedy)
    status = path.stat()
    key = path.absolute(), status.st_size, status.st_mtime_ns
    if not all(library.path.is_file() for library in _read(*key)):  # what was unpacked went with the cache
        _read.cache_clear()
    return _read(*key)


@lru_cache(maxsize=64)
def _read(path: Path, _size: int, _mtime_ns: int) -> tuple[CustomLibrary, ...]:
    slices: list[CustomLibrary] = []
    by_abi: dict[str, CustomLibrary] = {}
    try:
        if not is_archive(path):
            return tuple(_judged(path, read_regular(path, MAX_BYTES)))
        with zipfile.ZipFile(path) as archive:
            # The code in a ZIP of an xcframework, for each system and processor; other archives have none
            left = MAX_BYTES
            for info in archive.infolist():
                if SLICE.fullmatch(info.filename):
                    check_unpacked(info, left)
                    left -= info.file_size
                    content = archive.read(info)
                    if f"_{SYMBOL}\0".encode() in content:
                        slices += (_image_of(path, image, linked=True) for image in elf_file.read_images(content))
            for name in [] if slices else sorted(archive.namelist()):
                if not (match := MEMBER.fullmatch(name)):
                    continue
                check_unpacked(archive.getinfo(name), MAX_BYTES)
                content = archive.read(name)
                if f"\0{SYMBOL}\0".encode() not in content:
                    continue
                file = cache_folder() / "custom-ops" / sha256(path) / match["abi"] / match["name"] / match["name"]
                (library,) = _judged(file, content)
                if not are_sound(file.parent, [file.name]):
                    keep_noted(file, content)
                # Beside the plain library the AAR of Extensions has one with JNI
                if library.abi not in by_abi or by_abi[library.abi].java:
                    by_abi[library.abi] = library
        if not (slices or by_abi):
            raise NotElf(f"no library in it exports {SYMBOL}")
    except (*ZIP_ERRORS, struct.error) as error:  # among them ValueError, which NotElf is, and OSError
        remedy = f"give a .so or .dylib that exports {SYMBOL}, an AAR with such, or a ZIP of an xcframework with it"
        raise UnavailableError(
            "this is no library of custom operators", where=str(path), why=str(error), remedy=remedy
        ) from error
    return tuple(dict.fromkeys(slices)) or tuple(by_abi.values())


def _judged(path: Path, content: bytes) -> Iterator[CustomLibrary]:
    """What a file is by its bytes, for each processor; raises NotElf for one that registers no custom operators."""
    if content[:4] in (elf_file.THIN, elf_file.FAT):
        if f"_{SYMBOL}\0".encode() not in content:
            raise NotElf(f"it does not export {SYMBOL}")
        for image in elf_file.read_images(content):
            if image.static:
                raise NotElf("it is code to be linked: make an xcframework of it (xcodebuild -create-xcframework)")
            yield _image_of(path, image)
        return
    elf = elf_file.parse_elf(content)
    names = {name for name, section in elf.symbols if section}
    if SYMBOL not in names:
        raise NotElf(f"it does not export {SYMBOL}")
    python = any(name.startswith(("Py", "_Py")) for name in elf.undefined)
    java = any(name.startswith("Java_") for name in names)
    yield CustomLibrary(path, elf.system, elf.abi, python, java)


def _image_of(path: Path, image: elf_file.MachOImage, *, linked: bool = False) -> CustomLibrary:
    abi = ABIS.get(image.architecture, image.architecture)
    return CustomLibrary(path, "-".join(filter(None, image.system)), abi, linked=linked)


def fitting(
    given: Sequence[str], system: str, abi: str, *, python: bool = False, linked: bool = False
) -> tuple[CustomLibrary, ...]:
    """Those of the given files that a process of a system and ABI can load, of one name the first; () for no files.

    `python`: that process is Python. `linked`: those that an app for it can link instead. Raises UnavailableError where
    none fits, and as `read_libraries`.
    """
    libraries = [library for text in given for library in read_libraries(text)]
    fit: dict[str, CustomLibrary] = {}
    for library in libraries:  # a domain is registered once
        if (library.system, library.abi, library.linked) == (system, abi, linked) and (python or not library.python):
            fit.setdefault(library.path.name, library)
    if given and not fit:
        kind = CustomLibrary(Path(), system, abi, linked=linked)
        raise UnavailableError(
            f"no library of custom operators for {kind}",
            where=", ".join(given),
            why=f"there are those for {', '.join(dict.fromkeys(map(str, libraries)))}",
            remedy=f"give the library for {kind}, too (--custom-ops; custom_ops in a config)",
        )
    return tuple(fit.values())


def process_of(library: Path) -> tuple[str, str]:
    """System and ABI of a process that has a libonnxruntime; raises UnavailableError for a file that is no library."""
    content = library.read_bytes()
    try:
        if content.startswith(elf_file.THIN):
            _, system, abi, *_ = _image_of(library, next(elf_file.read_images(content)))
            return system, abi
        elf = elf_file.parse_elf(content)
    except (ValueError, struct.error) as error:
        raise UnavailableError("this is no library", where=str(library), why=str(error), remedy="check it") from error
    return elf.system, elf.abi
