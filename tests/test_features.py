"""A feature is a folder: the engine does not import it, and the rest works when it is taken away."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.features import ALLOWED, OFFERS
from tests import shape

ROOT = Path(__file__).resolve().parent.parent
FEATURES = sorted(path.name for path in (ROOT / "pipeline/features").iterdir() if (path / "__init__.py").is_file())


def imported_features(path: str) -> set[str]:
    """The features that a module imports anywhere in its text."""
    names: set[str] = set()
    for node in ast.walk(shape.sources()[path]):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pipeline.features"):
            parts = (node.module or "").split(".")
            names |= {parts[2]} if len(parts) > 2 else {alias.name for alias in node.names if alias.name in FEATURES}
    return names


def test_the_engine_imports_no_feature() -> None:
    engine = [path for path in shape.sources() if not path.startswith("pipeline/features/")]
    assert [path for path in engine if imported_features(path)] == []


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_imports_others_only_where_the_table_allows_it(feature: str) -> None:
    modules = [path for path in shape.sources() if path.startswith(f"pipeline/features/{feature}/")]
    others = {name for path in modules for name in imported_features(path)} - {feature}
    assert others == ALLOWED.get(feature, frozenset())


def test_what_stands_at_places_is_there() -> None:
    offers = {offer for row in OFFERS.values() for offer in row}
    missing = [
        offer
        for offer in offers
        if f"def {offer.partition(':')[2]}(" not in (ROOT / "pipeline/features" / _file(offer)).read_text("utf-8")
    ]
    assert missing == []
    places = re.findall(
        r'Place\[.*?\]\("([\w.]+)"\)', "".join((ROOT / path).read_text("utf-8") for path in shape.sources())
    )
    assert set(OFFERS) <= set(places)


def _file(offer: str) -> str:
    return offer.partition(":")[0].replace(".", "/") + ".py"


IMPORT_ALL = """
import importlib, pkgutil, pipeline
for module in pkgutil.walk_packages(pipeline.__path__, "pipeline."):
    if not module.name.endswith((".__main__", ".env")):
        importlib.import_module(module.name)
from pipeline.cli.main import main
main(["--help"])
"""


@pytest.mark.parametrize("feature", FEATURES)
def test_the_rest_works_without_a_feature(feature: str, tmp_path: Path) -> None:
    """Without its folder, those that may import it, and their rows, every other module imports and help is shown."""
    gone = {feature, *(name for name, uses in ALLOWED.items() if feature in uses)}
    shutil.copytree(ROOT / "pipeline", tmp_path / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "device_runner", tmp_path / "device_runner", ignore=shutil.ignore_patterns("__pycache__"))
    for name in gone:
        shutil.rmtree(tmp_path / "pipeline/features" / name)
    words = "|".join(gone)
    rows = {
        "features/__init__.py": rf'    ("[\w.]+": \()?"({words})[.":].*\n',
        "cli/main.py": rf'.*"features\.({words}):.*\n',
    }
    for table, row in rows.items():
        path = tmp_path / "pipeline" / table
        path.write_text(re.sub(row, "", path.read_text("utf-8")))
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Usage: ort-mobile" in done.stdout
