"""Options as one frozen value: what a command gets in their place."""

import dataclasses
import inspect

import click
import pytest
from click.testing import CliRunner

from pipeline import config as configs
from pipeline.cli.command import together
from pipeline.cli.config_options import config_options
from pipeline.cli.main import cli
from pipeline.cli.values import GivenKeys, one_value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    width: int
    height: int
    unit: str = ""


size_options = together(
    click.option("--width", type=int, default=1),
    click.option("--height", type=int, default=2),
    one_value("size", Size, "width", "height"),
)
unit_option = together(
    click.option("--unit", default="px"),
    one_value("size", lambda size, unit: dataclasses.replace(size, unit=unit), "size", "unit"),
)


@click.command
@size_options
@unit_option
@config_options(configs.MeasureConfig, "rounds", into="measure")
def drawn(size: Size, measure: GivenKeys[configs.MeasureConfig]) -> None:
    click.echo(f"{size} {measure.over(configs.MeasureConfig(min_runs=3)).rounds} {measure.alone() is None}")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("", "Size(width=1, height=2, unit='px') 5 True"),
        ("--height 4 --unit mm --rounds 9", "Size(width=1, height=4, unit='mm') 9 False"),
    ],
)
def test_a_command_gets_one_value_that_later_options_refine(given: str, shown: str) -> None:
    answer = CliRunner().invoke(drawn, given.split(), catch_exceptions=False)
    assert answer.output.strip() == shown


def test_options_stand_in_help_in_their_order() -> None:
    assert [param.name for param in drawn.params] == ["width", "height", "unit", "rounds"]


def commands(group: click.Group) -> list[click.Command]:
    context = click.Context(group)
    names = group.list_commands(context)
    inner = [command for name in names if (command := group.get_command(context, name))]
    return [
        each for command in inner for each in (commands(command) if isinstance(command, click.Group) else [command])
    ]


def test_no_command_takes_a_dict_of_options() -> None:
    """Each says by name what it gets."""
    for command in commands(cli):
        code = inspect.unwrap(command.callback or click.echo).__code__
        assert not code.co_flags & inspect.CO_VARKEYWORDS, f"{command.name} takes {code.co_varnames}"
