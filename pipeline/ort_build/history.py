"""Sizes of libraries: before and after, against a budget, in earlier builds, and what operators and types cost."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from pipeline.core.errors import BUDGET, ConfigError, Finding, Severity
from pipeline.core.groups import grouped
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


SizedBuild = tuple[RequiredOps, int]
"""What a build contains, and how many bytes its library has."""


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
                Finding(severity=Severity.WARNING, rule=BUDGET,
                        what=f"no library for {abi} was checked against its budget",
                        where="[build] max_library_bytes", why=f"there are: {', '.join(sorted(sizes)) or 'none'}",
                        remedy="build that ABI, or remove its budget")
            )  # fmt: skip
        elif size > limit:
            findings.append(
                Finding(severity=Severity.ERROR, rule=BUDGET,
                        what=f"the library for {abi} is {size - limit:,} bytes over budget",
                        where="[build] max_library_bytes", why=f"it has {size:,} bytes, {limit:,} are allowed",
                        remedy="`ort-mobile build size` ranks operators by what they add; or raise the budget")
            )  # fmt: skip
    return tuple(findings)


def rank_additions(builds: Sequence[SizedBuild]) -> tuple[Addition, ...]:
    """What operators and types cost, from pairs of builds of which one contains the other; the dearest first.

    Of the pairs with the same addition the first counts. Builds must differ in their operators only: same release,
    ABI, kind and options.
    """
    sizes: dict[tuple[str, ...], int] = {}
    for small, small_bytes in builds:
        for large, large_bytes in builds:
            if small != large and large.contains(small) and (added := added_names(small, large)):
                sizes.setdefault(added, large_bytes - small_bytes)
    ranked = (Addition(added=added, size_bytes=size) for added, size in sizes.items())
    return tuple(sorted(ranked, key=lambda addition: (-addition.each_bytes, addition.added)))


def added_names(small: RequiredOps, large: RequiredOps) -> tuple[str, ...]:
    """What `large` has over `small`: `domain:op` for operators, `domain:op type` for types of operators that both
    have.
    """
    before, after = small.operator_keys(), large.operator_keys()
    operators = [f"{domain}:{op}" for domain, op in after - before]
    versions = [
        f"{domain}:{op} opset {opset}"
        for (domain, opset), ops in large.operators.items()
        for op in ops - small.operators.get((domain, opset), frozenset())
        if (domain, op) in before
    ]
    return tuple(sorted([*operators, *versions, *_added_types(small, large, before & after)]))


def _added_types(small: RequiredOps, large: RequiredOps, common: Iterable[tuple[str, str]]) -> set[str]:
    added = set()
    for domain, op in common:
        before, after = small.types.get((domain, op)), large.types.get((domain, op))
        if before is not None and after is None:
            added.add(f"{domain}:{op} all types")
        for slot, names in (after or {}).items():
            added |= {f"{domain}:{op} {name}" for name in names - (before or {}).get(slot, names)}
    return added


def newest_build(target: str, release: Release, campaign: str, cache: Path | None = None) -> BuildRecord | None:
    """The newest build on this computer for a target and release of a campaign, None where none was made.

    `campaign` is its `campaign_digest`: another project's target may have the same name, as `phone`.
    """
    builds = [
        (folder, record)
        for folder, record in builds_in(cache or default_cache())
        if (record.target, record.campaign) == (target, campaign) and line_of(record.version) == release
    ]
    return max(builds, key=lambda build: (build[0] / RECORD).stat().st_mtime_ns)[1] if builds else None


def build_of(digests: Collection[str]) -> BuildRecord | None:
    """The build on this computer that made a library with one of these sha256, None where none did."""
    records = (record for _, record in builds_in(default_cache()))
    return next(
        (record for record in records if any(file.abi and file.sha256 in digests for file in record.files)), None
    )


def operators_of(record: BuildRecord) -> RequiredOps | None:
    """The operators that a build was reduced to, None where it has all."""
    return None if record.operators is None else parse(record.operators, record.digest)


def sizes_of_record(record: BuildRecord) -> dict[str, int]:
    """Bytes of the library by ABI."""
    return {file.abi: file.size_bytes for file in record.files if file.abi}


def ranking(records: Iterable[BuildRecord]) -> list[tuple[str, Addition]]:
    """What operators and types added between builds that differ in operators only, by ABI; the dearest of one first."""
    groups = grouped(
        ((record.version, record.kind, record.providers, record.source_digest, abi), (operators, size))
        for record in records
        if (operators := operators_of(record)) is not None
        for abi, size in sizes_of_record(record).items()
    )
    return [(key[-1], addition) for key, builds in groups.items() for addition in rank_additions(builds)]


MOST_BUILDS = 20
"""Newest builds of this computer that `added_by_operator` compares, each with each."""


def added_by_operator() -> dict[str, dict[str, int]]:
    """What single operators, as `domain:op`, added to libraries that were built on this computer: bytes by ABI."""
    builds = sorted(builds_in(default_cache()), key=lambda build: (build[0] / RECORD).stat().st_mtime_ns)
    sizes: dict[str, dict[str, int]] = {}
    for abi, addition in ranking(record for _, record in builds[-MOST_BUILDS:]):
        if len(addition.added) == 1:
            sizes.setdefault(addition.added[0], {}).setdefault(abi, addition.size_bytes)
    return sizes


def measured_at(path: Path, cache: Path) -> tuple[Mapping[str, int], RequiredOps | None]:
    """Bytes of the library there by ABI, and the operators of a build (None for libraries of unknown ones).

    Raises ConfigError for what is neither a file nor one build, MissingError for a wrong file.
    """
    from device_runner.library import name_of, resolve_all

    if path.is_file() or name_of(str(path)):
        return {library.abi: library.facts.size_bytes for library in resolve_all(str(path))}, None
    record = read_record(path) if path.is_dir() else _named(str(path), cache)
    if record is None:
        raise ConfigError(
            "there is no whole build", where=str(path), remedy="`ort-mobile build size` lists the builds that are there"
        )
    return sizes_of_record(record), operators_of(record)


def _named(text: str, cache: Path) -> BuildRecord | None:
    records = [record for folder, record in builds_in(cache) if folder.name.startswith(text)]
    if len(records) > 1:
        raise ConfigError(f"{len(records)} builds begin with {text!r}", where=str(cache), remedy="give more letters")
    return records[0] if records else None
