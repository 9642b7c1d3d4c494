"""The file of a tokenizer beside a model: what the classes of an app read, in lines that any language splits.

The first line has the version, the algorithm, and the library that was asked. Sections follow: a line with a name and
a count, then as many lines.
A BPE has no tokens in it, only ids: those of the 256 bytes, and of pairs what they become.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.features.app_data import code_points, tokenizer_parts
from pipeline.features.app_data.code_points import CodePoints
from pipeline.features.app_data.tokenizer_parts import Algorithm, TokenizerParts

HEAD = "ort-mobile-tokenizer 1"
ENDING = ".tokens"


def written(parts: TokenizerParts, answers: CodePoints) -> bytes:
    """The file of a tokenizer."""
    lines = [f"{HEAD} {parts.algorithm} {code_points.version()}"]
    for name, content in _sections(parts, answers):
        lines += [f"{name} {len(content)}", *content]
    return ("\n".join(lines) + "\n").encode()


def _sections(parts: TokenizerParts, answers: CodePoints) -> Iterator[tuple[str, Sequence[str]]]:
    options = {"pad": -1 if parts.pad is None else parts.pad, "blank": int(parts.blank_before), "most": parts.length}
    if parts.algorithm is Algorithm.WORD_PIECE:
        options |= {"unknown": parts.vocabulary[parts.unknown], "longest": parts.longest, "hangul": int(answers.hangul)}
    yield "options", [f"{name} {number}" for name, number in options.items()]
    yield "begin", list(map(str, parts.begin))
    yield "end", list(map(str, parts.end))
    yield "added", [f"{number} {text}" for text, number in parts.added.items()]
    yield "kinds", [f"{first:x} {kind}" for first, kind in answers.kinds]
    if parts.algorithm is Algorithm.WORD_PIECE:
        yield "changes", list(map(_line, answers.changes))
        yield "prefix", [parts.prefix]
        tokens = [""] * (max(parts.vocabulary.values()) + 1)
        for token, number in parts.vocabulary.items():
            tokens[number] = token
        yield "vocabulary", tokens
    else:
        ids = parts.vocabulary
        yield "bytes", [str(ids[letter]) for letter in tokenizer_parts.byte_letters()]
        yield "merges", [f"{ids[left]} {ids[right]} {ids[left + right]}" for left, right in parts.merges]


def _line(change: code_points.Becoming) -> str:
    numbers = "".join(f" {number:x}" if change.how == code_points.TO else f" {number}" for number in change.numbers)
    return f"{change.first:x} {change.last:x} {change.how}{numbers}"


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """A file that was read: the library that was asked with its version, and the lines of each section."""

    algorithm: Algorithm
    library: str
    sections: Mapping[str, Sequence[str]]


def read(content: bytes) -> TokenizerFile:
    """The file of a tokenizer; ValueError for what is none."""
    lines = content.decode().split("\n")
    if not lines[0].startswith(f"{HEAD} "):
        raise ValueError(f"it does not begin with {HEAD!r}")
    parts: dict[str, list[str]] = {}
    at = 1
    while at < len(lines) - 1:
        name, _, count = lines[at].rpartition(" ")
        parts[name] = lines[at + 1 : at + 1 + int(count)]
        at += 1 + int(count)
    _, _, algorithm, library = lines[0].split(" ", 3)
    return TokenizerFile(Algorithm(algorithm), library, parts)
