"""Documents of this feature, of which docs/ has a JSON schema."""

import msgspec

from pipeline.features.app import document

SCHEMAS: dict[str, tuple[type[msgspec.Struct], str]] = {
    "app": (document.AppDocument, "What `ort-mobile app --json` writes."),
}
"""By the name of its file: the type, and what has such a document."""
