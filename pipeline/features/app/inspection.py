"""What each native library and model of a package is: from its bytes, nothing of it is run.

Sources: ELF as Android's linker reads it (bionic, linker_phdr.cpp); binary XML by frameworks/base, androidfw
ResourceTypes.h; onnx.proto3.
"""

import contextlib
import re
import struct
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from device_runner import library as ort_library
from device_runner import plugins, untrusted_files
from device_runner.probe import elf as elf_file
from device_runner.probe.elf import NotElf
from pipeline.compat import contexts as npu_contexts
from pipeline.compat import defects as compat_defects
from pipeline.compat import release_table
from pipeline.compat import rules as compat_rules
from pipeline.core import abis as core_abis
from pipeline.core import errors as core_errors
from pipeline.core.errors import Finding, ModelError, Severity
from pipeline.features.app.api_version import GET_API_BASE, asked_api, asked_range
from pipeline.features.app.document import ExternalFile, NativeLibrary, PackagedModel, SizePart, finding
from pipeline.features.app.external import joined
from pipeline.features.app.foreign import NAMED, foreign
from pipeline.features.app.frameworks import Frameworks
from pipeline.features.app.gradle import Places
from pipeline.features.app.java import JavaParts
from pipeline.features.app.members import Member, read_members, unreadable
from pipeline.features.app.outside import context_file, tensor_file
from pipeline.library import kernels
from pipeline.library.java_class import NotJava
from pipeline.model import foreign as model_foreign
from pipeline.model import onnx_model, onnx_view, ort_format, wire
from pipeline.model.wire import WireError

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
NODE_DOMAIN, ATTRIBUTE_GRAPH, ATTRIBUTE_TENSOR = 7, 6, 5
RESOURCE_FORK = "._"
"""What begins the names of files that macOS puts beside others in archives; they have no content of those."""


