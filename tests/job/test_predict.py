"""Predictions beside measurements, and the findings where they differ."""

import pytest

from device_runner.device import DeviceFacts
from device_runner.result import Failure, FailureKind, RunResult, Status
from device_runner.spec import NnapiFlag, RunOptions
from pipeline.campaign.record import Prediction
from pipeline.job.prepare import finding, measured_partitions, settings_of
from tests.values import present

PHONE = DeviceFacts(name="adb:1", platform="android", api_level=29)
LINE = (
    "W onnxruntime: NnapiExecutionProvider::GetCapability, number of partitions supported by NNAPI: {} "
    "number of nodes in the graph: 9 number of nodes supported by NNAPI: 4"
)


def result(*log: str, load_ns: int = 5) -> RunResult:
    return RunResult(spec_id="s", device="d", status=Status.OK, log=log, load_ns=load_ns)


def failed(stage: str) -> RunResult:
    """A failure at a stage of the probe; what fails while it loads has the time until then as its load time."""
    failure = Failure(kind=FailureKind.PROVIDER_REFUSED, message="no", stage=stage)
    return RunResult(spec_id="s", device="d", status=Status.FAILED, failure=failure, load_ns=10_249_127)


def test_the_last_round_that_the_provider_logged_counts() -> None:
    assert measured_partitions(result(LINE.format(3), "something else", LINE.format(2))) == 2
    assert measured_partitions(result("nothing")) is None


def foreseen(partitions: int = 1, *, estimate: bool = False, error: str | None = None) -> Prediction:
    return Prediction(partitions=partitions, estimate=estimate, error=error)


@pytest.mark.parametrize(
    ("prediction", "results", "told"),
    [
        (foreseen(3), [result(LINE.format(3))], ""),
        (foreseen(1), [result(LINE.format(3))], "3 partitions were measured where 1 were predicted"),
        (foreseen(1, estimate=True), [result(LINE.format(3))], "3 partitions were measured where 1 were estimated"),
        (foreseen(error="no"), [result()], "a failure was predicted, but the session was created: no"),
        (foreseen(error="no"), [result(load_ns=0)], ""),
        (foreseen(error="no"), [failed("load"), failed("")], ""),
        (foreseen(error="no"), [failed("run")], "a failure was predicted, but the session was created: no"),
        (foreseen(1), [result()], ""),
        (None, [result(LINE.format(3))], ""),
    ],
)
def test_differences_are_findings(prediction: Prediction | None, results: list[RunResult], told: str) -> None:
    assert finding(prediction, results) == told


def test_run_options_become_the_settings_of_the_rules() -> None:
    nnapi = present(settings_of(RunOptions(provider="nnapi", flags=(NnapiFlag.USE_NCHW,)), PHONE, "1.23.2"))
    assert (nnapi.api_level, nnapi.ort_release, nnapi.nchw) == (29, (1, 23), True)
    program = settings_of(RunOptions(provider="coreml", provider_options={"ModelFormat": "MLProgram"}), PHONE, "1.23")
    assert present(program).provider == "coreml-mlprogram"
    assert settings_of(RunOptions(), PHONE, "1.23") is None
    assert settings_of(RunOptions(provider="nnapi"), PHONE, "1.12") is None
