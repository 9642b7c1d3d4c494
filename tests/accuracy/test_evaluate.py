"""Accuracy of real files beside their original: the example's digits, in float, half and 8 bits, and wrong data."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from device_runner.spec import ElementType, TensorFile
from pipeline.accuracy import intervals
from pipeline.accuracy.evaluate import AccuracyRequest, measure_accuracy
from pipeline.accuracy.result import AccuracyResult, ArtifactAccuracy, DropVerdict
from pipeline.accuracy.score import Answer, measure_outputs, score
from pipeline.config import AccuracyConfig
from pipeline.core.errors import ConfigError, ModelError, PipelineError
from pipeline.core.progress import NoProgress
from pipeline.dataset import Dataset, Part, Sample
from pipeline.dataset.files import write_tensor
from pipeline.model.sources import SourceModel
from pipeline.report.accuracies import accuracy_parts, verdict_text
from pipeline.report.show import show
from tests.passes.quantized_models import EXAMPLE, write_arrays

MODEL, DIGITS = EXAMPLE / "mnist.onnx", EXAMPLE / "evaluation.npz"
FLOAT_RIGHT = 355
"""Of 360; the example's README has the share."""


def noisy(path: Path, scale: float) -> Path:
    """The example with noise in its last weights."""
    model = onnx.load(str(MODEL))
    (dense,) = (one for one in model.graph.initializer if one.name == "dense.weight")
    values = numpy_helper.to_array(dense)
    noise = np.random.default_rng(3).normal(0, scale, values.shape).astype(np.float32)
    dense.CopyFrom(numpy_helper.from_array(values + noise, dense.name))
    onnx.save(model, str(path))
    return path


def request(model: Path, **rest: Any) -> AccuracyRequest:
    wanted: dict[str, Any] = {"data": Dataset(test_data=str(DIGITS))} | rest
    return AccuracyRequest(model=str(model), reference=SourceModel(path=str(MODEL)), **wanted)


def result(one: AccuracyRequest) -> AccuracyResult:
    (outcome,) = measure_accuracy([one], NoProgress())
    assert outcome.value is not None, str(outcome.error)
    return outcome.value


def error(one: AccuracyRequest) -> PipelineError:
    (outcome,) = measure_accuracy([one], NoProgress())
    assert outcome.error is not None
    return outcome.error


def test_the_original_beside_itself() -> None:
    found = result(request(MODEL, accuracy=AccuracyConfig(max_drop=0.02)))
    assert (found.metric, found.labelled, found.samples) == ("top-1", True, 360)
    assert found.value == found.reference_value == FLOAT_RIGHT / 360
    assert (found.drop, found.p_value, found.verdict) == (0, 1, DropVerdict.WITHIN)
    (output,) = found.outputs
    assert isinstance(output.sqnr_db, float)  # fusions round otherwise than the original as it is defined
    assert output.sqnr_db > 120
    assert output.agreement == 1
    assert not found.refused


def test_a_worse_file_is_refused_and_a_bad_one_is_over(tmp_path: Path) -> None:
    noise = noisy(tmp_path / "noise.onnx", 0.05)
    doubtful = result(request(noise, accuracy=AccuracyConfig(max_drop=0.02)))
    assert doubtful.drop is not None
    assert doubtful.drop_high is not None
    assert doubtful.verdict is DropVerdict.CANNOT_TELL
    assert doubtful.refused
    assert doubtful.samples_needed is not None
    assert doubtful.samples_needed > 360
    bad = result(request(noisy(tmp_path / "bad.onnx", 2.0), accuracy=AccuracyConfig(max_drop=0.02)))
    assert bad.verdict is DropVerdict.OVER
    assert bad.p_value is not None
    assert bad.p_value < 1e-6


def test_the_evaluation_part_alone_and_several_models_in_order(tmp_path: Path) -> None:
    data = Dataset(test_data=str(DIGITS), part=Part.EVALUATION, limit=200)
    ends = measure_accuracy(
        [request(MODEL, data=data), request(tmp_path / "none.onnx", data=data), request(MODEL, data=data)], NoProgress()
    )
    assert [outcome.value.samples if outcome.value else None for outcome in ends] == [200, None, 200]
    assert ends[1].error is not None
    assert "none.onnx" in ends[1].error.where


