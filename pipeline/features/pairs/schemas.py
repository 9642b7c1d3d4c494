"""Documents of this feature, of which docs/ has a JSON schema."""

import msgspec

from pipeline.features.pairs import bisection_report, comparison
from pipeline.features.pairs import report as pairs_report

SCHEMAS: dict[str, tuple[type[msgspec.Struct], str]] = {
    "comparison": (comparison.SideComparison, "What `ort-mobile compare --json` writes."),
    "gate": (pairs_report.GateReport, "What `ort-mobile gate --json` writes."),
    "bisection": (bisection_report.BisectionReport, "What `ort-mobile gate --bisect --json` writes."),
}
"""By the name of its file: the type, and what has such a document."""
