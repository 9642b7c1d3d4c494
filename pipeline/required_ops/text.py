"""The file format of required operators, and the needs of artifacts where they lie.

# comment
!globally_allowed_types;float,int64_t
!no_ops_specified_means_all_ops_are_required
ai.onnx;13,14;Add,Cast{"inputs": {"0": ["float"]}, "outputs": {"0": ["int64_t"]}}

Grammar: `reduced_build_config_parser.py` of ONNX Runtime 1.21 to 1.31. What that parser swallows and the build later
drops or trips over (a comment behind an operator, misspelt types, arguments that carry none) is an error here, which
names its column; what it swallows without harm (blanks, stray commas) is not.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn, TypeVar

from device_runner import files as runner_files
from device_runner import untrusted_files
from pipeline.core.errors import ConfigError, ModelError
from pipeline.model import ort_format
from pipeline.model import sources as model_sources
from pipeline.required_ops.value import (
    CUSTOM,
    INPUTS,
    KNOWN_DOMAINS,
    NAME,
    OUTPUTS,
    TRIPLE,
    TYPE_NAMES,
    TYPE_SLOTS,
    Needs,
    OperatorKey,
    OpTypes,
    RequiredOps,
    Slot,
    needs_by_build,
    replays,
    union_of,
)

GLOBAL_TYPES = "!globally_allowed_types;"
ALL_REQUIRED = "!no_ops_specified_means_all_ops_are_required"
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
        match = pattern.match(self.line, self.at)
        if not match:
            self.fail(f"{what} is missing", remedy)
        self.at = match.end()
        return match[0]

    def expect(self, mark: str, remedy: str = _SHAPE) -> None:
        if not self.looking_at(mark):
            self.fail(f"'{mark}' is missing", remedy)
        self.at += len(mark)

    def separated(self, read: Callable[["_Scanner"], _T]) -> list[_T]:
        """Items between commas up to a semicolon or the end; stray commas are harmless."""
        items = []
        while not self.at_end() and not self.looking_at(";"):
            if not self.looking_at(","):
                items.append(read(self))
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
        raise ConfigError(
            what,
            where=f"{self.source}:{self.number}:{at + 1}",
            why=f"at {rest!r}" if rest else "at the end of the line",
            remedy=remedy,
        )


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
    start = scanner.at
    domain = scanner.take(NAME, "the domain", "write ai.onnx for the default domain")
    close = difflib.get_close_matches(domain, KNOWN_DOMAINS, n=1, cutoff=0.85)
    if domain not in KNOWN_DOMAINS and close:
        scanner.fail(f"unknown domain {domain}", f"did you mean {close[0]}?", start)
    scanner.expect(";")
    opsets = scanner.separated(_opset)
    if not opsets:
        scanner.fail("no opset", _SHAPE)
    scanner.expect(";")
    names: set[str] = set()
    types: dict[tuple[str, str], OpTypes] = {}
    start = scanner.at
    for name, restricted in scanner.separated(lambda inner: _entry(inner, domain)):
        if name in names and types.get((domain, name)) != restricted:
            scanner.fail(f"{name} twice with different types", "name it once, with the types of both", start)
        names.add(name)
        if restricted is not None:
            types[domain, name] = restricted
    if not names:
        scanner.fail("no operator", "name the operators, or remove the line")
    if not scanner.at_end():
        scanner.fail("text behind the operators", _SHAPE)
    return RequiredOps(operators={(domain, opset): frozenset(names) for opset in opsets}, types=types)


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
    slots = TYPE_SLOTS.get((domain, name), ())
    types: dict[Slot, frozenset[str]] = {}
    for kind, content in parsed.items() if slots else ():
        if not isinstance(content, _CONTENT.get(kind, ())):
            scanner.fail(f"cannot read the types of {kind!r}", _TYPES_SHAPE, start)
        by_index = content if isinstance(content, dict) else {"0": content}
        for index, names in by_index.items():
            if not re.fullmatch("[0-9]{1,3}", index) or not isinstance(names, list):
                scanner.fail(f"cannot read the types of {kind} {index!r}", _TYPES_SHAPE, start)
            slot = (kind, int(index))
            if slot not in slots:
                can = " and ".join(kind if kind == CUSTOM else f"{kind} {index}" for kind, index in slots)
                scanner.fail(f"types of {kind} {slot[1]} cannot be restricted here", f"only those of {can} can", start)
            types[slot] = frozenset(_listed(scanner, name, slot, start) for name in names)
    return name, types or None


_CONTENT: Mapping[str, type] = {INPUTS: dict, OUTPUTS: dict, CUSTOM: list}
"""What the types of each kind of arguments are in JSON: lists by index, or OneHot's triples."""


