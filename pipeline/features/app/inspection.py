"""The files of an app or a package, and what each native library and model is: from its bytes, nothing of it is run.

Sources: ELF as Android's linker reads it (bionic, linker_phdr.cpp); binary XML by frameworks/base, androidfw
ResourceTypes.h; the calls of GetApi as clang compiles them in libraries of 1.17.1 to 1.30.0; onnx.proto3.
"""

import contextlib
import io
import mmap
import os
import re
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

import msgspec

from device_runner.files import ZIP_ERRORS, check_unpacked, open_regular, scratch_folder
from device_runner.library import BUILD_MARK, TELEMETRY_HOST, read_build
from device_runner.plugins import BUILT_FOR
from device_runner.probe.elf import (
    ARCHIVE,
    FAT,
    PT_LOAD,
    THIN,
    Buffer,
    Elf,
    NotElf,
    parse_elf,
    parse_header,
    read_images,
)
from pipeline.compat.contexts import plugin_release
from pipeline.compat.defects import marks_of, weight_reader
from pipeline.compat.release_table import release_table
from pipeline.compat.rules import ArtifactFacts, facts_of
from pipeline.core.abis import ARM64
from pipeline.core.errors import ConfigError, Finding, ModelError, Severity, finding_of
from pipeline.library.kernels import ArmCode, read_arm_code
from pipeline.model.onnx_model import (
    LENGTH,
    MODEL_GRAPH,
    WireError,
    fields,
    parse_onnx,
    read_varint,
)
from pipeline.model.ort_format import read_artifact

NESTED = (".apk", ".aab", ".aar", ".ipa", ".jar", ".zip", ".whl")
"""Archives that are looked into where they lie in another archive or a folder; an app's own assets are its own."""
DEPTH = 3
MOST_MEMBERS = 200_000
MEMBER_BYTES = 2 << 30
TOTAL_BYTES = 8 << 30
HELD_BYTES = 64 << 20
"""What is held in memory; larger members go to a temporary file that is mapped."""
COPY_BYTES = 1 << 20
DIRECTORY_BYTES = 32 << 20
"""Of an archive's directory: zipfile reads it at once, and makes 500 bytes of each 46. 200,000 members have 20 MB."""
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Those of packages for phones; zipfile bounds what it unpacks at once for these alone."""


class Member(NamedTuple):
    """A file by its path; `archive` is the ZIP that holds it ("" for a folder), also as a part of `path`.

    `offset` is where its bytes lie in that ZIP if they are stored as they are, else -1.
    """

    path: str
    archive: str
    size_bytes: int
    packed_bytes: int
    offset: int
    open: Callable[[], IO[bytes]]

    @property
    def name(self) -> str:
        """Its path in the archive."""
        return self.path.removeprefix(f"{self.archive}/") if self.archive else self.path

    def head(self, count: int = 16) -> bytes:
        """Its first bytes."""
        with self.open() as file:
            return file.read(count)

    @contextlib.contextmanager
    def content(self) -> Iterator[Buffer]:
        """All its bytes, to be searched while the block runs."""
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(self.open())
            if self.size_bytes <= HELD_BYTES:
                yield file.read()
                return
            held = stack.enter_context(self.as_file()).open("rb")
            stack.callback(held.close)
            yield stack.enter_context(mmap.mmap(held.fileno(), 0, access=mmap.ACCESS_READ))

    @contextlib.contextmanager
    def as_file(self, name: str = "member") -> Iterator[Path]:
        """A temporary file with its bytes, under a name of ours."""
        with scratch_folder("ort-mobile-app-") as folder, self.open() as file:
            path = folder / name
            with path.open("wb") as copy:
                while chunk := file.read(COPY_BYTES):
                    copy.write(chunk)
            yield path


def read_members(path: Path) -> Iterator[Member]:
    """Every file of an app or a package; each can be opened until the next is asked for.

    Raises ConfigError for what is neither folder nor ZIP, for archives that are cut off, encrypted or made to do harm.
    """
    if path.is_dir():
        yield from _folder(path)
        return
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            zipped = file.read(2) == b"PK"
    except OSError as error:
        raise unreadable(path, "", error) from error
    if zipped:
        yield from _Archives(path).members(path, "", 0)
        return
    yield Member(path.name, "", size, size, -1, lambda: path.open("rb"))


def _folder(path: Path) -> Iterator[Member]:
    seen = 0
    for root, folders, files in os.walk(path):
        folders.sort()
        for name in sorted(files):
            file = Path(root, name)
            if file.is_symlink() or not file.is_file():
                continue
            seen += 1
            if seen > MOST_MEMBERS:
                raise ConfigError("this folder has too many files", where=str(path), why=f"over {MOST_MEMBERS:,}",
                                  remedy="name the app's package, or a folder inside")  # fmt: skip
            inner, size = os.fsencode(file.relative_to(path)).decode("utf-8", "backslashreplace"), file.stat().st_size
            if name.lower().endswith(NESTED) and zipfile.is_zipfile(file):
                yield from _Archives(path).members(file, inner, 1)
            else:
                yield Member(inner, "", size, size, -1, lambda file=file: file.open("rb"))  # type: ignore[misc]


class _Directory(io.BufferedReader):
    """An archive's file, of which no more is read at once than a directory may have until `directory_read`."""

    directory_read = False

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > DIRECTORY_BYTES and not self.directory_read:
            raise OSError(f"its directory has {size:,} bytes; at most {DIRECTORY_BYTES:,} are read")
        return super().read(size)


