"""`ort-mobile bisect`: which artifact, or which release of ONNX Runtime, made a model slower."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.campaign.bisection import BisectionEnd, BisectionStep, PositionStanding, next_step
from pipeline.campaign.store import Store, open_store
from pipeline.core.errors import ConfigError, ExitCode
from pipeline.core.files import scratch
from pipeline.core.progress import Progress
from pipeline.job.devices import OpenDevices, opened
from pipeline.job.folder import locked
from pipeline.job.pairs import PairOrder, PairsPlan, measure_pairs, plan_pairs
from pipeline.job.stored import DATABASE
from pipeline.job.subjects import Subject, SubjectPair, SubjectSource, pair_of, require_unchanged
from pipeline.report.bisection import BisectionReport, BisectionRow
from pipeline.report.regression import GatedRun, GateOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectOrder:
    """Ordered sources and libraries, the good end first; `model` is needed where the sources have several."""

    sources: tuple[SubjectSource, ...]
    libraries: tuple[str | None, ...]
    device: str
    folder: Path
    pairs: PairOrder
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """One artifact with one library, as it is called, and the subject that is measured."""

    name: str
    subject: Subject


def positions(order: BisectOrder) -> list[Position]:
    """The way from the first artifact with the first library to the last with the last: artifacts first.

    Raises ConfigError for a source without the model or with several, and for a list of one.
    """
    subjects = [_subject(source, order.model) for source in order.sources]
    ways = [(source, subject, order.libraries[0]) for source, subject in zip(order.sources, subjects, strict=True)]
    ways += [(order.sources[-1], subjects[-1], library) for library in order.libraries[1:]]
    if len(ways) < 2:
        raise ConfigError(
            "there is nothing to bisect", where=str(order.sources[0].path), why="it needs a good end and a slower one",
            remedy="name two or more artifacts, or two or more libraries with --library, in their order",
        )  # fmt: skip
    return [
        Position(
            name=" with ".join(part for part in (str(source.path), library or "") if part),
            subject=replace(subject, library=library),
        )
        for source, subject, library in ways
    ]


def _subject(source: SubjectSource, model: str) -> Subject:
    """The only subject of a source, or that of the model: what ships first, else the first planned run."""
    found = [one for one in (source.shipped or source.planned).values() if model in ("", one.model)]
    models = dict.fromkeys(one.model for one in found)
    if len(models) != 1:
        raise ConfigError(
            f"there is no model {model!r}" if model else "there are several models", where=str(source.path),
            why=f"it has {', '.join(dict.fromkeys(one.model for one in source.by_run.values())) or 'none'}",
            remedy="name one of them with --model",
        )  # fmt: skip
    return found[0]


def run_bisect(order: BisectOrder, progress: Progress) -> BisectionReport:
    """Compare positions with the first, in pairs, until the first slower one is found; stored pairs are used again."""
    places = positions(order)
    require_unchanged(SubjectPair(model="", base=one.subject, candidate=one.subject) for one in places)
    with (
        locked(order.folder),
        scratch(order.folder) as work,
        open_store(f"sqlite:///{order.folder / DATABASE}") as store,
        opened((order.device,)) as field,
    ):
        if len(field.devices) > 1:
            raise ConfigError(
                f"{len(field.devices)} devices are meant", where=order.device, why="a bisection runs on one",
                remedy=f"name one of them with --device: {', '.join(field.devices)}",
            )  # fmt: skip
        measured = _Bisection(order, places, field, store, work, progress)
        return measured.run()


class _Bisection:
    """The pairs of one bisection on one device."""

    def __init__(
        self, order: BisectOrder, places: Sequence[Position], field: OpenDevices, store: Store, work: Path,
        progress: Progress,
    ) -> None:  # fmt: skip
        self.order, self.places, self.field = order, places, field
        self.store, self.work, self.progress = store, work, progress
        self.rows: dict[int, GatedRun] = {}

    def run(self) -> BisectionReport:
        """Until `next_step` says why it ends; what it found is then measured against its own predecessor.

        What earlier bisections stored of these positions is known from the beginning.
        """
        known: dict[int, PositionStanding] = {}
        while (step := next_step(known, len(self.places))).measure is not None:
            others = () if known else range(1, step.measure)
            stored = [place for place in others if self._plan(0, place).is_stored(self.store)]
            for place in dict.fromkeys([step.measure, *stored]):
                self.rows[place] = self._pair(0, place)
                known[place] = self._standing(self.rows[place])
        direct = self._pair(step.good, step.slower) if step.end is BisectionEnd.FOUND and step.good else None
        return self._report(known, step, direct)

    def _plan(self, base: int, candidate: int) -> PairsPlan:
        pair = pair_of(self.places[base].subject, self.places[candidate].subject)
        return plan_pairs([(device, pair) for device in self.field.devices], self.order.pairs, self.field)

    def _pair(self, base: int, candidate: int) -> GatedRun:
        plan = self._plan(base, candidate)
        (row,) = measure_pairs(plan, self.order.pairs, self.field, self.store, self.work, self.progress).rows
        return row

    def _standing(self, row: GatedRun) -> PositionStanding:
        """Slower as a gate says it; good where at most half of the whole slowdown is possible, for the end none."""
        if row.outcome is GateOutcome.REGRESSION:
            return PositionStanding.SLOWER
        if row.outcome is GateOutcome.UNCHANGED:
            return PositionStanding.GOOD
        if row.ratio is None or row.high is None:
            return PositionStanding.SKIPPED
        end = self.rows[len(self.places) - 1]  # it is the first to be measured
        limit = 1 + self.order.pairs.least if row is end else (end.ratio or 1.0) ** 0.5
        return PositionStanding.GOOD if row.high < limit else PositionStanding.UNDECIDED

    def _report(
        self, known: dict[int, PositionStanding], step: BisectionStep, direct: GatedRun | None
    ) -> BisectionReport:
        rows = [
            BisectionRow(
                position=place, name=self.places[place].name, standing=known[place], ratio=row.ratio, low=row.low,
                high=row.high, rounds=row.rounds, note=row.note,
            )
            for place, row in sorted(self.rows.items())
        ]  # fmt: skip
        names = [one.name for one in self.places]
        end = step.end or BisectionEnd.NOT_MEASURABLE
        return BisectionReport(
            device=next(iter(self.field.devices)),
            positions=tuple(names),
            end=end,
            good=names[step.good],
            slower=names[step.slower],
            rows=tuple(rows),
            step=direct or (self.rows.get(step.slower) if step.good == 0 else None),
        )


def exit_code(report: BisectionReport) -> ExitCode:
    """0 where there is an answer: the step, a range, or that there is no difference; 1 where runs did not give one."""
    unanswered = report.end in (BisectionEnd.NOT_MEASURABLE, BisectionEnd.NOT_MONOTONE)
    return ExitCode.SOME_FAILED if unanswered else ExitCode.DONE
