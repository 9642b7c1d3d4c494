"""Options and outputs that several commands share."""

import difflib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Callback = Callable[[click.Context, click.Parameter, Any], Any]


def words(choices: tuple[str, ...] = ()) -> Callback:
    """A callback that splits `a,b` into a tuple, and refuses what is not among the choices, with a suggestion."""

    def split(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
        given = tuple(dict.fromkeys(word.strip() for word in (value or "").split(",") if word.strip()))
        for word in given:
            if choices and word not in choices:
                close = difflib.get_close_matches(word, choices, n=1)
                hint = f"; did you mean {close[0]}?" if close else ""
                raise click.BadParameter(f"{word!r} is not one of {', '.join(choices)}{hint}", ctx, param)
        return given

    return split


def sizes(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    """A callback for NAME=N given any number of times; names may hold a `=` themselves."""
    found = {}
    for value in values:
        name, _, number = value.rpartition("=")
        if not name or not (number.isascii() and number.isdigit() and int(number) > 0):
            raise click.BadParameter(f"{value!r} is not NAME=N, as in batch=1", ctx, param)
        found[name] = int(number)
    return found


def pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """A callback for KEY=VALUE given any number of times; values may hold a `=`."""
    found = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{value!r} is not KEY=VALUE", ctx, param)
        found[key] = text
    return found


def release(_ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """A callback for a release of ONNX Runtime; ConfigError for none and for those that are not known to exist."""
    if not value:
        return ""
    from pipeline.core.releases import read_release

    read_release(value, param.opts[0])
    return value


def write_json(document: Any, destination: str) -> None:
    """Write a document as indented JSON to a file, or to stdout for `-`."""
    import msgspec

    from pipeline.files import write_bytes

    text = msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
    if destination == "-":
        sys.stdout.buffer.write(text)
    else:
        write_bytes(Path(destination), text)


perf_test_option = click.option(
    "--perf-test",
    type=click.Path(exists=True, dir_okay=False),
    metavar="PROGRAM",
    help="Measure with this onnxruntime_perf_test in place of the probe.",
)

json_option = click.option(
    "--json", "json_to", metavar="FILE|-", help="Write the answer as JSON to a file, or to stdout."
)
