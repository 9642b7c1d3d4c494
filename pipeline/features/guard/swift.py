"""The guard's Swift sources for a package, and what they are called."""

from collections.abc import Mapping
from pathlib import Path

from pipeline.release import source_code

TEMPLATES = "pipeline.features.guard"

NAMES = tuple(sorted(path.name for path in (Path(__file__).parent / "templates").glob("*.swift")))


def sources(values: Mapping[str, object]) -> dict[str, str]:
    """File name to source, for a package with these values: its module, the bundle's name and its digest."""
    return {name: source_code.render_source(TEMPLATES, name, **values) for name in NAMES}
