"""What earlier builds tell: the size of a target's library, and what operators and types cost."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from pipeline.core.releases import Release, line_of
from pipeline.ort_build.run import RECORD, BuildRecord, builds_in, default_cache
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
