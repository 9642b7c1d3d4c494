"""What the words of a report mean, for who reads one without this project's documents; only those that it uses."""

from collections.abc import Callable, Iterator

from pipeline.campaign.statistics import groups as run_groups
from pipeline.core.variant import Style, Variant
from pipeline.passes import precisions as passes_precisions
from pipeline.report.model import CampaignReport
from pipeline.report.wording import Listing, has_not_shown

Uses = Callable[[CampaignReport, tuple[Variant, ...]], bool]

WORDS: tuple[tuple[str, str, Uses], ...] = (
    (
        "variant",
        (
            "one way to convert a model: level and style, then the precision and the providers that it is made for, "
            "as in all-fixed-s8s8pc-nnapi"
        ),
        lambda _, variants: bool(variants),
    ),
    (
        "none, basic, extended, layout, all",
        (
            "levels, how far ONNX Runtime optimized the file: none leaves the model as it is, basic removes and folds "
            "what costs nothing, extended also fuses operators for the CPU, layout and all also reorder its data"
        ),
        lambda _, variants: bool(variants),
    ),
    ("fixed", "the file holds the optimized model", lambda _, variants: _has(variants, Style.FIXED)),
    (
        "runtime",
        (
            "the file holds the model of level basic, and the fusions that the CPU makes on the phone of what no other "
            "provider takes"
        ),
        lambda _, variants: _has(variants, Style.RUNTIME),
    ),
    (
        "run, way to run",
        "an execution provider with its session options, as in nnapi+USE_FP16",
        lambda report, _: bool(report.rows or report.choices),
    ),
    (
        "execution provider (EP)",
        "the part of ONNX Runtime that computes operators: the CPU, or an accelerator by NNAPI, CoreML, WebGPU, QNN",
        lambda report, variants: bool(report.rows or variants),
    ),
    (
        "provider-aware",
        "a file whose operators that a provider takes (claims) are left unfused for it",
        lambda _, variants: any(variant.providers for variant in variants),
    ),
    (
        "claim, partition",
        (
            "a provider claims the operators that it can compute; those side by side are a partition, and values are "
            "copied at the borders of each"
        ),
        lambda report, _: bool(report.placements or report.profiles),
    ),
    (
        "baseline",
        "the variant and run that the ratios of a table compare the others with",
        lambda report, _: any(row.baseline for row in report.rows),
    ),
    (
        "unsettled",
        "inferences still became faster in the middle of what was timed: the process had not warmed up",
        lambda report, _: any(
            caution.code is run_groups.Doubt.UNSETTLED for row in report.rows for caution in row.cautions
        ),
    ),
    (
        "no difference shown",
        "the rounds are too few or too unsteady to tell; N % would show: a difference of N % would have been found",
        lambda report, _: has_not_shown(report),
    ),
)
"""Words, what they mean, and whether a report with some variants has them."""


def _has(variants: tuple[Variant, ...], style: Style) -> bool:
    return any(variant.style is style for variant in variants)


def precisions(report: CampaignReport) -> Iterator[str]:
    """The precisions of a report by their own names, in the order of its artifacts."""
    yield from dict.fromkeys(
        artifact.variant.precision
        for artifact in report.artifacts
        if artifact.variant.precision in passes_precisions.PRECISIONS
    )


def words(report: CampaignReport) -> Listing:
    """A row for each word that the report uses, its precisions too."""
    variants = tuple(artifact.variant for artifact in report.artifacts)
    rows = [(word, text) for word, text, uses in WORDS if uses(report, variants)]
    rows += [
        (passes_precisions.common_name(name), passes_precisions.PRECISIONS[name].title) for name in precisions(report)
    ]
    return Listing(title="Words", head=("Word", "What it means"), rows=tuple(rows))
