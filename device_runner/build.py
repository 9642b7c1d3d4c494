"""How C becomes programs and libraries: a compiler, and recipes whose results lie in the cache by what went in.

Then the probe: for this computer, for Linux on another processor, for Android with the NDK or with ziglang alone.
ziglang has no libc for Android, so headers (probe/android/include), start file (start.c) and stub libraries of one
allow-list are ours; the program is linked with lld itself, since the driver refuses. What lld leaves undefined is an
error: so only functions that bionic of API level 27 has can be used, and no helper of a run-time library of a compiler.
The result is judged by rules.
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from device_runner.errors import RunnerError, SpecError, UnavailableError, pip_install
from device_runner.files import (
    are_sound,
    cache_folder,
    note_digests,
    own_folder_errors,
    scratch_folder,
    staging_folder,
    sync,
    take_place,
    taking_turns,
)
from device_runner.probe import elf as elf_file

STANDARD = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wmissing-prototypes", "-Wstrict-prototypes")
"""The language of every unit; GNU sources may name what Linux has beside POSIX."""

Command = tuple[str, ...]


Compiler = tuple[Command, str]
"""How to call it, and what tells it from another for the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRecipe:
    """How `parts` are built, which messages call `what`; the commands in `steps` run one after the other.

    In an argument `{out}` is the folder of the parts and `{work}` one for what leads to them, which has the `texts`.
    `inputs` are the files below `sources` that are read. `judge` raises RunnerError for a folder that is not as it
    should be. The result lies in a folder of the cache called `place`.
    """

    what: str
    place: str
    parts: tuple[str, ...]
    compiler: str
    steps: tuple[Command, ...]
    sources: Path
    inputs: tuple[Path, ...]
    texts: tuple[tuple[str, str], ...] = ()
    judge: Callable[[Path], None] | None = None


def host_compiler(purpose: str = "", otherwise: str = "") -> Compiler:
    """CC, cc, gcc or clang, else the package ziglang; raises UnavailableError when there is none.

    `purpose` and `otherwise` go into its text: what it is needed for, and what needs none.
    """
    chosen = os.environ.get("CC", "")
    names = [*([chosen] if chosen and " " not in chosen else []), "cc", "gcc", "clang"]
    if program := next(filter(None, map(shutil.which, names)), None):
        return (program,), compiler_identity(program)
    if zig := zig_command():
        return (*zig, "cc", "-fno-sanitize=undefined"), zig_version()
    raise UnavailableError(
        f"no C compiler{purpose}",
        why="neither cc, gcc nor clang is on PATH, and the package ziglang is not installed",
        remedy=f"{pip_install('ziglang')}, or install a C compiler{otherwise}",
    )


def compiler_identity(program: str) -> str:
    """Path, size and time of a compiler: cheaper than asking for its version, and changes with it."""
    real = Path(program).resolve()
    facts = real.stat()
    return f"{real} {facts.st_size} {facts.st_mtime_ns}"


def zig_command() -> Command | None:
    """How to call zig: the package ziglang of this interpreter. None where it is not installed."""
    return (sys.executable, "-m", "ziglang") if importlib.util.find_spec("ziglang") else None


def zig_version() -> str:
    """Name and version of the package ziglang."""
    return f"ziglang {importlib.metadata.version('ziglang')}"


def build_library(sources: Path, name: str) -> Path:
    """A shared library for this computer of the C files in a folder, which shows what they mark.

    Built unless it is in the cache. Raises UnavailableError without a compiler, RunnerError when it fails.
    """
    units = map(str, sorted(sources.glob("*.c")))
    flags = (*STANDARD, "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-o", f"{{out}}/{name}")
    return built(host_recipe(name, (*flags, *units), sources)) / name


def host_recipe(product: str, arguments: Command, sources: Path) -> BuildRecipe:
    """How one file is built for this computer, by one command; raises UnavailableError."""
    command, identity = host_compiler()
    debugged = any("sanitize" in word or word == "-g" for word in arguments)
    strip = () if platform.system() == "Darwin" or debugged else ("-s",)
    return BuildRecipe(
        what=f"the {product}",
        place=product,
        parts=(product,),
        compiler=identity,
        steps=((*command, *arguments, *strip, "-ldl", "-lpthread"),),
        sources=sources,
        inputs=tuple(sources.rglob("*.[ch]")),
    )