class Inspector:
    """Goes through a package and keeps what it holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: set[str] = set()
        self.file_bytes: dict[str, int] = {}
        self.libraries: list[NativeLibrary] = []
        self.models: list[PackagedModel] = []
        self.facts: list[compat_rules.ArtifactFacts] = []
        self.findings: list[Finding] = []
        self.extracts: dict[str, bool | None] = {}
        self.sizes: dict[str, SizePart] = {}
        self.java = JavaParts()
        self.frameworks = Frameworks()
        self.places = Places()

    def read(self) -> None:
        """Read everything; raises ConfigError for a package that cannot be read, and for a file that is none."""
        for member in read_members(self.path):
            self.names.add(member.path)
            self.file_bytes[member.path] = member.size_bytes
            before = len(self.libraries), len(self.models)
            try:
                self._look(member)
            except untrusted_files.ZIP_ERRORS as error:
                raise unreadable(self.path, member.path, error) from error
            if max(len(self.libraries), len(self.models)) > MOST_PARTS:
                raise unreadable(self.path, "", ValueError(f"it has over {MOST_PARTS:,} native libraries or models"))
            self.places.add(member, self.libraries[before[0] :])
            for library in self.libraries[before[0] :]:  # a universal file of Apple's has one for each architecture
                runtime = f"ONNX Runtime, {library.abi}" if library.kind else f"native libraries, {library.abi}"
                self._count(runtime, library)
            if len(self.libraries) == before[0]:
                self._count("models" if len(self.models) > before[1] else "everything else", member)
        alone = self.path.is_file() and self.names == {self.path.name}
        if alone and not (self.libraries or self.models or self.findings):
            raise unreadable(self.path, "", ValueError("it is neither an archive nor a native library nor a model"))

    def _count(self, part: str, counted: "Member | NativeLibrary") -> None:
        before = self.sizes.get(part, SizePart(part=part, files=0, packed_bytes=0, size_bytes=0))
        self.sizes[part] = SizePart(
            part=part,
            files=before.files + 1,
            packed_bytes=before.packed_bytes + counted.packed_bytes,
            size_bytes=before.size_bytes + counted.size_bytes,
        )

    def _look(self, member: Member) -> None:
        if member.name == "AndroidManifest.xml":
            if member.size_bytes <= MANIFEST_BYTES:
                with member.content() as content:
                    self.extracts[member.archive] = extracts_libraries(content)
            return
        if self.frameworks.takes(member):
            self.frameworks.read(member)
            return
        if self.java.takes(member) and member.size_bytes >= LEAST_BYTES:
            try:
                self.java.read(member)
            except NotJava as error:
                self._damaged(member, "these Java classes are damaged", str(error))
            return
        file_name = PurePosixPath(member.name)
        suffix = file_name.suffix.lower()
        if suffix not in PASSED and not file_name.name.startswith(RESOURCE_FORK):
            self._binary(member, suffix)

    def _binary(self, member: Member, suffix: str) -> None:
        if member.size_bytes < LEAST_BYTES and suffix not in NAMED:
            return
        head = member.head(model_foreign.FOREIGN_BYTES)
        if finding := foreign(member.path, suffix, head):
            self.findings.append(finding)
        elif head[:4] == b"\x7fELF":
            self._elf(member)
        elif head[:4] in (elf_file.THIN, elf_file.FAT) or (head[:8] == elf_file.ARCHIVE and suffix in (".a", "")):
            self._macho(member)
        elif head[4:8] == b"ORTM":
            self._ort_model(member)
        elif suffix == ".ort":
            self._no_ort_model(member, head)
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
                details: dict[str, Any] = {"system": "dsp" if dsp else "android"}
                if not closed:
                    elf = elf_file.parse_elf(content)
                    details = _elf_details(content, elf)
                    self.java.add_library(member.path, content, elf)
            except NotElf as error:
                self._damaged(member, "this native library is damaged", str(error))
                return
        self.libraries.append(
            NativeLibrary(
                path=member.path,
                archive=member.archive,
                abi="hexagon" if dsp else elf.abi,
                size_bytes=member.size_bytes,
                packed_bytes=member.packed_bytes,
                offset=member.offset,
                page_bytes=0 if dsp else elf.page_bytes,
                **details,
            )
        )

    def _macho(self, member: Member) -> None:
        with member.content() as content:
            try:
                images = list(elf_file.read_images(content))
            except (ValueError, struct.error):
                return  # 32-bit code, a Java class (its magic is that of fat files), objects for several systems
            self.frameworks.add_code(member.path, images)
            for image in images:
                end = image.start + image.size_bytes
                code = content if image.size_bytes == len(content) else content[image.start : end]
                build = ort_library.read_build(code) if code.find(ort_library.BUILD_MARK) >= 0 else None
                self.libraries.append(
                    NativeLibrary(
                        path=member.path,
                        archive=member.archive,
                        abi=image.architecture,
                        system=" ".join(image.system).strip() or "apple",
                        size_bytes=image.size_bytes,
                        packed_bytes=member.packed_bytes * image.size_bytes // max(member.size_bytes, 1),
                        exports=build is not None,
                        **(build or {"telemetry": code.find(ort_library.TELEMETRY_HOST) >= 0}),
                    )
                )

    def _ort_model(self, member: Member) -> None:
        with member.as_file("model.ort") as file:
            try:
                model = ort_format.read_artifact(file)
                facts = compat_rules.facts_of(model, member.path, compat_defects.weight_reader(file))
            except ModelError as error:
                self.findings.append(msgspec.structs.replace(core_errors.finding_of(error, member.path), code="model"))
                return
        nodes = [node for graph in model.graph.walk() for node in graph.nodes]
        domains, context = {node.domain for node in nodes}, any(node.op_type == CONTEXT_NODE for node in nodes)
        self._model(member, "ort", facts, domains=tuple(sorted(domains)), context=context)

    def _no_ort_model(self, member: Member, head: bytes) -> None:
        """A warning: an app may decrypt it first, or open an ONNX model from memory, where no name counts."""
        try:
            ort_format.check_identifier(head, member.path)
        except ModelError as error:
            finding = core_errors.finding_of(error, member.path)
            self.findings.append(msgspec.structs.replace(finding, code="damaged", severity=Severity.WARNING))

    def _model(self, member: Member, kind: str, facts: compat_rules.ArtifactFacts, **details: Any) -> None:
        self.facts.append(facts)
        self.models.append(
            PackagedModel(
                path=member.path,
                format=kind,
                size_bytes=member.size_bytes,
                packed_bytes=member.packed_bytes,
                opset=facts.opset,
                **details,
            )
        )


def _whole(content: elf_file.Buffer) -> elf_file.Elf:
    """The header of an ELF file whose segments are all there; NotElf for others."""
    elf = elf_file.parse_header(content[:65536])
    loaded = [part for part in elf.segments if part.type == elf_file.PT_LOAD]
    end = max((part.offset + part.file_size for part in loaded), default=0)
    if sum(part.file_size for part in loaded) > 2 * len(content):
        raise NotElf("its segments lie over each other")
    if end > len(content):
        raise NotElf(f"it is cut off: {len(content):,} of at least {end:,} bytes are there")
    return elf


def _elf_details(content: elf_file.Buffer, elf: elf_file.Elf) -> dict[str, Any]:
    """The fields of a library that is looked into: who it needs, what it asks of ONNX Runtime, and what of it it is."""
    defined = {name for name, section in elf.symbols if section}
    exports = GET_API_BASE in defined
    build = ort_library.read_build(content) if exports or content.find(ort_library.BUILD_MARK) >= 0 else None
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
        tried = asked_range(content, elf)
        return details | {
            "api": tried.most or details["api"],
            "least_api": tried.least,
            "opens": content.find(OPENED) >= 0,
            "entries": tuple(sorted(defined & ENTRIES.keys())),
            "plugin": npu_contexts.plugin_release(content) if "CreateEpFactories" in defined else "",
            "telemetry": content.find(ort_library.TELEMETRY_HOST) >= 0,
        }
    if elf.abi == core_abis.ARM64 and len(content) <= CODE_BYTES:
        details["arm_code"] = kernels.read_arm_code(content, elf)
    return details | build


def extracts_libraries(manifest: elf_file.Buffer) -> bool | None:
    """android:extractNativeLibs of a binary AndroidManifest.xml; None where it is not said or this is none."""
    attribute, offset = -1, 8
    if manifest[:4] != b"\3\0\x08\0":
        return None
    with contextlib.suppress(struct.error):
        while offset + 8 <= len(manifest):
            kind, head, size = struct.unpack_from("<HHI", manifest, offset)
            if size < 8:
                return None
            if kind == RESOURCE_MAP:
                ids = struct.unpack_from(f"<{min(size - 8, len(manifest)) // 4}I", manifest, offset + 8)
                attribute = ids.index(EXTRACT_NATIVE_LIBS) if EXTRACT_NATIVE_LIBS in ids else -1
            elif kind == START_ELEMENT and attribute >= 0:
                start, step, count = struct.unpack_from("<HHH", manifest, offset + head + 8)
                if start + count * step > size or step < ATTRIBUTE_BYTES:
                    return None
                for index in range(count):
                    values = struct.unpack_from("<IIIHBBI", manifest, offset + head + start + index * step)
                    if values[1] == attribute:
                        return bool(values[6])
            offset += size
    return None


def scan_onnx(content: elf_file.Buffer, name: str) -> tuple[compat_rules.ArtifactFacts, dict[str, Any]]:
    """What of an ONNX model decides whether it loads, and fields of PackagedModel: domains, context, external files.

    The message's frame is walked, weights are passed over. Raises WireError.
    """
    opsets: dict[str, int] = {}
    domains: set[str] = set()
    context, npu, qairt = False, 0, ""
    graphs: list[tuple[int, int]] = []
    external: list[ExternalFile | None] = []
    with memoryview(content) as data:
        for part in wire.fields(data, 0, len(data)):
            if part.number == MODEL_OPSETS and part.wire_type == wire.LENGTH:
                fields = {field.number: field for field in wire.fields(data, part.value, part.end)}
                domain = bytes(data[fields[1].value : fields[1].end]).decode("utf-8", "replace") if 1 in fields else ""
                opsets[domain] = wire.read_varint(data, fields[2].value, fields[2].end)[0] if 2 in fields else 1
            elif part.number == MODEL_METADATA and (built := plugins.BUILT_FOR.search(data[part.value : part.end])):
                npu, qairt = int(built[2]), built[1].decode()
            elif part.number == onnx_model.MODEL_GRAPH and part.wire_type == wire.LENGTH:
                graphs.append((part.value, part.end))
        if not graphs or not opsets:
            raise WireError("it has no graph")
        while graphs:
            for part in wire.fields(data, *graphs.pop()):
                if part.wire_type != wire.LENGTH:
                    continue
                if part.number == onnx_model.GRAPH_INITIALIZER:
                    external.append(tensor_file(data, part))
                if part.number == GRAPH_NODE:
                    rows = [
                        field for field in wire.fields(data, part.value, part.end) if field.wire_type == wire.LENGTH
                    ]
                    domain, operator = (
                        next(
                            (
                                bytes(data[row.value : row.end]).decode("utf-8", "replace")
                                for row in rows
                                if row.number == number
                            ),
                            "",
                        )
                        for number in (NODE_DOMAIN, NODE_OPERATOR)
                    )
                    domains.add(domain)
                    context = context or operator == CONTEXT_NODE
                    if operator == CONTEXT_NODE:
                        external.append(context_file(data, part))
                    values = [
                        value
                        for row in rows
                        if row.number == NODE_ATTRIBUTE
                        for value in wire.fields(data, row.value, row.end)
                        if value.wire_type == wire.LENGTH
                    ]
                    graphs += [(value.value, value.end) for value in values if value.number == ATTRIBUTE_GRAPH]
                    external += [tensor_file(data, value) for value in values if value.number == ATTRIBUTE_TENSOR]
    opset = opsets.get("", opsets.get("ai.onnx", 1))
    facts = _asked(content, name, opset)
    return facts, {
        "domains": tuple(sorted(domains)),
        "context": context,
        "npu": npu,
        "qairt": qairt,
        "external": joined(external),
    }


def _asked(content: elf_file.Buffer, name: str, opset: int) -> compat_rules.ArtifactFacts:
    """What a model asks of a release, and defects that it may meet; nothing of what cannot be read."""
    facts = compat_rules.ArtifactFacts(name=name, format_version="", opset=opset, replays=False)
    try:
        with memoryview(content) as view:
            model = onnx_view.parse_onnx(view, name, whole=True)
    except ModelError:
        return facts
    asked = release_table.release_table().file_demands(model)
    return msgspec.structs.replace(
        facts, demands=asked.demands, unjudged=asked.unjudged, defects=compat_defects.marks_of(model)
    )
