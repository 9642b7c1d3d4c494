"""How large libraries are: before and after, against a budget, and which operators are the heavy ones."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from pipeline.core.errors import Finding, Severity
from pipeline.required_ops import RequiredOps


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
