"""What is left when a feature is taken out: its folder, its rows, those that may import it, and their tests.

    python -m tests.without_feature works [FEATURE...]   # the rest imports, shows its help and type-checks
    python -m tests.without_feature tests [FEATURE...]   # the rest passes its own tests: minutes a feature

Without FEATURE every one in turn. Exit code 1 names those whose rest fails.
"""

import contextlib
import importlib
import io
import multiprocessing
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

from noxfile import FAST_TESTS
from pipeline.features import ALLOWED

ROOT = Path(__file__).resolve().parent.parent
FEATURES = sorted(path.name for path in (ROOT / "pipeline/features").iterdir() if (path / "__init__.py").is_file())
ROWS = {
    "pipeline/features/__init__.py": r'    ("[\w.]+": \()?"({words})[.":].*\n',
    "pipeline/cli/main.py": r'\s*"(?P<command>[\w-]+)": \("features\.({words}):.*\n',
}
"""The tables where a feature has rows, and what its rows look like."""

WITHIN = {"pilot": ("--plan",), "updates": ("delta", "apply")}
"""What features add to commands of the engine: an option, subcommands."""

ABOUT_THE_WHOLE = ("test_project.py", "test_features.py", "test_recipes.py", "test_ci_recipes.py", "test_facts.py")
"""Tests of the repository as it stands: its texts name every feature."""


def take_out(features: Collection[str], folder: Path, *parts: str) -> set[str]:
    """Copy parts of the project to `folder` without features and those that import them; returns their commands."""
    gone = {*features, *(name for name, uses in ALLOWED.items() if not uses.isdisjoint(features))}
    for part in parts:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("*.pyc.*"))  # being written
        else:
            shutil.copy2(ROOT / part, folder / part)
    commands: set[str] = set()
    for table, pattern in ROWS.items():
        path, row = folder / table, re.compile(pattern.format(words="|".join(gone)))
        text = path.read_text("utf-8")
        commands |= {match["command"] for match in row.finditer(text) if "command" in row.groupindex}
        path.write_text(row.sub("", text), "utf-8")
    for name in gone:
        shutil.rmtree(folder / "pipeline/features" / name)
        shutil.rmtree(folder / "tests/features" / name, ignore_errors=True)
    return commands


def import_all(folder: Path) -> None:
    """Import every module of the project as it is in a folder, and show the help."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("pipeline", "device_runner")]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    project = importlib.import_module("pipeline")
    assert list(project.__path__) == [str(folder / "pipeline")]
    for module in pkgutil.walk_packages(project.__path__, "pipeline."):
        if not module.name.endswith((".__main__", ".env")):
            importlib.import_module(module.name)
    with contextlib.redirect_stdout(io.StringIO()) as page, contextlib.suppress(SystemExit):
        importlib.import_module("pipeline.cli.main").main(["--help"])
    assert "Usage: ort-mobile" in page.getvalue()


def works(feature: str, folder: Path) -> bool:
    """Whether every module that is left imports, and the help is shown.

    It is a fork: other packages, two thirds of the time of all imports, are those that this process has.
    """
    take_out([feature], folder, "pipeline", "device_runner", "pyproject.toml")
    process = multiprocessing.get_context("fork").Process(target=import_all, args=(folder,))
    process.start()
    process.join()
    return process.exitcode == 0


def types_hold(folder: Path) -> bool:
    """Whether mypy finds nothing in the engine without any feature.

    With that, what is left without some of them type-checks where all does: types of a feature rest on the engine and
    on what ALLOWED names, which goes with it; tests/test_features.py finds every import of another, in functions, too.
    """
    take_out(FEATURES, folder, "pipeline", "device_runner", "pyproject.toml")
    cache = ROOT / ".mypy_cache"  # what is left is mostly as it was
    return runs(folder, "-m", "mypy", "--cache-dir", str(cache), "pipeline", "device_runner")


def runs(folder: Path, *arguments: str) -> bool:
    """Whether Python ends well with these arguments, on what is left."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, check=False).returncode == 0


def tests_pass(feature: str, folder: Path) -> bool:
    """Whether the tests pass that say nothing of the feature: those that name its commands or modules are its own."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    commands = take_out([feature], folder, *{name.partition("/")[0] for name in listed.splitlines()})
    words = "|".join(
        [
            f"features.{feature}",
            *(f'"{word}"' for word in (*commands, *WITHIN.get(feature, ()))),
            f'"\\[?{feature}\\]?"',
        ]
    )
    files = sorted((folder / "tests").rglob("test_*.py"))
    others = [path for path in files if re.search(words, path.read_text("utf-8")) or path.name in ABOUT_THE_WHOLE]
    print(f"{feature}: left out", *(str(path.relative_to(folder)) for path in others), flush=True)
    ignored = [f"--ignore={path.relative_to(folder)}" for path in others]
    return runs(folder, "-m", "pytest", *FAST_TESTS, *ignored)


def main(arguments: list[str]) -> int:
    """Take each feature out in turn; exit code 1 where the rest of one fails."""
    holds = {"works": works, "tests": tests_pass}[arguments[0]]
    failures = []
    if holds is works:
        with tempfile.TemporaryDirectory() as folder:
            failures += [] if types_hold(Path(folder)) else ["all of them: types"]
        import_all(ROOT)
    for feature in arguments[1:] or FEATURES:
        with tempfile.TemporaryDirectory() as folder:
            if not holds(feature, Path(folder)):
                failures.append(feature)
    print("without each of", *(arguments[1:] or FEATURES), "- fails:", *(failures or ["none"]))
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