def _json(scanner: _Scanner) -> dict[str, object]:
    """The object at the scanner's place; it starts with a brace."""

    def without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a key stands twice")
        return dict(pairs)

    decoder = json.JSONDecoder(object_pairs_hook=without_repeats)
    try:
        parsed, scanner.at = decoder.raw_decode(scanner.line, scanner.at)
    except json.JSONDecodeError as error:
        scanner.fail(f"the types are no JSON: {error.msg}", _TYPES_SHAPE, error.pos)
    except (ValueError, RecursionError) as error:
        scanner.fail(f"the types are not as they should be: {error}", _TYPES_SHAPE)
    return dict(parsed)


def _listed(scanner: _Scanner, name: object, slot: Slot, at: int) -> str:
    if slot != TRIPLE:
        return _known_type(scanner, name, at)
    if not isinstance(name, list) or len(name) != 3:
        scanner.fail("OneHot's types come in threes", _TRIPLE_SHAPE, at)
    return ",".join(_known_type(scanner, part, at) for part in name)


CONFIG_BYTES = 64 << 20
"""Most that is read of an operator config; one with every operator and type has a tenth of a megabyte."""
HEADER = "# Operators that this build must contain, a line for each domain and opset: domain;opset;operators\n"


def render(required: RequiredOps) -> str:
    """The canonical text: sorted, one line a domain and opset, nothing in it that changes between machines or runs."""
    lines = [HEADER]
    if required.global_types is not None:
        lines.append(f"{GLOBAL_TYPES}{','.join(sorted(required.global_types))}\n")
    if required.everything:
        lines.append(f"{ALL_REQUIRED}\n")
    lines += [f"{line}\n" for line in operator_lines(required)]
    return "".join(lines)


def operator_lines(required: RequiredOps) -> Iterator[str]:
    """The lines of operators without line ends."""
    for (domain, opset), ops in sorted(required.operators.items()):
        entries = [op + render_types(required.types.get((domain, op))) for op in sorted(ops)]
        yield f"{domain};{opset};{','.join(entries)}"


def render_types(types: OpTypes | None) -> str:
    """The JSON behind an operator's name; empty when nothing is restricted."""
    if types is None:
        return ""
    if TRIPLE in types:
        return json.dumps({CUSTOM: [triple.split(",") for triple in sorted(types[TRIPLE])]})
    kinds: dict[str, dict[str, list[str]]] = {}
    for (kind, index), names in sorted(types.items()):
        kinds.setdefault(kind, {})[str(index)] = sorted(names)
    return json.dumps(kinds)


