"""A Java class by its name and members, read from class files that may come from anywhere; nothing of them is loaded.

Source: the Java Virtual Machine Specification, chapter 4 (class files) and 4.4 (constants).
"""

import io
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from device_runner import untrusted_files

MAGIC = b"\xca\xfe\xba\xbe"
NATIVE, ABSTRACT = 0x0100, 0x0400
CLASS_BYTES = 1 << 20
"""Of a class file: the largest of ONNX Runtime's have 20 kB."""
UTF8, WIDE = 1, (5, 6)
CONSTANT_BYTES = {
    3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2,
}  # fmt: skip
"""By the tag of a constant: the bytes behind it, but for text, which says its own length."""


class JavaMember(NamedTuple):
    """A method: `descriptor` has its types, as in (JI)V."""

    name: str
    descriptor: str
    native: bool = False


@dataclass(frozen=True, slots=True)
class JavaClass:
    """A class by its name, as in ai/onnxruntime/OrtSession$Result; of an abstract one there are no objects."""

    name: str
    abstract: bool
    methods: tuple[JavaMember, ...]

    @property
    def package(self) -> str:
        """The Java package, as in ai/onnxruntime."""
        return self.name.rpartition("/")[0]

    @property
    def natives(self) -> tuple[JavaMember, ...]:
        """The methods that a native library has."""
        return tuple(method for method in self.methods if method.native)


class NotJava(ValueError):
    """The bytes are no class file or no dex; says what is wrong with them."""


class Budget:
    """How much of classes is read in all: bytes, and entries of tables as bytes. ONNX Runtime's take 1 MB."""

    def __init__(self, most: int = 32 << 20) -> None:
        self.left = most

    def spend(self, count: int) -> None:
        """Take off what is read next; raises NotJava where nothing is left."""
        self.left -= count
        if self.left < 0:
            raise NotJava("there is more of its classes than any release has")


def read_class(content: bytes, budget: Budget) -> JavaClass:
    """The class in a class file; raises NotJava."""
    budget.spend(len(content))
    if content[:4] != MAGIC:
        raise NotJava("it does not begin as a class file does")
    try:
        constants, offset = _constants(content)
        flags, this, _, interfaces = struct.unpack_from(">4H", content, offset)
        _, offset = _members(content, offset + 8 + 2 * interfaces, constants)
        methods, _ = _members(content, offset, constants)
        (name,) = struct.unpack(">H", constants[this])
        return JavaClass(text_of(constants[name]), bool(flags & ABSTRACT), methods)
    except (struct.error, IndexError, KeyError) as error:
        raise NotJava("this class file is cut off or damaged") from error


def _constants(content: bytes) -> tuple[dict[int, bytes], int]:
    """The bytes of each constant by its number, and where they end."""
    (count,) = struct.unpack_from(">H", content, 8)
    constants: dict[int, bytes] = {}
    offset, number = 10, 1
    while number < count:
        tag = content[offset]
        offset += 1
        if tag == UTF8:
            (size,) = struct.unpack_from(">H", content, offset)
            offset += 2
        else:
            size = CONSTANT_BYTES[tag]
        constants[number] = content[offset : offset + size]
        offset += size
        number += 2 if tag in WIDE else 1
    return constants, offset


def _members(content: bytes, offset: int, constants: dict[int, bytes]) -> tuple[tuple[JavaMember, ...], int]:
    """Fields or methods, and where they end; what their attributes hold is passed over."""
    (count,) = struct.unpack_from(">H", content, offset)
    offset += 2
    members: list[JavaMember] = []
    for _ in range(count):
        flags, name, descriptor, attributes = struct.unpack_from(">4H", content, offset)
        offset += 8
        for _ in range(attributes):
            offset += 6 + struct.unpack_from(">I", content, offset + 2)[0]
        members.append(JavaMember(text_of(constants[name]), text_of(constants[descriptor]), bool(flags & NATIVE)))
    return tuple(members), offset


def read_jar(content: bytes, package: str) -> Iterator[JavaClass]:
    """The classes of a Java package (ai/onnxruntime) and of those below it in a JAR; raises NotJava."""
    budget = Budget()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for info in archive.infolist():
                if info.filename.startswith(f"{package}/") and info.filename.endswith(".class"):
                    untrusted_files.check_unpacked(info, CLASS_BYTES)
                    yield read_class(archive.read(info), budget)
    except untrusted_files.ZIP_ERRORS as error:
        raise NotJava(f"this JAR cannot be read: {error}") from error


def text_of(content: bytes) -> str:
    """Names as they are compared; what is no UTF-8 (as Java writes characters beyond the first 65,536) is replaced."""
    return content.decode("utf-8", "replace")
