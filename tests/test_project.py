"""What the project promises of itself: commands that agree, a current reference, few dependencies, short code."""

import ast
import os
import re
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

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


def sessions() -> dict[str, str]:
    """What `nox -l` lists: names of sessions, without their parameters, and their text."""
    done = subprocess.run([sys.executable, "-m", "nox", "-l"], cwd=ROOT, capture_output=True, text=True, check=True)
    return dict(re.findall(r"^[*-] (\w+)(?:\(.*\))?(?: -> (.*))?$", done.stdout, re.MULTILINE))


def test_every_session_is_documented() -> None:
    listed = sessions()
    assert {"pipeline", "tests", "lint", "typecheck", "device_tests", "bench", "oracle"} <= set(listed)
    assert [name for name, text in listed.items() if not text] == []


def test_sessions_named_in_the_docs_and_in_ci_exist() -> None:
    texts = [path.read_text("utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / ".ci/run")]
    named = {name for text in texts for name in re.findall(r"nox -s (\w+)", text)}
    assert named - set(sessions()) == set()


def test_ci_runs_with_an_empty_home_and_the_users_package_index(tmp_path: Path) -> None:
    """The real script up to its first command, which is one that shows its environment and fails."""
    (tmp_path / "bin").mkdir()
    first = tmp_path / "bin" / "python3"
    first.write_text('#!/bin/sh\nls -A "$HOME" && echo "$HOME" && echo "$PIP_CONFIG_FILE"; exit 7\n')
    first.chmod(0o755)
    (tmp_path / "home/.config/pip").mkdir(parents=True)
    settings = tmp_path / "home/.config/pip/pip.conf"
    settings.touch()
    kept = {name: value for name, value in os.environ.items() if name not in ("PIP_CONFIG_FILE", "XDG_CONFIG_HOME")}
    environment = {**kept, "HOME": str(tmp_path / "home"), "PATH": f"{tmp_path / 'bin'}:{os.defpath}"}
    done = subprocess.run([ROOT / ".ci/run"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    home, pip_settings = done.stdout.splitlines()
    assert Path(home) != tmp_path / "home"
    assert not Path(home).exists(), "the script removes it"
    assert pip_settings == str(settings)
