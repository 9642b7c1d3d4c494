"""What a search on a device chooses from: the lattice of artifacts and run options, pruned by what is known beforehand.

Nothing is pruned without its reason: that it cannot work, has no effect, or breaks a constraint that needs no run.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from device_runner.device import DeviceFacts
from device_runner.minimize import Denied
from device_runner.options import BLOCK_KEY
from device_runner.providers import CPU, provider_named
from device_runner.spec import ExecutionMode, NnapiFlag, RunOptions
from pipeline.campaign.options import SPINNING_KEYS
from pipeline.campaign.plan import PlannedRun, plan_runs, planned_id
from pipeline.campaign.record import Prediction, Skipped
from pipeline.config import Config, Goal, RunConfig, TuneConfig
from pipeline.config.tune import SPACE_KEYS, widened
from pipeline.core.variant import Artifact, Level
from pipeline.release.choose import ADVISED_LEVELS
from pipeline.release.prove.expected import RELAXED_API_LEVEL

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Lattice:
    """Candidates that are left of the lattice on one device, and those that are not, each with the reason."""

    candidates: tuple[PlannedRun, ...]
    pruned: tuple[Skipped, ...]


def core_count(facts: DeviceFacts) -> int:
    """Cores of a device; 0 where it does not tell. A computer that names no clocks is asked as a whole."""
    return len(facts.core_max_mhz) or (os.cpu_count() or 0 if facts.platform in ("linux", "macos") else 0)


def searched_runs(runs: Sequence[RunConfig], tune: TuneConfig, facts: DeviceFacts) -> list[RunConfig]:
    """The [[runs]] tables, one a provider, with the lists of [tune] or what is sensible for the device.

    Each table is among them as it is, too: what a user runs today takes part.
    """
    given = {key: value for key in SPACE_KEYS if (value := getattr(tune, key)) is not None}
    lists = {**_sensible(facts, tune), **given}
    found = []
    for run in (msgspec.structs.replace(table, provider=name) for table in runs for name in table.providers):
        has_flags = provider_named(str(run.provider)).has_flags
        own = {key: value for key, value in lists.items() if key != "flags" or has_flags}
        found += [run, widened(run, own)]
        # A library's own default is a third value, which lists cannot have: it stays, and off comes beside it.
        found += [widened(run, {**own, "spinning": False})] if tune.spinning is None else []
    return found


def _sensible(facts: DeviceFacts, tune: TuneConfig) -> dict[str, object]:
    cores = core_count(facts)
    threads = (*range(min(cores or 4, 8) + 1), *(number for number in MANY_THREADS if number <= cores))
    both: dict[str, object] = {"threads": threads, "memory_arena": (True, False), "flags": FLAG_SETS}
    if Goal.MEMORY in tune.goal_list or tune.max_memory_mb:
        both |= {"memory_pattern": (True, False), "prepacking": (True, False)}
    return both


def lattice(
    config: Config, artifacts: Sequence[Artifact], facts: DeviceFacts, denied: Sequence[Denied] = ()
) -> Lattice:
    """Every artifact with every combination on a device, without what is illegal or of no use there.

    Raises ConfigError for a table of run options that makes no sense.
    """
    legal, skipped = plan_runs(searched_runs(config.runs, config.tune, facts), artifacts, [facts], denied)
    kept, pruned = [], list(skipped)
    for planned in legal:
        reason = _over_cores(planned.options, facts) or _broken_limit(planned, config.tune)
        if reason:
            pruned.append(planned.skipped(reason))
        else:
            kept.append(planned)
    return Lattice(candidates=tuple(kept), pruned=tuple(pruned))


def distinct_candidates(found: Lattice, facts: DeviceFacts, predictions: Mapping[str, Prediction]) -> Lattice:
    """One of those that amount to the same, without what the rules of providers say is of no use: no session, no claim.

    `predictions` are by the id of planned runs.
    """
    kept, pruned = [], list(found.pruned)
    for planned in found.candidates:
        if reason := _useless(predictions.get(planned_id(planned))):
            pruned.append(planned.skipped(reason))
        else:
            kept.append(planned)
    return _without_repeats(Lattice(candidates=tuple(kept), pruned=tuple(pruned)), facts, predictions)


def without(found: Lattice, refused: Callable[[PlannedRun], str]) -> Lattice:
    """Without the candidates that `refused` gives a reason for."""
    reasons = [(planned, refused(planned)) for planned in found.candidates]
    return Lattice(
        candidates=tuple(planned for planned, reason in reasons if not reason),
        pruned=(*found.pruned, *(planned.skipped(reason) for planned, reason in reasons if reason)),
    )


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
    if prediction is None or prediction.claimed is msgspec.UNSET:
        return ""  # the rules have no answer
    if prediction.error:
        return f"no session, by the provider's rules: {prediction.error}"
    return "" if prediction.claimed else "the provider claims no node of it: it would run on the CPU alone"


@dataclass(frozen=True, slots=True)
class NoEffect:
    """When some options change nothing, what they are then worth, and why."""

    when: Callable[[RunOptions, DeviceFacts], bool]
    same: Callable[[RunOptions], RunOptions]
    reason: str


def _without_entries(*keys: str) -> Callable[[RunOptions], RunOptions]:
    return lambda options: msgspec.structs.replace(
        options, session_config={key: value for key, value in options.session_config.items() if key not in keys}
    )


def _without_flag(gone: NnapiFlag) -> Callable[[RunOptions], RunOptions]:
    return lambda options: msgspec.structs.replace(options, flags=tuple(one for one in options.flags if one != gone))


def _one_thread(options: RunOptions, _: DeviceFacts) -> bool:
    return options.intra_op_threads == 1 and options.execution_mode is ExecutionMode.SEQUENTIAL


NO_EFFECT = (
    NoEffect(_one_thread, _without_entries(*SPINNING_KEYS), "one thread waits for no other: spinning has no effect"),
    NoEffect(_one_thread, _without_entries(BLOCK_KEY), "one thread has no blocks to share: their size has no effect"),
    NoEffect(
        lambda options, _: options.execution_mode is ExecutionMode.PARALLEL,
        lambda options: msgspec.structs.replace(options, memory_pattern=True),
        "ONNX Runtime uses memory patterns in sequential mode only",
    ),
    NoEffect(
        lambda _, facts: 0 < facts.api_level < RELAXED_API_LEVEL,
        _without_flag(NnapiFlag.USE_FP16),
        f"NNAPI computes in float16 from API level {RELAXED_API_LEVEL} on: USE_FP16 has no effect here",
    ),
    NoEffect(
        lambda _, facts: len(facts.nnapi_devices) > 0 and all(d.type != "cpu" for d in facts.nnapi_devices),
        _without_flag(NnapiFlag.CPU_DISABLED),
        "this phone's NNAPI names no CPU device: CPU_DISABLED has no effect here",
    ),
)
"""Options that change nothing that is computed or how fast, from ONNX Runtime's sources (1.20 to 1.31)."""

