"""RequiredOps: which operators, opsets and types a build must contain; the file format, and the proof."""

from pipeline.required_ops.proof import Missing, covers
from pipeline.required_ops.text import needs_of_artifacts, parse, parse_merged, read_config, render
from pipeline.required_ops.value import (
    EMPTY,
    TYPE_NAMES,
    Need,
    Needs,
    RequiredOps,
    from_needs,
    needs_of,
    replays,
    union_of,
)

__all__ = [
    "EMPTY",
    "TYPE_NAMES",
    "Missing",
    "Need",
    "Needs",
    "RequiredOps",
    "covers",
    "from_needs",
    "needs_of",
    "needs_of_artifacts",
    "parse",
    "parse_merged",
    "read_config",
    "render",
    "replays",
    "union_of",
]