def test_without_labels_it_is_agreement_and_never_accuracy(tmp_path: Path) -> None:
    found = result(request(noisy(tmp_path / "n.onnx", 0.3), data=Dataset(test_data=str(EXAMPLE))))
    assert (found.metric, found.labelled, found.samples) == ("agreement", False, 3)
    assert found.reference_value == 1
    assert found.outputs[0].sqnr_db is not None


def test_half_precision_inputs_are_converted(tmp_path: Path) -> None:
    model = onnx.load(str(MODEL))
    cast = helper.make_node("Cast", ["image16"], ["image"], to=TensorProto.FLOAT)
    model.graph.node.insert(0, cast)
    del model.graph.input[:]
    model.graph.input.append(helper.make_tensor_value_info("image16", TensorProto.FLOAT16, [1, 1, 28, 28]))
    onnx.save(model, str(tmp_path / "renamed.onnx"))
    assert "other inputs" in error(request(tmp_path / "renamed.onnx")).what
    model.graph.input[0].name, model.graph.node[0].input[0] = "image", "image"
    model.graph.node[0].output[0] = "wide"
    for node in model.graph.node[1:]:
        node.input[:] = ["wide" if name == "image" else name for name in node.input]
    onnx.save(model, str(tmp_path / "half.onnx"))
    assert result(request(tmp_path / "half.onnx")).value == FLOAT_RIGHT / 360


@pytest.mark.long
def test_samples_that_were_calibrated_on_are_reported() -> None:
    calibration = Dataset(test_data=str(DIGITS), limit=50)
    found = result(request(MODEL, calibration=calibration)).findings
    assert [one.what.split()[0] for one in found] == ["50"]
    apart = Dataset(test_data=str(DIGITS), part=Part.CALIBRATION)
    evaluation = Dataset(test_data=str(DIGITS), part=Part.EVALUATION)
    assert not result(request(MODEL, data=evaluation, calibration=apart)).findings


def test_a_wrong_shape_in_sample_37_is_named(tmp_path: Path) -> None:
    """When its turn comes: what follows it was never read."""
    folder = write_arrays(tmp_path / "d", 40, wrong=37)
    (folder / "38.npy").write_bytes(b"never read")
    found = error(request(MODEL, data=Dataset(test_data=str(folder))))
    assert isinstance(found, ConfigError)
    assert found.where.endswith("37.npy")
    assert "[1, 1, 28, 27]" in found.why


def test_labels_in_a_file_and_those_that_are_no_class(tmp_path: Path) -> None:
    data = Dataset(test_data=str(write_arrays(tmp_path / "d", 40)), labels=str(tmp_path / "labels.csv"))
    found = result(request(MODEL, data=data))
    assert (found.metric, found.samples) == ("top-1", 40)
    text = Path(data.labels).read_text().splitlines()
    Path(data.labels).write_text("\n".join(["3,11" if line.startswith("3,") else line for line in text]))
    wrong = error(request(MODEL, data=data))
    assert "'11'" in wrong.what
    assert "3.npy" in wrong.where


def test_a_metric_without_its_labels_and_an_output_that_is_not_there() -> None:
    data = Dataset(test_data=str(EXAMPLE))
    assert "needs labels" in error(request(MODEL, data=data, accuracy=AccuracyConfig(metric="top-1"))).what
    assert "no output 'x'" in error(request(MODEL, data=data, accuracy=AccuracyConfig(output="x"))).what


def test_a_model_that_does_not_load_is_named(tmp_path: Path) -> None:
    model = onnx.load(str(MODEL))
    model.graph.node[1].op_type = "NoSuchOperator"
    onnx.save(model, str(tmp_path / "broken.onnx"))
    found = error(request(tmp_path / "broken.onnx"))
    assert isinstance(found, ModelError)
    assert "original" not in found.what
    assert "broken.onnx" in found.where