class _Archives:
    """A ZIP and those in it, with what all of them may become together."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.left = TOTAL_BYTES

    def members(self, file: Path, prefix: str, depth: int) -> Iterator[Member]:
        try:
            with _Directory(io.FileIO(file)) as opened, zipfile.ZipFile(opened) as archive:
                opened.directory_read = True
                infos = [info for info in archive.infolist() if not info.is_dir()]
                if len(infos) > MOST_MEMBERS:
                    raise OSError(f"it has {len(infos):,} members; at most {MOST_MEMBERS:,} are read")
                for info in infos:
                    # No package for phones has members that lead out of it, are encrypted or packed otherwise.
                    name = info.orig_filename
                    parts = name.replace("\\", "/").split("/")
                    if ".." in parts or not parts[0] or ":" in parts[0] or "\0" in name:
                        raise OSError(f"its member {name[:200]!r} leads out of it")
                    if info.flag_bits & 1:
                        raise OSError(f"its member {name[:200]!r} is encrypted")
                    if info.compress_type not in METHODS:
                        raise OSError(
                            f"its member {name[:200]!r} is packed by method {info.compress_type}: neither stored nor "
                            "deflated"
                        )
                    check_unpacked(info, MEMBER_BYTES)
                    member = self._member(archive, opened, info, prefix)
                    if depth < DEPTH and info.filename.lower().endswith(NESTED) and member.head(2) == b"PK":
                        with member.as_file() as copy:
                            yield from self.members(copy, member.path, depth + 1)
                    else:
                        yield member
        except ZIP_ERRORS as error:
            raise unreadable(self.path, prefix, error) from error

    def _member(self, archive: zipfile.ZipFile, file: IO[bytes], info: zipfile.ZipInfo, prefix: str) -> Member:
        path, offset = f"{prefix}/{info.filename}" if prefix else info.filename, -1
        if info.compress_type == zipfile.ZIP_STORED:
            # Its bytes begin behind its local header, whose extra field is another than the directory's.
            place = file.tell()
            try:
                file.seek(info.header_offset)
                header = file.read(30)
            finally:
                file.seek(place)
            if len(header) < 30 or header[:4] != b"PK\3\4":
                raise zipfile.BadZipFile(f"no header of {info.filename[:200]!r} where the directory says")
            name, extra = struct.unpack_from("<HH", header, 26)
            offset = info.header_offset + 30 + int(name) + int(extra)

        def opened() -> IO[bytes]:
            self.left -= info.file_size
            if self.left < 0:
                raise OSError(f"its members become over {TOTAL_BYTES:,} bytes")
            return archive.open(info)

        return Member(path, prefix, info.file_size, info.compress_size, offset, opened)


def unreadable(path: Path, member: str, error: Exception) -> ConfigError:
    """That a package, or a member of it, cannot be read."""
    return ConfigError(
        "this package cannot be read", where=f"{path}/{member}" if member else str(path),
        why=getattr(error, "strerror", None) or str(error)[:300] or type(error).__name__,
        remedy="name an APK, AAB, AAR, IPA, xcframework or folder that is whole; build or fetch it again",
    )  # fmt: skip


GET_API_BASE = "OrtGetApiBase"
ENTRIES = {"RegisterCustomOps": "custom operators", "CreateEpFactories": "plugin", "GetProvider": "provider"}
"""Functions that ONNX Runtime calls in a library that it loads, and what such a library is."""
OPENED = b"\0libonnxruntime.so\0"
"""What a library has that opens ONNX Runtime by its name when it runs."""
RELEASE_TAG = re.compile(r"VERS_\d+\.\d+\.\d+")
HEXAGON = 164
"""e_machine of what the DSP of a Qualcomm chip loads, and Android's linker never."""
UNSEARCHED = "libQnn"
"""Qualcomm's licence forbids to look into them: of these the header and the size are read."""
CONTEXT_NODE = "EPContext"
PASSED = frozenset({
    ".arsc", ".class", ".css", ".dex", ".gif", ".h", ".hpp", ".html", ".jar", ".java", ".jpeg", ".jpg", ".js", ".json",
    ".kt", ".map", ".md", ".mp3", ".mp4", ".ogg", ".otf", ".pdf", ".plist", ".png", ".properties", ".py", ".svg",
    ".swift", ".ttf", ".txt", ".wav", ".webp", ".xml", ".dll", ".exe", ".meta",
})  # fmt: skip
"""Endings of files that are neither libraries nor models for phones, and are not opened."""
LEAST_BYTES = 64
MANIFEST_BYTES = 4 << 20
CODE_BYTES = 512 << 20
"""Of a library whose instructions are counted, at 15 seconds a gigabyte."""
EXTRACT_NATIVE_LIBS, RESOURCE_MAP, START_ELEMENT = 0x010104EA, 0x0180, 0x0102
ATTRIBUTE_BYTES = 20
MOST_PARTS = 4000
"""Native libraries, and models: what apps have by hundreds, and rules look at in pairs."""
MODEL_OPSETS, MODEL_METADATA, GRAPH_NODE, NODE_OPERATOR, NODE_ATTRIBUTE = 8, 14, 1, 4, 5
NODE_DOMAIN, ATTRIBUTE_GRAPH = 7, 6


class NativeLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """A native library of a package, for one ABI.

    `system` is android, linux, ios, macos (with a variant), or dsp. `page_bytes` is the smallest alignment of its
    segments, 0 where that does not count; `offset` where it lies in its archive if it is stored there uncompressed,
    else -1. `kind` is that of the build of ONNX Runtime in it, "" for all other libraries. `asks` is the release whose
    symbols it must find, `api` the version that it calls GetApi with, 0 where neither tells. `opens`: it looks for
    libonnxruntime.so when it runs. `entries` are what ONNX Runtime may load it as, `plugin` the release
    of QNN's, as its options tell. `arm_code` is the code of an
    ONNX Runtime for arm64 that only some processors run.
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
    opens: bool = False
    entries: tuple[str, ...] = ()
    plugin: str = ""
    arm_code: ArmCode | None = None

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
    def uses(self) -> bool:
        """Whether it calls an ONNX Runtime in another file."""
        linked = any(name.startswith("libonnxruntime.so") for name in self.needed)
        return not self.kind and (linked or self.opens or bool(self.asks or self.api))


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


def kind_of(path: Path, names: set[str]) -> str:
    """What a package is, by the files that only one kind has; "" for a plain folder or ZIP."""
    heads = {name.partition("/")[0] for name in names}
    rows = (
        ("AAB", "BundleConfig.pb" in names),
        ("APK", "AndroidManifest.xml" in names and ("classes.dex" in names or "resources.arsc" in names)),
        ("AAR", "AndroidManifest.xml" in names and ("classes.jar" in names or "jni" in heads)),
        ("IPA", "Payload" in heads),
        ("xcframework", "Info.plist" in names and path.name.endswith(".xcframework")),
        ("xcframework", len(heads) == 1 and all(head.endswith(".xcframework") for head in heads)),
        ("wheel", any(head.endswith(".dist-info") for head in heads)),
        ("APK set", "toc.pb" in names or ("manifest.json" in names and any(head.endswith(".apk") for head in heads))),
    )
    return next((kind for kind, matches in rows if matches), "")


class Inspector:
    """Goes through a package and keeps what it holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: set[str] = set()
        self.libraries: list[NativeLibrary] = []
        self.models: list[PackagedModel] = []
        self.facts: list[ArtifactFacts] = []
        self.findings: list[Finding] = []
        self.extracts: dict[str, bool | None] = {}
        self.sizes: dict[str, SizePart] = {}

    def read(self) -> None:
        """Read everything; raises ConfigError for a package that cannot be read, and for a file that is none."""
        for member in read_members(self.path):
            self.names.add(member.path)
            before = len(self.libraries), len(self.models)
            try:
                self._look(member)
            except ZIP_ERRORS as error:
                raise unreadable(self.path, member.path, error) from error
            if max(len(self.libraries), len(self.models)) > MOST_PARTS:
                raise unreadable(self.path, "", ValueError(f"it has over {MOST_PARTS:,} native libraries or models"))
            for row in self.libraries[before[0] :]:  # a universal file of Apple's has one for each architecture
                runtime = f"ONNX Runtime, {row.abi}" if row.kind else f"native libraries, {row.abi}"
                self._count(runtime, row)
            if len(self.libraries) == before[0]:
                self._count("models" if len(self.models) > before[1] else "everything else", member)
        alone = self.path.is_file() and self.names == {self.path.name}
        if alone and not (self.libraries or self.models or self.findings):
            raise unreadable(self.path, "", ValueError("it is neither an archive nor a native library nor a model"))

    def _count(self, part: str, counted: "Member | NativeLibrary") -> None:
        before = self.sizes.get(part, SizePart(part=part, files=0, packed_bytes=0, size_bytes=0))
        self.sizes[part] = SizePart(
            part=part, files=before.files + 1, packed_bytes=before.packed_bytes + counted.packed_bytes,
            size_bytes=before.size_bytes + counted.size_bytes,
        )  # fmt: skip

    def _look(self, member: Member) -> None:
        suffix = PurePosixPath(member.name).suffix.lower()
        if member.name == "AndroidManifest.xml":
            if member.size_bytes <= MANIFEST_BYTES:
                with member.content() as content:
                    self.extracts[member.archive] = extracts_libraries(content)
            return
        if suffix in PASSED or member.size_bytes < LEAST_BYTES:
            return
        head = member.head()
        if head[:4] == b"\x7fELF":
            self._elf(member)
        elif head[:4] in (THIN, FAT) or (head[:8] == ARCHIVE and suffix in (".a", "")):
            self._macho(member)
        elif head[4:8] == b"ORTM":
            self._ort_model(member)
        elif suffix == ".onnx":
            with member.content() as content:
                try:
                    facts, details = scan_onnx(content, member.path)
                except WireError as error:
                    self._damaged(member, "this ONNX model is cut off or damaged", str(error))
                    return
            self._model(member, "onnx", facts, **details)

    def _damaged(self, member: Member, what: str, why: str) -> None:
        remedy = "build or fetch the package again"
        self.findings.append(finding("damaged", Severity.ERROR, what, member.path, why, remedy))

    def _elf(self, member: Member) -> None:
        with member.content() as content:
            try:
                elf = _whole(content)
                dsp = elf.machine == HEXAGON
                closed = dsp or member.path.rpartition("/")[2].startswith(UNSEARCHED)
                system = {"system": "dsp" if dsp else "android"}
                details = system if closed else _elf_details(content, parse_elf(content))
            except NotElf as error:
                self._damaged(member, "this native library is damaged", str(error))
                return
        self.libraries.append(
            NativeLibrary(
                path=member.path, archive=member.archive, abi="hexagon" if dsp else elf.abi,
                size_bytes=member.size_bytes, packed_bytes=member.packed_bytes, offset=member.offset,
                page_bytes=0 if dsp else elf.page_bytes, **details,
            )
        )  # fmt: skip

    def _macho(self, member: Member) -> None:
        with member.content() as content:
            try:
                images = list(read_images(content))
            except (ValueError, struct.error):
                return  # 32-bit code, a Java class (its magic is that of fat files), objects for several systems
            for image in images:
                end = image.start + image.size_bytes
                code = content if image.size_bytes == len(content) else content[image.start : end]
                build = read_build(code) if code.find(BUILD_MARK) >= 0 else None
                self.libraries.append(
                    NativeLibrary(
                        path=member.path, archive=member.archive, abi=image.architecture,
                        system=" ".join(image.system).strip() or "apple", size_bytes=image.size_bytes,
                        packed_bytes=member.packed_bytes * image.size_bytes // max(member.size_bytes, 1),
                        exports=build is not None, **(build or {"telemetry": code.find(TELEMETRY_HOST) >= 0}),
                    )
                )  # fmt: skip

    def _ort_model(self, member: Member) -> None:
        with member.as_file("model.ort") as file:
            try:
                model = read_artifact(file)
                facts = facts_of(model, member.path, weight_reader(file))
            except ModelError as error:
                self.findings.append(msgspec.structs.replace(finding_of(error, member.path), rule="model"))
                return
        nodes = [node for graph in model.graph.walk() for node in graph.nodes]
        domains, context = {node.domain for node in nodes}, any(node.op_type == CONTEXT_NODE for node in nodes)
        self._model(member, "ort", facts, domains=tuple(sorted(domains)), context=context)

    def _model(self, member: Member, kind: str, facts: ArtifactFacts, **details: Any) -> None:
        self.facts.append(facts)
        self.models.append(
            PackagedModel(
                path=member.path, format=kind, size_bytes=member.size_bytes, packed_bytes=member.packed_bytes,
                opset=facts.opset, **details,
            )
        )  # fmt: skip


