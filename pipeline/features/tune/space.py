"""What a search on a device chooses from: artifacts and run options, pruned by what is known beforehand, as a space.

Nothing is pruned without its reason: that it cannot work, has no effect, or breaks a constraint that needs no run. A
space has each candidate that is left as a row of named factors. What a run says of it are values, one for each goal.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from device_runner import device as runner_device
from device_runner import options as runner_options
from device_runner import providers as runner_providers
from device_runner import result as run_result
from device_runner import spec as run_spec
from device_runner.device import DeviceFacts
from device_runner.result import RunResult, Status
from device_runner.spec import OptimizationLevel, RunOptions
from pipeline import config as configs
from pipeline.campaign import plan as planning
from pipeline.campaign import planned as campaign_planned
from pipeline.campaign import record as campaign_record
from pipeline.campaign import run_options
from pipeline.campaign import tuned as campaign_tuned
from pipeline.campaign.record import RunRecord
from pipeline.campaign.statistics import compare as run_compare
from pipeline.campaign.statistics import groups as run_groups
from pipeline.config import Config
from pipeline.config import settings as config_settings
from pipeline.config import tables as config_tables
from pipeline.core import providers as provider_rules
from pipeline.core.errors import ConfigError
from pipeline.core.variant import Artifact, Level, Style
from pipeline.release import choose

BYTES_PER_MB = 1_000_000

MANY_THREADS = (12, 16, 24, 32, 48, 64, 96, 128)
"""Numbers of threads to try above 8: every one up to there."""

FLAG_SETS = tuple(
    tuple(flag for flag in flags if flag)
    for flags in (
        (half, layout, no_cpu)
        for half in ("", run_spec.NnapiFlag.USE_FP16.value)
        for layout in ("", run_spec.NnapiFlag.USE_NCHW.value)
        for no_cpu in ("", run_spec.NnapiFlag.CPU_DISABLED.value)
    )
)
"""Every set of NNAPI flags without CPU_ONLY, which is for finding defects."""

GPU_OPTIONS = {
    "preferredLayout": ("NHWC", "NCHW"),
    "validationMode": ("basic", "disabled"),
    "powerPreference": ("high-performance", "low-power"),
    runner_providers.CAPTURE_KEY: ("0", "1"),
}
"""Options of WebGPU that change times and nothing that is computed, its defaults first."""


class Lattice(NamedTuple):
    """Candidates that are left of the lattice on one device, and those that are not, each with the reason."""

    kept: list[campaign_planned.PlannedRun]
    left_out: list[campaign_record.Skipped]


def searched_runs(
    runs: Sequence[configs.RunConfig], tune: configs.TuneConfig, facts: DeviceFacts
) -> list[configs.RunConfig]:
    """The [[runs]] tables, one a provider, with the lists of [tune] or what is sensible for the device.

    Each table is among them as it is, too: what a user runs today takes part. Where memory counts, weights are also
    used where the file is mapped: no copy of them is private then.
    """
    cores = runner_device.core_count(facts)
    threads = (*range(min(cores or 4, 8) + 1), *(number for number in MANY_THREADS if number <= cores))
    lists: dict[str, object] = {"threads": threads, "memory_arena": (True, False), "flags": FLAG_SETS}
    bounds_memory = bool(OF_MEMORY & set(tune.goal_list) or tune.max_memory_mb or tune.max_private_mb)
    if bounds_memory:
        lists |= {"memory_pattern": (True, False), "prepacking": (True, False)}
    lists |= {key: value for key in config_tables.SPACE_KEYS if (value := getattr(tune, key)) is not None}
    tables = []
    for run in (msgspec.structs.replace(table, provider=name) for table in runs for name in table.providers):
        provider = runner_providers.provider_named(str(run.provider))
        fitting = {key: value for key, value in lists.items() if key != "flags" or provider.has_flags}
        wide = msgspec.structs.replace(run, options=GPU_OPTIONS) if provider.gpu and not run.options else run
        tables += [run, config_tables.widened(wide, fitting)]
        # A library's own default is a third value, which lists cannot have: it stays, and off comes beside it.
        tables += [config_tables.widened(wide, {**fitting, "spinning": False})] if tune.spinning is None else []
        if bounds_memory and facts.platform != configs.Platform.ANDROID:  # where files are mapped in any case
            mapped = msgspec.structs.replace(wide, session_config={**wide.session_config, **runner_options.MAPPED})
            tables.append(config_tables.widened(mapped, fitting))
    return tables


SOFTWARE_GPU = "this device has no GPU: one in software would compute, whose times and memory are no GPU's"


def lattice(
    config: Config,
    artifacts: Sequence[Artifact],
    facts: DeviceFacts,
    denied: Sequence[runner_options.Denied] = (),
    *,
    software_gpu: bool = False,
) -> Lattice:
    """Every artifact with every combination on a device, without what is illegal or of no use there.

    Raises ConfigError for a table of run options that makes no sense.
    """
    searched, advised = searched_runs(config.runs, config.tune, facts), config.runs == configs.ADVISED_RUNS
    cores, limit = runner_device.core_count(facts), config.tune.max_size_mb

    def refused(planned: campaign_planned.PlannedRun) -> str:
        options = planned.options
        if software_gpu and runner_providers.provider_named(options.provider).gpu:
            return SOFTWARE_GPU
        many = max(options.intra_op_threads, options.inter_op_threads)
        if cores and many > cores:
            return f"{many} threads on {cores} cores wait for each other"
        if limit is not None and planned.size_bytes > limit * BYTES_PER_MB:
            return f"its file has {planned.size_bytes / BYTES_PER_MB:.3g} MB, max_size_mb allows {limit:g}"
        return ""

    planned_runs, skipped = planning.plan_runs(searched, artifacts, [facts], denied, advised=advised)
    return without(Lattice(planned_runs, skipped), refused)


def distinct_candidates(
    space: Lattice, facts: DeviceFacts, predictions: Mapping[str, campaign_record.Prediction]
) -> Lattice:
    """One of those that amount to the same, without what the rules of providers say is of no use: no session, no claim.

    The one that sets least is kept. `predictions` are by the id of planned runs.
    """

    def useless(planned: campaign_planned.PlannedRun) -> str:
        prediction = predictions.get(planned.id)
        if prediction is None or prediction.claimed is None:
            return ""  # the rules have no answer
        if prediction.error:
            return f"no session, by the provider's rules: {prediction.error}"
        return "" if prediction.claimed else "the provider claims no node of it: it would run on the CPU alone"

    def plainness(planned: campaign_planned.PlannedRun) -> tuple[int, int, bool]:
        """Fewest settings first, then the level that ONNX Runtime's documentation advises for the provider."""
        level, _, style = planned.variant.partition("-")
        advised = choose.ADVISED_LEVELS if planned.options.on_cpu else (Level.BASIC, *choose.ADVISED_LEVELS)
        ranks = [rank for rank, advice in enumerate(advised) if advice.value == level]
        settings = len(planned.options.session_config) + len(planned.options.flags)
        return settings, (ranks or [len(advised)])[0], not style.startswith("fixed")

    candidates, pruned = without(space, useless)
    kept, seen = [], dict[tuple[str, bytes], campaign_planned.PlannedRun]()
    for planned in sorted(candidates, key=plainness):
        prediction = predictions.get(planned.id)
        options, reason = planned.run_options, "the same bytes with the same options"
        for setting in NO_EFFECT:
            if setting.has_none(options, facts) and (same := setting.without(options)) != options:
                options, reason = same, setting.why
        if prediction is not None and prediction.claimed is not None and prediction.claimed == prediction.nodes:
            plain = _without_entries(*runner_options.SPINNING_KEYS, runner_options.BLOCK_KEY)(options)
            plain = msgspec.structs.replace(plain, intra_op_threads=0, inter_op_threads=0)
            options, reason = plain, ALL_CLAIMED if plain != options else reason
        first = seen.setdefault((planned.sha256, msgspec.json.encode(options, order="sorted")), planned)
        if first is planned:
            kept.append(planned)
        else:
            pruned.append(msgspec.structs.replace(planned.skipped(reason), why=f"counts as {first.way}"))
    order = {id(planned): number for number, planned in enumerate(candidates)}
    return Lattice(sorted(kept, key=lambda planned: order[id(planned)]), pruned)


