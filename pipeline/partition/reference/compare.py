"""Our claims compared with a genuine library's on the same graph (`ort-mobile partition --reference`).

Our rules say why, for every platform; the library that ships is what they are checked against. Where there are no rules
for its release, its claims are the answer.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from device_runner.files import scratch_folder
from device_runner.host_device import check_host, default_abi
from device_runner.library import LibraryFacts, resolve
from pipeline.core.errors import ConfigError, ExitCode
from pipeline.core.providers import PROVIDER_RULES, XNNPACK, in_android_libraries
from pipeline.core.releases import has_rules, line_of, rules_of
from pipeline.core.workers import Task, TaskOutcome, run_tasks
from pipeline.model.sources import find_models
from pipeline.partition.answer import SUFFIXES, Decision, ModelAnswer, Optimize, PartitionDocument, Settings
from pipeline.partition.input import (
    NO_SIZES,
    remove_model,
    written_bytes,
)
from pipeline.partition.judge import TIMEOUT_SECONDS
from pipeline.partition.reference.ask import (
    LibraryClaims,
    ShownGraph,
    ShowRequest,
    asked_of,
    check_asked,
    claims_of_named,
    show,
    tells_claims,
)

UNNAMED = "it names no nodes of inlined functions, so these are compared by their number"
OTHER_SHAPES = "shapes of ours are from onnxruntime {ours}, not from {theirs}: a node may differ for that alone"
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


def diff_claims(answer: ModelAnswer, library: LibraryClaims, settings: Settings, *, known: bool) -> ClaimDiff:
    """The comparison for one model; without rules for the release (`known`) the library's side alone."""
    if library.error is not None:
        return ClaimDiff(path=answer.path, error=library.error, crashed=library.crashed)
    same = same_claims(library, answer.partitions) if known else None
    return ClaimDiff(
        path=answer.path,
        same=same,
        our_partitions=len(answer.partitions) if known else None,
        library_partitions=library.count
        if library.partitions is None
        else len(first_answer(library, answer.partitions)),
        nodes=tuple(_nodes(answer, library, same)),
        notes=tuple(_notes(answer, library, same, settings)),
    )


def _notes(answer: ModelAnswer, library: LibraryClaims, same: bool | None, settings: Settings) -> Iterator[str]:
    if any(not name for group in library.partitions or () for name in group):
        yield UNNAMED
    if same is not False:
        return
    release = ".".join(library.release.split(".")[:2])
    if not f"{answer.shapes_from}.".startswith(f"{release}."):
        yield OTHER_SHAPES.format(ours=answer.shapes_from, theirs=release)
    if settings.provider == XNNPACK:
        yield NO_F16


def _nodes(answer: ModelAnswer, library: LibraryClaims, same: bool | None) -> Iterator[NodeDiff]:
    """Every node that either side names."""
    groups = first_answer(library, answer.partitions)
    placed = {plain_name(name): number for number, group in enumerate(groups) for name in group if name}
    claimed = placed.keys() if library.partitions is not None else {plain_name(name) for name in library.nodes}
    reasons = {plain_name(name): reason for name, reason in library.reasons.items()}
    ours_alike = _members(answer.partitions)
    theirs_alike = ours_alike if library.partitions is None else _members(groups)
    unnamed = any(not name for group in groups for name in group)
    seen = set()
    for decision in answer.decisions:
        name = plain_name(first_output(decision))
        seen.add(name)
        taken = decision.claimed if same else name in claimed
        side = Side(
            claimed=taken, partition=placed.get(name), reason="" if taken else reasons.get(name, library.reason)
        )
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
        warnings=(f"no rules for {release}: these are the claims of its own library", *difference.notes),
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


AT_ONCE, AT_ONCE_BYTES = 64, 512 << 20
"""So many models, or so much of them, lie in the scratch folder at once and are asked about in one process."""


class LibraryReference(msgspec.Struct, frozen=True, kw_only=True):
    """The library of an ABI that was asked, and its answers. With `rules` False none of ours are for its release."""

    library: str
    release: str
    sha256: str
    abi: str
    rules: bool
    different: int
    models: tuple[ClaimDiff, ...]


class ReferencedDocument(PartitionDocument, frozen=True, kw_only=True):
    """The JSON document of `ort-mobile partition --reference`."""

    reference: LibraryReference

    @property
    def complete(self) -> tuple[ModelAnswer, ...]:
        """Answers that are whole: a library before 1.24 does not report how nodes are grouped."""
        pairs = zip(self.models, self.reference.models, strict=True)
        return tuple(
            m
            for m, difference in pairs
            if m.error or self.reference.rules or len(m.partitions) == difference.library_partitions
        )

    @property
    def exit_code(self) -> ExitCode:
        """4 when claims differ, 1 when the library gave no answer for a model."""
        if self.reference.different:
            return ExitCode.CHECK_FAILED
        failed = any(difference.error for difference in self.reference.models)
        return ExitCode.SOME_FAILED if failed else ExitCode.DONE


