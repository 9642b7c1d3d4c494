"""What the project promises of itself: commands that agree, a current reference, few dependencies, short code."""

import ast
import os
import re
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("pipeline", "device_runner")


def test_readme_and_ci_run_the_same_test_command() -> None:
    (readme,) = [line for line in (ROOT / "README.md").read_text().splitlines() if line.endswith("nox -s tests")]
    (ci,) = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.endswith("nox -s tests")]
    assert readme == ci


def test_the_readmes_first_command_runs_the_example() -> None:
    lines = [line for line in (ROOT / "README.md").read_text().splitlines() if line.endswith("nox -s pipeline")]
    assert len(lines) == 1
    assert (ROOT / "build_configs" / "mnist.toml").is_file()


def test_the_reference_is_current() -> None:
    done = subprocess.run(
        [sys.executable, "docs/make_reference.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_links_in_the_docs_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    links = [
        (page, target)
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if "://" not in target
    ]
    assert [f"{page.name}: {target}" for page, target in links if not (page.parent / target).exists()] == []


def test_few_dependencies_each_with_a_lower_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert len(project["dependencies"]) <= 11
    assert all(">=" in requirement for requirement in project["dependencies"])


def functions() -> list[tuple[str, int]]:
    """Every function of the packages with its length in lines."""
    found = []
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{path.relative_to(ROOT)}:{node.name}"
                found.append((name, (node.end_lineno or node.lineno) - node.lineno + 1))
    return found


def test_functions_are_short() -> None:
    lengths = functions()
    assert [item for item in lengths if item[1] > 80] == []
    assert statistics.median(length for _, length in lengths) <= 10
    assert statistics.quantiles([length for _, length in lengths], n=10)[-1] <= 35


def test_modules_can_be_held_in_the_head() -> None:
    sizes = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    assert {name: size for name, size in sizes.items() if size > 600} == {}
    assert sum(size > 400 for size in sizes.values()) <= len(sizes) // 10


@pytest.mark.parametrize("name", ["pipeline", "tests", "lint", "typecheck", "device_tests", "bench", "oracle"])
def test_sessions_are_documented(name: str) -> None:
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    sessions = {node.name: ast.get_docstring(node) for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert sessions[name]
