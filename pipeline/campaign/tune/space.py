"""What a search chooses from: the candidates of one model on one device, each as a row of named factors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from device_runner.spec import ExecutionMode, OptimizationLevel, RunOptions
from pipeline.campaign.options import FIELDS, SHORT, SHORT_KEYS, SPINNING_KEYS
from pipeline.campaign.plan import PlannedRun, distinct
from pipeline.campaign.record import Skipped
from pipeline.core.errors import ConfigError
from pipeline.core.providers import PROVIDER_RULES
from pipeline.core.variant import Level, Style

Factors = Mapping[str, str]
"""Name of a factor to its value, as people read them: {"threads": "2", "spinning": "off", ...}."""

ORT_DEFAULTS: Factors = {
    "provider": "cpu", "flags": "", "threads": "0", "inter_op_threads": "0",
    "execution_mode": ExecutionMode.SEQUENTIAL.value, "optimization_level": OptimizationLevel.ALL.value,
    "memory_arena": "on", "memory_pattern": "on", "spinning": "", "prepacking": "on", "strict": "off",
    "level": Level.ALL.value, "style": Style.FIXED.value, "precision": "", "providers": "",
}  # fmt: skip
"""What a file of the stock converter and a session without any setting amount to. A factor without a row has no value
by default: provider options and session config entries."""

ACCELERATOR_LEVEL = Level.BASIC.value
"""The level that ONNX Runtime's documentation advises for every provider but the CPU."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Space:
    """The candidates of one model on one device: all legal, and no two that run the same.

    `factors` has one row for each. `default` is the candidate that the documentation advises (the first provider that
    is not the CPU on `basic`, or else the CPU on `all`), or the nearest to it, and takes part in every search.
    `ort_default` is what an app gets that sets nothing, None where the space has no such candidate. `pruned` is what
    was left out beforehand, with the reason.
    """

    candidates: tuple[PlannedRun, ...]
    factors: tuple[Factors, ...]
    default: int
    ort_default: int | None = None
    pruned: tuple[Skipped, ...] = ()

    def __len__(self) -> int:
        return len(self.candidates)

    @cached_property
    def family(self) -> Sequence[int]:
        """The number of each candidate's family, which fails together: file, provider, its flags and options."""
        keys = [(one.variant, *provider_of(row)) for one, row in zip(self.candidates, self.factors, strict=True)]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        return [numbers[key] for key in keys]

    @cached_property
    def families(self) -> Sequence[Sequence[int]]:
        """The candidates of each family."""
        found: list[list[int]] = [[] for _ in range(max(self.family) + 1)]
        for candidate, family in enumerate(self.family):
            found[family].append(candidate)
        return found


def space_of(planned_runs: Sequence[PlannedRun], pruned: Sequence[Skipped] = ()) -> Space:
    """The space of one model's legal runs on one device (`plan_runs` splits them from the others).

    Raises ConfigError where no candidate is left, naming why the others went.
    """
    candidates = tuple(distinct(planned_runs))
    if not candidates:
        reasons = list(dict.fromkeys(one.text for one in pruned))
        raise ConfigError(
            "no configuration is left to try",
            why="; ".join(reasons[:5]) or "no variant matches any [[runs]] table",
            remedy="allow more in [[runs]], [variants] or the limits",
        )
    rows = tuple(factors(planned) for planned in candidates)
    plain = _nearest(rows, ORT_DEFAULTS)
    accelerators = [row["provider"] for row in rows if row["provider"] != ORT_DEFAULTS["provider"]]
    on_accelerator = {"provider": accelerators[0], "level": ACCELERATOR_LEVEL} if accelerators else {}
    return Space(
        candidates=candidates,
        factors=rows,
        default=_nearest(rows, {**ORT_DEFAULTS, **on_accelerator}),
        ort_default=plain if _distance(rows[plain], ORT_DEFAULTS) == 0 else None,
        pruned=tuple(pruned),
    )


def factors(planned: PlannedRun) -> Factors:
    """Every factor of a candidate with its value; session config entries and provider options by dotted names.

    Factors of a variant are its `level`, `style`, `precision` and `providers`; those of the run are called as in
    [[runs]], so that a factor with a default has that value where nothing is set.
    """
    return {**_of_variant(planned.variant), **_of_options(planned.run_options)}


def provider_of(row: Factors) -> tuple[str, ...]:
    """The provider of a row with its flags and options."""
    return row["provider"], row["flags"], *sorted(f"{k}={v}" for k, v in row.items() if k.startswith("options."))


def _of_variant(name: str) -> dict[str, str]:
    """The parts of a variant's name; a name that is none of ours (of a file as it is) has no parts."""
    parts = name.split("-")
    if len(parts) < 2 or parts[0] not in set(Level) or parts[1] not in set(Style):
        return {"level": name, "style": "", "precision": "", "providers": ""}
    rest = parts[2:]
    tails = ["-".join(rest[start:]) for start in range(len(rest))]
    aware = (start for start, tail in enumerate(tails) if all(one in PROVIDER_RULES for one in tail.split("+")))
    start = next(aware, len(rest))
    providers = "-".join(rest[start:])
    return {"level": parts[0], "style": parts[1], "precision": "-".join(rest[:start]), "providers": providers}


def _of_options(options: RunOptions) -> dict[str, str]:
    values = {name: getattr(options, field) for name, field in FIELDS.items()}
    found = {name: ("off", "on")[value] if isinstance(value, bool) else str(value) for name, value in values.items()}
    found["flags"] = "+".join(sorted(flag.value for flag in options.flags))
    found["optimization_level"] = options.optimization_level.value
    for word, entries in SHORT.items():
        name, _, value = word.partition("=")
        on = entries.items() <= options.session_config.items()
        found[name] = (value or "on") if on else found.get(name, ORT_DEFAULTS[name])
    known = {key for entries in SHORT.values() for key in entries}
    half_set = len(set(SPINNING_KEYS) & set(options.session_config)) == 1
    for key, value in options.session_config.items():
        if key not in known or (key in SPINNING_KEYS and half_set):
            found[SHORT_KEYS.get(key, f"session_config.{key}")] = value
    return found | {f"options.{key}": value for key, value in options.provider_options.items()}


WEIGHTS = {"provider": 1000, "precision": 200, "level": 50, "style": 50, "providers": 50}
"""How much a factor that differs takes a candidate away from a default; 1 for every other."""


def _distance(row: Factors, wanted: Factors) -> int:
    return sum(WEIGHTS.get(name, 1) for name in {*row, *wanted} if row.get(name, "") != wanted.get(name, ""))


def _nearest(rows: Sequence[Factors], wanted: Factors) -> int:
    return min(range(len(rows)), key=lambda candidate: (_distance(rows[candidate], wanted), candidate))
