"""Tokenizers of both kinds, small and trained here by the library itself, and texts on which tokenizers differ."""

import functools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.features.app_data import code_points, texts, tokenizer_file, tokenizer_parts

DOCS = Path(__file__).parents[3] / "docs"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
KINDS = ("bert", "cased", "bpe")


def trained(kind: str) -> str:
    """A tokenizer.json of a kind: BERT's WordPiece, that with accents and capitals, BPE with a blank before a text."""
    tokenizers = pytest.importorskip("tokenizers")
    pages = [page.read_text("utf-8") for page in sorted(DOCS.glob("*.md"))]
    if kind == "bpe":
        made = tokenizers.Tokenizer(tokenizers.models.BPE())
        made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
        alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
        special = ["<|end|>", "<|end|>>"]
        trainer = tokenizers.trainers.BpeTrainer(vocab_size=1000, initial_alphabet=alphabet, special_tokens=special)
    else:
        made = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
        made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=kind == "bert")
        made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=1000, special_tokens=SPECIAL)
    made.train_from_iterator([*pages, "ÀÉ éà한국어日本"], trainer)
    if kind != "bpe":
        around = [(token, made.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
        single = tokenizers.processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=around)
        made.post_processor = single
    made.enable_truncation(32)
    return str(made.to_str())


@functools.cache
def made(kind: str) -> tuple[str, bytes]:
    """The tokenizer.json of a kind, and its file for apps: some seconds, once in a process."""
    text = trained(kind)
    return text, tokens_of(text)


def tokens_of(text: str) -> bytes:
    """The file for apps of a tokenizer.json."""
    parts = tokenizer_parts.parts_of(json.loads(text), "tokenizer.json")
    return tokenizer_file.written(parts, code_points.asked(parts, "tokenizer.json"))


def oracle(text: str, most: int) -> Callable[[str], list[int]]:
    """The ids of the library itself."""
    library: Any = pytest.importorskip("tokenizers").Tokenizer.from_str(text)
    library.no_padding()
    library.enable_truncation(most)
    return lambda given: list(library.encode(given).ids)


def some_texts(text: str, count: int = 400) -> list[str]:
    """Texts of every kind, and the special ones of the other tests."""
    words = list(json.loads(text)["model"]["vocab"])
    odd = ["don't we'll I'M", "  z", " \n q", "a   ", "\t\t!", "1a ½b", "a<|end|>>b", "[MASK]x", "x" * 101, "İ", "ﬁ"]
    return [given.replace("\x01", "") for given in (*texts.edge_texts(words, count), *odd)]


def all_texts(words: list[str], behind: str) -> Iterator[str]:
    """10,000 texts of words, hostile code points, marks and special tokens, and one for each code point to U+2FFFF."""
    generator = random.Random(5)
    blocks = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x700), (0x900, 0x1200), (0x1E00, 0x2100)]
    blocks += [(0x3000, 0x3100), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xF900, 0x10000), (0x10000, 0x20000)]
    blocks += [(0x1F300, 0x1FB00), (0xE000, 0x110000)]
    letters = "abcdefghijklmnopqrstuvwxyzÀÉÎöüßİ\u0131\u017fﬁΣς'-.,!?0123456789"
    odd = [
        "[SEP]",
        "[MASK]",
        "[CLS",
        "naïve",
        "日本語",
        "한국어",
        "\U0001d518nicode",
        "e\u0301",
        "a\u0323\u0302",
        "\u200d",
    ]
    odd += ["\u00a0", "\u3000", "\t", "\n", "\r\n", "👩\u200d👧", "Ⅷ", "½", "x" * 101, "ﷺ", "\ufeff", "ǅ", "Å", "Ω"]
    marks = [0x591, 0x5B0, 0x64B, 0x93C, 0x9BC, 0xE38, 0x1DCE, 0x20D0, 0x302A, 0x3099, 0x1D165, 0x1D16D]

    def code() -> str:
        return chr(generator.randrange(*generator.choice(blocks)))

    def word() -> str:
        return "".join(generator.choice(letters) for _ in range(generator.randrange(1, 14)))

    makers = (
        lambda: " ".join(generator.choice(words) for _ in range(generator.randrange(40))),
        lambda: "".join(code() for _ in range(generator.randrange(60))),
        lambda: " ".join(word() for _ in range(generator.randrange(1, 25))),
        lambda: "".join(generator.choice(odd) for _ in range(generator.randrange(1, 20))),
        lambda: "".join(
            generator.choice([code(), chr(generator.randrange(0x300, 0x370)), chr(generator.choice(marks)), "a", "o "])
            for _ in range(generator.randrange(1, 40))
        ),
    )
    yield from (makers[number % 5]().replace("\x01", "") for number in range(10_000))
    yield from (f"a{chr(number)}{behind}" for number in range(2, 0x30000) if not 0xD800 <= number < 0xE000)
    yield from ("x  y", "  z", " \n q", "don't we'll I'M", "a   ", "\t\t!", "1a ½b") if behind != "b" else ()
