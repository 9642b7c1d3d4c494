"""Files that are either whole or not there: atomic writes, and digests.

At the end stand the names of the files and folders of a job's output folder.
"""

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from device_runner import files as runner_files
from pipeline.core.errors import CheckFailed, ConfigError, DiskError, PipelineError

CHUNK_BYTES = 1 << 20


def sha256_of(path: Path) -> str:
    """Hex digest of a file's bytes, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends well, and vanishes when not.

    The bytes are on disk before the name is (fsync, rename), so that no reader and no crash sees half a file.
    A device or a pipe (/dev/null, /dev/stdout) is written to as it is: renaming would put a file in its place.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        with storage_errors(path):
            yield path
        return
    make_folder(path.parent)
    with storage_errors(path), runner_files.replacing(path) as temporary:
        yield temporary


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, content: str) -> None:
    """Write a UTF-8 text with LF line ends whole or not at all."""
    write_bytes(path, content.encode("utf-8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedFile:
    """A file whose bytes were compared with a digest, and are again where they are copied: it may change in between."""

    path: Path
    sha256: str

    def require(self, found: str) -> None:
        """Raise CheckFailed where what was copied has another digest."""
        if found != self.sha256:
            raise CheckFailed(
                "a file changed while it was packed",
                where=str(self.path),
                why=f"its sha256 was {self.sha256} when it was verified, and is {found}",
                remedy="nothing was written: let what changes the folder end, and run the command again",
            )


def write_files(folder: Path, files: Mapping[str, str | Path | VerifiedFile]) -> None:
    """Write what a folder gets, by its path there: texts, and copies of files; CheckFailed for one that changed."""
    for name, content in files.items():
        if isinstance(content, VerifiedFile):
            copy_file(content.path, folder / name)
            content.require(sha256_of(folder / name))
        elif isinstance(content, Path):
            copy_file(content, folder / name)
        else:
            write_text(folder / name, content)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file whole or not at all; Btrfs, XFS and APFS share the bytes until one is changed."""
    with replacing(target) as temporary:
        # As shutil.copyfile, which on Linux never shares: `copy_file_range` does where the file system can
        copied = False
        with source.open("rb") as read, temporary.open("wb") as written, contextlib.suppress(OSError, AttributeError):
            left = os.fstat(read.fileno()).st_size
            while left and (count := os.copy_file_range(read.fileno(), written.fileno(), left)):
                left -= count
            copied = not left
        if not copied:
            shutil.copyfile(source, temporary)


def write_zip(path: Path, members: Mapping[str, Path | bytes | VerifiedFile]) -> None:
    """Write a ZIP of stored members, in order of their names, dated 1980: the same members give the same bytes.

    Nothing is compressed: that would depend on the version of zlib, and models hardly get smaller. CheckFailed for a
    file that changed since it was verified.
    """
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(members.items()):
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, 0o644 << 16
            if isinstance(content, bytes):
                archive.writestr(info, content)
                continue
            member = content.path if isinstance(content, VerifiedFile) else content
            info.file_size = member.stat().st_size
            digest = hashlib.sha256()
            with archive.open(info, "w") as target, member.open("rb") as source:
                while block := source.read(CHUNK_BYTES):
                    digest.update(block)
                    target.write(block)
            if isinstance(content, VerifiedFile):
                content.require(digest.hexdigest())


def share_file(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where the file system has no links; `target` must not exist."""
    with storage_errors(target):
        try:
            target.hardlink_to(source)
        except OSError:
            shutil.copyfile(source, target)


def make_folder(path: Path) -> None:
    """Make a folder and its parents; raises with the remedy when that cannot be done."""
    with storage_errors(path):
        path.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def reading_errors(path: Path | str) -> Iterator[None]:
    """Turn what the system says about reading into our errors, with the file that a failed read does not name."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise os_error(error) from error


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system says about writing into our errors, with the remedy."""
    try:
        yield
    except OSError as error:
        raise os_error(error, path) from error


MORE_SPACE = "lift the limit of the address space (`ulimit -v unlimited`)"

REMEDIES = {
    errno.ENOSPC: "free some space on that disk, or choose another folder",
    errno.EDQUOT: "your disk quota is used up: free some space, or choose another folder",
    errno.EACCES: "change its permissions, or choose another folder",
    errno.EPERM: "change its permissions, or choose another folder",
    errno.EROFS: "that disk is read-only: choose another folder",
    errno.ENOTDIR: "a file stands where a folder is needed: choose another folder",
    errno.EEXIST: "a file stands where a folder is needed: choose another folder",
    errno.ENAMETOOLONG: "choose a shorter name or folder",
    errno.EMFILE: "this process may not open more files: raise the limit (`ulimit -n 1024`)",
    errno.ENOMEM: f"free memory, or {MORE_SPACE}",
    errno.ENFILE: "the system may not open more files: end other programs",
}


def os_error(error: OSError, path: Path | None = None) -> PipelineError:
    """What the operating system refused as an error of ours: writing to `path`, or whatever the error itself names."""
    kind: type[PipelineError] = PipelineError
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        kind = DiskError
    elif error.errno in (errno.ENOTDIR, errno.EEXIST):  # the user named another place than meant
        kind = ConfigError
    return kind(
        "cannot write" if path or kind is DiskError else "the operating system refuses a file or a connection",
        where=str(path or error.filename or ""),
        why=error.strerror or str(error) or type(error).__name__,
        remedy=REMEDIES.get(error.errno or 0, "see the reason, or choose another folder"),
    )


WORK_PREFIX = ".work."
"""Scratch folders inside an output folder."""


@contextlib.contextmanager
def scratch(folder: Path | None = None) -> Iterator[Path]:
    """A scratch folder inside `folder` (the system's temporary folder), gone at the end, also after an error or Ctrl-C.

    What a kill left goes first. A folder that had to be made and is empty at the end, after an error, goes too.
    """
    with contextlib.ExitStack() as stack:
        if folder and not folder.exists():
            stack.callback(_remove_if_empty, folder)
        if folder:
            make_folder(folder)
        with storage_errors(folder or Path(tempfile.gettempdir())):
            work = runner_files.scratch_folder(WORK_PREFIX, folder) if folder else runner_files.scratch_folder()
            path = stack.enter_context(work)
        yield path


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


RESULTS = "results.json"
PAGE = "report.html"
REPORT = "report.md"
TRACE = "trace.json.gz"
TUNING = "tune.json"
"""What a search came to."""
DATABASE = "results.sqlite"
REVISION = "v0004"
"""The newest migration of a database: what this release reads and writes."""
KEPT = "campaign.json"
"""The ids of the folder's own campaigns, and their database where that is another."""

ARTIFACTS = "artifacts"
REFERENCES = "reference"
"""Raw tensors of the original models, one folder for each model."""
PROFILES = "profiles"
"""Traces of profile runs."""
BUNDLE = "bundle"
"""What ships."""
CONFIG_FILE = "required_operators.config"
TYPED_CONFIG_FILE = "required_operators_and_types.config"

WRITTEN = (
    RESULTS,
    PAGE,
    REPORT,
    CONFIG_FILE,
    TYPED_CONFIG_FILE,
    ARTIFACTS,
    REFERENCES,
    PROFILES,
    BUNDLE,
    TUNING,
    TRACE,
    KEPT,
)
"""What a job writes there, over what has these names."""