def _whole(content: Buffer) -> Elf:
    """The header of an ELF file whose segments are all there; NotElf for others."""
    elf = parse_header(content[:65536])
    loaded = [part for part in elf.segments if part.type == PT_LOAD]
    end = max((part.offset + part.file_size for part in loaded), default=0)
    if sum(part.file_size for part in loaded) > 2 * len(content):
        raise NotElf("its segments lie over each other")
    if end > len(content):
        raise NotElf(f"it is cut off: {len(content):,} of at least {end:,} bytes are there")
    return elf


def _elf_details(content: Buffer, elf: Elf) -> dict[str, Any]:
    """The fields of a library that is looked into: who it needs, what it asks of ONNX Runtime, and what of it it is."""
    defined = {name for name, section in elf.symbols if section}
    exports = GET_API_BASE in defined
    build = read_build(content) if exports or content.find(BUILD_MARK) >= 0 else None
    versions = [version for _, version in elf.versions if RELEASE_TAG.fullmatch(version)]
    linux = elf.needed and "libc.so" not in elf.needed and "libc.so.6" in elf.needed
    details: dict[str, Any] = {
        "system": "linux" if linux else "android",
        "soname": elf.soname,
        "needed": elf.needed,
        "exports": exports,
        "asks": versions[0].removeprefix("VERS_") if versions else "",
        "api": asked_api(content, elf) if GET_API_BASE in elf.undefined else 0,
    }
    if build is None:
        return details | {
            "opens": content.find(OPENED) >= 0,
            "entries": tuple(sorted(defined & ENTRIES.keys())),
            "plugin": plugin_release(content) if "CreateEpFactories" in defined else "",
            "telemetry": content.find(TELEMETRY_HOST) >= 0,
        }
    if elf.abi == ARM64 and len(content) <= CODE_BYTES:
        details["arm_code"] = read_arm_code(content, elf)
    return details | build


