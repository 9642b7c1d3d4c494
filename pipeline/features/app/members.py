"""The files of an app or a package: those of a folder, of an archive and of the archives in it, within bounds."""

import contextlib
import io
import mmap
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from device_runner import files as runner_files
from device_runner import untrusted_files
from device_runner.probe import elf as elf_file
from pipeline.core.errors import ConfigError

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

    `offset` is where its bytes lie in that ZIP if they are stored as they are, else -1; `crc` is what the ZIP says of
    its bytes, -1 outside of one.
    """

    path: str
    archive: str
    size_bytes: int
    packed_bytes: int
    offset: int
    open: Callable[[], IO[bytes]]
    crc: int = -1

    @property
    def name(self) -> str:
        """Its path in the archive."""
        return self.path.removeprefix(f"{self.archive}/") if self.archive else self.path

    def head(self, count: int = 16) -> bytes:
        """Its first bytes."""
        with self.open() as file:
            return file.read(count)

    def checksum(self) -> int:
        """The CRC-32 of its bytes, by which equal files are known."""
        if self.crc >= 0:
            return self.crc
        checksum = 0
        with self.open() as file:
            while chunk := file.read(COPY_BYTES):
                checksum = zlib.crc32(chunk, checksum)
        return checksum

    @contextlib.contextmanager
    def content(self) -> Iterator[elf_file.Buffer]:
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
        with runner_files.scratch_folder("ort-mobile-app-") as folder, self.open() as file:
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
        with untrusted_files.open_regular(path) as file:
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
                raise ConfigError(
                    "this folder has too many files",
                    where=str(path),
                    why=f"over {MOST_MEMBERS:,}",
                    remedy="name the app's package, or a folder inside",
                )
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
                infos = untrusted_files.files_of(archive)
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
                    untrusted_files.check_unpacked(info, MEMBER_BYTES)
                    member = self._member(archive, opened, info, prefix)
                    if depth < DEPTH and info.filename.lower().endswith(NESTED) and member.head(2) == b"PK":
                        with member.as_file() as copy:
                            yield from self.members(copy, member.path, depth + 1)
                    else:
                        yield member
        except untrusted_files.ZIP_ERRORS as error:
            raise unreadable(self.path, prefix, error) from error

    def _member(self, archive: zipfile.ZipFile, file: IO[bytes], info: zipfile.ZipInfo, prefix: str) -> Member:
        path, offset = f"{prefix}/{info.filename}" if prefix else info.filename, -1
        if info.compress_type == zipfile.ZIP_STORED:
            # Its bytes begin behind its local header, whose extra field is another than the directory's.
            begin = file.tell()
            try:
                file.seek(info.header_offset)
                header = file.read(30)
            finally:
                file.seek(begin)
            if len(header) < 30 or header[:4] != b"PK\3\4":
                raise zipfile.BadZipFile(f"no header of {info.filename[:200]!r} where the directory says")
            name, extra = struct.unpack_from("<HH", header, 26)
            offset = info.header_offset + 30 + int(name) + int(extra)

        def opened() -> IO[bytes]:
            self.left -= info.file_size
            if self.left < 0:
                raise OSError(f"its members become over {TOTAL_BYTES:,} bytes")
            return archive.open(info)

        return Member(path, prefix, info.file_size, info.compress_size, offset, opened, info.CRC)


def unreadable(path: Path, member: str, error: Exception) -> ConfigError:
    """That a package, or a member of it, cannot be read."""
    return ConfigError(
        "this package cannot be read",
        where=f"{path}/{member}" if member else str(path),
        why=getattr(error, "strerror", None) or str(error)[:300] or type(error).__name__,
        remedy="name an APK, AAB, AAR, IPA, xcframework or folder that is whole; build or fetch it again",
    )
