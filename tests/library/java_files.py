"""Class files and dex files of a few methods, laid out as javac and D8 do."""

import io
import re
import struct
import zipfile
from collections.abc import Mapping, Sequence

Methods = Sequence[tuple[str, str, bool]]
"""Of a class: name, descriptor, whether it is native."""
NATIVE, PUBLIC = 0x100, 1


def class_file(name: str, methods: Methods, flags: int = PUBLIC) -> bytes:
    """A class of methods without code."""
    constants: list[bytes] = []

    def text(value: str) -> int:
        constants.append(struct.pack(">BH", 1, len(value.encode())) + value.encode())
        return len(constants)

    named = text(name)
    constants.append(struct.pack(">BH", 7, named))
    this = len(constants)
    rows = [struct.pack(">4H", NATIVE * native, text(method), text(types), 0) for method, types, native in methods]
    head = b"\xca\xfe\xba\xbe" + struct.pack(">3H", 0, 52, len(constants) + 1) + b"".join(constants)
    return head + struct.pack(">6H", flags, this, this, 0, 0, len(rows)) + b"".join(rows) + bytes(2)


def jar(classes: Mapping[str, Methods]) -> bytes:
    """A JAR of such classes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, methods in classes.items():
            archive.writestr(f"{name}.class", class_file(name, methods))
    return packed.getvalue()


def dex_file(classes: Mapping[str, Methods]) -> bytes:
    """A dex of such classes, whose methods take classes and numbers and return nothing."""
    types = {name: _types(methods) for name, methods in classes.items()}
    taken = {kind for rows in types.values() for row in rows for kind in row}
    listed = sorted({"V", *(f"L{name};" for name in classes)} | taken)
    strings = sorted({*listed, *(name for methods in classes.values() for name, _, _ in methods)})
    prototypes = sorted({row for rows in types.values() for row in rows})
    methods = sorted(
        (listed.index(f"L{name};"), strings.index(method), prototypes.index(row), native)
        for name in classes for (method, _, native), row in zip(classes[name], types[name], strict=True)
    )  # fmt: skip
    sizes = (len(strings), len(listed), len(prototypes), 0, len(methods), len(classes))
    places, end = [], 112
    for size, row in zip(sizes, (4, 4, 12, 8, 8, 32), strict=True):
        places.append(end)
        end += size * row
    data = b""

    def put(content: bytes) -> int:
        nonlocal data
        data += bytes(-len(data) % 4)
        place = end + len(data)
        data += content
        return place

    texts = b"".join(struct.pack("<I", put(bytes([len(text)]) + text.encode() + b"\0")) for text in strings)
    kinds = b"".join(struct.pack("<I", strings.index(kind)) for kind in listed)
    given = [put(struct.pack(f"<I{len(row)}H", len(row), *map(listed.index, row))) if row else 0 for row in prototypes]
    shapes = b"".join(struct.pack("<3I", 0, listed.index("V"), place) for place in given)
    table = b"".join(struct.pack("<HHI", owner, shape, text) for owner, text, shape, _ in methods)
    defined = b""
    for name in classes:
        owner = listed.index(f"L{name};")
        own = [number for number, row in enumerate(methods) if row[0] == owner]
        body, before = bytes([0, 0, len(own), 0]), 0
        for number in own:
            body += bytes([number - before]) + (b"\x80\x02" if methods[number][3] else b"\x01") + b"\0"
            before = number
        defined += struct.pack("<8I", owner, PUBLIC, 0, 0, 0, 0, put(body), 0)
    head = b"dex\n035\0" + bytes(24) + struct.pack("<2I", end + len(data), 112) + bytes(16)
    head += b"".join(struct.pack("<2I", *row) for row in zip(sizes, places, strict=True)) + bytes(8)
    return head + texts + kinds + shapes + table + defined + data


def _types(methods: Methods) -> list[tuple[str, ...]]:
    """The types that each method takes."""
    return [tuple(re.findall(r"\[*(?:L[^;]*;|[A-Z])", row[1][1 : row[1].index(")")])) for row in methods]
