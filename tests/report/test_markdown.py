"""Markdown: read back by a parser of GitHub's flavour, every text is still only text."""

import re

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from device_runner.safe_text import visible
from device_runner.spec import RunOptions
from pipeline.check.compare import OutputCheck
from pipeline.config import Platform, Target
from pipeline.core.variant import AwareBy, Way
from pipeline.release.choose import Choice
from pipeline.report import formats, wording
from pipeline.report.measured import measured_text
from pipeline.report.model import CampaignReport
from tests.report_samples import make_report

HARMLESS = {"text", "softbreak", "strong_open", "strong_close", "em_open", "em_close"}
HOSTILE = "|`*_x_* [a](b) <b>&amp; ![i](http://e.vil/x) ~~s~~ # $x$ @all www.e.vil \\| \x1b[2J\n\n# H\n- l\u202e"


def parse(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)


def inline(tokens: list[Token]) -> list[Token]:
    return [child for token in tokens for child in token.children or []]


def plain(token: Token) -> str:
    return "".join(child.content for child in token.children or [])


def cells(tokens: list[Token]) -> list[str]:
    """The texts of all cells in order."""
    opened = {"td_open", "th_open"}
    return [plain(tokens[place + 1]) for place, token in enumerate(tokens) if token.type in opened]


def test_every_number_of_the_report_is_in_it(report: CampaignReport) -> None:
    found = cells(parse(formats.markdown_page(report)))
    assert {"2.07 ms", "0.62", "0.61 to 0.63", "same within 5 %", "differ 2.4e-01 top-1 84.0%", "failed"} <= set(found)
    assert "3f" * 32 in found


def test_what_made_provider_aware_artifacts_stands_beside_them(report: CampaignReport) -> None:
    assert "Provider-aware" not in formats.markdown_page(report)
    plain_one, *others = report.artifacts
    by = AwareBy(way=Way.LIBRARY, release="1.29.0", sha256="1fbfff77a79d" + 52 * "0")
    aware = msgspec.structs.replace(plain_one, aware_by=by)
    found = cells(parse(formats.markdown_page(msgspec.structs.replace(report, artifacts=(aware, *others)))))
    assert {"Provider-aware", "saved by libonnxruntime 1.29.0 (sha256 1fbfff77a79d)"} <= set(found)


def test_sections_in_order(report: CampaignReport) -> None:
    assert re.findall("^## (.*)$", formats.markdown_page(report), re.MULTILINE) == [
        "What ships", "mnist on local", "mnist on adb:R58M123", "Warnings", "Models that could not be used",
        "What failed", "Outputs that differ", "Skipped", "Doubts", "Devices", "Models", "Artifacts", "Words",
    ]  # fmt: skip


def test_an_ordinary_report_reads_well_as_plain_text(report: CampaignReport) -> None:
    assert "&#" not in formats.markdown_page(report)


def test_hostile_text_is_only_text() -> None:
    tokens = parse(formats.markdown_page(make_report(name=HOSTILE, model=HOSTILE, device=HOSTILE, text=HOSTILE)))
    assert {child.type for child in inline(tokens)} <= HARMLESS
    assert {token.type for token in tokens}.isdisjoint({"html_block", "fence", "code_block", "blockquote_open", "hr"})
    ordinary = parse(formats.markdown_page(make_report()))
    assert [t.type for t in tokens if t.type != "inline"] == [t.type for t in ordinary if t.type != "inline"]
    assert visible(HOSTILE) in cells(tokens)


@given(st.text(st.characters(codec="utf-8"), min_size=1).map(str.strip).filter(bool))
@settings(deadline=None)
def test_any_text_in_a_cell_and_in_a_list(text: str) -> None:
    table = parse(wording.table(["head"], [[text]]))
    assert cells(table) == ["head", visible(text)]
    bullet = parse(f"- {wording.item(text)}")
    assert [token.type for token in bullet] == [
        "bullet_list_open", "list_item_open", "paragraph_open", "inline", "paragraph_close", "list_item_close",
        "bullet_list_close",
    ]  # fmt: skip
    assert plain(bullet[3]) == visible(text)


@given(st.text("-+=*#>|`_[]()<>&!~$@:/.w1 \t\\\nab", min_size=1).filter(lambda text: bool(text.strip())))
@settings(deadline=None, max_examples=300)
def test_texts_of_marks_only(text: str) -> None:
    tokens = parse(f"- {wording.item(text)}")
    assert {child.type for child in inline(tokens)} == {"text"}
    assert tokens[3].type == "inline"


def test_no_bare_links_and_no_mentions() -> None:
    shown = wording.escaped("see https://e.vil/x, www.e.vil, mail me@e.vil and @team")
    assert not re.search(r"https?://|www\.|@", shown)


def test_what_was_measured_says_what_could_not_be_judged_and_is_text() -> None:
    report = make_report()
    artifact = report.artifacts[0]
    choice = Choice(
        target=Target(name="phone", platform=Platform.ANDROID), artifact=artifact, options=RunOptions(),
        reason="the only one", measured=False,
    )  # fmt: skip
    unknown = OutputCheck(output="<script>", passed=False, unknown=True, reason="cannot judge: it is <b>constant")
    text = measured_text(report, [choice], {artifact.model: {artifact.variant.name: (unknown,)}})
    (line,) = (line for line in text.splitlines() if line.startswith("- "))
    assert line.startswith("- &#60;script&#62;: not judged; ")
    assert "constant" in line
    assert "<" not in line
