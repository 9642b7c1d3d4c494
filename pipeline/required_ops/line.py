"""One line of an operator config, parsed so that an error names its column.

Grammar: `reduced_build_config_parser.py` of ONNX Runtime 1.21 to 1.31. What that parser swallows and the build later
drops or trips over (a comment behind an operator, misspelt types, arguments that carry none) is an error here; what it
swallows without harm (blanks, stray commas) is not.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from pipeline.core.errors import ConfigError
from pipeline.required_ops.value import (
    CUSTOM,
    INPUTS,
    KNOWN_DOMAINS,
    OUTPUTS,
    TRIPLE,
    TYPE_NAMES,
    TYPE_SLOTS,
    OpTypes,
    RequiredOps,
    Slot,
)

GLOBAL_TYPES = "!globally_allowed_types;"
ALL_REQUIRED = "!no_ops_specified_means_all_ops_are_required"
NAME = re.compile(r"(?:(?![,;{}#!\"'\\])[!-~])+")
"""A domain or an operator: plain characters that cannot be taken for a mark of the format."""

_OPSET = re.compile(r"\d{1,9}(?!\d)")
_SHAPE = "a line is domain;opset,...;operator,..."
_TYPES_SHAPE = 'as in Cast{"inputs": {"0": ["float"]}, "outputs": {"0": ["int64_t"]}}'
_TRIPLE_SHAPE = 'as in OneHot{"custom": [["int64_t", "float", "int64_t"]]}'
_T = TypeVar("_T")


@dataclass(slots=True)
class _Scanner:
    """A line and how far it is read."""

    source: str
    number: int
    line: str
    at: int = 0

    def skip_blanks(self) -> None:
        while self.at < len(self.line) and self.line[self.at].isspace():
            self.at += 1

    def looking_at(self, mark: str) -> bool:
        self.skip_blanks()
        return self.line.startswith(mark, self.at)

    def take(self, pattern: re.Pattern[str], what: str, remedy: str) -> str:
        self.skip_blanks()
        found = pattern.match(self.line, self.at)
        if not found:
            self.fail(f"{what} is missing", remedy)
        self.at = found.end()
        return found[0]

    def expect(self, mark: str, remedy: str = _SHAPE) -> None:
        if not self.looking_at(mark):
            self.fail(f"'{mark}' is missing", remedy)
        self.at += len(mark)

    def separated(self, item: Callable[["_Scanner"], _T]) -> list[_T]:
        """Items between commas up to a semicolon or the end; stray commas are harmless."""
        items = []
        while not self.at_end() and not self.looking_at(";"):
            if not self.looking_at(","):
                items.append(item(self))
            if not self.at_end() and not self.looking_at(";"):
                self.expect(",", "items are separated by commas, and comments stand on lines of their own")
        return items

    def at_end(self) -> bool:
        self.skip_blanks()
        return self.at == len(self.line)

    def fail(self, what: str, remedy: str, at: int | None = None) -> NoReturn:
        """Raise with the place: where the scanner stands, or `at`."""
        at = self.at if at is None else at
        rest = self.line[at : at + 40]
        raise ConfigError(what, where=f"{self.source}:{self.number}:{at + 1}",
                          why=f"at {rest!r}" if rest else "at the end of the line", remedy=remedy)  # fmt: skip


def parse_line(source: str, number: int, raw: str) -> RequiredOps | None:
    """What a line says by itself; None for blank lines and comments. Raises ConfigError with line and column."""
    scanner = _Scanner(source, number, raw.rstrip())
    scanner.skip_blanks()
    body = scanner.line[scanner.at :]
    if not body or body.startswith("#"):
        return None
    if body == ALL_REQUIRED:
        return RequiredOps(everything=True)
    if body.startswith(GLOBAL_TYPES):
        scanner.at += len(GLOBAL_TYPES)
        return RequiredOps(global_types=frozenset(scanner.separated(_type)))
    if body.startswith("!"):
        scanner.fail("unknown directive", f"there are {GLOBAL_TYPES}T,... and {ALL_REQUIRED}")
    return _operators(scanner)


def _operators(scanner: _Scanner) -> RequiredOps:
    domain = _domain(scanner)
    opsets = scanner.separated(_opset)
    if not opsets:
        scanner.fail("no opset", _SHAPE)
    scanner.expect(";")
    names: set[str] = set()
    types: dict[tuple[str, str], OpTypes] = {}
    start = scanner.at
    for name, found in scanner.separated(lambda inner: _entry(inner, domain)):
        if name in names and types.get((domain, name)) != found:
            scanner.fail(f"{name} twice with different types", "name it once, with the types of both", start)
        names.add(name)
        if found is not None:
            types[domain, name] = found
    if not names:
        scanner.fail("no operator", "name the operators, or remove the line")
    if not scanner.at_end():
        scanner.fail("text behind the operators", _SHAPE)
    return RequiredOps(operators={(domain, opset): frozenset(names) for opset in opsets}, types=types)


def _domain(scanner: _Scanner) -> str:
    start = scanner.at
    name = scanner.take(NAME, "the domain", "write ai.onnx for the default domain")
    close = difflib.get_close_matches(name, KNOWN_DOMAINS, n=1, cutoff=0.85)
    if name not in KNOWN_DOMAINS and close:
        scanner.fail(f"unknown domain {name}", f"did you mean {close[0]}?", start)
    scanner.expect(";")
    return name


def _opset(scanner: _Scanner) -> int:
    start = scanner.at
    opset = int(scanner.take(_OPSET, "an opset number", _SHAPE))
    if opset < 1:
        scanner.fail("no such opset", "opsets are counted from 1", start)
    return opset


def _type(scanner: _Scanner) -> str:
    scanner.skip_blanks()
    start = scanner.at
    return _known_type(scanner, scanner.take(NAME, "a type", "C++ names such as float,int64_t"), start)


def _known_type(scanner: _Scanner, name: object, at: int) -> str:
    if not isinstance(name, str) or name not in TYPE_NAMES:
        close = difflib.get_close_matches(str(name), TYPE_NAMES, n=1, cutoff=0.4)
        hint = f"did you mean {close[0]}?" if close else f"the types are {', '.join(sorted(TYPE_NAMES))}"
        scanner.fail(f"there is no type {name}", hint, max(scanner.line.find(str(name), at), at))
    return name


def _entry(scanner: _Scanner, domain: str) -> tuple[str, OpTypes | None]:
    """An operator with its types. Types of operators that a build cannot restrict mean nothing and are dropped."""
    name = scanner.take(NAME, "an operator", "operators are separated by commas")
    if not scanner.looking_at("{"):
        return name, None
    start = scanner.at
    parsed = _json(scanner)
    slots = TYPE_SLOTS.get((domain, name))
    return name, (_types(scanner, parsed, slots, start) or None) if slots else None


def _json(scanner: _Scanner) -> dict[str, object]:
    """The object at the scanner's place; it starts with a brace."""
    decoder = json.JSONDecoder(object_pairs_hook=_without_repeats)
    try:
        parsed, scanner.at = decoder.raw_decode(scanner.line, scanner.at)
    except json.JSONDecodeError as error:
        scanner.fail(f"the types are no JSON: {error.msg}", _TYPES_SHAPE, error.pos)
    except (ValueError, RecursionError) as error:
        scanner.fail(f"the types are not as they should be: {error}", _TYPES_SHAPE)
    return dict(parsed)


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice")
    return found


