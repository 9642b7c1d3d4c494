"""What is at a model's ends gives what a Python function of its makers does, or nothing is made of the model."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from pipeline.config import ModelConfig, read
from pipeline.config.app_data import Filter, Gives, ImageBytes, Takes
from pipeline.core.errors import ConfigError
from pipeline.features.app_data import oracle
from pipeline.model.sources import SourceModel
from tests.command import ort_mobile
from tests.features.app_data import vocabularies
from tests.features.app_data.samples import classifier, labels, pictures
from tests.features.app_data.test_attach import RGBA, attached
from tests.features.app_data.test_text_job import words

CODE = """
import numpy as np
import onnxruntime
from PIL import Image

session = onnxruntime.InferenceSession({model!r})


def scores(picture, size=(48, 32)):
    resized = Image.fromarray(picture[..., :3]).resize(size, Image.Resampling.BILINEAR)
    values = np.asarray(resized, np.float32).transpose(2, 0, 1)[None] / 255
    (logits,) = session.run(None, {{"x": values}})
    shares = np.exp(logits[0] - logits.max())
    return shares / shares.sum()


def classify(picture):
    shares = scores(picture)
    best = np.argsort(-shares)[:3]
    return {{"labels": [f"class {{number}} é" for number in best], "scores": shares[best]}}


def only_scores(picture):
    return {{"scores": classify(picture)["scores"]}}


def turned(picture):
    return classify(picture[..., [2, 1, 0, 3]])


def fewer(picture):
    return {{"scores": classify(picture)["scores"][:2]}}


def others(picture):
    return {{"logits": scores(picture)}}


def alone(picture):
    return scores(picture)


def fails(picture):
    return picture["image"]


def undefined(picture):
    return {{"scores": np.full(3, np.nan)}}
"""


@pytest.fixture(autouse=True)
def forgotten_modules() -> Iterator[None]:
    """Modules of one test are none of the next."""
    yield
    sys.modules.pop("makers", None)


def table(folder: Path, function: str, takes: Takes = RGBA, tolerance: float = 0.02) -> tuple[SourceModel, ModelConfig]:
    """The classifier behind the pass, and its table with an oracle of the makers' module."""
    gives = Gives(classes=str(labels(folder)), softmax=True, top=3)
    attached(classifier(), folder, takes, gives)
    onnx.save(classifier(), folder / "plain.onnx")
    (folder / "makers.py").write_text(CODE.format(model=str(folder / "plain.onnx")), "utf-8")
    config = ModelConfig(
        path="m.onnx",
        test_data=str(pictures(folder)),
        takes=takes,
        gives=gives,
        oracle=str(folder / f"makers:{function}"),
        oracle_tolerance=tolerance,
    )
    return SourceModel(path=str(folder / "made.onnx")), config


@pytest.mark.parametrize("function", ["classify", "only_scores"])
def test_who_gives_the_same_confirms_it(tmp_path: Path, function: str) -> None:
    source, config = table(tmp_path, function)
    said = oracle.compared(source, {}, config, str(tmp_path))
    assert (said.oracle, said.samples) == (f"makers:{function}", 8)
    assert 0 < said.largest < 0.02


@pytest.mark.parametrize(
    ("function", "takes", "tolerance", "what"),
    [
        ("turned", RGBA, 0.02, "something else than the oracle for [1-8] of 8 samples"),
        ("classify", Takes(image=ImageBytes.RGBA, filter=Filter.ANDROID), 0.02, "something else than the oracle"),
        ("classify", RGBA, 0.0, "something else than the oracle for [1-8] of 8 samples"),
        ("fewer", RGBA, 0.5, "something else than the oracle for 8 of 8 samples: scores of .*3. values, by the"),
        ("undefined", RGBA, 0.5, "something else than the oracle for 8 of 8 samples: scores of .* nan"),
        ("others", RGBA, 0.5, "there is no output 'logits': outputs: labels, scores"),
        ("alone", RGBA, 0.5, "the oracle names no outputs"),
        ("fails", RGBA, 0.5, "the oracle failed: .*IndexError"),
        ("nobody", RGBA, 0.5, "the module 'makers' has no function 'nobody'"),
    ],
)
def test_who_gives_something_else_refutes_it(
    tmp_path: Path, function: str, takes: Takes, tolerance: float, what: str
) -> None:
    source, config = table(tmp_path, function, takes, tolerance)
    with pytest.raises(ConfigError, match=what) as refusal:
        oracle.compared(source, {}, config, str(tmp_path))
    assert f"makers:{function}" in str(refusal.value)
    assert refusal.value.remedy


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ('oracle = "makers:classify"', "`oracle` without `takes` and `gives`"),
        ('gives = { mask = true }\noracle = "makers:classify"', "`oracle` without `test_data`"),
        ('gives = { mask = true }\ntest_data = "d"\noracle = "makers.py"', "`oracle` names no function"),
        (
            'gives = { mask = true }\ntest_data = "d"\noracle = "makers:f"\nstate = { a = "b" }',
            "`oracle` beside `state`",
        ),
    ],
)
def test_an_oracle_of_nothing_is_refused(tmp_path: Path, lines: str, what: str) -> None:
    file = tmp_path / "m.toml"
    file.write_text(f'name = "m"\n[[models]]\npath = "m.onnx"\n{lines}\n')
    with pytest.raises(ConfigError, match=what):
        read.read_config(file)


