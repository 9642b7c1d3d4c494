"""What a search on a device chooses from: artifacts and run options, pruned by what is known beforehand, as a space.

Nothing is pruned without its reason: that it cannot work, has no effect, or breaks a constraint that needs no run. A
space has each candidate that is left as a row of named factors.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from device_runner.device import DeviceFacts
from device_runner.options import BLOCK_KEY, Denied
from device_runner.providers import CAPTURE_KEY, CPU, NNAPI_RELAXED_API_LEVEL, provider_named
from device_runner.spec import ExecutionMode, NnapiFlag, OptimizationLevel, RunOptions
from pipeline.campaign.plan import FIELDS, SHORT, SHORT_KEYS, SPINNING_KEYS, PlannedRun, distinct, plan_runs, planned_id
from pipeline.campaign.record import Prediction, Skipped
from pipeline.config import ADVISED_RUNS, Config, Goal, RunConfig, TuneConfig
from pipeline.config.tables import SPACE_KEYS, widened
from pipeline.core.errors import ConfigError
from pipeline.core.providers import PROVIDER_RULES
from pipeline.core.variant import Artifact, Level, Style
from pipeline.release.choose import ADVISED_LEVELS

BYTES_PER_MB = 1_000_000

MANY_THREADS = (12, 16, 24, 32, 48, 64, 96, 128)
"""Numbers of threads to try above 8: every one up to there."""

FLAG_SETS = tuple(
    tuple(flag for flag in flags if flag)
    for flags in (
        (half, layout, no_cpu)
        for half in ("", NnapiFlag.USE_FP16.value)
        for layout in ("", NnapiFlag.USE_NCHW.value)
        for no_cpu in ("", NnapiFlag.CPU_DISABLED.value)
    )
)
"""Every set of NNAPI flags without CPU_ONLY, which is for finding defects."""


GPU_OPTIONS = {
    "preferredLayout": ("NHWC", "NCHW"),
    "validationMode": ("basic", "disabled"),
    "powerPreference": ("high-performance", "low-power"),
    CAPTURE_KEY: ("0", "1"),
}
"""Options of WebGPU that change times and nothing that is computed, its defaults first."""


Lattice = tuple[list[PlannedRun], list[Skipped]]
"""Candidates that are left of the lattice on one device, and those that are not, each with the reason."""


def core_count(facts: DeviceFacts) -> int:
    """Cores of a device; 0 where it does not tell. A computer that names no clocks is asked as a whole."""
    return len(facts.core_max_mhz) or (os.cpu_count() or 0 if facts.platform in ("linux", "macos") else 0)


def searched_runs(runs: Sequence[RunConfig], tune: TuneConfig, facts: DeviceFacts) -> list[RunConfig]:
    """The [[runs]] tables, one a provider, with the lists of [tune] or what is sensible for the device.

    Each table is among them as it is, too: what a user runs today takes part.
    """
    configured = {key: value for key in SPACE_KEYS if (value := getattr(tune, key)) is not None}
    lists = {**_sensible(facts, tune), **configured}
    tables = []
    for run in (msgspec.structs.replace(table, provider=name) for table in runs for name in table.providers):
        row = provider_named(str(run.provider))
        fitting = {key: value for key, value in lists.items() if key != "flags" or row.has_flags}
        wide = msgspec.structs.replace(run, options=GPU_OPTIONS) if row.gpu and not run.options else run
        tables += [run, widened(wide, fitting)]
        # A library's own default is a third value, which lists cannot have: it stays, and off comes beside it.
        tables += [widened(wide, {**fitting, "spinning": False})] if tune.spinning is None else []
    return tables


def _sensible(facts: DeviceFacts, tune: TuneConfig) -> dict[str, object]:
    cores = core_count(facts)
    threads = (*range(min(cores or 4, 8) + 1), *(number for number in MANY_THREADS if number <= cores))
    both: dict[str, object] = {"threads": threads, "memory_arena": (True, False), "flags": FLAG_SETS}
    if Goal.MEMORY in tune.goal_list or tune.max_memory_mb:
        both |= {"memory_pattern": (True, False), "prepacking": (True, False)}
    return both


SOFTWARE_GPU = "this device has no GPU: one in software would compute, whose times and memory are no GPU's"


def lattice(
    config: Config,
    artifacts: Sequence[Artifact],
    facts: DeviceFacts,
    denied: Sequence[Denied] = (),
    *,
    software_gpu: bool = False,
) -> Lattice:
    """Every artifact with every combination on a device, without what is illegal or of no use there.

    Raises ConfigError for a table of run options that makes no sense.
    """
    searched, advised = searched_runs(config.runs, config.tune, facts), config.runs == ADVISED_RUNS
    legal, skipped = plan_runs(searched, artifacts, [facts], denied, advised=advised)
    kept, pruned = [], list(skipped)
    for planned in legal:
        reason = SOFTWARE_GPU if software_gpu and provider_named(planned.options.provider).gpu else ""
        reason = reason or _over_cores(planned.options, facts) or _broken_limit(planned, config.tune)
        if reason:
            pruned.append(planned.skipped(reason))
        else:
            kept.append(planned)
    return kept, pruned


def distinct_candidates(space: Lattice, facts: DeviceFacts, predictions: Mapping[str, Prediction]) -> Lattice:
    """One of those that amount to the same, without what the rules of providers say is of no use: no session, no claim.

    `predictions` are by the id of planned runs.
    """
    kept, pruned = [], list(space[1])
    for planned in space[0]:
        if reason := _useless(predictions.get(planned_id(planned))):
            pruned.append(planned.skipped(reason))
        else:
            kept.append(planned)
    return _without_repeats(kept, pruned, facts, predictions)


def without(space: Lattice, refused: Callable[[PlannedRun], str]) -> Lattice:
    """Without the candidates that `refused` gives a reason for."""
    reasons = [(planned, refused(planned)) for planned in space[0]]
    pruned = [planned.skipped(reason) for planned, reason in reasons if reason]
    return [planned for planned, reason in reasons if not reason], [*space[1], *pruned]


def _over_cores(options: RunOptions, facts: DeviceFacts) -> str:
    cores = core_count(facts)
    many = max(options.intra_op_threads, options.inter_op_threads)
    return f"{many} threads on {cores} cores wait for each other" if cores and many > cores else ""


def _broken_limit(planned: PlannedRun, tune: TuneConfig) -> str:
    """The constraint on size, which needs no run."""
    limit = tune.max_size_mb
    if limit is None or planned.size_bytes <= limit * BYTES_PER_MB:
        return ""
    return f"its file has {planned.size_bytes / BYTES_PER_MB:.3g} MB, max_size_mb allows {limit:g}"


def _useless(prediction: Prediction | None) -> str:
    if prediction is None or prediction.claimed is None:
        return ""  # the rules have no answer
    if prediction.error:
        return f"no session, by the provider's rules: {prediction.error}"
    return "" if prediction.claimed else "the provider claims no node of it: it would run on the CPU alone"


def _without_entries(*keys: str) -> Callable[[RunOptions], RunOptions]:
    return lambda options: msgspec.structs.replace(
        options, session_config={key: value for key, value in options.session_config.items() if key not in keys}
    )


def _without_flag(gone: NnapiFlag) -> Callable[[RunOptions], RunOptions]:
    return lambda options: msgspec.structs.replace(options, flags=tuple(flag for flag in options.flags if flag != gone))


def _one_thread(options: RunOptions, _: DeviceFacts) -> bool:
    return options.intra_op_threads == 1 and options.execution_mode is ExecutionMode.SEQUENTIAL


NoEffect = tuple[Callable[[RunOptions, DeviceFacts], bool], Callable[[RunOptions], RunOptions], str]
"""When some options change nothing, what they are then worth, and why."""

NO_EFFECT: tuple[NoEffect, ...] = (
    (_one_thread, _without_entries(*SPINNING_KEYS), "one thread waits for no other: spinning has no effect"),
    (_one_thread, _without_entries(BLOCK_KEY), "one thread has no blocks to share: their size has no effect"),
    (
        lambda options, _: options.execution_mode is ExecutionMode.PARALLEL,
        lambda options: msgspec.structs.replace(options, memory_pattern=True),
        "ONNX Runtime uses memory patterns in sequential mode only",
    ),
    (
        lambda _, facts: 0 < facts.api_level < NNAPI_RELAXED_API_LEVEL,
        _without_flag(NnapiFlag.USE_FP16),
        f"NNAPI computes in float16 from API level {NNAPI_RELAXED_API_LEVEL} on: USE_FP16 has no effect here",
    ),
    (
        lambda _, facts: len(facts.nnapi_devices) > 0 and all(d.type != "cpu" for d in facts.nnapi_devices),
        _without_flag(NnapiFlag.CPU_DISABLED),
        "this phone's NNAPI names no CPU device: CPU_DISABLED has no effect here",
    ),
)
"""Options that change nothing that is computed or how fast, from ONNX Runtime's sources (1.20 to 1.31)."""

