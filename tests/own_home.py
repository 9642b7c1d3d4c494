"""A home of its own for a run of the tests and for each test: nothing reads or writes the user's folders.

What takes long to build or to fetch lies once with the downloads of all runs and is linked into each test's cache:
builds of the probe, shims and plugins (their names are digests of all that they depend on), and, for tests that may
fetch, downloads. The compiler's own cache, by content as well, lies there, too: its parts of a C library take seconds
an ABI.
Compiled modules too, where Python was told to leave none beside the sources: the tests start a thousand commands, and
compiling takes half of the time of each.
"""

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

FOLDER_VARIABLE = "ORT_MOBILE_TEST_FOLDER"
"""Where a run of the tests keeps its homes; set by the first process of a run, read by its workers."""

DOWNLOADS_VARIABLE = "ORT_MOBILE_TEST_DOWNLOADS"
"""A folder that keeps downloads and builds of one run for the next; without it they end with the run."""

USER_FILES = {
    "PIP_CONFIG_FILE": (".config/pip/pip.conf", ".pip/pip.conf"),
    "UV_CONFIG_FILE": (".config/uv/uv.toml",),
    "NPM_CONFIG_USERCONFIG": (".npmrc",),
    "NETRC": (".netrc",),
}
"""Files of the user's home that say where packages come from: the variables that name them keep them in force."""

UNSET = (
    "ORT_MOBILE_CACHE", "ORT_MOBILE_STATE",
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR",
    "GRADLE_USER_HOME", "ANDROID_HOME", "ANDROID_SDK_ROOT", "ANDROID_NDK_HOME", "ANDROID_NDK_ROOT",
    "ANDROID_USER_HOME", "ANDROID_SERIAL", "ANDROID_ADB_SERVER_ADDRESS", "ANDROID_ADB_SERVER_HOST",
    "ADB_SERVER_SOCKET", "ADBUTILS_ADB_PATH", "COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "PYTHONIOENCODING",
)  # fmt: skip
"""Settings of the user that the product heeds."""

BUILT = ("probe", "trial", "android-host", "libtwice.so", "libort_mobile_claims.so")
FETCHED = ("debian", "jars", "libraries", "npm-packages", "ort-source", "packages", "wheels")
CACHE = ".cache/ort-mobile"


def start() -> Path | None:
    """Give this process, and all that it starts, a home of the run's own; the folder to remove when the run ends.

    None in a worker: its environment is that of the process that started it.
    """
    if FOLDER_VARIABLE in os.environ:
        return None
    folder = Path(tempfile.mkdtemp(prefix="ort-mobile-tests-"))
    home = folder / "a home"
    downloads = Path(os.environ.get(DOWNLOADS_VARIABLE) or folder / "downloads").absolute()
    kept = _user_files(Path.home())
    for name in UNSET:
        os.environ.pop(name, None)
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        bytecode = downloads / "bytecode"  # for the next session, too, but for what lay in folders of an earlier run
        for path in bytecode.joinpath(*Path(tempfile.gettempdir()).parts[1:]).glob("pytest-of-*"):
            shutil.rmtree(path, ignore_errors=True)
        os.environ.setdefault("PYTHONPYCACHEPREFIX", str(bytecode))
    os.environ.update(
        {
            FOLDER_VARIABLE: str(folder),
            "HOME": str(home),
            "ZIG_GLOBAL_CACHE_DIR": str(downloads / "zig"),
            "MAVEN_OPTS": f"-Dmaven.repo.local={folder / 'maven'}",  # Java knows the home from the user's entry
            "npm_config_cache": str(folder / "npm"),
            "ANDROID_ADB_SERVER_PORT": str(_closed_port()),
            "OPENBLAS_NUM_THREADS": "1",  # numpy's threads wait for each other by computing, and take time to start
            **kept,
        }
    )
    shared = folder / "shared"
    shared.mkdir()
    for name in (*BUILT, *FETCHED):
        (downloads / name).mkdir(parents=True, exist_ok=True)
        (shared / name).symlink_to(downloads / name)
    link(home / CACHE, (*BUILT, *FETCHED))
    return folder


def _user_files(home: Path) -> dict[str, str]:
    found = {
        variable: next((str(home / place) for place in places if (home / place).is_file()), "")
        for variable, places in USER_FILES.items()
        if not os.environ.get(variable)
    }
    return {variable: path for variable, path in found.items() if path}


_held: list[socket.socket] = []


def _closed_port() -> int:
    """A port that refuses connections, and on which nobody else listens before the run ends: it is bound."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    _held.append(held)
    port: int = held.getsockname()[1]
    return port


_unused: dict[tuple[str, ...], Path] = {}


@contextlib.contextmanager
def home(*, may_fetch: bool) -> Iterator[Path]:
    """An empty home for one test: of the test before, which left nothing in it, or a new one.

    To remove a folder takes 5 ms on a disk that is mounted with `discard`, and a home has three.
    """
    links = (*BUILT, *FETCHED) if may_fetch else BUILT
    own = _unused.pop(links, None)
    if own is None:
        own = Path(tempfile.mkdtemp(prefix="home of a test ", dir=os.environ[FOLDER_VARIABLE]))
        link(own / CACHE, links)
    made = _modes(own)
    try:
        yield own
    finally:
        if _modes(own) == made:
            _unused[links] = own
        else:
            shutil.rmtree(own, ignore_errors=True)


def _modes(folder: Path) -> dict[str, int]:
    """Kind and permissions of a folder and of all in it; links are not followed."""
    modes, folders = {}, [str(folder)] if folder.is_dir() else []
    while folders:
        place = folders.pop()
        modes[place] = os.lstat(place).st_mode
        for entry in os.scandir(place):
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            else:
                modes[entry.path] = entry.stat(follow_symlinks=False).st_mode
    return modes


def link(cache: Path, names: tuple[str, ...] = BUILT) -> None:
    """Make a cache that has what was built, or more of the run's own."""
    cache.mkdir(parents=True)
    for name in names:
        (cache / name).symlink_to(Path(os.environ[FOLDER_VARIABLE]) / "shared" / name)
