"""What a diagnosis says: as fast only where that was shown, and lines that can be copied."""

import pytest

from pipeline.campaign.statistics.compare import Comparison, Verdict
from pipeline.features.doctor.checks import DoctorFinding, MeasuredRemedy, Outcome, Remedy
from pipeline.features.doctor.diagnosis import Diagnosis, Start, sections
from pipeline.report.wording import markdown


def comparison(ratio: float, low: float, high: float, verdict: Verdict) -> Comparison:
    return Comparison(baseline="start", ratio=ratio, low=low, high=high, rounds=8, margin=0.02, verdict=verdict)


FASTER_LOAD = comparison(0.5, 0.4, 0.6, Verdict.FASTER)


def diagnosis(remedy: MeasuredRemedy, *, best: str = "") -> Diagnosis:
    finding = DoctorFinding(
        check="level", title="Optimization level", how="", source="x", best=best,
        outcome=Outcome.GAIN if best else Outcome.NO_GAIN, measured=(remedy,),
    )  # fmt: skip
    return Diagnosis(model="m", device="local", start=Start(run="cpu"), findings=(finding,))


@pytest.mark.parametrize(
    ("latency", "said"),
    [
        (comparison(1.0, 0.99, 1.01, Verdict.SAME), "runs as fast, within 2%"),
        (
            comparison(1.35, 1.23, 4.1, Verdict.NOT_SHOWN),
            "latency between 1.23 and 4.10 times that of the model as it is",
        ),
    ],
)
def test_only_what_is_shown_to_be_the_same_runs_as_fast(latency: Comparison, said: str) -> None:
    remedy = MeasuredRemedy(remedy=Remedy(name="level=extended"), run="r", latency=latency, load=FASTER_LOAD)
    (notes,) = [section.notes for section in sections(diagnosis(remedy)) if section.title == "Loads faster"]
    assert notes[0].text == f"level=extended: 50.0 % less time (40.0 to 60.0) to load; {said}"


def test_lines_to_set_can_be_copied_from_markdown() -> None:
    remedy = MeasuredRemedy(
        remedy=Remedy(name="threads=1"), run="r", set=("[[runs]]", "threads = 1"),
        calls=("options.SetThreads(1); // `",), commands=("ort-mobile convert my.onnx",), language="C++",
        latency=comparison(0.5, 0.4, 0.6, Verdict.FASTER),
    )  # fmt: skip
    text = markdown("t", sections(diagnosis(remedy, best="threads=1")))
    assert "\n  ```toml\n  [[runs]]\n  threads = 1\n  ```\n" in text
    assert "\n  ```cpp\n  options.SetThreads(1); // `\n  ```\n" in text
    assert "\n  ```sh\n  ort-mobile convert my.onnx\n  ```\n" in text