ALL_CLAIMED = "the provider claims every node: options of the CPU have no effect"


def _meanings(options: RunOptions, facts: DeviceFacts, *, all_claimed: bool) -> Iterator[tuple[RunOptions, str]]:
    """What options amount to, step by step, each with the reason."""
    for has_none, without_them, reason in NO_EFFECT:
        if has_none(options, facts) and (same := without_them(options)) != options:
            yield same, reason
            options = same
    if all_claimed:
        plain = msgspec.structs.replace(
            _without_entries(*SPINNING_KEYS, BLOCK_KEY)(options), intra_op_threads=0, inter_op_threads=0
        )
        if plain != options:
            yield plain, ALL_CLAIMED


def _plainness(planned: PlannedRun) -> tuple[int, int, bool]:
    """Fewest settings first, then the level that ONNX Runtime's documentation advises for the provider."""
    level, _, style = planned.variant.partition("-")
    advised = ADVISED_LEVELS if planned.options.provider == CPU else (Level.BASIC, *ADVISED_LEVELS)
    ranks = [rank for rank, advice in enumerate(advised) if advice.value == level]
    settings = len(planned.options.session_config) + len(planned.options.flags)
    return settings, (ranks or [len(advised)])[0], not style.startswith("fixed")


def _without_repeats(
    candidates: Sequence[PlannedRun],
    pruned: list[Skipped],
    facts: DeviceFacts,
    predictions: Mapping[str, Prediction],
) -> Lattice:
    """One candidate of those that amount to the same: the one that sets least; the others join `pruned`."""
    kept, seen = [], dict[tuple[str, bytes], PlannedRun]()
    for planned in sorted(candidates, key=_plainness):
        prediction = predictions.get(planned_id(planned))
        claimed = prediction is not None and prediction.claimed is not None and prediction.claimed == prediction.nodes
        steps = [(planned.run_options, ""), *_meanings(planned.run_options, facts, all_claimed=claimed)]
        key = (planned.sha256, msgspec.json.encode(steps[-1][0], order="sorted"))
        first = seen.setdefault(key, planned)
        if first is planned:
            kept.append(planned)
        else:
            reason = steps[-1][1] or "the same bytes with the same options"
            same = planned.skipped(reason)
            pruned.append(msgspec.structs.replace(same, why=f"counts as {first.run_name}"))
    order = {id(planned): number for number, planned in enumerate(candidates)}
    return sorted(kept, key=lambda planned: order[id(planned)]), pruned


