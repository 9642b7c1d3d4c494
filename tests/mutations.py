"""How many changes of the product its tests notice: `python -m tests.mutations`.

Takes a sample of the product's statements, changes one thing in each (a comparison, a constant, a return value, …) in a
copy of the checkout, and runs the fast tests that came past that line. What no test notices is shown;
docs/architecture.md gives the shares. Needs pytest-cov (`nox -s mutations` installs it).
"""

import argparse
import ast
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests import shape

MOST_TESTS = 60
"""Of those that came past a line; spread over all of them, since the first are often of one file."""

MOST_SECONDS = 120.0
"""A change may make a program that never ends: that is noticed, too."""


class Mutation(NamedTuple):
    """One change: a module, the place in it (line from 1, columns in bytes from 0) and what stands there then."""

    path: str
    line: int
    start: int
    end: int
    text: str

    def applied(self, source: str) -> str:
        """The module with it."""
        lines = source.splitlines(keepends=True)
        before = lines[self.line - 1].encode()
        lines[self.line - 1] = (before[: self.start] + self.text.encode() + before[self.end :]).decode()
        return "".join(lines)


SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.BitOr: ast.BitAnd,
}  # fmt: skip


def changed(node: ast.AST) -> ast.AST | None:
    """The node with one thing otherwise; None where nothing is to be changed."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in SWAPS:
            return ast.Compare(left, [SWAPS[type(op)]()], [right])  # type: ignore[list-item]
        case ast.BoolOp(op=op, values=values):
            return ast.BoolOp(SWAPS[type(op)](), values)  # type: ignore[arg-type]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in SWAPS:
            return ast.BinOp(left, SWAPS[type(op)](), right)  # type: ignore[arg-type]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.Constant(value=bool(value)):
            return ast.Constant(not value)
        case ast.Constant(value=int(value)):
            return ast.Constant(value + 1)
        case ast.Return(value=ast.AST() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            return ast.Return(ast.Constant(None))
        case ast.Continue():
            return ast.Break()
        case ast.Raise():
            return ast.Pass()
        case ast.Expr(value=ast.Call()):
            return ast.Pass()
    return None


def mutations(path: str) -> Iterator[Mutation]:
    """Every change in the bodies of a module's functions that fits into one line."""
    bodies = [statement for function in shape.functions(path) for statement in function.body]
    seen: set[int] = set()
    for node in (node for body in bodies for node in ast.walk(body)):
        other = changed(node)
        if other is None or id(node) in seen or node.lineno != node.end_lineno:  # type: ignore[attr-defined]
            continue
        seen.add(id(node))
        text = ast.unparse(ast.fix_missing_locations(other))
        if isinstance(node, ast.expr):
            text = f"({text})"
        yield Mutation(path, node.lineno, node.col_offset, node.end_col_offset, text)  # type: ignore[attr-defined]


def sampled(count: int, seed: str, paths: Iterable[str] = ()) -> list[Mutation]:
    """So many changes, at most one of a line; of another state of the code the same where it is the same there.

    Each is chosen by a digest of what it changes and not by its number, so that states can be compared.
    """
    ranks: dict[Mutation, str] = {}
    for path in paths or shape.sources():
        lines = (shape.ROOT / path).read_text("utf-8").splitlines()
        for mutation in mutations(path):
            changed_text = f"{seed} {lines[mutation.line - 1].strip()} {mutation.text}"
            ranks[mutation] = hashlib.sha256(changed_text.encode()).hexdigest()
    chosen: dict[tuple[str, int], Mutation] = {}
    for mutation in sorted(ranks, key=ranks.__getitem__):
        chosen.setdefault((mutation.path, mutation.line), mutation)
    return list(chosen.values())[:count]


def copy_of_checkout(folder: Path) -> Path:
    """The files that git knows, as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=shape.ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(shape.ROOT / name, folder / name)
    return folder


def pytest(checkout: Path, *words: str, seconds: float | None = None) -> int:
    """The exit code of pytest there; 124 where it did not end in time."""
    env = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", *words]
    try:
        done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return 124
    return done.returncode


def tests_of_lines(checkout: Path, marks: str) -> dict[str, dict[int, list[str]]]:
    """The tests that come past each line of each module, after all tests of these marks ran once."""
    from coverage import CoverageData

    packages = [f"--cov={name}" for name in shape.PACKAGES]
    pytest(checkout, "-n", "2", "-m", marks, *packages, "--cov-context=test", "--cov-report=")
    data = CoverageData(str(checkout / ".coverage"))
    data.read()
    return {
        str(Path(file).relative_to(checkout)): {
            line: sorted({context.partition("|")[0] for context in contexts if "::" in context})
            for line, contexts in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }


def spread(tests: list[str]) -> list[str]:
    """At most MOST_TESTS of them, in equal steps."""
    step = max(1, -(-len(tests) // MOST_TESTS))
    return tests[::step]


def main() -> None:
    """Show what is not noticed, then the shares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--marks", required=True, help="pytest's -m of the fast tests")
    options = parser.parse_args()
    counts = dict.fromkeys(("noticed", "not noticed", "on no test's way"), 0)
    with tempfile.TemporaryDirectory(prefix="ort-mobile-mutations-") as folder:
        checkout = copy_of_checkout(Path(folder))
        tests = tests_of_lines(checkout, options.marks)
        for mutation in sampled(options.count, options.seed):
            asked = spread(tests.get(mutation.path, {}).get(mutation.line, []))
            module = checkout / mutation.path
            source = module.read_text("utf-8")
            outcome = "on no test's way"
            if asked:
                module.write_text(mutation.applied(source), "utf-8")
                passed = pytest(checkout, "-x", "-n", "2", "--dist", "worksteal", *asked, seconds=MOST_SECONDS) == 0
                module.write_text(source, "utf-8")
                outcome = "not noticed" if passed else "noticed"
            counts[outcome] += 1
            line = source.splitlines()[mutation.line - 1].strip()
            print(f"{outcome}: {mutation.path}:{mutation.line}: {line} -> {mutation.text}", flush=True)
    print(*(f"{outcome}: {count}" for outcome, count in counts.items()), sep=", ")


if __name__ == "__main__":
    main()