def answer(number: int, given: Any, right: Any, label: Any = None) -> Answer:
    return Sample(name=str(number), inputs={}, expected=[("y", right)], label=label), {"y": given}


def answers(count: int, **wrong: Any) -> list[Answer]:
    """Right answers of two classes; `wrong` has other outputs by number."""
    made = []
    for number in range(count):
        right = np.eye(2, dtype=np.float32)[[number % 2]]
        made.append(answer(number, wrong.get(f"n{number}", right), right, number % 2))
    return made


def test_nan_is_wrong_and_reported() -> None:
    broken = np.array([[np.nan, 1]], np.float32)
    found = score(answers(20, n3=broken, n5=broken), "m", AccuracyConfig(max_drop=0.01), "d")
    assert found.value == 0.9
    (finding,) = found.findings
    assert "NaN" in finding.what
    assert "2 of 20" in finding.what
    assert found.outputs[0].sqnr_db is None
    assert not score(answers(20), "m", AccuracyConfig(), "d").findings


def test_a_model_is_not_as_good_as_an_original_that_gives_nothing() -> None:
    broken = np.full((1, 2), np.nan, np.float32)
    every = [answer(n, broken, broken, n % 2) for n in range(400)]
    found = score(every, "m", AccuracyConfig(max_drop=0.1), "d")
    assert (found.drop, found.drop_high, found.samples_needed) == (0, None, None)
    assert found.verdict is DropVerdict.CANNOT_TELL
    assert "see the warnings" in verdict_text(found)
    one_sound = [answers(1)[0], *every[1:]]
    assert score(one_sound, "m", AccuracyConfig(max_drop=0.1), "d").verdict is DropVerdict.WITHIN


def embeddings(count: int, *broken: int) -> list[Answer]:
    """Answers without labels that agree but for those by number, which are infinite."""
    made = []
    for number in range(count):
        right = np.random.default_rng(number).standard_normal((2, 3)).astype(np.float32)
        given = np.full((2, 3), np.inf, np.float32) if number in broken else right
        made.append(answer(number, given, right))
    return made


def test_a_metric_that_cannot_be_computed_keeps_no_budget() -> None:
    found = score(embeddings(12, *range(12)), "m", AccuracyConfig(max_drop=0.5), "d")
    assert (found.value, found.not_finite, found.verdict) == (None, 12, DropVerdict.CANNOT_TELL)
    assert found.refused
    assert verdict_text(found) == "cannot tell: r2 could not be computed, see the warnings"


def test_numbers_that_are_lost_are_refused_without_a_budget() -> None:
    found = score(embeddings(12, 7), "m", AccuracyConfig(), "d")
    assert (found.not_finite, found.refused) == (1, True)
    assert not score(embeddings(12), "m", AccuracyConfig(), "d").refused
    accuracy = ArtifactAccuracy(model="m", variant="v", result=found)
    assert accuracy.refused(None) == "gives NaN or infinity where the float original gives numbers, on 1 of 12 samples"


def test_what_has_no_measure_is_not_shown_as_equal(capsys: pytest.CaptureFixture[str]) -> None:
    broken = np.array([[np.nan, 1]], np.float32)
    show(accuracy_parts([score(answers(1, n0=broken), "m", AccuracyConfig(), "d")]))
    shown = capsys.readouterr().out
    assert "equal" not in shown
    assert "\nwarning: " in shown
    show(accuracy_parts([score(answers(2), "m", AccuracyConfig(), "d")]))
    assert "equal" in capsys.readouterr().out


def test_a_function_on_another_scale_is_not_sure_too_early(tmp_path: Path) -> None:
    (tmp_path / "percent_metric.py").write_text(
        "def score(outputs, label): return 100.0 * (outputs['y'].argmax() == label)\n"
    )
    config = AccuracyConfig(metric=str(tmp_path / "percent_metric:score"), max_drop=0.5)
    found = score(answers(40), "m", config, "d")
    assert found.value == 100
    assert found.verdict is DropVerdict.CANNOT_TELL
    assert found.drop_high is not None
    assert found.drop_high > 5