def asked_api(content: Buffer, elf: Elf) -> int:
    """The version of the API that a library calls GetApi with right after OrtGetApiBase, 0 where none is seen.

    What is called is followed to its slot, so that no other call of this form counts.
    """
    slot = dict(elf.slots).get(GET_API_BASE)
    pattern, decode = CALLS.get(elf.abi, (None, None))
    if slot is None or pattern is None or decode is None:
        return 0
    for match in pattern.finditer(content):
        place = match.start()
        inside = (part for part in elf.segments if part.type == PT_LOAD and 0 <= place - part.offset < part.file_size)
        called = next((place - part.offset + part.address for part in inside), None)
        with contextlib.suppress(NotElf, struct.error):
            if called is not None and decode(content, elf, place, called) == slot:
                return int.from_bytes(match[1], "little") >> (5 if elf.machine == 183 else 0) & 0xFFFF
    return 0


def _place(elf: Elf, address: int) -> int:
    for part in elf.segments:
        if part.type == PT_LOAD and 0 <= address - part.address < part.file_size:
            return address - part.address + part.offset
    raise NotElf(f"no segment has the address {address:#x}")


def _signed(value: int, bits: int) -> int:
    return value - (value >> bits - 1 << bits)


def _slot_arm64(content: Buffer, elf: Elf, place: int, address: int) -> int:
    """BL to a thunk: (BTI c,) ADRP x16, LDR x17 from there; the address that LDR reads."""
    (call,) = struct.unpack_from("<I", content, place)
    thunk = address + _signed(call & 0x3FFFFFF, 26) * 4
    if struct.unpack_from("<I", content, _place(elf, thunk))[0] == 0xD503245F:
        thunk += 4
    page, load = struct.unpack_from("<II", content, _place(elf, thunk))
    if page & 0x9F00001F != 0x90000010:
        return -1
    distance = _signed((page >> 5 & 0x7FFFF) << 2 | page >> 29 & 3, 21)
    return int((thunk & ~0xFFF) + (distance << 12) + (load >> 10 & 0xFFF) * 8)


