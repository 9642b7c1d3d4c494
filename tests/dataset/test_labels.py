"""Labels of samples, the parts for calibration and evaluation, and the answer for each that is wrong."""

import contextlib
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from device_runner.spec import ElementType
from pipeline.config import ModelConfig, PartConfig, PreprocessConfig
from pipeline.core.errors import ConfigError
from pipeline.dataset import Dataset, Part, Sample, TensorInfo, check_data, overlap, part_of, preprocess_of, samples
from tests.values import present

X = TensorInfo(name="x", dtype=ElementType.FLOAT32, shape=(1, 3))


def vector(number: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.full((1, 3), number, np.float32)


def folder_of(folder: Path, count: int, start: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(start, start + count):
        np.save(folder / f"s{number}.npy", vector(number))
    return folder


def with_labels(folder: Path, text: str, count: int = 3) -> Dataset:
    (folder / "labels.csv").write_text(text, encoding="utf-8")
    return Dataset(test_data=str(folder_of(folder / "data", count)), labels=str(folder / "labels.csv"))


def labels_of(data: Dataset) -> list[Any]:
    return [sample.label for sample in samples(data, [X])]


@pytest.mark.parametrize(
    "text",
    [
        "s0.npy,7\ns2.npy,9\ns1.npy,8\n",
        "file,label\ns0,7\ns1,8\n\ns2,9\n",
        "\ufeffname,weight,Label\r\ns0.npy,0.5,7\r\ns1.npy,1,8\r\ns2.npy,2,9\r\n",
        '"s0.npy","7"\ns1.npy, 8\n s2.npy ,9',
    ],
)
def test_labels_of_a_csv_file_by_name(tmp_path: Path, text: str) -> None:
    assert labels_of(with_labels(tmp_path, text)) == ["7", "8", "9"]


def test_labels_with_folders_and_of_a_function(tmp_path: Path) -> None:
    for name in ("cats", "dogs"):
        folder_of(tmp_path / "data" / name, 1)
    (tmp_path / "labels.csv").write_text("dogs/s0.npy,5\ncats/s0.npy,4\n")
    data = Dataset(test_data=str(tmp_path / "data"), labels=str(tmp_path / "labels.csv"))
    assert labels_of(data) == ["4", "5"]
    (tmp_path / "labelled_function.py").write_text(
        "import numpy as np\n"
        "def some():\n    for n in range(2): yield {'x': np.full((1, 3), n, 'float32')}\n"
        "def pairs():\n    for sample in some(): yield sample, np.ones((2, 2))\n"
    )
    (tmp_path / "labels.csv").write_text("1,one\n0,zero\n")
    data = Dataset(test_data=str(tmp_path / "labelled_function:some"), labels=str(tmp_path / "labels.csv"))
    assert labels_of(data) == ["zero", "one"]
    found = labels_of(Dataset(test_data=str(tmp_path / "labelled_function:pairs")))
    assert [np.shape(label) for label in found] == [(2, 2), (2, 2)]


def test_folders_by_class(tmp_path: Path) -> None:
    preprocess = PreprocessConfig(resize=(2, 2))
    takes = TensorInfo(name="image", dtype=ElementType.FLOAT32, shape=(1, 3, 2, 2))
    for names, expected in ((("cats", "ants", "dogs"), [0, 1, 2]), (("10", "9", "2"), [2, 9, 10])):
        root = tmp_path / names[0]
        for name in names:
            (root / name).mkdir(parents=True)
            Image.new("RGB", (4, 4), (9, 9, 9)).save(root / name / "a.png")
        found = list(samples(Dataset(test_data=str(root), preprocess=preprocess), [takes]))
        assert [sample.label for sample in found] == expected
        assert min(names, key=lambda n: (len(n), n)) in found[0].name


def test_an_array_label_beside_the_inputs(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=vector(1), label=np.arange(4))
    (sample,) = samples(Dataset(test_data=str(tmp_path / "a.npz")), [X])
    assert sample.label.tolist() == [0, 1, 2, 3]
    assert list(sample.inputs) == ["x"]
    label = TensorInfo(name="label", dtype=ElementType.INT64, shape=(4,))
    (sample,) = samples(Dataset(test_data=str(tmp_path / "a.npz")), [X, label])
    assert sample.label is None


def stacked(path: Path, inputs: object, labels: object) -> Dataset:
    np.savez_compressed(path, inputs=np.asarray(inputs), labels=np.asarray(labels))
    return Dataset(test_data=str(path))


def test_a_stacked_set_gives_samples_of_the_models_shape_and_type(tmp_path: Path) -> None:
    data = stacked(tmp_path / "set.npz", np.arange(12, dtype=np.uint8).reshape(4, 3), [3, 2, 1, 0])
    found = list(samples(data, [X]))
    assert [sample.label for sample in found] == [3, 2, 1, 0]
    assert found[1].inputs["x"].tolist() == [[3, 4, 5]]
    assert found[1].inputs["x"].dtype == np.float32


def test_a_stacked_set_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    takes = TensorInfo(name="x", dtype=ElementType.FLOAT32, shape=(1, 256, 256))
    data = stacked(tmp_path / "set.npz", np.zeros((200, 256, 256), np.float32), np.zeros(200, np.int64))
    tracemalloc.start()
    try:
        assert check_data(data, [takes]) == 200
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: stacked(p, np.zeros((4, 3)), np.zeros(3)), ("labels [3]", "set.npz")),
        (lambda p: stacked(p, np.zeros((0, 3)), np.zeros(0)), ("inputs [0, 3]",)),
        (lambda p: stacked(p, np.zeros((4, 5)), np.zeros(4)), ("sample 0", "[1, 5]", "x float32 [1, 3]")),
        (lambda p: stacked(p, np.asfortranarray(np.zeros((4, 3))), np.zeros(4)), ("C order",)),
        (lambda p: stacked(p, np.array([["a"] * 3] * 4), np.zeros(4)), ("sample 0", "<U1")),
    ],
)
def test_stacked_sets_that_are_wrong(tmp_path: Path, make: Callable[[Path], Dataset], words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_data(make(tmp_path / "set.npz"), [X])
    answer = f"{caught.value.what} {caught.value.where} {caught.value.why}"
    assert all(word in answer for word in words), answer


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("s0,1\ns1,2\n", ("no label for this sample", "s2.npy", "2 labels")),
        ("s0,1\ns1,2\ns2,3\ns9,4\n", ("label without a sample", "labels.csv:4", "'s9'")),
        ("s0,1\ns1\ns2,3\n", ("no line of labels", "labels.csv:2", "'s1'")),
        ("s0,1\ns1,2\ns0,3\ns2,3\n", ("no line of labels", "labels.csv:3", "line 1")),
        ("s0,1\ns1,\ns2,3\n", ("labels.csv:2",)),
        ("", ("the file is empty", "labels.csv:1")),
        ('s0,"1\ns1,2\n', ("cannot be read", "labels.csv")),
    ],
)
def test_labels_that_do_not_match(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_data(with_labels(tmp_path, text), [X])
    answer = f"{caught.value.what} {caught.value.where} {caught.value.why}"
    assert all(word in answer for word in words), answer


def test_labels_that_are_no_text_or_not_there(tmp_path: Path) -> None:
    data = with_labels(tmp_path, "s0,1\n")
    Path(data.labels).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"labels\.csv"):
        check_data(data, [X])
    Path(data.labels).unlink()
    with pytest.raises(ConfigError, match=r"labels\.csv"):
        check_data(data, [X])


