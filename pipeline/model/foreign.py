"""What a file is by its first bytes that is no ONNX model, and what to do about it."""

import codecs
import contextlib
from typing import NamedTuple

# What files that are no models begin with, and what to do about it.
NOT_MODELS = (
    (b"version https://git-lfs", "it is a git LFS pointer, not the model", "run `git lfs pull`"),
    (b"\x1f\x8b", "it is compressed with gzip", "unpack it with gunzip"),
    (b"PK\x03\x04", "it is a zip archive", "name it .zip: models in archives are read"),
    (b"<", "it is HTML or XML, perhaps an error page in place of a download", "download the model again"),
    (b"{", "it is JSON text", "save the model in ONNX's binary format"),
    (b"\x89PNG", "it is a picture", "name the model file"),
)

FOREIGN_BYTES = 256
"""Of a file, by which it is known for no model: a model's first ones have lengths and types."""


class ForeignFile(NamedTuple):
    """Why a file is no model, and what to do about it."""

    why: str
    remedy: str


def foreign_file(head: bytes) -> ForeignFile | None:
    """What a file is by its first bytes, if it is known and no model."""
    plain = head.removeprefix(codecs.BOM_UTF8).lstrip()
    for magic, why, remedy in NOT_MODELS:
        if head.startswith(magic) or (plain.startswith(magic) and magic.isascii()):
            return ForeignFile(why, remedy)
    with contextlib.suppress(UnicodeDecodeError):
        text = codecs.getincrementaldecoder("utf-8")().decode(head)  # a letter may be cut at the end
        if all(letter.isprintable() or letter.isspace() for letter in text):
            return ForeignFile("it is a text file, and no ONNX model", "name the model: a binary file, .onnx or .ort")
    return None
