"""Documents of this feature, of which docs/ has a JSON schema."""

import msgspec

from pipeline.features.doctor import diagnosis

SCHEMAS: dict[str, tuple[type[msgspec.Struct], str]] = {
    "doctor": (diagnosis.DoctorReport, "What `ort-mobile doctor --json` writes."),
}
"""By the name of its file: the type, and what has such a document."""