def built(recipe: BuildRecipe) -> Path:
    """The folder with the parts of a recipe, made unless it is in the cache; raises RunnerError, UnavailableError.

    Its name is a digest of everything that the result depends on: commands, compiler, sources. Not of where they lie.
    """
    sources = str(recipe.sources)
    words = (word for step in recipe.steps for word in step)
    contents = [
        recipe.compiler.encode(),
        *(text.encode() for pair in recipe.texts for text in pair),
        *(word.replace(sources, "{sources}").replace(sys.executable, "python").encode() for word in words),
        *(
            path.relative_to(recipe.sources).as_posix().encode() + b"\0" + path.read_bytes()
            for path in sorted(recipe.inputs)
        ),
    ]
    folder = cache_folder() / recipe.place / hashlib.sha256(b"\0".join(contents)).hexdigest()
    if not are_sound(folder, recipe.parts):
        with own_folder_errors(folder), taking_turns(folder.with_name(f".lock-{folder.name[:16]}")):
            if not are_sound(folder, recipe.parts):  # another process may have built it
                make(recipe, folder)
    return folder


def make(recipe: BuildRecipe, folder: Path) -> None:
    """Run a recipe beside a folder that then takes its place as a whole, with the digests of its parts."""
    with scratch_folder() as work, staging_folder(folder) as out:
        for name, text in recipe.texts:
            (work / name).write_text(text, "utf-8")
        for step in recipe.steps:
            command = [word.replace("{out}", str(out)).replace("{work}", str(work)) for word in step]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
            if done.returncode:
                raise RunnerError(
                    f"{recipe.what} could not be built",
                    where=" ".join(command[:4]) + " ...",
                    why=done.stderr.strip()[-2000:] or f"the compiler ended with code {done.returncode}",
                    remedy=f"try another compiler (CC=...), or {pip_install('ziglang')}",
                )
        if recipe.judge:
            recipe.judge(out)
        for part in recipe.parts:
            sync(out / part)
        note_digests(out, recipe.parts)
        take_place(out, folder)


LIBC = frozenset(
    re.findall(
        r"\w+",
        "__libc_init __cxa_atexit __errno __stack_chk_fail _exit abort calloc chdir clock_gettime close dup dup2 execvp"
        " fclose fflush fgetc fgets flock fopen fork fprintf fputc fread free fsync fwrite getpagesize getpid getppid"
        " kill lseek malloc memchr memcmp memcpy memmove memset mincore mkdir mmap munmap nanosleep open pipe poll"
        " posix_fadvise posix_memalign prctl pread pthread_create pthread_join pthread_mutex_lock pthread_mutex_unlock"
        " putchar puts qsort read readlink rename sched_setaffinity setenv setpriority setrlimit signal"
        " snprintf strcmp strerror strlen strncmp strstr strtoll strtoull unlink vsnprintf waitpid write",
    )
)
"""Functions of libc.so, all in bionic since API level 21 or earlier."""

LIBC_DATA = frozenset({"stdin", "stdout", "stderr"})
"""Variables of libc.so, each a pointer; since API level 23."""

LIBDL = frozenset({"dlopen", "dlsym", "dlerror"})

STUBS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "libc.so": (LIBC, LIBC_DATA),
    "libdl.so": (LIBDL, frozenset()),
}
"""SONAME to the functions and variables that a program may take from it."""

PAGE = 0x4000
"""16 KB, as devices of Android 15 and later may have; right for 4 KB ones too."""

LD_EMULATION = {"arm64-v8a": "aarch64linux", "x86_64": "elf_x86_64"}
ZIG_ARCH = {"arm64-v8a": "aarch64", "x86_64": "x86_64"}

COMPILE_FLAGS = (
    "-std=c11",
    "-O2",
    "-fPIE",
    "-fno-sanitize=undefined",
    "-fno-stack-protector",
    "-nostdlibinc",
    "-Werror=implicit-function-declaration",
)

