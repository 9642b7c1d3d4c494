"""Files and folders of this program: digests of what runs need and give, caches, state, scratch folders with locks."""

import contextlib
import fcntl
import hashlib
import math
import os
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from msgspec.structs import replace

from device_runner.errors import RunnerError, UnavailableError
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


NOTE = "SHA256SUMS"
"""Digests of the files of a folder, as `sha256sum` writes them."""


def cache_folder() -> Path:
    """Where builds, libraries and artifacts are kept: ORT_MOBILE_CACHE, else ort-mobile in XDG_CACHE_HOME, ~/.cache."""
    return _folder("ORT_MOBILE_CACHE", "XDG_CACHE_HOME", ".cache")


def state_folder() -> Path:
    """Where the deny list and the leases of devices are: ORT_MOBILE_STATE, else in XDG_STATE_HOME, ~/.local/state."""
    return _folder("ORT_MOBILE_STATE", "XDG_STATE_HOME", ".local/state")


def _folder(own: str, base: str, default: str) -> Path:
    """By the XDG base directory specification, which says to ignore variables that are no absolute path."""
    if chosen := os.environ.get(own):
        return Path(chosen)
    shared = os.environ.get(base, "")
    return (Path(shared) if Path(shared).is_absolute() else Path.home() / default) / "ort-mobile"


def state_file(name: str) -> Path:
    """A file of the state folder; one of that name that earlier releases kept in the cache is moved there first."""
    path, old = state_folder() / name, cache_folder() / name
    if old.is_file() and not path.exists():
        with own_folder_errors(path, "ORT_MOBILE_STATE"):
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(old, path)
    return path


@contextlib.contextmanager
def own_folder_errors(path: Path, variable: str = "ORT_MOBILE_CACHE") -> Iterator[None]:
    """Turn what the system says about writing into a folder of ours into UnavailableError, with the remedy."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(
            "cannot write into the cache" if variable == "ORT_MOBILE_CACHE" else "cannot write the program's state",
            where=str(path),
            why=error.strerror or str(error),
            remedy=f"free some space, correct the folder's permissions, or set {variable} to another folder",
        ) from error


def note_digests(folder: Path, names: Iterable[str]) -> None:
    """Note the sha256 of files of a folder beside them; raises OSError."""
    lines = [f"{sha256(folder / name)}  {name}\n" for name in sorted(names)]
    part = folder / f".{NOTE}.{os.getpid()}"
    part.write_text("".join(lines), encoding="utf-8")
    part.replace(folder / NOTE)


def are_sound(folder: Path, names: Iterable[str]) -> bool:
    """Whether files of a folder are what was noted of them; each is read once in a process while it does not change."""
    try:
        lines = (folder / NOTE).read_text(encoding="utf-8").splitlines()
        noted = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
        return all(noted.get(name) == sha256(folder / name) for name in names)
    except (OSError, UnicodeDecodeError):
        return False


NEW = ".new-"
"""Before a folder's own prefix until it is locked: nobody takes it for abandoned in between."""

BUILD_PREFIX = ".build-"
"""Folders in which something is built, next to where it goes."""

RUN_PREFIX = "ort-mobile-run-"
"""Folders of runs in the system's folder for temporary files."""


@contextlib.contextmanager
def taking_turns(path: Path) -> Iterator[None]:
    """While it lasts other processes and threads wait that name the same file to lock, which stays there, empty.

    The end of a process ends its turn. A file system without locks lets all of them go on. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def scratch_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A new folder in `parent` (the system's temporary folder), removed at the end. Raises OSError."""
    new = Path(tempfile.mkdtemp(prefix=NEW + prefix, dir=parent))
    path = new.with_name(new.name.removeprefix(NEW))
    descriptor = os.open(new, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        new.rename(path)
        yield path
    finally:
        for folder in (new, path):
            shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def remove_abandoned(prefix: str, parent: Path | None = None) -> None:
    """Remove this user's folders of `scratch_folder` with this prefix whose process has ended.

    `parent` may not exist. Links, other users' folders, and file systems without locks are left alone.
    """
    with contextlib.suppress(OSError):
        for path in list((parent or Path(tempfile.gettempdir())).glob(f"{prefix}*")):
            _remove_abandoned(path)


def _remove_abandoned(path: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(descriptor).st_uid == os.geteuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)
