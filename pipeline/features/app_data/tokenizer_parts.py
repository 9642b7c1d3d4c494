"""tokenizer.json of Hugging Face's library, read strictly: what an app can do of it, or which part it cannot.

Every part is compared with a table of what is known. An option that is not there, or has another value, changes tokens
and is refused by its name (app_data D.3): a tokenizer that is nearly right is wrong without a sign.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from device_runner import untrusted_files
from pipeline.core.errors import ConfigError

MOST_BYTES = 64 << 20
MOST_TOKENS = 1 << 20


class Algorithm(StrEnum):
    """How words become tokens."""

    WORD_PIECE = "wordpiece"
    BYTE_PAIRS = "bpe"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerParts:
    """A tokenizer that an app can repeat. `vocabulary` has ids by token, `merges` pairs of tokens in their order.

    `added` are ids by text, which is found before all else; `begin` and `end` stand around every text. `normalizer` are
    options of BertNormalizer, None without one. `length` is that of the file's truncation, 0 without one.
    """

    algorithm: Algorithm
    vocabulary: Mapping[str, int]
    merges: tuple[tuple[str, str], ...] = ()
    added: Mapping[str, int]
    begin: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    normalizer: Mapping[str, bool | None] | None = None
    unknown: str = ""
    prefix: str = ""
    longest: int = 0
    blank_before: bool = False
    pad: int | None = None
    length: int = 0


BERT_OPTIONS = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")

KNOWN: Mapping[str, Mapping[str, Mapping[str, tuple[object, ...]]]] = {
    "normalizer": {"BertNormalizer": dict.fromkeys(BERT_OPTIONS, (True, False, None))},
    "pre_tokenizer": {
        "BertPreTokenizer": {},
        "ByteLevel": {"add_prefix_space": (True, False), "trim_offsets": (True, False), "use_regex": (True, None)},
    },
    "model": {
        "WordPiece": {"unk_token": (), "continuing_subword_prefix": (), "max_input_chars_per_word": (), "vocab": ()},
        "BPE": {
            "vocab": (),
            "merges": (),
            "unk_token": (),  # bytes are all known
            "dropout": (None, 0, 0.0),
            "continuing_subword_prefix": (None, ""),
            "end_of_word_suffix": (None, ""),
            "fuse_unk": (False, True),
            "byte_fallback": (False,),
            "ignore_merges": (False,),
        },
    },
    "post_processor": {
        "TemplateProcessing": {"single": (), "pair": (), "special_tokens": ()},
        "BertProcessing": {"cls": (), "sep": ()},
        "RobertaProcessing": {"cls": (), "sep": (), "trim_offsets": (True, False), "add_prefix_space": (True, False)},
        "ByteLevel": {"add_prefix_space": (True, False), "trim_offsets": (True, False), "use_regex": (True, False)},
    },
    "added_tokens": {
        "": {
            "id": (),
            "content": (),
            "special": (True, False),
            "single_word": (False,),
            "lstrip": (False,),
            "rstrip": (False,),
            "normalized": (True, False),
        }
    },
    "truncation": {"": {"direction": ("Right",), "max_length": (), "strategy": (), "stride": ()}},
}
"""By part and type, the options that are known: with the values that they may have, () where `read` looks at them."""

ALGORITHMS = {"WordPiece": (Algorithm.WORD_PIECE, "BertPreTokenizer"), "BPE": (Algorithm.BYTE_PAIRS, "ByteLevel")}
"""By the type of the model: the algorithm, and the pre-tokenizer that it is known with."""


def read(file: Path) -> TokenizerParts:
    """What a tokenizer.json says; ConfigError for what is none, and by name for what is not known here."""
    where = str(file)
    try:
        content = untrusted_files.read_regular(file, MOST_BYTES)
        document = untrusted_files.decode_json(content, dict[str, Any])
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise ConfigError(
            "the tokenizer cannot be read",
            where=where,
            why=str(error),
            remedy="give the tokenizer.json beside the model, as `takes.text`",
        ) from error
    try:
        return parts_of(document, where)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            "this is no tokenizer.json",
            where=where,
            why=f"a part is not there, or is not what it should be: {error}",
            remedy="save it again with `tokenizer.save('tokenizer.json')` of the package tokenizers",
        ) from error


def parts_of(document: dict[str, Any], where: str) -> TokenizerParts:
    """The parts of a document; KeyError, TypeError or ValueError where one is malformed."""
    model = _known(document["model"], "model", where)
    algorithm, splitter = ALGORITHMS[model["type"]]
    pre_tokenizer = _known(document.get("pre_tokenizer"), "pre_tokenizer", where)
    if pre_tokenizer.get("type") != splitter:
        _refuse(f"the pre-tokenizer {pre_tokenizer.get('type') or 'null'} with the model {model['type']}", where)
    normalizer = _known(document.get("normalizer"), "normalizer", where)
    if normalizer and algorithm is Algorithm.BYTE_PAIRS:
        _refuse(f"the normalizer {normalizer['type']} with the model BPE", where)
    vocabulary = {str(token): _whole(number) for token, number in model["vocab"].items()}
    added = _added(document.get("added_tokens") or (), normalized=bool(normalizer), where=where)
    begin, end = _around(document.get("post_processor"), where)
    truncation = document.get("truncation") or {}
    if truncation:
        _check_options(truncation, KNOWN["truncation"][""], "truncation", where)
    padding = document.get("padding") or {}
    parts = TokenizerParts(
        algorithm=algorithm,
        vocabulary=vocabulary,
        merges=tuple(map(_pair, model.get("merges", ()))),
        added=added,
        begin=begin,
        end=end,
        normalizer={key: normalizer.get(key) for key in BERT_OPTIONS} if normalizer else None,
        unknown=str(model.get("unk_token") or ""),
        prefix=str(model.get("continuing_subword_prefix") or ""),
        longest=_whole(model.get("max_input_chars_per_word", 100)) if algorithm is Algorithm.WORD_PIECE else 0,
        blank_before=bool(pre_tokenizer.get("add_prefix_space")),
        pad=_whole(padding["pad_id"]) if padding else vocabulary.get("[PAD]"),
        length=_whole(truncation.get("max_length", 0)),
    )
    _check_vocabulary(parts, where)
    return parts


def _known(part: Any, name: str, where: str) -> dict[str, Any]:
    """A part of the tokenizer of a type that is known, with options that are; {} where it is null."""
    if part is None:
        return {}
    if isinstance(part, dict) and part.get("type") == "Sequence":
        inner = part.get("pretokenizers") or part.get("normalizers") or part.get("processors") or ()
        _refuse(f"the {name} of several: {', '.join(str(part.get('type')) for part in inner)}", where)
    kind = part["type"]
    if kind not in KNOWN[name]:
        _refuse(f"the {name} {kind}", where)
    _check_options(part, KNOWN[name][kind], f"{name} {kind}", where)
    return dict(part)


def _check_options(part: Mapping[str, Any], options: Mapping[str, tuple[object, ...]], name: str, where: str) -> None:
    for option, value in part.items():
        if option == "type":
            continue
        if option not in options:
            _refuse(f"the option `{option}` of the {name}", where)
        values = options[option]
        if values and not any(value is known or (value == known and type(value) is type(known)) for known in values):
            _refuse(f"`{option}` = {str(value)[:100]} of the {name}", where)


def _refuse(what: str, where: str) -> NoReturn:
    raise ConfigError(
        f"the tokenizer has {what}, which is not known here",
        where=where,
        why="its tokens in the app would differ from those of the training, for some texts or for all",
        remedy="leave out `takes`, and give the model ids by the app's own code; known are WordPiece with "
        "BertNormalizer and BertPreTokenizer, and BPE with ByteLevel (docs/app-data.md)",
    )


def _added(tokens: Any, *, normalized: bool, where: str) -> dict[str, int]:
    """Ids by the texts that are found before all else."""
    added: dict[str, int] = {}
    for token in tokens:
        text = token["content"]
        _check_options(token, KNOWN["added_tokens"][""], f"added token {text!r}", where)
        if token.get("normalized") and normalized:
            _refuse(f"the added token {text!r}, which is looked for in normalized text", where)
        if not isinstance(text, str) or not text:
            raise ValueError(f"an added token is {text!r}")
        added[text] = _whole(token["id"])
    return added


def _around(part: Any, where: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids before and behind every text; ids of types are all 0, or they are refused."""
    processor = _known(part, "post_processor", where)
    match processor.get("type"):
        case "BertProcessing" | "RobertaProcessing":
            return (_whole(processor["cls"][1]),), (_whole(processor["sep"][1]),)
        case "TemplateProcessing":
            sides: tuple[list[int], list[int]] = ([], [])
            texts = 0
            for piece in processor["single"]:
                ((kind, content),) = piece.items()
                if content["type_id"]:
                    _refuse(f"the type {content['type_id']} of a single text", where)
                texts += kind == "Sequence"
                if kind == "SpecialToken":
                    named = processor["special_tokens"][content["id"]]["ids"]
                    sides[bool(texts)].extend(map(_whole, named))
            if texts != 1:
                raise ValueError(f"the template of a single text has {texts} texts")
            return tuple(sides[0]), tuple(sides[1])
        case _:
            return (), ()


