"""JSON schemas of documents, from their types."""

import inspect
from typing import Any

import msgspec

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