LINK_FLAGS = (
    "-pie", "--no-undefined", "--dynamic-linker=/system/bin/linker64", "--hash-style=gnu", "--build-id=sha1",
    "--eh-frame-hdr", "--enable-new-dtags", "--no-rosegment", "--as-needed", "--gc-sections",
    "-z", "now", "-z", "relro", "-z", "noexecstack", "-z", "text",
    "-z", f"max-page-size={PAGE}", "-z", f"common-page-size={PAGE}", "--strip-debug",
)  # fmt: skip
"""As the NDK links; --no-rosegment since unwinders before API level 29 do not know a read-only segment of its own."""

ARM64_LINK_FLAGS = ("--fix-cortex-a53-843419",)


FORBIDDEN_NAME = re.compile(
    r"__ubsan_|__emutls_|__tls_get_addr|__aarch64_|__libc_start_main|__errno_location|__assert_fail|__stdio|GLIBC_"
    r"|__.*(tf|ti)\d"
)
"""Names of compiler run-time helpers and of other C libraries."""

RELOCATIONS = {"arm64-v8a": {257, 1025, 1026, 1027}, "x86_64": {1, 6, 7, 8}}
"""ABS64, GLOB_DAT, JUMP_SLOT, RELATIVE: no copies, no thread-locals, no indirect functions."""


ElfRule = tuple[str, Callable[[elf_file.Elf], bool]]
"""What must hold of a program, and its test."""


def _segments(elf: elf_file.Elf, kind: int) -> list[elf_file.Segment]:
    return [segment for segment in elf.segments if segment.type == kind]


def _relro_ends_on_page(elf: elf_file.Elf) -> bool:
    ends = [segment.address + segment.memory_size for segment in _segments(elf, elf_file.PT_GNU_RELRO)]
    return bool(ends) and all(end % PAGE == 0 for end in ends)


def _has_android_note(elf: elf_file.Elf) -> bool:
    levels = [note.content[:4] for note in elf.notes if (note.owner, note.type) == ("Android", 1)]
    return len(levels) == 1 and 21 <= int.from_bytes(levels[0], "little") <= 99


PROGRAM_RULES: tuple[ElfRule, ...] = (
    (
        "64 bits, position-independent, for arm64-v8a or x86_64",
        lambda elf: (elf.bits, elf.type) == (64, 3) and elf.abi in RELOCATIONS,
    ),
    (
        "section headers are there: linker64 checks them",
        lambda elf: 0 < elf.section_names_index < elf.section_count,
    ),
    ("the interpreter is /system/bin/linker64", lambda elf: elf.interpreter == "/system/bin/linker64"),
    (
        "segments are aligned to 16 KB",
        lambda elf: all(
            s.alignment == PAGE and (s.address - s.offset) % PAGE == 0 for s in _segments(elf, elf_file.PT_LOAD)
        ),
    ),
    (
        "no segment is writable and executable",
        lambda elf: not any(segment.flags & 3 == 3 for segment in _segments(elf, elf_file.PT_LOAD)),
    ),
    (
        "the stack is not executable",
        lambda elf: {segment.flags & 1 for segment in _segments(elf, elf_file.PT_GNU_STACK)} == {0},
    ),
    ("the part that is read-only after relocation ends on a 16 KB page", _relro_ends_on_page),
    ("no thread-local storage: it needs API level 29", lambda elf: not _segments(elf, elf_file.PT_TLS)),
    (
        "needs libc.so, and of others libdl.so and libm.so at most",
        lambda elf: {"libc.so"} <= set(elf.needed) <= {"libc.so", "libdl.so", "libm.so"},
    ),
    ("everything is bound at the start", lambda elf: elf.tag("flags") == 8 and elf.tag("flags_1") == 0x08000001),
    ("has a gnu hash table", lambda elf: elf.tag("gnu_hash") is not None),
    (
        "no tag that old linkers do not know",
        lambda elf: all(elf.tag(name) is None for name in ("textrel", "rpath", "runpath", "relr", "android_relr")),
    ),
    ("relocations are of the plain kinds", lambda elf: elf.relocations <= RELOCATIONS.get(elf.abi, set())),
    (
        "no helper of a compiler or of another C library",
        lambda elf: not any(FORBIDDEN_NAME.match(name) for name in elf.undefined),
    ),
    ("exports nothing", lambda elf: not any(section for _, section in elf.symbols)),
    ("has the Android note with an API level", _has_android_note),
    ("has a build-id", lambda elf: any((note.owner, note.type) == ("GNU", 3) for note in elf.notes)),
)

