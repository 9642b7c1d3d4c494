"""One digest of the sources that a module runs, for caches that must not outlive an edit of what they hold."""

import hashlib
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

OURS = r"(?:pipeline|device_runner)[\w.]*"

IMPORT = re.compile(
    rf"^ *from ({OURS}) import (\([^)]*\)|.*)|^ *import ({OURS})|[\"']({OURS})(?::\w+)?[\"']", re.MULTILINE
)
"""Import statements, also those in functions, and strings: tables name modules that are imported when they are wanted.

Not `ast`: parsing a hundred modules takes half a second, which every conversion would pay.
"""

FOUND_BY_FOLDER = "pipeline.providers"
"""A package whose modules nothing imports by name: they are there when their folders are."""


def imported_sources(module: str) -> set[Path]:
    """The sources of ours that are loaded when a module is used to the full: its own and all that it imports."""
    sources: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        folder = ROOT.joinpath(*name.split("."))
        candidates = (folder.with_suffix(".py"), folder / "__init__.py")
        path = next((file for file in candidates if name and file.is_file()), None)
        if path is None or name in sources:  # what is imported from a module is no source
            continue
        sources[name] = path
        waiting.append(name.rpartition(".")[0])  # the packages that it is in are loaded before it
        for package, names, imported, named in IMPORT.findall(path.read_text("utf-8")):
            waiting.append(package or imported or named)
            waiting += [f"{package}.{part}" for part in re.findall(r"\w+", names)]
        if name == FOUND_BY_FOLDER:
            waiting += [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in folder.rglob("*.py")]
    return set(sources.values())


@cache
def sources_digest(module: str, beside: tuple[str, ...] = ()) -> str:
    """Digest of `imported_sources` and of files of the project's folder that these patterns name."""
    total = hashlib.sha256()
    for path in sorted({*imported_sources(module), *(path for pattern in beside for path in ROOT.glob(pattern))}):
        total.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()
