"""What a diagnosis says: as fast only where that was shown, and lines that can be copied."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from device_runner.device import DeviceFacts
from device_runner.spec import RunOptions
from pipeline.campaign.statistics.compare import Comparison, Verdict
from pipeline.convert.request import OptimizerPlatform
from pipeline.features.doctor.diagnose import ModelOnDevice
from pipeline.features.doctor.diagnosis import Diagnosis, RemediesTogether, Start, sections
from pipeline.features.doctor.finding import DoctorFinding, MeasuredRemedy, Outcome, Remedy
from pipeline.report.wording import markdown


def comparison(ratio: float, low: float, high: float, verdict: Verdict) -> Comparison:
    return Comparison(baseline="start", ratio=ratio, low=low, high=high, rounds=8, margin=0.02, verdict=verdict)


FASTER_LOAD = comparison(0.5, 0.4, 0.6, Verdict.FASTER)


def diagnosis(remedy: MeasuredRemedy, *, best: str = "") -> Diagnosis:
    finding = DoctorFinding(
        code="level", title="Optimization level", how="", source="x", best=best,
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


def test_the_best_alone_is_set_where_all_together_gain_no_more() -> None:
    remedies = [
        MeasuredRemedy(
            remedy=Remedy(name=name), run="r", set=(f"# {name}",), latency=comparison(ratio, 0.6, 0.8, Verdict.FASTER)
        )
        for name, ratio in (("both", 0.71), ("arena", 0.67))
    ]
    trial = RemediesTogether(together=remedies[0], alone=remedies[1])
    whole = Diagnosis(model="m", device="local", start=Start(run="cpu"), together=trial)
    ((note,),) = [section.notes for section in sections(whole) if section.title == "What to set for all together"]
    assert note.text.endswith("which is no less: set that one")
    assert note.code == {"toml": ("# arena",)}


def test_a_command_takes_the_file_that_the_one_before_it_made() -> None:
    remedy = Remedy(name="both", steps=("fold-shapes",), ort_format=True)
    subject = SimpleNamespace(
        model=Path("m.onnx"), start=RunOptions(), facts=DeviceFacts(name="d", platform="linux"),
        platform=OptimizerPlatform.AMD64,
    )  # fmt: skip
    transform, convert = ModelOnDevice.setting(subject, remedy).commands  # type: ignore[arg-type]
    assert transform == "ort-mobile transform m.onnx m.changed.onnx --do 'fold-shapes'"
    assert convert.startswith("ort-mobile convert m.changed.onnx ")