def parse(text: str, source: str) -> RequiredOps:
    """What a build made with this text contains. Raises ConfigError with file, line and column.

    ONNX Runtime lets the last line win where two lines restrict an operator to different types, which takes kernels
    away from a model: such a text is refused (`ort-mobile op-config merge` repairs it).
    """
    lines = _lines(text, source)
    seen: dict[OperatorKey, tuple[OpTypes | None, int]] = {}
    for number, value in lines:
        for key in sorted(value.operator_keys()):
            types, before = seen.setdefault(key, (value.types.get(key), number))
            if types != value.types.get(key):
                raise ConfigError(
                    f"other types for {key[1]} of {key[0]}",
                    where=f"{source}:{number}:1",
                    why=f"line {before} says otherwise, and ONNX Runtime would keep the types of the last line only",
                    remedy="merge them with `ort-mobile op-config merge`",
                )
    directives = [number for number, value in lines if value.global_types is not None]
    if len(directives) > 1:
        raise ConfigError(
            "globally allowed types a second time",
            where=f"{source}:{directives[1]}:1",
            why=f"line {directives[0]} has them already",
            remedy="keep one line with all",
        )
    if directives and (typed := [number for number, value in lines if value.types]):
        raise ConfigError(
            "globally allowed types beside types per operator",
            where=f"{source}:{typed[0]}:1",
            why=f"line {directives[0]} allows types globally; ONNX Runtime refuses both together",
            remedy="keep one of them",
        )
    return _joined(value for _, value in lines)


def parse_merged(text: str, source: str) -> RequiredOps:
    """The union of the lines: what someone meant who put configs one behind the other. Raises ConfigError."""
    return _joined(value for _, value in _lines(text, source))


def read_config(path: Path, *, merged: bool = False) -> RequiredOps:
    """`parse` (or `parse_merged`) a file. Raises ConfigError when it cannot be read or is wrong."""
    try:
        text = (
            untrusted_files.read_regular(path, CONFIG_BYTES).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
        )
    except OSError as error:
        raise ConfigError(
            "cannot read the operator config",
            where=str(path),
            why=error.strerror or str(error),
            remedy="check the path",
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            "the operator config is not text",
            where=str(path),
            why=str(error),
            remedy="make it with `ort-mobile op-config create`",
        ) from error
    return (parse_merged if merged else parse)(text, str(path))


def _lines(text: str, source: str) -> list[tuple[int, RequiredOps]]:
    """Line numbers and values of the lines that say something."""
    values = [(number, parse_line(source, number, line)) for number, line in enumerate(text.split("\n"), 1)]
    return [(number, value) for number, value in values if value is not None]


def _joined(values: Iterable[RequiredOps]) -> RequiredOps:
    """Directives hold for the whole file, wherever they stand; types are dropped where the two kinds meet."""
    values = list(values)
    listed = [value for value in values if value.operators]
    allowed = [value.global_types for value in values if value.global_types is not None]
    required = union_of(listed)
    if allowed:
        both_kinds = bool(required.types)
        required = (
            required.without_types() if both_kinds else replace(required, global_types=allowed[0].union(*allowed))
        )
    return required if listed else replace(required, everything=any(value.everything for value in values))


SUFFIXES = (".ort",)


def needs_of_artifacts(
    paths: Iterable[str | Path],
    *,
    providers: Sequence[str] = (),
    extended: bool = False,
    cached: Mapping[str, tuple[Needs, Needs]] = {},
) -> tuple[dict[str, Needs], list[ModelError]]:
    """The needs of all artifacts under paths that one build is to run, by name as in find_models; and the errors of
    those that cannot be read.

    One artifact with saved optimizations makes the build an extended one, and so for all. `cached` are the needs (of a
    minimal and an extended build) of artifacts that need not be read, by name. Raises ConfigError for paths without
    artifacts.
    """
    read: dict[str, tuple[Needs, Needs]] = {}  # both kinds of build: the last artifact may decide which it is
    errors: list[ModelError] = []
    extended = extended or bool(providers)
    for source in model_sources.find_models(paths, SUFFIXES):
        if source.name in cached:
            read[source.name] = cached[source.name]
            continue
        try:
            if source.member:  # by way of a temporary file, so that weights never fill the memory
                with runner_files.scratch_folder() as folder:
                    model = ort_format.read_ort(model_sources.Spool(source, folder).fetch_model())
            else:
                model = ort_format.read_artifact(Path(source.path))
            read[source.name] = needs_by_build(model, providers)
            extended = extended or replays(model)
        except ModelError as error:
            errors.append(ModelError.of(error.problem, where=source.name))
    return {name: needs[extended] for name, needs in read.items()}, errors
