"""Reading the TOML that a user writes. Unknown keys are refused with a suggestion."""

import difflib
import re
import shlex
import tomllib
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TypeVar, get_args, get_type_hints

import msgspec

from device_runner.reading import read_regular
from pipeline.config.checks import KeyPath, Problem, missing_files, problems
from pipeline.config.defaults import resolved, with_defaults
from pipeline.config.tables import Table
from pipeline.config.values import Config
from pipeline.core.errors import ConfigError
from pipeline.core.releases import read_release

T = TypeVar("T")

FILL_IN = "# FILL IN"
"""Ends a commented line that `ort-mobile init` could not fill in."""


def read_config(path: Path, *, existing: bool = False) -> Config:
    """Read and check a config file; raises ConfigError with file, line where known, key and remedy.

    With `existing` every file that it names must be there: a build makes what a target names as its library.
    """
    text = _read_text(path)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            "this is not valid TOML",
            where=str(path),
            why=str(error),
            remedy="fix the line; see docs/reference/config.md",
        ) from error
    _refuse_unfilled(path, text)
    _check_releases(document, path, text)
    try:
        config = msgspec.convert(document, Config)
    except msgspec.ValidationError as error:
        raise _explain(path, text, str(error)) from error
    _refuse(path, text, problems(config))
    config = resolved(config, path.parent)
    _refuse(path, text, missing_files(config) if existing else ())
    return with_defaults(config)


def _refuse_unfilled(path: Path, text: str) -> None:
    """ConfigError for a line that `ort-mobile init` left to the user."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") and line.rstrip().endswith(FILL_IN):
            raise ConfigError(
                "this line is to be filled in", where=_place(path, number), why=line.strip(),
                remedy="put the sizes that your app uses for the zeros, and remove the first #; or delete the line",
            )  # fmt: skip


def _refuse(path: Path, text: str, found: Iterable[Problem]) -> None:
    """Raise ConfigError for the first problem, with its line."""
    for problem in found:
        where = _place(path, _line_of(text, problem.key))
        raise ConfigError(problem.what, where=where, why=problem.why, remedy=problem.remedy)


def _place(path: Path, line: int | None) -> str:
    return f"{path}:{line}" if line else str(path)


MODEL_SUFFIXES = (".onnx", ".ort", ".zip")


def _read_text(path: Path) -> str:
    """The text of a config, without the mark that editors on Windows put before it."""
    if path.suffix.lower() in MODEL_SUFFIXES:
        raise ConfigError(
            "this is a model, not a config", where=str(path),
            remedy=f"give it with --model, as in ort-mobile run --model {shlex.quote(str(path))}",
        )  # fmt: skip
    try:
        return read_regular(path).decode("utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigError(
            "no such config file", where=str(path), remedy="check the path, or make one with `ort-mobile init MODEL`"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "the config file cannot be read", where=str(path), why=str(error),
            remedy="a config is a TOML file in UTF-8; `ort-mobile init MODEL` writes one",
        ) from error  # fmt: skip


def _check_releases(document: dict[str, object], path: Path, text: str) -> None:
    """ConfigError for an `ort_release` that is none; other mistakes are found later."""
    targets = document.get("targets")
    for number, target in enumerate(targets if isinstance(targets, list) else ()):
        if isinstance(target, dict) and "ort_release" in target:
            key = ("targets", number, "ort_release")
            read_release(target["ort_release"], key[-1], _place(path, _line_of(text, key)))


def _explain(path: Path, text: str, message: str) -> ConfigError:
    """Turn a message of msgspec into ours: key, line, and what was most likely meant."""
    reason, _, place = message.partition(" - at `")
    parts: KeyPath = tuple(key or int(number) for key, number in re.findall(r"\.(\w+)|\[(\d+)\]", place))
    keys = [part for part in parts if isinstance(part, str)]
    unknown = re.search(r"unknown field `(.*)`", reason)
    where = _place(path, _line_of(text, (*parts, unknown.group(1)) if unknown else parts))
    if unknown:
        return _unknown_key(unknown.group(1), where, _hint_at(keys)[0])
    allowed = ", ".join(str(value) for value in _hint_at(keys)[1])
    return ConfigError(
        f"the value of `{place.rstrip('`').removeprefix('$.') or 'the document'}` is not allowed",
        where=where,
        why=reason,
        remedy=f"it takes one of: {allowed}" if allowed else "see docs/reference/config.md for what it takes",
    )


def _unknown_key(key: str, where: str, table: type[Table]) -> ConfigError:
    keys = list(table.__struct_fields__)
    close = difflib.get_close_matches(key, keys, n=1)
    return ConfigError(
        f"unknown key `{key}`",
        where=where,
        why=f"this table takes: {', '.join(keys)}",
        remedy=f"did you mean `{close[0]}`?" if close else "remove it, or see docs/reference/config.md",
    )


def _hint_at(keys: list[str]) -> tuple[type[Table], tuple[StrEnum, ...]]:
    """The table that a path of keys leads to, and the values that its last key takes where these are few."""
    table: type[Table] = Config
    values: tuple[StrEnum, ...] = ()
    for key in keys:
        hint = get_type_hints(table).get(key)
        table = _type_in(hint, Table) or table
        values = tuple(_type_in(hint, StrEnum) or ())
    return table, values


def _type_in(hint: object, base: type[T]) -> type[T] | None:
    """The first type below `base` inside a type hint such as `tuple[Level, ...]`."""
    if isinstance(hint, type) and issubclass(hint, base):
        return hint
    return next((found for part in get_args(hint) if (found := _type_in(part, base))), None)


def _line_of(text: str, key: KeyPath) -> int | None:
    """The line of a key (tomllib gives lines for syntax errors only): in its own table, else where it stands once."""
    names = [part for part in key if isinstance(part, str)]
    lines = list(enumerate(text.splitlines(), 1))
    if not names:
        return None
    found = _lines_with(names[-1], _table_lines(lines, key)) or _lines_with(names[-1], lines)
    return found[0] if len(found) == 1 else None


def _lines_with(key: str, lines: Iterable[tuple[int, str]]) -> list[int]:
    name = re.escape(key)
    pattern = re.compile(rf"^\s*(\[+\s*)?[\"']?{name}[\"']?\s*(=|\])|[{{,]\s*{name}\s*=")
    return [number for number, line in lines if pattern.search(line)]


def _table_lines(lines: Iterable[tuple[int, str]], key: KeyPath) -> list[tuple[int, str]]:
    """The lines of the table that holds a key: of `[measure]`, or of the second `[[targets]]`; none at the top."""
    if len(key) < 2:
        return []
    wanted, number = key[0], key[1] if isinstance(key[1], int) else 0
    seen, inside, found = -1, False, []
    for line in lines:
        if heading := re.match(r"\s*\[+\s*([\w-]+)\s*\]", line[1]):
            seen += heading.group(1) == wanted
            inside = heading.group(1) == wanted and seen == number
        elif inside:
            found.append(line)
    return found
