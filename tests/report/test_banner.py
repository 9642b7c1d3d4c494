"""The verdict that a report opens with, and that a failed check is in every format with its figure."""

import io

import msgspec
import pytest
from rich.console import Console

from pipeline.accuracy.result import AccuracyResult, ArtifactAccuracy
from pipeline.campaign.record import Host, ModelFacts
from pipeline.campaign.statistics.compare import Comparison, Verdict
from pipeline.check.compare import OutputCheck
from pipeline.check.library_proof import LibraryProof, ProvenLibrary
from pipeline.report import formats, html
from pipeline.report.decision import BannerState, Sureness, banner, decisions
from pipeline.report.model import ArtifactCheck, CampaignReport, ChoiceRow, Withheld
from tests.report.test_proof import PROOF
from tests.report_samples import make_report
from tests.values import present

GOOD = OutputCheck(output="y", passed=True, max_abs_error=1e-7, max_rel_error=1e-6, limit=1e-4)
WRONG = OutputCheck(
    output="y", passed=False, random_inputs=True, max_abs_error=0.0382, max_rel_error=0.15, limit=2.5e-4,
    reason="relative error 0.15 is over 0.001 (absolute 0.037, limit 0.00025)",
)  # fmt: skip
UNKNOWN = OutputCheck(
    output="y", passed=False, unknown=True, random_inputs=True, max_abs_error=0.0,
    reason="cannot judge on random inputs: the output is nearly constant there (0 to 1e-09)",
)  # fmt: skip
CHOICE = ChoiceRow(
    target="phone", model="m", variant="all-fixed", run="cpu", file="m.all-fixed.ort", reason="the fastest of 3",
    device="adb:1",
)  # fmt: skip