def open_reference(text: str, provider: str, release: str, abi: str = "") -> LibraryFacts:
    """The library that can be asked about a provider; `release` is the one that the user named, "" for none.

    `abi` is by Android's name, "" for the one that needs no emulator here.

    Raises ConfigError for what no Android library reports, MissingError where it is not available or cannot run here.
    """
    run = PROVIDER_RULES[provider].run
    if run.never_on("android"):
        owner = run.owner
        raise ConfigError(
            f"no Android library can be asked about {provider}",
            why=f"{run.title} is in {owner}'s libraries only, which run on {owner}'s systems only",
            remedy=f"leave --reference out, or ask about {' or '.join(in_android_libraries())}",
        )
    wanted = abi or default_abi()
    check_host(wanted)
    facts = resolve(text, wanted).android()
    check_asked(facts, provider)
    if provider == XNNPACK and not tells_claims(facts):
        raise ConfigError(
            f"a library of {facts.release} does not report what XNNPACK claims",
            why="that came with release 1.24; before, only NNAPI logs its claims",
            remedy="ask about nnapi, or a library of 1.24 or later",
        )
    if release and facts.release and not (facts.release + ".").startswith(release.rstrip(".") + "."):
        raise ConfigError(
            f"the library is of release {facts.release}, not {release}",
            where=text,
            why="claims of one release are checked against the rules of the same",
            remedy="leave --ort-release out: it is the library's then",
        )
    return facts


def rules_known(facts: LibraryFacts) -> bool:
    """Whether there are rules for a library's release; where it reports none, the user names the release."""
    return not facts.release or has_rules(line_of(facts.release))


def rules_release(facts: LibraryFacts, named: str) -> str:
    """The release whose rules a library is compared with: its own or the nearest with rules; "": the installed one.

    `named` is the user's, for files that do not report their release.
    """
    wanted = facts.release or named
    if not wanted:
        return ""
    return str(rules_of(line_of(wanted)))


def compare_answers(
    paths: Sequence[str | Path],
    answers: Sequence[ModelAnswer],
    facts: LibraryFacts,
    settings: Settings,
    optimize: Optimize,
    *,
    sizes: Mapping[str, int] = NO_SIZES,
    processes: int = 1,
) -> ReferencedDocument:
    """The answers for the models under `paths`, in their order, compared with the library's.

    `sizes` are for dynamic dimensions, as in the answers.

    Models are read in worker processes and shown to the library in another one, so a crash costs one model. A model
    that has no answer of ours is not shown: what is wrong with it is known already.
    """
    known = rules_known(facts)
    pairs = list(_pairs(paths, answers, facts, settings, optimize, sizes, known=known, processes=processes))
    reference = LibraryReference(
        library=facts.path,
        release=facts.release,
        sha256=facts.sha256,
        abi=facts.abi,
        rules=known,
        different=sum(difference.same is False for difference, _ in pairs),
        models=tuple(difference for difference, _ in pairs),
    )
    return ReferencedDocument(models=tuple(answer for _, answer in pairs), reference=reference)


def _pairs(
    paths: Sequence[str | Path],
    answers: Sequence[ModelAnswer],
    facts: LibraryFacts,
    settings: Settings,
    optimize: Optimize,
    sizes: Mapping[str, int],
    *,
    known: bool,
    processes: int,
) -> Iterator[tuple[ClaimDiff, ModelAnswer]]:
    """Each model's comparison with the answer that holds: ours, or the library's where its release has no rules."""
    pairs = list(zip(find_models(paths, SUFFIXES), answers, strict=True))
    with scratch_folder() as name:
        requests = [
            ShowRequest(
                source=source,
                settings=settings,
                optimize=optimize,
                target=f"{name}/{number}.onnx",
                sizes=dict(sizes),
            )
            for number, (source, answer) in enumerate(pairs)
            if not answer.error
        ]
        tasks = [Task(label=request.source.name, request=request) for request in requests]
        shown = run_tasks(show, ShownGraph, tasks, processes=processes, timeout_seconds=TIMEOUT_SECONDS)
        claims = {path: claimed for chunk in _chunks(shown) for path, claimed in _claims(chunk, facts, settings)}
    for _, answer in pairs:
        if answer.error:
            yield ClaimDiff(path=answer.path, asked=False), answer
        else:
            difference = diff_claims(answer, claims[answer.path], settings, known=known)
            yield difference, (answer if known else as_answer(answer, difference, facts.release))


Showing = TaskOutcome[ShowRequest, ShownGraph]


def _chunks(shown: Iterable[Showing]) -> Iterator[list[Showing]]:
    """Models for one process of the library each: not too many, and not too large together."""
    chunk: list[Showing] = []
    size = 0
    for outcome in shown:
        chunk.append(outcome)
        size += written_bytes(Path(outcome.task.request.target))
        if len(chunk) == AT_ONCE or size > AT_ONCE_BYTES:
            yield chunk
            chunk, size = [], 0
    yield chunk


def _claims(shown: Iterable[Showing], facts: LibraryFacts, settings: Settings) -> Iterator[tuple[str, LibraryClaims]]:
    """The library's claims by model; files are removed once they were asked about."""
    good = []
    for outcome in shown:
        why = outcome.error or (outcome.value and outcome.value.error)
        if why:
            yield outcome.task.label, LibraryClaims(id="", release=facts.release, error=f"it was not asked: {why}")
        else:
            good.append(outcome.task.request)
    files = [Path(request.target) for request in good]
    for request, claims in zip(good, claims_of_named(files, facts, asked_of(settings)), strict=True):
        error = claims.error and claims.error.replace(request.target, request.source.name)
        yield request.source.name, msgspec.structs.replace(claims, error=error)
    for file in files:
        remove_model(file)
