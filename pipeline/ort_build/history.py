"""Sizes of libraries: before and after, against a budget, in earlier builds, and what operators and types cost."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from pipeline.core.errors import ConfigError, Finding, Severity
from pipeline.core.releases import Release, line_of
from pipeline.ort_build.run import RECORD, BuildRecord, builds_in, default_cache, read_record
from pipeline.required_ops import RequiredOps, parse


class SizeChange(msgspec.Struct, frozen=True, kw_only=True):
    """The library of one ABI before and after; None where there is none."""

    abi: str
    before_bytes: int | None
    after_bytes: int | None

    @property
    def change_bytes(self) -> int | None:
        """What was added, None when one of the two is missing."""
        if self.before_bytes is None or self.after_bytes is None:
            return None
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedBuild:
    """What a build contains, and how large its library came out."""

    operators: RequiredOps
    size_bytes: int


class Addition(msgspec.Struct, frozen=True, kw_only=True):
    """What one build has over another, and what that costs in bytes.

    `each_bytes` shares the cost evenly: exact where `added` names one thing, else a hint.
    """

    added: tuple[str, ...]
    size_bytes: int

    @property
    def each_bytes(self) -> int:
        """The cost of one of the added things, when all cost the same."""
        return self.size_bytes // len(self.added)


def size_changes(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[SizeChange, ...]:
    """Sizes by ABI side by side, in the order of their names."""
    return tuple(
        SizeChange(abi=abi, before_bytes=before.get(abi), after_bytes=after.get(abi))
        for abi in sorted(before.keys() | after.keys())
    )


def check_budget(sizes: Mapping[str, int], budget: Mapping[str, int]) -> tuple[Finding, ...]:
    """An error for each ABI whose library is larger than its budget, a warning for a budget that nothing was held to.

    Sizes and budgets are in bytes by ABI.
    """
    findings = []
    for abi, limit in sorted(budget.items()):
        size = sizes.get(abi)
        if size is None:
            findings.append(
                Finding(severity=Severity.WARNING, what=f"no library for {abi} was checked against its budget",
                        where="[build] max_library_bytes", why=f"there are: {', '.join(sorted(sizes)) or 'none'}",
                        remedy="build that ABI, or remove its budget")
            )  # fmt: skip
        elif size > limit:
            findings.append(
                Finding(severity=Severity.ERROR, what=f"the library for {abi} is {size - limit:,} bytes over budget",
                        where="[build] max_library_bytes", why=f"it has {size:,} bytes, {limit:,} are allowed",
                        remedy="`ort-mobile build size` ranks operators by what they add; or raise the budget")
            )  # fmt: skip
    return tuple(findings)


def rank_additions(builds: Sequence[SizedBuild]) -> tuple[Addition, ...]:
    """What operators and types cost, from pairs of builds of which one contains the other; the dearest first.

    Of the pairs with the same addition the first counts. Builds must differ in their operators only: same release,
    ABI, kind and options.
    """
    found: dict[tuple[str, ...], int] = {}
    for small in builds:
        for large in builds:
            if small.operators != large.operators and large.operators.contains(small.operators):
                added = added_names(small.operators, large.operators)
                if added:
                    found.setdefault(added, large.size_bytes - small.size_bytes)
    ranked = (Addition(added=added, size_bytes=size) for added, size in found.items())
    return tuple(sorted(ranked, key=lambda addition: (-addition.each_bytes, addition.added)))


def added_names(small: RequiredOps, large: RequiredOps) -> tuple[str, ...]:
    """What `large` has over `small`: `domain:op` for operators, `domain:op type` for types of operators that both
    have.
    """
    mine, theirs = small.operator_keys(), large.operator_keys()
    operators = [f"{domain}:{op}" for domain, op in theirs - mine]
    versions = [
        f"{domain}:{op} opset {opset}"
        for (domain, opset), ops in large.operators.items()
        for op in ops - small.operators.get((domain, opset), frozenset())
        if (domain, op) in mine
    ]
    return tuple(sorted([*operators, *versions, *_added_types(small, large, mine & theirs)]))


def _added_types(small: RequiredOps, large: RequiredOps, common: Iterable[tuple[str, str]]) -> set[str]:
    added = set()
    for domain, op in common:
        before, after = small.types.get((domain, op)), large.types.get((domain, op))
        if before is not None and after is None:
            added.add(f"{domain}:{op} all types")
        for slot, names in (after or {}).items():
            added |= {f"{domain}:{op} {name}" for name in names - (before or {}).get(slot, names)}
    return added


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
    return max(made, key=lambda build: (build[0] / RECORD).stat().st_mtime_ns)[1] if made else None


def build_of(digests: Collection[str]) -> BuildRecord | None:
    """The build on this computer that made a library with one of these sha256, None where none did."""
    made = (record for _, record in builds_in(default_cache()))
    return next((record for record in made if any(file.abi and file.sha256 in digests for file in record.files)), None)


def operators_of(record: BuildRecord) -> RequiredOps | None:
    """The operators that a build was reduced to, None where it has all."""
    return None if record.operators is None else parse(record.operators, record.digest)


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


MOST_BUILDS = 20
"""Newest builds of this computer that `added_by_operator` compares, each with each."""


def added_by_operator() -> dict[str, dict[str, int]]:
    """What single operators, as `domain:op`, added to libraries that were built on this computer: bytes by ABI."""
    builds = sorted(builds_in(default_cache()), key=lambda build: (build[0] / RECORD).stat().st_mtime_ns)
    found: dict[str, dict[str, int]] = {}
    for abi, addition in ranking(record for _, record in builds[-MOST_BUILDS:]):
        if len(addition.added) == 1:
            found.setdefault(addition.added[0], {}).setdefault(abi, addition.size_bytes)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSize:
    """Bytes of the library by ABI, and the operators of a build (None for libraries of unknown operators)."""

    sizes: Mapping[str, int]
    operators: RequiredOps | None = None


def measured_at(path: Path, cache: Path) -> MeasuredSize:
    """What is there; raises ConfigError for what is neither a file nor one build, MissingError for a wrong file."""
    from device_runner.library_source import name_of, resolve_all

    if path.is_file() or name_of(str(path)):
        return MeasuredSize(sizes={one.abi: one.facts.size_bytes for one in resolve_all(str(path))})
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
