"""From sentences to a release: a small model of words, with a tokenizer trained here."""

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from pipeline.features.app_data.tokenizer import Tokenizer
from tests.command import ort_mobile
from tests.features.app_data import vocabularies

pytestmark = pytest.mark.long

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
words (int64[batch, {length}] ids, {kind}[batch, {length}] mask) => (float[batch, 8] y) {{
    known = Gather(table, ids)
    here = Cast<to = 1>(mask)
    axis = Constant<value = int64[1] {{2}}>()
    wide = Unsqueeze(here, axis)
    kept = Mul(known, wide)
    one = Constant<value = int64[1] {{1}}>()
    y = ReduceSum<keepdims = 0>(kept, one)
}}
"""

TAKES = 'takes = { text = "tokenizer.json", ids = "ids", mask = "mask", most = 24 }'
CONFIG = """
name = "sentences"

[[models]]
path = "words.onnx"
test_data = "texts.txt"
@TAKES@

[variants]
levels = ["basic"]
styles = ["fixed"]

[[runs]]
provider = "cpu"

[measure]
rounds = 1
min_seconds = 0.05
""".replace("@TAKES@", TAKES)
SENTENCES = ("The model runs on a phone.", "Ein Über-Modell!", "the model " * 40)


def words(length: str = "n", kind: str = "int64") -> onnx.ModelProto:
    model = onnx.parser.parse_model(TEXT.format(length=length, kind=kind))
    table = np.random.default_rng(0).normal(size=(1100, 8)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    return model


def job(folder: Path, model: onnx.ModelProto | None = None) -> Path:
    onnx.save(model or words(), folder / "words.onnx")
    (folder / "tokenizer.json").write_text(vocabularies.made("bert")[0], "utf-8")
    (folder / "texts.txt").write_bytes("\r\n".join(["", *SENTENCES]).encode())
    file = folder / "sentences.toml"
    file.write_text(CONFIG, "utf-8")
    return file


@pytest.mark.parametrize(("length", "kind"), [("n", "int64"), ("40", "int32"), ("16", "float")])
def test_sentences_are_test_data_and_the_tokenizer_ships(tmp_path: Path, length: str, kind: str) -> None:
    file = job(tmp_path, words(length, kind))
    ort_mobile("run", file, "--output", tmp_path / "out", "--device", "local")
    results = json.loads((tmp_path / "out/results.json").read_text("utf-8"))
    assert [row["status"] for row in results["rows"]] == ["ok"]
    bundle = tmp_path / "out/bundle"
    manifest = json.loads((bundle / "manifest.json").read_text("utf-8"))
    (signature,) = manifest["content"]["models"]
    tokens = (bundle / signature["text"]["file"]).read_bytes()
    assert tokens == vocabularies.made("bert")[1]
    digests = {one["path"]: one["sha256"] for one in manifest["content"]["files"]}
    assert digests["tokenizers/words.tokens"] == hashlib.sha256(tokens).hexdigest()
    assert signature["text"]["library"].startswith("tokenizers ")
    assert (signature["text"]["ids"], signature["text"]["mask"], signature["text"]["most"]) == ("ids", "mask", 24)
    assert "24 tokens at most" in (bundle / "README.md").read_text("utf-8")
    (reference,) = manifest["references"]
    kept = {tensor["name"]: (bundle / tensor["path"]).read_bytes() for tensor in reference["inputs"]}
    ids = Tokenizer(tokens).ids(SENTENCES[0], min(24, int(length) if length.isdigit() else 24))
    filled = int(length) - len(ids) if length.isdigit() else 0
    assert list(np.frombuffer(kept["ids"], np.int64)) == [*ids, *[0] * filled]
    mask = np.frombuffer(kept["mask"], {"int64": np.int64, "int32": np.int32, "float": np.float32}[kind])
    assert list(mask) == [*[1] * len(ids), *[0] * filled]


def test_a_tokenizer_that_was_changed_behind_the_campaign_does_not_ship(tmp_path: Path) -> None:
    file = job(tmp_path)
    ort_mobile("run", file, "--output", tmp_path / "out", "--device", "local")
    kept = tmp_path / "out/artifacts/words.tokens"
    kept.write_bytes(kept.read_bytes() + b"\n")
    done = ort_mobile("bundle", "rebuild", tmp_path / "out", code=None)
    assert done.code
    assert "a tokenizer is not the one that its model was made with" in done.err


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('"tokenizer.json"', '"none.json"', "no such file: text"),
        ('mask = "mask"', 'mask = "masks"', "the model has no input 'masks'"),
        (', mask = "mask"', "", "nothing is said of the input 'mask'"),
        ('ids = "ids", ', "", "`takes` lacks `ids`"),
        ("most = 24", "most = 2", "2 tokens are none of a text"),
        ("most = 24", 'most = 24, filter = "android"', "`filter` says nothing of a text"),
        ("most = 24", 'most = 24, image = "rgb"', "`takes` does not say what the app has"),
        (
            'takes = { text = "tokenizer.json", ids = "ids", mask = "mask", most = 24 }',
            "takes = {}",
            "it has none of them",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_remedy(tmp_path: Path, old: str, new: str, what: str) -> None:
    file = job(tmp_path)
    file.write_text(file.read_text("utf-8").replace(old, new), "utf-8")
    done = ort_mobile("run", file, "--output", tmp_path / "out", "--device", "local", code=None)
    assert done.code
    assert what in done.err + done.out
    assert "remedy: " in done.err
    assert not (tmp_path / "out/bundle").exists()


def test_two_texts_at_once_are_refused(tmp_path: Path) -> None:
    model = words()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    done = ort_mobile("run", job(tmp_path, model), "--output", tmp_path / "out", "--device", "local", code=None)
    assert "the input 'ids' takes no tokens" in done.err
