"""A feature is a folder: the engine does not import it. tests/without_feature.py tries what is left without one."""

import ast
import re
from pathlib import Path

import pytest

from pipeline.features import ALLOWED, OFFERS
from tests import shape
from tests.without_feature import FEATURES

ROOT = Path(__file__).resolve().parent.parent


def imported_features(path: str) -> set[str]:
    """The features that a module imports anywhere in its text."""
    names: set[str] = set()
    for node in shape.nodes(path):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        names |= {module.split(".")[2] for module in modules if module.startswith("pipeline.features.")}
    return names & set(FEATURES)


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
        r'Place\[.*?\]\(\s*"([\w.]+)"\s*\)', "".join((ROOT / path).read_text("utf-8") for path in shape.sources())
    )
    assert set(OFFERS) <= set(places)


def _file(offer: str) -> str:
    return offer.partition(":")[0].replace(".", "/") + ".py"
