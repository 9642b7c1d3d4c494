"""Texts as inputs of a model: the tokenizer's file, made once and compared with its library, and samples of lines."""

import hashlib
import random
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from device_runner import files as runner_files
from device_runner import untrusted_files
from device_runner.spec import ElementType
from pipeline import dataset as datasets
from pipeline.config import app_data
from pipeline.core import own_sources
from pipeline.core.errors import CheckFailed, ConfigError
from pipeline.features.app_data import code_points, tokenizer, tokenizer_file, tokenizer_parts
from pipeline.model import signature
from pipeline.model.signature import TensorInfo

MOST_TEXT_BYTES = 64 << 20
COMPARED = 500
"""Texts of which a tokenizer's file is compared with its library, before anything is made of it."""

ELEMENTS = {
    "ids": (ElementType.INT64, ElementType.INT32),
    "mask": (ElementType.INT64, ElementType.INT32, ElementType.FLOAT32),
    "types": (ElementType.INT64, ElementType.INT32),
}
"""What the inputs of a text may be."""


def tokens(takes: app_data.Takes) -> bytes:
    """The tokenizer's file for apps; some seconds where it is not kept. Raises as `tokenizer_parts.read` does,
    MissingError without the library, and CheckFailed where it does not agree with it.
    """
    source = Path(takes.text or "")
    parts = tokenizer_parts.read(source)
    key = (source.read_bytes(), code_points.version().encode(), own_sources.sources_digest(__name__).encode())
    folder = runner_files.cache_folder() / "tokenizers" / hashlib.sha256(b"\0".join(key)).hexdigest()
    file = folder / f"made{tokenizer_file.ENDING}"
    with runner_files.own_folder_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with runner_files.taking_turns(folder):
        if not runner_files.are_sound(folder, [file.name]):
            made = tokenizer_file.written(parts, code_points.asked(parts, str(source)))
            _compare(made, parts, source)
            runner_files.keep_noted(file, made)
        return file.read_bytes()


def tokens_in_manifest(takes: app_data.Takes, content: bytes, file: str) -> signature.TextTokens:
    """What a manifest says of a tokenizer's file, at a path in the bundle."""
    made = tokenizer.Tokenizer(content)
    return signature.TextTokens(
        file=file,
        algorithm=made.algorithm.value,
        library=made.library,
        ids=takes.ids or "",
        mask=takes.mask or "",
        types=takes.types or "",
        most=most_tokens(takes, made),
    )


def most_tokens(takes: app_data.Takes, made: tokenizer.Tokenizer) -> int:
    """The most tokens of a text; ConfigError where nobody says it, or it has no room for those around a text."""
    most = takes.most or made.options["most"]
    around = len(made.begin) + len(made.end)
    if most <= around:
        raise ConfigError(
            f"{most} tokens are none of a text" if most else "it is not said how many tokens a text may have",
            where=takes.text or "",
            why=f"{around} stand around every text" if most else "the tokenizer has no `truncation`",
            remedy="give `takes.most`, the length that the model was trained with",
        )
    return most


def check_inputs(takes: app_data.Takes, inputs: Sequence[TensorInfo], where: str) -> None:
    """ConfigError where a model does not take what a text becomes."""
    by_name = {given.name: given for given in inputs}
    for key, elements in ELEMENTS.items():
        name = getattr(takes, key)
        if name is None:
            continue
        given = by_name.get(name)
        if given is None:
            raise ConfigError(
                f"the model has no input {name!r}",
                where=where,
                why=f"it has {', '.join(by_name) or 'none'}",
                remedy=f"name one of them as `takes.{key}`",
            )
        shape = given.shape
        if given.dtype not in elements or (
            shape and (len(shape) != 2 or (isinstance(shape[0], int) and shape[0] != 1))
        ):
            raise ConfigError(
                f"the input {name!r} takes no tokens",
                where=where,
                why=f"it is {given}; {' or '.join(elements)} [1, n] is wanted",
                remedy=f"name another input as `takes.{key}`, or export the model for one text",
            )
    named = {takes.ids, takes.mask, takes.types}
    if others := [name for name in by_name if name not in named]:
        raise ConfigError(
            f"nothing is said of the input {others[0]!r}",
            where=where,
            why="the app gives a text, and what it becomes is `ids`, `mask` and `types`",
            remedy="name it as one of these, or export the model without it",
        )
    sizes = {given.shape[1] for name, given in by_name.items() if given.shape and isinstance(given.shape[1], int)}
    if len(sizes) > 1:
        raise ConfigError(
            "the inputs of a text are not of one length",
            where=where,
            why=", ".join(map(str, by_name.values())),
            remedy="export the model with one length, or an open one",
        )