STUB_RULES: tuple[ElfRule, ...] = (
    ("takes from the system what the allow-list has", lambda elf: elf.undefined <= LIBC | LIBC_DATA | LIBDL),
    ("wants no symbol versions", lambda elf: elf.tag("verneed") is None),
)
"""Beside PROGRAM_RULES for programs linked against our stubs; the NDK's have versions and more helpers."""


def broken_rules(elf: elf_file.Elf, *, stubs: bool) -> list[str]:
    """What keeps an Android program from running on every device from API level 27 on; empty when nothing does."""
    return [text for text, holds in (*PROGRAM_RULES, *(STUB_RULES if stubs else ())) if not holds(elf)]


SOURCES = Path(__file__).parent / "probe"
HOST = "host"
PROBE = "probe"
TRIAL = "trial"

TRIAL_PREFIX = "libort_mobile_trial_"
"""What the file of the program `trial` begins with in an app, where its models' Java package follows."""
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

LINUX_MACHINES = {"arm64-v8a": "aarch64"}
"""Android's name of an ABI to Linux's of the processor, where it is another one."""


def target_of(system: str, abi: str) -> str:
    """The target for a system and an ABI by Android's name; `host` for Linux on a processor like this computer's."""
    if system == "android":
        return abi
    machine = LINUX_MACHINES.get(abi, abi)
    is_here = (platform.system(), platform.machine()) == ("Linux", machine)
    return HOST if is_here else f"linux-{machine}"


def build_probe(target: str = HOST, *, api_level: int = DEFAULT_API_LEVEL, flags: Sequence[str] = ()) -> Path:
    """The probe for a target (`host`, an Android ABI, one of `LINUX_TARGETS`), built unless it is in the cache.

    `flags` go to the compiler. Raises UnavailableError without a compiler, RunnerError when it fails.
    """
    return built(find_recipe(target, api_level, tuple(flags))) / PROBE


TRIAL_FLAGS = ("-ffunction-sections", "-fdata-sections")


def build_trial(target: str = HOST, *, api_level: int = DEFAULT_API_LEVEL) -> Path:
    """The program that tries a model once (probe/trial/trial.c) for a target of `build_probe`; raises as that."""
    return built(find_recipe(target, api_level, TRIAL_FLAGS, TRIAL)) / TRIAL


def find_recipe(target: str, api_level: int, flags: tuple[str, ...], program: str = PROBE) -> BuildRecipe:
    """The first way to build a program for a target that this machine has; raises UnavailableError, SpecError."""
    arguments = (*STANDARD, "-O2", *flags, "-o", f"{{out}}/{program}", *map(str, units(program)))
    if target == HOST:
        return host_recipe(program, arguments, SOURCES)
    if target in LINUX_TARGETS:
        options = ("cc", *LINUX_TARGETS[target], "-fno-sanitize=undefined")
        return _recipe(program, zig_version(), (*_zig(target), *options, *arguments, "-s", "-ldl", "-lpthread"))
    if target not in NDK_TRIPLES:
        raise SpecError(f"unknown target {target!r}", remedy=f"use one of: {', '.join(TARGETS)}")
    if not 21 <= api_level <= 99:
        raise SpecError(f"API level {api_level} does not exist", remedy="use 27 or higher; NNAPI needs 27")
    ndk = os.environ.get("ANDROID_NDK_HOME") or os.environ.get("ANDROID_NDK_ROOT")
    if ndk:
        return _ndk_recipe(program, Path(ndk), target, api_level, arguments)
    return _stub_recipe(program, target, api_level, flags)


def units(program: str = PROBE) -> list[Path]:
    """A program's translation units, each with a header of its name but the one that has `main`."""
    units = sorted(SOURCES.glob("*.c"))
    return units if program == PROBE else [*(unit for unit in units if unit.stem != PROBE), SOURCES / "trial/trial.c"]


