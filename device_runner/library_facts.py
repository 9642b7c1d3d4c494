"""What a libonnxruntime is, from its bytes alone: release, ABI, providers, kind of build, page alignment.

Sources: libraries of 1.17.1 to 1.31.1 as packages carry them, and minimal builds of 1.21.0. Every build but those
without logging carries the source paths of its checks (`core/providers/nnapi/...`), which tell what was compiled in:
exported symbols alone do not (XNNPACK, WebGPU and QNN export none).
"""

import re
from pathlib import Path

import msgspec

from device_runner.errors import MissingError
from device_runner.files import sha256
from device_runner.probe.elf import PT_LOAD, Elf, NotElf, parse_elf

LIBRARY = "libonnxruntime.so"

PROVIDER_SOURCES = re.compile(rb"core[/\\]providers[/\\](nnapi|xnnpack|coreml|qnn|webgpu)[/\\]")
PROVIDER_SYMBOLS = re.compile(rb"\0OrtSessionOptionsAppendExecutionProvider_(Nnapi|CoreML)\0")
MINIMAL_TEXT = b"ONNX format model is not supported in this build."
EXTENDED_SOURCES = re.compile(rb"core[/\\]optimizer[/\\](selectors_actions|transpose_optimization|nhwc_transformer)")
"""A plain minimal build compiles of the optimizer one base class only (cmake/onnxruntime_optimizer.cmake)."""


class LibraryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a library file is, from its bytes alone. `release` and `commit` are "" where it does not tell.

    `system` is android or linux, by the C library that it needs; `kind` full, extended or minimal; `providers` those
    compiled in, by short name, the CPU's always among them.
    """

    path: str
    sha256: str
    size_bytes: int
    abi: str
    system: str
    release: str
    commit: str
    kind: str
    providers: tuple[str, ...]
    page_bytes: int
    needed: tuple[str, ...]
    imports: tuple[str, ...]


_FACTS: dict[str, LibraryFacts] = {}


def read_facts(path: Path) -> LibraryFacts:
    """What a .so is; raises MissingError for a file that is none, is cut off, or is not ONNX Runtime."""
    digest = sha256(path)
    if digest not in _FACTS:
        _FACTS[digest] = _read_facts(path, digest)
    return msgspec.structs.replace(_FACTS[digest], path=str(path))


def android_facts(path: Path, abi: str) -> LibraryFacts:
    """As `read_facts`, of Android's library for an ABI; raises MissingError for any other, naming what it is."""
    facts = read_facts(path)
    if facts.system != "android":
        raise MissingError(
            f"this is no Android {LIBRARY}",
            where=str(path),
            why="it was not built for Android: it does not need Android's libc.so",
            remedy=f"give an AAR, or {LIBRARY} from one",
        )
    return of_abi(facts, abi)


def of_abi(facts: LibraryFacts, abi: str) -> LibraryFacts:
    """The facts, when they are of that ABI; raises MissingError else."""
    if facts.abi != abi:
        raise MissingError(
            f"this library is for {facts.abi}, not for {abi}",
            where=facts.path,
            why=f"a process there runs {abi} only",
            remedy=f"give a library or an archive that has {abi}",
        )
    return facts


def _read_facts(path: Path, digest: str) -> LibraryFacts:
    content = path.read_bytes()
    try:
        elf = _parse_whole(content)
    except NotElf as error:
        raise MissingError(
            f"this is no {LIBRARY}",
            where=str(path),
            why=str(error),
            remedy=f"give an AAR, or a whole {LIBRARY} from one",
        ) from error
    return LibraryFacts(
        path=str(path),
        sha256=digest,
        size_bytes=len(content),
        abi=elf.abi,
        system=_system(elf, content),
        release=_text(rb"\0VERS_(\d+\.\d+\.\d+)\0", content),
        commit=_text(rb"git-commit-id=([0-9a-f]{7,40})", content),
        kind=_kind(content),
        providers=_providers(content),
        page_bytes=elf.page_bytes,
        needed=elf.needed,
        imports=tuple(sorted(elf.undefined)),
    )


def _parse_whole(content: bytes) -> Elf:
    elf = parse_elf(content)
    if why := _objection(elf, content):
        raise NotElf(why)
    return elf


def _objection(elf: Elf, content: bytes) -> str:
    size = len(content)
    end = max((segment.offset + segment.file_size for segment in elf.segments if segment.type == PT_LOAD), default=0)
    if end > size:
        return f"the file is cut off: {size} of at least {end} bytes are there"
    exported = any(symbol.name == "OrtGetApiBase" and symbol.section for symbol in elf.symbols)
    if not (exported if elf.bits == 64 else b"\0OrtGetApiBase\0" in content):
        return "it does not export OrtGetApiBase"
    return ""


def _system(elf: Elf, content: bytes) -> str:
    """Of 32-bit files the dynamic section is not read: the name of glibc's C library stands in those for Linux."""
    if elf.bits == 64:
        return "android" if "libc.so" in elf.needed else "linux"
    return "linux" if b"\0libc.so.6\0" in content else "android"


def _kind(content: bytes) -> str:
    if MINIMAL_TEXT not in content:
        return "full"
    return "extended" if EXTENDED_SOURCES.search(content) else "minimal"


def _providers(content: bytes) -> tuple[str, ...]:
    found = {name.decode("ascii").lower() for name in PROVIDER_SOURCES.findall(content)}
    found |= {name.decode("ascii").lower() for name in PROVIDER_SYMBOLS.findall(content)}
    return tuple(sorted(found | {"cpu"}))


def _text(pattern: bytes, content: bytes) -> str:
    found = re.search(pattern, content)
    return found.group(1).decode("ascii") if found else ""
