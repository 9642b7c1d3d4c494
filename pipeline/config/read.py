"""Reading the TOML that a user writes. Unknown keys are refused with a suggestion."""

import difflib
import re
import tomllib
from enum import StrEnum
from pathlib import Path
from typing import TypeVar, get_args, get_type_hints

import msgspec

from pipeline.config.defaults import resolved, with_defaults
from pipeline.config.table import Table
from pipeline.config.values import Config
from pipeline.errors import ConfigError

T = TypeVar("T")


def read_config(path: Path) -> Config:
    """Read and check a config file; raises ConfigError with file, line where known, key and remedy."""
    text = _read_text(path)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            "this is not valid TOML",
            where=str(path),
            why=str(error),
            remedy="mend the line; see docs/reference/config.md",
        ) from error
    try:
        config = msgspec.convert(document, Config)
    except msgspec.ValidationError as error:
        raise _explain(path, text, str(error)) from error
    return with_defaults(resolved(config, path.parent))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(
            "no such config file", where=str(path), remedy="check the path, or make one with `ort-mobile init MODEL`"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("the config file cannot be read", where=str(path), why=str(error)) from error


def _explain(path: Path, text: str, message: str) -> ConfigError:
    """Turn a message of msgspec into ours: key, line, and what was most likely meant."""
    reason, _, place = message.partition(" - at `")
    keys = re.findall(r"\.(\w+)", place)
    unknown = re.search(r"unknown field `(.*)`", reason)
    line = _line_of(text, unknown.group(1) if unknown else keys[-1] if keys else "")
    where = f"{path}:{line}" if line else str(path)
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


def _line_of(text: str, key: str) -> int | None:
    """The line of a key when it stands once in the file (tomllib gives lines for syntax errors only)."""
    pattern = re.compile(rf"^\s*(\[+\s*)?[\"']?{re.escape(key)}[\"']?\s*(=|\])|[{{,]\s*{re.escape(key)}\s*=")
    lines = [number for number, line in enumerate(text.splitlines(), 1) if pattern.search(line)]
    return lines[0] if len(lines) == 1 else None
