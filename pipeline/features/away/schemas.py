"""Documents of this feature, of which docs/ has a JSON schema."""

import msgspec

from pipeline.features.away import plan

SCHEMAS: dict[str, tuple[type[msgspec.Struct], str]] = {
    "package-plan": (plan.PackagePlan, "plan.json of a package that `ort-mobile export` makes."),
}
"""By the name of its file: the type, and what has such a document."""
