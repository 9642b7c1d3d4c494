"""What becomes of the text of an option: click calls these, and they refuse what an option cannot mean."""

import difflib
from collections.abc import Callable, Sequence
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


def numbers(least: int, most: int | None, texts: Sequence[str] = ()) -> Callback:
    """A callback that splits `1,2,4` into whole numbers; with `texts` for one number, or one of these words."""
    most = 2**63 - 1 if most is None else most  # TOML's integers end there

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
        if value is None or value in texts:
            return value if texts else ()
        given = (value,) if texts else words()(ctx, param, value)
        for word in given:
            digits = word.removeprefix("-") if least < 0 else word
            if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and least <= int(word) <= most):
                what = f"neither a number nor {' or '.join(texts)}" if texts else f"no number from {least} to {most}"
                raise click.BadParameter(f"{word!r} is {what}", ctx, param)
        return int(value) if texts else tuple(map(int, given))

    return read


def switches(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[bool, ...]:
    """A callback that splits `on,off`."""
    return tuple(word == "on" for word in words(("on", "off"))(ctx, param, value))


def sizes(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    """A callback for NAME=N given any number of times; names may hold a `=` themselves."""
    given = {}
    for value in values:
        name, _, number = value.rpartition("=")
        if not name or not (number.isascii() and number.isdigit() and int(number) > 0):
            raise click.BadParameter(f"{value!r} is not NAME=N, as in batch=1", ctx, param)
        given[name] = int(number)
    return given


def pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """A callback for KEY=VALUE given any number of times; values may hold a `=`."""
    given = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{value!r} is not KEY=VALUE", ctx, param)
        given[key] = text
    return given


def release(_ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """A callback for a release of ONNX Runtime; ConfigError for what is none."""
    if not value:
        return ""
    from pipeline.core import releases as ort_releases

    ort_releases.read_release(value, param.opts[0])
    return value


def library_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A callback for a library: a file that is there, or a name such as android:1.29.0."""
    from device_runner import library as ort_library

    if value and ort_library.name_of(value) is None and not Path(value).exists():
        raise click.BadParameter(f"{value!r} is neither a file nor a release such as android:1.29.0", ctx, param)
    return value
