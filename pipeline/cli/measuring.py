"""Options that say what of a model is measured and by which rule, for every command that measures."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pipeline.cli.options import words

if TYPE_CHECKING:
    from pipeline.config import MeasureConfig

Function = TypeVar("Function", bound=Callable[..., Any])

MODES = ("steady", "cold", "sustained")
RULES = ("standard", "mlperf")


def _warmup(ctx: click.Context, param: click.Parameter, value: str | None) -> int | str | None:
    """A number of inferences, or auto."""
    if value is None or value == "auto":
        return value
    if not (value.isascii() and value.isdigit() and len(value) < 8):
        raise click.BadParameter(f"{value!r} is neither a number nor auto", ctx, param)
    return int(value)


OPTIONS = (
    click.option(
        "--mode", "modes", callback=words(MODES), metavar="MODE,…",
        help="steady: latency after warm-up; cold: load and first run with the files out of the page cache; sustained: "
        "minutes of back-to-back inference.  [default: steady]",
    ),
    click.option(
        "--sustained-seconds", type=click.FloatRange(1, 43_200), metavar="N",
        help="Duration of a sustained run.  [default: 300]",
    ),
    click.option(
        "--warmup", callback=_warmup, metavar="N|auto",
        help="Untimed inferences at the start of a process, or auto: found by a change point.  [default: auto]",
    ),
    click.option(
        "--rule", type=click.Choice(RULES),
        help="mlperf: 1024 inferences and 60 s per process, p90 as MLPerf's LoadGen computes it.  [default: standard]",
    ),
)  # fmt: skip


def measure_options(command: Function) -> Function:
    """Add these options to a command, which gets their values as keywords for `measured_as`."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def measured_as(measure: "MeasureConfig", answers: Mapping[str, Any]) -> "MeasureConfig":
    """The [measure] table with what the options ask for instead; a command need not have all of them."""
    import msgspec

    from pipeline.config import MeasureMode, MeasureRule

    asked: dict[str, Any] = {
        "mode": tuple(map(MeasureMode, answers.get("modes", ()))) or None,
        "sustained_seconds": answers.get("sustained_seconds"),
        "warmup": answers.get("warmup"),
        "rule": MeasureRule(answers["rule"]) if answers.get("rule") else None,
    }
    return msgspec.structs.replace(measure, **{key: value for key, value in asked.items() if value is not None})