def _types(scanner: _Scanner, parsed: dict[str, object], slots: tuple[Slot, ...], at: int) -> OpTypes:
    types: dict[Slot, frozenset[str]] = {}
    for slot, names in _lists(scanner, parsed, at):
        if slot not in slots:
            can = " and ".join(kind if kind == CUSTOM else f"{kind} {index}" for kind, index in slots)
            scanner.fail(f"types of {slot[0]} {slot[1]} cannot be restricted here", f"only those of {can} can", at)
        types[slot] = frozenset(_listed(scanner, name, slot, at) for name in names)
    return types


def _lists(scanner: _Scanner, parsed: dict[str, object], at: int) -> Iterator[tuple[Slot, list[object]]]:
    for kind, content in parsed.items():
        if kind == CUSTOM and isinstance(content, list):
            yield TRIPLE, content
            continue
        if kind not in (INPUTS, OUTPUTS) or not isinstance(content, dict):
            scanner.fail(f"cannot read the types of {kind!r}", _TYPES_SHAPE, at)
        for index, names in content.items():
            if not re.fullmatch("[0-9]{1,3}", index) or not isinstance(names, list):
                scanner.fail(f"cannot read the types of {kind} {index!r}", _TYPES_SHAPE, at)
            yield (kind, int(index)), names


def _listed(scanner: _Scanner, name: object, slot: Slot, at: int) -> str:
    if slot != TRIPLE:
        return _known_type(scanner, name, at)
    if not isinstance(name, list) or len(name) != 3:
        scanner.fail("OneHot's types come in threes", _TRIPLE_SHAPE, at)
    return ",".join(_known_type(scanner, part, at) for part in name)
