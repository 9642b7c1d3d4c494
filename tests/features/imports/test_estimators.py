"""`ort-mobile import` of estimators: what they take, in what form they answer, and which differences are none."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.check.compare import OutputCheck
from pipeline.core.errors import ConfigError, MissingError
from pipeline.features.imports import estimators, frameworks
from pipeline.features.imports.trained import Trained, check_arguments
from tests.command import Done, ort_mobile

TABULAR = Path(__file__).with_name("tabular.py").with_suffix("")
CLASSES = np.array([0, 1])


def imported(name: str, folder: Path, *options: str, code: int = 0) -> Done:
    return ort_mobile("import", f"{TABULAR}:{name}", folder / "m.onnx", *options, code=code)


@pytest.mark.example
@pytest.mark.parametrize(
    ("name", "takes"),
    [
        ("regressor", "X float32 [?, 4]"), ("doubles", "X float32 [?, 4]"), ("outliers", "X float32 [?, 4]"),
        ("histograms", "X float32 [?, 4]"), ("zipmap", "X float32 [?, 4]"), ("votes", "X float32 [?, 30]"),
        ("texts", "X string [?]"), ("column_of_texts", "X string [?, 1]"), ("categories", "X string [?, 2]"),
        ("frame", "age float32 [?, 1], city string [?, 1]"), ("lightgbm_classifier", "X float32 [?, 4]"),
        ("xgboost_in_a_pipeline", "X float32 [?, 4]"),
    ],
)  # fmt: skip
def test_an_estimator_gives_its_frameworks_outputs(name: str, takes: str, tmp_path: Path) -> None:
    document = imported(name, tmp_path, "--json", "-").document()
    assert ", ".join(document["inputs"]) == takes
    judged = [row["checks"] for row in document["compared"] if not row["refused"]]
    assert len(judged) >= 3
    assert all(check["passed"] for checks in judged for check in checks), document["compared"]


@pytest.mark.example
def test_what_was_changed_and_what_is_a_tie_is_said(tmp_path: Path) -> None:
    assert "X: the example has 64-bit floats, the model takes 32-bit ones" in imported("doubles", tmp_path).err
    assert "samples are ties: both classes have one probability" in imported("votes", tmp_path).out


@pytest.mark.example
def test_arguments_that_the_exporter_does_not_get_are_errors(tmp_path: Path) -> None:
    done = imported("unknown_argument", tmp_path, code=2)
    assert "gets no argument 'dynamic_axes'" in done.err
    assert "options, initial_types, target_opset" in done.err
    assert "leave initial_types out" in imported("doubles_of_trees", tmp_path, code=1).err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "known", "remedy"),
    [
        ({"dynamic_axes": {}}, ("dynamic_shapes", "input_names"), "give dynamic_shapes, as in"),
        ({"opset_version": 17}, ("dynamic_shapes",), "give --opset"),
        ({"verbose": True}, ("options",), "skl2onnx takes options"),
        ({"signatures": 1}, (), "leave it out"),
        (["options"], ("options",), "{argument: value}"),
    ],
)
def test_an_unknown_argument_is_named_with_what_to_do(options: Any, known: tuple[str, ...], remedy: str) -> None:
    check_arguments(dict.fromkeys(known, 1), known, "skl2onnx")
    with pytest.raises(ConfigError) as caught:
        check_arguments(options, known, "skl2onnx")
    assert remedy in caught.value.remedy


def judged(expected: Sequence[Any], given: Sequence[Any], run: Any = None) -> list[OutputCheck]:
    """The checks of outputs that failed, after those were excused that may be."""
    sample = np.array([[1.0], [2.0]], np.float32)
    trained = Trained(
        title="votes", example=(sample,), run=run or (lambda _: list(expected)), export=lambda _path, _opset: None,
        classes=CLASSES, rows=True,
    )  # fmt: skip
    checks = [OutputCheck(output=f"y{n}", passed=False, limit=0.001) for n in range(len(given))]
    return list(estimators.excused(checks, list(expected), list(given), trained, [sample]))


def test_only_labels_of_one_probability_are_ties() -> None:
    labels, other = np.array([0, 1]), np.array([1, 1])
    (tie,) = judged([labels, np.array([[0.5, 0.5], [0.2, 0.8]])], [other])
    assert tie.passed
    assert tie.reason == "1 of 2 samples are ties: both classes have one probability"
    assert judged([labels, np.array([[0.501, 0.499], [0.2, 0.8]])], [other])[0].failed
    assert judged([labels, np.array([[0.5, 0.5], [0.2, 0.8]])], [np.array([1, 0])])[0].failed, "the second is no tie"


def test_a_sample_on_a_threshold_may_fall_on_either_side() -> None:
    """One of two; where most do, nothing was judged."""

    def steps(inputs: Sequence[Any]) -> list[Any]:
        return [(inputs[0][:, 0] > 1.0).astype(np.float32)]

    expected = steps([np.array([[1.0], [2.0]], np.float32)])
    assert judged(expected, [np.array([1.0, 1.0], np.float32)], steps)[0].passed
    assert judged(expected, [np.array([0.0, 0.0], np.float32)], steps)[0].failed, "2 is far from the threshold"

    def steep(inputs: Sequence[Any]) -> list[Any]:
        return [1e7 * (inputs[0][:, 0] - np.float32(1.0))]

    (check,) = judged(steep([np.array([[1.0], [2.0]], np.float32)]), [np.array([0.5, 1e7 + 1], np.float32)], steep)
    assert check.unknown


def test_answers_of_another_form_are_the_same() -> None:
    vector, table = np.array([1.0, 2.0]), np.array([[0.1, 0.9]])
    assert estimators.in_form_of(np.array([[1.0], [2.0]]), vector, None).shape == (2,)
    assert estimators.in_form_of(np.ones((2, 2)), vector, None).shape == (2, 2), "this is another answer"
    assert estimators.in_form_of([{1: 0.9, 0: 0.1}], table, CLASSES).tolist() == table.tolist()
    assert len(estimators.by_class([vector, np.ones((2, 2))], 3, CLASSES)) == 3


def test_a_converter_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    class LGBMClassifier:
        """Stands for LightGBM's."""

    monkeypatch.setitem(__import__("sys").modules, "lightgbm", SimpleNamespace(LGBMClassifier=LGBMClassifier))
    row = estimators.BOOSTED[0]
    monkeypatch.setattr(estimators, "BOOSTED", (row,))
    monkeypatch.setitem(__import__("sys").modules, row.converter.partition(":")[0], None)
    with pytest.raises(MissingError) as caught:
        estimators.register_boosted(LGBMClassifier())
    assert " 'onnxmltools>=" in caught.value.remedy or "[boosting]" in caught.value.remedy


