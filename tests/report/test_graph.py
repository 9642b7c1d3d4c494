"""Drawings of a page: graphs of models, inert whatever nodes are called; accuracy against cost; what layers cost."""

import re
from pathlib import Path

import msgspec
import onnx
import pytest

from pipeline.accuracy.result import AccuracyResult, ArtifactAccuracy
from pipeline.campaign.record import Host, PrecisionSearch
from pipeline.core.providers import XNNPACK
from pipeline.core.variant import Level, Variant
from pipeline.partition.placement import ClaimReason, PlacedNode, Placement
from pipeline.passes.base import LayerLoss, MixedSearch, Trial
from pipeline.report import drawing, formats, html
from pipeline.report.drawing import MOST_BOXES, draw_graph, drawings
from pipeline.report.html import read_template, render
from pipeline.report.model import CampaignReport, RequiredOperator
from pipeline.report.operators import BAR, needed_operators, time_tables
from tests.command import ort_mobile
from tests.partition_samples import chain
from tests.report.test_html import Page
from tests.report.test_profile_view import profile, profiled
from tests.report_samples import artifact, make_report


def placement(count: int, every: int, provider: str = "nnapi", name: str = "/block/node") -> Placement:
    """A chain in which every so manieth node is refused, each for a reason with its own name in it."""
    refused = [place % every == every - 1 for place in range(count)]
    nodes = tuple(
        PlacedNode(
            name=f"{name}_{place}",
            operator="Erf" if refused[place] else "Conv",
            partition=None if refused[place] else sum(refused[:place]),
            reason=sum(refused[:place]) if refused[place] else None,
            inputs=(place - 1,) if place else (),
        )
        for place in range(count)
    )
    reasons = tuple(ClaimReason(what=f"input '{name}_{n}' is bad", remedy="drop it") for n in range(sum(refused)))
    return Placement(model="m", variant="v", device="d", provider=provider, release="1.29", nodes=nodes,
                     reasons=reasons)  # fmt: skip


def page(report: CampaignReport, *placements: Placement) -> str:
    return render(msgspec.structs.replace(report, placements=placements))


def test_boxes_lead_to_their_nodes_with_reasons(report: CampaignReport) -> None:
    text = page(report, placement(9, 3), placement(9, 3, XNNPACK))
    ids, links = (Page(text).values(name) for name in ("id", "href"))
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert sum(link.startswith("#graph-1-") for link in links) == 6
    assert "Predicted for v on d: 6 of 9 nodes (66 %) in 3 partitions, ONNX Runtime 1.29." in text
    assert "Predicted for v on d: 6 of 9 nodes (66 %), ONNX Runtime 1.29." in text
    assert "for example input &#39;/block/node_0&#39; is bad" in text


@pytest.mark.parametrize(
    "name", ["</svg><script>x()</script>", '" onload="x()', "{{ 7*7 }}", "'", "\x00\x1b]0;", "a" * 999]
)
def test_names_are_inert(name: str) -> None:
    made = CampaignReport(name="n", campaign="c", created_at="", margin=0.05, host=Host(), versions={})
    hostile = placement(9, 3, name=name)
    nodes = tuple(msgspec.structs.replace(one, operator=name) for one in hostile.nodes)
    found = Page(page(made, msgspec.structs.replace(hostile, model=name, nodes=nodes)))
    plain = Page(page(made, placement(9, 3)))
    assert set(found.tags) == set(plain.tags)
    attributes = ({(tag, attribute) for tag, attribute, _ in each.attributes} for each in (found, plain))
    assert next(attributes) - {("span", "title")} == next(attributes)  # a name that is cut has the whole as its title


def test_a_graph_of_2000_nodes_is_small(report: CampaignReport) -> None:
    without = len(page(report))
    long = "/model/encoder/layers/attention/self/query"
    assert len(page(report, placement(2_000, 11, name=long)).encode()) - without < 300_000
    many = draw_graph(placement(2_000, 2), "g")
    assert (many["boxes"], many["lines"]) == ((), "")
    assert many["facts"][-1] == "Not drawn here: it has 2000 boxes"


def test_graphs_share_the_bounds_of_a_page() -> None:
    first, second = drawings((placement(MOST_BOXES, 2), placement(9, 3)), ((), ()))
    assert (len(first["boxes"]), len(second["boxes"])) == (MOST_BOXES, 0)


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_boxes_and_texts_have_contrast() -> None:
    fills = re.findall(r"\.g\d \{ fill: (#\w{6})", read_template("graph.css"))
    assert len(fills) == 10
    assert all(contrast(fill, "#ffffff") >= 4.5 for fill in fills)
    themes = re.findall(r":root \{([^}]*)\}", read_template("report.css"))[:2]
    for theme in themes:
        named = dict(re.findall(r"--(\w+): (#\w+)", theme))
        paper = "#ffffff" if named["paper"] == "#fff" else named["paper"]
        assert contrast(named["soft"], paper) >= 3  # edges, and the border of filled boxes
        assert contrast(named["bad"], paper) >= 3  # the border of boxes on the CPU
        assert contrast(named["ink"], paper) >= 4.5


