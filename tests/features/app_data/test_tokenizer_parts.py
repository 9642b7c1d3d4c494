"""What of a tokenizer.json is known, and by which name the rest is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import ConfigError
from pipeline.features.app_data import tokenizer_parts
from pipeline.features.app_data.tokenizer_parts import Algorithm

Document = dict[str, Any]


def word_piece() -> Document:
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "added_tokens": [{"id": 1, "content": "[CLS]", **special}, {"id": 2, "content": "[SEP]", **special}],
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
            ],
            "pair": [],
            "special_tokens": {
                "[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]},
                "[SEP]": {"id": "[SEP]", "ids": [2], "tokens": ["[SEP]"]},
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "##b": 4},
        },
    }  # fmt: skip


def byte_pairs() -> Document:
    vocabulary = {letter: number for number, letter in enumerate([*tokenizer_parts.byte_letters(), "ab"])}
    return {
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "vocab": vocabulary, "merges": ["a b"]},
    }


def read(folder: Path, document: object) -> tokenizer_parts.TokenizerParts:
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(document), "utf-8")
    return tokenizer_parts.read(file)


def test_both_kinds_are_read(tmp_path: Path) -> None:
    words = read(tmp_path, word_piece())
    assert (words.algorithm, words.begin, words.end, words.length) == (Algorithm.WORD_PIECE, (1,), (2,), 8)
    assert dict(words.normalizer or {})["lowercase"]
    pairs = read(tmp_path, byte_pairs())
    assert (pairs.algorithm, pairs.merges, pairs.length) == (Algorithm.BYTE_PAIRS, (("a", "b"),), 0)


def changed(made: Callable[[], Document], *path: str | int, value: object) -> Document:
    document = made()
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return document


REFUSED = {
    "the normalizer NFC": changed(word_piece, "normalizer", value={"type": "NFC"}),
    "the normalizer Precompiled": changed(word_piece, "normalizer", value={"type": "Precompiled"}),
    "the normalizer of several: NFKC, Lowercase": changed(
        word_piece,
        "normalizer",
        value={"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]},
    ),
    "the normalizer BertNormalizer with the model BPE": changed(
        byte_pairs, "normalizer", value=word_piece()["normalizer"]
    ),
    "the model Unigram": changed(word_piece, "model", value={"type": "Unigram", "vocab": []}),
    "the pre_tokenizer of several: Split, ByteLevel": changed(
        byte_pairs,
        "pre_tokenizer",
        value={"type": "Sequence", "pretokenizers": [{"type": "Split"}, {"type": "ByteLevel"}]},
    ),
    "the pre-tokenizer null with the model WordPiece": changed(word_piece, "pre_tokenizer", value=None),
    "`use_regex` = False": changed(byte_pairs, "pre_tokenizer", "use_regex", value=False),
    "`dropout` = 0.1": changed(byte_pairs, "model", "dropout", value=0.1),
    "`end_of_word_suffix` = </w>": changed(byte_pairs, "model", "end_of_word_suffix", value="</w>"),
    "`ignore_merges` = True": changed(byte_pairs, "model", "ignore_merges", value=True),
    "the option `later`": changed(byte_pairs, "model", "later", value=1),
    "`lstrip` = True of the added token '\\[CLS\\]'": changed(word_piece, "added_tokens", 0, "lstrip", value=True),
    "looked for in normalized text": changed(word_piece, "added_tokens", 0, "normalized", value=True),
    "the type 1 of a single text": changed(
        word_piece, "post_processor", "single", 2, "SpecialToken", "type_id", value=1
    ),
    "`direction` = Left": changed(word_piece, "truncation", "direction", value="Left"),
    "a vocabulary without all bytes": changed(byte_pairs, "model", "vocab", value={"a": 0, "b": 1, "ab": 2}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_known_is_refused_by_its_name(tmp_path: Path, what: str) -> None:
    with pytest.raises(ConfigError, match=f"the tokenizer has .*{what}.*which is not known here") as refusal:
        read(tmp_path, REFUSED[what])
    assert "docs/app-data.md" in (refusal.value.remedy or "")


MALFORMED = {
    "list": [],
    "empty": {},
    "no vocabulary": changed(word_piece, "model", "vocab", value={}),
    "a list for it": changed(word_piece, "model", "vocab", value=["a"]),
    "one id for two": changed(word_piece, "model", "vocab", "a", value=0),
    "no whole id": changed(word_piece, "model", "vocab", "a", value=True),
    "a huge id": changed(word_piece, "model", "vocab", "a", value=1 << 30),
    "unknown is unknown": changed(word_piece, "model", "unk_token", value="?"),
    "a merge of three": changed(byte_pairs, "model", "merges", value=["a b c"]),
    "a merge of nothing known": changed(byte_pairs, "model", "merges", value=["a c"]),
    "no ids around": changed(word_piece, "post_processor", "special_tokens", value={}),
    "two texts": changed(word_piece, "post_processor", "single", value=[{"Sequence": {"id": "A", "type_id": 0}}] * 2),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_what_is_no_tokenizer_is_no_traceback(tmp_path: Path, what: str) -> None:
    with pytest.raises(ConfigError, match=r"this is no tokenizer\.json|cannot be read") as refusal:
        read(tmp_path, MALFORMED[what])
    assert refusal.value.remedy


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 100_000, b'{"model": '])
def test_hostile_bytes_are_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="the tokenizer cannot be read"):
        tokenizer_parts.read(file)
