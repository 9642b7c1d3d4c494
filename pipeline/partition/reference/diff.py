"""Our answer for a model compared with a genuine library's, node by node: what differs, with both reasons."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from pipeline.core.providers import XNNPACK
from pipeline.partition.answer import Decision, ModelAnswer, Settings
from pipeline.partition.reference.ask import LibraryClaims

UNNAMED = "it names no nodes of inlined functions, so these are compared by their number"
OTHER_SHAPES = "shapes of ours are from {ours}, not from {theirs}: a node may differ for that alone"
NO_F16 = "a library for x86_64 leaves fp16 to the CPU, one for arm64 does not (XNNPACK compiles fp16 in for ARM only)"
TOKEN = re.compile(r"_token_\d+")
"""A number in names of copies that ONNX Runtime's hash order decides (`x/duplicated_token_3`)."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One side's answer for a node. `partition` is None for a refused node, and where groups are not reported."""

    claimed: bool
    partition: int | None = None
    reason: str = ""


class NodeDiff(msgspec.Struct, frozen=True, kw_only=True):
    """One node by its first output. A side is None where it has no answer: no rules of ours, a node without a name."""

    output: str
    op_type: str
    ours: Side | None
    library: Side | None
    different: bool = False


class ClaimDiff(msgspec.Struct, frozen=True, kw_only=True):
    """One model. `same` is None where nothing could be compared; with `error` set the library gave no answer.

    A model without an answer of ours is not `asked` about: what is wrong with it is known already.

    A library before 1.24 reports the number of its partitions, not which nodes are together.
    """

    path: str
    asked: bool = True
    same: bool | None = None
    our_partitions: int | None = None
    library_partitions: int = 0
    nodes: tuple[NodeDiff, ...] = ()
    notes: tuple[str, ...] = ()
    error: str | None = None
    crashed: bool = False


def diff_claims(answer: ModelAnswer, theirs: LibraryClaims, settings: Settings, *, known: bool) -> ClaimDiff:
    """The comparison for one model; without rules for the release (`known`) the library's side alone."""
    if theirs.error is not None:
        return ClaimDiff(path=answer.path, error=theirs.error, crashed=theirs.crashed)
    same = same_claims(theirs, answer.partitions) if known else None
    return ClaimDiff(
        path=answer.path,
        same=same,
        our_partitions=len(answer.partitions) if known else None,
        library_partitions=theirs.count if theirs.partitions is None else len(first_answer(theirs, answer.partitions)),
        nodes=tuple(_nodes(answer, theirs, same)),
        notes=tuple(_notes(answer, theirs, same, settings)),
    )


def _notes(answer: ModelAnswer, theirs: LibraryClaims, same: bool | None, settings: Settings) -> Iterator[str]:
    if any(not name for group in theirs.partitions or () for name in group):
        yield UNNAMED
    if same is not False:
        return
    release = ".".join(theirs.release.split(".")[:2])
    if not f"{answer.shapes_from}.".startswith(f"onnxruntime {release}."):
        yield OTHER_SHAPES.format(ours=answer.shapes_from, theirs=release)
    if settings.provider == XNNPACK:
        yield NO_F16


def _nodes(answer: ModelAnswer, theirs: LibraryClaims, same: bool | None) -> Iterator[NodeDiff]:
    """Every node that either side names."""
    groups = first_answer(theirs, answer.partitions)
    placed = {plain_name(name): number for number, group in enumerate(groups) for name in group if name}
    claimed = placed.keys() if theirs.partitions is not None else {plain_name(name) for name in theirs.nodes}
    reasons = {plain_name(name): reason for name, reason in theirs.reasons.items()}
    ours_alike = _members(answer.partitions)
    theirs_alike = ours_alike if theirs.partitions is None else _members(groups)
    unnamed = any(not name for group in groups for name in group)
    seen = set()
    for decision in answer.decisions:
        name = plain_name(first_output(decision))
        seen.add(name)
        taken = decision.claimed if same else name in claimed
        side = Side(claimed=taken, partition=placed.get(name), reason="" if taken else reasons.get(name, theirs.reason))
        known_side = bool(same) or not unnamed or name in claimed
        regrouped = taken and decision.claimed and ours_alike.get(name) != theirs_alike.get(name)
        yield NodeDiff(
            output=first_output(decision),
            op_type=decision.op_type,
            ours=None
            if same is None
            else Side(claimed=decision.claimed, partition=decision.partition, reason=decision.reason or ""),
            library=side if known_side else None,
            different=same is False and (taken != decision.claimed or regrouped),
        )
    for name in sorted(claimed - seen):
        extra = Side(claimed=True, partition=placed.get(name))
        yield NodeDiff(output=name, op_type="", ours=None, library=extra, different=same is False)