def test_one_line_for_two_files_of_a_name_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        folder_of(tmp_path / "data" / name, 1)
    (tmp_path / "labels.csv").write_text("s0.npy,5\n")
    data = Dataset(test_data=str(tmp_path / "data"), labels=str(tmp_path / "labels.csv"))
    with pytest.raises(ConfigError, match="two samples have the same label line"):
        check_data(data, [X])


@given(st.sets(st.integers(0, 10_000), min_size=1, max_size=60))
def test_parts_are_disjoint_whole_and_a_matter_of_content_alone(numbers: set[int]) -> None:
    with tempfile.TemporaryDirectory() as name:
        for place, number in enumerate(sorted(numbers)):
            np.save(Path(name) / f"{place}.npy", vector(number))
        found: dict[Part, set[float]] = {}
        for part in Part:
            found[part] = set()
            with contextlib.suppress(ConfigError):  # the part is empty
                data = Dataset(test_data=name, part=part)
                found[part] |= {float(sample.inputs["x"][0, 0]) for sample in samples(data, [X])}
    assert found[Part.CALIBRATION] | found[Part.EVALUATION] == found[Part.ALL] == {float(n) for n in numbers}
    assert not found[Part.CALIBRATION] & found[Part.EVALUATION]


def test_about_a_quarter_is_for_calibration_and_limits_count_samples_of_the_part(tmp_path: Path) -> None:
    folder = str(folder_of(tmp_path, 400))
    assert 70 <= check_data(Dataset(test_data=folder, part=Part.CALIBRATION), [X]) <= 130
    assert check_data(Dataset(test_data=folder, part=Part.CALIBRATION, limit=20), [X]) == 20
    assert check_data(Dataset(test_data=folder, part=Part.EVALUATION, limit=1000), [X]) >= 270