def text_samples(takes: app_data.Takes, file: Path, inputs: Sequence[TensorInfo]) -> Iterator[datasets.Sample]:
    """A sample for each line of a text file that is not empty; ConfigError for what is no text."""
    made = _tokenizer(tokens(takes))
    most = most_tokens(takes, made)
    try:
        lines = untrusted_files.read_regular(file, MOST_TEXT_BYTES).decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "the texts cannot be read",
            where=str(file),
            why=str(error),
            remedy="give a text file in UTF-8 with a text a line",
        ) from error
    for number, line in enumerate(lines, 1):
        if text := line.removesuffix("\r"):
            yield datasets.Sample(name=f"{file}:{number}", inputs=tensors(takes, made, text, most, inputs), text=text)


def tensors(
    takes: app_data.Takes, made: tokenizer.Tokenizer, text: str, most: int, inputs: Sequence[TensorInfo]
) -> dict[str, Any]:
    """The inputs for a text, [1, n]; filled up where the model has one length."""
    import numpy as np

    shapes = {given.name: given for given in inputs}
    fixed = next((size for given in inputs if given.shape and isinstance(size := given.shape[-1], int)), 0)
    ids = made.ids(text, min(most, fixed or most))
    filled = max(0, fixed - len(ids))
    values = {
        takes.ids: [*ids, *[made.options["pad"]] * filled],
        takes.mask: [*[1] * len(ids), *[0] * filled],
        takes.types: [0] * (len(ids) + filled),
    }
    return {
        name: np.array([numbers], np.dtype(given.dtype.value))
        for name, numbers in values.items()
        if name and (given := shapes.get(name)) and given.dtype
    }


@cache
def _tokenizer(content: bytes) -> tokenizer.Tokenizer:
    return tokenizer.Tokenizer(content)


def _compare(made: bytes, parts: tokenizer_parts.TokenizerParts, source: Path) -> None:
    """CheckFailed for a text of which the file and the library make other ids."""
    whole, own = _whole(source), tokenizer.Tokenizer(made)
    for text in edge_texts(list(parts.vocabulary), COMPARED):
        if own.ids(text, 1 << 30) != whole.encode(text).ids:
            raise CheckFailed(
                "the tokenizer cannot be repeated",
                where=str(source),
                why=f"the text {ascii(text)[:200]} becomes other tokens than in {code_points.version()}",
                remedy="leave out `takes`, give the model ids by the app's own code, and report the tokenizer",
            )


def _whole(source: Path) -> Any:
    """The tokenizer as the library reads it; ConfigError where it does not."""
    try:
        whole = code_points.library().Tokenizer.from_str(source.read_text("utf-8"))
    except Exception as error:
        raise ConfigError(
            "the library cannot read the tokenizer",
            where=str(source),
            why=str(error)[:300],
            remedy="save it again with `tokenizer.save('tokenizer.json')` of the package tokenizers",
        ) from error
    whole.no_padding()
    whole.no_truncation()
    return whole


def edge_texts(words: Sequence[str], count: int) -> Iterator[str]:
    """Texts on which tokenizers differ: of words, of marks, of code points of every script and of none."""
    generator = random.Random(0)  # noqa: S311, the same texts each time, and no secret
    blocks = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x700), (0x900, 0x1200), (0x1E00, 0x2100)]
    blocks += [(0x3000, 0x3100), (0x4E00, 0xA000), (0xAC00, 0xD7A4), (0xF900, 0x10000), (0x1F300, 0x1FB00)]
    blocks += [(0x10000, 0x20000), (0xE000, 0x110000)]
    odd = ["[SEP]", "[MASK]", "[CLS", "'s", "'LL", "don't", "x" * 101, "e\u0301", "\u200d", "\ufeff", "ﷺ", "İ", "½"]
    odd += [" ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "한국어", "日本語", "\U0001d165", "1a", "a!"]

    def code() -> str:
        low, high = generator.choice(blocks)
        return chr(generator.randrange(low, high))

    yield ""
    for number in range(count):
        length = generator.randrange(1, 40)
        if number % 3 == 0:
            yield " ".join(generator.choice(words) for _ in range(length))
        elif number % 3 == 1:
            yield "".join(code() for _ in range(length))
        else:
            yield "".join(generator.choice((code(), generator.choice(odd))) for _ in range(length))
