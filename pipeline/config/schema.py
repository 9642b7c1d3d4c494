"""The JSON schema of the config, and what each key means, out of the types themselves."""

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec

from device_runner.providers import PROVIDERS
from pipeline.config.tables import TransformConfig
from pipeline.config.values import TABLES, Config
from pipeline.core.providers import aware_names


def config_schema(passes: Sequence[str] = ()) -> dict[str, Any]:
    """JSON schema of the config, for editors; the docstrings under the keys become descriptions.

    `passes` are the names that `do` of a transform may have; any where none are given.
    """
    (schema,), components = msgspec.json.schema_components([Config], ref_template="#/$defs/{name}")
    for table in TABLES.values():
        for key, text in key_texts(table).items():
            components[table.__name__]["properties"][key].setdefault("description", text)
    if passes:
        components[TransformConfig.__name__]["properties"]["do"]["enum"] = list(passes)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": null_last(components)}


def null_last(schema: Any) -> Any:
    """The same JSON schema with `null` as the last of alternatives: releases of msgspec order them differently."""
    if isinstance(schema, list):
        return [null_last(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    ordered = {key: null_last(value) for key, value in schema.items()}
    if "anyOf" in ordered:
        ordered["anyOf"] = sorted(ordered["anyOf"], key=lambda option: option.get("type") == "null")
    return ordered


def key_texts(table: type[msgspec.Struct]) -> dict[str, str]:
    """What each key of a table means: the string under it in the source, of its base classes too."""
    import ast
    import inspect
    import textwrap

    texts = {}
    for owner in reversed([kind for kind in table.__mro__ if kind.__module__.partition(".")[0] != "msgspec"][:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        lines = body.body if isinstance(body, ast.ClassDef) else []
        for statement, following in itertools.pairwise(lines):
            if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
                texts[ast.unparse(statement.target)] = _filled(" ".join(ast.literal_eval(following.value).split()))
    return texts


def _filled(text: str) -> str:
    """The text with the names of the registries."""
    return text.replace("{providers}", ", ".join(PROVIDERS)).replace("{aware}", ", ".join(aware_names()))
