"""Options of the ways to run a model: a command gets the RunOptions that they ask for."""

import functools
from typing import TYPE_CHECKING

import click

from device_runner import providers as runner_providers
from pipeline import config as configs
from pipeline.cli.callbacks import pairs, words
from pipeline.cli.command import AnyCommand, SessionOption, together
from pipeline.cli.config_options import config_options
from pipeline.cli.options import LEVELS
from pipeline.cli.values import GivenKeys, one_value

if TYPE_CHECKING:
    from device_runner.spec import RunOptions


FLAGS = ("USE_FP16", "USE_NCHW", "CPU_DISABLED", "CPU_ONLY")


def session_keys() -> tuple[str, ...]:
    """Keys of [[runs]] that are options by the same name: all session settings but those with options of their own."""
    from pipeline.config import tables as config_tables

    return tuple(setting.key for setting in config_tables.SESSION_SETTINGS if setting.key not in ("provider", "level"))


session_option = functools.partial(click.option, cls=SessionOption)


def run_settings(command: AnyCommand) -> AnyCommand:
    """Add the options of ways to run to a command, which gets `options`, the RunOptions that they ask for."""
    from pipeline import config as configs

    return together(
        session_option(
            "--provider",
            callback=words(),
            default="cpu",
            show_default=True,
            metavar="NAME,…",
            help=f"{', '.join(runner_providers.PROVIDERS)}, …",
        ),
        session_option(
            "--nnapi-flags",
            callback=words((*FLAGS, "all")),
            metavar="FLAG,…",
            help=f"NNAPI flags: {', '.join(FLAGS)}; all tries every combination.",
        ),
        session_option(
            "--provider-option", callback=pairs, metavar="KEY=VALUE", multiple=True, help="Provider option; repeatable."
        ),
        config_options(configs.RunConfig, *session_keys(), into="keys", cls=SessionOption),
        session_option(
            "--level",
            "levels",
            callback=words(LEVELS),
            metavar="LEVEL,…",
            help=f"Optimization level of the session: {', '.join(LEVELS)}. Of .ort files it decides replay and layouts."
            "  [default: all]",
        ),
        session_option(
            "--session-config",
            callback=pairs,
            metavar="KEY=VALUE",
            multiple=True,
            help="Session config entry; repeatable.",
        ),
        one_value(
            "options",
            options_of,
            "provider",
            "nnapi_flags",
            "provider_option",
            "keys",
            "levels",
            "session_config",
        ),
    )(command)


def options_of(
    *,
    provider: tuple[str, ...],
    nnapi_flags: tuple[str, ...],
    provider_option: dict[str, str],
    keys: "GivenKeys[configs.RunConfig]",
    levels: tuple[str, ...],
    session_config: dict[str, str],
) -> tuple["RunOptions", ...]:
    """Every combination that the options ask for, legal or not; flags are for NNAPI alone. Raises ConfigError."""
    import msgspec

    from device_runner.spec import OptimizationLevel
    from pipeline import config as configs
    from pipeline.campaign import run_options
    from pipeline.config import read as config_read

    for _, problem in config_read.provider_problems((), provider):
        raise problem.at("--provider")
    options: list[RunOptions] = []
    for name in provider:
        facts = runner_providers.provider_named(name)
        flags = "all" if "all" in nnapi_flags else nnapi_flags
        table = {
            "provider": name,
            "flags": flags if facts.has_flags else (),
            "options": provider_option if facts.has_options else {},
            "session_config": session_config,
            **keys.values,
        }
        options += run_options.run_options(msgspec.convert(table, configs.RunConfig))
    asked = [OptimizationLevel(level) for level in levels] or [OptimizationLevel.ALL]
    return tuple(msgspec.structs.replace(session, optimization_level=level) for session in options for level in asked)
