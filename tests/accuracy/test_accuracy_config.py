"""The tables of a config for calibration and evaluation data and for accuracy: what is read, and what is refused."""

from pathlib import Path

import pytest

from pipeline.config import Config, PartConfig, PreprocessConfig, read_config
from pipeline.core.errors import ConfigError
from pipeline.dataset import Dataset, check_data

MODEL = """
name = "c"
[[models]]
path = "m.onnx"
test_data = "data"
"""


def read(folder: Path, text: str) -> Config:
    (folder / "c.toml").write_text(MODEL + text)
    for name in ("m.onnx", "l.csv", "v.txt"):
        (folder / name).touch()
    (folder / "data").mkdir(exist_ok=True)
    return read_config(folder / "c.toml", existing=True)


def test_parts_and_accuracy_are_read_with_paths_beside_the_config(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        "[models.calibration]\nsamples = 200\n"
        '[models.evaluation]\ntest_data = "data"\nlabels = "l.csv"\npreprocess = { resize = [2, 2] }\n'
        '[accuracy]\nmetric = "wer"\nmax_drop = 0.01\nvocabulary = "v.txt"\noutput = "logits"\n',
    )
    (model,) = config.models
    assert model.calibration == PartConfig(samples=200)
    assert model.evaluation == PartConfig(
        test_data=str(tmp_path / "data"), labels=str(tmp_path / "l.csv"), preprocess=PreprocessConfig(resize=(2, 2))
    )
    assert config.accuracy.vocabulary == str(tmp_path / "v.txt")
    assert config.accuracy.max_drop == 0.01


def test_functions_are_named_beside_the_config(tmp_path: Path) -> None:
    config = read(
        tmp_path, '[models.evaluation]\ntest_data = "mine:samples"\n[accuracy]\nmetric = "mine.metrics:score"\n'
    )
    assert config.accuracy.metric == str(tmp_path / "mine.metrics:score")
    assert config.models[0].evaluation is not None
    assert config.models[0].evaluation.test_data == str(tmp_path / "mine:samples")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[accuracy]\nmetric = "top-2"', ("no metric 'top-2'", "top-1", "did you mean")),
        ("[accuracy]\nmax_drop = 1.5", ("max_drop", "<= 1")),
        ("[accuracy]\nmax_dorp = 0.1", ("max_dorp", "did you mean `max_drop`")),
        ('[accuracy]\nvocabulary = "none.txt"', ("vocabulary", "none.txt")),
        ("[models.calibration]\nsamples = 0", ("samples", ">= 1")),
        ('[models.evaluation]\nlabel = "l.csv"', ("label", "did you mean `labels`")),
        ('[models.evaluation]\nlabels = "none.csv"', ("labels", "none.csv")),
        ('[models.calibration]\ntest_data = "none"', ("test_data", "none")),
        (
            "[models.preprocess]\nresize = [2, 2]\n[models.calibration]\npreprocess = { resize = [3, 3] }",
            ("another preprocessing", "manifest"),
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    error = caught.value
    answer = f"{error.where} {error.what} {error.why} {error.remedy}"
    assert all(word in answer for word in words), answer
    assert "c.toml" in error.where


@pytest.mark.parametrize("text", ['labels = "l.csv"', '[models.evaluation]\nlabels = "l.csv"'])
def test_labels_without_samples_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "l.csv").write_text("a,1\n")
    (tmp_path / "c.toml").write_text(f'name = "c"\n[[models]]\npath = "m.onnx"\n{text}\n')
    with pytest.raises(ConfigError, match="without samples") as caught:
        read_config(tmp_path / "c.toml")
    assert caught.value.where.endswith(("c.toml:4", "c.toml:5"))
    with pytest.raises(ConfigError, match="without samples"):
        check_data(Dataset(labels="l.csv"), [])