def test_detections_are_drawn_again_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting detections again takes milliseconds: thousands of draws would take minutes."""
    drawn: list[int] = []

    whole = intervals.bootstrap_interval

    def counted(weights_to_drop: Any, count: int, span: float, resamples: int) -> intervals.DropInterval | None:
        drawn.append(resamples)
        return whole(weights_to_drop, count, span, 20)

    monkeypatch.setattr("pipeline.accuracy.intervals.bootstrap_interval", counted)
    rows = np.array([[[0, 0, 10, 10, 0.9, 0]]], np.float32)
    label = [[0, 0, 0, 10, 10]]
    made = [answer(n, rows, rows, label) for n in range(12)]
    assert score(made, "m", AccuracyConfig(metric="map"), "d").value == pytest.approx(1)
    score(answers(12), "m", AccuracyConfig(metric="f1"), "d")
    assert drawn == [500, 2000]


def test_too_few_samples_for_a_bootstrap_tell_nothing() -> None:
    found = score(answers(5), "m", AccuracyConfig(metric="f1", max_drop=0.5), "d")
    assert (found.drop, found.drop_low, found.verdict) == (0, None, DropVerdict.CANNOT_TELL)


# --- outputs of a device ----------------------------------------------------------------------------------------------


def tensors(folder: Path, logits: Any) -> tuple[TensorFile, ...]:
    folder.mkdir()
    return (write_tensor(folder / "o.bin", "logits", np.asarray(logits, np.float32)),)


def test_outputs_of_a_device_by_the_same_metric(tmp_path: Path) -> None:
    original = np.eye(10)[np.arange(40) % 10]
    ours = original.copy()
    ours[:2] = np.roll(ours[:2], 1, axis=1)
    labels = tuple(int(n) for n in np.arange(40) % 10)
    computed, expected = tensors(tmp_path / "a", ours), tensors(tmp_path / "b", original)
    found = measure_outputs("m", computed, expected, labels, AccuracyConfig(max_drop=0.01))
    assert (found.metric, found.samples, found.value) == ("top-1", 40, 0.95)
    assert found.drop == pytest.approx(0.05)
    assert found.verdict is DropVerdict.CANNOT_TELL
    assert found.p_value == 0.5


def test_outputs_of_other_samples_are_refused(tmp_path: Path) -> None:
    outputs, expected = tensors(tmp_path / "a", np.zeros((3, 4))), tensors(tmp_path / "b", np.zeros((4, 4)))
    with pytest.raises(ModelError, match=r"\[3, 4\]"):
        measure_outputs("m", outputs, expected)
    empty = TensorFile(name="logits", dtype=ElementType.FLOAT32, shape=(9, 4), file=outputs[0].file)
    with pytest.raises(ModelError, match="bytes"):
        measure_outputs("m", [empty], expected)


@pytest.mark.long
def test_data_are_searched_for_common_samples_once_for_all_models(tmp_path: Path) -> None:
    """Each walk over the calibration data leaves a line in a file."""
    log = tmp_path / "walks"
    (tmp_path / "some.py").write_text(
        f"import numpy\ndef digits():\n    open({str(log)!r}, 'a').write('walk\\n')\n"
        f"    with numpy.load({str(DIGITS)!r}) as data:\n"
        "        yield from ({'image': one.astype('f').reshape(1, 1, 28, 28)} for one in data['inputs'][:5])\n"
    )
    calibration = Dataset(test_data=str(tmp_path / "some:digits"))
    models = [MODEL, noisy(tmp_path / "noisy.onnx", 0.1), noisy(tmp_path / "other.onnx", 0.2)]
    outcomes = measure_accuracy([request(model, calibration=calibration) for model in models], NoProgress())
    assert all(outcome.value and outcome.value.findings for outcome in outcomes)
    assert log.read_text().count("walk") == 1
