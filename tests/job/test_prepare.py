"""Before anything is measured: the quick job, less of the same config, which says what it left out; and predictions
beside measurements, with the findings where they differ.
"""

from pathlib import Path

import onnx
import pytest

from device_runner.device import DeviceFacts
from device_runner.result import Failure, FailureKind, RunResult, Status
from device_runner.spec import NnapiFlag, RunOptions
from pipeline.campaign.record import Prediction
from pipeline.config import Config, MeasureConfig, MeasureMode, ModelConfig, VariantsConfig
from pipeline.core.errors import ExitCode
from pipeline.core.variant import Level, Style
from pipeline.job.predicted import finding, measured_partitions, settings_of
from pipeline.job.quick import left_out, quick
from tests.command import ort_mobile
from tests.onnx_samples import linear, save
from tests.values import present


def config(**more: object) -> Config:
    return Config(name="a", models=(ModelConfig(path="m.onnx"),), **more)  # type: ignore[arg-type] # real fields


def test_it_converts_and_measures_less() -> None:
    less = quick(config())
    assert (less.variants.levels, less.variants.styles) == ((Level.BASIC, Level.ALL), (Style.FIXED,))
    assert (less.measure.rounds, less.measure.min_seconds, less.measure.min_runs) == (3, 0.05, 5)
    assert left_out(config(), quick(config())) == (
        "quick: 3 of 5 rounds, 0.05 s instead of 0.2 s each; not converted or measured: none, extended, runtime. "
        "Run it without --quick before a release."
    )


def test_what_a_config_names_alone_stays_and_nothing_becomes_longer() -> None:
    own = config(
        variants=VariantsConfig(levels=(Level.EXTENDED,), styles=(Style.RUNTIME,)),
        measure=MeasureConfig(rounds=1, min_seconds=0.001, min_runs=1, warmup=0),
    )
    assert quick(own) == own
    assert "not converted" not in left_out(own, quick(own))


@pytest.mark.parametrize(
    ("mode", "inference", "seconds"),
    [
        (MeasureMode.STEADY, 0.001, 2.002),
        (MeasureMode.STEADY, 1.5, 33.0),
        (MeasureMode.STEADY, 30.0, 120.0),
        (MeasureMode.COLD, 1.5, 1.5),
        (MeasureMode.SUSTAINED, 1.5, 300.0),
    ],
)
def test_how_long_a_process_takes_is_foreseen(mode: MeasureMode, inference: float, seconds: float) -> None:
    measure = MeasureConfig(warmup=2, min_runs=20, min_seconds=2.0)
    assert measure.seconds_of(mode, inference) == pytest.approx(seconds)


PHONE = DeviceFacts(name="adb:1", platform="android", api_level=29)
LINE = (
    "W onnxruntime: NnapiExecutionProvider::GetCapability, number of partitions supported by NNAPI: {} "
    "number of nodes in the graph: 9 number of nodes supported by NNAPI: 4"
)


def result(*log: str, load_ns: int = 5) -> RunResult:
    return RunResult(spec_id="s", device="d", status=Status.OK, log=log, load_ns=load_ns)


def failed(stage: str) -> RunResult:
    """A failure at a stage of the probe; what fails while it loads has the time until then as its load time."""
    failure = Failure(code=FailureKind.PROVIDER_REFUSED, what="no", stage=stage)
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


BROAD_SCALE = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,5,1] x) => (float[2,5,4] y)
<float[4] scale = {1,2,3,4}, float[4] bias = {1,1,1,1}, float two = {2}, float e = {0.1}> {
    m = ReduceMean <axes = [-1]> (x) d = Sub (x, m) p = Pow (d, two) v = ReduceMean <axes = [-1]> (p)
    a = Add (v, e) s = Sqrt (a) q = Div (d, s) t = Mul (q, scale) y = Add (t, bias)
}"""


@pytest.mark.long
def test_a_quick_job_tries_level_none_where_optimizers_break_the_model(tmp_path: Path) -> None:
    """LayerNormFusion takes a scale for one that it is not: no file of a level fails to load, and none runs."""
    config, out = tmp_path / "two.toml", tmp_path / "out"
    (tmp_path / "m.onnx").write_bytes(onnx.parser.parse_model(BROAD_SCALE).SerializeToString())
    save(linear(4), tmp_path / "sound.onnx")
    config.write_text('name = "two"\n[[models]]\npath = "m.onnx"\n[[models]]\npath = "sound.onnx"\n')
    ended = ort_mobile("run", config, "--quick", "--convert-only", "--output", out, code=None)
    words = " ".join(ended.out.split())
    assert ended.code == ExitCode.SOME_FAILED  # files of two levels do not run
    assert "Ships: m: none-fixed" in words
    assert "level none was converted after all, since nothing of m works at basic, all" in words
    assert "ONNX Runtime's LayerNormFusion breaks the model" in words
    assert sorted(file.name for file in (out / "artifacts").glob("*none-fixed*.ort")) == ["m.none-fixed.ort"]