def _recipe(
    program: str, compiler: str, *steps: Command, stubs: bool | None = None, texts: tuple[tuple[str, str], ...] = ()
) -> BuildRecipe:
    """A recipe of a program for another system; `stubs` says by which rules one for Android is judged."""

    def judge(folder: Path) -> None:
        if broken := broken_rules(elf_file.read_elf(folder / program), stubs=bool(stubs)):
            raise RunnerError(
                f"the {program} was built, but not as Android wants it",
                why="; ".join(f"does not hold: {rule}" for rule in broken),
                remedy="use another release of ziglang or of the NDK",
            )

    return BuildRecipe(
        what=f"the {program}",
        place=program,
        parts=(program,),
        compiler=compiler,
        steps=steps,
        sources=SOURCES,
        inputs=tuple(SOURCES.rglob("*.[ch]")),
        texts=texts,
        judge=None if stubs is None else judge,
    )


def _zig(target: str) -> tuple[str, ...]:
    if zig := zig_command():
        return zig
    raise UnavailableError(
        f"no compiler for {target}",
        why="the package ziglang is not installed" + (", and ANDROID_NDK_HOME is not set" * (target in NDK_TRIPLES)),
        remedy=pip_install("ziglang") + (", or set ANDROID_NDK_HOME to an NDK" * (target in NDK_TRIPLES)),
    )


def _ndk_recipe(program: str, ndk: Path, abi: str, api_level: int, arguments: Command) -> BuildRecipe:
    compilers = sorted(ndk.glob(f"toolchains/llvm/prebuilt/*/bin/{NDK_TRIPLES[abi]}{api_level}-clang"))
    if not compilers:
        raise UnavailableError(
            f"the NDK has no compiler for {abi} at API level {api_level}",
            where=str(ndk),
            remedy="point ANDROID_NDK_HOME at an NDK of r21 or later, or unset it to build with ziglang",
        )
    page = f"-Wl,-z,max-page-size={PAGE},-z,common-page-size={PAGE}"
    tidy = ("-Wl,--gc-sections", "-Wl,--strip-debug")
    link = ("-fPIE", "-pie", page, "-Wl,--build-id=sha1", "-Wl,-z,now", *tidy, "-ldl")
    compiler = str(compilers[0])
    stubs = False if abi in LD_EMULATION else None  # the rules are for 64 bits
    return _recipe(program, compiler_identity(compiler), (compiler, *arguments, *link), stubs=stubs)


def _stub_recipe(program: str, abi: str, api_level: int, flags: tuple[str, ...]) -> BuildRecipe:
    if abi not in LD_EMULATION:
        raise UnavailableError(
            f"no compiler for {abi}",
            why="ziglang alone builds for arm64-v8a and x86_64; the NDK is needed for 32 bits",
            remedy="set ANDROID_NDK_HOME to an NDK",
        )
    zig = _zig(abi)
    compiler = (*zig, "cc", "-target", f"{ZIG_ARCH[abi]}-linux-android")
    include = (*STANDARD, *COMPILE_FLAGS, "-isystem", str(SOURCES / "android/include"), *flags)
    sources = [*units(program), SOURCES / "android/start.c"]
    joined = ("-r", "-nostdlib", "-o", f"{{work}}/{program}.o")
    compiled = (*compiler, *include, f"-DPROBE_API_LEVEL={api_level}", *joined, *map(str, sources))
    steps: list[Command] = [compiled]
    texts = []
    for name, (functions, variables) in STUBS.items():  # libraries that have the names and nothing behind them
        code = [f".globl {symbol}\n.type {symbol},%function\n{symbol}:" for symbol in sorted(functions)]
        data = [
            f".globl {symbol}\n.type {symbol},%object\n.size {symbol},8\n{symbol}: .quad 0"
            for symbol in sorted(variables)
        ]
        texts.append((f"{name}.s", "\n".join([".text", *code, ".data", *data, ""])))
        steps.append((*compiler, "-c", f"{{work}}/{name}.s", "-o", f"{{work}}/{name}.o"))
        steps.append((*zig, "ld.lld", "-shared", "-soname", name, "-o", f"{{work}}/{name}", f"{{work}}/{name}.o"))
    extra = ARM64_LINK_FLAGS if abi == "arm64-v8a" else ()
    link = ("ld.lld", "-m", LD_EMULATION[abi], *LINK_FLAGS, *extra, "-o", f"{{out}}/{program}")
    steps.append((*zig, *link, f"{{work}}/{program}.o", *(f"{{work}}/{name}" for name in STUBS)))
    return _recipe(program, zig_version(), *steps, stubs=True, texts=tuple(texts))