def report(**changes: object) -> CampaignReport:
    made = CampaignReport(
        name="demo", campaign="1", created_at="2026-01-31T08:15:30.123Z", margin=0.05, host=Host(), versions={},
        choices=(CHOICE,), checks=(ArtifactCheck(model="m", variant="all-fixed", checks=(GOOD,)),),
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def texts(given: CampaignReport) -> dict[str, str]:
    out = io.StringIO()
    formats.show_report(given, Console(file=out, width=200))
    return {"terminal": out.getvalue(), "markdown": formats.markdown_page(given), "html": html.render(given)}


def test_what_was_checked_and_measured_is_ready() -> None:
    assert banner(report()) == (BannerState.READY, "Ready to ship: 1 artifact", ())


@pytest.mark.parametrize("style", ["terminal", "markdown", "html"])
def test_a_choice_that_is_slower_on_a_phone_is_a_reservation_with_its_figure(style: str) -> None:
    slower = {"adb:fast": Comparison(
        baseline="basic-fixed/cpu", ratio=1.09, low=1.08, high=1.1, rounds=5, margin=0.05, verdict=Verdict.SLOWER
    )}  # fmt: skip
    given = report(choices=(msgspec.structs.replace(CHOICE, device="adb:fast", slower=slower),))
    assert present(banner(given))[0] is BannerState.CAUTION
    assert "slower than another on adb:fast 1.09 times basic-fixed/cpu (1.08 to 1.10)" in texts(given)[style]


@pytest.mark.parametrize("style", ["terminal", "markdown", "html"])
def test_what_a_guess_froze_and_random_inputs_are_reservations(style: str) -> None:
    model = ModelFacts(
        name="m", file="m.onnx", inputs=("x: float32[1, 1, 64, 224]",), dimensions={"batch": 1, "image_width": 224},
        guessed=("image_width",),
    )  # fmt: skip
    checks = (
        ArtifactCheck(model="m", variant="all-fixed", checks=(msgspec.structs.replace(GOOD, random_inputs=True),)),
    )
    text = texts(report(models=(model,), checks=checks))[style]
    assert "Ready to ship with reservations: 1 artifact" in text
    assert "image_width was fixed to 224 by a guess: the files take no other size" in text
    assert "outputs of m were compared on random inputs only: give test data" in text
    if style != "terminal":
        assert "batch → 1, image_width → 224 (guessed)" in text


def test_braces_in_names_of_guessed_dimensions_are_text() -> None:
    sizes = {"{b}": 1, "a{": 2, "{0.shape}": 3, "{}": 4, "{0:2000000000}": 5, "%s": 6}
    model = ModelFacts(name="m", file="m.onnx", inputs=(), dimensions=sizes, guessed=tuple(sizes))
    text = texts(report(models=(model,)))["terminal"]
    assert "{b} was fixed to 1, a{ to 2, {0.shape} to 3, {} to 4, {0:2000000000} to 5, %s to 6 by a guess" in text


def test_a_gain_that_is_shown_is_said_although_others_may_be_as_good() -> None:
    """Which of several is the fastest is one question, whether the chosen gains over the baseline another."""
    sample = make_report()
    undecided = msgspec.structs.replace(sample.choices[0], undecided=("all-fixed/cpu",))
    (answer,) = decisions(msgspec.structs.replace(sample, choices=(undecided,)))
    assert answer.sureness is Sureness.UNDECIDED
    assert answer.gain == "38 % less time than none-fixed/cpu"
    assert "1 other may be as fast or faster: measure again" in answer.how_sure
    (unmeasured,) = decisions(msgspec.structs.replace(sample, rows=()))
    assert unmeasured.sureness is Sureness.UNMEASURED
    assert unmeasured.gain == ""


@pytest.mark.parametrize(
    ("needed", "said"),
    [(40, "measure again with 40 rounds"), (7709, "on a steadier device: on this one it takes about 7,709 rounds")],
)
def test_nobody_is_asked_for_thousands_of_rounds(needed: int, said: str) -> None:
    sample = make_report()
    rows = tuple(
        msgspec.structs.replace(row, comparison=msgspec.structs.replace(row.comparison, rounds_needed=needed))
        if row.comparison else row
        for row in sample.rows
    )  # fmt: skip
    undecided = msgspec.structs.replace(sample.choices[0], undecided=("all-fixed/cpu",))
    (answer,) = decisions(msgspec.structs.replace(sample, rows=rows, choices=(undecided,)))
    assert answer.how_sure.endswith(said)


def test_an_interval_beyond_the_axis_ends_in_an_arrow() -> None:
    sample = make_report()
    assert '<path class="end"' not in html.render(sample)
    fresh = next(row.comparison for row in sample.rows if row.comparison and row.comparison.low)
    wide = msgspec.structs.replace(fresh, high=6.93)
    choice = msgspec.structs.replace(sample.choices[0], fresh=wide)
    assert html.render(msgspec.structs.replace(sample, choices=(choice,))).count('<path class="end"') == 1


def test_a_failed_proof_stops_before_anything_else_is_said() -> None:
    given = report(proofs=(PROOF,))
    state, headline, _ = present(banner(given))
    assert state is BannerState.STOP
    assert headline.startswith("Do not ship: the proof in app.aar failed: m basic-fixed (xnnpack): ")
    for text in (texts(given)["markdown"], texts(given)["html"]):
        assert text.index("Do not ship") < text.rindex("What ships")
    assert 'class="banner stop"' in texts(given)["html"]


@pytest.mark.parametrize("style", ["terminal", "markdown", "html"])
def test_sections_of_a_proof_have_titles_of_their_own(style: str) -> None:
    text = texts(report(proofs=(PROOF,)))[style]
    assert text.count("Proof in the library that ships") == text.count("Findings of the proof") == 1


@pytest.mark.parametrize("style", ["terminal", "markdown", "html"])
def test_a_failed_check_is_shown_with_its_figure_though_nothing_was_measured(style: str) -> None:
    failing = ArtifactCheck(model="m", variant="basic-fixed", checks=(WRONG,))
    text = texts(report(checks=(*report().checks, failing)))[style]
    assert "1 variant failed the numeric check and is left out" in text
    assert "Outputs that differ" in text
    assert "m / basic-fixed: max abs 3.8e-02 (limit 2.5e-04), max rel 1.5e-01" in text
    assert text.index("give test data") < text.index("max_relative_error")


@pytest.mark.parametrize("style", ["terminal", "markdown", "html"])
def test_what_may_not_ship_says_why(style: str) -> None:
    why = "none-fixed, all-fixed failed the numeric check (largest relative error 1)"
    withheld = tuple(Withheld(target=name, model="m", what=why) for name in ("phone", "tablet"))
    text = texts(report(choices=(), withheld=withheld))[style]
    assert f"Do not ship: nothing of m may ship to phone, tablet: {why}" in " ".join(text.split())


@pytest.mark.parametrize("style", ["terminal", "markdown", "html"])
def test_what_could_not_be_judged_is_a_reservation_and_no_failure(style: str) -> None:
    given = report(checks=(ArtifactCheck(model="m", variant="all-fixed", checks=(UNKNOWN,)),))
    assert present(banner(given))[0] is BannerState.CAUTION
    text = texts(given)[style]
    assert "outputs of 1 variant that ships cannot be judged on random inputs: give test data" in text
    assert "Outputs that could not be judged" in text
    assert "Outputs that differ" not in text


def test_other_reservations() -> None:
    unmeasured = msgspec.structs.replace(CHOICE, device="", reason="not measured on a phone; level all is a default")
    not_run = LibraryProof(bundle="", library=ProvenLibrary(file="a.aar"), not_run="no C compiler")
    state, _, reasons = present(banner(report(choices=(unmeasured,), proofs=(not_run,))))
    assert state is BannerState.CAUTION
    assert reasons == (
        "not proven in a.aar: no C compiler",
        "nothing was measured on devices like 1 of 1 targets",
    )


def test_a_refused_bundle_stops() -> None:
    _, headline, reasons = present(banner(report(refusals=("target phone: over budget", "target tablet: no Gelu"))))
    assert headline == "Do not ship: no bundle was made: target phone: over budget"
    assert reasons == ("no bundle was made: target tablet: no Gelu",)


@pytest.mark.parametrize("style", ["terminal", "markdown", "html"])
@pytest.mark.parametrize("of", ["refusal", "proof"])
def test_what_may_not_ship_is_said_first_and_nothing_is_called_shipping(style: str, of: str) -> None:
    given = report(refusals=("target phone: no Gelu",)) if of == "refusal" else report(proofs=(PROOF,))
    text = texts(given)[style]
    if style == "terminal":
        assert text.startswith("Do not ship: ")
    assert "Ships:" not in text
    assert "Accuracy:" not in text
    assert text.count("Do not ship: ") == 1
    if of == "refusal":
        assert "What ships" not in text
        assert "What was chosen" in text
        assert text.index("Do not ship: ") < text.rindex("What was chosen")
    assert ("Ships:" in texts(report())[style]) is (style != "html")


def test_instants_have_no_fractions_of_a_second() -> None:
    assert "2026-01-31 08:15:30 UTC" in texts(report())["html"]
    assert ".123" not in texts(report())["html"]


def test_a_library_that_was_not_proven_speaks_against_its_own_targets_alone() -> None:
    """A proof that does not say whose library it was may be anybody's."""
    choices = tuple(msgspec.structs.replace(CHOICE, target=name) for name in ("phones", "ios"))
    library = ProvenLibrary(file="a.aar")
    for targets, expected in ((("phones",), [True, False]), ((), [True, True])):
        not_run = LibraryProof(bundle="", library=library, not_run="no C compiler", targets=targets)
        answers = decisions(report(choices=choices, proofs=(not_run,)))
        assert ["not proven in a.aar" in one.against for one in answers] == expected


@pytest.mark.parametrize(("provider", "expected"), [("nnapi", "NNAPI"), ("cpu", "")])
def test_a_provider_that_nobody_judged_speaks_against_a_choice(provider: str, expected: str) -> None:
    (answer,) = decisions(report(choices=(msgspec.structs.replace(CHOICE, provider=provider, device=""),)))
    told = [text for text in answer.against if "judged" in text]
    assert told == ([f"its outputs were judged on this computer's CPU, and not by {expected}"] if expected else [])


def test_an_accuracy_that_could_not_be_computed_is_no_missing_budget() -> None:
    result = AccuracyResult(model="m", metric="cosine", labelled=False, samples=12, data="d", value=None)
    own = ArtifactAccuracy(model="m", variant="all-fixed", result=result)
    (answer,) = decisions(report(accuracy=(own,)))
    assert "its accuracy could not be computed" in answer.against
    given = msgspec.structs.replace(own, result=msgspec.structs.replace(result, max_drop=0.01))
    _, _, reasons = present(banner(report(accuracy=(given,))))
    assert "the accuracy of 1 variant that ships could not be computed" in reasons
    assert not any("budget" in reason for reason in reasons)