def _pair(merge: Any) -> tuple[str, str]:
    """Two tokens that become one: "a b", or a list of both."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return str(left), str(right)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise ValueError(f"{str(value)[:100]!r} is no id or count")
    return value


def _check_vocabulary(parts: TokenizerParts, where: str) -> None:
    """ValueError or ConfigError for tokens that an app's file cannot hold, or that the model needs and has not."""
    tokens = parts.vocabulary
    if not 0 < len(tokens) <= MOST_TOKENS or max(tokens.values()) > 2 * MOST_TOKENS:
        raise ValueError(f"a vocabulary of {len(tokens):,} tokens")
    if len(set(tokens.values())) < len(tokens):
        raise ValueError("two tokens have one id")
    if unfit := next((token for token in (*tokens, *parts.added) if "\n" in token or not token), None):
        _refuse(f"the token {unfit!r}", where)
    if parts.algorithm is Algorithm.WORD_PIECE and parts.unknown not in tokens:
        raise ValueError(f"the token for what is unknown, {parts.unknown!r}, is not in the vocabulary")
    if lacking := [pair for pair in parts.merges if not {*pair, "".join(pair)} <= tokens.keys()]:
        raise ValueError(f"the merge {lacking[0]} has a token that is not in the vocabulary")
    if parts.algorithm is Algorithm.BYTE_PAIRS and not tokens.keys() >= set(byte_letters()):
        _refuse("a vocabulary without all bytes", where)


def byte_letters() -> list[str]:
    """The letter that stands for each byte in the vocabulary of a byte-level BPE: GPT-2's table."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]
