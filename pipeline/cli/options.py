"""Options and outputs that several commands share."""

from pathlib import Path
from typing import Any

import click


class Words(click.ParamType):
    """A list of words with commas between; each must be one of `choices` when there are any."""

    name = "a,b,…"

    def __init__(self, choices: tuple[str, ...] = ()) -> None:
        self.choices = choices

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Split, and refuse words that are not among the choices, with a suggestion."""
        if isinstance(value, tuple):
            return value
        words = tuple(dict.fromkeys(word.strip() for word in str(value).split(",") if word.strip()))
        for word in words:
            if self.choices and word not in self.choices:
                self.fail(f"{word!r} is not one of {', '.join(self.choices)}", param, ctx)
        return words


class Pair(click.ParamType):
    """NAME=N with N a positive whole number."""

    name = "NAME=N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """Split at the last `=`: names may hold one."""
        if isinstance(value, tuple):
            return value
        name, _, number = str(value).rpartition("=")
        if not name or not number.isascii() or not number.isdigit() or int(number) < 1:
            self.fail(f"{value!r} is not NAME=N, as in batch=1", param, ctx)
        return name, int(number)


def write_json(document: Any, destination: str) -> None:
    """Write a document as indented JSON to a file, or to stdout for `-`."""
    import msgspec

    from pipeline.files import write_bytes

    text = msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
    if destination == "-":
        click.get_binary_stream("stdout").write(text)
    else:
        write_bytes(Path(destination), text)


json_option = click.option(
    "--json", "json_to", metavar="FILE|-", help="Write the answer as JSON to a file, or to stdout."
)