ALL_CLAIMED = "the provider claims every node: options of the CPU have no effect"


def _meanings(options: RunOptions, facts: DeviceFacts, *, all_claimed: bool) -> Iterator[tuple[RunOptions, str]]:
    """What options amount to, step by step, each with the reason."""
    for rule in NO_EFFECT:
        if rule.when(options, facts) and (same := rule.same(options)) != options:
            yield same, rule.reason
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
    ranks = [rank for rank, one in enumerate(advised) if one.value == level]
    settings = len(planned.options.session_config) + len(planned.options.flags)
    return settings, (ranks or [len(advised)])[0], not style.startswith("fixed")


def _without_repeats(found: Lattice, facts: DeviceFacts, predictions: Mapping[str, Prediction]) -> Lattice:
    """One candidate of those that amount to the same: the one that sets least."""
    kept, pruned, seen = [], list(found.pruned), dict[tuple[str, bytes], PlannedRun]()
    for planned in sorted(found.candidates, key=_plainness):
        known = predictions.get(planned_id(planned))
        claimed = known is not None and known.claimed is not msgspec.UNSET and known.claimed == known.nodes
        steps = [(planned.run_options, ""), *_meanings(planned.run_options, facts, all_claimed=claimed)]
        key = (planned.sha256, msgspec.json.encode(steps[-1][0], order="sorted"))
        first = seen.setdefault(key, planned)
        if first is planned:
            kept.append(planned)
        else:
            reason = steps[-1][1] or "the same bytes with the same options"
            pruned.append(planned.skipped(f"{reason}; counts as {first.run_name}"))
    order = {id(planned): number for number, planned in enumerate(found.candidates)}
    return Lattice(candidates=tuple(sorted(kept, key=lambda one: order[id(one)])), pruned=tuple(pruned))