@pytest.mark.parametrize("part", [Part.CALIBRATION, Part.EVALUATION])
def test_too_few_samples_for_two_parts_are_named(tmp_path: Path, part: Part) -> None:
    number = next(n for n in range(100) if Sample(name="", inputs={"x": vector(n)}).part is not part)
    with pytest.raises(ConfigError, match=f"the {part} part") as caught:
        check_data(Dataset(test_data=str(folder_of(tmp_path, 1, start=number)), part=part), [X])
    assert "1 sample" in caught.value.why


def test_what_a_models_table_means() -> None:
    image = PreprocessConfig(resize=(2, 2))
    table = ModelConfig(path="m.onnx", test_data="data", labels="l.csv", preprocess=image)
    assert part_of(table, Part.CALIBRATION).part is Part.CALIBRATION
    evaluation = part_of(table, Part.EVALUATION)
    assert (evaluation.part, evaluation.labels, evaluation.preprocess) == (Part.EVALUATION, "l.csv", image)
    own = ModelConfig(path="m.onnx", test_data="data", evaluation=PartConfig(test_data="val", samples=9))
    assert part_of(own, Part.CALIBRATION) == Dataset(test_data="data")
    assert part_of(own, Part.EVALUATION) == Dataset(test_data="val", limit=9)
    labelled = ModelConfig(path="m.onnx", test_data="data", labels="set.npz")
    assert part_of(labelled, Part.CALIBRATION) == Dataset(test_data="data")
    assert part_of(labelled, Part.EVALUATION) == Dataset(test_data="set.npz")
    only = ModelConfig(path="m.onnx", evaluation=PartConfig(test_data="val", preprocess=image))
    assert part_of(only, Part.CALIBRATION).test_data == ""
    assert preprocess_of(only) == image


def test_samples_in_both_are_reported(tmp_path: Path) -> None:
    first = Dataset(test_data=str(folder_of(tmp_path / "a", 5)))
    second = Dataset(test_data=str(folder_of(tmp_path / "b", 5, start=3)))
    found = present(overlap(first, second, [X]))
    assert found.what.startswith("2 samples")
    assert "b/s3.npy" in found.why
    assert overlap(first, Dataset(test_data=str(folder_of(tmp_path / "c", 5, start=5))), [X]) is None


def test_the_parts_of_a_model_have_its_sizes() -> None:
    table = ModelConfig(path="m.onnx", dimensions={"batch": 1, "length": (64, 128)})
    assert part_of(table, Part.CALIBRATION).sizes == {"batch": 1, "length": 128}
