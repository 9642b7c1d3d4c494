"""Every combination of the values of a `[[runs]]` table, which are legal, and their names."""

import math
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

import msgspec

from device_runner import options as runner_options
from device_runner import spec as run_spec
from device_runner.spec import RunOptions
from pipeline import config as configs
from pipeline.config import settings as config_settings
from pipeline.config import tables as config_tables
from pipeline.core.errors import ConfigError

FIELDS = {
    setting.key: setting.sets.name
    for setting in config_tables.SESSION_SETTINGS
    if isinstance(setting.sets, config_settings.OptionField)
}
"""Keys of [[runs]] and the fields of RunOptions that they are."""

ENTRIES = {setting.key: setting for setting in config_tables.SESSION_SETTINGS if setting.key not in FIELDS}
"""Keys of [[runs]] that are session config entries."""

MOST_RUNS = 2048
"""Combinations of one table: what is more is a mistake, or takes days."""


def run_options(run: configs.RunConfig) -> list[RunOptions]:
    """Every combination of the values of a [[runs]] table, legal or not, the last key's values next to each other.

    Raises ConfigError for a flag that NNAPI does not have, a setting that is made twice, and far too many of them.
    """
    settings = {key: getattr(run, key) for key in (*FIELDS, *ENTRIES)}
    settings |= {f"options.{key}": value for key, value in run.options.items()}
    settings |= {f"session_config.{key}": value for key, value in run.session_config.items()}
    axes = {key: value if isinstance(value, tuple) else (value,) for key, value in settings.items()}
    # Flags: one set for a list of names, one for each list in a list of lists, every set for the word `all`.
    named = (run.flags,) if isinstance(run.flags, str) else run.flags
    lists = [value for value in named if isinstance(value, tuple)]
    flags = tuple(value for value in named if isinstance(value, str))
    if lists and flags:
        raise ConfigError(
            "flags are a list of names or a list of lists, not both",
            where="[[runs]] flags",
            remedy='write [["USE_FP16"], ["USE_FP16", "USE_NCHW"]] for two sets, and [] in it for none',
        )
    axes["flags"] = (
        tuple(runner_options.subsets()) if run.flags == configs.ALL_FLAGS else tuple(map(_flag_set, lists or [flags]))
    )
    count = math.prod(len(values) for values in axes.values())
    if count > MOST_RUNS:
        sizes = ", ".join(f"{key} {len(values)}" for key, values in axes.items() if len(values) > 1)
        raise ConfigError(
            f"one [[runs]] asks for {count} combinations",
            where=f"[[runs]] {sizes}",
            why=f"at most {MOST_RUNS} can be meant",
            remedy="write several [[runs]] with shorter lists",
        )
    for key, setting in ENTRIES.items():
        if twice := {name for value in axes[key] for name in setting.entries(value)} & set(run.session_config):
            raise ConfigError(
                f"`{key}` and session_config both set {', '.join(sorted(twice))}",
                where="[[runs]]",
                remedy="leave out one of the two",
            )
    combinations = []
    for combination in product(*axes.values()):
        chosen = dict(zip(axes, combination, strict=True))
        config = {key.partition(".")[2]: value for key, value in chosen.items() if key.startswith("session_config.")}
        for key, setting in ENTRIES.items():
            config |= setting.entries(chosen[key])
        combinations.append(
            RunOptions(
                provider_options={key.partition(".")[2]: v for key, v in chosen.items() if key.startswith("options.")},
                flags=chosen["flags"],
                session_config=config,
                **{field: chosen[key] for key, field in FIELDS.items()},
            )
        )
    return combinations


def _flag_set(names: Iterable[str]) -> tuple[run_spec.NnapiFlag, ...]:
    """The flags once each, in NNAPI's order."""
    chosen = {name.removeprefix("NNAPI_FLAG_"): name for name in names}
    for name, text in chosen.items():
        if name not in set(run_spec.NnapiFlag):
            remedy = f"it takes: {', '.join(run_spec.NnapiFlag)}, or `all`"
            raise ConfigError(f"unknown NNAPI flag {text!r}", where="[[runs]] flags", remedy=remedy)
    return tuple(flag for flag in run_spec.NnapiFlag if flag.value in chosen)


def check_runs(runs: Iterable[configs.RunConfig]) -> None:
    """Raise ConfigError for a table that `run_options` refuses, or with an option that its provider does not have."""
    for failure in (runner_options.wrong_option(options) for run in runs for options in run_options(run)):
        if failure:
            raise ConfigError.of(failure, where="[[runs]] options")


def changed(options: RunOptions, settings: Mapping[str, Any]) -> RunOptions:
    """Run options with other values for keys of [[runs]]; `options` and `session_config` are added to those there."""
    fields = {FIELDS[key]: value for key, value in settings.items() if key in FIELDS}
    config = {**options.session_config, **settings.get("session_config", {})}
    for key, setting in ENTRIES.items():
        config |= setting.entries(settings.get(key))
    flags = _flag_set(settings["flags"]) if "flags" in settings else options.flags
    provider_options = {**options.provider_options, **settings.get("options", {})}
    return msgspec.structs.replace(
        options, session_config=config, flags=flags, provider_options=provider_options, **fields
    )


SHORT = {word: entries for setting in config_tables.SESSION_SETTINGS for word, entries in setting.words.items()}
"""What stands in names for session config entries."""

SHORT_KEYS = {
    setting.sets.key: setting.key
    for setting in config_tables.SESSION_SETTINGS
    if isinstance(setting.sets, config_settings.ConfigEntry)
}

PREFIXES = ("config.", "option.")
"""What tells entries apart in names whose own keys would not: session config keys have dots, provider options none."""


DEFAULTS = RunOptions()


def options_name(options: RunOptions) -> str:
    """The provider with what differs from the defaults, as in `nnapi+USE_FP16` or `cpu+threads=2+spinning=off`.

    No two different sets of provider options and session config entries give the same name.
    """
    parts = [_plain(options.provider), *sorted({flag.value for flag in options.flags})]
    for key, name in FIELDS.items():
        value = getattr(options, name)
        parts += (
            [f"{key}={config_settings.setting_text(value)}"]
            if key != "provider" and value != getattr(DEFAULTS, name)
            else []
        )
    config = options.session_config
    short = {word: entries for word, entries in SHORT.items() if entries.items() <= config.items()}
    covered = {key for entries in short.values() for key in entries}
    entries = list(short)
    for key, value in config.items():
        if key not in covered:
            raw = key if "." in key and not key.startswith(PREFIXES) else f"config.{key}"
            entries.append(f"{SHORT_KEYS.get(key) or _plain(raw)}={_plain(value, '+%')}")
    for key, value in options.provider_options.items():
        raw = f"option.{key}" if "." in key or key in (*FIELDS, *ENTRIES) else key
        entries.append(f"{_plain(raw)}={_plain(value, '+%')}")
    return "+".join([*parts, *sorted(entries)])


def _plain(text: str, special: str = "+%=") -> str:
    """Text without what has a meaning in names, in the way of URLs."""
    return "".join(f"%{ord(char):02X}" if char in special else char for char in text)
