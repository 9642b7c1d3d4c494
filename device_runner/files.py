"""Files that runs need or give: digests of what goes in, checks of what comes out."""

import hashlib
import math
from pathlib import Path

from device_runner.result import Failure, FailureKind
from device_runner.spec import ELEMENT_BYTES, RunSpec, TensorFile

_DIGESTS: dict[tuple[str, int, int, int], str] = {}


def sha256(path: Path) -> str:
    """Digest of a file's bytes, remembered while its size, time and inode stay. Raises OSError."""
    facts = path.stat()
    key = (str(path.resolve()), facts.st_size, facts.st_mtime_ns, facts.st_ino)
    if key not in _DIGESTS:
        with path.open("rb") as file:
            _DIGESTS[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _DIGESTS[key]


def missing_input(spec: RunSpec) -> Failure | None:
    """Why the spec's own files cannot be used: one that is not there, or a model with another digest."""
    tensors = (*spec.inputs, spec.labelled) if spec.labelled else spec.inputs
    for name in (spec.model, *(tensor.file for tensor in tensors)):
        if not Path(name).is_file():
            kind = FailureKind.MODEL_LOAD if name == spec.model else FailureKind.BAD_INPUT
            return Failure(
                kind=kind, message=f"{name}: no such file", cause="a file is missing", remedy="check the path"
            )
    if spec.model_sha256 and spec.model_sha256 != sha256(Path(spec.model)):
        return Failure(
            kind=FailureKind.MODEL_LOAD,
            message=f"{spec.model} has another digest than the spec says",
            cause="the file was changed after the spec was written",
            remedy="write the spec again",
        )
    return None


def tensor_bytes(tensor: TensorFile) -> int:
    """How long the raw file of a tensor must be."""
    return math.prod(tensor.shape) * ELEMENT_BYTES[tensor.dtype]


def short_output(outputs: tuple[TensorFile, ...]) -> Failure | None:
    """Why output files cannot be trusted: one that is missing, or not as long as its shape says."""
    for tensor in outputs:
        path = Path(tensor.file)
        size = path.stat().st_size if path.is_file() else -1
        if size != tensor_bytes(tensor):
            found = "is missing" if size < 0 else f"has {size} bytes"
            return Failure(
                kind=FailureKind.GARBAGE,
                message=f"output {tensor.name}: the file {found}, its shape wants {tensor_bytes(tensor)} bytes",
                cause="the device did not hand over what the run wrote",
                remedy="run it once more",
            )
    return None