Factors = Mapping[str, str]
"""Name of a factor to its value, as people read them: {"threads": "2", "spinning": "off", ...}."""

ORT_DEFAULTS: Factors = {
    "provider": "cpu", "flags": "", "threads": "0", "inter_op_threads": "0",
    "execution_mode": ExecutionMode.SEQUENTIAL.value, "optimization_level": OptimizationLevel.ALL.value,
    "memory_arena": "on", "memory_pattern": "on", "spinning": "", "prepacking": "on", "strict": "off",
    "thread_cores": "", "thread_nice": "0", "allocator": "default", "device_tensors": "off",
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
        keys = [
            (planned.variant, *provider_of(row)) for planned, row in zip(self.candidates, self.factors, strict=True)
        ]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        return [numbers[key] for key in keys]

    @cached_property
    def families(self) -> Sequence[Sequence[int]]:
        """The candidates of each family."""
        families: list[list[int]] = [[] for _ in range(max(self.family) + 1)]
        for candidate, family in enumerate(self.family):
            families[family].append(candidate)
        return families


def space_of(planned_runs: Sequence[PlannedRun], pruned: Sequence[Skipped] = ()) -> Space:
    """The space of one model's legal runs on one device (`plan_runs` splits them from the others).

    Raises ConfigError where no candidate is left, naming why the others went.
    """
    candidates = tuple(distinct(planned_runs))
    if not candidates:
        reasons = list(dict.fromkeys(skipped.text for skipped in pruned))
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
    aware = (
        start for start, tail in enumerate(tails) if all(provider in PROVIDER_RULES for provider in tail.split("+"))
    )
    start = next(aware, len(rest))
    providers = "-".join(rest[start:])
    return {"level": parts[0], "style": parts[1], "precision": "-".join(rest[:start]), "providers": providers}


def _of_options(options: RunOptions) -> dict[str, str]:
    values = {name: getattr(options, field) for name, field in FIELDS.items()}
    row = {name: ("off", "on")[value] if isinstance(value, bool) else str(value) for name, value in values.items()}
    row["flags"] = "+".join(sorted(flag.value for flag in options.flags))
    row["optimization_level"] = options.optimization_level.value
    for word, entries in SHORT.items():
        name, _, value = word.partition("=")
        on = entries.items() <= options.session_config.items()
        row[name] = (value or "on") if on else row.get(name, ORT_DEFAULTS[name])
    keys = {key for entries in SHORT.values() for key in entries}
    half_set = len(set(SPINNING_KEYS) & set(options.session_config)) == 1
    for key, value in options.session_config.items():
        if key not in keys or (key in SPINNING_KEYS and half_set):
            row[SHORT_KEYS.get(key, f"session_config.{key}")] = value
    return row | {f"options.{key}": value for key, value in options.provider_options.items()}


WEIGHTS = {"provider": 1000, "precision": 200, "level": 50, "style": 50, "providers": 50}
"""How much a factor that differs takes a candidate away from a default; 1 for every other."""


def _distance(row: Factors, default: Factors) -> int:
    return sum(WEIGHTS.get(name, 1) for name in {*row, *default} if row.get(name, "") != default.get(name, ""))


def _nearest(rows: Sequence[Factors], default: Factors) -> int:
    return min(range(len(rows)), key=lambda candidate: (_distance(rows[candidate], default), candidate))
