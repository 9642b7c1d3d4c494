"""A number that the command line takes, the config takes, too, and the other way round."""

from functools import cache
from typing import Any

import click
import msgspec
import pytest

from pipeline import config
from pipeline.config import Table
from tests.command import leaves

NUMBERS = (
    -1, 0, 1e-9, 0.5, 1, 2, 6, 7, 8, 20, 21, 27, 99, 99.9, 100, 101, 500, 501, 1024, 1025, 2048, 10_000, 10_001,
    43_200, 43_201, 604_800, 604_801, 1_000_001, 2**31 - 1, 2**31,
)  # fmt: skip
"""Values at and beside every bound."""

OTHERS = {
    ("gate", "rounds"): "fewer than 8 pairs decide nothing",
    ("gate", "sustained_rounds"): "fewer than 4 pairs decide nothing",
    ("doctor", "minutes"): "no search, which may take a week",
    ("convert", "jobs"): "models at once, not compiler processes; 0 is as many as fit",
    ("check", "jobs"): "models at once, not compiler processes",
    ("partition", "jobs"): "models at once, not compiler processes",
}
"""Options that have the name of a key and mean something else."""


@cache
def keys() -> dict[str, list[tuple[str, Any]]]:
    """Types of the keys of all tables that may be numbers, by key, with the name of their table."""
    tables = [kind for kind in vars(config).values() if isinstance(kind, type) and issubclass(kind, Table)]
    found: dict[str, list[tuple[str, Any]]] = {}
    for table in tables:
        for field in msgspec.structs.fields(table):
            if any(accepted_by_key(field.type, number) for number in NUMBERS):
                found.setdefault(field.name, []).append((table.__name__, field.type))
    return found


def accepted_by_key(kind: Any, number: float) -> bool:
    try:
        msgspec.convert(number, kind)
    except msgspec.ValidationError:
        return False
    return True


def accepted_by_option(command: click.Command, option: click.Option, number: float) -> bool:
    context = click.Context(command)
    try:
        option.process_value(context, (str(number),) if option.multiple else str(number))
    except click.BadParameter:
        return False
    return True


PAIRS = [
    pytest.param(command, option, kind, id=f"{name} --{option.name} {table}")
    for name, command in leaves()
    for option in command.params
    if isinstance(option, click.Option) and not option.is_flag and (name, option.name) not in OTHERS
    for table, kind in keys().get(str(option.name), ())
]


@pytest.mark.parametrize(("command", "option", "kind"), PAIRS)
def test_an_option_takes_what_its_key_takes(command: click.Command, option: click.Option, kind: Any) -> None:
    differ = [n for n in NUMBERS if accepted_by_option(command, option, n) != accepted_by_key(kind, n)]
    assert differ == []


def test_the_options_of_all_tables_are_among_the_pairs() -> None:
    text = " ".join(str(param.id) for param in PAIRS)
    names = (
        "rounds",
        "min_seconds",
        "max_battery_celsius",
        "dynamic_block_base",
        "seed",
        "max_drop",
        "samples",
        "jobs",
    )
    assert [name for name in names if f" --{name} " not in text] == []