def test_partition_writes_a_page_of_its_own(tmp_path: Path) -> None:
    onnx.save(chain("Relu", "Erf", "Erf", "Relu"), tmp_path / "<m>.onnx")
    wanted = [str(tmp_path / "<m>.onnx"), "--ep", "nnapi,xnnpack", "--html", str(tmp_path / "p.html")]
    ort_mobile("partition", *wanted)
    text = (tmp_path / "p.html").read_text()
    assert "&lt;m&gt;.onnx with NNAPI" in text
    assert "&lt;m&gt;.onnx with XNNPACK" in text
    assert "CPU · 2 nodes" in text
    assert {link[1:] for link in Page(text).values("href")} <= set(Page(text).values("id"))


def test_operators_of_profiles_stand_side_by_side() -> None:
    slow = profiled("none-fixed", profile(("a", "Conv", 80.0), ("b", "Erf", 20.0)))
    fast = profiled("all-fixed", profile(("a@", "Conv", 10.0), ("b", "Erf", 30.0)), run="nnapi")
    (table,) = time_tables([slow, fast])
    assert table["heads"] == ["all-fixed nnapi", "none-fixed cpu"]
    assert [(*row[:3], row[4]) for row in table["rows"]] == [
        ("Conv", "cpu", "on-cpu", "+80 ns"), ("Erf", "cpu", "on-cpu", "-10 ns"), ("Conv", "nnapi", "g0", "-10 ns"),
    ]  # fmt: skip
    assert table["rows"][0][3] == (("-", 0.0), ("80 ns", BAR))


def test_operators_of_a_reduced_build_name_what_ships(report: CampaignReport) -> None:
    first, second, *_ = report.artifacts
    made = (
        msgspec.structs.replace(first, operators={"ai.onnx:Conv": 2, "ai.onnx:Relu": 1}),
        msgspec.structs.replace(second, operators={"ai.onnx:Erf": 1}),
    )
    ships = msgspec.structs.replace(report.choices[0], model=first.model, variant=first.variant.name)
    name = f"{first.model}/{first.variant.name}"
    changed = msgspec.structs.replace(report, artifacts=made, choices=(ships,))
    assert needed_operators(changed).rows == (("ai.onnx:Conv", f"{name} (2)"), ("ai.onnx:Relu", f"{name} (1)"))
    required = (
        RequiredOperator(
            name="ai.onnx:Conv", opsets=(1, 11), types=("input 0: float",), adds_bytes={"arm64-v8a": 2048}
        ),
        RequiredOperator(name="ai.onnx:Relu", opsets=(14,)),
        RequiredOperator(name="com.microsoft:FusedConv", opsets=(1,)),
    )
    typed = needed_operators(msgspec.structs.replace(changed, required=required))
    assert typed.head == ("Operator", "Opsets", "Types", "Needed by (nodes)", "Adds to a library")
    assert typed.rows == (
        ("com.microsoft:FusedConv", "1", "all", "subgraphs, or what the device's optimizer adds", "-"),
        ("ai.onnx:Conv", "1, 11", "input 0: float", f"{name} (2)", "2.0 KiB (arm64-v8a)"),
        ("ai.onnx:Relu", "14", "all", f"{name} (1)", "-"),
    )
    assert "Operators of a reduced build" in render(changed)


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


def searched_report() -> CampaignReport:
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
    (front,) = drawing.fronts(searched_report())
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
    (front,) = drawing.fronts(msgspec.structs.replace(searched_report(), accuracy=tuple(found)))
    places = {point["label"].partition(":")[0]: point for point in front.marks}
    assert places["basic-fixed-u8u8"]["y"] > places["basic-fixed-u8s8pc"]["y"]
    assert not places["basic-fixed-u8u8"]["number"]
    assert [text for _, text in front.y_ticks] == ["4.00 %", "30.00 %"]


def test_bars_are_worst_first_and_mark_what_stays_float() -> None:
    (bars,) = drawing.loss_bars(searched_report())
    assert [bar["number"] for bar in bars.marks] == [1, 0, 0]
    heights = [drawing.BARS_HEIGHT - bar["y"] for bar in bars.marks]
    assert heights == sorted(heights, reverse=True)
    assert heights[-1] == 0, "what cannot be seen has no height"


def test_the_page_has_both_drawings_and_hostile_names_do_nothing() -> None:
    page = Page(html.render(searched_report()))
    assert page.tags["rect"] == 3
    assert page.tags["script"] == 1, "the own one of the page"
    assert page.tags["figure"] == 2
    assert any("31.0 dB" in text or "12.5 dB" in text for text in page.texts)


def test_markdown_lists_the_layers() -> None:
    text = formats.markdown_page(searched_report())
    assert re.search(r"stem \| Conv \| 1 \| 12.5 dB \| yes", text.replace("&#45;", "-"))


def test_nothing_is_drawn_without_accuracy() -> None:
    assert drawing.fronts(make_report()) == ()
    assert drawing.loss_bars(make_report()) == ()
