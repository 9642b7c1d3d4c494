"""Documents of ours that are read again, and their schemas.

Each carries its version, and those of earlier releases are read for ever.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from device_runner.files import decode_json
from pipeline.core.errors import ConfigError

T = TypeVar("T")
Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
"""Makes a document of one version one of the next."""


class _Versioned(msgspec.Struct):
    version: int


def decode_document(
    content: bytes, kind: type[T], where: str, upgrades: Sequence[Upgrade] = (), *, unique: bool = False
) -> T:
    """A document of this release's version, or of an earlier one; the first of `upgrades` makes version 2 of version 1.

    Raises as `decode_json`, whose `unique` this is, and ConfigError for a version that this release does not know.
    """
    newest = len(upgrades) + 1
    version = decode_json(content, _Versioned).version
    if not 1 <= version <= newest:
        raise ConfigError(
            f"this document has version {version}", where=where,
            why=f"this release of ort-mobile reads {f'versions 1 to {newest}' if upgrades else 'version 1'}",
            remedy="update ort-mobile if a later release wrote it, or write it again: those of before 1.0 are not read",
        )  # fmt: skip
    if version == newest:
        return decode_json(content, kind, unique=unique)
    document = decode_json(content, dict[str, Any], unique=unique)
    for upgrade in upgrades[version - 1 :]:
        document = upgrade(document)
    return msgspec.convert(document, kind)


SCHEMA = "https://json-schema.org/draft/2020-12/schema"


def document_schema(kind: type, title: str, description: str = "") -> dict[str, Any]:
    """The JSON schema of a document, from the types and their docstrings."""
    schema = msgspec.json.decode(msgspec.json.encode(msgspec.json.schema(kind)))
    about = {"description": description} if description else {}
    return {"$schema": SCHEMA, "title": title, **about, **one_form(schema)}


def one_form(schema: Any) -> Any:
    """The same JSON schema whatever wrote it: `null` comes last of alternatives, and descriptions have no indentation.

    Releases of msgspec order alternatives differently; Python 3.13 and msgspec 0.23 take indentation out of docstrings.
    """
    if isinstance(schema, list):
        return [one_form(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    ordered = {key: one_form(value) for key, value in schema.items()}
    if "anyOf" in ordered:
        ordered["anyOf"] = sorted(ordered["anyOf"], key=lambda option: option.get("type") == "null")
    if isinstance(text := ordered.get("description"), str):
        ordered["description"] = inspect.cleandoc(text)
    return ordered