def _slot_x86_64(content: Buffer, elf: Elf, place: int, address: int) -> int:
    """CALL to a thunk: (ENDBR64,) JMP [RIP + distance]."""
    (distance,) = struct.unpack_from("<i", content, place + 1)
    thunk = address + 5 + int(distance)
    at = _place(elf, thunk)
    if content[at : at + 4] == b"\xf3\x0f\x1e\xfa":
        at, thunk = at + 4, thunk + 4
    if content[at : at + 2] != b"\xff\x25":
        return -1
    return thunk + 6 + int(struct.unpack_from("<i", content, at + 2)[0])


CALLS: Mapping[str, tuple[re.Pattern[bytes], Callable[[Buffer, Elf, int, int], int]]] = {
    # bl; ldr xN, [x0]; mov w0, #version; blr xN
    "arm64-v8a": (re.compile(rb"(?s)...[\x94-\x97].\x00\x40\xf9(..\x80\x52).[\x00-\x03]\x3f\xd6"), _slot_arm64),
    # call; mov edi, version; call [rax]
    "x86_64": (re.compile(rb"(?s)\xe8....\xbf(.\x00\x00\x00)\xff\x10"), _slot_x86_64),
}


def extracts_libraries(manifest: Buffer) -> bool | None:
    """android:extractNativeLibs of a binary AndroidManifest.xml; None where it is not said or this is none."""
    attribute, place = -1, 8
    if manifest[:4] != b"\3\0\x08\0":
        return None
    with contextlib.suppress(struct.error):
        while place + 8 <= len(manifest):
            kind, head, size = struct.unpack_from("<HHI", manifest, place)
            if size < 8:
                return None
            if kind == RESOURCE_MAP:
                ids = struct.unpack_from(f"<{min(size - 8, len(manifest)) // 4}I", manifest, place + 8)
                attribute = ids.index(EXTRACT_NATIVE_LIBS) if EXTRACT_NATIVE_LIBS in ids else -1
            elif kind == START_ELEMENT and attribute >= 0:
                start, step, count = struct.unpack_from("<HHH", manifest, place + head + 8)
                if start + count * step > size or step < ATTRIBUTE_BYTES:
                    return None
                for index in range(count):
                    row = struct.unpack_from("<IIIHBBI", manifest, place + head + start + index * step)
                    if row[1] == attribute:
                        return bool(row[6])
            place += size
    return None