@pytest.mark.parametrize(
    ("names", "asked", "chosen"),
    [(["embed"], "", "embed"), (["embed", "serving_default"], "", "serving_default"), (["a", "b"], "b", "b")],
)
def test_a_signature_is_chosen_where_it_is_clear(names: list[str], asked: str, chosen: str) -> None:
    assert frameworks.chosen_signature(names, asked, "saved") == chosen


def test_a_signature_is_asked_for() -> None:
    with pytest.raises(ConfigError) as caught:
        frameworks.chosen_signature(["score", "embed"], "", "saved")
    assert caught.value.remedy == "name one, as in saved:embed"
    with pytest.raises(ConfigError, match="no signature 'x'"):
        frameworks.chosen_signature(["score", "embed"], "x", "saved")


def test_a_lambda_layer_in_a_file_is_known(tmp_path: Path) -> None:
    import json
    import zipfile

    for name, has in (("Lambda", True), ("Dense", False)):
        with zipfile.ZipFile(tmp_path / "m.keras", "w") as packed:
            packed.writestr("config.json", json.dumps({"config": {"layers": [{"class_name": name}]}}))
        assert frameworks.has_code(tmp_path / "m.keras") is has
    (tmp_path / "m.h5").write_bytes(b"\x89HDF")
    assert not frameworks.has_code(tmp_path / "m.h5")
