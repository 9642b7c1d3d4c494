"""Accuracy against cost, and what layers cost alone, in the page and in Markdown."""

import re

import msgspec

from pipeline.accuracy.result import AccuracyResult, ArtifactAccuracy
from pipeline.campaign.record import PrecisionSearch
from pipeline.core.variant import Level, Variant
from pipeline.passes.base import LayerLoss, MixedSearch, Trial
from pipeline.report import drawing, formats, html
from pipeline.report.model import CampaignReport
from tests.report.test_html import Page
from tests.report_samples import artifact, make_report

LAYERS = (
    LayerLoss(nodes=("stem",), op_type="Conv", sqnr_db=12.5),
    LayerLoss(nodes=("a", "b"), op_type="Conv+Gemm", sqnr_db=30.0),
    LayerLoss(nodes=("head</script>",), op_type="Gemm", sqnr_db=70.0),
)


def accuracy(variant: str, value: float) -> ArtifactAccuracy:
    result = AccuracyResult(
        model="mnist", metric="top-1", labelled=True, samples=100, data="d", value=value, reference_value=0.98
    )
    return ArtifactAccuracy(model="mnist", variant=variant, result=result)


def quantized(precision: str, size_bytes: int) -> tuple[str, object]:
    variant = Variant(level=Level.BASIC, precision=precision)
    return variant.name, msgspec.structs.replace(artifact("mnist", variant), size_bytes=size_bytes)


def report() -> CampaignReport:
    """Float, a quantized artifact that is smaller and worse, and one that is neither smaller nor better than that."""
    good, good_artifact = quantized("u8s8pc", 7_000)
    beaten, beaten_artifact = quantized("u8u8", 8_000)
    start = Trial(sqnr_db=10.0, quantized=4)
    best = Trial(types=("Mul",), nodes=("stem",), sqnr_db=31.0, quantized=2)
    search = MixedSearch(goal_db=30, evaluations=9, start=start, best=best, spread=False, layers=LAYERS)
    return msgspec.structs.replace(
        make_report(),
        rows=(),
        artifacts=(*make_report().artifacts, good_artifact, beaten_artifact),
        accuracy=(accuracy(good, 0.97), accuracy(beaten, 0.95)),
        searches=(PrecisionSearch(model="mnist", precision="mixu8s8pc", search=search),),
    )


def test_only_what_nothing_beats_is_on_the_front() -> None:
    (front,) = drawing.fronts(report())
    best = {point["label"].partition(":")[0] for point in front.marks if point["number"]}
    assert "basic-fixed-u8s8pc" in best
    assert "basic-fixed-u8u8" not in best
    places = {(point["x"], point["y"]) for point in front.marks if point["number"]}
    assert front.line.count(",") == len(front.ahead) == len(places) < len(best), "two files are in one place"
    assert "size" in front.title, "nothing was measured"


def test_where_less_is_better_the_least_is_on_top() -> None:
    """A share of wrong characters: the most wrong one is at the bottom and on no front."""
    wrong = [("u8s8pc", 0.05), ("u8u8", 0.30)]
    found = []
    for precision, share in wrong:
        one = accuracy(quantized(precision, 1)[0], share)
        assert one.result
        result = msgspec.structs.replace(one.result, metric="cer", reference_value=0.04)
        found.append(msgspec.structs.replace(one, result=result))
    (front,) = drawing.fronts(msgspec.structs.replace(report(), accuracy=tuple(found)))
    places = {point["label"].partition(":")[0]: point for point in front.marks}
    assert places["basic-fixed-u8u8"]["y"] > places["basic-fixed-u8s8pc"]["y"]
    assert not places["basic-fixed-u8u8"]["number"]
    assert [text for _, text in front.y_ticks] == ["4.00 %", "30.00 %"]


def test_bars_are_worst_first_and_mark_what_stays_float() -> None:
    (bars,) = drawing.loss_bars(report())
    assert [bar["number"] for bar in bars.marks] == [1, 0, 0]
    heights = [drawing.BARS_HEIGHT - bar["y"] for bar in bars.marks]
    assert heights == sorted(heights, reverse=True)
    assert heights[-1] == 0, "what cannot be seen has no height"


def test_the_page_has_both_drawings_and_hostile_names_do_nothing() -> None:
    page = Page(html.render(report()))
    assert page.tags["rect"] == 3
    assert page.tags["script"] == 1, "the own one of the page"
    assert page.tags["figure"] == 2
    assert any("31.0 dB" in text or "12.5 dB" in text for text in page.texts)


def test_markdown_lists_the_layers() -> None:
    text = formats.markdown_page(report())
    assert re.search(r"stem \| Conv \| 1 \| 12.5 dB \| yes", text.replace("&#45;", "-"))


def test_nothing_is_drawn_without_accuracy() -> None:
    assert drawing.fronts(make_report()) == ()
    assert drawing.loss_bars(make_report()) == ()