def scan_onnx(content: Buffer, name: str) -> tuple[ArtifactFacts, dict[str, Any]]:
    """What of an ONNX model decides whether it loads, and fields of PackagedModel: domains, context, NPU and QAIRT.

    The message's frame is walked, weights are passed over. Raises WireError.
    """
    opsets: dict[str, int] = {}
    domains: set[str] = set()
    context, npu, qairt = False, 0, ""
    graphs: list[tuple[int, int]] = []
    with memoryview(content) as data:
        for part in fields(data, 0, len(data)):
            if part.number == MODEL_OPSETS and part.wire_type == LENGTH:
                row = {field.number: field for field in fields(data, part.value, part.end)}
                domain = bytes(data[row[1].value : row[1].end]).decode("utf-8", "replace") if 1 in row else ""
                opsets[domain] = read_varint(data, row[2].value, row[2].end)[0] if 2 in row else 1
            elif part.number == MODEL_METADATA and (built := BUILT_FOR.search(data[part.value : part.end])):
                npu, qairt = int(built[2]), built[1].decode()
            elif part.number == MODEL_GRAPH and part.wire_type == LENGTH:
                graphs.append((part.value, part.end))
        if not graphs or not opsets:
            raise WireError("it has no graph")
        while graphs:
            for part in fields(data, *graphs.pop()):
                if part.wire_type != LENGTH:
                    continue
                if part.number == GRAPH_NODE:
                    rows = [field for field in fields(data, part.value, part.end) if field.wire_type == LENGTH]
                    domain, operator = (
                        next((bytes(data[row.value : row.end]).decode("utf-8", "replace") for row in rows
                              if row.number == number), "")
                        for number in (NODE_DOMAIN, NODE_OPERATOR)
                    )  # fmt: skip
                    domains.add(domain)
                    context = context or operator == CONTEXT_NODE
                    graphs += [
                        (body.value, body.end)
                        for row in rows
                        if row.number == NODE_ATTRIBUTE
                        for body in fields(data, row.value, row.end)
                        if body.number == ATTRIBUTE_GRAPH and body.wire_type == LENGTH
                    ]
    opset = opsets.get("", opsets.get("ai.onnx", 1))
    facts = _asked(content, name, opset)
    return facts, {"domains": tuple(sorted(domains)), "context": context, "npu": npu, "qairt": qairt}


def _asked(content: Buffer, name: str, opset: int) -> ArtifactFacts:
    """What a model asks of a release, and defects that it may meet; nothing of what cannot be read."""
    facts = ArtifactFacts(name=name, format_version="", opset=opset, replays=False)
    try:
        with memoryview(content) as view:
            model = parse_onnx(view, name, whole=True)
    except ModelError:
        return facts
    table = release_table()
    return msgspec.structs.replace(
        facts, demands=table.demands(model), unjudged=table.unjudged(model), defects=marks_of(model)
    )


def finding(rule: str, severity: Severity, what: str, where: str, why: str = "", remedy: str = "") -> Finding:
    """What speaks against a package."""
    return Finding(rule=rule, severity=severity, what=what, where=where, why=why, remedy=remedy)
