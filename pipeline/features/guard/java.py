"""The guard's Java classes for a package, and what they are called."""

from collections.abc import Mapping
from pathlib import Path

from pipeline.release import source_code

TEMPLATES = "pipeline.features.guard"

NAMES = tuple(sorted(path.stem for path in (Path(__file__).parent / "templates").glob("*.java")))
"""The classes: no class of a model is called so."""

CHILD = "GuardChild"
"""The class that starts the helper: only where there is one."""


def classes(values: Mapping[str, object]) -> dict[str, str]:
    """File name to source of the classes, for a package with these values: its name, the bundle's and its digest."""
    names = (name for name in NAMES if name != CHILD or values["helper"])
    return {f"{name}.java": source_code.render_source(TEMPLATES, f"{name}.java", **values) for name in names}
