"""What is said first: what ships, with its size and accuracy beside the original's."""

import msgspec
import pytest

from pipeline.accuracy.result import AccuracyResult, ArtifactAccuracy, DropVerdict
from pipeline.check.compare import OutputCheck
from pipeline.core.variant import Level, Variant
from pipeline.report import formats, html
from pipeline.report.decision import banner
from pipeline.report.explanations import words as meanings
from pipeline.report.model import ArtifactCheck, CampaignReport
from tests.report_samples import artifact, make_report
from tests.values import present

INT8 = Variant(level=Level.ALL, precision="s8s8pc")


def shipping(variant: Variant, accuracy: tuple[ArtifactAccuracy, ...] = (), random: bool = False) -> CampaignReport:
    """The sample report where one variant ships, of 3,000 bytes beside 4,000 of the original."""
    report = make_report()
    file = msgspec.structs.replace(artifact("mnist", variant), size_bytes=3_000)
    model = msgspec.structs.replace(report.models[0], name="mnist", size_bytes=4_000)
    check = OutputCheck(output="y", passed=True, max_rel_error=4.2e-7, random_inputs=random)
    return msgspec.structs.replace(
        report, artifacts=(file,), models=(model,), accuracy=accuracy,
        choices=(msgspec.structs.replace(report.choices[0], model="mnist", variant=variant.name),),
        checks=(ArtifactCheck(model="mnist", variant=variant.name, checks=(check,)),),
    )  # fmt: skip


def first(report: CampaignReport) -> list[str]:
    """What the lines say in a terminal, before any table."""
    page = formats.markdown_page(report)
    lines = [line for line in page.replace("**", "").splitlines() if line.startswith(("Ships", "Size", "Accuracy"))]
    assert page.index("Ships:") < page.index("| Target")
    return [line.split(":", 1)[1].strip() for line in lines]


def test_an_int8_file_is_called_so_with_its_accuracy_and_size_beside_the_originals() -> None:
    result = AccuracyResult(
        model="m", metric="top-1", labelled=True, samples=200, data="d", value=0.97, reference_value=0.99, drop=0.02,
        max_drop=0.05, verdict=DropVerdict.WITHIN,
    )  # fmt: skip
    accuracy = (ArtifactAccuracy(model="mnist", variant=INT8.name, result=result),)
    ships, size, measured = first(shipping(INT8, accuracy))
    assert ships.startswith("all-fixed-s8s8pc, int8 (s8s8pc), run with ")
    assert size == "2.9 KiB, the original 3.9 KiB (-25 %)"
    assert measured == "top-1 97.00 %, the original 99.00 %, drop 2.00 pp (within), on 200 samples"


def test_what_was_not_measured_is_said() -> None:
    *_, accuracy = first(shipping(INT8))
    assert accuracy == "not measured: give test data"
    failed = (ArtifactAccuracy(model="mnist", variant=INT8.name, why="the labels fit no output"),)
    *_, accuracy = first(shipping(INT8, failed))
    assert accuracy == "not measured: the labels fit no output"
    *_, accuracy = first(shipping(Variant(level=Level.ALL), random=True))
    assert accuracy == "the original's: outputs differ by at most 4.2e-07, compared on one sample of random inputs"


@pytest.mark.parametrize(
    ("random", "constants", "said"),
    [
        (False, ("age", "income"), "compared on one sample of constants (age, income)"),
        (True, ("mask",), "compared on one sample of random inputs and constants (mask)"),
        (False, ("a", "b", "c", "d", "e"), "compared on one sample of constants (a, b, c, 2 more)"),
    ],
)
@pytest.mark.parametrize("unsteady", [False, True])
def test_the_headline_says_what_varied_and_what_would_not_repeat(
    random: bool, constants: tuple[str, ...], said: str, unsteady: bool
) -> None:
    given = shipping(Variant(level=Level.ALL))
    (entry,) = given.checks
    checks = tuple(
        msgspec.structs.replace(
            check, random_inputs=random, constants=constants, unsteady=unsteady, max_rel_error=0.0, passed=True
        )
        for check in entry.checks
    )
    report = msgspec.structs.replace(given, checks=(msgspec.structs.replace(entry, checks=checks),))
    *_, accuracy = first(report)
    assert accuracy.startswith(f"the original's, bit for bit, {said}")
    assert ("unsteady" in accuracy) is unsteady
    reasons = " ".join(present(banner(report))[2])
    kind = "random inputs and constants" if random else "constants"
    assert f"outputs of mnist were compared on {kind} only: give test data" in reasons
    assert ("another release or processor may compute others" in reasons) is unsteady


def test_the_page_has_size_and_accuracy_on_its_first_screen() -> None:
    page = html.render(shipping(INT8))
    assert "<dt>size</dt><dd>2.9 KiB, the original 3.9 KiB (-25 %)</dd>" in page
    assert "<dt>accuracy</dt><dd>not measured: give test data</dd>" in page


def test_the_words_of_a_report_are_explained_in_it_and_no_others() -> None:
    words = {row[0]: row[1] for row in meanings(shipping(INT8)).rows}
    assert words["int8 (s8s8pc)"] == "QDQ, s8 values and weights, a scale for each output channel"
    assert "fixed" in words
    assert "runtime" not in words
    assert "dynamic int8 (dyn8)" not in words
