"""The file format of required operators, as ONNX Runtime's build scripts read it.

# comment
!globally_allowed_types;float,int64_t
!no_ops_specified_means_all_ops_are_required
ai.onnx;13,14;Add,Cast{"inputs": {"0": ["float"]}, "outputs": {"0": ["int64_t"]}}
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from device_runner.reading import read_regular
from pipeline.core.errors import ConfigError
from pipeline.required_ops.line import ALL_REQUIRED, GLOBAL_TYPES, parse_line
from pipeline.required_ops.rules import CUSTOM, TRIPLE
from pipeline.required_ops.value import OperatorKey, OpTypes, RequiredOps, union_of

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
    _refuse_conflicts(source, lines)
    directives = [number for number, value in lines if value.global_types is not None]
    if len(directives) > 1:
        raise ConfigError("globally allowed types a second time", where=f"{source}:{directives[1]}:1",
                          why=f"line {directives[0]} has them already", remedy="keep one line with all")  # fmt: skip
    if directives and (typed := [number for number, value in lines if value.types]):
        raise ConfigError("globally allowed types beside types per operator", where=f"{source}:{typed[0]}:1",
                          why=f"line {directives[0]} allows types globally; ONNX Runtime refuses both together",
                          remedy="keep one of them")  # fmt: skip
    return _joined(value for _, value in lines)


def parse_merged(text: str, source: str) -> RequiredOps:
    """The union of the lines: what someone meant who put configs one behind the other. Raises ConfigError."""
    return _joined(value for _, value in _lines(text, source))


def read_config(path: Path, *, merged: bool = False) -> RequiredOps:
    """`parse` (or `parse_merged`) a file. Raises ConfigError when it cannot be read or is wrong."""
    try:
        text = read_regular(path, CONFIG_BYTES).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise ConfigError("cannot read the operator config", where=str(path), why=error.strerror or str(error),
                          remedy="check the path") from error  # fmt: skip
    except UnicodeDecodeError as error:
        raise ConfigError("the operator config is not text", where=str(path), why=str(error),
                          remedy="make it with `ort-mobile op-config create`") from error  # fmt: skip
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


def _refuse_conflicts(source: str, lines: list[tuple[int, RequiredOps]]) -> None:
    seen: dict[OperatorKey, tuple[OpTypes | None, int]] = {}
    for number, value in lines:
        for key in sorted(value.operator_keys()):
            types, before = seen.setdefault(key, (value.types.get(key), number))
            if types != value.types.get(key):
                _refuse_conflict(source, number, before, key)


def _refuse_conflict(source: str, number: int, before: int, key: OperatorKey) -> NoReturn:
    raise ConfigError(
        f"other types for {key[1]} of {key[0]}", where=f"{source}:{number}:1",
        why=f"line {before} says otherwise, and ONNX Runtime would keep the types of the last line only",
        remedy="merge them with `ort-mobile op-config merge`",
    )  # fmt: skip
