"""Several options of a command as one frozen value: what a command is asked for, made in one place from its options."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click

from pipeline.cli.command import AnyCommand

if TYPE_CHECKING:
    from pipeline import config as configs

AnyTable = TypeVar("AnyTable", bound="configs.Table")


def one_value(name: str, make: Callable[..., object], *keys: str) -> Callable[[AnyCommand], AnyCommand]:
    """A decorator below the options of `keys`: the command gets in their place what `make` makes of them.

    A key may be the `name` of another such value, which stands above it: options that refine it. A `name` that the
    command has no parameter for is one of that kind.
    """

    def add(command: AnyCommand) -> AnyCommand:
        if isinstance(command, click.Command):  # help of the options alone
            return command

        @functools.wraps(command)  # with the options that stand below this one
        def called(*arguments: Any, **given: Any) -> Any:
            value = make(**{key: given.pop(key) for key in keys})
            return command(*arguments, **given, **{name: value})

        return called  # type: ignore[return-value]

    return add


@dataclass(frozen=True, slots=True)
class GivenKeys(Generic[AnyTable]):
    """The keys of a config's table that the options of a command give."""

    table: "type[AnyTable]"
    values: Mapping[str, Any]

    def over(self, settings: AnyTable) -> AnyTable:
        """The table with these instead of its own."""
        import msgspec

        if not self.values:
            return settings
        return msgspec.convert({**msgspec.to_builtins(settings), **self.values}, self.table)

    def alone(self) -> "AnyTable | None":
        """The table with these, the rest by default; None where none is given."""
        return self.table(**self.values) if self.values else None


def keys_of(table: "type[AnyTable]", answers: Mapping[str, Any]) -> GivenKeys[AnyTable]:
    """What options say of keys of a table; those that were left out say nothing."""
    given = {key: value for key, value in answers.items() if key in table.__struct_fields__}
    return GivenKeys(table, {key: v for key, v in given.items() if v is not False and v not in (None, (), {})})
