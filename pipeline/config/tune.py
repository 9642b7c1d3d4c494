"""The table of a search for the best configuration: what it looks for, among what, and for how long."""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from device_runner.spec import ExecutionMode
from pipeline.config.tables import Count, OneOrMore, RunConfig, Table, Threads


class Goal(StrEnum):
    """What a search makes small; all but `size` are measured."""

    LATENCY = "latency"
    P90 = "p90"
    MEMORY = "memory"
    SIZE = "size"
    ENERGY = "energy"


class TuneStrategy(StrEnum):
    """How a search chooses what to measure: by a model of what was measured, by Optuna's sampler, or everything."""

    RIDGE = "ridge"
    OPTUNA = "optuna"
    GRID = "grid"


Limit = Annotated[float, Meta(gt=0)]
Percent = Annotated[float, Meta(ge=0, lt=100)]


class TuneConfig(Table, frozen=True, kw_only=True):
    """Search for the best configuration (`ort-mobile tune`): artifacts with providers and flags as in [[runs]], and
    every combination of the lists here that [[runs]] leaves at its default. What cannot work or has no effect on a
    device is left out with the reason.
    """

    minutes: Annotated[float, Meta(gt=0, le=10_000)] = 20.0
    """Time for runs on each device; waiting for a device to cool does not count."""
    goals: OneOrMore[Goal] = Goal.LATENCY
    """What is made small: latency (median), p90, memory (peak), size (of the artifact), energy (where a device measures
    it). Of several the first decides what ships; all together give the Pareto front."""
    max_latency_ms: Limit | None = None
    """Constraint: median latency."""
    max_p90_ms: Limit | None = None
    """Constraint: 90th percentile of latency."""
    max_memory_mb: Limit | None = None
    """Constraint: peak memory of the process, in MB (1,000,000 bytes)."""
    max_size_mb: Limit | None = None
    """Constraint: size of the artifact, in MB. (Accuracy has its budget in [accuracy].)"""
    strategy: TuneStrategy = TuneStrategy.RIDGE
    """ridge (a model of the logarithm of what was measured proposes what is next), optuna (its TPE sampler does, which
    suits long numeric ranges; needs the extra `optuna`), or grid (measure everything)."""
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    """Of the random part of the search."""
    share_percent: Percent = 2.0
    """Classes of devices share one configuration where it costs each of them less than this."""
    threads: OneOrMore[Threads] | None = None
    """Intra-op threads; default: ONNX Runtime's choice, and 1 to the number of cores."""
    inter_op_threads: OneOrMore[Threads] | None = None
    """Inter-op threads, for parallel execution mode; default: as in [[runs]]."""
    execution_mode: OneOrMore[ExecutionMode] | None = None
    """sequential, parallel; default: as in [[runs]]."""
    spinning: OneOrMore[bool] | None = None
    """Whether idle threads spin; default: both."""
    affinities: OneOrMore[str] | None = None
    """CPU affinities; default: as in [[runs]]."""
    memory_arena: OneOrMore[bool] | None = None
    """CPU memory arena; default: both."""
    memory_pattern: OneOrMore[bool] | None = None
    """Memory patterns; default: both where memory is a goal, else as in [[runs]]."""
    prepacking: OneOrMore[bool] | None = None
    """Prepacking of weights; default: both where memory is a goal, else as in [[runs]]."""
    dynamic_block_base: OneOrMore[Count] | None = None
    """Dynamic block size bases; default: as in [[runs]]."""
    flags: str | tuple[tuple[str, ...], ...] | None = None
    """NNAPI flags: a list of sets, or `all`; default: every set without CPU_ONLY."""

    @property
    def goal_list(self) -> tuple[Goal, ...]:
        """The goals, each once, the first the one that decides."""
        return tuple(dict.fromkeys(self.goals if isinstance(self.goals, tuple) else (self.goals,)))


SPACE_KEYS = (
    "threads", "inter_op_threads", "execution_mode", "spinning", "affinities", "memory_arena", "memory_pattern",
    "prepacking", "dynamic_block_base", "flags",
)  # fmt: skip
"""Keys of [tune] that are keys of [[runs]] by the same name."""

RUN_DEFAULTS = {key: getattr(RunConfig(), key) for key in SPACE_KEYS}


def widened(run: RunConfig, lists: dict[str, object]) -> RunConfig:
    """A [[runs]] table with lists in the place of what it leaves at its default: what it says itself stays."""
    return msgspec.structs.replace(
        run, **{key: value for key, value in lists.items() if getattr(run, key) == RUN_DEFAULTS[key]}
    )
