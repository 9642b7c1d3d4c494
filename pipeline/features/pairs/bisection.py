"""Bisection: the first of several artifacts, or of several libraries, that is slower than the first of all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from pipeline import config as configs
from pipeline.campaign import measure as campaign_measure
from pipeline.campaign import planned as campaign_planned
from pipeline.core.errors import ConfigError
from pipeline.core.progress import Progress
from pipeline.features.pairs.bisection_report import BisectionEnd, BisectionReport, BisectionRow, PositionStanding
from pipeline.features.pairs.pairing import Asked, Pair, PairSide, require_unchanged
from pipeline.features.pairs.report import GatedRun, GateOutcome
from pipeline.features.pairs.rounds import PairPlan, campaign_of, measure_pairs, planned_pairs
from pipeline.features.pairs.sources import PairSource
from pipeline.job import bench as job_bench


class Bracket(NamedTuple):
    """The last good and the first slower position so far, and the next to compare with the first, or why it ends."""

    good: int
    slower: int
    next: int | BisectionEnd


def next_step(standings: Mapping[int, PositionStanding], count: int) -> Bracket:
    """What to do next, from the positions that are known of `count` in order.

    The last is compared first: without a difference there is nothing to look for. Then the middle one between the last
    good and the first slower position, or of those the nearest to it that is not known yet.
    """
    last = count - 1
    if last not in standings:
        return Bracket(0, last, last)
    if standings[last] is not PositionStanding.SLOWER:
        measurable = standings[last] is not PositionStanding.SKIPPED
        end = BisectionEnd.NO_DIFFERENCE if measurable else BisectionEnd.NOT_MEASURABLE
        return Bracket(0, last, end)
    slower = min(position for position, standing in standings.items() if standing is PositionStanding.SLOWER)
    goods = [0, *(position for position, standing in standings.items() if standing is PositionStanding.GOOD)]
    if max(goods) > slower:
        return Bracket(max(goods), slower, BisectionEnd.NOT_MONOTONE)
    good = max(goods)
    open_positions = [position for position in range(good + 1, slower) if position not in standings]
    if open_positions:
        middle = (good + slower) / 2
        return Bracket(good, slower, min(open_positions, key=lambda position: abs(position - middle)))
    return Bracket(good, slower, BisectionEnd.FOUND if slower == good + 1 else BisectionEnd.RANGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """The positions of a bisection in their order, on one device: artifacts first, then libraries."""

    sides: tuple[PairSide, ...]
    device: str
    settings: configs.MeasureConfig
    least: float
    bench: campaign_measure.Bench

    def plan(self, base: int, candidate: int) -> list[PairPlan]:
        """Two positions as runs in pairs."""
        asked = Asked(Pair(self.sides[base], self.sides[candidate]), self.device)
        return list(planned_pairs([asked], self.settings, self.bench))

    def is_stored(self, position: int) -> bool:
        """Whether an earlier bisection compared a position with the first."""
        campaign = campaign_of(self.plan(0, position), self.settings, self.bench)
        return not campaign.planned_runs or not campaign_measure.runs_left(campaign, self.bench.store).total()

    def compared(self, base: int, candidate: int) -> GatedRun:
        """Two positions after their rounds."""
        (row,) = measure_pairs(self.plan(base, candidate), self.settings, self.least, self.bench).rows
        return row


def run_bisection(
    sources: Sequence[PairSource],
    libraries: Sequence[str | None],
    settings: configs.MeasureConfig,
    *,
    least: float,
    device: str,
    folder: Path,
    progress: Progress,
    model: str = "",
) -> BisectionReport:
    """Compare artifacts with the first, in pairs, until `next_step` says why it ends; the step that it found is then
    measured alone. What earlier bisections stored is known from the beginning.

    Positions go from the first artifact with the first library to the last with the last: artifacts first. Raises
    ConfigError for a source without the model or with several, for a list of one, and for several devices.
    """
    positions = [replace(source, library=libraries[0]) for source in sources]
    positions += [replace(sources[-1], library=library) for library in libraries[1:]]
    if len(positions) < 2:
        raise ConfigError(
            "there is nothing to bisect",
            where=str(sources[0].path),
            why="it needs a good end and a slower one",
            remedy="name two or more artifacts, or two or more libraries with --library, in their order",
        )
    sides = tuple(PairSide(_only_run(source, model), source) for source in positions)
    require_unchanged(side.run for side in sides)
    with job_bench.open_bench(job_bench.opened((device,)), folder, progress) as bench:
        if len(bench.devices) > 1:
            raise ConfigError(
                f"{len(bench.devices)} devices are meant",
                where=device,
                why="a bisection runs on one",
                remedy=f"name one of them with --device: {', '.join(bench.devices)}",
            )
        (device,) = bench.devices
        return _bisected(Positions(sides=sides, device=device, settings=settings, least=least, bench=bench))


def _bisected(positions: Positions) -> BisectionReport:
    last = len(positions.sides) - 1
    rows: dict[int, GatedRun] = {}
    standings: dict[int, PositionStanding] = {}
    bracket = next_step(standings, len(positions.sides))
    while not isinstance(bracket.next, BisectionEnd):
        stored = [] if standings else [position for position in range(1, bracket.next) if positions.is_stored(position)]
        for position in dict.fromkeys([bracket.next, *stored]):
            rows[position] = positions.compared(0, position)
            standings[position] = _standing(rows[position], rows[last], positions.least)
        bracket = next_step(standings, len(positions.sides))
    step = rows.get(bracket.slower) if bracket.good == 0 else None
    if bracket.next is BisectionEnd.FOUND and bracket.good:
        step = positions.compared(bracket.good, bracket.slower)
    names = tuple(" with ".join(filter(None, (str(side.source.path), side.source.library))) for side in positions.sides)
    return BisectionReport(
        device=positions.device,
        positions=names,
        end=bracket.next,
        good=names[bracket.good],
        slower=names[bracket.slower],
        rows=tuple(
            BisectionRow(
                position=position,
                name=names[position],
                standing=standings[position],
                ratio=row.ratio,
                low=row.low,
                high=row.high,
                rounds=row.rounds,
                note=row.note,
            )
            for position, row in sorted(rows.items())
        ),
        step=step,
    )


def _only_run(source: PairSource, model: str) -> campaign_planned.PlannedRun:
    """The only run of a source, or that of the model: what ships first, else the first planned run."""
    runs = [run for run in (source.shipped or source.planned).values() if model in ("", run.model)]
    if len({run.model for run in runs}) != 1:
        raise ConfigError(
            f"there is no model {model!r}" if model else "there are several models",
            where=str(source.path),
            why=f"it has {', '.join(dict.fromkeys(run.model for run in source.by_run.values())) or 'none'}",
            remedy="name one of them with --model",
        )
    return runs[0]


def _standing(row: GatedRun, end: GatedRun, least: float) -> PositionStanding:
    """Slower as a gate says it; good where at most half of the whole slowdown is possible, for the end none."""
    if row.outcome is GateOutcome.REGRESSION:
        return PositionStanding.SLOWER
    if row.outcome is GateOutcome.UNCHANGED:
        return PositionStanding.GOOD
    if row.ratio is None or row.high is None:
        return PositionStanding.SKIPPED
    limit = 1 + least if row is end else (end.ratio or 1.0) ** 0.5
    return PositionStanding.GOOD if row.high < limit else PositionStanding.UNDECIDED
