"""Builds the probe: for this computer, for Linux on another processor, for Android with the NDK or with ziglang alone.

A build lies in the cache under the digest of everything that went into it, so an unchanged one is never made twice.
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from device_runner.errors import RunnerError, SpecError, UnavailableError
from device_runner.files import (
    BUILD_PREFIX,
    are_sound,
    cache_folder,
    note_digests,
    own_folder_errors,
    remove_abandoned,
    scratch_folder,
    taking_turns,
)
from device_runner.probe import android
from device_runner.probe.elf import read_elf

SOURCES = Path(__file__).parent
HOST = "host"
PROBE = "probe"
DEFAULT_API_LEVEL = 27

NDK_TRIPLES = {
    "arm64-v8a": "aarch64-linux-android",
    "armeabi-v7a": "armv7a-linux-androideabi",
    "x86": "i686-linux-android",
    "x86_64": "x86_64-linux-android",
}
"""ABI to the prefix of the NDK's compilers."""

LINUX_TARGETS: dict[str, tuple[str, ...]] = {
    "linux-x86_64": ("-target", "x86_64-linux-gnu.2.28"),
    "linux-aarch64": ("-target", "aarch64-linux-gnu.2.28"),
    "linux-armel": ("-target", "arm-linux-gnueabi.2.28", "-mcpu=cortex_a7"),
}
"""Our name to zig's options; glibc 2.28 is what the newest wheels of onnxruntime want. armel passes floats in general
registers, as Android's armeabi-v7a does."""

TARGETS = (HOST, *NDK_TRIPLES, *LINUX_TARGETS)

STANDARD = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wmissing-prototypes", "-Wstrict-prototypes")
"""The language of every unit; GNU sources may name what Linux has beside POSIX."""


Command = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProbeRecipe:
    """How to build: what compiler (name and version, for the digest), which texts to write, which commands to run.

    `{out}` in an argument is the folder of the build; `judge` says whether the result is checked against the rules for
    Android, and which: "", "ndk" or "stubs".
    """

    compiler: str
    steps: tuple[Command, ...]
    texts: tuple[tuple[str, str], ...] = ()
    judge: str = ""


def build_probe(target: str = HOST, *, api_level: int = DEFAULT_API_LEVEL, flags: Sequence[str] = ()) -> Path:
    """The probe for a target (`host`, an Android ABI, one of `LINUX_TARGETS`), built unless it is in the cache.

    `flags` go to the compiler. Raises UnavailableError without a compiler, RunnerError when it fails.
    """
    recipe = find_recipe(target, api_level, tuple(flags))
    path = cache_folder() / "probe" / digest(recipe) / PROBE
    if not are_sound(path.parent, [PROBE]):
        with own_folder_errors(path), taking_turns(path.parent.with_name(f".lock-{path.parent.name[:16]}")):
            if not are_sound(path.parent, [PROBE]):  # another process may have built it
                make(recipe, path)
    return path


def find_recipe(target: str, api_level: int, flags: tuple[str, ...]) -> ProbeRecipe:
    """The first way to build for a target that this machine has; raises UnavailableError, SpecError."""
    if target == HOST:
        return _host_recipe(flags)
    if target in LINUX_TARGETS:
        return _linux_recipe(target, flags)
    if target not in NDK_TRIPLES:
        raise SpecError(f"unknown target {target!r}", remedy=f"use one of: {', '.join(TARGETS)}")
    if not 21 <= api_level <= 99:
        raise SpecError(f"API level {api_level} does not exist", remedy="use 27 or higher; NNAPI needs 27")
    ndk = os.environ.get("ANDROID_NDK_HOME") or os.environ.get("ANDROID_NDK_ROOT")
    return _ndk_recipe(Path(ndk), target, api_level, flags) if ndk else _stub_recipe(target, api_level, flags)


def units() -> list[Path]:
    """The probe's translation units, each with a header of its name but probe.c, which has `main`."""
    return sorted(SOURCES.glob("*.c"))


