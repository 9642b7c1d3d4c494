"""The options by which a command takes the state of a phone in which runs start: keys of [conditions]."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from pipeline.config import ConditionsConfig

Function = TypeVar("Function", bound=Callable[..., Any])

OPTIONS = (
    click.option("--stable", is_flag=True, help="Use Android's fixed performance mode (API level 30)."),
    click.option("--keep-screen-on", is_flag=True, help="Keep the screen on."),
    click.option(
        "--max-thermal-status", type=click.IntRange(0, 6), metavar="N",
        help="Maximum thermal status to start a run: 0 none, 1 light, 2 moderate.",
    ),
    click.option(
        "--max-battery-celsius", type=click.FloatRange(0, 100, min_open=True), metavar="N",
        help="Maximum battery temperature to start a run.",
    ),
    click.option(
        "--min-battery-percent", type=click.IntRange(0, 100), metavar="N", help="Minimum battery charge to start a run."
    ),
    click.option(
        "--wait-seconds", type=click.FloatRange(min=0, min_open=True), metavar="N",
        help="Maximum wait.  [default: 600]",
    ),
)  # fmt: skip


def run_conditions(command: Function) -> Function:
    """Add the options of conditions to a command, which gets their values as keywords for `conditions_of`."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def conditions_of(answers: Mapping[str, Any]) -> "ConditionsConfig | None":
    """The [conditions] that are asked for, the rest by default; None where none is."""
    from pipeline.config import ConditionsConfig

    keys = [key for key in ConditionsConfig.__struct_fields__ if key in answers]
    asked = {key: answers[key] for key in keys if answers[key] not in (None, False)}
    return ConditionsConfig(**asked) if asked else None
