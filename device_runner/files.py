"""Files that runs need or give: digests of what goes in, checks of what comes out."""

import hashlib
import math
import re
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from device_runner.errors import RunnerError
from device_runner.result import Failure, FailureKind, RunResult, status_of
from device_runner.spec import ELEMENT_BYTES, RunSpec, TensorFile

ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError, ValueError)
"""What zipfile raises for archives that are damaged, encrypted, or packed in a way that it does not know."""

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


def broken_output(tensor: TensorFile) -> Failure | None:
    """Why an output file cannot be trusted: missing, not as long as its shape says, or not what the probe wrote."""
    path = Path(tensor.file)
    data = path.read_bytes() if path.is_file() else None
    if data is None:
        found = "is missing"
    elif len(data) != tensor_bytes(tensor):
        found = f"has {len(data)} bytes, its shape wants {tensor_bytes(tensor)}"
    elif tensor.crc32 is not None and zlib.crc32(data) != tensor.crc32:
        found = "is not what the probe wrote: its checksum differs"
    else:
        return None
    return Failure(
        kind=FailureKind.GARBAGE,
        message=f"output {tensor.name}: the file {found}",
        cause="the device did not hand over what the run wrote",
        remedy="run it once more",
    )


Fetch = Callable[[str, Path, int], object]
"""Brings the file of that name from the run folder to a path; it has at most so many bytes."""

PROFILE_LIMIT_BYTES = 1 << 30
"""The profiler stops at a million events of some 600 bytes."""


def keep_files(spec: RunSpec, result: RunResult, fetch: Fetch) -> RunResult:
    """The result with its files in the spec's folder, all or none; a Failure where one is not as it should be.

    The probe's word for a file is checked: only names that runs give are fetched, and only from the run folder.
    """
    bare = replace(result, outputs=(), labelled_outputs=None, profile_file=None)
    if spec.outputs_folder is None or result.failure:
        return bare
    target = Path(spec.outputs_folder)
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target, prefix=".part-") as name:
        folder = Path(name)

        def taken(file: str, limit_bytes: int) -> str:
            wanted = _run_file(file)
            fetch(wanted, folder / wanted, limit_bytes)
            return str(folder / wanted)

        tensors = [*result.outputs, *([result.labelled_outputs] if result.labelled_outputs else [])]
        staged = [replace(tensor, file=taken(tensor.file, tensor_bytes(tensor))) for tensor in tensors]
        if failure := next(filter(None, map(broken_output, staged)), None):
            return replace(bare, status=status_of(failure), failure=failure)
        profile = taken(result.profile_file, PROFILE_LIMIT_BYTES) if result.profile_file and spec.profile else None
        for path in folder.iterdir():
            path.replace(target / path.name)
    kept = tuple(replace(tensor, file=str(target / Path(tensor.file).name)) for tensor in staged)
    outputs = kept[: len(result.outputs)]
    labelled = kept[-1] if result.labelled_outputs else None
    profile_file = profile and str(target / Path(profile).name)
    return replace(result, outputs=outputs, labelled_outputs=labelled, profile_file=profile_file)


def _run_file(file: str) -> str:
    name = file.rpartition("/")[2]
    if not re.fullmatch(r"output_[0-9]{1,6}\.raw|output_labelled\.raw|profile[A-Za-z0-9_.-]{0,100}", name):
        raise RunnerError(f"the device names a file that is none of ours: {file!r}")
    return name