def _compile(flags: tuple[str, ...]) -> tuple[str, ...]:
    return (*STANDARD, "-O2", *flags, "-o", "{out}/probe", *map(str, units()))


def _host_recipe(flags: tuple[str, ...]) -> ProbeRecipe:
    compiler = next((found for name in _compiler_names() if (found := shutil.which(name))), None)
    strip = (
        () if platform.system() == "Darwin" or any("sanitize" in flag or flag == "-g" for flag in flags) else ("-s",)
    )
    arguments = (*_compile(flags), *strip, "-ldl", "-lpthread")
    if compiler:
        return ProbeRecipe(_identity(compiler), ((compiler, *arguments),))
    if (zig := zig_command()) is None:
        raise UnavailableError(
            "no C compiler",
            why="neither cc, gcc nor clang is on PATH, and the package ziglang is not installed",
            remedy="pip install ziglang, or install a C compiler",
        )
    return ProbeRecipe(zig_version(), ((*zig, "cc", "-fno-sanitize=undefined", *arguments),))


def _compiler_names() -> list[str]:
    own = os.environ.get("CC", "")
    return [*([own] if own and " " not in own else []), "cc", "gcc", "clang"]


def _identity(compiler: str) -> str:
    """Path, size and time of a compiler: cheaper than asking for its version, and changes with it."""
    real = Path(compiler).resolve()
    facts = real.stat()
    return f"{real} {facts.st_size} {facts.st_mtime_ns}"


def zig_command() -> tuple[str, ...] | None:
    """How to call zig: the package ziglang of this interpreter. None where it is not installed."""
    return (sys.executable, "-m", "ziglang") if importlib.util.find_spec("ziglang") else None


def zig_version() -> str:
    """Name and version of the package ziglang."""
    return f"ziglang {importlib.metadata.version('ziglang')}"


def _zig(target: str) -> tuple[str, ...]:
    if zig := zig_command():
        return zig
    raise UnavailableError(
        f"no compiler for {target}",
        why="the package ziglang is not installed" + (", and ANDROID_NDK_HOME is not set" * (target in NDK_TRIPLES)),
        remedy="pip install ziglang" + (", or set ANDROID_NDK_HOME to an NDK" * (target in NDK_TRIPLES)),
    )


def _linux_recipe(target: str, flags: tuple[str, ...]) -> ProbeRecipe:
    arguments = ("cc", *LINUX_TARGETS[target], "-fno-sanitize=undefined", *_compile(flags), "-s")
    return ProbeRecipe(zig_version(), ((*_zig(target), *arguments, "-ldl", "-lpthread"),))


def _ndk_recipe(ndk: Path, abi: str, api_level: int, flags: tuple[str, ...]) -> ProbeRecipe:
    found = sorted(ndk.glob(f"toolchains/llvm/prebuilt/*/bin/{NDK_TRIPLES[abi]}{api_level}-clang"))
    if not found:
        raise UnavailableError(
            f"the NDK has no compiler for {abi} at API level {api_level}",
            where=str(ndk),
            remedy="point ANDROID_NDK_HOME at an NDK of r21 or later, or unset it to build with ziglang",
        )
    page = f"-Wl,-z,max-page-size={android.PAGE},-z,common-page-size={android.PAGE}"
    link = ("-fPIE", "-pie", page, "-Wl,--build-id=sha1", "-Wl,-z,now", "-Wl,--strip-debug", "-ldl")
    judge = "ndk" if abi in android.LD_EMULATION else ""
    return ProbeRecipe(_identity(str(found[0])), ((str(found[0]), *_compile(flags), *link),), judge=judge)


