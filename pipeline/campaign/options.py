"""From `[[runs]]` to run options: every combination of the listed values; and a name for each, unique and readable."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import Any

import msgspec

from device_runner.options import AFFINITY_KEY, BLOCK_KEY, FALLBACK_KEY, subsets
from device_runner.spec import ExecutionMode, NnapiFlag, OptimizationLevel, RunOptions
from pipeline.config import ALL_FLAGS, RunConfig
from pipeline.core.errors import ConfigError

SPINNING_KEYS = ("session.intra_op.allow_spinning", "session.inter_op.allow_spinning")
PREPACKING_KEY = "session.disable_prepacking"

FIELDS = {
    "provider": "provider",
    "threads": "intra_op_threads",
    "inter_op_threads": "inter_op_threads",
    "execution_mode": "execution_mode",
    "memory_arena": "cpu_arena",
    "memory_pattern": "memory_pattern",
}
"""Keys of [[runs]] and the fields of RunOptions that they are."""

ENTRIES: dict[str, Callable[[Any], dict[str, str]]] = {
    "spinning": lambda on: dict.fromkeys(SPINNING_KEYS, str(int(on))),
    "affinities": lambda text: {AFFINITY_KEY: text},
    "prepacking": lambda on: {} if on else {PREPACKING_KEY: "1"},
    "dynamic_block_base": lambda base: {BLOCK_KEY: str(base)},
    "strict": lambda on: {FALLBACK_KEY: "1"} if on else {},
}
"""Keys of [[runs]] and the session config entries that a value of theirs means (onnxruntime's own keys, 1.21 to 1.31).

Spinning is always said: builds differ in their default. The others' defaults are the same everywhere.
"""

MOST_RUNS = 2048
"""Combinations of one table: what is more is a mistake, or takes days."""


def run_options(run: RunConfig) -> list[RunOptions]:
    """Every combination of the values of a [[runs]] table, legal or not, the last key's values next to each other.

    Raises ConfigError for a flag that NNAPI does not have, a setting that is made twice, and far too many of them.
    """
    axes = {key: _listed(getattr(run, key)) for key in (*FIELDS, *ENTRIES)}
    axes |= {f"options.{key}": _listed(value) for key, value in run.options.items()}
    axes |= {f"session_config.{key}": _listed(value) for key, value in run.session_config.items()}
    axes["flags"] = _flag_sets(run.flags)
    _check(run, axes)
    return [_options(dict(zip(axes, values, strict=True))) for values in product(*axes.values())]


def check_runs(runs: Iterable[RunConfig]) -> None:
    """Raise ConfigError for a table that `run_options` refuses, before anything is done for it."""
    for run in runs:
        run_options(run)


def _listed(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _check(run: RunConfig, axes: Mapping[str, tuple[Any, ...]]) -> None:
    count = math.prod(len(values) for values in axes.values())
    if count > MOST_RUNS:
        sizes = ", ".join(f"{key} {len(values)}" for key, values in axes.items() if len(values) > 1)
        raise ConfigError(
            f"one [[runs]] asks for {count} combinations",
            where=f"[[runs]] {sizes}",
            why=f"at most {MOST_RUNS} can be meant",
            remedy="write several [[runs]] with shorter lists",
        )
    for key, meant in ENTRIES.items():
        values = [value for value in axes[key] if value is not None]
        twice = {name for value in values for name in meant(value)} & set(run.session_config)
        if twice:
            raise ConfigError(
                f"`{key}` and session_config both set {', '.join(sorted(twice))}",
                where="[[runs]]",
                remedy="leave out one of the two",
            )


def _options(chosen: dict[str, Any]) -> RunOptions:
    """One combination: key to value, provider options and session config entries under dotted keys."""
    config = {key.partition(".")[2]: value for key, value in chosen.items() if key.startswith("session_config.")}
    for key, meant in ENTRIES.items():
        config |= {} if chosen[key] is None else meant(chosen[key])
    return RunOptions(
        provider_options={key.partition(".")[2]: v for key, v in chosen.items() if key.startswith("options.")},
        flags=chosen["flags"],
        session_config=config,
        **{field: chosen[key] for key, field in FIELDS.items()},
    )


def changed(options: RunOptions, settings: Mapping[str, Any]) -> RunOptions:
    """Run options with other values for keys of [[runs]]; `options` and `session_config` are added to those there."""
    fields = {FIELDS[key]: value for key, value in settings.items() if key in FIELDS}
    config = {**options.session_config, **settings.get("session_config", {})}
    for key, meant in ENTRIES.items():
        config |= meant(settings[key]) if key in settings else {}
    flags = _flag_set(settings["flags"]) if "flags" in settings else options.flags
    provider_options = {**options.provider_options, **settings.get("options", {})}
    return msgspec.structs.replace(
        options, session_config=config, flags=flags, provider_options=provider_options, **fields
    )


def _flag_sets(flags: str | tuple[str | tuple[str, ...], ...]) -> tuple[tuple[NnapiFlag, ...], ...]:
    """One set for a list of names, one for each list in a list of lists, every set for the word `all`."""
    if flags == ALL_FLAGS:
        return tuple(subsets())
    named = (flags,) if isinstance(flags, str) else flags
    lists = [value for value in named if isinstance(value, tuple)]
    words = tuple(value for value in named if isinstance(value, str))
    if lists and words:
        raise ConfigError(
            "flags are a list of names or a list of lists, not both",
            where="[[runs]] flags",
            remedy='write [["USE_FP16"], ["USE_FP16", "USE_NCHW"]] for two sets, and [] in it for none',
        )
    return tuple(_flag_set(flags_of_set) for flags_of_set in lists or [words])


def _flag_set(names: Iterable[str]) -> tuple[NnapiFlag, ...]:
    """The flags once each, in NNAPI's order."""
    chosen = {_flag(name) for name in names}
    return tuple(flag for flag in NnapiFlag if flag in chosen)


def _flag(text: str) -> NnapiFlag:
    name = text.removeprefix("NNAPI_FLAG_")
    if name in set(NnapiFlag):
        return NnapiFlag(name)
    known = ", ".join(NnapiFlag)
    raise ConfigError(f"unknown NNAPI flag {text!r}", where="[[runs]] flags", remedy=f"it takes: {known}, or `all`")


SHORT: dict[str, dict[str, str]] = {
    "spinning=off": dict.fromkeys(SPINNING_KEYS, "0"),
    "spinning=on": dict.fromkeys(SPINNING_KEYS, "1"),
    "prepacking=off": {PREPACKING_KEY: "1"},
    "strict": {FALLBACK_KEY: "1"},
}
"""What stands in names for session config entries."""

SHORT_KEYS = {AFFINITY_KEY: "affinities", BLOCK_KEY: "dynamic_block_base"}

PREFIXES = ("config.", "option.")
"""What tells entries apart in names whose own keys would not: session config keys have dots, provider options none."""


def options_name(options: RunOptions) -> str:
    """The provider with what differs from the defaults, as in `nnapi+USE_FP16` or `cpu+threads=2+spinning=off`."""
    return "+".join([_plain(options.provider), *_flags_and_fields(options), *sorted(_entries(options))])


def _flags_and_fields(options: RunOptions) -> Iterator[str]:
    yield from sorted({flag.value for flag in options.flags})
    fields = {
        "threads": (options.intra_op_threads, 0),
        "inter_op_threads": (options.inter_op_threads, 0),
        "execution_mode": (options.execution_mode, ExecutionMode.SEQUENTIAL),
        "level": (options.optimization_level, OptimizationLevel.ALL),
    }
    yield from (f"{name}={value}" for name, (value, default) in fields.items() if value != default)
    yield from () if options.cpu_arena else ("memory_arena=off",)
    yield from () if options.memory_pattern else ("memory_pattern=off",)


def _entries(options: RunOptions) -> Iterator[str]:
    """Provider options and session config entries; no two different sets of them give the same texts."""
    config = options.session_config
    short = {word: entries for word, entries in SHORT.items() if entries.items() <= config.items()}
    covered = {key for entries in short.values() for key in entries}
    yield from short
    for key, value in config.items():
        if key not in covered:
            raw = key if "." in key and not key.startswith(PREFIXES) else f"config.{key}"
            yield f"{SHORT_KEYS.get(key) or _plain(raw)}={_plain(value, '+%')}"
    for key, value in options.provider_options.items():
        raw = f"option.{key}" if "." in key or key in (*FIELDS, *ENTRIES, "level") else key
        yield f"{_plain(raw)}={_plain(value, '+%')}"


def _plain(text: str, special: str = "+%=") -> str:
    """Text without what has a meaning in names, in the way of URLs."""
    return "".join(f"%{ord(char):02X}" if char in special else char for char in text)