CONFIG = """name = "pictures"

[[models]]
path = "classifier.onnx"
test_data = "pictures"
takes = {{ image = "rgba", filter = "pillow-bilinear", channels = "{channels}", divide = 255 }}
gives = {{ classes = "labels.txt", softmax = true, top = 3 }}
{oracle}

[[models]]
path = "plain.onnx"
dimensions = {{ batch = 1 }}

[variants]
levels = ["basic"]
styles = ["fixed"]

[[runs]]
provider = "cpu"

[measure]
rounds = 1
min_seconds = 0.01
"""


def job(folder: Path, oracle_line: str, channels: str = "RGB") -> Any:
    """A run of two models, of which one has ends; what it says and its results."""
    labels(folder)
    pictures(folder)
    for name in ("classifier", "plain"):
        onnx.save(classifier(), folder / f"{name}.onnx")
    (folder / "makers.py").write_text(CODE.format(model=str(folder / "plain.onnx")), "utf-8")
    (folder / "m.toml").write_text(CONFIG.format(oracle=oracle_line, channels=channels), "utf-8")
    return ort_mobile(
        "run", folder / "m.toml", "--output", folder / "out", "--device", "local", code=None, process=True
    )


@pytest.mark.long
def test_a_run_says_who_confirmed_it(tmp_path: Path) -> None:
    done = job(tmp_path, 'oracle = "makers:classify"\noracle_tolerance = 0.02')
    assert done.code == 0, done.text
    facts, plain = json.loads((tmp_path / "out/results.json").read_text("utf-8"))["models"]
    assert facts["oracle"].startswith("makers:classify gives the same for 8 samples")
    assert not plain["attached"]
    assert "nobody has confirmed" not in done.out


@pytest.mark.long
def test_without_an_oracle_a_run_has_a_reservation(tmp_path: Path) -> None:
    done = job(tmp_path, "")
    assert done.code == 0, done.text
    assert "classifier: nobody has confirmed that `takes` and `gives` are what the model was made for" in done.out
    assert "plain: nobody" not in done.out


@pytest.mark.long
def test_a_contradiction_costs_the_model_alone(tmp_path: Path) -> None:
    done = job(tmp_path, 'oracle = "makers:classify"\noracle_tolerance = 0.02', channels="BGR")
    assert done.code
    assert "the graph gives something else than the oracle for" in done.text
    results = json.loads((tmp_path / "out/results.json").read_text("utf-8"))
    assert {row["model"] for row in results["rows"]} == {"plain"}
    assert not list((tmp_path / "out").rglob("classifier*.ort"))


def test_numbers_are_compared_by_the_largest() -> None:
    apart = oracle.apart
    assert apart(np.array([[100.0, 1.0]]), [100.0, 2.0], "", "").share == pytest.approx(0.01)
    assert apart(np.array([0.5]), 0.25, "", "").share == pytest.approx(0.25)
    assert apart(np.array([1, 2]), [1, 3], "", "").share == np.inf
    assert apart(np.array(["a"]), ["a"], "", "").share == 0
    assert apart(np.array([np.nan, np.inf]), [np.nan, np.inf], "", "").share == 0
    assert apart(np.array([1.0]), [np.nan], "", "").share == np.inf
    assert apart(np.zeros((0, 4)), np.zeros((0, 4)), "", "").share == 0


def test_who_is_given_a_text_confirms_the_tokenizer_too(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    tokenizer, _ = vocabularies.made("bert")
    (tmp_path / "tokenizer.json").write_text(tokenizer, "utf-8")
    (tmp_path / "texts.txt").write_text("The model runs.\nEin Über-Modell!\n", "utf-8")
    onnx.save(words(), tmp_path / "words.onnx")
    code = f"""
import numpy as np
import onnxruntime
import tokenizers

session = onnxruntime.InferenceSession({str(tmp_path / "words.onnx")!r})
whole = tokenizers.Tokenizer.from_file({str(tmp_path / "tokenizer.json")!r})


def embed(text):
    ids = np.array([whole.encode(text).ids])
    return session.run(None, {{"ids": ids, "mask": np.ones_like(ids)}})[0]
"""
    (tmp_path / "makers.py").write_text(code, "utf-8")
    takes = Takes(text=str(tmp_path / "tokenizer.json"), ids="ids", mask="mask", most=64)
    config = ModelConfig(
        path="words.onnx", test_data=str(tmp_path / "texts.txt"), takes=takes, oracle=str(tmp_path / "makers:embed")
    )
    said = oracle.compared(SourceModel(path=str(tmp_path / "words.onnx")), {}, config, str(tmp_path))
    assert said.samples == 2
