"""Files and folders of this program: digests, caches, state, scratch folders with locks."""

import contextlib
import ctypes
import errno
import fcntl
import functools
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from device_runner.errors import RunnerError, SpecError, UnavailableError

_DIGESTS: dict[tuple[str, int, int, int], str] = {}


def sha256(path: Path) -> str:
    """Digest of a file's bytes, remembered while its size, time and inode stay. Raises OSError."""
    facts = path.stat()
    key = (str(path.resolve()), facts.st_size, facts.st_mtime_ns, facts.st_ino)
    if key not in _DIGESTS:
        with path.open("rb") as file:
            _DIGESTS[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _DIGESTS[key]


NOTE = "SHA256SUMS"
"""Digests of the files of a folder, as `sha256sum` writes them."""


def cache_folder() -> Path:
    """Where builds, libraries and artifacts are kept: ORT_MOBILE_CACHE, else ort-mobile in XDG_CACHE_HOME, ~/.cache."""
    return _folder("ORT_MOBILE_CACHE", "XDG_CACHE_HOME", ".cache")


def state_folder() -> Path:
    """Where the deny list and the leases of devices are: ORT_MOBILE_STATE, else in XDG_STATE_HOME, ~/.local/state."""
    return _folder("ORT_MOBILE_STATE", "XDG_STATE_HOME", ".local/state")


def _folder(variable: str, base: str, default: str) -> Path:
    """By the XDG base directory specification, which says to ignore variables that are no absolute path."""
    if chosen := os.environ.get(variable):
        return Path(chosen)
    shared = os.environ.get(base, "")
    return (Path(shared) if Path(shared).is_absolute() else Path.home() / default) / "ort-mobile"


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
    with replacing(folder / NOTE) as part:
        part.write_text("".join(lines), encoding="utf-8")


def keep_noted(path: Path, content: bytes) -> None:
    """Write a file of a cache, whole or not at all, and note its digest beside it; raises UnavailableError."""
    with own_folder_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            part.write_bytes(content)
        note_digests(path.parent, [path.name])


def are_sound(folder: Path, names: Iterable[str]) -> bool:
    """Whether files of a folder are what was noted of them; each is read once in a process while it does not change."""
    try:
        lines = (folder / NOTE).read_text(encoding="utf-8").splitlines()
        noted = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
        return all(noted.get(name) == sha256(folder / name) for name in names)
    except (OSError, UnicodeDecodeError):
        return False


RUN_PREFIX = "ort-mobile-run-"
"""Folders of runs in the system's folder for temporary files."""


@contextlib.contextmanager
def taking_turns(path: Path) -> Iterator[None]:
    """While it lasts other processes and threads wait that name the same folder, or the same file, which stays there.

    The end of a process ends its turn. A file system without locks lets all of them go on. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDONLY if path.is_dir() else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    lock = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def scratch_folder(prefix: str = "ort-mobile-work-", parent: Path | None = None) -> Iterator[Path]:
    """A new folder in `parent` (the system's temporary folder), removed at the end. Raises OSError.

    The first of a process removes what processes that were killed left there under the same prefix.
    """
    folder = (parent or Path(tempfile.gettempdir())).absolute()
    _remove_abandoned_once(prefix, folder)
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=folder))
        with contextlib.ExitStack() as stack:
            # Until it is locked another process may take it for abandoned and remove it: then the next name is tried.
            locked = False
            with contextlib.suppress(BlockingIOError):
                locked = stack.enter_context(_lock(path))
            if locked:
                stack.callback(shutil.rmtree, path, ignore_errors=True)
                yield path
                return


def remove_abandoned(prefix: str, parent: Path | None = None) -> None:
    """Remove this user's folders of `scratch_folder` with exactly this prefix whose process has ended.

    `parent` may not exist. Links, other users' folders, and file systems without locks are left alone.
    """
    names = re.compile(re.escape(prefix) + "[a-z0-9_]{8}")  # what tempfile.mkdtemp appends
    with contextlib.suppress(OSError), os.scandir(parent or tempfile.gettempdir()) as entries:
        for path in [Path(entry.path) for entry in entries if names.fullmatch(entry.name)]:
            with contextlib.suppress(OSError), _lock(path, needed=True) as locked:
                if locked:
                    shutil.rmtree(path, ignore_errors=True)


_remove_abandoned_once = functools.cache(remove_abandoned)


@contextlib.contextmanager
def _lock(folder: Path, *, needed: bool = False) -> Iterator[bool]:
    """Hold the lock of a folder of this user's; False where it is gone by then.

    Raises BlockingIOError where another process holds it, PermissionError for another user's folder, and OSError for a
    link, for a file, and with `needed` where the file system has no locks.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield False
        return
    try:
        facts = os.fstat(descriptor)
        if facts.st_uid != os.geteuid():
            raise PermissionError(errno.EACCES, "it belongs to another user", str(folder))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if needed or isinstance(error, BlockingIOError):
                raise
        there = None
        with contextlib.suppress(FileNotFoundError):
            there = folder.lstat()
        yield there is not None and os.path.samestat(facts, there)
    finally:
        os.close(descriptor)


NEW, OLD = "new", "old"
"""In a staging folder: what is being made, and what was taken out of its place where names cannot be swapped."""

RENAME_EXCHANGE, AT_FDCWD = 2, -100
"""Of renameat2(2), Linux 3.15 and glibc 2.28: both names exist at every instant."""
NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
"""What a file system, a kernel or a sandbox without it says."""


def staging_of(target: Path) -> Path:
    """The folder beside `target` in which what goes there is made: one for each target, so that nothing is guessed."""
    name = f".{target.name}.ort-mobile"
    if len(os.fsencode(name)) > 255:  # NAME_MAX of Linux and macOS
        name = f".{hashlib.sha256(os.fsencode(target.name)).hexdigest()}.ort-mobile"
    return target.with_name(name)


@contextlib.contextmanager
def staging_folder(target: Path) -> Iterator[Path]:
    """An empty folder beside `target`, for `take_place`; nobody else can replace `target` meanwhile.

    What a process that was killed left there goes first, and what it had taken out of `target` is put back. However
    the block ends, `target` is then what it was or what took its place. Raises SpecError while another process has it,
    OSError.
    """
    target = target.resolve()
    staging = staging_of(target)
    with contextlib.ExitStack() as stack:
        for _ in range(2):  # the second removes what an interruption of the first left
            stack.callback(restore_place, target)
        try:
            staging.mkdir(mode=0o700, exist_ok=True)
            while not stack.enter_context(_lock(staging)):  # whoever had it removed it
                staging.mkdir(mode=0o700, exist_ok=True)
        except BlockingIOError as error:
            raise SpecError(
                "another process is replacing this",
                where=str(target),
                why=f"it holds the lock of {staging.name}",
                remedy="wait until it has ended, then start this command again",
            ) from error
        _restore(target, staging)
        (staging / NEW).mkdir()
        yield staging / NEW


def take_place(new: Path, target: Path) -> None:
    """Put the folder of `staging_folder` where its target is, whatever is there; raises OSError.

    The old one goes with the end of `staging_folder`. Where the file system cannot swap two names there is an instant
    without either; a process that is killed then leaves what `restore_place` puts back.
    """
    target = target.resolve()
    if not os.path.lexists(target):
        new.rename(target)
    elif not _exchange(new, target):
        old = new.with_name(OLD)
        target.rename(old)
        new.rename(target)
        old.rename(new)  # from here on it is waste: only a whole folder may ever be named `old`
    with contextlib.suppress(OSError):
        sync(target.parent)


def restore_place(target: Path) -> None:
    """Put back what a process took out of `target` when it was killed, and remove what it was making.

    Nothing is done while another process replaces it. Raises RunnerError.
    """
    target = target.resolve()
    with contextlib.suppress(OSError), _lock(staging_of(target)) as locked:
        if locked:
            _restore(target, staging_of(target), done=True)


def _restore(target: Path, staging: Path, *, done: bool = False) -> None:
    try:
        if not os.path.lexists(target) and os.path.lexists(staging / OLD):
            (staging / OLD).rename(target)
    except OSError as error:
        raise RunnerError(
            "what was here could not be put back",
            where=str(target),
            why=error.strerror or str(error),
            remedy=f"it is whole in {staging / OLD}: rename it, or start this command again",
        ) from error
    for name in (OLD, NEW):
        shutil.rmtree(staging / name, ignore_errors=True)
    if done:
        with contextlib.suppress(OSError):
            staging.rmdir()


def _exchange(new: Path, target: Path) -> bool:
    """Swap two names in one step; False where that is not possible here. Raises OSError."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(AT_FDCWD, os.fsencode(new), AT_FDCWD, os.fsencode(target), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(target))


def sync(path: Path) -> None:
    """Wait until the bytes of a file, or the names in a folder, are on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


PART = ".part"
"""What the names of files end in that are not whole yet; they begin with a dot."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends well, and vanishes when not.

    The bytes are on disk before the name is (fsync, rename), so that no reader and no crash sees half a file. Raises
    OSError.
    """
    descriptor, name = tempfile.mkstemp(prefix=_part_prefix(path), suffix=PART, dir=path.parent)
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        sync(temporary)
        mask = os.umask(0)  # which is read by setting it
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_parts(path: Path) -> None:
    """Remove what processes that were killed in `replacing` left beside `path`, where no other writes it now.

    Raises OSError.
    """
    names = re.compile(re.escape(_part_prefix(path)) + f"[a-z0-9_]{{8}}{re.escape(PART)}")  # as tempfile.mkstemp has it
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(path.parent) as entries:
        for entry in entries:
            if names.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                Path(entry.path).unlink(missing_ok=True)


def _part_prefix(path: Path) -> str:
    return f".{path.name[:40]}."
