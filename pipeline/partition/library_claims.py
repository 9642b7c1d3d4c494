"""What a library says that it claims of a model, and where that differs from our answer."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from pipeline.partition.answer import (
    ClaimDiff,
    Decision,
    ModelAnswer,
    NodeDiff,
    Settings,
    Side,
)
from pipeline.partition.claiming import claims_of


class LibraryClaims(msgspec.Struct, frozen=True, kw_only=True):
    """What a library claims of one model: each partition's nodes by their first outputs, in the library's order.

    A graph with functions is asked again after they are inlined: `inlined` is set, and what was claimed then stands
    behind the first answer's partitions, inlined nodes as "". `partitions` is None where the library is older than 1.24
    and reports which nodes it claims (`nodes`) and in how many groups (`count`), but not how it groups them. `reasons`
    has the library's own words for refused nodes, when they were asked for; `reason` those for refusing all of them.
    With `rest` set it reports refused nodes only, and claims all others; `kinds` has the operators of those without a
    kernel: a call of a function has none, and goes by the name of the node that it is inlined to.
    With `error` set nothing else is known; `crashed` when the process ended.
    """

    id: str
    release: str
    partitions: tuple[tuple[str, ...], ...] | None = None
    nodes: frozenset[str] = frozenset()
    count: int = 0
    rest: bool = False
    kinds: Mapping[str, str] = {}
    inlined: bool = False
    reasons: Mapping[str, str] = {}
    reason: str = ""
    error: str | None = None
    crashed: bool = False


UNNAMED = "it names no nodes of inlined functions, so these are compared by their number"


OTHER_SHAPES = "shapes of ours are from onnxruntime {ours}, not from {theirs}: a node may differ for that alone"


FORESEEN = "neither makes a session of it, as foreseen: {}"


AFTER_ASKING = frozenset({"build", "level", "layout"})
"""Codes of refusals that end a session once the provider has claimed."""


TOKEN = re.compile(r"_token_\d+")
"""A number in names of copies that ONNX Runtime's hash order decides (`x/duplicated_token_3`)."""


def diff_claims(answer: ModelAnswer, library: LibraryClaims, settings: Settings, *, has_rules: bool) -> ClaimDiff:
    """The comparison for one model; without rules for the release (`has_rules`) the library's side alone."""
    if library.error is not None:
        # The session that asks builds nothing: what ends it is what ends ours while the provider is asked.
        if has_rules and answer.load and answer.load.error and answer.load.code not in AFTER_ASKING:
            note = FORESEEN.format(library.error)
            return ClaimDiff(path=answer.path, same=True, our_partitions=len(answer.partitions), notes=(note,))
        return ClaimDiff(path=answer.path, error=library.error, crashed=library.crashed)
    library = _without(library, answer.ends)
    if library.rest:
        # The claims with all nodes that were not refused, each by itself
        kinds = {plain_name(name): kind for name, kind in library.kinds.items()}
        refused = {(name := plain_name(text), kinds.get(name, "")) for text in library.reasons}
        claimed = [
            name
            for decision in answer.decisions
            if refused.isdisjoint(
                ((plain_name(name := first_output(decision)), ""), (plain_name(name), decision.op_type))
            )
        ]
        alone = tuple((name,) for name in claimed)
        library = msgspec.structs.replace(library, partitions=alone, nodes=frozenset(claimed), count=len(alone))
    same = same_claims(library, answer.partitions) if has_rules else None
    release = ".".join(library.release.split(".")[:2])
    other_shapes = same is False and not f"{answer.shapes_from}.".startswith(f"{release}.")
    notes = (
        (any(not name for group in library.partitions or () for name in group), UNNAMED),
        (other_shapes, OTHER_SHAPES.format(ours=answer.shapes_from, theirs=release)),
        (same is False, claims_of(settings).library_note),
    )
    groups = library.partitions if library.partitions is None else first_answer(library, answer.partitions)
    return ClaimDiff(
        path=answer.path,
        same=same,
        our_partitions=len(answer.partitions) if has_rules else None,
        library_partitions=library.count if groups is None else len(groups),
        # A provider that takes each node by itself has no numbers of partitions.
        nodes=tuple(_nodes(answer, library, same, numbered=not (has_rules and settings.rules.copies))),
        notes=tuple(text for holds, text in notes if holds and text),
    )


def _without(library: LibraryClaims, ends: Collection[str]) -> LibraryClaims:
    """The claims without nodes that our answer does not count, and groups of these alone."""
    if not ends:
        return library
    names = {plain_name(name) for name in ends}
    own = [tuple(name for name in group if plain_name(name) not in names) for group in library.partitions or ()]
    groups = None if library.partitions is None else tuple(filter(None, own))
    nodes = frozenset(name for name in library.nodes if plain_name(name) not in names)
    return msgspec.structs.replace(
        library,
        partitions=groups,
        nodes=nodes,
        count=library.count if groups is None else len(groups),
    )


