"""What a tokenizer does with each code point, asked of the library that made it: no Unicode table of a phone is used.

A normalizer and a pre-tokenizer that look at one code point at a time are the answers for all 1,112,064 of them. Those
of phones differ by the version of their system; these are the library's, and travel with the model (app_data D.2).
"""

import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from pipeline.core.errors import ConfigError, MissingError
from pipeline.features.app_data.tokenizer_parts import Algorithm, TokenizerParts

SURROGATES = range(0xD800, 0xE000)
HANGUL = range(0xAC00, 0xD7A4)

ORDINARY, BLANK, MARK = 0, 1, 2
"""Kinds of code points for WordPiece: of a word, between words, a word of its own."""
LETTER, NUMBER, OTHER, SPACE = 1, 2, 3, 4
"""Kinds of code points for BPE."""

GONE, BLANKS, BY, TO = "gone", "blanks", "by", "to"
"""What becomes of code points: nothing; itself with a blank on both sides; one at a distance; others."""


class Change(NamedTuple):
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

    changes: tuple[Change, ...]
    kinds: tuple[Kind, ...]
    hangul: bool


def library() -> Any:
    """The package tokenizers; MissingError without it."""
    try:
        import tokenizers
    except ImportError as error:
        raise MissingError(
            "a tokenizer cannot be read",
            why="the package tokenizers is not installed",
            remedy="pip install 'ort-mobile-pipeline[text]'",
        ) from error
    return tokenizers


def asked(parts: TokenizerParts, where: str) -> CodePoints:
    """The answers of the library for a tokenizer; some seconds. ConfigError where they would not be the tokenizer."""
    tokenizers = library()
    if parts.algorithm is Algorithm.BYTE_PAIRS:
        split = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
        return CodePoints((), tuple(_runs(lambda text: _class_of(split, text))), False)
    split = tokenizers.pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    words = {1: ORDINARY, 2: BLANK, 3: MARK}
    kinds = tuple(_runs(lambda text: words[len(split(f"a{text}b"))]))
    if parts.normalizer is None:
        return CodePoints((), kinds, False)
    normalized = tokenizers.normalizers.BertNormalizer(**parts.normalizer).normalize_str
    texts = {text: made for text in _all() if (made := normalized(text)) != text}
    hangul = all(texts.get(chr(code)) == unicodedata.normalize("NFD", chr(code)) for code in HANGUL)
    for code in HANGUL if hangul else ():
        del texts[chr(code)]
    _refuse_order(parts, parts.normalizer, where)
    return CodePoints(tuple(_changes(texts)), kinds, hangul)


def _all() -> Iterator[str]:
    """Every code point that a text may have."""
    return (chr(code) for code in range(0x110000) if code not in SURROGATES)


def _runs(kind: Callable[[str], int]) -> Iterator[Kind]:
    """Kinds where they change."""
    last = None
    for text in _all():
        if (here := kind(text)) != last:
            yield Kind(ord(text), here)
            last = here


def _class_of(split: Callable[[str], list[Any]], text: str) -> int:
    """What a code point is for the pattern of byte-level BPE: it goes on a word of its own kind."""
    for before, kind in (("a", LETTER), ("1", NUMBER), ("!", OTHER)):
        if len(split(before + text)) == 1:
            return kind
    return SPACE


def _changes(texts: dict[str, str]) -> Iterator[Change]:
    """Texts by code point as runs: neighbours to which the same is done."""
    run: Change | None = None
    for text, made in texts.items():
        code = ord(text)
        change = Change(code, code, GONE)
        if made == f" {text} ":
            change = Change(code, code, BLANKS)
        elif len(made) == 1:
            change = Change(code, code, BY, (ord(made) - code,))
        elif made:
            change = Change(code, code, TO, tuple(map(ord, made)))
        if run and run.last == code - 1 and run[2:] == change[2:] and change.how != TO:
            run = run._replace(last=code)
            continue
        if run:
            yield run
        run = change
    if run:
        yield run


def _refuse_order(parts: TokenizerParts, normalizer: Mapping[str, bool | None], where: str) -> None:
    """ConfigError for tokens with marks that stay, which canonical order may move: then one code point is not all."""
    strips = normalizer["strip_accents"]
    if not (normalizer["lowercase"] if strips is None else strips):
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
