"""Builds the shims, the fake libneuralnetworks.so and `ask`, once for each content of sources and compiler."""

import hashlib
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from device_runner.android_host.assembler import MACHINES, assembler, version_script
from device_runner.android_host.symbols import TABLE, How, shim_libraries, table
from device_runner.errors import MissingError, RunnerError
from device_runner.folders import are_sound, cache_folder, note_digests, own_folder_errors
from device_runner.probe.build import zig_command, zig_version
from device_runner.scratch import BUILD_PREFIX, remove_abandoned, scratch_folder

SOURCES = Path(__file__).parent
NNAPI = "libneuralnetworks.so"
ASK = "ask"
PROBE = SOURCES.parent / "probe"
ASKS_WITH = ("checksum.c", "json.c", "platform.c")
"""Units of the probe in `ask`."""
ADAPTERS: dict[str, tuple[str, ...]] = {
    "libdl.so": (),
    "libm.so": ("math.c",),
    "libc.so": ("stdio.c", "text.c", "system.c"),
    "liblog.so": ("log.c",),
    "libandroid.so": ("android.c",),
}
"""Shim library to its sources in shims/."""

FLAGS = (
    "-std=c11",
    "-O3",
    "-fPIC",
    "-Wall",
    "-Wextra",
    "-Wno-psabi",
    "-Wno-unused-command-line-argument",
)
SHIM_FLAGS = ("-fno-builtin", "-D_FORTIFY_SOURCE=0")
"""Adapters must call what they name, not what a compiler makes of it."""
LINK = ("-shared", "-Wl,-z,now", "-lm", "-ldl", "-lpthread")


@dataclass(frozen=True, slots=True)
class Compiler:
    """How to call it, and what tells it from another for the cache."""

    command: tuple[str, ...]
    identity: str


def check_host() -> None:
    """Raise MissingError where an Android x86_64 library cannot run: it needs x86-64 Linux with glibc."""
    libc = platform.libc_ver()[0] or ("without glibc" if platform.system() == "Linux" else "")
    here = f"{platform.system()} {platform.machine()} {libc}".strip()
    if (platform.system(), platform.machine(), platform.libc_ver()[0]) != ("Linux", "x86_64", "glibc"):
        raise MissingError(
            "android-host does not run on this computer",
            where=here,
            why="Android's x86_64 library runs in a process of x86-64 Linux with glibc only",
            remedy="use `local`, a phone (adb:SERIAL), or such a machine (most CI runners are)",
        )


def find_compiler() -> Compiler:
    """cc, gcc, clang (or CC), else the package ziglang; raises MissingError when there is none."""
    own = os.environ.get("CC", "")
    names = [*([own] if own and " " not in own else []), "cc", "gcc", "clang"]
    if found := next((path for name in names if (path := shutil.which(name))), None):
        facts = Path(found).resolve().stat()
        return Compiler((found,), f"{Path(found).resolve()} {facts.st_size} {facts.st_mtime_ns}")
    if zig := zig_command():
        return Compiler((*zig, "cc"), zig_version())
    raise MissingError(
        "no C compiler for the shims of android-host",
        why="neither cc, gcc nor clang is on PATH, and the package ziglang is not installed",
        remedy="pip install ziglang, or install a C compiler; `local` and `adb:SERIAL` need none of the shims",
    )


def build_host() -> Path:
    """The folder with the shims and the fake NNAPI, built unless it is in the cache.

    Raises MissingError on another system or without a compiler, RunnerError when the compiler fails.
    """
    check_host()
    compiler = find_compiler()
    folder = cache_folder() / "android-host" / "shims" / _digest(compiler)
    if not are_sound(folder, (*shim_libraries(), NNAPI, ASK)):
        # Somebody removed or changed a part: without the fake NNAPI a library would call null pointers.
        shutil.rmtree(folder, ignore_errors=True)
        with own_folder_errors(folder):
            _make(compiler, folder)
    return folder


def _digest(compiler: Compiler) -> str:
    total = hashlib.sha256(repr((compiler.identity, FLAGS, SHIM_FLAGS, LINK)).encode())
    own = [TABLE, *SOURCES.glob("*/*.[ch]"), *SOURCES.glob("*/*.def"), SOURCES / "assembler.py"]
    for path in sorted([*own, *PROBE.glob("*.[ch]")]):
        total.update(path.relative_to(SOURCES.parent).as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def _make(compiler: Compiler, folder: Path) -> None:
    """Build in a folder of its own and rename it: another process may do the same, and one of both wins."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(BUILD_PREFIX, folder.parent)
    with scratch_folder(BUILD_PREFIX, folder.parent) as building:
        work, done = building / "work", building / "done"
        work.mkdir()
        done.mkdir()
        for library in shim_libraries():
            _make_shim(compiler, library, work, done / library)
        _make_nnapi(compiler, done / NNAPI)
        ask = (SOURCES / "ask" / "ask.c", *(PROBE / unit for unit in ASKS_WITH))
        _run((*compiler.command, *FLAGS, "-D_GNU_SOURCE", "-o", str(done / ASK), *map(str, ask), "-ldl"))
        for path in done.iterdir():
            _sync(path)
        note_digests(done, [path.name for path in done.iterdir()])
        try:
            done.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise


def _make_shim(compiler: Compiler, library: str, work: Path, target: Path) -> None:
    symbols = tuple(symbol for symbol in table() if symbol.library == library and symbol.how is not How.ABSENT)
    source, script = work / f"{library}.s", work / f"{library}.map"
    source.write_text(assembler(symbols, MACHINES["x86_64"]), "utf-8")
    script.write_text(version_script(symbols), "utf-8")
    adapters = [str(SOURCES / "shims" / name) for name in ADAPTERS[library]]
    link = (*LINK, f"-Wl,-soname,{library}", f"-Wl,--version-script={script}")
    _run((*compiler.command, *FLAGS, *SHIM_FLAGS, "-o", str(target), str(source), *adapters, *link))


def _make_nnapi(compiler: Compiler, target: Path) -> None:
    sources = sorted(str(path) for path in (SOURCES / "nnapi").glob("*.c"))
    link = (*LINK, f"-Wl,-soname,{NNAPI}", "-fvisibility=hidden")
    _run((*compiler.command, *FLAGS, "-o", str(target), *sources, *link))


def _run(command: tuple[str, ...]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise RunnerError(
            "the shims of android-host could not be built",
            where=" ".join(command[:3]) + " ...",
            why=done.stderr.strip()[-2000:] or f"the compiler ended with code {done.returncode}",
            remedy="try another compiler (CC=...), or pip install ziglang",
        )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