def _members(groups: Iterable[Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """The members of each node's group, by node."""
    plain = [tuple(sorted(map(plain_name, group))) for group in groups]
    return {name: group for group in plain for name in group}


def first_output(decision: Decision) -> str:
    """What the node goes by: its first output that has a name, as `name_nodes` names it."""
    return next((output for output in decision.outputs if output), decision.name)


def as_answer(answer: ModelAnswer, one: ClaimDiff, release: str) -> ModelAnswer:
    """The library's claims in the shape of our answers, for a release without rules."""
    if one.error is not None:
        return msgspec.structs.replace(
            answer, error=f"the library of {release} gave no answer: {one.error}", ort_release=release, rules_release=""
        )
    sides = {node.output: node.library for node in one.nodes if node.library}
    decisions = tuple(_theirs(decision, sides.get(first_output(decision))) for decision in answer.decisions)
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
        decisions=decisions,
        subgraphs=(),
        load=None,
        cuts=(),
        warnings=(f"no rules for {release}: these are the claims of its own library", *one.notes),
    )


def _theirs(decision: Decision, side: Side | None) -> Decision:
    claimed = side is not None and side.claimed
    return msgspec.structs.replace(
        decision,
        claimed=claimed,
        partition=side.partition if side else None,
        code=None if claimed else "library",
        reason=None if claimed else (side.reason if side else "") or "the library gives no reason",
        remedy=None,
    )


def first_answer(theirs: LibraryClaims, ours: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """The partitions that the library gave when it was asked first, as many as ours where it was asked twice.

    The record does not show where the second answer begins; it can only begin behind a first one that agrees.
    """
    partitions = theirs.partitions or ()
    prefix = partitions[: len(ours)] if theirs.inlined else partitions
    return prefix if _same(prefix, ours) else partitions


def same_claims(theirs: LibraryClaims, ours: Sequence[Sequence[str]]) -> bool:
    """Whether the library's partitions are ours: as sets of sets; as sets of nodes where it does not report groups."""
    if theirs.partitions is None:
        return _plains(theirs.nodes) == _plains(name for group in ours for name in group)
    return _same(first_answer(theirs, ours), ours)


def _same(theirs: Sequence[Sequence[str]], ours: Sequence[Sequence[str]]) -> bool:
    """Equal as sets of sets. Nodes of local functions have no names in the record: such a group is only counted."""
    left, right = (sorted(map(_plains, groups)) for groups in (theirs, ours))
    if left == right:
        return True
    rest = [Counter(group) for group in right]
    for group in sorted(left, key=lambda names: names.count("")):
        named = Counter(name for name in group if name)
        found = next((mine for mine in rest if mine.total() == len(group) and named <= mine), None)
        if found is None:
            return False
        rest.remove(found)
    return not rest


def plain_name(name: str) -> str:
    """A name as both sides report it: the library's end at a NUL, and numbers of copies are left out."""
    return TOKEN.sub("", name.partition("\0")[0])


def _plains(names: Iterable[str]) -> list[str]:
    return sorted(map(plain_name, names))


def differing(theirs: LibraryClaims, ours: Iterable[str]) -> Mapping[str, bool]:
    """Nodes that one side alone claims, by first output: True for ours. Empty where the library names not all."""
    if "" in theirs.nodes:
        return {}
    mine, others = set(_plains(ours)), set(_plains(theirs.nodes))
    return {name: name in mine for name in sorted(mine ^ others)}
