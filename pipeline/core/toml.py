"""TOML of users, read within bounds."""

import re
import tomllib
from collections.abc import Collection
from typing import Any

from pipeline.core.errors import ConfigError

PART_OF_KEY = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""

MOST_PARTS = 100

LONG_KEY = re.compile(
    rf"(?:^|[\[{{,])[ \t]*{PART_OF_KEY}(?:[ \t]*\.[ \t]*{PART_OF_KEY}){{{MOST_PARTS},}}", re.MULTILINE
)
"""A key of so many parts with dots between: tomllib takes time and memory by their square."""

MOST_NESTED = 200
"""Arrays and tables inside one another, which is what reading and explaining them recurses into."""


def read_toml(text: str, where: str, remedy: str) -> dict[str, Any]:
    """A TOML document; ConfigError for what is none, and for what nobody writes by hand and no reader bears."""
    why = ""
    if LONG_KEY.search(text):
        why = f"a key has more than {MOST_PARTS} parts"
    else:
        try:
            document = tomllib.loads(text)
            if not _deeper(document, MOST_NESTED):
                return document
            why = f"its tables and arrays are nested more than {MOST_NESTED} deep"
        except RecursionError:
            why = f"its tables and arrays are nested more than {MOST_NESTED} deep"
        except ValueError as error:  # TOMLDecodeError is one; another is raised for integers of thousands of digits
            why = str(error)
    raise ConfigError("this is not valid TOML", where=where, why=why, remedy=remedy)


def _deeper(value: object, most: int) -> bool:
    inside: Collection[object] = ()
    if isinstance(value, dict):
        inside = value.values()
    elif isinstance(value, list):
        inside = value
    return any(most == 0 or _deeper(inner, most - 1) for inner in inside if isinstance(inner, dict | list))
