"""Models under names that do not clash, and how many bytes each has."""

import contextlib
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path, PurePosixPath

from device_runner.files import ZIP_ERRORS
from pipeline.core.files import readable_name
from pipeline.model.sources import SourceModel

DATA_ENDINGS = (".data", "_data", ".weight")
"""What exporters put behind a model's name for the file of its weights."""


MOST_LINES = 40
"""So many models of equal names are told apart; the JSON has every one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """A model with the name that its files and tables carry; no two of a run share one.

    `numbered`: others wanted the same name, and it has a number behind.
    """

    name: str
    source: SourceModel
    dimensions: dict[str, int] = field(default_factory=dict)
    size_bytes: int = 0
    numbered: bool = False


def name_models(
    sources: Sequence[SourceModel], names: Sequence[str | None], dimensions: Sequence[dict[str, int]]
) -> list[NamedModel]:
    """Give every source a name: the one configured, or its stem; those that clash get a number behind."""
    wanted = [readable_name(name or _stem(source)) for source, name in zip(sources, names, strict=True)]
    total = Counter(name.lower() for name in wanted)
    taken = {name for name, times in total.items() if times == 1}
    numbers: dict[str, Iterator[int]] = {name: count(1) for name in total}
    models = []
    for source, name, fixed in zip(sources, wanted, dimensions, strict=True):
        clashes = total[key := name.lower()] > 1
        number = next(n for n in numbers[key] if f"{key}-{n}" not in taken) if clashes else 0
        models.append(
            NamedModel(
                name=f"{name}-{number}" if clashes else name, source=source, dimensions=fixed,
                size_bytes=source_bytes(source), numbered=clashes,
            )
        )  # fmt: skip
    return models


def numbered_lines(models: Iterable[NamedModel]) -> tuple[str, ...]:
    """Which model is which among those of equal names, one line each."""
    lines = [f"{model.name} is {model.source.name}" for model in models if model.numbered]
    more = (f"and {len(lines) - MOST_LINES} more with equal names",) if len(lines) > MOST_LINES else ()
    return (*lines[:MOST_LINES], *more)


def _stem(source: SourceModel) -> str:
    return PurePosixPath(source.member or Path(source.path).name).stem or "model"


def source_bytes(source: SourceModel) -> int:
    """Bytes of a model with the data files that exporters usually put beside it; 0 where they cannot be had."""
    with contextlib.suppress(*ZIP_ERRORS, KeyError):
        if source.member:
            with zipfile.ZipFile(source.path) as archive:
                return archive.getinfo(source.member).file_size
        path = Path(source.path)
        usual = {path.name, *(f"{path.name}{end}" for end in DATA_ENDINGS), f"{path.stem}.data", "weights.pb"}
        return sum(file.stat().st_size for name in usual if (file := path.with_name(name)).is_file())
    return 0