def without(space: Lattice, refused: Callable[[campaign_planned.PlannedRun], str]) -> Lattice:
    """Without the candidates that `refused` gives a reason for."""
    reasons = [(planned, refused(planned)) for planned in space.kept]
    pruned = [planned.skipped(reason) for planned, reason in reasons if reason]
    return Lattice([planned for planned, reason in reasons if not reason], [*space.left_out, *pruned])


def _without_entries(*keys: str) -> Callable[[RunOptions], RunOptions]:
    return lambda options: msgspec.structs.replace(
        options, session_config={key: value for key, value in options.session_config.items() if key not in keys}
    )


def _without_flag(gone: run_spec.NnapiFlag) -> Callable[[RunOptions], RunOptions]:
    return lambda options: msgspec.structs.replace(options, flags=tuple(flag for flag in options.flags if flag != gone))


def _one_thread(options: RunOptions, _: DeviceFacts) -> bool:
    return options.intra_op_threads == 1 and options.execution_mode is run_spec.ExecutionMode.SEQUENTIAL


class NoEffect(NamedTuple):
    """When some options change nothing, what they are then worth, and why."""

    has_none: Callable[[RunOptions, DeviceFacts], bool]
    without: Callable[[RunOptions], RunOptions]
    why: str


NO_EFFECT = (
    NoEffect(
        _one_thread,
        _without_entries(*runner_options.SPINNING_KEYS),
        "one thread waits for no other: spinning has no effect",
    ),
    NoEffect(
        _one_thread,
        _without_entries(runner_options.BLOCK_KEY),
        "one thread has no blocks to share: their size has no effect",
    ),
    NoEffect(
        lambda options, _: options.execution_mode is run_spec.ExecutionMode.PARALLEL,
        lambda options: msgspec.structs.replace(options, memory_pattern=True),
        "ONNX Runtime uses memory patterns in sequential mode only",
    ),
    NoEffect(
        lambda _, facts: 0 < facts.api_level < runner_providers.NNAPI_RELAXED_API_LEVEL,
        _without_flag(run_spec.NnapiFlag.USE_FP16),
        (
            f"NNAPI computes in float16 from API level {runner_providers.NNAPI_RELAXED_API_LEVEL} on: USE_FP16 has no "
            "effect here"
        ),
    ),
    NoEffect(
        lambda _, facts: len(facts.nnapi_devices) > 0 and all(d.type != "cpu" for d in facts.nnapi_devices),
        _without_flag(run_spec.NnapiFlag.CPU_DISABLED),
        "this phone's NNAPI names no CPU device: CPU_DISABLED has no effect here",
    ),
)
"""Options that change nothing that is computed or how fast, from ONNX Runtime's sources (1.20 to 1.31)."""

