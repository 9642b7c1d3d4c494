"""The labelled samples that devices answer: any kind of labelled data, stacked, with the original's answers."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pipeline.check.compare import read_tensor
from pipeline.check.reference import make_reference
from pipeline.check.result import Reference
from pipeline.config import ModelConfig
from pipeline.dataset import Dataset, labelled_data
from pipeline.model.sources import SourceModel
from tests.passes.quantized_models import EXAMPLE, write_arrays
from tests.values import present

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
