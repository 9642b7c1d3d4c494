"""What several commands ask about execution providers, and the settings that the answers give."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pipeline.cli.options import Callback, words

if TYPE_CHECKING:
    from pipeline.partition.answer import Settings

Command = TypeVar("Command", bound=Callable[..., Any])

OPTIONS = (
    click.option(
        "--api-level", type=click.IntRange(min=1), help="NNAPI feature level (Android API level).  [default: 31]"
    ),
    click.option(
        "--coreml-version",
        type=click.IntRange(min=3),
        help="CoreML version: 5 for iOS 15, 6 for 16, 7 for 17, 8 for 18.  [default: 7]",
    ),
    click.option("--coreml-options", callback=words(), metavar="KEY=VALUE,...", help="Options of the CoreML provider."),
    click.option("--nnapi-flags", callback=words(), metavar="FLAG,...", help="NNAPI flags, such as USE_NCHW."),
    click.option(
        "--stop-ops",
        metavar="OP,...",
        help="Leave these operators and all nodes after them to the CPU.  [default: NonMaxSuppression]",
    ),
)


def provider_options(command: Command) -> Command:
    """Add the options of execution providers to a command, which gets their values as keywords."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


PROVIDERS = ("nnapi", "coreml-nn", "coreml-mlprogram", "xnnpack")
COREML = "coreml"
"""Stands for both formats, as the other commands call the provider."""


def provider_names(choices: tuple[str, ...]) -> Callback:
    """A callback for providers, given as `a,b`, repeatedly, or in capitals; `coreml` means both formats."""
    split = words((*choices, COREML))

    def names(ctx: click.Context, param: click.Parameter, value: str | tuple[str, ...] | None) -> tuple[str, ...]:
        text = ",".join(value) if isinstance(value, tuple) else value or ""
        given = split(ctx, param, text.lower())
        formats = tuple(name for name in choices if name.startswith(f"{COREML}-"))
        return tuple(dict.fromkeys(n for name in given for n in (formats if name == COREML else (name,))))

    return names


def settings_of(providers: tuple[str, ...], release: str, answers: dict[str, Any]) -> tuple["Settings", ...]:
    """The settings of each provider; ConfigError for values that it would refuse itself."""
    from pipeline.partition.options import make_settings

    return tuple(make_settings(provider, release=release, **answers) for provider in providers)
