"""What a tokenizer does with each code point, asked of the library that made it: no Unicode table of a phone is used.

A normalizer and a pre-tokenizer that look at one code point at a time are the answers for all 1,112,064 of them. Those
of phones differ by the version of their system; these are the library's, and travel with the model (app_data D.3).
"""

import unicodedata
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from pipeline.core import errors as core_errors
from pipeline.core.errors import ConfigError
from pipeline.features.app_data.tokenizer_parts import Algorithm, TokenizerParts

Answer = TypeVar("Answer")

SURROGATES = range(0xD800, 0xE000)
HANGUL = range(0xAC00, 0xD7A4)

ORDINARY, BLANK, MARK = 0, 1, 2
"""Kinds of code points for WordPiece: of a word, between words, a word of its own."""
LETTER, NUMBER, OTHER, SPACE = 1, 2, 3, 4
"""Kinds of code points for BPE."""

GONE, BLANKS, BY, TO = "gone", "blanks", "by", "to"
"""What becomes of code points: nothing; itself with a blank on both sides; one at a distance; others."""


class Becoming(NamedTuple):
    """What code points from `first` to `last` become: one of GONE, BLANKS, BY with a distance, TO with code points."""

    first: int
    last: int
    how: str
    numbers: tuple[int, ...] = ()


class Kind(NamedTuple):
    """The kind of all code points from `first` on, until the next one."""

    first: int
    kind: int


class CodePoints(NamedTuple):
    """All answers. `hangul`: syllables become their letters, by Unicode's arithmetic."""

    changes: tuple[Becoming, ...]
    kinds: tuple[Kind, ...]
    hangul: bool


def library() -> Any:
    """The package tokenizers; MissingError without it."""
    try:
        import tokenizers
    except ImportError as error:
        raise core_errors.missing_extra("text", "tokenizers", "takes.text", error) from error
    return tokenizers


def asked(parts: TokenizerParts, where: str) -> CodePoints:
    """The answers of the library for a tokenizer; ConfigError where they would not be the tokenizer."""
    refuse_order(parts, where)
    tokenizers = library()
    if parts.algorithm is Algorithm.BYTE_PAIRS:
        split = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
        return CodePoints((), tuple(_kinds(lambda text: _class_of(split, text))), False)
    split = tokenizers.pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    kinds = tuple(_kinds(lambda text: _word_kind(split, text)))
    if parts.normalizer is None:
        return CodePoints((), kinds, False)
    normalized = tokenizers.normalizers.BertNormalizer(**parts.normalizer).normalize_str
    answers = _answers(lambda text: _changed(normalized, text))
    pairs = (pair for text, changed in answers for pair in zip(text, changed, strict=True))
    texts = {text: made for text, made in pairs if made != text}
    hangul = all(texts.get(chr(code)) == unicodedata.normalize("NFD", chr(code)) for code in HANGUL)
    for code in HANGUL if hangul else ():
        del texts[chr(code)]
    return CodePoints(tuple(_changes(texts)), kinds, hangul)


BLOCK = 1 << 12
"""Code points that are asked about at once: most have neighbours of their kind, and one answer is for all of them."""


def _answers(ask: Callable[[str], Answer | None]) -> Iterator[tuple[str, Answer]]:
    """Every code point that a text may have, in blocks with one answer; `ask` gives None for several that differ."""
    waiting = [range(first, first + BLOCK) for first in reversed(range(0, 0x110000, BLOCK))]
    while waiting:
        codes = waiting.pop()
        text = "".join(chr(code) for code in codes if code not in SURROGATES)
        answer = ask(text) if text else None
        if answer is not None:
            yield text, answer
        elif text:
            middle = len(codes) // 2
            waiting += (codes[middle:], codes[:middle])


def _kinds(ask: Callable[[str], int | None]) -> Iterator[Kind]:
    """Kinds where they change."""
    last = None
    for text, kind in _answers(ask):
        if kind != last:
            yield Kind(ord(text[0]), kind)
            last = kind


def _changed(normalized: Callable[[str], str], text: str) -> list[str] | None:
    """What becomes of each of some code points; None where that is not the same for all."""
    made = normalized(text)
    alike = ([*text], [""] * len(text), [f" {code} " for code in text])
    return next((changed for changed in alike if "".join(changed) == made), [made] if len(text) == 1 else None)


def _word_kind(split: Callable[[str], list[Any]], text: str) -> int | None:
    """What code points are for BERT's pre-tokenizer."""
    count = len(split(f"a{text}b"))
    return ORDINARY if count == 1 else {2: BLANK, 3: MARK}[count] if len(text) == 1 else None


def _class_of(split: Callable[[str], list[Any]], text: str) -> int | None:
    """What code points are for the pattern of byte-level BPE: they go on a word of their own kind."""
    for before, kind in (("a", LETTER), ("1", NUMBER), ("!", OTHER)):
        if len(split(before + text)) == 1:
            return kind
    return SPACE if len(text) == 1 else None


def _changes(texts: dict[str, str]) -> Iterator[Becoming]:
    """Texts by code point as runs: neighbours to which the same is done."""
    run: Becoming | None = None
    for text, made in texts.items():
        code = ord(text)
        change = Becoming(code, code, GONE)
        if made == f" {text} ":
            change = Becoming(code, code, BLANKS)
        elif len(made) == 1:
            change = Becoming(code, code, BY, (ord(made) - code,))
        elif made:
            change = Becoming(code, code, TO, tuple(map(ord, made)))
        if run and run.last == code - 1 and run[2:] == change[2:] and change.how != TO:
            run = run._replace(last=code)
            continue
        if run:
            yield run
        run = change
    if run:
        yield run


def refuse_order(parts: TokenizerParts, where: str) -> None:
    """ConfigError for tokens with marks that stay, which canonical order may move: then one code point is not all."""
    if parts.normalizer is None:
        return
    strips = parts.normalizer["strip_accents"]
    if not (parts.normalizer["lowercase"] if strips is None else strips):
        return
    for token in parts.vocabulary:
        moved = [text for text in token if unicodedata.combining(text) and unicodedata.category(text) != "Mn"]
        if moved:
            raise ConfigError(
                f"the tokenizer has the token {token!r}, whose marks Unicode may put in another order",
                where=where,
                why=f"{', '.join(f'U+{ord(text):04X}' for text in moved)} stays where accents are taken away",
                remedy="leave out `takes` and give the model ids by the app's own code",
            )


def version() -> str:
    """The library with its version, as a manifest names it."""
    return f"tokenizers {library().__version__}"
