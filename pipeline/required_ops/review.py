"""Reading configs as a reviewer does: what one adds to another, which model needs it, what no model needs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from pipeline.required_ops.needs import from_needs
from pipeline.required_ops.proof import Missing, covers
from pipeline.required_ops.text import HEADER, ArtifactNeeds, parse_merged, render
from pipeline.required_ops.value import CUSTOM, OperatorKey, OpTypes, RequiredOps, Slot

MAX_NAMES = 3


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One difference between two configs: an operator at an opset (0: at all of them), or types of it.

    `needed_by`: the artifacts that the older config does not suffice for because of this.
    """

    kind: str
    domain: str
    op: str
    what: str
    opset: int = 0
    types: tuple[str, ...] = ()
    needed_by: tuple[str, ...] = ()


class OperatorUse(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel with its types, and the nodes of each artifact that need it."""

    domain: str
    op: str
    since_version: int
    types: tuple[str, ...]
    artifacts: dict[str, tuple[str, ...]]


ADDS, REMOVES = "adds", "removes"


def changes(old: RequiredOps, new: RequiredOps, artifacts: Iterable[ArtifactNeeds] = ()) -> tuple[Change, ...]:
    """What `new` adds to `old` and removes from it; with artifacts, which of them each addition is for.

    What concerns no single operator comes first, then all changes of each operator together.
    """
    lacks = [(artifact.name, item) for artifact in artifacts for item in covers(old, artifact.needs)]
    found = [*_listed(ADDS, old, new), *_listed(REMOVES, new, old)]
    for key in sorted(old.operator_keys() & new.operator_keys()):
        found += _retyped(key, old.types.get(key), new.types.get(key))
    found.sort(key=lambda change: (change.domain, change.op))
    return tuple(_with_users(change, lacks) for change in (*_whole(old, new), *found))


def _with_users(change: Change, lacks: Iterable[tuple[str, Missing]]) -> Change:
    names = tuple(dict.fromkeys(name for name, item in lacks if _is_for(change, item)))
    return msgspec.structs.replace(change, needed_by=names)


def _is_for(change: Change, item: Missing) -> bool:
    """Whether an addition brings what an artifact lacks."""
    if change.kind != ADDS or (change.domain, change.op) != (item.domain, item.op):
        return False
    if change.opset:
        return change.opset == item.since_version
    needed = {name for text in item.types for name in text.partition(": ")[2].split(",")}
    return not change.types or not needed.isdisjoint(change.types)


def _whole(old: RequiredOps, new: RequiredOps) -> Iterator[Change]:
    """Differences that concern no single operator."""
    if old.everything != new.everything:
        what = "the rule that all operators are required"
        yield Change(kind=ADDS if new.everything else REMOVES, domain="", op="", what=what)
    before, after = old.global_types, new.global_types
    if before != after and (before is None or after is None):
        names = ", ".join(sorted((after if before is None else before) or ()))
        yield Change(
            kind=REMOVES if after is None else ADDS, domain="", op="", what=f"the restriction of all types to {names}"
        )
    elif before is not None and after is not None:
        for kind, names_of in ((ADDS, after - before), (REMOVES, before - after)):
            for name in sorted(names_of):
                yield Change(kind=kind, domain="", op="", what=f"the globally allowed type {name}")


def _listed(kind: str, less: RequiredOps, more: RequiredOps) -> Iterator[Change]:
    """Operators at opsets that only `more` has."""
    for (domain, opset), ops in sorted(more.operators.items()):
        for op in sorted(ops - less.operators.get((domain, opset), frozenset())):
            types = more.types.get((domain, op))
            described = f" for {_described(types)}" if types and (domain, op) not in less.operator_keys() else ""
            yield Change(kind=kind, domain=domain, op=op, what=f"opset {opset}{described}", opset=opset)


def _described(types: OpTypes) -> str:
    return "; ".join(f"{_slot(slot)} {', '.join(sorted(names)) or 'nothing'}" for slot, names in sorted(types.items()))


def _slot(slot: Slot) -> str:
    kind, index = slot
    return "types" if kind == CUSTOM else f"{kind[:-1]} {index}"


def _retyped(key: OperatorKey, old: OpTypes | None, new: OpTypes | None) -> Iterator[Change]:
    domain, op = key
    if old is not None and new is None:
        yield Change(kind=ADDS, domain=domain, op=op, what=f"all types (was restricted to {_described(old)})")
    elif old is None and new is not None:
        yield Change(kind=REMOVES, domain=domain, op=op, what=f"all types but {_described(new)}")
    elif old is not None and new is not None:
        yield from _retyped_slots(key, old, new)


def _retyped_slots(key: OperatorKey, old: OpTypes, new: OpTypes) -> Iterator[Change]:
    domain, op = key
    for kind, less, more in ((ADDS, old, new), (REMOVES, new, old)):
        for slot, names in sorted(more.items()):
            surplus = sorted(names - less.get(slot, names))
            if surplus:
                yield Change(kind=kind, domain=domain, op=op, what=f"{', '.join(surplus)} at {_slot(slot)}",
                             types=tuple(surplus))  # fmt: skip
        for slot in sorted(less.keys() - more.keys()):
            yield Change(kind=kind, domain=domain, op=op, what=f"all types at {_slot(slot)}")


def sentence(change: Change) -> str:
    """`adds ai.onnx:Conv int8_t at input 0, only needed by b.ort`."""
    named = f"{change.domain}:{change.op} " if change.op else ""
    return f"{change.kind} {named}{change.what}{needed_by(change.needed_by)}"


def counted(changes: Sequence[Change]) -> str:
    """`14 additions and 1 removal`."""
    added = sum(change.kind == ADDS for change in changes)
    counts = ((added, "addition"), (len(changes) - added, "removal"))
    return " and ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts if count)


def needed_by(names: Sequence[str]) -> str:
    """The end of a sentence that says who needs something; empty when nobody is known."""
    if not names:
        return ""
    if len(names) > MAX_NAMES:
        return f", needed by {len(names)} models"
    return f", {'only ' if len(names) == 1 else ''}needed by {', '.join(names)}"


def uses(artifacts: Iterable[ArtifactNeeds]) -> tuple[OperatorUse, ...]:
    """Which artifact needs which kernel with which types, by name of the operator."""
    found: dict[tuple[str, str, int, tuple[str, ...]], dict[str, tuple[str, ...]]] = {}
    for artifact in artifacts:
        for need, nodes in artifact.needs.items():
            types = (
                *(f"{_slot(slot)} {name}" for slot, name in need.types),
                *(["a type without a name"] * need.nameless),
            )
            by_artifact = found.setdefault((need.domain, need.op, need.since_version, types), {})
            by_artifact[artifact.name] = (*by_artifact.get(artifact.name, ()), *nodes)
    return tuple(
        OperatorUse(domain=domain, op=op, since_version=version, types=types, artifacts=by_artifact)
        for (domain, op, version, types), by_artifact in sorted(found.items(), key=lambda item: item[0])
    )


class MissingKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel that a build would lack, for all artifacts together: its types, why, and the first node of each."""

    domain: str
    op: str
    since_version: int
    types: tuple[str, ...]
    why: tuple[str, ...]
    nodes: dict[str, tuple[str, int]]
    """By artifact: the first node that needs it, and how many do."""


def lacks(missing: Mapping[str, Sequence[Missing]]) -> tuple[MissingKernel, ...]:
    """What artifacts lack, one entry a kernel, sorted by operator."""
    found: dict[tuple[str, str, int], list[tuple[str, Missing]]] = {}
    for name, items in missing.items():
        for item in items:
            found.setdefault((item.domain, item.op, item.since_version), []).append((name, item))
    return tuple(
        MissingKernel(
            domain=domain, op=op, since_version=version,
            types=tuple(dict.fromkeys(text for _, item in items for text in item.types)),
            why=tuple(dict.fromkeys(item.why for _, item in items)),
            nodes=_counted_nodes(items),
        )
        for (domain, op, version), items in sorted(found.items())
    )  # fmt: skip


def _counted_nodes(items: Iterable[tuple[str, Missing]]) -> dict[str, tuple[str, int]]:
    found: dict[str, tuple[str, int]] = {}
    for name, item in items:
        first, count = found.get(name, (item.node, 0))
        found[name] = (first, count + item.nodes)
    return found


def lines_to_add(missing: Iterable[Missing]) -> tuple[str, ...]:
    """The config lines that bring all of it, one for each domain and opset, without contradictions between them."""
    text = "\n".join(dict.fromkeys(item.line for item in missing))
    return tuple(render(parse_merged(text, "the missing lines")).removeprefix(HEADER).splitlines())


def superfluous(required: RequiredOps, artifacts: Iterable[ArtifactNeeds]) -> RequiredOps:
    """What a config has that none of the artifacts needs; types count only where the config restricts them."""
    needed = from_needs([need for artifact in artifacts for need in artifact.needs], types=bool(required.types))
    if required.global_types is not None:
        return RequiredOps(operators=required.operators).difference(needed.without_types())
    return required.difference(needed)
