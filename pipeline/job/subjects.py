"""What is measured in pairs: the artifacts of a file, a bundle or an output folder, with their options and inputs."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from device_runner.files import sha256
from device_runner.spec import RunOptions
from pipeline.campaign.history import History
from pipeline.campaign.plan import Inputs
from pipeline.config import Target
from pipeline.core.errors import CheckFailed, ConfigError
from pipeline.release.bundle import BUNDLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One artifact with one set of run options; `run` is VARIANT/PROVIDER…, `options` has the artifact's own too.

    `inputs` are those that the model was checked with, None where none are kept. `library` is libonnxruntime to run
    with; without one phones have that of the first of `targets` that is like them.
    """

    model: str
    run: str
    file: Path
    sha256: str
    options: RunOptions
    inputs: Inputs | None = None
    library: str | None = None
    targets: tuple[Target, ...] = ()

    @property
    def identity(self) -> str:
        """Equal for what runs the same."""
        options = msgspec.json.encode(self.options, order="sorted").decode()
        return f"{self.sha256} {options} {self.library}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectSource:
    """What a path has: the artifacts that ship, by model and target, and every planned run, by model and run."""

    path: Path
    shipped: dict[tuple[str, str], Subject]
    planned: dict[tuple[str, str], Subject] = field(default_factory=dict)

    @property
    def by_run(self) -> dict[tuple[str, str], Subject]:
        """Every planned run by model and run; of a bundle, which has no plan, what ships."""
        return self.planned or {(one.model, one.run): one for one in self.shipped.values()}

    def with_library(self, library: str | None) -> "SubjectSource":
        """The same, run with this library."""
        return replace(
            self,
            shipped={key: replace(one, library=library) for key, one in self.shipped.items()},
            planned={key: replace(one, library=library) for key, one in self.planned.items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectPair:
    """A base and a candidate of one model: the same inputs, each with its own options and library."""

    model: str
    base: Subject
    candidate: Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedSources:
    """The pairs of two sources, and what only one of them has."""

    pairs: tuple[SubjectPair, ...]
    only_base: tuple[str, ...]
    only_candidate: tuple[str, ...]


def paired(base: SubjectSource, candidate: SubjectSource) -> PairedSources:
    """What ships of both, by model and target; every planned run of both where one of them ships nothing.

    Raises ConfigError where they have nothing in common.
    """
    ships = bool(base.shipped and candidate.shipped)
    ours, theirs = (one.shipped if ships else one.by_run for one in (base, candidate))
    found: dict[tuple[str, str, str], SubjectPair] = {}
    for key in ours.keys() & theirs.keys():
        pair = pair_of(ours[key], theirs[key])
        found.setdefault((pair.model, pair.base.identity, pair.candidate.identity), pair)
    if not found:
        raise ConfigError(
            "the two have nothing in common", where=f"{base.path}, {candidate.path}",
            why=f"one has {_names(ours) or 'nothing'}, the other {_names(theirs) or 'nothing'}",
            remedy="name two files, bundles or output folders of the same models and targets",
        )  # fmt: skip
    return PairedSources(
        pairs=tuple(sorted(found.values(), key=lambda pair: (pair.model, pair.candidate.run))),
        only_base=tuple(_missing(ours, theirs)),
        only_candidate=tuple(_missing(theirs, ours)),
    )


def pair_of(base: Subject, candidate: Subject) -> SubjectPair:
    """The two as a pair, with the candidate's inputs for both, or the base's where it has none."""
    inputs = candidate.inputs or base.inputs
    base, candidate = replace(base, inputs=inputs), replace(candidate, inputs=inputs)
    name = candidate.model if base.model == candidate.model else f"{base.model} → {candidate.model}"
    return SubjectPair(model=name, base=base, candidate=candidate)


def _missing(ours: Mapping[tuple[str, str], Subject], theirs: Mapping[tuple[str, str], Subject]) -> Iterator[str]:
    yield from (" / ".join(part for part in key if part) for key in ours if key not in theirs)


def _names(subjects: Mapping[tuple[str, str], Subject]) -> str:
    return ", ".join(" / ".join(part for part in key if part) for key in list(subjects)[:5])


def require_unchanged(pairs: Iterable[SubjectPair]) -> None:
    """Raise CheckFailed for a file that is not the one of its record."""
    for subject in (one for pair in pairs for one in (pair.base, pair.candidate)):
        if not subject.file.is_file() or sha256(subject.file) != subject.sha256:
            raise CheckFailed(
                "an artifact is not what was recorded", where=str(subject.file),
                why="it is missing or was changed after the campaign",
                remedy=f"run the job again, or name its {BUNDLE} folder",
            )  # fmt: skip


def suspected_pairs(
    histories: Iterable[History], base: SubjectSource, candidate: SubjectSource
) -> tuple[list[tuple[str, SubjectPair]], tuple[str, ...], tuple[str, ...]]:
    """The pairs of suspected histories, each with its device; and what is lacking in the base, and in the candidate."""
    found: list[tuple[str, SubjectPair]] = []
    lacking: tuple[list[str], list[str]] = ([], [])
    for one in histories:
        key = one.model, one.run
        ours, theirs = (source.by_run.get(key) for source in (base, candidate))
        if ours and theirs:
            found.append((one.device, pair_of(ours, theirs)))
        for names, subject in zip(lacking, (ours, theirs), strict=True):
            names += [] if subject else [" / ".join((one.device, *key))]
    return found, tuple(lacking[0]), tuple(lacking[1])