ALL_CLAIMED = "the provider claims every node: options of the CPU have no effect"

Factors = Mapping[str, str]
"""Name of a factor to its value, as people read them: {"threads": "2", "spinning": "off", ...}."""

ORT_DEFAULTS: Factors = {
    **{
        setting.key: config_settings.setting_text(setting.default)
        for setting in config_tables.SESSION_SETTINGS
        if setting.default is not None
    },
    "spinning": "",
    "flags": "",
    "optimization_level": OptimizationLevel.ALL.value,
    "level": Level.ALL.value,
    "style": Style.FIXED.value,
    "precision": "",
    "providers": "",
}
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

    candidates: tuple[campaign_planned.PlannedRun, ...]
    factors: tuple[Factors, ...]
    default: int
    ort_default: int | None = None
    pruned: tuple[campaign_record.Skipped, ...] = ()

    def __len__(self) -> int:
        return len(self.candidates)

    @cached_property
    def family(self) -> Sequence[int]:
        """The number of each candidate's family, which fails together: file, provider, its flags and options."""
        keys = [
            (
                planned.variant,
                row["provider"],
                row["flags"],
                *sorted(f"{name}={value}" for name, value in row.items() if name.startswith("options.")),
            )
            for planned, row in zip(self.candidates, self.factors, strict=True)
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


def space_of(
    planned_runs: Sequence[campaign_planned.PlannedRun], pruned: Sequence[campaign_record.Skipped] = ()
) -> Space:
    """The space of one model's legal runs on one device (`plan_runs` splits them from the others).

    Raises ConfigError where no candidate is left, naming why the others went.
    """
    candidates = tuple(planning.distinct(planned_runs))
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


def factors(planned: campaign_planned.PlannedRun) -> Factors:
    """Every factor of a candidate with its value; session config entries and provider options by dotted names.

    Factors of a variant are its `level`, `style`, `precision` and `providers`; those of the run are called as in
    [[runs]], so that a factor with a default has that value where nothing is set.
    """
    row = {"level": planned.variant, "style": "", "precision": "", "providers": ""}
    parts = planned.variant.split("-")  # a name that is none of ours (of a file as it is) has no parts
    if len(parts) > 1 and parts[0] in set(Level) and parts[1] in set(Style):
        rest = parts[2:]
        tails = ["-".join(rest[start:]) for start in range(len(rest))]
        aware = (
            start
            for start, tail in enumerate(tails)
            if all(name in provider_rules.PROVIDER_RULES for name in tail.split("+"))
        )
        start = next(aware, len(rest))
        row = {
            "level": parts[0],
            "style": parts[1],
            "precision": "-".join(rest[:start]),
            "providers": "-".join(rest[start:]),
        }
    options = planned.run_options
    for name, field in run_options.FIELDS.items():
        value = getattr(options, field)
        factor = "optimization_level" if name == "level" else name  # `level` is the file's
        row[factor] = config_settings.setting_text(value)
    row["flags"] = "+".join(sorted(flag.value for flag in options.flags))
    for word, entries in run_options.SHORT.items():
        name, _, value = word.partition("=")
        on = entries.items() <= options.session_config.items()
        row[name] = (value or "on") if on else row.get(name, ORT_DEFAULTS[name])
    keys = {key for entries in run_options.SHORT.values() for key in entries}
    half_set = len(set(runner_options.SPINNING_KEYS) & set(options.session_config)) == 1
    for key, value in options.session_config.items():
        if key not in keys or (key in runner_options.SPINNING_KEYS and half_set):
            row[run_options.SHORT_KEYS.get(key, f"session_config.{key}")] = value
    return row | {f"options.{key}": value for key, value in options.provider_options.items()}


WEIGHTS = {"provider": 1000, "precision": 200, "level": 50, "style": 50, "providers": 50}
"""How much a factor that differs takes a candidate away from a default; 1 for every other."""


def _distance(row: Factors, default: Factors) -> int:
    return sum(WEIGHTS.get(name, 1) for name in {*row, *default} if row.get(name, "") != default.get(name, ""))


def _nearest(rows: Sequence[Factors], default: Factors) -> int:
    return min(range(len(rows)), key=lambda candidate: (_distance(rows[candidate], default), candidate))


GOAL_FIELDS = {
    configs.Goal.LATENCY: "latency_ns",
    configs.Goal.P90: "p90_ns",
    configs.Goal.MEMORY: "memory_bytes",
    configs.Goal.PRIVATE_MEMORY: "private_bytes",
    configs.Goal.SIZE: "size_bytes",
    configs.Goal.SUSTAINED: "sustained_ns",
}
"""Goals and the fields of CandidateValues that they are."""

OF_MEMORY = {configs.Goal.MEMORY, configs.Goal.PRIVATE_MEMORY}

TIMED = {configs.Goal.LATENCY, configs.Goal.P90, configs.Goal.SUSTAINED}
"""Goals that mean nothing where a phone's library runs on another machine."""


class Constraint(NamedTuple):
    """The goal that a key of [tune] bounds, the key's unit, and how far a single run may be above for its noise."""

    goal: configs.Goal
    unit: float
    room: float


CONSTRAINTS = {
    "max_latency_ms": Constraint(configs.Goal.LATENCY, 1e6, 1.05),
    "max_p90_ms": Constraint(configs.Goal.P90, 1e6, 1.05),
    "max_memory_mb": Constraint(configs.Goal.MEMORY, BYTES_PER_MB, 1.0),
    "max_private_mb": Constraint(configs.Goal.PRIVATE_MEMORY, BYTES_PER_MB, 1.0),
    "max_size_mb": Constraint(configs.Goal.SIZE, BYTES_PER_MB, 1.0),
}


def value_of(values: campaign_tuned.CandidateValues, goal: configs.Goal) -> float | None:
    """The value of a goal."""
    value: float | None = getattr(values, GOAL_FIELDS[goal])
    return value


def values_of(result: RunResult, size_bytes: int) -> campaign_tuned.CandidateValues:
    """What one run says for each goal."""
    latencies = np.asarray(result.latencies_ns, np.int64)
    if not len(latencies):
        return campaign_tuned.CandidateValues(size_bytes=size_bytes)
    return campaign_tuned.CandidateValues(
        latency_ns=float(np.median(latencies)),
        mean_ns=float(latencies.mean()),
        first_run_ns=result.first_run_ns or None,
        p90_ns=float(np.quantile(latencies, 0.9, method="inverted_cdf")),
        memory_bytes=result.memory_peak_bytes or None,
        private_bytes=result.memory_private_bytes or None,
        size_bytes=size_bytes,
    )


def medians(values: Sequence[campaign_tuned.CandidateValues]) -> campaign_tuned.CandidateValues:
    """The median of each value over several runs."""
    middles = {}
    for name in campaign_tuned.CandidateValues.__struct_fields__:
        numbers = [value for of_run in values if (value := getattr(of_run, name)) is not None]
        middles[name] = float(np.median(numbers)) if numbers else None
    return campaign_tuned.CandidateValues(**middles)


def broken_limit(
    values: campaign_tuned.CandidateValues, tune: configs.TuneConfig, *, single: bool = False
) -> campaign_tuned.Dropped | None:
    """Which constraint values break, or None; those of a single run have some room for its noise."""
    for key, constraint in CONSTRAINTS.items():
        goal, limit = constraint.goal, getattr(tune, key)
        value = value_of(values, goal)
        if limit is not None and value is None:
            return campaign_tuned.Dropped(
                reason=f"{goal.value} was not measured, and {key} = {limit:g} cannot be checked"
            )
        if (
            limit is not None
            and value is not None
            and value > limit * constraint.unit * (constraint.room if single else 1.0)
        ):
            return campaign_tuned.Dropped(
                reason=f"{goal.value} is over {key} = {limit:g}", detail=f"{value / constraint.unit:.4g}"
            )
    return None


Name = TypeVar("Name", int, str)


def nondominated(values: Mapping[Name, campaign_tuned.CandidateValues], goals: Sequence[configs.Goal]) -> list[Name]:
    """The candidates that no other beats: none is at most as large in every goal and smaller in one."""
    points = {c: tuple(value_of(v, goal) for goal in goals) for c, v in values.items()}
    whole = {c: tuple(x for x in point if x is not None) for c, point in points.items() if None not in point}
    return [
        c
        for c, point in whole.items()
        if not any(other != point and all(map(float.__le__, other, point)) for other in whole.values())
    ]


def failure_of(run: RunRecord, goals: Iterable[configs.Goal]) -> str:
    """Why a run says nothing for goals: it failed, its outputs are wrong, its times are not this device's; or ""."""
    result = run.result
    if result.status is not Status.OK:
        return result.failure.what.partition("\n")[0][:300] if result.failure else result.status.value
    if wrong := [check for check in run.checks if check.failed]:
        return f"output {wrong[0].output} differs from the original's: {wrong[0].reason or 'out of tolerance'}"
    if run_result.Mark.SOFTWARE_GPU in result.marks:
        return "a software GPU computed: its times and memory are no GPU's"
    if {run_result.Mark.NOT_A_PHONE, run_result.Mark.SIMULATED} & set(result.marks) and TIMED & set(goals):
        return "its times are not a phone's"
    if run_result.Mark.QUARANTINED in result.marks:
        return "the lab took the device out: what it measured is in doubt"
    return "" if result.latencies_ns else "it timed nothing"


FEWEST_ROUNDS = 4
"""Rounds below which nothing is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsRatio:
    """A ratio over rounds with bounds (95 % unless asked for others); None where nothing varies or they are few."""

    ratio: float
    low: float | None = None
    high: float | None = None
    rounds: int

    @property
    def shown_below(self) -> bool:
        """Whether the rounds show it to be below 1; where nothing varies, a few of them do."""
        return self.high < 1 if self.high is not None else self.ratio < 1 and self.rounds >= FEWEST_ROUNDS


def ratio_of(
    rounds: Mapping[int, campaign_tuned.CandidateValues],
    other: Mapping[int, campaign_tuned.CandidateValues],
    goal: configs.Goal,
    confidence: float = 0.95,
) -> RoundsRatio | None:
    """The value of one relative to another's, by the rounds that both have; None where a value is missing."""
    logs = _log_ratios(rounds, other, GOAL_FIELDS[goal])
    if not len(logs):
        return None
    bounds = run_groups.ratio_interval(logs, confidence) if float(np.ptp(logs)) > 0 else None
    if bounds is None:
        return RoundsRatio(ratio=float(np.exp(np.median(logs))), rounds=len(logs))
    return RoundsRatio(ratio=bounds.ratio, low=bounds.low, high=bounds.high, rounds=len(logs))


def _log_ratios(
    rounds: Mapping[int, campaign_tuned.CandidateValues], other: Mapping[int, campaign_tuned.CandidateValues], name: str
) -> run_groups.Floats:
    """Of a field of the values, in the rounds where both have one."""
    pairs = [
        (value, base)
        for number, values in rounds.items()
        if number in other and (value := getattr(values, name)) and (base := getattr(other[number], name))
    ]
    return np.log([value / base for value, base in pairs])


TAIL_FIELDS = {run_groups.Yardstick.MEAN: "mean_ns", run_groups.Yardstick.P90: "p90_ns"}


def tails_of(
    rounds: Mapping[int, campaign_tuned.CandidateValues],
    other: Mapping[int, campaign_tuned.CandidateValues],
    goal: configs.Goal,
) -> list[run_compare.TailRatio]:
    """Means and 90th percentiles of one that differ from another's, for the goal latency, which is of medians."""
    logs = (
        {of: _log_ratios(rounds, other, name) for of, name in TAIL_FIELDS.items()}
        if goal is configs.Goal.LATENCY
        else {}
    )
    return run_compare.tail_ratios(logs, 1 - 0.95)


def beats(
    rounds: Mapping[int, campaign_tuned.CandidateValues],
    other: Mapping[int, campaign_tuned.CandidateValues],
    goals: Sequence[configs.Goal],
) -> bool | None:
    """Whether rounds show one to be better than another in the first goal in which the two are not equal; None where
    no value of it is there.
    """
    known = None
    for goal in goals:
        if (ratio := ratio_of(rounds, other, goal)) is None:
            continue
        shown = {tail.ratio > 1 for tail in tails_of(rounds, other, goal) if tail.shown}
        if ratio.ratio != 1 or ratio.low is not None or shown:
            above = ratio.low is not None and ratio.low > 1
            return True not in shown and (ratio.shown_below or (False in shown and not above))
        known = False
    return known
