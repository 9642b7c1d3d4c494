"""Sizes of earlier builds: of targets' libraries, and what operators and types cost."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pipeline.core.errors import ConfigError
from pipeline.core.releases import Release, line_of
from pipeline.ort_build.run import RECORD, BuildRecord, builds_in, default_cache, read_record
from pipeline.ort_build.size import Addition, SizedBuild, rank_additions
from pipeline.required_ops import RequiredOps, parse


class Ranked(NamedTuple):
    """An addition between two builds, with the ABI whose library grew by it."""

    abi: str
    addition: Addition


def newest_build(target: str, release: Release, campaign: str, cache: Path | None = None) -> BuildRecord | None:
    """The newest build on this computer for a target and release of a campaign, None where none was made.

    `campaign` is its `campaign_digest`: another project's target may have the same name, as `phone`.
    """
    made = [
        (folder, record)
        for folder, record in builds_in(cache or default_cache())
        if (record.target, record.campaign) == (target, campaign) and line_of(record.version) == release
    ]
    return max(made, key=lambda build: _made_at(build[0]))[1] if made else None


def build_of(digests: Collection[str]) -> BuildRecord | None:
    """The build on this computer that made a library with one of these sha256, None where none did."""
    made = (record for _, record in builds_in(default_cache()))
    return next((record for record in made if any(file.abi and file.sha256 in digests for file in record.files)), None)


def operators_of(record: BuildRecord) -> RequiredOps | None:
    """The operators that a build was reduced to, None where it has all."""
    return None if record.operators is None else parse(record.operators, record.digest)


def _made_at(folder: Path) -> int:
    return (folder / RECORD).stat().st_mtime_ns


def sizes_of_record(record: BuildRecord) -> dict[str, int]:
    """Bytes of the library by ABI."""
    return {file.abi: file.size_bytes for file in record.files if file.abi}


def ranking(records: Iterable[BuildRecord]) -> list[Ranked]:
    """What operators and types added between builds that differ in operators only; the dearest of an ABI first."""
    groups: dict[tuple[object, ...], list[SizedBuild]] = {}
    for record in records:
        for abi, size in sizes_of_record(record).items():
            if (operators := operators_of(record)) is not None:
                key = (record.version, record.kind, record.providers, record.source_digest, abi)
                groups.setdefault(key, []).append(SizedBuild(operators=operators, size_bytes=size))
    return [Ranked(str(key[-1]), addition) for key, builds in groups.items() for addition in rank_additions(builds)]


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
