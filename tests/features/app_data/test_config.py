"""Tables `takes` and `gives` that cannot be meant are refused where they stand, before anything is made."""

from pathlib import Path

import pytest

from pipeline.config import read
from pipeline.config.app_data import KEYS_OF, AnswerKind, Gives
from pipeline.core.errors import ConfigError

CONFIG = """name = "m"
[[models]]
path = "m.onnx"
takes = {{ image = "rgba", filter = "android" }}
gives = {{ {gives} }}
"""


def written(folder: Path, gives: str) -> Path:
    (folder / "labels.txt").write_text("a\nb\n")
    (folder / "m.onnx").write_bytes(b"")
    file = folder / "m.toml"
    file.write_text(CONFIG.format(gives=gives))
    return file


@pytest.mark.parametrize(
    ("gives", "answer"),
    [
        ('classes = "labels.txt", top = 2', AnswerKind.CLASSES),
        ('boxes = "labels.txt", layout = "xywh+objectness+classes", most = 10', AnswerKind.BOXES),
        ("boxes = true, score = 0.5", AnswerKind.BOXES),
        ("text = true, blank = -1", AnswerKind.TEXT),
        ('embedding = true, pool = "mean", normalize = true', AnswerKind.EMBEDDING),
        ('mask = true, resize = "nearest"', AnswerKind.MASK),
        ('probability = true, output = "y", sigmoid = true', AnswerKind.PROBABILITY),
    ],
)
def test_a_model_gives_one_thing(tmp_path: Path, gives: str, answer: AnswerKind) -> None:
    (model,) = read.read_config(written(tmp_path, gives)).models
    assert model.gives
    assert model.gives.answer is answer
    assert model.gives.file in ("", str(tmp_path / "labels.txt"))


@pytest.mark.parametrize(
    ("gives", "what"),
    [
        ("top = 3", "`gives` has nothing that the app gets"),
        ('classes = "labels.txt", mask = true', "`gives` has classes and mask"),
        ('classes = "labels.txt", score = 0.5', "`score` means nothing for classes"),
        ("boxes = true, softmax = true", "`softmax` means nothing for boxes"),
        ("boxes = true, score = 2", "Expected `float` < 1"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, gives: str, what: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read.read_config(written(tmp_path, gives))
    assert what in str(refusal.value)
    assert refusal.value.remedy


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    config = read.read_config(written(tmp_path, 'text = "none.txt"'))
    assert [error.what for _, error in read.missing_files(config)] == [f"no such file: text = {tmp_path}/none.txt"]


def test_every_key_belongs_to_an_answer() -> None:
    keys = {name for names in KEYS_OF.values() for name in names}
    assert keys | {"output", *AnswerKind} == {*Gives.__struct_fields__}
