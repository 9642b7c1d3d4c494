"""Many models at once: names that do not clash, worker processes within a memory budget, one folder of scratch."""

import contextlib
import os
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path, PurePosixPath

from device_runner.files import ZIP_ERRORS
from device_runner.scratch import remove_abandoned, scratch_folder
from pipeline.convert import convert_model
from pipeline.convert.request import ConvertRequest, ConvertResult
from pipeline.files import make_folder, readable_name, storage_errors
from pipeline.model_sources import SourceModel
from pipeline.workers import Outcome, Task, run_tasks

RUNTIME_BYTES = 300 << 20
"""What a process needs for onnxruntime and onnx, before any model."""

MODEL_FACTOR = 1.7
"""Peak memory of a conversion relative to the model's bytes (measured by benchmarks/conversion.py: at most 1.6)."""

LIBRARY_FACTOR = 3.0
"""The same where an Android library saves aware files: it holds all weights of the file (measured: 2.9)."""

DATA_ENDINGS = (".data", "_data", ".weight")
"""What exporters put behind a model's name for the file of its weights."""

MOST_LINES = 40
"""So many models of equal names are told apart; the JSON has every one."""

WORK_PREFIX = ".work."
"""Scratch folders inside an output folder."""

TIMEOUT_SECONDS = 90.0
SECONDS_PER_BYTE = 1e-6
"""What work on a model may take: a minute and a half, and a second more for each megabyte. A hang must be noticed."""


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


def convert_all(
    requests: Sequence[tuple[NamedModel, ConvertRequest]], *, processes: int = 0
) -> Iterator[Outcome[ConvertRequest, ConvertResult]]:
    """Convert models in worker processes; each outcome is a result or the error of that model alone."""
    tasks = [
        Task(label=model.source.name, request=request, memory_bytes=_needed(model, request))
        for model, request in requests
    ]
    yield from run_tasks(
        convert_model,
        ConvertResult,
        tasks,
        processes=processes,
        memory_bytes=memory_budget(),
        timeout_seconds=time_limit(model.size_bytes for model, _ in requests),
    )


def time_limit(sizes_bytes: Iterable[int]) -> float:
    """Seconds that one task may take where the largest of the models has so many bytes."""
    return TIMEOUT_SECONDS + SECONDS_PER_BYTE * max(sizes_bytes, default=0)


def needed_bytes(model_bytes: int, factor: float = MODEL_FACTOR) -> int:
    """Peak memory of a worker on a model of that size."""
    return RUNTIME_BYTES + int(factor * model_bytes)


def _needed(model: NamedModel, request: ConvertRequest) -> int:
    by_library = request.reference is not None and bool(request.reference.library)
    return needed_bytes(model.size_bytes, LIBRARY_FACTOR if by_library else MODEL_FACTOR)


def memory_budget() -> int:
    """70 % of the memory that is free now; 0 (no budget) where the system does not say."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))) * 1024 * 7 // 10
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 5 // 10
    return 0


@contextlib.contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """A scratch folder inside `folder`, gone at the end, also after an error or Ctrl-C; what a kill left goes first."""
    make_folder(folder)
    remove_abandoned(WORK_PREFIX, folder)
    with contextlib.ExitStack() as stack:
        with storage_errors(folder):
            path = stack.enter_context(scratch_folder(WORK_PREFIX, folder))
        yield path
