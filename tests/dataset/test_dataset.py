"""What a model is run on: every kind of test data, declared values, and the answer for each that is wrong."""

import io
import wave
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from PIL import Image

from device_runner.spec import ElementType
from pipeline.config import InputValue, PreprocessConfig, Range
from pipeline.config.tables import Channels, Fit, ImageLayout
from pipeline.core.errors import ConfigError
from pipeline.dataset import Dataset, Part, TensorInfo, check_data, first_sample, overlap, samples

X = TensorInfo(name="x", dtype=ElementType.FLOAT32, shape=("batch", 3))
IMAGE = TensorInfo(name="image", dtype=ElementType.FLOAT32, shape=("batch", 3, 4, 6))
TOKENS = TensorInfo(name="tokens", dtype=ElementType.INT64, shape=(1, "length"))
RATE = TensorInfo(name="sr", dtype=ElementType.INT64, shape=())
AUDIO = TensorInfo(name="audio", dtype=ElementType.FLOAT32, shape=(1, 8))


def array(*shape: int, start: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.arange(start, start + np.prod(shape), dtype=np.float32).reshape(shape)


def text_of(error: ConfigError) -> str:
    return f"{error.where} {error.what} {error.why} {error.remedy}"


def data_set(folder: Path, *named: tuple[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]) -> None:
    folder.mkdir(parents=True)
    for number, (name, values) in enumerate(named):
        (folder / f"input_{number}.pb").write_bytes(numpy_helper.from_array(values, name).SerializeToString())


def test_test_data_sets_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (10, 2, 0):
        data_set(tmp_path / f"test_data_set_{number}", ("x", array(1, 3, start=number)))
    found = list(samples(Dataset(test_data=str(tmp_path)), [X]))
    assert [sample.inputs["x"][0, 0] for sample in found] == [0, 2, 10]
    assert found[2].name.endswith("test_data_set_10")


def test_a_test_data_set_by_number_where_names_are_others(tmp_path: Path) -> None:
    data_set(tmp_path / "test_data_set_0", ("", array(2, 3)), ("", np.array(16000)))
    sample = first_sample(Dataset(test_data=str(tmp_path)), [X, RATE])
    assert sample.inputs["x"].shape == (2, 3)
    assert sample.inputs["sr"] == 16000


def test_names_win_over_numbers(tmp_path: Path) -> None:
    data_set(tmp_path / "test_data_set_0", ("sr", np.array(8000)), ("x", array(2, 3)))
    sample = first_sample(Dataset(test_data=str(tmp_path / "test_data_set_0")), [X, RATE])
    assert list(sample.inputs) == ["x", "sr"]
    assert sample.inputs["sr"] == 8000


def test_npz_has_inputs_by_name_and_declared_values_fill_the_rest(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=array(1, 3))
    sample = first_sample(Dataset(test_data=str(tmp_path / "a.npz"), inputs={"sr": 16000}), [X, RATE])
    assert sample.inputs["sr"].dtype == np.int64
    assert sample.inputs["sr"] == 16000
    assert sample.inputs["x"].tolist() == [[0, 1, 2]]


def test_data_win_over_a_range_and_lose_to_a_number(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=array(1, 3), sr=np.array(8000))
    declared: dict[str, InputValue] = {"x": Range(low=100, high=200), "sr": 16000}
    sample = first_sample(Dataset(test_data=str(tmp_path / "a.npz"), inputs=declared), [X, RATE])
    assert sample.inputs["x"].tolist() == [[0, 1, 2]]
    assert sample.inputs["sr"] == 16000


def test_a_folder_of_npz_is_streamed(tmp_path: Path) -> None:
    for number in range(3):
        np.savez(tmp_path / f"{number}.npz", x=array(1, 3, start=number))
    (tmp_path / "1.npz").write_bytes(b"no archive")
    found = samples(Dataset(test_data=str(tmp_path)), [X])
    assert next(found).inputs["x"][0, 0] == 0
    with pytest.raises(ConfigError) as caught:
        next(found)
    assert caught.value.where.endswith("1.npz")


def test_npy_files_one_for_each_input(tmp_path: Path) -> None:
    odd = TensorInfo(name="in/put:0", dtype=ElementType.FLOAT32, shape=(1, 3))
    np.save(tmp_path / "in_put_0.npy", array(1, 3))
    np.save(tmp_path / "sr.npy", np.array(16000))
    sample = first_sample(Dataset(test_data=str(tmp_path)), [odd, RATE])
    assert sample.inputs["in/put:0"].shape == (1, 3)
    assert sample.inputs["sr"] == 16000


def test_npy_files_as_samples_of_the_only_input(tmp_path: Path) -> None:
    for number in (1, 2, 11):
        np.save(tmp_path / f"s{number}.npy", array(1, 3, start=number))
    data = Dataset(test_data=str(tmp_path), inputs={"sr": 8000})
    assert [sample.inputs["x"][0, 0] for sample in samples(data, [X, RATE])] == [1, 2, 11]
    assert check_data(data, [X, RATE]) == 3


def save_image(path: Path, height: int, width: int, color: tuple[int, int, int]) -> Path:
    Image.new("RGB", (width, height), color).save(path)
    return path


@pytest.mark.parametrize(
    ("preprocess", "shape", "first"),
    [
        (PreprocessConfig(resize=(4, 6)), (1, 3, 4, 6), [200, 100, 0]),
        (PreprocessConfig(resize=(4, 6), channels=Channels.BGR), (1, 3, 4, 6), [0, 100, 200]),
        (PreprocessConfig(resize=(4, 6), mean=100, scale=(1.0, 2.0, 0.5)), (1, 3, 4, 6), [100, 0, -50]),
        (PreprocessConfig(resize=(8, 12), crop=(4, 6)), (1, 3, 4, 6), [200, 100, 0]),
        (PreprocessConfig(resize=(4, 6), fit=Fit.COVER), (1, 3, 4, 6), [200, 100, 0]),
        (PreprocessConfig(resize=(4, 6), fit=Fit.PAD), (1, 3, 4, 6), [0, 0, 0]),
        (PreprocessConfig(resize=(4, 6), layout=ImageLayout.NHWC), (1, 4, 6, 3), [200, 100, 0]),
        (PreprocessConfig(resize=(4, 6), channels=Channels.GRAY), (1, 1, 4, 6), [118]),
    ],
)
def test_images_by_their_preprocessing(
    tmp_path: Path, preprocess: PreprocessConfig, shape: tuple[int, ...], first: list[float]
) -> None:
    save_image(tmp_path / "a.png", 20, 20, (200, 100, 0))
    (tmp_path / "readme.txt").write_text("no sample")
    takes = TensorInfo(name="image", dtype=ElementType.FLOAT32, shape=shape)
    values = first_sample(Dataset(test_data=str(tmp_path), preprocess=preprocess), [takes]).inputs["image"]
    assert values.shape == shape
    corner = values[0, 0, 0] if preprocess.layout is ImageLayout.NHWC else values[0, :, 0, 0]
    assert corner.tolist() == pytest.approx(first, abs=1)


def test_an_image_for_an_integer_input_is_rounded(tmp_path: Path) -> None:
    save_image(tmp_path / "a.png", 4, 6, (201, 100, 0))
    takes = TensorInfo(name="image", dtype=ElementType.UINT8, shape=(1, 4, 6, 3))
    data = Dataset(test_data=str(tmp_path / "a.png"), preprocess=PreprocessConfig(layout=ImageLayout.NHWC))
    assert first_sample(data, [takes]).inputs["image"][0, 0, 0].tolist() == [201, 100, 0]


def save_wav(path: Path, values: list[int], *, width: int = 2, channels: int = 1, rate: int = 16000) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setsampwidth(width)
        file.setnchannels(channels)
        file.setframerate(rate)
        file.writeframes(b"".join(value.to_bytes(width, "little", signed=width > 1) for value in values))
    return path


@pytest.mark.parametrize(
    ("width", "values", "expected"),
    [
        (1, [0, 128, 192], [-1, 0, 0.5]),
        (2, [-(1 << 15), 0, 1 << 14], [-1, 0, 0.5]),
        (3, [-(1 << 23), 0, 1 << 22], [-1, 0, 0.5]),
        (4, [-(1 << 31), 0, 1 << 30], [-1, 0, 0.5]),
    ],
)
def test_recordings_of_every_width_padded_to_the_length(
    tmp_path: Path, width: int, values: list[int], expected: list[float]
) -> None:
    file = save_wav(tmp_path / "a.wav", values, width=width)
    found = first_sample(Dataset(test_data=str(file), preprocess=PreprocessConfig()), [AUDIO]).inputs["audio"]
    assert found.tolist() == [[*expected, 0, 0, 0, 0, 0]]


def test_a_recording_is_averaged_and_resampled(tmp_path: Path) -> None:
    tone = [round(10000 * np.sin(2 * np.pi * 100 * n / 8000)) for n in range(800)]
    file = save_wav(
        tmp_path / "a.wav", [v for pair in zip(tone, tone, strict=True) for v in pair], channels=2, rate=8000
    )
    takes = TensorInfo(name="audio", dtype=ElementType.FLOAT32, shape=("batch", "length"))
    data = Dataset(test_data=str(file), preprocess=PreprocessConfig(sample_rate=16000))
    found = first_sample(data, [takes]).inputs["audio"]
    assert found.shape == (1, 1600)
    expected = 10000 / 32768 * np.sin(2 * np.pi * 100 * np.arange(1600) / 16000)
    assert np.abs(found[0] - expected).max() < 1e-3


def test_a_function_beside_the_config(tmp_path: Path) -> None:
    (tmp_path / "my_samples.py").write_text(
        "import numpy as np\n"
        "def two():\n    for n in range(2): yield {'x': np.full((1, 3), n, 'float32')}\n"
        "def one(): return {'x': np.ones((1, 3), 'float32')}\n"
        "def broken(): raise KeyError('nothing')\n"
        "def number(): return 3\n"
    )
    found = list(samples(Dataset(test_data=str(tmp_path / "my_samples:two")), [X]))
    assert [sample.inputs["x"][0, 0] for sample in found] == [0, 1]
    assert check_data(Dataset(test_data=str(tmp_path / "my_samples:one")), [X]) == 1
    for name, words in (("broken", "nothing"), ("number", "int"), ("absent", "absent")):
        with pytest.raises(ConfigError, match=words):
            check_data(Dataset(test_data=str(tmp_path / f"my_samples:{name}")), [X])
    with pytest.raises(ConfigError, match="no_such_module"):
        check_data(Dataset(test_data=str(tmp_path / "no_such_module:f")), [X])


def test_random_inputs_are_the_same_for_the_same_seed() -> None:
    first, again, other = (first_sample(Dataset(seed=seed), [X, TOKENS]).inputs for seed in (1, 1, 2))
    assert np.array_equal(first["x"], again["x"])
    assert not np.array_equal(first["x"], other["x"])
    assert set(np.unique(first["tokens"])) <= {0, 1}


def test_sizes_of_generated_inputs() -> None:
    data = Dataset(sizes={"length": 7, "x[0]": 2})
    sample = first_sample(data, [X, TOKENS])
    assert sample.inputs["x"].shape == (2, 3)
    assert sample.inputs["tokens"].shape == (1, 7)


def test_ranges_end_before_their_high() -> None:
    data = Dataset(inputs={"tokens": Range(low=5, high=7), "x": Range(low=0.5, high=2)}, sizes={"length": 500})
    sample = first_sample(data, [X, TOKENS])
    assert set(np.unique(sample.inputs["tokens"])) == {5, 6}
    assert ((sample.inputs["x"] >= 0.5) & (sample.inputs["x"] < 2)).all()


def test_all_elements_of_an_input() -> None:
    found = first_sample(Dataset(inputs={"tokens": (3, 1, 2)}), [TOKENS]).inputs["tokens"]
    assert found.tolist() == [[3, 1, 2]]


WRONG_VALUES: list[tuple[TensorInfo, InputValue, str]] = [
    (TOKENS, 0.5, "whole numbers"),
    (X, float("-inf"), "-inf is no finite number"),
    (X, (0.5, float("nan")), "nan is no finite number"),
    (X, Range(low=0, high=float("inf")), "inf is no finite number"),
    (X, 10**400, "numbers to 3.40282e+38 fit"),
    (X, 1e39, "1e+39 is no float32 number"),
    (TOKENS, Range(low=3, high=3), "empty"),
    (TensorInfo(name="d", dtype=ElementType.FLOAT64, shape=(1,)), Range(low=-1e308, high=1e308), "endless"),
    (TensorInfo(name="b", dtype=ElementType.UINT8, shape=(1,)), 256, "from 0 to 255"),
    (AUDIO, (1.0, 2.0), "2 elements"),
    (TensorInfo(name="s", dtype=ElementType.STRING, shape=(1,)), 1, "string"),
    (TensorInfo(name="s", dtype=None, shape=None), 1, "no tensor"),
]


@pytest.mark.parametrize(("takes", "value", "words"), WRONG_VALUES, ids=[words for _, _, words in WRONG_VALUES])
def test_values_that_do_not_fit_are_refused(takes: TensorInfo, value: InputValue, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        first_sample(Dataset(inputs={takes.name: value}), [takes])
    assert words in text_of(caught.value)
    assert caught.value.where == f"inputs.{takes.name}"


def test_a_generated_input_of_absurd_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="GiB"):
        first_sample(Dataset(sizes={"length": 1 << 40}), [TOKENS])


def npy(values: np.ndarray[tuple[int, ...], np.dtype[np.generic]], *, end: int | None = None) -> bytes:
    """As a file of numpy's, or the beginning of one."""
    file = io.BytesIO()
    np.save(file, values, allow_pickle=True)
    return file.getvalue()[:end]


def npz(**arrays: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type] # its stub wants the option allow_pickle among them
    return file.getvalue()


def tensor(name: str = "x", **more: Any) -> bytes:
    proto = onnx.TensorProto(name=name, data_type=1, dims=[1, 3], raw_data=bytes(12), **more)
    return bytes(proto.SerializeToString())


OUTSIDE = tensor(
    data_location=onnx.TensorProto.EXTERNAL,
    external_data=[onnx.StringStringEntryProto(key="location", value="/etc/passwd")],
)
SET = "test_data_set_0/input_{}.pb"
PNG = io.BytesIO()
Image.new("RGB", (6, 4)).save(PNG, "png")


@pytest.mark.parametrize(
    ("files", "named", "words"),
    [
        ({}, "nope", "no such test data"),
        ({"notes.txt": b""}, "", "1 .txt"),
        ({"test_data_set_0/output_0.pb": tensor()}, "", "no input_0.pb"),
        ({SET.format(0): b"\xff" * 9}, "", "not a tensor"),
        ({SET.format(0): OUTSIDE}, "", "another file"),
        ({SET.format(0): tensor("a"), SET.format(1): tensor("b")}, "", "2 inputs, the model 1"),
        ({"a.npz": npz(y=array(1, 3))}, "", "'y'"),
        ({"a.npz": npz()}, "", "lacks the input 'x'"),
        ({"x.npy": npy(np.zeros((1, 3)))}, "", "float64 [1, 3]"),
        ({"x.npy": npy(array(1, 4))}, "", "float32 [1, 4]"),
        ({"x.npy": npy(np.array([{"a": 1}], dtype=object))}, "", "cannot be read"),
        ({"x.npy": npy(array(1, 3), end=-4)}, "", "cannot be read"),
        ({"x.csv": b"1,2,3"}, "x.csv", "no test data"),
        ({"a.png": PNG.getvalue()}, "a.png", "preprocess"),
        ({SET.format(0): tensor()}, SET.format(0), "name its folder"),
    ],
)
def test_wrong_test_data_is_named_with_the_reason(
    tmp_path: Path, files: dict[str, bytes], named: str, words: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        check_data(Dataset(test_data=str(tmp_path / named)), [X])
    assert words in text_of(caught.value)
    assert str(tmp_path) in caught.value.where


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.png", b"\x89PNG\r\n\x1a\nnothing", "image cannot be read"),
        ("a.wav", b"RIFF\x00\x00", "recording cannot be read"),
    ],
)
def test_broken_media_are_named(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        check_data(Dataset(test_data=str(tmp_path), preprocess=PreprocessConfig()), [AUDIO])
    assert caught.value.where == str(tmp_path / name)


def test_mean_for_other_channels_is_refused(tmp_path: Path) -> None:
    save_image(tmp_path / "a.png", 4, 6, (0, 0, 0))
    with pytest.raises(ConfigError, match="3 channels, 2 means"):
        check_data(Dataset(test_data=str(tmp_path), preprocess=PreprocessConfig(mean=(1.0, 2.0))), [IMAGE])


def test_a_misspelt_input_is_suggested() -> None:
    with pytest.raises(ConfigError) as caught:
        first_sample(Dataset(inputs={"token": 1}), [TOKENS])
    assert "did you mean 'tokens'" in caught.value.remedy


def test_files_of_one_tensor_want_to_know_for_which_input(tmp_path: Path) -> None:
    np.save(tmp_path / "sample.npy", array(1, 3))
    with pytest.raises(ConfigError) as caught:
        check_data(Dataset(test_data=str(tmp_path / "sample.npy")), [X, RATE])
    assert "inputs.NAME" in caught.value.remedy


@pytest.mark.parametrize(("count", "apart"), [(19, False), (40, True)])
def test_few_samples_serve_both_parts_and_more_are_divided(tmp_path: Path, count: int, apart: bool) -> None:
    takes = [TensorInfo(name="x", dtype=ElementType.FLOAT32, shape=(1, 2))]
    for number in range(count):
        np.savez(tmp_path / f"{number:02}.npz", x=array(1, 2, start=number))
    evaluation = Dataset(test_data=str(tmp_path), part=Part.EVALUATION)
    calibration = Dataset(test_data=str(tmp_path), part=Part.CALIBRATION, least=20)
    ranges = {sample.digest for sample in samples(calibration, takes)}
    judged = {sample.digest for sample in samples(evaluation, takes)}
    found = overlap(calibration, evaluation, takes)
    assert ranges.isdisjoint(judged) == apart
    assert (found is None) == apart
    if found:
        assert found.what.startswith("the ranges come from all samples")
        assert "give 20 or more" in found.remedy


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"x.npy": (b"hello",)}, "its member 'x' is no array"),
        ({"x.npy": (npy(array(1, 3)),), "label": (b"3",)}, "its member 'label' is no array"),
        ({"x.npy": (npy(array(1, 3)), npy(array(1, 3)))}, "has 'x' more than once"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_that_are_no_arrays_or_are_there_twice_are_named(
    tmp_path: Path, members: dict[str, tuple[bytes, ...]], said: str
) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for name, contents in members.items():
            for content in contents:
                archive.writestr(name, content)
    with pytest.raises(ConfigError) as caught:
        first_sample(Dataset(test_data=str(tmp_path / "a.npz")), [X])
    assert said in caught.value.text
