"""Artifacts of small real models give the original's outputs, and labelled samples its answers, within tolerances."""

import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pipeline.check import many
from pipeline.check.compare import OutputCheck, read_tensor
from pipeline.check.many import check_artifact, tolerance_for
from pipeline.check.reference import make_reference, saturates_here
from pipeline.check.result import Reference
from pipeline.config import CheckConfig, ModelConfig
from pipeline.convert import ConvertRequest, convert_model
from pipeline.core.progress import NoProgress
from pipeline.core.variant import Artifact, Level, Variant
from pipeline.core.workers import run_tasks
from pipeline.dataset import Dataset, labelled_data
from pipeline.model.sources import SourceModel
from tests.onnx_samples import quiet_map, save
from tests.ort_models import ORT_STYLES
from tests.passes.quantized_models import EXAMPLE, write_arrays
from tests.values import present

VARIANTS = tuple(Variant(level=level, style=style) for level in (Level.BASIC, Level.ALL) for style in ORT_STYLES)
MODELS = (
    "mnist.base", "mnist.fp16", "mnist.qdq_u8u8", "mnist.qdq_s8s8", "mnist.op7", "lstm_classifier.base",
    "mlp_tabular.base", "mlp_tabular.fp16", "fsrcnn.base", "fsrcnn.qdq_s8s8",
)  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_every_artifact_computes_the_same(oracle: Path, tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(oracle / "real.zip") as packed:
        source = SourceModel(path=packed.extract(f"{name}.onnx", tmp_path))
    for variant, checks in checked(source, source, tmp_path).items():
        assert checks
        excused = saturates_here(tmp_path / f"m.{variant}.ort")  # this computer's sums are no phone's
        assert [check for check in checks if check.failed or not (check.passed or excused)] == [], variant


def compared(model: SourceModel, original: SourceModel, folder: Path) -> list[tuple[Artifact, Reference]]:
    """A model's variants, each with the reference by `original`."""
    made = convert_model(
        ConvertRequest(
            source=model, variants=VARIANTS, stem="m", output_folder=str(folder), work_folder=str(folder / "w")
        )
    )
    (folder / "r").mkdir()
    reference = make_reference(original, {}, Dataset(), str(folder / "t"), str(folder / "r"))
    assert len(made.artifacts) == len(VARIANTS)
    return [(artifact, reference) for artifact in made.artifacts]


def checked(model: SourceModel, original: SourceModel, folder: Path) -> dict[str, tuple[OutputCheck, ...]]:
    """The checks of a model's variants against a reference by `original`, by variant name."""
    return {
        artifact.variant.name: check_artifact(
            str(folder / artifact.file), artifact.session_options, reference, tolerance_for(reference, CheckConfig())
        )
        for artifact, reference in compared(model, original, folder)
    }


def test_checks_come_in_the_order_of_the_artifacts_whichever_ends_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SourceModel(path=str(save(quiet_map(), tmp_path / "quiet.onnx")))
    monkeypatch.setattr(
        "pipeline.core.workers.run_tasks", lambda tasks, **limits: reversed(list(run_tasks(tasks, **limits)))
    )
    checks = many.check_all(compared(source, source, tmp_path), tmp_path, CheckConfig(), NoProgress())
    assert [variant for _, variant in checks] == [variant.name for variant in VARIANTS]


def test_small_probabilities_on_noise_pass_by_the_floor(tmp_path: Path) -> None:
    """A detector sees nothing in noise: what it rounds there is far over a share of its largest output."""
    source = SourceModel(path=str(save(quiet_map(), tmp_path / "quiet.onnx")))
    checks = [check for (check,) in checked(source, source, tmp_path).values()]
    assert all(check.passed for check in checks)
    assert max(check.max_rel_error or 0 for check in checks) > 1e-3
    assert all(check.limit == pytest.approx(1e-6) for check in checks)


def test_a_wrong_model_of_small_probabilities_fails(tmp_path: Path) -> None:
    right = SourceModel(path=str(save(quiet_map(), tmp_path / "right.onnx")))
    wrong = SourceModel(path=str(save(quiet_map(-13.0), tmp_path / "wrong.onnx")))
    assert all(check.failed for (check,) in checked(wrong, right, tmp_path).values())


def test_a_model_that_does_not_repeat_itself_is_not_judged(tmp_path: Path) -> None:
    """Rounding decides on the last digits of what it amplifies: no file could give the same."""
    source = SourceModel(path=str(save(quiet_map(0.0, gain=1e7), tmp_path / "chaotic.onnx")))
    checks = [check for (check,) in checked(source, source, tmp_path).values()]
    assert not any(check.failed for check in checks)
    assert any("own output changes as much" in check.reason for check in checks)


MODEL, DIGITS = EXAMPLE / "mnist.onnx", EXAMPLE / "evaluation.npz"


def reference(folder: Path, table: ModelConfig) -> Reference:
    for name in ("work", "out"):
        (folder / name).mkdir(exist_ok=True)
    return make_reference(
        SourceModel(path=str(MODEL)), {}, Dataset(test_data=str(EXAMPLE)), str(folder / "out"), str(folder / "work"),
        labelled=labelled_data(table),
    )  # fmt: skip


def test_a_stacked_set_as_before(tmp_path: Path) -> None:
    found = present(reference(tmp_path, ModelConfig(path=str(MODEL), labels=str(DIGITS))).labelled)
    assert (found.samples, found.accuracy) == (360, 355 / 360)
    with np.load(DIGITS) as data:
        assert np.array_equal(read_tensor(found.inputs).reshape(360, 1, 28, 28), data["inputs"])
        assert list(found.labels) == data["labels"].tolist()
    assert read_tensor(found.outputs).shape == (360, 1, 10)


def test_labels_of_a_csv_file_become_a_set_of_their_own(tmp_path: Path) -> None:
    folder = write_arrays(tmp_path / "d", 40)
    table = ModelConfig(path=str(MODEL), test_data=str(folder), labels=str(tmp_path / "labels.csv"))
    found = present(reference(tmp_path, table).labelled)
    assert 20 <= found.samples < 40  # the evaluation part
    assert found.accuracy is not None
    assert found.accuracy > 0.9


def test_without_labels_there_is_no_set_and_no_note(tmp_path: Path) -> None:
    made = reference(tmp_path, ModelConfig(path=str(MODEL), test_data=str(EXAMPLE)))
    assert (made.labelled, made.notes) == (None, ())


def test_a_set_ends_where_it_would_fill_a_phone_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.check.reference.LABELLED_BYTES", 10 * 28 * 28 * 4)
    made = reference(tmp_path, ModelConfig(path=str(MODEL), labels=str(DIGITS)))
    assert made.labelled is not None
    assert made.labelled.samples == 10
    assert read_tensor(made.labelled.inputs).shape == (10, 1, 1, 28, 28)
    assert "first 10 labelled samples" in made.notes[0]


def test_labels_that_are_texts_are_kept_and_arrays_are_not(tmp_path: Path) -> None:
    folder = write_arrays(tmp_path / "d", 5)
    (tmp_path / "labels.csv").write_text("0,seven\n1,007\n2,7\n3,x\n4,y\n")
    answered = partial(
        make_reference, SourceModel(path=str(MODEL)), {}, Dataset(test_data=str(EXAMPLE)), str(tmp_path / "out"),
        str(tmp_path / "work"),
    )  # fmt: skip
    for name in ("work", "out"):
        (tmp_path / name).mkdir()
    found = present(answered(labelled=Dataset(test_data=str(folder), labels=str(tmp_path / "labels.csv"))).labelled)
    assert found.labels == ("seven", "007", 7, "x", "y")
    assert found.accuracy is None
    with np.load(DIGITS) as arrays:
        np.savez(tmp_path / "map.npz", image=arrays["inputs"][0][None].astype(np.float32), label=np.zeros((2, 2)))
    made = answered(labelled=Dataset(test_data=str(tmp_path / "map.npz")))
    assert made.labelled is None
    assert "no label that is a number or a text" in made.notes[0]
