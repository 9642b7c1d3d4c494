"""Files of a package that have the name of a model or a native library, and are something else.

What a clone without Git LFS, a failed download and a stopped build leave in the place of a file.
"""

from typing import Final

from pipeline.core.errors import Finding, Severity
from pipeline.features.app.document import finding
from pipeline.model import foreign as model_foreign

NAMED: Final = {".onnx": "ONNX model", ".ort": "ORT format model", ".so": "native library", ".dylib": "native library"}
"""What a file is by the ending of its name."""
LFS_POINTER = b"version https://git-lfs"
PACKED = (b"\x1f\x8b", b"PK\x03\x04")
"""What begins a gzip file and a ZIP archive, which an app may unpack itself."""
TEXT_LIBRARIES = (b"/*", b"INPUT", b"GROUP", b"OUTPUT_FORMAT", b"--- !tapi")
"""What begins the text files that linkers take in the place of a library, in packages for developers."""


def foreign(path: str, suffix: str, head: bytes) -> Finding | None:
    """What speaks against a file by its first bytes; None for one that is to be read, or is none of ours."""
    what = f"this is no {NAMED[suffix]}" if suffix in NAMED else "this file is not what its name says"
    if not head:
        again = "download or export it again, and build the package again"
        return finding("damaged", Severity.ERROR, what, path, "the file is empty", again) if suffix in NAMED else None
    kind = model_foreign.foreign_file(head)
    if kind is None or (suffix not in NAMED and not head.startswith(LFS_POINTER)):
        return None
    if NAMED.get(suffix) == "native library" and head.startswith((*TEXT_LIBRARIES, *PACKED)):
        return None
    if head.startswith(PACKED):
        remedy = "put the model itself there, unless the app's own code unpacks it"
        return finding("damaged", Severity.WARNING, what, path, kind.why, remedy)
    why = kind.why.replace("not the model", "not the file itself").replace(", and no ONNX model", "")
    mended = kind.remedy if head.startswith(LFS_POINTER) else "download it again, and look at what arrives"
    return finding("damaged", Severity.ERROR, what, path, why, f"{mended}, and build the package again")
