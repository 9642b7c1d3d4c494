"""How C becomes programs and libraries: a compiler, and recipes whose results lie in the cache by what went in."""

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from device_runner.errors import RunnerError, UnavailableError
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

STANDARD = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wmissing-prototypes", "-Wstrict-prototypes")
"""The language of every unit; GNU sources may name what Linux has beside POSIX."""

Command = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compiler:
    """How to call it, and what tells it from another for the cache."""

    command: Command
    identity: str


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
        return Compiler((program,), compiler_identity(program))
    if zig := zig_command():
        return Compiler((*zig, "cc", "-fno-sanitize=undefined"), zig_version())
    raise UnavailableError(
        f"no C compiler{purpose}",
        why="neither cc, gcc nor clang is on PATH, and the package ziglang is not installed",
        remedy=f"pip install ziglang, or install a C compiler{otherwise}",
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
    compiler = host_compiler()
    debugged = any("sanitize" in word or word == "-g" for word in arguments)
    strip = () if platform.system() == "Darwin" or debugged else ("-s",)
    return BuildRecipe(
        what=f"the {product}",
        place=product,
        parts=(product,),
        compiler=compiler.identity,
        steps=((*compiler.command, *arguments, *strip, "-ldl", "-lpthread"),),
        sources=sources,
        inputs=tuple(sources.rglob("*.[ch]")),
    )


def built(recipe: BuildRecipe) -> Path:
    """The folder with the parts of a recipe, made unless it is in the cache; raises RunnerError, UnavailableError."""
    folder = cache_folder() / recipe.place / digest(recipe)
    if not are_sound(folder, recipe.parts):
        with own_folder_errors(folder), taking_turns(folder.with_name(f".lock-{folder.name[:16]}")):
            if not are_sound(folder, recipe.parts):  # another process may have built it
                make(recipe, folder)
    return folder


def digest(recipe: BuildRecipe) -> str:
    """Digest of everything that the result depends on: commands, compiler, sources. Not of where they lie."""

    def contents() -> Iterator[bytes]:
        yield recipe.compiler.encode()
        yield from (text.encode() for pair in recipe.texts for text in pair)
        for argument in (argument for step in recipe.steps for argument in step):
            yield argument.replace(str(recipe.sources), "{sources}").replace(sys.executable, "python").encode()
        for path in sorted(recipe.inputs):
            yield path.relative_to(recipe.sources).as_posix().encode() + b"\0" + path.read_bytes()

    return hashlib.sha256(b"\0".join(contents())).hexdigest()


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
                    remedy="try another compiler (CC=...), or pip install ziglang",
                )
        if recipe.judge:
            recipe.judge(out)
        for part in recipe.parts:
            sync(out / part)
        note_digests(out, recipe.parts)
        take_place(out, folder)
