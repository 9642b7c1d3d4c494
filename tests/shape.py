"""How large the product's code is, as a reader meets it: `python -m tests.shape`.

Prints a table of every package (lines, modules, data classes, functions, filler names), and the measures that
docs/architecture.md gives. tests/test_project.py bounds the same numbers.
"""

import ast
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("pipeline", "device_runner")

FILLERS = frozenset({"one", "found", "own", "its", "told", "said", "made", "theirs", "wanted", "here", "known"})
"""Names that say nothing of what they hold."""


class Shape(NamedTuple):
    """What is counted of some modules."""

    lines: int = 0
    modules: int = 0
    data_classes: int = 0
    functions: int = 0
    fillers: int = 0


@cache
def sources() -> dict[str, ast.Module]:
    """The product's modules by path, parsed once; empty ones left out."""
    paths = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")) if path.stat().st_size)
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


@cache
def nodes(path: str) -> tuple[ast.AST, ...]:
    """All nodes of a module: to walk over all modules takes a second."""
    return tuple(ast.walk(sources()[path]))


def lines(path: str) -> int:
    """Lines of a module."""
    return len((ROOT / path).read_text(encoding="utf-8").splitlines())


AnyFunction: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: str) -> list[AnyFunction]:
    """Every function and method of a module, nested ones too."""
    return [node for node in nodes(path) if isinstance(node, AnyFunction)]


def functions_by_name(path: str) -> list[tuple[str, AnyFunction]]:
    """As `functions`, each with its qualified name: `Class.method`, `outer.inner`. Two of one name are two."""

    def named(node: ast.AST, prefix: str) -> Iterator[tuple[str, AnyFunction]]:
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, AnyFunction | ast.ClassDef):
                name = f"{prefix}.{child.name}" if prefix else child.name
            if isinstance(child, AnyFunction):
                yield name, child
            yield from named(child, name)

    return list(named(sources()[path], ""))


@cache
def data_classes() -> dict[str, list[str]]:
    """The classes of each module that hold fields (Struct, NamedTuple, dataclass), heirs of such classes too."""
    classes = {(path, node.name): node for path in sources() for node in nodes(path) if isinstance(node, ast.ClassDef)}
    bases = {"Struct", "NamedTuple", "TypedDict"}
    count = -1
    while count != len(bases):
        count = len(bases)
        bases |= {name for (_, name), node in classes.items() if any(base in bases for base in _bases(node))}
    known: dict[str, list[str]] = {path: [] for path in sources()}
    for (path, name), node in classes.items():
        decorators = {ast.unparse(each).partition("(")[0].rpartition(".")[2] for each in node.decorator_list}
        if name in bases or "dataclass" in decorators:
            known[path].append(name)
    return known


def _bases(node: ast.ClassDef) -> Iterator[str]:
    for base in node.bases:
        package, _, name = ast.unparse(base).partition("[")[0].rpartition(".")
        if package in ("", "msgspec", "typing"):  # click.Option is no Option of ours
            yield name


def filler_names(path: str) -> list[str]:
    """Variables and parameters of a module that are called by a filler, one entry for each place that binds one."""
    bound = [node.arg for node in nodes(path) if isinstance(node, ast.arg)]
    bound += [node.id for node in nodes(path) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return [name for name in bound if name in FILLERS]


QUOTED_TYPE = re.compile(r'[\w\[\], .|"]{1,200}')
"""A type in quotes, or the name of what another place of the module defines."""


class Island(NamedTuple):
    """Definitions of a module that use one another, and none that is outside of the island."""

    names: tuple[str, ...]
    line: int
    lines: int


def islands(path: str) -> list[Island]:
    """The islands of a module; its logger and type variables, which anything may share, hold nothing together."""
    statements = [node for node in sources()[path].body if _defined(node)]
    owners = {name: number for number, node in enumerate(statements) for name in _defined(node)}
    roots = list(range(len(statements)))

    def root(number: int) -> int:
        while roots[number] != number:
            number = roots[number]
        return number

    for number, node in enumerate(statements):
        for name in _used(node):
            if name in owners:
                roots[root(number)] = root(owners[name])
    groups: dict[int, list[ast.stmt]] = {}
    for number, node in enumerate(statements):
        groups.setdefault(root(number), []).append(node)
    return [
        Island(
            names=tuple(name for node in group for name in _defined(node)),
            line=group[0].lineno,
            lines=sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in group),
        )
        for group in groups.values()
    ]


def _defined(node: ast.stmt) -> list[str]:
    """The names that a statement of a module defines."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Assign(targets=targets, value=value):
            shared = ast.unparse(value).startswith(("logging.getLogger(", "TypeVar(", "ParamSpec("))
            names = [part for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
            return [] if shared else [name.id for name in names]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def _used(node: ast.stmt) -> Iterator[str]:
    """The names that a definition uses, also in annotations that are texts."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Constant) and isinstance(part.value, str) and QUOTED_TYPE.fullmatch(part.value):
            yield from re.findall(r"\w+", part.value)


def totals() -> dict[str, Shape]:
    """The shape of each package, and of all under "total"."""
    rows: dict[str, Shape] = {}
    for path in sources():
        parts = Path(path).parts
        values = Shape(lines(path), 1, len(data_classes()[path]), len(functions(path)), len(filler_names(path)))
        for name in ("/".join(parts[:2]) if len(parts) > 2 else parts[0], "total"):
            rows[name] = Shape(*map(sum, zip(rows.get(name, Shape()), values, strict=True)))
    return {**{name: row for name, row in rows.items() if name != "total"}, "total": rows["total"]}


LOADED = """
import resource, sys
from pipeline.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as ending:
    assert ending.code in (0, 4, None), ending.code
names = [name for name in sys.modules if name.split(".")[0] in ("pipeline", "device_runner")]
used = resource.getrusage(resource.RUSAGE_SELF)
print(len(names), f"{used.ru_utime + used.ru_stime:.2f}", file=sys.stderr)
"""

EXAMPLE = ROOT / "build_configs" / "examples" / "mnist"

COMMANDS = (
    f"convert {EXAMPLE}/mnist.onnx --output converted",
    "gate converted/mnist.none-fixed.ort converted/mnist.all-fixed.ort --rounds 8 --min-runs 5 --output gated",
    f"run --model {EXAMPLE}/mnist.onnx --test-data {EXAMPLE} --quick --output out",
    "report out --list",
    "bundle verify out/bundle",
)


def loaded(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Of each command, run for real: the product's modules that its process imported, and its processor time."""
    for line in COMMANDS:
        done = subprocess.run(
            [sys.executable, "-c", LOADED, *line.split()], cwd=folder, capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        count, seconds = done.stderr.splitlines()[-1].split()
        yield line.split()[0], count, seconds


def main() -> int:
    """Print the table, and what commands load."""
    print(f"{'':24}{'lines':>8}{'modules':>9}{'data classes':>14}{'functions':>11}{'fillers':>9}")
    for name, row in totals().items():
        print(f"{name:24}{row.lines:8}{row.modules:9}{row.data_classes:14}{row.functions:11}{row.fillers:9}")
    print(f"{'tests':24}{sum(len(path.read_text('utf-8').splitlines()) for path in (ROOT / 'tests').rglob('*.py')):8}")
    with tempfile.TemporaryDirectory() as folder:
        for command, count, seconds in loaded(Path(folder)):
            print(f"{command:24} loads {count} modules, {seconds} s of processor")
    return 0


if __name__ == "__main__":
    sys.exit(main())
