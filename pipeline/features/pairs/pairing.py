"""Which run of a base belongs to which run of a candidate, and on which devices the two are to be measured."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from device_runner import files as runner_files
from pipeline.campaign import planned as campaign_planned
from pipeline.campaign import record as campaign_record
from pipeline.core import files as storage
from pipeline.core.errors import CheckFailed, ConfigError
from pipeline.features.pairs.history import History
from pipeline.features.pairs.report import GatedRun, unconfirmed
from pipeline.features.pairs.sources import PairSource, model_files


@dataclass(frozen=True, slots=True)
class PairSide:
    """One run of a pair, and the source that it is from, which says its library and targets."""

    run: campaign_planned.PlannedRun
    source: PairSource


@dataclass(frozen=True, slots=True)
class Pair:
    """A base and a candidate of one model; two model files may be called differently."""

    base: PairSide
    candidate: PairSide

    @property
    def sides(self) -> tuple[PairSide, PairSide]:
        """Base and candidate."""
        return self.base, self.candidate

    @property
    def model(self) -> str:
        """The model, or both."""
        return " → ".join(dict.fromkeys(side.run.model for side in self.sides))


@dataclass(frozen=True, slots=True)
class Asked:
    """A pair to be measured on a device."""

    pair: Pair
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """The pairs to measure of two sources: `everywhere` those of every device, `suspected` each on its own.

    `only_base` and `only_candidate` name runs without a partner; `unmatched` has a row without a verdict for each
    suspicion whose run is not in both.
    """

    everywhere: tuple[Pair, ...] = ()
    suspected: tuple[Asked, ...] = ()
    only_base: tuple[str, ...] = ()
    only_candidate: tuple[str, ...] = ()
    unmatched: tuple[GatedRun, ...] = ()

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """All of them, whatever the device."""
        return (*self.everywhere, *(asked.pair for asked in self.suspected))

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of suspicions."""
        return tuple(dict.fromkeys(asked.device for asked in self.suspected))

    def on(self, devices: Iterable[str]) -> list[Asked]:
        """Every pair with its device, where these are ready."""
        names = list(devices)
        return [*self.suspected, *(Asked(pair, device) for pair in self.everywhere for device in names)]


def in_common(base: PairSource, candidate: PairSource) -> Pairing:
    """What ships of both, by model and target; every planned run of both where one of them ships nothing.

    Raises ConfigError where they have nothing in common.
    """
    ships = bool(base.shipped and candidate.shipped)
    of_base, of_candidate = (source.shipped if ships else source.by_run for source in (base, candidate))
    pairs: dict[object, Pair] = {}
    for key in (key for key in of_base if key in of_candidate):
        pair = Pair(PairSide(of_base[key], base), PairSide(of_candidate[key], candidate))
        contents = [(side.run.sha256, msgspec.json.encode(side.run.run_options, order="sorted")) for side in pair.sides]
        pairs.setdefault((pair.model, *contents), pair)
    if not pairs:
        names, others = (
            ", ".join(campaign_record.place(*key) for key in list(runs)[:5]) or "nothing"
            for runs in (of_base, of_candidate)
        )
        raise ConfigError(
            "the two have nothing in common",
            where=f"{base.path}, {candidate.path}",
            why=f"one has {names}, the other {others}",
            remedy="name two files, bundles or output folders of the same models and targets",
        )
    in_order = sorted(pairs.values(), key=lambda pair: (pair.model, pair.candidate.run.way))
    return Pairing(
        everywhere=tuple(in_order),
        only_base=tuple(campaign_record.place(*key) for key in of_base if key not in of_candidate),
        only_candidate=tuple(campaign_record.place(*key) for key in of_candidate if key not in of_base),
    )


def suspected(histories: Sequence[History], base: PairSource, candidate: PairSource) -> Pairing:
    """What histories suspect, each on its device."""
    asked, unmatched = [], []
    for history in histories:
        if not history.suspicion:
            continue
        key = (history.model, history.run)
        of_base, of_candidate = base.by_run.get(key), candidate.by_run.get(key)
        if of_base and of_candidate:
            asked.append(Asked(Pair(PairSide(of_base, base), PairSide(of_candidate, candidate)), history.device))
            continue
        lacking = {"base": None if of_base else base, "candidate": None if of_candidate else candidate}
        without = " and ".join(f"the {role} {_lacks(source)}" for role, source in lacking.items() if source)
        unmatched.append(unconfirmed(history, without))
    return Pairing(suspected=tuple(asked), unmatched=tuple(unmatched))


def _lacks(source: PairSource) -> str:
    """What a source has in place of a run that a history suspects."""
    if model_files([source.path]):
        return f"{source.path.name} is a model file, which no history names: name output folders, or measure without"
    names = list(dict.fromkeys(campaign_record.place(*key) for key in source.by_run))
    return f"has no such run (it has {', '.join(names[:3]) or 'none'}{', …' if names[3:] else ''})"


def require_unchanged(runs: Iterable[campaign_planned.PlannedRun]) -> None:
    """Raise CheckFailed for a file that is not the one of its record."""
    for run in runs:
        if not Path(run.file).is_file() or runner_files.sha256(Path(run.file)) != run.sha256:
            raise CheckFailed(
                "an artifact is not what was recorded",
                where=run.file,
                why="it is missing or was changed after the campaign",
                remedy=f"run the job again, or name its {storage.BUNDLE} folder",
            )
