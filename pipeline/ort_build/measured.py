"""The sizes of what a path or a build's name stands for: a library, a package of several ABIs, a build in the cache."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import ConfigError
from pipeline.ort_build.history import operators_of, sizes_of_record
from pipeline.ort_build.run import BuildRecord, builds_in, read_record
from pipeline.required_ops import RequiredOps


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSize:
    """Bytes of the library by ABI, and the operators of a build (None for libraries of unknown operators)."""

    sizes: Mapping[str, int]
    operators: RequiredOps | None = None


def measured_at(path: Path, cache: Path) -> MeasuredSize:
    """What is there; raises ConfigError for what is neither a file nor one build, MissingError for a wrong file."""
    from device_runner.library_source import find_archive, name_of
    from pipeline.library.fetch import facts_in

    if path.is_file() or name_of(str(path)):
        found = facts_in(find_archive(str(path)))
        return MeasuredSize(sizes={facts.abi: facts.size_bytes for facts in found})
    record = read_record(path) if path.is_dir() else _named(str(path), cache)
    if record is None:
        raise ConfigError(
            "there is no whole build", where=str(path), remedy="`ort-mobile build size` lists the builds that are there"
        )
    return MeasuredSize(sizes=sizes_of_record(record), operators=operators_of(record))


def _named(text: str, cache: Path) -> BuildRecord | None:
    found = [record for folder, record in builds_in(cache) if folder.name.startswith(text)]
    if len(found) > 1:
        raise ConfigError(f"{len(found)} builds begin with {text!r}", where=str(cache), remedy="give more letters")
    return found[0] if found else None