def _nodes(answer: ModelAnswer, library: LibraryClaims, same: bool | None, *, numbered: bool) -> Iterator[NodeDiff]:
    """Every node that either side names."""
    groups = first_answer(library, answer.partitions)
    placed = {plain_name(name): number for number, group in enumerate(groups) for name in group if name}
    claimed = placed.keys() if library.partitions is not None else {plain_name(name) for name in library.nodes}
    reasons = {plain_name(name): reason for name, reason in library.reasons.items()}
    ours_alike = _members(answer.partitions)
    theirs_alike = ours_alike if library.partitions is None else _members(groups)
    unnamed = any(not name for group in groups for name in group)
    numbers = placed if numbered else {}
    seen = set()
    for decision in answer.decisions:
        name = plain_name(first_output(decision))
        seen.add(name)
        taken = decision.claimed if same else name in claimed
        side = Side(
            claimed=taken, partition=numbers.get(name), reason="" if taken else reasons.get(name, library.reason)
        )
        known_side = bool(same) or not unnamed or name in claimed
        regrouped = taken and decision.claimed and ours_alike.get(name) != theirs_alike.get(name)
        yield NodeDiff(
            output=first_output(decision),
            op_type=decision.op_type,
            ours=None
            if same is None
            else Side(
                claimed=decision.claimed,
                partition=decision.partition if numbered else None,
                reason=decision.reason or "",
            ),
            library=side if known_side else None,
            different=same is False and (taken != decision.claimed or regrouped),
        )
    for name in sorted(claimed - seen):
        extra = Side(claimed=True, partition=numbers.get(name))
        yield NodeDiff(output=name, op_type="", ours=None, library=extra, different=same is False)


def _members(groups: Iterable[Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """The members of each node's group, by node."""
    plain = [tuple(sorted(map(plain_name, group))) for group in groups]
    return {name: group for group in plain for name in group}


def first_output(decision: Decision) -> str:
    """What the node goes by: its first output that has a name, as `name_nodes` names it."""
    return next((output for output in decision.outputs if output), decision.name)


def as_answer(answer: ModelAnswer, difference: ClaimDiff, release: str) -> ModelAnswer:
    """The library's claims in the shape of our answers, for a release without rules."""
    if difference.error is not None:
        return msgspec.structs.replace(
            answer,
            error=f"the library of {release} gave no answer: {difference.error}",
            ort_release=release,
            rules_release="",
        )
    sides = {node.output: node.library for node in difference.nodes if node.library}
    decisions = []
    for decision in answer.decisions:
        side = sides.get(first_output(decision))
        claimed = side is not None and side.claimed
        by_library = msgspec.structs.replace(
            decision,
            claimed=claimed,
            partition=side.partition if side else None,
            code=None if claimed else "library",
            reason=None if claimed else (side.reason if side else "") or "the library gives no reason",
            remedy=None,
        )
        decisions.append(by_library)
    groups: dict[int, list[str]] = {}
    for decision in decisions:
        if decision.partition is not None:
            groups.setdefault(decision.partition, []).append(first_output(decision))
    return msgspec.structs.replace(
        answer,
        ort_release=release,
        rules_release="",
        claimed=sum(decision.claimed for decision in decisions),
        partitions=tuple(tuple(groups[number]) for number in sorted(groups)),
        decisions=tuple(decisions),
        subgraphs=(),
        load=None,
        cuts=(),
        warnings=(f"no rules for {release}: these are the claims of its own library", *difference.notes),
    )


def first_answer(library: LibraryClaims, ours: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """The partitions that the library gave when it was asked first, as many as ours where it was asked twice.

    The record does not show where the second answer begins; it can only begin behind a first one that agrees.
    """
    partitions = library.partitions or ()
    prefix = partitions[: len(ours)] if library.inlined else partitions
    return prefix if _same(prefix, ours) else partitions


def same_claims(library: LibraryClaims, ours: Sequence[Sequence[str]]) -> bool:
    """Whether the library's partitions are ours: as sets of sets; as sets of nodes where it does not report groups."""
    if library.partitions is None:
        return _plains(library.nodes) == _plains(name for group in ours for name in group)
    return _same(first_answer(library, ours), ours)


def _same(library: Sequence[Sequence[str]], ours: Sequence[Sequence[str]]) -> bool:
    """Equal as sets of sets. Nodes of local functions have no names in the record: such a group is only counted."""
    left, right = (sorted(map(_plains, groups)) for groups in (library, ours))
    if left == right:
        return True
    rest = [Counter(group) for group in right]
    for group in sorted(left, key=lambda names: names.count("")):
        named = Counter(name for name in group if name)
        match = next((mine for mine in rest if mine.total() == len(group) and named <= mine), None)
        if match is None:
            return False
        rest.remove(match)
    return not rest


def plain_name(name: str) -> str:
    """A name as both sides report it: the library's end at a NUL, and numbers of copies are left out."""
    return TOKEN.sub("", name.partition("\0")[0])


def _plains(names: Iterable[str]) -> list[str]:
    return sorted(map(plain_name, names))


def differing(library: LibraryClaims, ours: Iterable[str]) -> Mapping[str, bool]:
    """Nodes that one side alone claims, by first output: True for ours. Empty where the library names not all."""
    if "" in library.nodes:
        return {}
    mine, others = set(_plains(ours)), set(_plains(library.nodes))
    return {name: name in mine for name in sorted(mine ^ others)}