def _stub_recipe(abi: str, api_level: int, flags: tuple[str, ...]) -> ProbeRecipe:
    if abi not in android.LD_EMULATION:
        raise UnavailableError(
            f"no compiler for {abi}",
            why="ziglang alone builds for arm64-v8a and x86_64; the NDK is needed for 32 bits",
            remedy="set ANDROID_NDK_HOME to an NDK",
        )
    zig = _zig(abi)
    compiler = (*zig, "cc", "-target", f"{android.ZIG_ARCH[abi]}-linux-android")
    include = (*STANDARD, *android.COMPILE_FLAGS, "-isystem", str(SOURCES / "android/include"), *flags)
    sources = [*units(), SOURCES / "android/start.c"]
    joined = ("-r", "-nostdlib", "-o", "{out}/probe.o")
    compiled = (*compiler, *include, f"-DPROBE_API_LEVEL={api_level}", *joined, *map(str, sources))
    stubs = tuple(command for name in android.STUBS for command in _stub_commands(zig, compiler, name))
    extra = android.ARM64_LINK_FLAGS if abi == "arm64-v8a" else ()
    link = ("ld.lld", "-m", android.LD_EMULATION[abi], *android.LINK_FLAGS, *extra, "-o", "{out}/probe")
    objects = ("{out}/probe.o", *(f"{{out}}/{name}" for name in android.STUBS))
    texts = tuple((f"{name}.s", android.stub_source(name)) for name in android.STUBS)
    return ProbeRecipe(zig_version(), (compiled, *stubs, (*zig, *link, *objects)), texts, "stubs")


def _stub_commands(zig: Command, compiler: Command, name: str) -> tuple[Command, Command]:
    assembled = (*compiler, "-c", f"{{out}}/{name}.s", "-o", f"{{out}}/{name}.o")
    return assembled, (*zig, "ld.lld", "-shared", "-soname", name, "-o", f"{{out}}/{name}", f"{{out}}/{name}.o")


def digest(recipe: ProbeRecipe) -> str:
    """Digest of everything that the result depends on: commands, compiler, sources. Not of where they lie."""
    total = hashlib.sha256()
    for text in (recipe.compiler, recipe.judge, *(t for pair in recipe.texts for t in pair)):
        total.update(text.encode() + b"\0")
    for argument in (argument for step in recipe.steps for argument in step):
        total.update(argument.replace(str(SOURCES), "{sources}").replace(sys.executable, "python").encode() + b"\0")
    for path in sorted(SOURCES.rglob("*.[ch]")):
        total.update(path.relative_to(SOURCES).as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def make(recipe: ProbeRecipe, path: Path) -> None:
    """Run a recipe in a folder of its own, judge the result, put it at `path` in one step, and note its digest."""
    with own_folder_errors(path):
        _make(recipe, path)
        note_digests(path.parent, [path.name])


def _make(recipe: ProbeRecipe, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(BUILD_PREFIX, path.parent)
    with scratch_folder(BUILD_PREFIX, path.parent) as folder:
        for name, text in recipe.texts:
            (folder / name).write_text(text)
        for step in recipe.steps:
            _run_step([argument.replace("{out}", str(folder)) for argument in step])
        built = folder / PROBE
        _judge(recipe, built)
        with built.open("rb") as file:
            os.fsync(file.fileno())
        built.replace(path)


def _run_step(arguments: list[str]) -> None:
    done = subprocess.run(arguments, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise RunnerError(
            "the probe could not be built",
            where=" ".join(arguments[:4]) + " ...",
            why=done.stderr.strip()[-2000:] or f"the compiler ended with code {done.returncode}",
            remedy="try another compiler (CC=...), or pip install ziglang",
        )


def _judge(recipe: ProbeRecipe, built: Path) -> None:
    broken = android.broken_rules(read_elf(built), stubs=recipe.judge == "stubs") if recipe.judge else []
    if broken:
        raise RunnerError(
            "the probe was built, but not as Android wants it",
            why="; ".join(f"does not hold: {rule}" for rule in broken),
            remedy="use another release of ziglang or of the NDK",
        )
