"""Files that grew: the optimizer writes constants out in float that a model stores in 8 or 16 bits, or computes."""

from collections.abc import Iterator

from pipeline.convert.precisions import Conversion
from pipeline.core.errors import Finding, Severity
from pipeline.core.variant import Level, Style, grew
from pipeline.report.wording import size

RULE = "grew"


def growth_findings(conversion: Conversion) -> Iterator[Finding]:
    """A warning for each precision in which artifacts are much larger than the model in it, with what does not grow."""
    for form in conversion.models:
        original = form.model.size_bytes
        alike = [artifact for artifact in conversion.artifacts if artifact.variant.precision == form.precision]
        grown = [artifact for artifact in alike if grew(artifact.total_bytes, original)]
        if not grown:
            continue
        largest = max(grown, key=lambda artifact: artifact.total_bytes)
        levels = list(Level)
        kept = max(
            (artifact for artifact in alike if artifact not in grown and not artifact.variant.providers),
            key=lambda artifact: (levels.index(artifact.variant.level), artifact.variant.style is Style.FIXED),
            default=None,
        )
        tried = any(artifact.variant.level is Level.NONE for artifact in grown)
        if kept:
            remedy = f"where size matters, ship {kept.variant.name}: {size(kept.total_bytes)}"
        elif tried:
            remedy = (
                "where size matters, ship ONNX files (style onnx), or store constants as inputs of DequantizeLinear"
            )
        else:
            remedy = "where size matters, convert at level none, which leaves them as they are, or ship ONNX files"
        yield Finding(
            severity=Severity.WARNING,
            rule=RULE,
            what=f"{', '.join(artifact.variant.name for artifact in grown)}: up to "
            f"{largest.total_bytes / original:.1f} times the size of the model: {size(largest.total_bytes)} "
            f"of {size(original)}",
            where=conversion.model.source.name,  # a form lies in a folder that is gone
            why="the optimizer writes out constants that the model stores in fewer bits or computes, and the ORT "
            "format lists of attributes",
            remedy=remedy,
        )
