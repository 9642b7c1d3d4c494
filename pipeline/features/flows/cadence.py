"""How often each stage of a chain runs in one step, and how long the step is: windows move on by their hops."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import lcm, prod

from pipeline.config import flow as flow_tables
from pipeline.core.errors import ConfigError
from pipeline.features.flows import whole as flow_whole
from pipeline.features.flows.member import StageModel

MOST_RUNS = 64
"""Of all stages in a step: each is a copy of a model's nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRate:
    """`source`, an own input or a stage with `rows` for each of its runs, feeds `stage`, which takes `hop` a run."""

    source: str
    rows: int
    stage: str
    hop: int


def runs(stages: tuple[flow_tables.FlowStage, ...], members: Mapping[str, StageModel], where: str) -> dict[str, int]:
    """How often each stage runs in a step; ConfigError where hops have no common step, or one of too many runs.

    A stage without a window runs as often as what it gets a value of.
    """
    names = [stage.run for stage in stages]
    often: dict[str, Fraction] = {}
    for stage in stages:
        rates = {}
        for pace in _paces(stage, names, members):
            if pace.source not in often:  # an input of the feature: the first window over it says how long a step is
                often[pace.source] = Fraction(pace.hop)
            rates[pace.source] = often[pace.source] * pace.rows / pace.hop
        if len(set(rates.values())) > 1:
            told = ", ".join(f"{rate} times for {source}" for source, rate in rates.items())
            raise ConfigError(
                f"the hops of the stage {stage.run} have no common step",
                where=where,
                why=f"in one step it would run {told}",
                remedy="give windows hops that take as much of each of their values",
            )
        often[stage.run] = next(iter(rates.values()), Fraction(1))
    factor = lcm(*(often[name].denominator for name in names))
    counts = {name: int(often[name] * factor) for name in names}
    if sum(counts.values()) > MOST_RUNS:
        told = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise ConfigError(
            f"a step would run models {sum(counts.values())} times",
            where=where,
            why=f"their common step needs {told}; {MOST_RUNS} is the most",
            remedy="give hops that divide each other",
        )
    return counts


def _paces(stage: flow_tables.FlowStage, names: list[str], members: Mapping[str, StageModel]) -> Iterator[FeedRate]:
    for feed in (feed for feed in stage.feeds.values() if feed.source):
        source, hop = feed.source or "", feed.rows_taken
        before = flow_whole.stage_of(source, names)
        if before is None:
            if feed.window:
                yield FeedRate(source=f"input {source}", rows=1, stage=stage.run, hop=hop)
        elif not feed.window:
            yield FeedRate(source=before, rows=1, stage=stage.run, hop=1)
        else:
            info = members[before].outputs[source[len(before) + 1 :]]
            size = prod(axis for axis in info.shape or () if isinstance(axis, int)) if info.fixed else 0
            # Of an open size the hop itself is what comes with each run: the first run fails where it is not
            yield FeedRate(source=before, rows=size // (feed.rows or 1) or hop, stage=stage.run, hop=hop)
