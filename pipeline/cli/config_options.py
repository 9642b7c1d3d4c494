"""Options that are keys of a config's table."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.callbacks import (
    numbers,
    switches,
    words,
)
from pipeline.cli.command import AnyCommand
from pipeline.cli.values import keys_of, one_value

if TYPE_CHECKING:
    from pipeline import config as configs


def config_options(
    table: "type[configs.Table]", *keys: str, into: str, cls: type[click.Option] = click.Option, **names: str
) -> Callable[[AnyCommand], AnyCommand]:
    """Options that are keys of a config's table: type, bounds, default and help come from there.

    A command gets what they say as `GivenKeys`, by the name `into`. `names` are those of options that are called
    otherwise than their keys.
    """
    import msgspec

    from pipeline import config as configs

    fields = {field.name: field for field in msgspec.structs.fields(table)}
    texts = configs.key_texts(table)

    def add(command: AnyCommand) -> AnyCommand:
        command = one_value(into, lambda **answers: keys_of(table, answers), *keys)(command)
        for key in reversed(keys):
            field, text = fields[key], texts[key]
            kind, default = _kind_of(field.type), field.default
            if default not in (None, (), "") and "default" not in text and "is_flag" not in kind:
                switch = {True: "on", False: "off"}.get(default) if isinstance(default, bool) else None
                text += f"  [default: {switch or (f'{default:g}' if isinstance(default, float) else default)}]"
            name = f"--{names.get(key, key).replace('_', '-')}"
            command = click.option(name, key, cls=cls, help=text, **kind)(command)
        return command

    return add


def _kind_of(annotation: Any) -> dict[str, Any]:
    """What click needs to know of a key's type; of several values of one, they are given as `a,b`."""
    from msgspec import inspect

    info = inspect.type_info(annotation)
    kinds = list(info.types) if isinstance(info, inspect.UnionType) else [info]
    several = any(isinstance(kind, inspect.VarTupleType) for kind in kinds)
    texts = [str(text) for kind in kinds if isinstance(kind, inspect.LiteralType) for text in kind.values]
    kind = next(kind for kind in kinds if not isinstance(kind, (inspect.VarTupleType, inspect.NoneType)))
    if texts:
        kind = next(kind for kind in kinds if isinstance(kind, inspect.IntType))
        return {"callback": numbers(kind.ge or 0, kind.le, texts), "metavar": "|".join(("N", *texts))}
    if isinstance(kind, inspect.EnumType):
        choices = tuple(member.value for member in kind.cls)
        return {"callback": words(choices), "metavar": "NAME,…"} if several else {"type": click.Choice(choices)}
    if isinstance(kind, inspect.BoolType):
        return {"callback": switches, "metavar": "on,off"} if several else {"is_flag": True}
    if isinstance(kind, inspect.IntType):
        if several:
            return {"callback": numbers(kind.ge or 0, kind.le), "metavar": "N,…"}
        return {"type": click.IntRange(kind.ge, kind.le), "metavar": "N"}
    if isinstance(kind, inspect.FloatType):
        least, most = (kind.ge if kind.gt is None else kind.gt), (kind.le if kind.lt is None else kind.lt)
        bounds = click.FloatRange(least, most, min_open=kind.gt is not None, max_open=kind.lt is not None)
        return {"type": bounds, "metavar": "N"}
    return {"metavar": "TEXT"}
