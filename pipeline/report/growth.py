"""Files that grew: constants that a model stores in 8 or 16 bits and the optimizer writes out, lists of attributes."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pipeline.core import variant as core_variant
from pipeline.core.errors import Finding, Severity
from pipeline.core.variant import Artifact, Level, Style
from pipeline.report.wording import size

if TYPE_CHECKING:
    from pipeline.convert import precisions as convert_precisions

RULE = "grew"
LEVELS = list(Level)
LISTS = ("ai.onnx.ml:", "ai.onnx:TfIdfVectorizer", "ai.onnx:StringNormalizer")
"""Operators whose tables are attributes: at every level the ORT format has 4 or 8 bytes for an element."""


LIST_BYTES = 16 << 10
"""By so much more than its model a file of lists is called grown: what the container of a small one takes has nodes."""


def grown(artifact: Artifact, original: int) -> bool:
    """Whether a file is larger than its model of `original` bytes, by more than a reader would expect."""
    return core_variant.grew(
        artifact.total_bytes, original, LIST_BYTES if _has_lists(artifact) else core_variant.GREW_BYTES
    )


def _has_lists(artifact: Artifact) -> bool:
    return any(operator.startswith(LISTS) for operator in artifact.operators)


def not_grown(alike: Sequence[Artifact], original: int) -> str:
    """What of a model in one precision is not much larger than its `original` bytes: a file, or the form to convert."""
    kept = max(
        (artifact for artifact in alike if not grown(artifact, original) and not artifact.variant.providers),
        key=lambda artifact: (LEVELS.index(artifact.variant.level), artifact.variant.style is Style.FIXED),
        default=None,
    )
    if kept:
        return f"{kept.variant.name} has {size(kept.total_bytes)}"
    if any(artifact.variant.level is Level.NONE or _has_lists(artifact) for artifact in alike):
        return "ONNX files (style onnx) keep it as it is"
    return "level none keeps it as it is"


def growth_findings(conversion: "convert_precisions.Conversion") -> Iterator[Finding]:
    """A warning for each precision in which artifacts are much larger than the model in it, with what does not grow."""
    for form in conversion.models:
        original = form.model.size_bytes
        alike = [artifact for artifact in conversion.artifacts if artifact.variant.precision == form.precision]
        larger = [artifact for artifact in alike if grown(artifact, original)]
        if not larger:
            continue
        largest = max(larger, key=lambda artifact: artifact.total_bytes)
        why = "the optimizer writes out constants that the model stores in fewer bits or computes"
        if all(map(_has_lists, larger)):
            why = "the ORT format writes each element of an operator's lists in 4 or 8 bytes"
        yield Finding(
            severity=Severity.WARNING,
            code=RULE,
            what=f"{', '.join(artifact.variant.name for artifact in larger)}: up to "
            f"{largest.total_bytes / original:.1f} times the size of the model: {size(largest.total_bytes)} "
            f"of {size(original)}",
            where=conversion.model.source.name,  # a form lies in a folder that is gone
            why=why,
            remedy=f"where size matters: {not_grown(alike, original)}",
        )
